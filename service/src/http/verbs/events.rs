//! GET /v1/events: the journal as JSON lines, or as server-sent events when asked for.
//!
//! Promise: lines are the canonical bytes that were hashed; in order, in batches, none left out; a follower
//! that stops reading stops the reading of the journal, not the writing.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use salaam_core::{event::Kind, id::SessionId};
use serde::Deserialize;
use tokio::{sync::watch, time::timeout};
use utoipa::IntoParams;

use crate::{
    app::{App, Refusal},
    http::{
        ask::Asked,
        limits::{EVENT_BATCH, HEARTBEAT},
        lines, refuse, schema,
        seat::{Seat, Stay},
    },
    store::{EventQuery, StoreError},
};

/// Which events; all conditions hold together.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct WhichEvents {
    /// Only later ones than this number.
    #[serde(default)]
    #[param(default = 0)]
    after: u64,
    /// Only this kind.
    #[param(value_type = Option<String>)]
    kind: Option<Kind>,
    /// Only of this session.
    #[param(value_type = Option<String>)]
    session: Option<SessionId>,
    /// Goes on with what is yet to come.
    #[serde(default)]
    #[param(default = false)]
    follow: bool,
}

/// Events in order, one a line; with `Accept: text/event-stream` as server-sent events, whose
/// `Last-Event-ID` counts as `after`.
#[utoipa::path(get, path = "/v1/events", tag = "journal", operation_id = "readEvents", params(WhichEvents),
    responses(
        (status = 200, description = "One event a line", content(
            (schema::Event = "application/x-ndjson"), (String = "text/event-stream"))),
        (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn events(
    State(app): State<Arc<App>>,
    Extension(seat): Extension<Seat>,
    headers: HeaderMap,
    Asked(which): Asked<WhichEvents>,
) -> Result<Response, Refusal> {
    let stay = seat.stay()?;
    let form = Form::asked_for(&headers);
    let after = match form {
        Form::Lines => which.after,
        Form::ServerSent { .. } => last_event_id(&headers)?.unwrap_or(which.after),
    };
    let query = EventQuery {
        after,
        kind: which.kind.map(|kind| kind.as_str().to_owned()),
        session: which.session,
        operation: None,
        limit: EVENT_BATCH,
    };
    let source = Journal { seen: app.store().watch(), app };
    let reading = Reading::new(source, query, form, which.follow, stay);
    Ok(([(header::CONTENT_TYPE, form.content_type())], reading.into_body()).into_response())
}

/// Where events come from.
pub(in crate::http) trait Source: Send + Sync + 'static {
    /// The next batch.
    fn batch(&self, query: EventQuery) -> impl Future<Output = Result<Vec<(u64, Vec<u8>)>, StoreError>> + Send;
    /// The number of the last event, as it moves.
    fn seen(&mut self) -> &mut watch::Receiver<u64>;
    /// Resolves when nothing more is to come.
    fn over(&self) -> impl Future<Output = ()> + Send;
}

struct Journal {
    app: Arc<App>,
    seen: watch::Receiver<u64>,
}

impl Source for Journal {
    async fn batch(&self, query: EventQuery) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        self.app.store().events(query).await
    }

    fn seen(&mut self) -> &mut watch::Receiver<u64> {
        &mut self.seen
    }

    async fn over(&self) {
        self.app.leaving().await;
    }
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Form {
    /// One line of JSON each.
    Lines,
    /// `id:` and `data:` each (the HTML standard, server-sent events).
    ServerSent {
        /// How often a quiet stream shows that it lives.
        heartbeat: Duration,
    },
}

impl Form {
    pub(in crate::http) fn asked_for(headers: &HeaderMap) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let wanted = |part: &str| part.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream");
        if accept.split(',').any(wanted) { Self::ServerSent { heartbeat: HEARTBEAT } } else { Self::Lines }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::ServerSent { .. } => "text/event-stream",
        }
    }

    fn write(self, out: &mut Vec<u8>, seq: u64, line: &[u8]) {
        match self {
            Self::Lines => {
                out.extend_from_slice(line);
                out.push(b'\n');
            }
            Self::ServerSent { .. } => {
                // Canonical JSON holds no line feed, so one `data:` is the whole event.
                out.extend_from_slice(format!("id: {seq}\ndata: ").as_bytes());
                out.extend_from_slice(line);
                out.extend_from_slice(b"\n\n");
            }
        }
    }
}

