//! Walking the stored chain: its end at every start, all of it on request.

use std::path::Path;

use rusqlite::{Connection, Row};
use salaam_core::{
    event::{Event, Head},
    id::OperationId,
    time::Timestamp,
};
use serde_json::Value;

use super::error::StoreError;

/// How many events are verified at start: enough to hold what a crash can touch, few enough for milliseconds.
pub(super) const TAIL: u64 = 256;

/// The end of the chain and the time of its last event.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The last event.
    pub(super) head: Head,
    /// Its time; absent before the first.
    pub(super) time: Option<Timestamp>,
}

/// Where `head` says that the chain ends.
pub(super) fn recorded_head(connection: &Connection) -> rusqlite::Result<Head> {
    connection.query_row("SELECT seq, hash FROM head WHERE id = 1", [], |row| {
        Ok(Head { seq: super::reader::unsigned(row, 0)?, hash: super::reader::parsed(row, 1)? })
    })
}

/// Verifies the last [`TAIL`] events, that the first is number 1, and that the last is what `head` says.
pub(super) fn verify_tail(connection: &Connection, path: &Path) -> Result<End, StoreError> {
    let fail = |source| StoreError::database("read the end of the journal", path, source);
    let head = recorded_head(connection).map_err(fail)?;
    let (first, last): (Option<i64>, Option<i64>) = connection
        .query_row("SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .map_err(fail)?;
    if !matches!(first, None | Some(1)) {
        return Err(damaged(path, "event 1 is missing".to_owned()));
    }
    let last = last.map_or(0, i64::cast_unsigned);
    if last != head.seq {
        return Err(damaged(path, format!("event {} was recorded as the last and event {last} is the last", head.seq)));
    }
    walk(connection, path, head.seq.saturating_sub(TAIL), head, |_| Ok(()))
}

/// Verifies every event, and hands each line to `each`.
pub(super) fn verify_all(
    connection: &Connection,
    path: &Path,
    each: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<End, StoreError> {
    let head =
        recorded_head(connection).map_err(|source| StoreError::database("read the journal's head", path, source))?;
    walk(connection, path, 0, head, each)
}

/// Follows the chain from the event after `skip` to its end, which must be `recorded`. Where events are
/// skipped, the first that is read vouches for the hash of the one before it.
fn walk(
    connection: &Connection,
    path: &Path,
    skip: u64,
    recorded: Head,
    mut each: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<End, StoreError> {
    let fail = |source| StoreError::database("read the journal", path, source);
    let mut statement = connection
        .prepare("SELECT seq, line, kind, session, operation FROM events WHERE seq > ?1 ORDER BY seq")
        .map_err(fail)?;
    let mut rows = statement.query([skip.cast_signed()]).map_err(fail)?;
    let mut end = End { head: Head { seq: skip, ..Head::START }, time: None };
    let mut base_known = skip == 0;
    while let Some(row) = rows.next().map_err(fail)? {
        let line = row.get_ref(1).and_then(|value| Ok(value.as_bytes()?)).map_err(fail)?;
        if !base_known {
            let first: Event = serde_json::from_slice(line)
                .map_err(|e| damaged(path, format!("event {} is not readable: {e}", skip + 1)))?;
            end.head.hash = first.prev;
            base_known = true;
        }
        let (head, event) = end.head.follow(line).map_err(|broken| damaged(path, broken.to_string()))?;
        if !is_stored_as(row, &event).map_err(fail)? {
            return Err(damaged(path, format!("event {} is not stored under its own number and names", head.seq)));
        }
        if end.time.is_some_and(|before| event.time < before) {
            return Err(damaged(path, format!("event {} is earlier than the event before it", head.seq)));
        }
        end = End { head, time: Some(event.time) };
        each(line)?;
    }
    if end.head == recorded {
        return Ok(end);
    }
    Err(damaged(
        path,
        format!(
            "event {} with hash {} was recorded as the last; the chain ends with event {}",
            recorded.seq, recorded.hash, end.head.seq
        ),
    ))
}

/// Whether the columns by which an event is looked up say what the event says.
fn is_stored_as(row: &Row<'_>, event: &Event) -> rusqlite::Result<bool> {
    let session = event.session.map(|id| id.to_string());
    Ok(super::reader::unsigned(row, 0)? == event.seq
        && row.get_ref(2)?.as_str()? == event.kind.as_str()
        && row.get_ref(3)?.as_str_or_null()? == session.as_deref()
        && row.get_ref(4)?.as_str_or_null()? == operation_of(event))
}

/// The operation that an event names, if it names one.
pub(super) fn operation_of(event: &Event) -> Option<&str> {
    event.data.get("operation").and_then(Value::as_str).filter(|id| id.parse::<OperationId>().is_ok())
}

fn damaged(path: &Path, why: String) -> StoreError {
    StoreError::Damaged { path: path.into(), why }
}
