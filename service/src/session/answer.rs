//! What an agent is told about one of its calls.
//!
//! Invariant: an answer is made of what is recorded, so it comes out the same after a crash.

use salaam_core::{bridge::Stream, operation::State, tool::Answer};
use serde_json::Value;

use crate::{
    operation::Refusal,
    store::{OperationRow, Store},
};

/// What is read of each end of a stream: more than an answer can hold, so that the answer's own limit decides.
const END_BYTES: u64 = 32 << 10;

/// The answer to a call that never became an operation.
pub(super) fn refused(refusal: &Refusal) -> Answer {
    Answer {
        comment: Some(format!("{}: {}; {}", refusal.id, refusal.message, refusal.fix)),
        ..Answer::new(State::Refused)
    }
    .cut()
}

/// The answer to a call that is not even one.
pub(super) fn unfit(error: &dyn std::error::Error) -> Answer {
    Answer { comment: Some(error.to_string()), ..Answer::new(State::Refused) }.cut()
}

/// The answer to a call that the end of its session overtook.
pub(super) fn overtaken() -> Answer {
    let comment = "the session ended before this was proposed".to_owned();
    Answer { comment: Some(comment), ..Answer::new(State::Cancelled) }
}

/// The answer to a call whose operation is over.
pub(super) async fn of_operation(store: &Store, row: &OperationRow) -> Answer {
    let (store, id) = (store.clone(), row.id);
    let kept = row.result.as_ref().is_some_and(|result| result.get("output").is_some());
    let ends = if kept {
        tokio::task::spawn_blocking(move || {
            [Stream::Stdout, Stream::Stderr].map(|stream| kept_text(&store, id, stream))
        })
        .await
        .unwrap_or_default()
    } else {
        Default::default()
    };
    of_row(row, ends)
}

/// The same, with what was kept of the streams and whether some of it is left out.
fn of_row(row: &OperationRow, [stdout, stderr]: [(String, bool); 2]) -> Answer {
    let result = row.result.as_ref();
    let number = |key: &str| {
        let number = result.and_then(|result| result.get(key)).and_then(Value::as_i64);
        number.and_then(|number| i32::try_from(number).ok())
    };
    let truncated = |stream: &str| {
        let stream = result.and_then(|result| result.pointer(&format!("/output/{stream}/truncated")));
        stream.and_then(Value::as_bool).unwrap_or(false)
    };
    Answer {
        outcome: row.state,
        exit_code: number("exit_code"),
        signal: number("signal"),
        truncated: stdout.1 || stderr.1 || truncated("stdout") || truncated("stderr"),
        stdout: if stdout.0.is_empty() { files(result) } else { stdout.0 },
        stderr: stderr.0,
        comment: comment(row),
        operation: Some(row.id),
    }
    .cut()
}

/// What an edit did, a file a line.
fn files(result: Option<&Value>) -> String {
    let files = result.and_then(|result| result.get("files")).and_then(Value::as_array);
    let line = |file: &Value| {
        let path = file.get("path").and_then(salaam_core::canon::to_bytes).unwrap_or_default();
        let method = file.get("method").and_then(Value::as_str).unwrap_or("changed");
        format!("{method} {}\n", salaam_core::show::line(&path))
    };
    files.map(|files| files.iter().map(line).collect()).unwrap_or_default()
}

