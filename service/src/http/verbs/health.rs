//! GET /v1/health, /v1/metrics, /v1/probes, /v1/openapi.json.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    app::{App, Refusal},
    http::{
        ask::{Checked, CheckedOrEmpty},
        limits::DRAIN_SECONDS,
        refuse, routes, schema,
    },
};

/// How the service is.
#[utoipa::path(get, path = "/v1/health", tag = "health", operation_id = "health",
    responses((status = 200, description = "Always, while the service answers", body = schema::Health)))]
pub(in crate::http) async fn health(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.health().await)
}

/// A few gauges out of health, in the Prometheus text format.
#[utoipa::path(get, path = "/v1/metrics", tag = "health", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text", body = String, content_type = "text/plain")))]
pub(in crate::http) async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], gauges(&app.health().await)).into_response()
}

/// The checks of the host, as they were carried out last.
#[utoipa::path(get, path = "/v1/probes", tag = "health", operation_id = "probes",
    responses((status = 200, description = "The checks", body = schema::Probes)))]
pub(in crate::http) async fn probes(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.probes())
}

/// How much is tried.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::http) struct Again {
    /// Every attack that there is on the sandbox, first without it and then inside; each a check of its own.
    prove: bool,
}

/// Carries out again what can be while the service runs. A check that would refuse a start stops new grants.
#[utoipa::path(post, path = "/v1/probes", tag = "health", operation_id = "probeAgain", request_body = Option<Again>,
    responses((status = 200, description = "The checks", body = schema::Probes), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn probe_again(
    State(app): State<Arc<App>>,
    CheckedOrEmpty(Again { prove }): CheckedOrEmpty<Again>,
) -> Result<Json<Value>, Refusal> {
    app.probe_again(prove).await.map(Json)
}

/// For how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Drain {
    /// From now on, so many seconds; 0 takes operations again.
    #[schema(maximum = 90_000)]
    seconds: u64,
}

/// Takes no new operations for a while, before a stop. What is there goes on and can be decided.
#[utoipa::path(post, path = "/v1/drain", tag = "health", operation_id = "drain", request_body = Drain,
    responses((status = 200, description = "For how long, and what is still open", body = Object), (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn drain(
    State(app): State<Arc<App>>,
    Checked(Drain { seconds }): Checked<Drain>,
) -> Result<Json<Value>, Refusal> {
    if seconds > DRAIN_SECONDS {
        return Err(refuse::bad_request(format!("seconds: {seconds} is more than {DRAIN_SECONDS}")));
    }
    app.drain(Duration::from_secs(seconds));
    let operations = app.health().await.get("operations").cloned();
    Ok(Json(json!({ "seconds": seconds, "operations": operations })))
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "health", operation_id = "contract",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(in crate::http) async fn contract() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], routes::openapi()).into_response()
}

/// What health does not say has no gauge.
fn gauges(health: &Value) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, labels: &str, value: Option<u64>| {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}\n");
        }
    };
    let status = health.get("status").and_then(Value::as_str);
    gauge("salaam_healthy", "1 if health says ok, 0 if degraded.", "", status.map(|status| u64::from(status == "ok")));
    for (name, help, pointer) in [
        ("salaam_journal_last_seq", "The number of the last event.", "/journal/last_seq"),
        ("salaam_sessions_active", "Sessions that have not ended.", "/sessions/active"),
        ("salaam_approvals_pending", "Approvals that wait for an operator.", "/approvals/pending"),
    ] {
        gauge(name, help, "", health.pointer(pointer).and_then(number));
    }
    let executors = health.pointer("/tool_execution/executors").and_then(Value::as_array);
    gauge("salaam_executors", "Executors that are connected.", "", executors.map(|list| list.len() as u64));
    if let Some(executor) = executors.and_then(|list| list.first())
        && let Some(uid) = executor.get("uid").and_then(number)
    {
        let labels = format!("{{uid=\"{uid}\"}}");
        gauge(
            "salaam_executor_epoch",
            "How often an executor was started.",
            &labels,
            executor.get("epoch").and_then(number),
        );
    }
    text
}

/// A number, or the decimal string that stands for a large one.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gauges_say_what_health_says_and_nothing_else() {
        let health = json!({
            "status": "degraded",
            "journal": {"last_seq": "9007199254740992"},
            "sessions": {"active": 1},
            "tool_execution": {"executors": [{"uid": 997, "epoch": 3}]},
        });
        let values: Vec<_> = gauges(&health).lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect();
        assert_eq!(
            values,
            [
                "salaam_healthy 0",
                "salaam_journal_last_seq 9007199254740992",
                "salaam_sessions_active 1",
                "salaam_executors 1",
                "salaam_executor_epoch{uid=\"997\"} 3",
            ]
        );
        assert_eq!(gauges(&json!({})), "");
    }
}
