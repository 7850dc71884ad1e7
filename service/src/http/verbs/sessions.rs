//! /v1/sessions.

use std::sync::Arc;

use axum::{Json, extract::State};
use salaam_core::id::SessionId;
use serde_json::Value;

use crate::{
    app::{App, Refusal},
    http::{ask::Named, schema},
};

/// All sessions.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "listSessions",
    responses((status = 200, description = "The sessions", body = schema::Sessions), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, Refusal> {
    Ok(Json(serde_json::json!({ "sessions": app.sessions().await? })))
}

/// One session.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "showSession",
    params(("id" = String, Path, description = "ses_ and 32 hex digits")),
    responses((status = 200, description = "The session", body = schema::Session), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<SessionId>,
) -> Result<Json<Value>, Refusal> {
    app.session(id).await.map(Json)
}
