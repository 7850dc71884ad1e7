//! /v1/operations: an operator's own commands, edits and undos, from proposal to receipt.
//!
//! Promise: who proposes is attached until the receipt. The attachment lives in the handler and then in the
//! response body, both of which are dropped when the client goes away, at any await.

use std::{io, sync::Arc};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use salaam_core::{
    bridge::{MAX_STDIN_BYTES, Stream},
    command::{Command, CommandError},
    edit::Change,
    id::{OperationId, WorkspaceId},
    operation::CancelCause,
    policy::Profile,
    tool::{self, Call},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use utoipa::{IntoParams, ToSchema};

use crate::{
    app::{App, Attached, Origin, Progress, Proposal, Refusal, Who, Work},
    http::{
        ask::{Arguments, Asked, Base64, Checked, CheckedOrEmpty, Named, request_id},
        limits::{LIST_DEFAULT, LIST_MOST},
        lines, refuse, schema,
        seat::{Seat, Stay},
    },
};

/// What an operator proposes: a command, edits, or that an edit is taken back. Exactly one of `argv`, `command`,
/// `edits` and `undo`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Propose {
    /// Where it runs.
    #[schema(value_type = String, pattern = "^ws_[0-9a-f]{32}$")]
    workspace: WorkspaceId,
    /// A program and its arguments, without a shell.
    #[schema(value_type = Option<Vec<schema::Bytes>>)]
    argv: Option<Arguments>,
    /// Text for `/bin/sh -c`.
    command: Option<String>,
    /// Changes of files, each as a model writes it: `{"path","old","new","all"}`, `{"path","create"}`,
    /// `{"path","create_base64"}`, `{"path","delete":true}`, `{"path","rename"}` or `{"path","mode"}`. All are made or
    /// none; at most 2 MiB of them.
    #[schema(value_type = Option<Vec<Object>>, max_items = 256)]
    edits: Option<Box<RawValue>>,
    /// The edit, or undo, that is taken back.
    #[schema(value_type = Option<String>, pattern = "^op_[0-9a-f]{32}$")]
    undo: Option<OperationId>,
    /// Standard input of a command, at most 16 MiB before encoding; empty if left out.
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    stdin_base64: Option<Base64>,
    /// `read-only`, `workspace-write` (default) or `full-access`.
    #[schema(value_type = Option<String>)]
    profile: Option<Profile>,
    /// Wall-clock seconds of a command; the configured limit if left out.
    #[schema(minimum = 1)]
    timeout_seconds: Option<u64>,
    /// Grants what is proposed in the same call.
    #[serde(default)]
    grant: bool,
    /// Goes on when the caller goes away.
    #[serde(default)]
    detach: bool,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
    /// Answers line by line while it happens, instead of once at the end.
    #[serde(default)]
    follow: bool,
}

impl Propose {
    /// The proposal, checked as far as it can be without the host.
    pub(in crate::http) fn into_proposal(self, who: Who) -> Result<Proposal, Refusal> {
        let stdin = self.stdin_base64.map(|Base64(bytes)| bytes);
        let with_command = stdin.is_some() || self.timeout_seconds.is_some();
        let work = match (self.argv, self.command, self.edits, self.undo) {
            (Some(Arguments(argv)), None, None, None) => command(Command::argv(argv), stdin, self.timeout_seconds)?,
            (None, Some(text), None, None) => command(Command::shell(text), stdin, self.timeout_seconds)?,
            (None, None, Some(edits), None) => Work::Edit { changes: changes(&edits)? },
            (None, None, None, Some(operation)) => Work::Undo { operation },
            _several_or_none => {
                return Err(refuse::bad_request("exactly one of `argv`, `command`, `edits` and `undo` is needed"));
            }
        };
        match &work {
            Work::Command { .. } => {}
            Work::Edit { .. } | Work::Undo { .. } if with_command => {
                return Err(refuse::bad_request("`stdin_base64` and `timeout_seconds` are for commands only"));
            }
            Work::Edit { .. } | Work::Undo { .. } => {}
        }
        Ok(Proposal {
            workspace: self.workspace,
            work,
            profile: self.profile,
            detach: self.detach,
            follow: self.follow,
            request_id: request_id(self.request_id)?,
            origin: Origin::Operator { who, grant: self.grant, session: None },
        })
    }
}

/// A command, checked as far as it can be without the host.
fn command(
    command: Result<Command, CommandError>,
    stdin: Option<Vec<u8>>,
    timeout_seconds: Option<u64>,
) -> Result<Work, Refusal> {
    let command = command.map_err(|error| refuse::bad_request(error.to_string()))?;
    if let Some(bytes) = &stdin
        && bytes.len() as u64 > MAX_STDIN_BYTES
    {
        return Err(refuse::bad_request(format!("stdin_base64: {} bytes; {MAX_STDIN_BYTES} is the most", bytes.len())));
    }
    if timeout_seconds == Some(0) {
        return Err(refuse::bad_request("timeout_seconds: must be at least 1"));
    }
    Ok(Work::Command { command, stdin, timeout_seconds })
}

