//! Which verb is where, and the description of all of them.

use std::{sync::Arc, time::Duration};

use axum::{
    Router, middleware,
    routing::{get, post},
};
use utoipa::OpenApi;

use super::{
    front::in_time,
    verbs::{approvals, events, health, operations, output, sessions, workspaces},
};
use crate::app::App;

/// All verbs, without the application that carries them out.
pub(super) fn verbs(answer: Duration) -> Router<Arc<App>> {
    // These last as long as their client wants, and take one of the places for that.
    let lasting = Router::new()
        .route("/v1/operations", post(operations::propose))
        .route("/v1/operations/{id}/output", get(output::output))
        .route("/v1/sessions/{id}/undo", post(sessions::undo))
        .route("/v1/events", get(events::events));
    let prompt = Router::new()
        .route("/v1/health", get(health::health))
        .route("/v1/metrics", get(health::metrics))
        .route("/v1/probes", get(health::probes).post(health::probe_again))
        .route("/v1/drain", post(health::drain))
        .route("/v1/openapi.json", get(health::contract))
        .route("/v1/workspaces", get(workspaces::list).post(workspaces::add))
        .route("/v1/workspaces/{id}", get(workspaces::show).delete(workspaces::remove))
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show))
        .route("/v1/sessions/{id}/message", post(sessions::message))
        .route("/v1/sessions/{id}/cancel", post(sessions::cancel))
        .route("/v1/sessions/{id}/reconcile", post(sessions::reconcile))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::show))
        .route("/v1/approvals/{id}/grant", post(approvals::grant))
        .route("/v1/approvals/{id}/deny", post(approvals::deny))
        .route("/v1/operations", get(operations::list))
        .route("/v1/operations/{id}", get(operations::show))
        .route("/v1/operations/{id}/cancel", post(operations::cancel))
        .route_layer(middleware::from_fn_with_state(answer, in_time));
    lasting.merge(prompt)
}

/// The OpenAPI description, as it is served and as it stands in docs/openapi.json.
pub fn openapi() -> String {
    // Only non-string keys or a failing writer make this fail; the description has neither.
    let mut text = Contract::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Salaam operator interface",
        description = "HTTP/1.1 on the operator socket. Peers are admitted by the kernel's word on who they are.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        health::health,
        health::metrics,
        health::probes,
        health::probe_again,
        health::drain,
        health::contract,
        workspaces::list,
        workspaces::add,
        workspaces::show,
        workspaces::remove,
        sessions::list,
        sessions::create,
        sessions::show,
        sessions::message,
        sessions::cancel,
        sessions::reconcile,
        sessions::undo,
        approvals::list,
        approvals::show,
        approvals::grant,
        approvals::deny,
        operations::list,
        operations::propose,
        operations::show,
        operations::cancel,
        output::output,
        events::events,
    )
)]
struct Contract;
