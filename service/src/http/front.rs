//! What happens to every request before and after its verb: the body is read within its limits, a deadline is
//! set, and what no verb takes is answered in JSON.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Method, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    limits::{BODY_BYTES, PROPOSAL_BYTES, SESSION_BYTES, Times},
    refuse,
    seat::Seat,
};
use crate::app::Refusal;

/// Puts the front before `router`.
pub(super) fn before(router: Router, times: Times) -> Router {
    router
        .fallback(async |request: Request| refuse::no_such_path(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            refuse::wrong_method(request.method().as_str(), request.uri().path())
        })
        .layer(middleware::from_fn_with_state(times, take_in))
}

/// For verbs that wait neither for people nor for commands.
pub(super) async fn in_time(State(time): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => refuse::deadline(time).into_response(),
    }
}

/// The room that a request's body takes in memory; given back when the request is dropped.
#[derive(Debug, Clone)]
pub(super) struct Room(#[expect(dead_code, reason = "held for its drop")] Arc<Option<OwnedSemaphorePermit>>);

async fn take_in(State(times): State<Times>, request: Request, next: Next) -> Response {
    let Some(seat) = request.extensions().get::<Seat>().cloned() else {
        return Refusal {
            id: "internal".into(),
            status: 500,
            message: "a request came without its connection".into(),
            fix: "this is a mistake in salaam; report it".into(),
        }
        .into_response();
    };
    let (mut parts, body) = request.into_parts();
    let limit = match parts.uri.path() {
        "/v1/operations" if parts.method == Method::POST => PROPOSAL_BYTES,
        "/v1/sessions" if parts.method == Method::POST => SESSION_BYTES,
        _ => BODY_BYTES,
    };
    let declared = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > limit as u64) {
        return refuse::too_large(limit).into_response();
    }
    let (bytes, room) = match tokio::time::timeout(times.body, collect(body, limit, &seat)).await {
        Ok(Ok(whole)) => whole,
        Ok(Err(refusal)) => return refusal.into_response(),
        Err(_) => return refuse::slow_body(times.body).into_response(),
    };
    let working = seat.work();
    parts.extensions.insert(Room(Arc::new(room)));
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    drop(working);
    response
}

async fn collect(mut body: Body, limit: usize, seat: &Seat) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Refusal> {
    let mut bytes = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| refuse::bad_request(format!("the request body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(refuse::too_large(limit));
        }
        let more = seat.room(data.len())?;
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok((Bytes::from(bytes), room))
}