/// One reader of the journal.
pub(in crate::http) struct Reading<S> {
    source: S,
    query: EventQuery,
    form: Form,
    /// Read up to here and no further; `None` = follow.
    until: Option<u64>,
    batch: VecDeque<(u64, Vec<u8>)>,
    _stay: Stay,
}

impl<S: Source> Reading<S> {
    pub(in crate::http) fn new(mut source: S, query: EventQuery, form: Form, follow: bool, stay: Stay) -> Self {
        let until = if follow { None } else { Some(*source.seen().borrow_and_update()) };
        Self { source, query, form, until, batch: VecDeque::new(), _stay: stay }
    }

    pub(in crate::http) fn into_body(self) -> Body {
        lines::body(self, |state| Box::pin(state.next()))
    }

    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        loop {
            if !self.batch.is_empty() {
                return Ok(Some((self.write(), self)));
            }
            // Looked at before the query: whatever has a number up to this one is durable, so the query saw
            // it, whether or not it matched.
            let seen = *self.source.seen().borrow_and_update();
            let end = self.until.unwrap_or(seen).min(seen);
            if self.query.after < end {
                self.fill(end).await?;
                continue;
            }
            if self.until.is_some() {
                return Ok(None);
            }
            match self.wait().await {
                Wake::More => {}
                // What is durable by now is still read; what comes after it is not waited for.
                Wake::Over => self.until = Some(*self.source.seen().borrow()),
                Wake::Heartbeat => return Ok(Some((Bytes::from_static(b":\n\n"), self))),
            }
        }
    }

    async fn fill(&mut self, end: u64) -> io::Result<()> {
        let batch = self.source.batch(self.query.clone()).await.map_err(|error| {
            tracing::error!(%error, after = self.query.after, "a reader of the journal is cut off");
            io::Error::other(error)
        })?;
        // A batch may be short because its events are large; only an empty one says that there are no more.
        self.query.after = batch.last().map_or(end, |(last, _)| *last);
        let until = self.until.unwrap_or(u64::MAX);
        self.batch.extend(batch.into_iter().filter(|(seq, _)| *seq <= until));
        Ok(())
    }

    /// One piece of at most [`PIECE_BYTES`], or one event where that is larger.
    fn write(&mut self) -> Bytes {
        let mut out = Vec::new();
        while let Some((seq, line)) = self.batch.pop_front() {
            self.form.write(&mut out, seq, &line);
            if out.len() >= PIECE_BYTES {
                break;
            }
        }
        out.into()
    }

    async fn wait(&mut self) -> Wake {
        let form = self.form;
        // The receiver is cloned so that the source can be asked for its end at the same time.
        let mut seen = self.source.seen().clone();
        let source = &self.source;
        let woken = async {
            tokio::select! {
                changed = seen.changed() => if changed.is_ok() { Wake::More } else { Wake::Over },
                () = source.over() => Wake::Over,
            }
        };
        match form {
            Form::Lines => woken.await,
            Form::ServerSent { heartbeat } => timeout(heartbeat, woken).await.unwrap_or(Wake::Heartbeat),
        }
    }
}

enum Wake {
    More,
    Over,
    Heartbeat,
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(seq) => Ok(Some(seq)),
        None => Err(refuse::bad_request("last-event-id: must be the number of an event")),
    }
}

/// What is handed to the connection at once.
const PIECE_BYTES: usize = 64 * 1024;
