//! The journal while the service is stopped, and exports of it: read, verified, never changed.

use std::{
    io::{self, BufRead, Write},
    path::Path,
};

use salaam_core::event::{Broken, Head};

use super::{
    chain,
    error::StoreError,
    schema::{self, Places},
    writer::MAX_EVENT_BYTES,
};

/// A chain that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// How many events.
    pub events: u64,
    /// The last of them.
    pub head: Head,
}

/// An export that does not hold, or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The chain is broken.
    #[error("the export is damaged: {0}")]
    Broken(#[from] Broken),
    /// A line is longer than any event.
    #[error("the export is damaged: the line of event {at} is longer than {MAX_EVENT_BYTES} bytes")]
    TooLong {
        /// The number that was due.
        at: u64,
    },
    /// It could not be read.
    #[error("could not read the export at event {at}: {source}")]
    Read {
        /// The number that was due.
        at: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Verifies every event of the journal in `state`, and the database's own structure.
pub fn verify(state: &Path) -> Result<Verified, StoreError> {
    let places = Places::of(state)?;
    let connection = schema::open_reader(&places.database)?;
    let fail = |source| StoreError::database("check the structure", &places.database, source);
    let structure: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(fail)?;
    if structure != "ok" {
        return Err(StoreError::Damaged { path: places.database, why: structure });
    }
    walk(&connection, &places, |_| Ok(()))
}

/// Writes every event of the journal in `state` to `out`, one canonical line each, verifying on the way: an
/// export that succeeds verifies.
pub fn export(state: &Path, out: &mut dyn Write) -> Result<Verified, StoreError> {
    let places = Places::of(state)?;
    let connection = schema::open_reader(&places.database)?;
    let mut write = |line: &[u8]| out.write_all(line).and_then(|()| out.write_all(b"\n"));
    let verified = walk(&connection, &places, |line| {
        write(line).map_err(|source| schema::file("write out the events of", &places.database, source))
    })?;
    out.flush().map_err(|source| schema::file("write out the events of", &places.database, source))?;
    Ok(verified)
}

/// Verifies an export: canonical lines from event 1 on, each ended by a line feed.
pub fn verify_export(mut export: impl BufRead) -> Result<Verified, ExportError> {
    let mut head = Head::START;
    let mut line = Vec::new();
    loop {
        let at = head.seq + 1;
        line.clear();
        let mut limited = io::Read::take(&mut export, MAX_EVENT_BYTES as u64 + 2);
        limited.read_until(b'\n', &mut line).map_err(|source| ExportError::Read { at, source })?;
        if line.is_empty() {
            return Ok(Verified { events: head.seq, head });
        }
        if line.pop_if(|last| *last == b'\n').is_none() && line.len() > MAX_EVENT_BYTES {
            return Err(ExportError::TooLong { at });
        }
        (head, _) = head.follow(&line)?;
    }
}

fn walk(
    connection: &rusqlite::Connection,
    places: &Places,
    each: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<Verified, StoreError> {
    // One snapshot for the head and the events, should the service be writing after all.
    let fail = |source| StoreError::database("begin to read", &places.database, source);
    let snapshot = connection.unchecked_transaction().map_err(fail)?;
    let end = chain::verify_all(&snapshot, &places.database, each)?;
    Ok(Verified { events: end.head.seq, head: end.head })
}
