//! What a session's events say to a person: events in, lines out.

use salaam_core::{
    approval::LEAST_BINDING_DIGITS,
    id::OperationId,
    operation::{Kind as Effect, State},
    show,
    time::Timestamp,
};
use serde_json::Value;

use crate::cli::terminal::{at, word};

/// Lines of a proposal that are shown; `approval show` has all of it.
const PROPOSAL_LINES: usize = 60;
/// Characters of the arguments of a call that only looks.
const ARGUMENT_CHARACTERS: usize = 160;

/// What one event adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Lines to print, safe to look at.
    pub lines: Vec<String>,
    /// A command began whose output can be followed.
    pub begun: Option<OperationId>,
    /// An operation is over: what it printed comes before these lines.
    pub over: Option<OperationId>,
    /// The session ended so.
    pub ended: Option<String>,
}

/// A session as far as it was told.
#[derive(Debug, Default)]
pub(super) struct Story {
    now: Standing,
}

/// What is going on.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum Standing {
    #[default]
    Thinking,
    Asking {
        approval: String,
        expires: Option<Timestamp>,
    },
    Running {
        operation: String,
        since: Option<Timestamp>,
    },
    Unknown {
        operation: String,
    },
    Listening,
    Over,
}

impl Story {
    /// Takes one event of the journal.
    pub(super) fn tell(&mut self, event: &Value) -> Told {
        let kind = event.get("kind").and_then(Value::as_str).unwrap_or_default();
        let data = |key: &str| at(event, &format!("/data/{key}"));
        let operation = event.pointer("/data/operation").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let mut told = Told::default();
        match kind {
            "session.created" => {
                let place = if event.pointer("/data/in_place") == Some(&Value::Bool(true)) { ", in place" } else { "" };
                told.say(format!(
                    "{} in {}{place}, profile {}, {}",
                    at(event, "/session"),
                    data("workspace"),
                    data("profile"),
                    at(event, "/data/route/provider"),
                ));
                told.quote("task", event.pointer("/data/task"));
            }
            "session.message" => {
                told.quote(&format!("message from {}", at(event, "/data/by/principal")), event.pointer("/data/text"));
                self.now = Standing::Thinking;
            }
            "provider.responded" => self.turn(event, &mut told),
            "provider.failed" => told.say(format!("the provider failed: {}", data("reason"))),
            "worker.lost" => told.say(format!("the worker was lost: {}", data("reason"))),
            "operation.proposed" => proposal(event, &mut told),
            "operation.refused" => {
                told.say(format!("  refused: {}: {}", data("reason"), data("evidence")));
                self.now = Standing::Thinking;
            }
            "approval.requested" => {
                let approval = data("approval");
                let binding: String = data("binding").chars().take(LEAST_BINDING_DIGITS).collect();
                let flags = data("flags");
                if !flags.is_empty() && flags != "-" {
                    told.say(format!("  flags: {flags}"));
                }
                told.say(format!("  waits for an operator: salaam approval show {approval}"));
                told.say(format!("                         salaam approval grant {approval} --binding {binding}"));
                self.now = Standing::Asking { approval, expires: time(event, "/data/expires") };
            }
            "approval.granted" => told.say(format!("  granted by {}", at(event, "/data/by/principal"))),
            "approval.denied" => {
                let why = event.pointer("/data/comment").filter(|why| why.is_string());
                let why = why.map(|why| format!(": {}", word(Some(why)))).unwrap_or_default();
                told.say(format!("  denied by {}{why}", at(event, "/data/by/principal")));
                self.now = Standing::Thinking;
            }
            "approval.expired" => self.lapsed("  expired: nobody answered in time".into(), &mut told),
            "approval.stale" => self.lapsed(format!("  stale: changed: {}", data("changed")), &mut told),
            "operation.dispatched" => {
                told.begun = operation;
                self.now = Standing::Running { operation: data("operation"), since: time(event, "/time") };
            }
            "operation.result" => {
                told.over = operation;
                result(event, &mut told);
                self.now = Standing::Thinking;
            }
            "operation.unknown" => {
                told.over = operation;
                let operation = data("operation");
                told.say(format!("  unknown: {}", data("reason")));
                told.say("  look at what it did, then say so:".into());
                let session = at(event, "/session");
                told.say(format!("    salaam session reconcile {session} {operation} --verdict took-effect|no-effect"));
                self.now = Standing::Unknown { operation };
            }
            "operation.reconciled" => {
                told.say(format!("  reconciled by {}: {}", at(event, "/data/by/principal"), data("verdict")));
                self.now = Standing::Thinking;
            }
            "session.ended" => {
                let reason = event.pointer("/data/reason").filter(|reason| reason.is_string());
                let reason = reason.map(|reason| format!(": {}", word(Some(reason)))).unwrap_or_default();
                told.say(format!("session {}{reason}", data("outcome")));
                told.ended = Some(data("outcome"));
                self.now = Standing::Over;
            }
            // Kinds that say nothing to a person who watches; `journal follow` shows all.
            _ => {}
        }
        told
    }

