//! `salaam run`: one proposed command through the whole path, its exit code passed on.

use std::{
    io::{self, IsTerminal, Read},
    os::unix::ffi::OsStrExt,
    pin::pin,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::Method;
use salaam_core::{bridge::MAX_STDIN_BYTES, canon, operation::State, show};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    approval,
    args::Run,
    ask::{Answer, Terminal},
    client::{Client, Stream},
    exit,
    question::Question,
    terminal::{Out, Passage, at},
    trouble::Trouble,
    workspace,
};

/// Carries it out; the exit code is the command's, or one of Salaam's ([`exit`]).
pub(super) async fn run(run: Run, stdin: Option<Vec<u8>>, client: &Client, out: Out) -> u8 {
    let detach = run.detach;
    let mut attached = Attached { client, out, yes: run.yes, operation: None, result: None, cut: None };
    let interrupted = pin!(tokio::signal::ctrl_c());
    let whole = async {
        let proposal = proposal(client, run, stdin).await?;
        attached.whole("/v1/operations", &proposal).await
    };
    let outcome = tokio::select! {
        outcome = whole => Some(outcome),
        _ = interrupted => None,
    };
    match outcome {
        Some(Ok(code)) => code,
        Some(Err(Trouble::BrokenPipe)) => exit::RUN_BROKEN_PIPE,
        Some(Err(trouble)) => {
            out.complain_with_id(&trouble);
            exit::RUN_SALAAM
        }
        None => {
            // The connection closes with this process, and the service cancels what was attached to it.
            if let Some(operation) = &attached.operation {
                let what = if detach { "goes on" } else { "is cancelled" };
                out.note(&format!("interrupted; {operation} {what}: salaam operation show {operation}"));
            }
            exit::RUN_INTERRUPTED
        }
    }
}

/// Puts a proposal that is no command to `path`, asks like [`run`] does, and gives the result of what completed.
pub(super) async fn propose(client: &Client, out: Out, path: &str, body: &Value, yes: bool) -> Result<Value, Trouble> {
    let mut attached = Attached { client, out, yes, operation: None, result: None, cut: None };
    let result = attached.result_of(path, body).await?;
    match state(&result)? {
        State::Completed => Ok(result),
        state @ (State::Proposed
        | State::Pending
        | State::Granted
        | State::Dispatched
        | State::Failed
        | State::TimedOut
        | State::Cancelled
        | State::Unknown
        | State::Refused
        | State::Denied
        | State::Expired
        | State::Stale) => Err(ended(state, &result)),
    }
}

/// What is known while the answer is read.
struct Attached<'a> {
    client: &'a Client,
    out: Out,
    yes: bool,
    operation: Option<String>,
    result: Option<Value>,
    /// What the service said when it cut the output, which was not read.
    cut: Option<Value>,
}

