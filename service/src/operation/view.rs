//! The JSON objects that operators see of operations and approvals.

use salaam_core::{canon, session::Outcome};
use serde_json::{Value, json};

use crate::{
    operation::reply_text,
    store::{OperationRow, SessionRow, WorkspaceRow},
};

/// An approval: GET /v1/approvals/{id}.
pub(crate) fn approval(row: &OperationRow) -> Value {
    json!({
        "approval": row.approval,
        "operation": row.id,
        "session": row.session,
        "lineage": [],
        "state": row.state,
        "binding": row.binding,
        "bound": row.bound,
        "display": row.display,
        "flags": row.flags,
        "requested": row.requested,
        "expires": row.expires,
        "decided_by": row.decided_by,
        "comment": row.comment,
    })
}

/// An operation: GET /v1/operations/{id}. Its result is beside it once there is one.
pub(crate) fn operation(row: &OperationRow) -> Value {
    let error = row.result.as_ref().and_then(|result| result.get("error")).cloned().unwrap_or(Value::Null);
    json!({
        "operation": row.id,
        "approval": row.approval,
        "session": row.session,
        "workspace": row.workspace,
        "kind": row.kind,
        "state": row.state,
        "binding": row.binding,
        "display": row.display,
        "flags": row.flags,
        "requested": row.requested,
        "expires": row.expires,
        "decided_by": row.decided_by,
        "comment": row.comment,
        "turn": row.call.map(|call| canon::wide(call.turn)),
        "call": row.call.map(|call| canon::wide(call.call)),
        "error": error,
        "result": row.result,
    })
}

/// The result object with the head of each stream.
pub(crate) fn result(row: &OperationRow, stdout: &[u8], stderr: &[u8]) -> Value {
    let mut value = row.result.clone().unwrap_or_else(|| json!({ "operation": row.id, "state": row.state }));
    for (stream, head) in [("stdout", stdout), ("stderr", stderr)] {
        let output = value.get_mut("output").and_then(|output| output.get_mut(stream)).and_then(Value::as_object_mut);
        if let Some(output) = output {
            let whole = output.get("bytes").and_then(Value::as_u64).unwrap_or(u64::MAX);
            let (key, text) = reply_text(head, whole);
            output.insert(key.to_owned(), text);
        }
    }
    // What an operator said with the grant: to the proposer, not to the journal twice.
    if let (Some(comment), Some(value)) = (&row.comment, value.as_object_mut()) {
        value.insert("comment".into(), json!(comment));
    }
    value
}

/// A workspace: GET /v1/workspaces/{id}.
pub(crate) fn workspace(row: &WorkspaceRow) -> Value {
    json!({
        "workspace": row.id,
        "name": row.name,
        "path": canon::bytes(&row.path),
        "device": canon::wide(row.device),
        "inode": canon::wide(row.inode),
        "handle": row.handle,
        "added": row.added,
    })
}

/// A session whose work is done.
pub(crate) fn ended(mut session: SessionRow) -> SessionRow {
    if let Some(document) = session.document.as_object_mut() {
        document.insert("state".into(), "ended".into());
        document.insert("waiting_for".into(), Value::Null);
        document.insert("outcome".into(), Outcome::Completed.as_str().into());
    }
    session
}