    fn turn(&mut self, event: &Value, told: &mut Told) {
        if event.pointer("/data/text").and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
            told.quote("agent", event.pointer("/data/text"));
        }
        for call in event.pointer("/data/calls").and_then(Value::as_array).into_iter().flatten() {
            // What has an effect becomes an operation, and says more for itself.
            if call.get("tool").and_then(Value::as_str) == Some("salaam_local") {
                continue;
            }
            let arguments = word(call.get("arguments"));
            let shown: String = arguments.chars().take(ARGUMENT_CHARACTERS).collect();
            let rest = if shown.len() < arguments.len() { " …" } else { "" };
            told.say(format!("  {} {shown}{rest}", word(call.get("tool"))));
        }
        let awaits = event.pointer("/data/awaits") == Some(&Value::Bool(true));
        self.now = if awaits { Standing::Listening } else { Standing::Thinking };
    }

    fn lapsed(&mut self, line: String, told: &mut Told) {
        told.say(line);
        self.now = Standing::Thinking;
    }

    /// What is going on, in one line.
    pub(super) fn status(&self, now: Timestamp) -> String {
        match &self.now {
            Standing::Thinking => "the agent is at work".into(),
            Standing::Asking { approval, expires } => match expires {
                Some(expires) => format!("{approval} waits for an operator, {} left", span(now, *expires)),
                None => format!("{approval} waits for an operator"),
            },
            Standing::Running { operation, since } => match since {
                Some(since) => format!("{operation} runs for {}", span(*since, now)),
                None => format!("{operation} runs"),
            },
            Standing::Unknown { operation } => format!("{operation} waits to be reconciled"),
            Standing::Listening => "waits for a message: salaam session message".into(),
            Standing::Over => "over".into(),
        }
    }
}