impl Attached<'_> {
    async fn whole(&mut self, path: &str, proposal: &Value) -> Result<u8, Trouble> {
        let result = self.result_of(path, proposal).await?;
        if self.out.json {
            self.out.object(&result)?;
        }
        let trouble = match code(&result) {
            Ok(code) => match self.cut.take().filter(|_| !self.out.json) {
                Some(cut) => incomplete(&cut, code),
                None => return Ok(code),
            },
            Err(trouble) => trouble,
        };
        // With --json the result object says it all, and only the id is still owed.
        Out { json: false }.complain(&trouble);
        Ok(if timed_out(&result) { exit::RUN_TIMED_OUT } else { exit::RUN_SALAAM })
    }

    async fn result_of(&mut self, path: &str, proposal: &Value) -> Result<Value, Trouble> {
        let mut answer = self.client.open(Method::POST, path, Some(proposal)).await?;
        self.follow(&mut answer).await?;
        self.result.take().ok_or_else(|| Trouble::Connection {
            attempted: "waiting for the result".into(),
            why: "the service closed the connection before it; see salaam operation list".into(),
        })
    }

    async fn follow(&mut self, answer: &mut Stream) -> Result<(), Trouble> {
        let (mut stdout, mut stderr) = (Passage::stdout(), Passage::stderr());
        let mut asked: Option<(Question, oneshot::Receiver<Answer>)> = None;
        loop {
            let event = match &mut asked {
                None => answer.object().await?,
                Some((question, said)) => tokio::select! {
                    event = answer.object() => event?,
                    said = said => {
                        let question = question.clone();
                        asked = None;
                        self.decide(&question, said.unwrap_or(Answer::Open)).await?;
                        continue;
                    }
                },
            };
            let Some(event) = event else { break };
            if let Some(shown) = event.get("approval") {
                asked = self.question(shown)?;
            } else if let Some(output) = event.get("output") {
                // Whoever granted it elsewhere has answered for this terminal too.
                asked = None;
                if !self.out.json {
                    pass(output, &mut stdout, &mut stderr)?;
                }
            } else if let Some(cut) = event.get("cut") {
                self.cut = Some(cut.clone());
            } else if let Some(result) = event.get("result") {
                self.operation = Some(at(result, "/operation"));
                self.result = Some(result.clone());
                break;
            } else if event.get("error").is_some() {
                return Err(Trouble::of_answer(0, &event));
            }
        }
        stdout.finish()?;
        stderr.finish()
    }

    /// Shows the question and asks where there is somebody to ask; else says how it is granted.
    fn question(&mut self, shown: &Value) -> Result<Option<(Question, oneshot::Receiver<Answer>)>, Trouble> {
        self.operation = Some(at(shown, "/operation"));
        if self.yes {
            return Ok(None);
        }
        let question = Question::of(shown)?;
        if question.state != State::Pending {
            return Ok(None);
        }
        // A person sits where standard error is a terminal; the question itself uses /dev/tty.
        if !self.out.json
            && io::stderr().is_terminal()
            && let Some(terminal) = Terminal::open()
        {
            let said = terminal.ask(question.render(), question.binding);
            return Ok(Some((question, said)));
        }
        self.elsewhere(&question);
        Ok(None)
    }

    fn elsewhere(&self, question: &Question) {
        self.out.note(&format!(
            "{} waits for an operator; grant it with\n{}",
            question.approval,
            question.grant_line()
        ));
    }

    async fn decide(&self, question: &Question, answer: Answer) -> Result<(), Trouble> {
        let decided = match answer {
            Answer::Yes => approval::grant(self.client, question, None).await,
            Answer::No(why) => approval::deny(self.client, question.approval, why).await,
            Answer::Open => {
                self.elsewhere(question);
                return Ok(());
            }
        };
        match decided {
            Ok(_) => Ok(()),
            // Decided or lapsed meanwhile: the answer that is being read says how it ended.
            Err(why @ Trouble::Refused { .. }) => {
                self.out.note(&format!("{}: {}", why.id(), show::line(why.to_string().as_bytes())));
                Ok(())
            }
            Err(why) => Err(why),
        }
    }
}

