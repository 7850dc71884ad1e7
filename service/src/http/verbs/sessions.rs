//! /v1/sessions: agents at work, and what a person tells them.

use std::sync::Arc;

use axum::{Extension, Json, extract::State, response::Response};
use salaam_core::{
    id::{OperationId, SessionId, WorkspaceId},
    policy::Profile,
    session::Verdict,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use utoipa::{IntoParams, ToSchema};

use super::operations::{Nothing, answer};
use crate::{
    app::{App, Refusal, Wanted, Who},
    http::{
        ask::{Asked, Checked, CheckedOrEmpty, Named, bounded, request_id},
        limits::{COMMENT_BYTES, MESSAGE_BYTES},
        schema,
        seat::Seat,
    },
};

/// A session that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Create {
    /// Where.
    #[schema(value_type = String, pattern = "^ws_[0-9a-f]{32}$")]
    workspace: WorkspaceId,
    /// What is to be done.
    #[schema(min_length = 1, max_length = 65536)]
    task: String,
    /// `scripted` (default).
    #[serde(default = "scripted")]
    #[schema(default = "scripted")]
    provider: String,
    /// What the scripted provider replays: the content of its file, at most 8 MiB.
    #[schema(value_type = Option<Object>)]
    script: Option<Box<RawValue>>,
    /// `read-only`, `workspace-write` (default) or `full-access`.
    #[schema(value_type = Option<String>)]
    profile: Option<Profile>,
    /// In the workspace itself. It must be true: copies are not there.
    #[serde(default)]
    in_place: bool,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct From {
    /// The first turn that is shown, with as many after it as fit into 4 MiB.
    #[serde(default)]
    #[param(default = 0)]
    from: u64,
}

/// Words for an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Message {
    /// What is said.
    #[schema(min_length = 1, max_length = 262144)]
    text: String,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// What a person found out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Reconcile {
    /// Which operation.
    #[schema(value_type = String, pattern = "^op_[0-9a-f]{32}$")]
    operation: OperationId,
    /// `took-effect` or `no-effect`.
    #[schema(value_type = String)]
    verdict: Verdict,
    /// Told to the agent.
    #[schema(max_length = 4096)]
    comment: Option<String>,
}

/// A change that is to be taken back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Undo {
    /// Which operation; the session's last edit that still stands, if left out.
    #[schema(value_type = Option<String>, pattern = "^op_[0-9a-f]{32}$")]
    operation: Option<OperationId>,
    /// Grants what is proposed in the same call.
    #[serde(default)]
    grant: bool,
    /// Goes on when the caller goes away.
    #[serde(default)]
    detach: bool,
    /// Answers line by line while it happens, instead of once at the end.
    #[serde(default)]
    follow: bool,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// Sessions, the newest first, at most 1000.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "listSessions",
    responses((status = 200, description = "The sessions", body = schema::Sessions), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, Refusal> {
    Ok(Json(json!({ "sessions": app.sessions().await? })))
}

/// Makes a session; answers when it is recorded. Its worker is started after that.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "createSession", request_body = Create,
    responses((status = 200, description = "The session", body = schema::Session), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Checked(asked): Checked<Create>,
) -> Result<Json<Value>, Refusal> {
    let wanted = Wanted {
        workspace: asked.workspace,
        task: asked.task,
        provider: asked.provider,
        script: asked.script.map(|script| Box::<str>::from(script).into_string().into_bytes()),
        profile: asked.profile,
        in_place: asked.in_place,
        request_id: request_id(asked.request_id)?,
    };
    app.make_session(wanted, &who).await.map(Json)
}

/// One session, with what was said in it.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "showSession",
    params(("id" = String, Path, description = "ses_ and 32 hex digits"), From),
    responses((status = 200, description = "The session as it stands now", body = schema::SessionShown), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<SessionId>,
    Asked(asked): Asked<From>,
) -> Result<Json<Value>, Refusal> {
    app.session(id, asked.from).await.map(Json)
}

/// Says something to the session's agent, which is told when it asks for it.
#[utoipa::path(post, path = "/v1/sessions/{id}/message", tag = "sessions", operation_id = "sayToSession", request_body = Message,
    params(("id" = String, Path, description = "ses_ and 32 hex digits")),
    responses((status = 200, description = "The session as it stands now", body = schema::Session), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn message(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<SessionId>,
    Checked(asked): Checked<Message>,
) -> Result<Json<Value>, Refusal> {
    let text = bounded("text", Some(asked.text), MESSAGE_BYTES)?.unwrap_or_default();
    app.say(id, text, request_id(asked.request_id)?, &who).await.map(Json)
}

/// Ends the session, and what runs in it before. External effects are not undone.
#[utoipa::path(post, path = "/v1/sessions/{id}/cancel", tag = "sessions", operation_id = "cancelSession", request_body = Option<Nothing>,
    params(("id" = String, Path, description = "ses_ and 32 hex digits")),
    responses((status = 200, description = "The session as it stands now", body = schema::Session), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<SessionId>,
    CheckedOrEmpty(Nothing {}): CheckedOrEmpty<Nothing>,
) -> Result<Json<Value>, Refusal> {
    app.cancel_session(id, &who).await.map(Json)
}

/// Says what became of an operation of which nobody knows the end. The agent is told, and goes on.
#[utoipa::path(post, path = "/v1/sessions/{id}/reconcile", tag = "sessions", operation_id = "reconcileOperation", request_body = Reconcile,
    params(("id" = String, Path, description = "ses_ and 32 hex digits")),
    responses((status = 200, description = "The session as it stands now", body = schema::Session), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn reconcile(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<SessionId>,
    Checked(asked): Checked<Reconcile>,
) -> Result<Json<Value>, Refusal> {
    let comment = bounded("comment", asked.comment, COMMENT_BYTES)?;
    app.reconcile(id, asked.operation, asked.verdict, comment, &who).await.map(Json)
}

/// Proposes to take back an edit of the session, and answers when the receipt is durable; with `follow`, line by line.
#[utoipa::path(post, path = "/v1/sessions/{id}/undo", tag = "sessions", operation_id = "undoInSession", request_body = Option<Undo>,
    params(("id" = String, Path, description = "ses_ and 32 hex digits")),
    responses(
        (status = 200, description = "The result; with `follow`, one object a line", content(
            (schema::OperationResult = "application/json"), (schema::Progress = "application/x-ndjson"))),
        (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn undo(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Extension(seat): Extension<Seat>,
    Named(id): Named<SessionId>,
    CheckedOrEmpty(asked): CheckedOrEmpty<Undo>,
) -> Result<Response, Refusal> {
    let stay = seat.stay()?;
    let Undo { operation, grant, detach, follow, request_id: request } = asked;
    let proposed = app.undo(id, operation, (grant, detach, follow), request_id(request)?, who).await?;
    answer(proposed, follow, stay).await
}

fn scripted() -> String {
    salaam_core::worker::Provider::Scripted.as_str().to_owned()
}
