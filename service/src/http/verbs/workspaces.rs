//! /v1/workspaces.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use salaam_core::id::WorkspaceId;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    app::{App, Refusal, Who},
    http::{
        ask::{Checked, Named, Text, bounded},
        limits::{NAME_BYTES, PATH_BYTES},
        refuse, schema,
    },
};

/// A directory to register.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct AddWorkspace {
    /// Its absolute path.
    #[schema(value_type = schema::Bytes)]
    path: Text,
    /// A short name for it; the last part of the path if left out.
    #[schema(max_length = 64)]
    name: Option<String>,
}

/// All registered workspaces.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces", operation_id = "listWorkspaces",
    responses((status = 200, description = "The workspaces", body = schema::Workspaces), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, Refusal> {
    Ok(Json(serde_json::json!({ "workspaces": app.workspaces().await? })))
}

/// Registers a directory.
#[utoipa::path(post, path = "/v1/workspaces", tag = "workspaces", operation_id = "addWorkspace", request_body = AddWorkspace,
    responses((status = 200, description = "The workspace", body = schema::Workspace), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn add(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Checked(asked): Checked<AddWorkspace>,
) -> Result<Json<Value>, Refusal> {
    let Text(path) = asked.path;
    if path.len() > PATH_BYTES {
        return Err(refuse::bad_request(format!("path: {} bytes; {PATH_BYTES} is the most", path.len())));
    }
    let name = bounded("name", asked.name, NAME_BYTES)?;
    app.add_workspace(&path, name, &who).await.map(Json)
}

/// One workspace.
#[utoipa::path(get, path = "/v1/workspaces/{id}", tag = "workspaces", operation_id = "showWorkspace",
    params(("id" = String, Path, description = "ws_ and 32 hex digits")),
    responses((status = 200, description = "The workspace", body = schema::Workspace), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<WorkspaceId>,
) -> Result<Json<Value>, Refusal> {
    app.workspace(id).await.map(Json)
}

/// Forgets a workspace; the directory stays as it is.
#[utoipa::path(delete, path = "/v1/workspaces/{id}", tag = "workspaces", operation_id = "removeWorkspace",
    params(("id" = String, Path, description = "ws_ and 32 hex digits")),
    responses((status = 200, description = "The workspace", body = schema::Workspace), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<WorkspaceId>,
) -> Result<Json<Value>, Refusal> {
    app.remove_workspace(id, &who).await.map(Json)
}
