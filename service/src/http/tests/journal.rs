//! Reading and following events, and downloading output, without an application.

use http_body_util::BodyExt as _;
use tokio::sync::{Notify, watch};

use super::*;
use crate::{
    http::{
        seat::House,
        verbs::{
            events::{Form, Reading, Source},
            output,
        },
    },
    store::{EventQuery, StoreError},
};

/// A journal whose events are their numbers; odd ones match a query for a kind.
struct Numbers {
    seen: watch::Receiver<u64>,
    /// How many fit into one read, whatever is asked for.
    fit: usize,
    over: Arc<Notify>,
}

impl Source for Numbers {
    async fn batch(&self, query: EventQuery) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let last = *self.seen.borrow();
        Ok((query.after + 1..=last)
            .filter(|seq| query.kind.is_none() || seq % 2 == 1)
            .take(self.fit.min(query.limit as usize))
            .map(|seq| (seq, seq.to_string().into_bytes()))
            .collect())
    }

    fn seen(&mut self) -> &mut watch::Receiver<u64> {
        &mut self.seen
    }

    async fn over(&self) {
        self.over.notified().await;
    }
}

struct Writer {
    last: watch::Sender<u64>,
    over: Arc<Notify>,
}

fn reading(last: u64, query: EventQuery, form: Form, follow: bool) -> (Writer, Body) {
    reading_at_most(usize::MAX, last, query, form, follow)
}

fn reading_at_most(fit: usize, last: u64, query: EventQuery, form: Form, follow: bool) -> (Writer, Body) {
    let (sender, seen) = watch::channel(last);
    let over = Arc::new(Notify::new());
    let source = Numbers { seen, fit, over: over.clone() };
    let stay = Seat::new(House::new(2)).stay().unwrap();
    (Writer { last: sender, over }, Reading::new(source, query, form, follow, stay).into_body())
}

async fn piece(body: &mut Body) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(5), body.frame()).await.unwrap()?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn events_come_in_order_in_batches_and_none_is_left_out() {
    let query = EventQuery { after: 3, limit: 10, ..EventQuery::default() };
    let (_writer, body) = reading(1000, query, Form::Lines, false);
    let text = body.collect().await.unwrap().to_bytes();
    let numbers: Vec<u64> =
        text.split(|b| *b == b'\n').filter_map(|l| std::str::from_utf8(l).ok()?.parse().ok()).collect();
    assert_eq!(numbers, (4..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_that_is_short_because_its_events_are_large_leaves_none_out() {
    for (kind, expected) in [(None, (1..=20).collect::<Vec<u64>>()), (Some("k".to_owned()), vec![1, 3, 5, 7, 9])] {
        let last = if kind.is_some() { 10 } else { 20 };
        let query = EventQuery { kind, limit: 10, ..EventQuery::default() };
        let (_writer, body) = reading_at_most(3, last, query, Form::Lines, false);
        let text = body.collect().await.unwrap().to_bytes();
        let numbers: Vec<u64> =
            text.split(|b| *b == b'\n').filter_map(|l| std::str::from_utf8(l).ok()?.parse().ok()).collect();
        assert_eq!(numbers, expected);
    }
}

#[tokio::test]
async fn without_follow_it_ends_where_the_journal_ended_at_the_start() {
    let query = EventQuery { limit: 2, ..EventQuery::default() };
    let (writer, body) = reading(3, query, Form::Lines, false);
    writer.last.send_replace(100);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "1\n2\n3\n");
    let (_writer, body) = reading(3, EventQuery { after: 9, limit: 2, ..EventQuery::default() }, Form::Lines, false);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "");
}

#[tokio::test]
async fn a_follower_gets_what_is_written_later_and_ends_with_the_service() {
    let query = EventQuery { kind: Some("cancel.requested".into()), limit: 2, ..EventQuery::default() };
    let (writer, mut body) = reading(2, query, Form::ServerSent { heartbeat: Duration::from_secs(60) }, true);
    assert_eq!(piece(&mut body).await.unwrap(), "id: 1\ndata: 1\n\n");
    writer.last.send_replace(8);
    let mut text = String::new();
    while !text.ends_with("id: 7\ndata: 7\n\n") {
        text.push_str(&piece(&mut body).await.unwrap());
    }
    assert_eq!(text, "id: 3\ndata: 3\n\nid: 5\ndata: 5\n\nid: 7\ndata: 7\n\n");
    writer.last.send_replace(9);
    assert_eq!(piece(&mut body).await.unwrap(), "id: 9\ndata: 9\n\n");
    writer.over.notify_one();
    assert_eq!(piece(&mut body).await, None);
}

#[tokio::test]
async fn what_is_durable_when_the_service_stops_is_still_told() {
    let (writer, mut body) = reading(1, EventQuery { limit: 2, ..EventQuery::default() }, Form::Lines, true);
    assert_eq!(piece(&mut body).await.unwrap(), "1\n");
    writer.over.notify_one();
    writer.last.send_replace(6);
    let mut text = String::new();
    while let Some(piece) = piece(&mut body).await {
        text.push_str(&piece);
    }
    assert_eq!(text, "2\n3\n4\n5\n6\n");
}

#[test]
fn server_sent_events_are_for_those_who_ask_for_them() {
    let form = |accept: &str| {
        let mut headers = axum::http::HeaderMap::new();
        headers.insert("accept", accept.parse().unwrap());
        Form::asked_for(&headers)
    };
    for accept in ["text/event-stream", "application/json, text/event-stream;q=0.9"] {
        assert!(matches!(form(accept), Form::ServerSent { .. }));
    }
    for accept in ["*/*", "", "application/x-ndjson", "text/event-streams"] {
        assert_eq!(form(accept), Form::Lines);
    }
}

#[tokio::test]
async fn a_follower_ends_with_the_journal() {
    let (writer, mut body) = reading(1, EventQuery { limit: 2, ..EventQuery::default() }, Form::Lines, true);
    assert_eq!(piece(&mut body).await.unwrap(), "1\n");
    drop(writer.last);
    assert_eq!(piece(&mut body).await, None);
}

#[tokio::test]
async fn a_quiet_event_stream_shows_that_it_lives() {
    let (_writer, mut body) = reading(
        0,
        EventQuery { limit: 2, ..EventQuery::default() },
        Form::ServerSent { heartbeat: Duration::from_millis(50) },
        true,
    );
    assert_eq!(piece(&mut body).await.unwrap(), ":\n\n");
    assert_eq!(piece(&mut body).await.unwrap(), ":\n\n");
}

#[tokio::test]
async fn output_is_given_whole_and_a_cut_file_breaks_the_answer_off() {
    let scratch = Scratch::new();
    let path = scratch.0.join("blob");
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&path, &bytes).unwrap();
    let body = |left| {
        let file = std::fs::File::open(&path).unwrap();
        let stay = Seat::new(House::new(2)).stay().unwrap();
        lines::body(output::Reading { file, left, _stay: stay }, |state| Box::pin(output::next_piece(state)))
    };
    let whole = body(bytes.len() as u64).collect().await.unwrap().to_bytes();
    assert!(whole == bytes);
    assert!(body(bytes.len() as u64 + 1).collect().await.is_err());
}
