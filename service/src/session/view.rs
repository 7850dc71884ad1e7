//! The JSON objects that operators see of sessions.

use salaam_core::{id::SessionId, policy::Profile};
use serde_json::{Value, json};

use crate::store::{MessageRow, SessionRow, TurnRow};

/// Whether a session object is of one that is over.
pub(crate) fn is_over(document: &Value) -> bool {
    document.get("state").and_then(Value::as_str) == Some("ended")
}

/// A session; `asks` = one of its operations waits for an operator.
pub(crate) fn session(row: SessionRow, asks: bool) -> Value {
    let mut document = row.document;
    let waits = asks && row.kind == salaam_core::session::Kind::Worker && is_running(&document);
    if waits && let Some(map) = document.as_object_mut() {
        map.insert("state".into(), "waiting".into());
        map.insert("waiting_for".into(), salaam_core::session::WaitingFor::Approval.as_str().into());
    }
    document
}

/// Only a session that carries out a call can ask; one that waits for something else says so itself.
fn is_running(document: &Value) -> bool {
    document.get("state").and_then(Value::as_str) == Some("running")
}

/// One turn, with its calls and what was answered.
pub(crate) fn turn(row: &TurnRow) -> Value {
    let calls: Vec<_> = row
        .calls
        .iter()
        .map(|call| {
            let answer: Value =
                call.answer.as_deref().and_then(|answer| serde_json::from_str(answer).ok()).unwrap_or_default();
            json!({ "tool": call.tool, "arguments": call.arguments, "operation": call.operation, "answer": answer })
        })
        .collect();
    json!({ "turn": row.number, "epoch": row.epoch, "text": row.text, "awaits": row.awaits, "calls": calls })
}

/// One message.
pub(crate) fn message(row: &MessageRow) -> Value {
    json!({ "message": row.number, "turn": row.turn, "text": row.text })
}

/// What is fixed when a session is made.
#[derive(Debug, Clone)]
pub(crate) struct Fixed {
    pub(crate) id: SessionId,
    pub(crate) workspace: salaam_core::id::WorkspaceId,
    pub(crate) profile: Profile,
    pub(crate) route: Value,
    pub(crate) network: salaam_core::policy::Network,
    pub(crate) tool_uid: u32,
    pub(crate) isolation: salaam_core::policy::Isolation,
    pub(crate) created: salaam_core::time::Timestamp,
}

/// The object of a session that has just been made.
pub(crate) fn made(fixed: &Fixed) -> Value {
    json!({
        "session": fixed.id, "kind": salaam_core::session::Kind::Worker, "state": "starting", "waiting_for": null,
        "outcome": null, "reason": null, "workspace": fixed.workspace, "in_place": true, "route": fixed.route,
        "profile": fixed.profile, "network": fixed.network, "tool_uid": fixed.tool_uid, "isolation": fixed.isolation,
        "worker_epoch": 0, "turns_taken": 0, "budget": {}, "created": fixed.created,
    })
}
