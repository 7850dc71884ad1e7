//! Every answer that is not 2xx: `{"error":{"id","message","fix"}}` from a [`Refusal`].

use std::time::Duration;

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use salaam_core::show;
use serde_json::json;

use super::limits::QUOTE_CHARS;
use crate::app::Refusal;

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({ "error": { "id": self.id, "message": self.message, "fix": self.fix } });
        let mut response = (status, Json(body)).into_response();
        if closes(status) {
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        response
    }
}

/// Whether the rest of the request may still be on its way: then the connection cannot serve another.
const fn closes(status: StatusCode) -> bool {
    matches!(status.as_u16(), 403 | 408 | 413)
}

/// The request is not what the interface takes.
pub(super) fn bad_request(message: impl AsRef<str>) -> Refusal {
    Refusal { id: "bad-request".into(), status: 400, message: quoted(message.as_ref()), fix: see_the_contract() }
}

/// There is no such path.
pub(super) fn no_such_path(path: &str) -> Refusal {
    Refusal {
        id: "not-found".into(),
        status: 404,
        message: quoted(&format!("there is nothing at {path}")),
        fix: see_the_contract(),
    }
}

/// The path is there, the method is not.
pub(super) fn wrong_method(method: &str, path: &str) -> Refusal {
    Refusal {
        id: "method-not-allowed".into(),
        status: 405,
        message: quoted(&format!("{path} does not take {method}")),
        fix: "use a method that the `allow` header names".into(),
    }
}

/// The body is not declared as JSON.
pub(super) fn wrong_type(given: &str) -> Refusal {
    Refusal {
        id: "unsupported-media-type".into(),
        status: 415,
        message: quoted(&format!("the body is declared as `{given}`; only application/json is taken")),
        fix: "send `content-type: application/json`".into(),
    }
}

/// The body is above its limit.
pub(super) fn too_large(limit: usize) -> Refusal {
    Refusal {
        id: "body-too-large".into(),
        status: 413,
        message: format!("the request body is larger than {limit} bytes"),
        fix: "put large input into a file of the workspace, or send at most 16 MiB as standard input".into(),
    }
}

/// The body did not arrive in time.
pub(super) fn slow_body(time: Duration) -> Refusal {
    Refusal {
        id: "slow-body".into(),
        status: 408,
        message: format!("the request body did not arrive whole within {time:?}"),
        fix: "send the request again, without pauses".into(),
    }
}

/// There is no room for this request now.
pub(super) fn busy(what: &str) -> Refusal {
    Refusal {
        id: "busy".into(),
        status: 503,
        message: format!("the service has no room for {what} now"),
        fix: "end followers or attached commands that are not needed, or try again later".into(),
    }
}

/// A request with a deadline ran into it. What it asked for may still have been carried out.
pub(super) fn deadline(time: Duration) -> Refusal {
    Refusal {
        id: "deadline".into(),
        status: 504,
        message: format!("no answer within {time:?}; what was asked may still take effect"),
        fix: "look at `salaam journal list` before asking again".into(),
    }
}

/// What a client sent, fit to be shown: visible escapes, bounded.
pub(super) fn quoted(text: &str) -> String {
    show::line(text.as_bytes()).chars().take(QUOTE_CHARS).collect()
}

fn see_the_contract() -> String {
    "GET /v1/openapi.json describes every request".into()
}
