//! /v1/approvals: what waits for an operator, whole, and the operator's answer.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use salaam_core::{approval::Decision, id::ApprovalId};
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{
    app::{App, Refusal, Who},
    http::{
        ask::{Asked, Checked, CheckedOrEmpty, Named, bounded, request_id},
        limits::{BINDING_BYTES, COMMENT_BYTES},
        schema,
    },
};

/// Which approvals.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Which {
    /// Only those that wait for an answer.
    #[serde(default = "yes")]
    #[param(default = true)]
    pending: bool,
}

/// A yes, to exactly what was shown.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Grant {
    /// All 64 hex digits of the binding.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    binding: String,
    /// Recorded with the grant.
    #[schema(max_length = 4096)]
    comment: Option<String>,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// A no.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Denial {
    /// Recorded with the denial and told to the proposer.
    #[schema(max_length = 4096)]
    comment: Option<String>,
    /// Makes the request idempotent.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// Approvals, the newest first, at most 1000 and at most 32 MiB of them; health counts all that are pending.
#[utoipa::path(get, path = "/v1/approvals", tag = "approvals", operation_id = "listApprovals", params(Which),
    responses((status = 200, description = "The approvals", body = schema::Approvals), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn list(
    State(app): State<Arc<App>>,
    Asked(which): Asked<Which>,
) -> Result<Json<Value>, Refusal> {
    Ok(Json(serde_json::json!({ "approvals": app.approvals(which.pending).await? })))
}

/// One approval, complete: what it binds, the binding, and what a person is shown.
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "approvals", operation_id = "showApproval",
    params(("id" = String, Path, description = "ap_ and 32 hex digits")),
    responses((status = 200, description = "The approval as it stands now", body = schema::Approval), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<ApprovalId>,
) -> Result<Json<Value>, Refusal> {
    app.approval(id).await.map(Json)
}

/// Grants, once, what the binding names.
#[utoipa::path(post, path = "/v1/approvals/{id}/grant", tag = "approvals", operation_id = "grantApproval", request_body = Grant,
    params(("id" = String, Path, description = "ap_ and 32 hex digits")),
    responses((status = 200, description = "The approval as it stands now", body = schema::Approval), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn grant(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<ApprovalId>,
    Checked(grant): Checked<Grant>,
) -> Result<Json<Value>, Refusal> {
    let binding = bounded("binding", Some(grant.binding), BINDING_BYTES)?;
    let comment = bounded("comment", grant.comment, COMMENT_BYTES)?;
    app.decide(id, Decision::Grant, binding, comment, request_id(grant.request_id)?, &who).await.map(Json)
}

/// Denies.
#[utoipa::path(post, path = "/v1/approvals/{id}/deny", tag = "approvals", operation_id = "denyApproval", request_body = Option<Denial>,
    params(("id" = String, Path, description = "ap_ and 32 hex digits")),
    responses((status = 200, description = "The approval as it stands now", body = schema::Approval), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn deny(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Named(id): Named<ApprovalId>,
    CheckedOrEmpty(denial): CheckedOrEmpty<Denial>,
) -> Result<Json<Value>, Refusal> {
    let comment = bounded("comment", denial.comment, COMMENT_BYTES)?;
    app.decide(id, Decision::Deny, None, comment, request_id(denial.request_id)?, &who).await.map(Json)
}

const fn yes() -> bool {
    true
}
