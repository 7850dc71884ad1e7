//! What a session writes down: its events and the object that operators see.

use salaam_core::{
    canon,
    digest::Digest,
    event::{Draft, DraftError, Kind},
    id::SessionId,
    session::{Outcome, State},
    worker::Turn,
};
use serde_json::{Map, Value, json};

use super::course::Course;
use crate::{
    operation::Who,
    store::{Change, OperationRow},
};

/// Arguments up to this stand in the event of their turn; longer ones are named there by their digest, and stand in
/// the transcript and in what the operation binds.
const MOST_ARGUMENTS: usize = 16 << 10;

/// What one step records, besides the session's own row.
#[derive(Debug, Default)]
pub(super) struct Note {
    pub(super) changes: Vec<Change>,
    pub(super) events: Vec<Draft>,
    /// The worker's epoch from here on, where it changes.
    pub(super) epoch: Option<u64>,
    /// Why the session ends, if it does.
    pub(super) reason: Option<String>,
    /// What the transcript grows by.
    pub(super) bytes: u64,
}

impl Note {
    /// One event.
    pub(super) fn of(event: Draft) -> Self {
        Self { events: vec![event], ..Self::default() }
    }
}

/// A worker is confined and listens.
pub(super) fn started(session: SessionId, epoch: u64, pid: i32, reason: &str) -> Result<Draft, DraftError> {
    let data = json!({ "epoch": canon::wide(epoch), "pid": pid, "reason": reason });
    Draft::new(Kind::WorkerStarted, Some(session), data)
}

/// A worker is gone, or is not believed any more.
pub(super) fn lost(session: SessionId, epoch: u64, pid: Option<i32>, reason: &str) -> Result<Draft, DraftError> {
    let data = json!({ "epoch": canon::wide(epoch), "pid": pid, "reason": reason });
    Draft::new(Kind::WorkerLost, Some(session), data)
}

/// The next turn is asked for.
pub(super) fn requested(session: SessionId, document: &Value, epoch: u64, turn: u64) -> Result<Draft, DraftError> {
    let data = json!({ "route": document.get("route"), "epoch": canon::wide(epoch), "turn": canon::wide(turn) });
    Draft::new(Kind::ProviderRequested, Some(session), data)
}

/// A turn came.
pub(super) fn responded(session: SessionId, document: &Value, epoch: u64, turn: &Turn) -> Result<Draft, DraftError> {
    let call = |call: &salaam_core::worker::RawCall| {
        let bytes = call.arguments.len();
        let mut value = json!({ "tool": call.tool, "bytes": bytes, "sha256": Digest::of(call.arguments.as_bytes()) });
        if bytes <= MOST_ARGUMENTS
            && let Some(map) = value.as_object_mut()
        {
            map.insert("arguments".into(), call.arguments.as_str().into());
        }
        value
    };
    let calls: Vec<_> = turn.calls.iter().map(call).collect();
    let data = json!({
        "route": document.get("route"), "epoch": canon::wide(epoch), "turn": canon::wide(turn.number),
        "text": turn.text, "awaits": turn.awaits, "calls": calls,
    });
    Draft::new(Kind::ProviderResponded, Some(session), data)
}

/// A person said something.
pub(super) fn message(session: SessionId, number: u64, text: &str, who: &Who) -> Result<Draft, DraftError> {
    let data = json!({ "message": canon::wide(number), "text": text, "by": who.to_value() });
    Draft::new(Kind::SessionMessage, Some(session), data)
}

/// A person ends the session.
pub(super) fn cancelled(session: SessionId, who: &Who) -> Result<Draft, DraftError> {
    let data =
        json!({ "cause": salaam_core::operation::CancelCause::Operator, "session": session, "by": who.to_value() });
    Draft::new(Kind::CancelRequested, Some(session), data)
}

/// A person said what became of an operation.
pub(crate) fn reconciled(row: &OperationRow, word: &Value) -> Result<Draft, DraftError> {
    let mut data = Map::new();
    data.insert("operation".into(), row.id.to_string().into());
    data.insert("binding".into(), row.binding.to_string().into());
    if let Some(word) = word.as_object() {
        data.extend(word.clone());
    }
    Draft::new(Kind::OperationReconciled, Some(row.session), Value::Object(data))
}

/// It is over.
pub(super) fn ended(session: SessionId, outcome: &str, reason: Option<&str>, turns: u64) -> Result<Draft, DraftError> {
    let data = json!({ "outcome": outcome, "reason": reason, "turns": canon::wide(turns) });
    Draft::new(Kind::SessionEnded, Some(session), data)
}

/// Writes where a session stands into its object.
pub(super) fn stand(document: &mut Value, course: &Course, note: &Note) {
    let Some(map) = document.as_object_mut() else { return };
    let (state, waiting_for, outcome) = match course.state() {
        State::Starting => ("starting", Value::Null, Value::Null),
        State::Running => ("running", Value::Null, Value::Null),
        State::Waiting { waiting_for } => ("waiting", waiting_for.as_str().into(), Value::Null),
        State::Ended { outcome } => ("ended", Value::Null, outcome.as_str().into()),
    };
    map.insert("state".into(), state.into());
    map.insert("waiting_for".into(), waiting_for);
    map.insert("outcome".into(), outcome);
    // Said before it is done, so that a crash between the two does not let it go on.
    match course.closing() {
        Some(closing) => drop(map.insert("closing".into(), closing.as_str().into())),
        None => drop(map.remove("closing")),
    }
    map.insert("turns_taken".into(), course.turns.into());
    if let Some(epoch) = note.epoch {
        map.insert("worker_epoch".into(), epoch.into());
    }
    if course.is_over() || course.closing().is_some() {
        let known = map.get("reason").cloned().unwrap_or_default();
        map.insert("reason".into(), note.reason.as_deref().map_or(known, Into::into));
    }
}

/// What a session was about to end in.
pub(super) fn closing(document: &Value) -> Option<Outcome> {
    document.get("closing").and_then(Value::as_str)?.parse().ok()
}

/// Why a session ends, as far as that is known.
pub(super) fn reason(document: &Value) -> Option<&str> {
    document.get("reason").and_then(Value::as_str)
}

/// The worker epoch that a session's object names.
pub(super) fn epoch(document: &Value) -> u64 {
    document.get("worker_epoch").and_then(Value::as_u64).unwrap_or(0)
}