async fn proposal(client: &Client, run: Run, stdin: Option<Vec<u8>>) -> Result<Value, Trouble> {
    let row = workspace::meant(client, run.workspace.as_deref()).await?;
    let argv: Vec<_> = run.command.iter().map(|word| canon::bytes(word.as_bytes())).collect();
    let mut body = json!({
        "workspace": workspace::id(&row), "argv": argv, "grant": run.yes, "detach": run.detach, "follow": true,
    });
    if let Some(map) = body.as_object_mut() {
        let given = [
            ("stdin_base64", stdin.map(|bytes| STANDARD.encode(bytes).into())),
            ("profile", run.profile.map(|profile| profile.as_str().into())),
            ("timeout_seconds", run.timeout.map(Value::from)),
        ];
        map.extend(given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
    Ok(body)
}

/// With `--stdin`, the caller's standard input to its end; refused above [`MAX_STDIN_BYTES`], never cut. It is
/// read before anything waits for ^C, which must still end this process here.
pub(super) fn standard_input(run: &Run) -> Result<Option<Vec<u8>>, Trouble> {
    if !run.stdin {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| Trouble::Local { attempted: "reading", path: "standard input".into(), source })?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        return Err(Trouble::usage(
            format!("standard input has more than {MAX_STDIN_BYTES} bytes"),
            "put it into a file of the workspace",
        ));
    }
    Ok(Some(bytes))
}

fn pass(output: &Value, stdout: &mut Passage, stderr: &mut Passage) -> Result<(), Trouble> {
    let text = output.get("base64").and_then(Value::as_str).unwrap_or_default();
    let bytes = STANDARD.decode(text).map_err(|why| Trouble::Connection {
        attempted: "reading the command's output".into(),
        why: why.to_string(),
    })?;
    match output.get("stream").and_then(Value::as_str) {
        Some("stdout") => stdout.pass(&bytes),
        Some("stderr") => stderr.pass(&bytes),
        Some(_) | None => Err(Trouble::Connection {
            attempted: "reading the command's output".into(),
            why: "it is of no known stream".into(),
        }),
    }
}

/// What was printed is not all of it, so the command's own code would say too much.
fn incomplete(cut: &Value, code: u8) -> Trouble {
    let message = format!("{}; the command ended with {code}", at(cut, "/message"));
    Trouble::Refused { id: "output-cut".into(), status: 0, message, fix: at(cut, "/fix"), checks: Vec::new() }
}

fn timed_out(result: &Value) -> bool {
    result.get("state").and_then(Value::as_str) == Some(State::TimedOut.as_str())
}

fn state(result: &Value) -> Result<State, Trouble> {
    let state = result.get("state").and_then(|state| serde_json::from_value(state.clone()).ok());
    state.ok_or_else(|| Trouble::Connection { attempted: "reading the result".into(), why: "it has no state".into() })
}

/// The command's code, or why it has none.
fn code(result: &Value) -> Result<u8, Trouble> {
    let state = state(result)?;
    let number = |name| result.get(name).and_then(Value::as_i64).and_then(|n| u8::try_from(n).ok());
    match state {
        State::Completed => match (number("exit_code"), number("signal")) {
            (Some(code), _) => Ok(code),
            (None, Some(signal)) => Ok(exit::RUN_SIGNAL.saturating_add(signal)),
            (None, None) => Err(ended(state, result)),
        },
        State::Proposed
        | State::Pending
        | State::Granted
        | State::Dispatched
        | State::Failed
        | State::TimedOut
        | State::Cancelled
        | State::Unknown
        | State::Refused
        | State::Denied
        | State::Expired
        | State::Stale => Err(ended(state, result)),
    }
}

/// A command without a code of its own: the executor's id where it gave one, else the state's name.
fn ended(state: State, result: &Value) -> Trouble {
    let error = result.get("error").filter(|error| error.is_object());
    let text = |name: &str| error.and_then(|error| error.get(name)).and_then(Value::as_str).map(str::to_owned);
    let operation = at(result, "/operation");
    let mut message = format!("{operation} is {state}");
    if let Some(why) = text("message").or_else(|| result.get("comment").and_then(Value::as_str).map(str::to_owned)) {
        message = format!("{message}: {why}");
    }
    if let Some(changed) = result.get("changed").filter(|changed| changed.is_array()) {
        message = format!("{message}: changed: {}", super::terminal::word(Some(changed)));
    }
    Trouble::Refused {
        id: text("id").unwrap_or_else(|| state.as_str().to_owned()),
        status: 0,
        message,
        fix: text("fix").unwrap_or_else(|| format!("salaam operation show {operation}")),
        checks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_or_salaams() {
        let of = |result: &Value| code(result).map_err(|trouble| (trouble.id().to_owned(), timed_out(result)));
        let completed = |code: Value, signal: Value| json!({"operation": "op_1", "state": "completed", "exit_code": code, "signal": signal});
        assert_eq!(of(&completed(0.into(), Value::Null)), Ok(0));
        assert_eq!(of(&completed(255.into(), Value::Null)), Ok(255));
        assert_eq!(of(&completed(Value::Null, 9.into())), Ok(137));
        assert_eq!(of(&completed(Value::Null, Value::Null)), Err(("completed".into(), false)));
        for state in ["failed", "cancelled", "unknown", "refused", "denied", "expired", "stale"] {
            let result = json!({"operation": "op_1", "state": state, "exit_code": null, "signal": null});
            assert_eq!(of(&result), Err((state.into(), false)));
        }
        let late = json!({"operation": "op_1", "state": "timed-out", "exit_code": null, "signal": 15});
        assert_eq!(of(&late), Err(("timed-out".into(), true)));
        let failed = json!({"state": "failed", "error": {"id": "sandbox-userns", "message": "unshare: EPERM"}});
        let trouble = code(&failed).unwrap_err();
        assert_eq!(trouble.id(), "sandbox-userns");
        assert!(trouble.to_string().ends_with("is failed: unshare: EPERM"));
    }
}