/// What a person and what Salaam say about it.
fn comment(row: &OperationRow) -> Option<String> {
    let mut said = Vec::new();
    if let Some(comment) = &row.comment {
        said.push(format!("the operator says: {comment}"));
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(error) = row.result.as_ref().and_then(|result| result.get("error")) {
        let message = text(error.get("message")).unwrap_or_default();
        match text(error.get("id")) {
            Some(id) => said.push(format!("{id}: {message}")),
            None if message.is_empty() => {}
            None => said.push(message),
        }
    }
    if let Some(limit) = row.result.as_ref().and_then(|result| text(result.get("limit"))) {
        said.push(format!("it ran into a limit: {limit}"));
    }
    if let Some(word) = &row.reconciled {
        let verdict = text(word.get("verdict")).unwrap_or_default();
        said.push(format!("an operator looked: {verdict}"));
        said.extend(text(word.get("comment")));
    }
    if said.is_empty() { None } else { Some(said.join("; ")) }
}

/// Both ends of what was kept of a stream, and whether something is left out between them.
fn kept_text(store: &Store, id: salaam_core::id::OperationId, stream: Stream) -> (String, bool) {
    use std::os::unix::fs::FileExt as _;
    let Ok(Some(file)) = store.blob(id, stream) else { return Default::default() };
    let size = file.metadata().map_or(0, |found| found.len());
    let read = |at: u64, bytes: u64| {
        let mut piece = vec![0; usize::try_from(bytes).unwrap_or(0)];
        match file.read_exact_at(&mut piece, at) {
            Ok(()) => piece,
            Err(_) => Vec::new(),
        }
    };
    if size <= 2 * END_BYTES {
        return (String::from_utf8_lossy(&read(0, size)).into_owned(), false);
    }
    let (head, tail) = (read(0, END_BYTES), read(size - END_BYTES, END_BYTES));
    let left = size - 2 * END_BYTES;
    let text = format!(
        "{}\n[{left} bytes are left out here]\n{}",
        String::from_utf8_lossy(&head),
        String::from_utf8_lossy(&tail)
    );
    (text, true)
}

/// A recorded answer as a value; absent = it is none.
pub(super) fn parse(text: &str) -> Option<Answer> {
    let value: Value = serde_json::from_str(text).ok()?;
    let string = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| value.get(key).and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok());
    Some(Answer {
        outcome: string("outcome")?.parse().ok()?,
        exit_code: number("exit_code"),
        signal: number("signal"),
        stdout: string("stdout").unwrap_or_default(),
        stderr: string("stderr").unwrap_or_default(),
        truncated: value.get("truncated").and_then(Value::as_bool)?,
        comment: string("comment"),
        operation: match string("operation") {
            Some(id) => Some(id.parse().ok()?),
            None => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operation::orphan::tests::row_that_binds;

    fn row(state: State, result: Option<Value>) -> OperationRow {
        OperationRow { state, result, ..row_that_binds(json!({})) }
    }

    fn told(row: &OperationRow) -> Answer {
        of_row(row, Default::default())
    }

    #[test]
    fn an_agent_is_told_how_it_ended_what_was_written_and_what_a_person_said() {
        let result = json!({
            "exit_code": 2, "signal": null, "limit": "output",
            "output": { "stdout": { "truncated": false }, "stderr": { "truncated": true } },
        });
        let row = OperationRow { comment: Some("go on".into()), ..row(State::Completed, Some(result)) };
        let answer = of_row(&row, [("out\n".into(), false), ("err\n".into(), false)]);
        let expected = Answer {
            exit_code: Some(2),
            stdout: "out\n".into(),
            stderr: "err\n".into(),
            truncated: true,
            comment: Some("the operator says: go on; it ran into a limit: output".into()),
            operation: Some(row.id),
            ..Answer::new(State::Completed)
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn an_agent_is_told_why_nothing_was_done() {
        let denied = OperationRow { comment: Some("no".into()), ..row(State::Denied, None) };
        assert_eq!(told(&denied).comment.as_deref(), Some("the operator says: no"));
        let error = json!({ "error": { "id": "stale-approval", "message": "it moved on" } });
        let stale = told(&row(State::Stale, Some(error)));
        assert_eq!((stale.outcome, stale.comment.as_deref()), (State::Stale, Some("stale-approval: it moved on")));
        assert_eq!(told(&row(State::Expired, None)).comment, None);
    }

    #[test]
    fn an_agent_is_told_a_persons_word_on_what_is_unknown() {
        let word = json!({ "verdict": "no-effect", "comment": "nothing there", "by": {} });
        let row = OperationRow { reconciled: Some(word), ..row(State::Unknown, None) };
        let answer = told(&row);
        assert_eq!(answer.outcome, State::Unknown);
        assert_eq!(answer.comment.as_deref(), Some("an operator looked: no-effect; nothing there"));
    }

    #[test]
    fn an_agent_is_told_which_files_an_edit_changed_without_a_control_byte() {
        let files = json!({ "files": [
            { "path": "a.rs", "method": "replaced" }, { "path": "b\n\u{1b}[0m", "method": "created" } ] });
        assert_eq!(told(&row(State::Completed, Some(files))).stdout, "replaced a.rs\ncreated b\\n\\e[0m\n");
    }

    #[test]
    fn what_is_recorded_comes_back_as_it_was_and_anything_else_is_none() {
        let long = Answer { stdout: "é".repeat(40_000), ..Answer::new(State::Failed) }.cut();
        for answer in [told(&row(State::Completed, None)), overtaken(), long] {
            assert_eq!(parse(&answer.to_json()), Some(answer));
        }
        for bad in ["", "{}", "null", r#"{"outcome":"done","truncated":false}"#, r#"{"outcome":"failed"}"#] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let bad = r#"{"outcome":"failed","truncated":false,"operation":"op_1"}"#;
        assert_eq!(parse(bad), None);
    }
}
