//! The events of an operation, as drafts.

use salaam_core::{
    canon,
    edit::Expected,
    event::{Draft, DraftError, Kind},
    id::SessionId,
    show,
};
use serde_json::{Value, json};

use super::{ears::Ending, intent};
use crate::{
    operation::{Refusal, Who},
    store::OperationRow,
};

/// An event of an operation.
pub(super) fn event(kind: Kind, session: SessionId, data: Value) -> Result<Draft, DraftError> {
    Draft::new(kind, Some(session), data)
}

/// A draft that its own writer got wrong is refused like anything else that cannot be recorded.
pub(super) fn draft(draft: Result<Draft, DraftError>) -> Result<Draft, Refusal> {
    draft.map_err(Refusal::journal)
}

pub(super) fn proposed(row: &OperationRow) -> Result<Draft, Refusal> {
    // What an edit shows is text of files; the journal names files and digests, as it does for output.
    let display = intent::files(row).map_or_else(|| json!(row.display), |files| json!(named(&files)));
    let mut data = json!({ "operation": row.id, "binding": row.binding, "kind": row.kind, "workspace": row.workspace, "display": display });
    if let (Some(call), Some(map)) = (row.call, data.as_object_mut()) {
        map.insert("turn".into(), canon::wide(call.turn));
        map.insert("call".into(), canon::wide(call.call));
        map.insert("epoch".into(), row.bound.get("worker_epoch").cloned().unwrap_or(Value::Null));
    }
    draft(event(Kind::OperationProposed, row.session, data))
}

pub(super) fn refused(row: &OperationRow, refusal: &Refusal) -> Result<Draft, Refusal> {
    let data = json!({ "operation": row.id, "binding": row.binding, "reason": refusal.id, "evidence": refusal.message, "fix": refusal.fix });
    draft(event(Kind::OperationRefused, row.session, data))
}

pub(super) fn requested(row: &OperationRow) -> Result<Draft, Refusal> {
    let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "bound": row.bound, "flags": row.flags, "expires": row.expires });
    draft(event(Kind::ApprovalRequested, row.session, data))
}

pub(super) fn granted(row: &OperationRow, by: &Value) -> Result<Draft, Refusal> {
    draft(event(
        Kind::ApprovalGranted,
        row.session,
        json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "by": by }),
    ))
}

pub(super) fn denied(row: &OperationRow, by: &Value, comment: Option<&str>) -> Result<Draft, Refusal> {
    let data =
        json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "by": by, "comment": comment });
    draft(event(Kind::ApprovalDenied, row.session, data))
}

pub(super) fn expired(row: &OperationRow) -> Result<Draft, Refusal> {
    let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "expires": row.expires });
    draft(event(Kind::ApprovalExpired, row.session, data))
}

pub(super) fn stale(row: &OperationRow, changed: &[Value]) -> Result<Draft, Refusal> {
    let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "changed": changed });
    draft(event(Kind::ApprovalStale, row.session, data))
}

pub(super) fn dispatched(row: &OperationRow, epoch: u64) -> Result<Draft, Refusal> {
    let mut data = json!({ "operation": row.id, "binding": row.binding, "executor_epoch": canon::wide(epoch) });
    // What is to become of each file: an edit without a receipt is settled by it.
    if let (Some(files), Some(map)) = (intent::files(row), data.as_object_mut()) {
        map.insert("files".into(), files.iter().map(Expected::to_value).collect());
    }
    draft(event(Kind::OperationDispatched, row.session, data))
}

/// The record that somebody ended it.
pub(super) fn cancelled(row: &OperationRow, ending: &Ending) -> Result<Draft, Refusal> {
    let by = ending.who.as_ref().map(Who::to_value);
    let data = json!({ "operation": row.id, "binding": row.binding, "cause": ending.cause, "by": by });
    draft(event(Kind::CancelRequested, row.session, data))
}

/// An edit in one line.
fn named(files: &[Expected]) -> String {
    let verb = |file: &Expected| match (file.pre, file.post) {
        (None, _) => "create",
        (_, None) => "delete",
        (Some(_), Some(_)) => "change",
    };
    files.iter().map(|file| format!("{} {}", verb(file), show::line(&file.path))).collect::<Vec<_>>().join(", ")
}