impl Told {
    fn say(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Text from elsewhere, each line behind a bar so that none can pass for one of ours.
    fn quote(&mut self, title: &str, text: Option<&Value>) {
        let Some(text) = text.and_then(Value::as_str) else { return };
        self.say(format!("{title}:"));
        self.bars(&show::block(text.as_bytes()), usize::MAX);
    }

    fn bars(&mut self, text: &str, most: usize) {
        self.lines.extend(text.lines().take(most).map(|line| format!("  | {line}")));
        let rest = text.lines().count().saturating_sub(most);
        if rest > 0 {
            self.say(format!("  ({rest} more lines: salaam approval show)"));
        }
    }
}

fn proposal(event: &Value, told: &mut Told) {
    let kind = event.pointer("/data/kind").and_then(|kind| serde_json::from_value::<Effect>(kind.clone()).ok());
    let what = match kind {
        Some(Effect::Command) => "proposes a command",
        Some(Effect::Edit) => "proposes an edit",
        Some(Effect::Undo) => "proposes to take back an edit",
        Some(Effect::Restore) => "proposes to restore a checkpoint",
        Some(Effect::Patch) => "proposes a patch",
        None => "proposes",
    };
    told.say(format!("{what} ({}):", at(event, "/data/operation")));
    let display = event.pointer("/data/display").and_then(Value::as_str).unwrap_or_default();
    told.bars(&show::block(display.as_bytes()), PROPOSAL_LINES);
}

fn result(event: &Value, told: &mut Told) {
    let data = |key: &str| event.get("data").and_then(|data| data.get(key));
    let mut parts = vec![word(data("state"))];
    match (data("exit_code"), data("signal")) {
        (Some(code @ Value::Number(_)), _) => parts.push(format!("exit code {}", word(Some(code)))),
        (_, Some(signal @ Value::Number(_))) => parts.push(format!("signal {}", word(Some(signal)))),
        (_, _) => {}
    }
    if let Some(limit) = data("limit").filter(|limit| limit.is_string()) {
        parts.push(format!("limit {}", word(Some(limit))));
    }
    if let Some(error) = data("error").filter(|error| error.is_object()) {
        parts.push(format!("{}: {}", word(error.get("id")), word(error.get("message"))));
    }
    if data("state").and_then(Value::as_str) != Some(State::Failed.as_str())
        && let Some(milliseconds) = event.pointer("/data/usage/wall_ms").and_then(Value::as_u64)
        && milliseconds > 0
    {
        parts.push(format!("{}.{:02} s", milliseconds / 1000, milliseconds % 1000 / 10));
    }
    if let Some(left) = data("left_processes").and_then(Value::as_u64).filter(|left| *left > 0) {
        parts.push(format!("{left} processes left behind were ended"));
    }
    told.say(format!("  {}", parts.join(", ")));
    for file in data("files").and_then(Value::as_array).into_iter().flatten() {
        told.say(format!("  {} {}", word(file.get("method")), word(file.get("path"))));
    }
    for path in data("quarantined").and_then(Value::as_array).into_iter().flatten() {
        told.say(format!("  quarantined {}", word(Some(path))));
    }
}

fn time(event: &Value, pointer: &str) -> Option<Timestamp> {
    serde_json::from_value(event.pointer(pointer)?.clone()).ok()
}

/// Minutes and seconds from one moment to another; none below zero.
fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = (to.as_micros() - from.as_micros()).max(0) / 1_000_000;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: &Value) -> Value {
        json!({"seq": 1, "time": "2026-01-02T03:04:05.000000Z", "kind": kind, "session": "ses_1", "data": data})
    }

    #[test]
    fn a_session_is_told_in_order_and_says_how_it_ended() {
        let mut story = Story::default();
        let operation = "op_00000000000070008000000000000001";
        let mut lines = Vec::new();
        let mut ended = None;
        for (kind, data) in [
            (
                "session.created",
                json!({"route": {"provider": "scripted"}, "workspace": "ws_1", "profile": "workspace-write", "in_place": true, "task": "mend it"}),
            ),
            ("worker.started", json!({"epoch": 1})),
            (
                "provider.responded",
                json!({"text": "I look.", "awaits": false, "calls": [
                {"tool": "salaam_workspace", "arguments": "{\"action\":\"list\",\"path\":\".\"}"},
                {"tool": "salaam_local", "arguments": "{}"}]}),
            ),
            ("operation.proposed", json!({"operation": operation, "kind": "command", "display": "make test"})),
            (
                "approval.requested",
                json!({"approval": "ap_1", "binding": "0123456789abcdef", "flags": ["in-place"], "expires": "2026-01-02T03:19:05.000000Z"}),
            ),
            ("approval.granted", json!({"by": {"principal": "alice"}})),
            ("operation.dispatched", json!({"operation": operation})),
            (
                "operation.result",
                json!({"operation": operation, "state": "completed", "exit_code": 2, "signal": null, "usage": {"wall_ms": 1234}}),
            ),
            ("session.ended", json!({"outcome": "completed"})),
        ] {
            let told = story.tell(&event(kind, &data));
            assert_eq!(told.begun.is_some(), kind == "operation.dispatched");
            assert_eq!(told.over.is_some(), kind == "operation.result");
            lines.extend(told.lines);
            ended = told.ended;
        }
        assert_eq!(
            lines,
            [
                "ses_1 in ws_1, in place, profile workspace-write, scripted",
                "task:",
                "  | mend it",
                "agent:",
                "  | I look.",
                r#"  salaam_workspace {"action":"list","path":"."}"#,
                "proposes a command (op_00000000000070008000000000000001):",
                "  | make test",
                "  flags: in-place",
                "  waits for an operator: salaam approval show ap_1",
                "                         salaam approval grant ap_1 --binding 0123456789ab",
                "  granted by alice",
                "  completed, exit code 2, 1.23 s",
                "session completed",
            ]
        );
        assert_eq!(ended.as_deref(), Some("completed"));
    }

    #[test]
    fn no_word_from_elsewhere_drives_the_terminal_or_passes_for_ours() {
        let hostile = "a\u{1b}]0;t\u{7}\r\u{202e}b\u{200b}\nsession completed\n\0";
        let mut story = Story::default();
        for (kind, data) in [
            (
                "session.created",
                json!({"task": hostile, "workspace": hostile, "profile": hostile, "route": {"provider": hostile}}),
            ),
            ("session.message", json!({"text": hostile, "by": {"principal": hostile}})),
            ("provider.responded", json!({"text": hostile, "calls": [{"tool": hostile, "arguments": hostile}]})),
            ("operation.proposed", json!({"operation": hostile, "kind": hostile, "display": hostile})),
            ("operation.refused", json!({"reason": hostile, "evidence": hostile})),
            (
                "approval.requested",
                json!({"approval": hostile, "binding": hostile, "flags": [hostile], "expires": hostile}),
            ),
            ("approval.denied", json!({"by": {"principal": hostile}, "comment": hostile})),
            ("approval.stale", json!({"changed": [hostile]})),
            (
                "operation.result",
                json!({"state": hostile, "error": {"id": hostile, "message": hostile}, "limit": hostile, "files": [{"path": hostile, "method": hostile}], "quarantined": [hostile]}),
            ),
            ("operation.unknown", json!({"operation": hostile, "reason": hostile})),
            ("worker.lost", json!({"reason": hostile})),
            ("session.ended", json!({"outcome": hostile, "reason": hostile})),
        ] {
            let told = story.tell(&event(kind, &data));
            assert!(!told.lines.is_empty(), "{kind}");
            for line in told.lines.iter().chain([&story.status(Timestamp::from_micros(0))]) {
                assert!(!line.chars().any(show::is_hidden), "{kind}: {line:?}");
                assert!(line.as_str() != "session completed", "{kind}");
            }
        }
    }

    #[test]
    fn the_status_counts_down_to_the_lapse_of_a_question() {
        let mut story = Story::default();
        story.tell(&event(
            "approval.requested",
            &json!({"approval": "ap_1", "binding": "00", "expires": "2026-01-02T03:19:05.000000Z"}),
        ));
        let now: Timestamp = serde_json::from_value(json!("2026-01-02T03:04:10.000000Z")).unwrap();
        assert_eq!(story.status(now), "ap_1 waits for an operator, 14:55 left");
    }

    #[test]
    fn a_long_proposal_is_cut_and_says_so() {
        let mut story = Story::default();
        let display = "line\n".repeat(PROPOSAL_LINES + 5);
        let told =
            story.tell(&event("operation.proposed", &json!({"operation": "op_1", "kind": "edit", "display": display})));
        assert_eq!(told.lines.len(), PROPOSAL_LINES + 2);
        assert_eq!(told.lines.last().unwrap(), "  (5 more lines: salaam approval show)");
    }
}