/// Changes in the form that a model writes: what a person sends is read as strictly.
fn changes(edits: &RawValue) -> Result<Vec<Change>, Refusal> {
    let arguments = format!("{{\"action\":\"edit\",\"edits\":{}}}", edits.get());
    match tool::parse("salaam_local", &arguments) {
        Ok(Call::Edit { edits }) => Ok(edits),
        Ok(Call::List { .. } | Call::Read { .. } | Call::Search { .. } | Call::Command { .. } | Call::Undo { .. }) => {
            Err(refuse::bad_request("edits: they are none"))
        }
        Err(error) => Err(refuse::bad_request(format!("edits: {error}"))),
    }
}

/// How many operations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct HowMany {
    /// At most this many, the newest first.
    #[serde(default = "list_default")]
    #[param(default = 50, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// Nothing is asked for.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Nothing {}

/// Operations, the newest first, at most 32 MiB of them.
#[utoipa::path(get, path = "/v1/operations", tag = "operations", operation_id = "listOperations", params(HowMany),
    responses((status = 200, description = "The operations", body = schema::Operations), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn list(
    State(app): State<Arc<App>>,
    Asked(asked): Asked<HowMany>,
) -> Result<Json<Value>, Refusal> {
    if asked.limit == 0 || asked.limit > LIST_MOST {
        return Err(refuse::bad_request(format!("limit: {} is not between 1 and {LIST_MOST}", asked.limit)));
    }
    Ok(Json(json!({ "operations": app.operations(asked.limit).await? })))
}

/// Proposes a command, edits or an undo, and answers when the receipt is durable; with `follow`, line by line.
#[utoipa::path(post, path = "/v1/operations", tag = "operations", operation_id = "proposeOperation", request_body = Propose,
    responses(
        (status = 200, description = "The result; with `follow`, one object a line", content(
            (schema::OperationResult = "application/json"), (schema::Progress = "application/x-ndjson"))),
        (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn propose(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Extension(seat): Extension<Seat>,
    Checked(asked): Checked<Propose>,
) -> Result<Response, Refusal> {
    let stay = seat.stay()?;
    let follow = asked.follow;
    let attached = app.propose(asked.into_proposal(who)?).await?;
    answer(attached, follow, stay).await
}

/// Answers when the operation is over; with `follow`, line by line.
pub(super) async fn answer(mut attached: Attached, follow: bool, stay: Stay) -> Result<Response, Refusal> {
    if follow {
        // What is refused before anything was recorded is an error like any other, not a line.
        let first = match attached.next().await {
            Some(Progress::Refused(refusal)) => return Err(refusal),
            first => first,
        };
        let following = Following { attached, first, _stay: stay };
        let body = lines::body(Some(following), |state| Box::pin(next_line(state)));
        return Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response());
    }
    loop {
        match attached.next().await {
            Some(Progress::Proposed(_) | Progress::Output(..) | Progress::Cut) => {}
            Some(Progress::Result(result)) => return Ok(Json(result).into_response()),
            Some(Progress::Refused(refusal)) => return Err(refusal),
            None => return Err(without_end(attached.operation())),
        }
    }
}

/// One operation.
#[utoipa::path(get, path = "/v1/operations/{id}", tag = "operations", operation_id = "showOperation",
    params(("id" = String, Path, description = "op_ and 32 hex digits")),
    responses((status = 200, description = "The operation as it stands now", body = schema::Operation), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<OperationId>,
) -> Result<Json<Value>, Refusal> {
    app.operation(id).await.map(Json)
}

/// Stops what has not been dispatched and ends what runs. External effects are not undone.
#[utoipa::path(post, path = "/v1/operations/{id}/cancel", tag = "operations", operation_id = "cancelOperation", request_body = Option<Nothing>,
    params(("id" = String, Path, description = "op_ and 32 hex digits")),
    responses((status = 200, description = "The operation as it stands now", body = schema::Operation), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<OperationId>,
    CheckedOrEmpty(Nothing {}): CheckedOrEmpty<Nothing>,
) -> Result<Json<Value>, Refusal> {
    app.cancel(id, CancelCause::Operator, &who).await.map(Json)
}

/// A caller that follows its operation.
struct Following {
    attached: Attached,
    /// What was taken to see whether it is refused, and is still to be sent.
    first: Option<Progress>,
    _stay: Stay,
}

/// The next line, and the end after the result.
async fn next_line(mut state: Option<Following>) -> io::Result<Option<(Bytes, Option<Following>)>> {
    let Some(following) = &mut state else { return Ok(None) };
    let progress = match following.first.take() {
        Some(first) => Some(first),
        None => following.attached.next().await,
    };
    match progress {
        Some(Progress::Proposed(approval)) => Ok(Some((line(&json!({ "approval": approval })), state))),
        Some(Progress::Output(stream, bytes)) => Ok(Some((output_line(stream, &bytes), state))),
        Some(Progress::Cut) => Ok(Some((cut_line(following.attached.operation()), state))),
        Some(Progress::Result(result)) => Ok(Some((line(&json!({ "result": result })), None))),
        Some(Progress::Refused(refusal)) => Ok(Some((error_line(&refusal), None))),
        None => Ok(Some((error_line(&without_end(following.attached.operation())), None))),
    }
}

fn error_line(refusal: &Refusal) -> Bytes {
    line(&json!({ "error": { "id": refusal.id, "message": refusal.message, "fix": refusal.fix } }))
}

fn line(value: &Value) -> Bytes {
    let mut text = value.to_string();
    text.push('\n');
    text.into()
}

/// Written by hand because it is the one line that there are many of: base64 needs no escapes.
fn output_line(stream: Stream, bytes: &[u8]) -> Bytes {
    let mut text = String::with_capacity(bytes.len() / 3 * 4 + 64);
    text.push_str("{\"output\":{\"stream\":\"");
    text.push_str(stream.as_str());
    text.push_str("\",\"base64\":\"");
    STANDARD.encode_string(bytes, &mut text);
    text.push_str("\"}}\n");
    text.into()
}

/// The command went on without its follower.
fn cut_line(operation: OperationId) -> Bytes {
    let fix = format!("read what is kept of it: salaam operation output {operation}");
    line(&json!({ "cut": { "message": "the output was not read, so the rest of it is not shown here", "fix": fix } }))
}

/// The owner of the operation ended without a last word, which it does only when the journal fails it.
fn without_end(operation: OperationId) -> Refusal {
    Refusal {
        id: "outcome-unknown".into(),
        status: 500,
        message: format!("operation {operation} ended without a receipt"),
        fix: format!("look at `salaam operation show {operation}` and at the service's log"),
    }
}

const fn list_default() -> u32 {
    LIST_DEFAULT
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::http::seat::House;

    struct Owner {
        progress: mpsc::Sender<Progress>,
        tie: oneshot::Receiver<()>,
    }

    fn followed() -> (Owner, axum::body::Body) {
        let (progress, receiver) = mpsc::channel(1);
        let (tie_end, tie) = oneshot::channel();
        let attached = Attached::live(OperationId::new(0, [0; 10]), receiver, Some(tie_end));
        let following = Following { attached, first: None, _stay: Seat::new(House::new(2)).stay().unwrap() };
        (Owner { progress, tie }, lines::body(Some(following), |state| Box::pin(next_line(state))))
    }

    #[tokio::test]
    async fn a_follower_sees_each_step_on_its_line_and_the_result_last() {
        let (owner, body) = followed();
        let acting = tokio::spawn(async move {
            for progress in [
                Progress::Proposed(json!({"binding": "00"})),
                Progress::Output(Stream::Stdout, b"\xff\n".to_vec()),
                Progress::Result(json!({"state": "completed"})),
            ] {
                owner.progress.send(progress).await.unwrap();
            }
        });
        let text = body.collect().await.unwrap().to_bytes();
        acting.await.unwrap();
        assert_eq!(
            text,
            concat!(
                "{\"approval\":{\"binding\":\"00\"}}\n",
                "{\"output\":{\"stream\":\"stdout\",\"base64\":\"/wo=\"}}\n",
                "{\"result\":{\"state\":\"completed\"}}\n"
            )
        );
    }

    #[tokio::test]
    async fn an_owner_that_ends_without_a_last_word_is_an_error_line() {
        let (owner, body) = followed();
        drop(owner.progress);
        let text = body.collect().await.unwrap().to_bytes();
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value.pointer("/error/id"), Some(&json!("outcome-unknown")));
    }

    #[tokio::test]
    async fn a_dropped_body_lets_go_of_its_operation() {
        let (mut owner, mut body) = followed();
        owner.progress.send(Progress::Output(Stream::Stdout, Vec::new())).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(owner.tie.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(body);
        assert!(owner.tie.await.is_err());
    }

    #[test]
    fn output_lines_are_the_json_that_they_look_like() {
        for bytes in [&b""[..], b"a", b"\xff\0\"\\\n", &[7; 65_536]] {
            let line = output_line(Stream::Stderr, bytes);
            let value: Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value, json!({"output": {"stream": "stderr", "base64": STANDARD.encode(bytes)}}));
            assert!(line.ends_with(b"\n"));
        }
    }
}
