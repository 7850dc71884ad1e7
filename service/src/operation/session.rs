//! The session that an operation belongs to.

use salaam_core::{
    event::Kind,
    id::{SessionId, WorkspaceId},
    policy::Profile,
    session,
};
use serde_json::{Value, json};

use super::{
    Context, Origin,
    record::{draft, event},
};
use crate::{
    operation::Refusal,
    store::{Change, CommitError, SessionQuery, SessionRow, Transaction, WorkspaceRow},
};

/// Nothing is proposed into a workspace that is not registered.
pub(super) async fn workspace_row(context: &Context, id: WorkspaceId) -> Result<WorkspaceRow, Refusal> {
    let rows = context.store.workspaces().await.map_err(Refusal::journal)?;
    rows.into_iter().find(|row| row.id == id).ok_or_else(|| Refusal::not_found("workspace", id))
}

/// The session that `origin` proposes in: a worker's own, the one that a person names, or the workspace's operator
/// session.
pub(super) async fn of(context: &Context, origin: &Origin, row: &WorkspaceRow) -> Result<SessionRow, Refusal> {
    let (named, epoch) = match origin {
        Origin::Operator { session: None, .. } => return operator_session(context, row).await,
        Origin::Operator { session: Some(session), .. } => (*session, None),
        Origin::Worker { session, epoch, .. } => (*session, Some(*epoch)),
    };
    let found = context.store.session(named).await.map_err(Refusal::journal)?;
    let found = found.ok_or_else(|| Refusal::not_found("session", named))?;
    if found.workspace != row.id {
        return Err(Refusal::new(
            "other-workspace",
            409,
            format!("the session {named} is of another workspace than {}", row.id),
            "name the session's own workspace",
        ));
    }
    match epoch {
        Some(epoch) if found.kind != session::Kind::Worker || current_epoch(&found) != Some(epoch) => {
            Err(worker_gone(named, epoch))
        }
        Some(_) | None => Ok(found),
    }
}

/// The epoch of the worker that a session has now; absent = the session is over.
pub(super) fn current_epoch(session: &SessionRow) -> Option<u64> {
    let over = session.document.get("state").and_then(Value::as_str) == Some("ended");
    session.document.get("worker_epoch").and_then(Value::as_u64).filter(|_| !over)
}

/// Whether its session says that the agent works in the operator's own tree.
pub(super) fn is_in_place(session: &SessionRow) -> bool {
    session.document.get("in_place").and_then(Value::as_bool).unwrap_or(true)
}

pub(super) fn worker_gone(session: SessionId, epoch: u64) -> Refusal {
    Refusal::new(
        "worker-epoch",
        409,
        format!("worker {epoch} of {session} is no longer the one that the session has"),
        "the worker that came after it proposes what it still wants",
    )
}

/// The operator session of a workspace, made at its first use.
async fn operator_session(context: &Context, row: &WorkspaceRow) -> Result<SessionRow, Refusal> {
    if let Some(known) = known_session(context, row).await? {
        return Ok(known);
    }
    let now = context.clock.now();
    let random = context
        .clock
        .random()
        .map_err(|e| Refusal::new("no-randomness", 503, e.to_string(), "check getrandom(2) on this host"))?;
    let id = SessionId::new(now.unix_millis(), random);
    let isolation = context.isolation(Profile::WorkspaceWrite);
    let document = json!({
        "session": id, "kind": session::Kind::Operator, "state": "running", "waiting_for": null, "outcome": null,
        "workspace": row.id, "in_place": true,
        "route": { "provider": "operator", "model": null, "endpoint": null, "tools": [] },
        "profile": Profile::WorkspaceWrite, "network": context.manifest.command_network,
        "tool_uid": context.tool_uid, "isolation": isolation, "worker_epoch": 0, "budget": {}, "created": now,
    });
    let data = json!({
        "kind": session::Kind::Operator, "route": document.get("route"), "workspace": row.id, "profile": Profile::WorkspaceWrite,
        "manifest": context.manifest_digest, "tool_uid": context.tool_uid, "isolation": isolation,
    });
    let created = draft(event(Kind::SessionCreated, id, data))?;
    let made = SessionRow { id, kind: session::Kind::Operator, workspace: row.id, document, created: now };
    let change = Change::PutSession(made.clone());
    match context.store.commit(Transaction { changes: vec![change], events: vec![created] }).await {
        Ok(_) => Ok(made),
        // Another first command made it at the same moment.
        Err(CommitError::Conflict { .. }) => known_session(context, row).await?.ok_or_else(|| {
            Refusal::new("conflict", 409, "the workspace's session was made and removed meanwhile", "try again")
        }),
        Err(error @ CommitError::NotDurable(_)) => Err(Refusal::journal(error)),
    }
}

async fn known_session(context: &Context, row: &WorkspaceRow) -> Result<Option<SessionRow>, Refusal> {
    let query =
        SessionQuery { kind: Some(session::Kind::Operator), workspace: Some(row.id), ..SessionQuery::default() };
    Ok(context.store.sessions(query).await.map_err(Refusal::journal)?.pop())
}
