//! Reading: a few connections that cannot write, used off the async threads; rows back into values.
//!
//! Invariant: a row that does not parse, or whose `bound` does not hash to its `binding`, is damage and never a
//! value.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::{Connection, Error, OptionalExtension as _, Row, ToSql, types::Type};
use salaam_core::{
    canon,
    digest::Digest,
    id::{OperationId, SessionId},
    operation::State,
    time::Timestamp,
};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    error::StoreError,
    rows::{
        EventQuery, ModelCall, OpenOperations, OperationQuery, OperationRow, RequestRow, SessionQuery, SessionRow,
        WorkspaceRow,
    },
    schema,
};

/// The most rows that one read returns: a listing on a screen, and a bound on memory.
pub const MAX_ROWS_PER_READ: u32 = 10_000;
/// One read of events stops after so many bytes (but returns one event at the least): a bound on memory.
pub const MAX_EVENT_BYTES_PER_READ: usize = 8 << 20;
/// One read of operations stops after so many bytes of what they bind and show (but returns one at the least): a
/// bound on memory, for a listing of a thousand that each have megabytes of text.
pub const MAX_OPERATION_BYTES_PER_READ: usize = 32 << 20;
/// Reads at once; more wait. Two cores' worth, since a read is all processor.
const CONNECTIONS: u32 = 2;

/// The connections that read.
#[derive(Debug)]
pub(super) struct Readers {
    database: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    /// Opens the first connection; the others come when they are needed.
    pub(super) fn open(database: PathBuf) -> Result<Self, StoreError> {
        let first = schema::open_reader(&database)?;
        Ok(Self { database, idle: Mutex::new(vec![first]), permits: Arc::new(Semaphore::new(CONNECTIONS as usize)) })
    }

    /// Runs `read` on a blocking thread with a connection of its own.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        attempted: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Closed { path: self.database.clone() };
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed())?;
        let this = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            let connection = match this.take() {
                Some(connection) => connection,
                None => schema::open_reader(&this.database)?,
            };
            let outcome = read(&connection).map_err(|e| StoreError::database(attempted, &this.database, e));
            this.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            drop(permit);
            outcome
        });
        task.await.map_err(|_| closed())?
    }

    /// Waits for the reads under way, then closes all connections; later reads fail as closed.
    pub(super) async fn close(&self) {
        // An error means that it was closed before.
        if let Ok(all) = self.permits.acquire_many(CONNECTIONS).await {
            self.permits.close();
            drop(all);
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn take(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// Numbers and lines of the events that `query` names, in order.
pub(super) fn events(connection: &Connection, query: &EventQuery) -> rusqlite::Result<Vec<(u64, Vec<u8>)>> {
    let after = query.after.min(i64::MAX.unsigned_abs()).cast_signed();
    let session = query.session.map(|id| id.to_string());
    let operation = query.operation.map(|id| id.to_string());
    let limit = rows_of(query.limit);
    let mut sql = "SELECT seq, line FROM events WHERE seq > ?".to_owned();
    let mut values: Vec<&dyn ToSql> = vec![&after];
    for (clause, value) in
        [(" AND kind = ?", &query.kind), (" AND session = ?", &session), (" AND operation = ?", &operation)]
    {
        if let Some(value) = value {
            sql.push_str(clause);
            values.push(value);
        }
    }
    sql.push_str(" ORDER BY seq LIMIT ?");
    values.push(&limit);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(values.as_slice())?;
    let (mut lines, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let line = row.get_ref(1)?.as_bytes()?.to_vec();
        bytes += line.len();
        if bytes > MAX_EVENT_BYTES_PER_READ && !lines.is_empty() {
            break;
        }
        lines.push((unsigned(row, 0)?, line));
    }
    Ok(lines)
}

/// The operation whose `column` (`id` or `approval`) is `key`.
pub(super) fn operation(
    connection: &Connection,
    column: &'static str,
    key: &str,
) -> rusqlite::Result<Option<OperationRow>> {
    connection
        .prepare_cached(&format!("SELECT {OPERATION} WHERE {column} = ?1"))?
        .query_row([key], operation_row)
        .optional()
}

/// The operations that `query` names, newest first.
pub(super) fn operations(connection: &Connection, query: &OperationQuery) -> rusqlite::Result<Vec<OperationRow>> {
    let session = query.session.map(|id| id.to_string());
    let workspace = query.workspace.map(|id| id.to_string());
    let before = query.before.map(|id| id.to_string());
    let states: Vec<_> = query.states.iter().map(|state| state.as_str()).collect();
    let limit = rows_of(query.limit);
    let mut sql = format!("SELECT {OPERATION} WHERE true");
    let mut values: Vec<&dyn ToSql> = Vec::new();
    if !states.is_empty() {
        sql.push_str(&format!(" AND state IN ({})", vec!["?"; states.len()].join(", ")));
        values.extend(states.iter().map(|state| state as &dyn ToSql));
    }
    if let Some(session) = &session {
        sql.push_str(" AND session = ?");
        values.push(session);
    }
    if let Some(workspace) = &workspace {
        sql.push_str(" AND workspace = ?");
        values.push(workspace);
    }
    if let Some(before) = &before {
        sql.push_str(" AND operations.number < (SELECT number FROM operations WHERE id = ?)");
        values.push(before);
    }
    sql.push_str(" ORDER BY operations.number DESC LIMIT ?");
    values.push(&limit);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(values.as_slice())?;
    let (mut operations, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        for column in LONG_COLUMNS {
            bytes += row.get_ref(column)?.as_str_or_null()?.map_or(0, str::len);
        }
        if bytes > MAX_OPERATION_BYTES_PER_READ && !operations.is_empty() {
            break;
        }
        operations.push(operation_row(row)?);
    }
    Ok(operations)
}

/// How many operations are open.
pub(super) fn open_operations(connection: &Connection) -> rusqlite::Result<OpenOperations> {
    let open: Vec<_> = State::ALL.iter().filter(|state| !state.is_final()).collect();
    let sql = format!(
        "SELECT state, count(*) FROM operations WHERE state IN ({}) GROUP BY state",
        vec!["?"; open.len()].join(", ")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(rusqlite::params_from_iter(open.iter().map(|state| state.as_str())))?;
    let mut counts = OpenOperations::default();
    while let Some(row) = rows.next()? {
        let state: State = parsed(row, 0)?;
        let count = unsigned(row, 1)?;
        counts.all += count;
        match state {
            State::Pending => counts.pending += count,
            State::Granted | State::Dispatched => counts.granted += count,
            State::Proposed
            | State::Completed
            | State::Failed
            | State::TimedOut
            | State::Cancelled
            | State::Unknown
            | State::Refused
            | State::Denied
            | State::Expired
            | State::Stale => {}
        }
    }
    Ok(counts)
}

/// All workspaces, oldest first.
pub(super) fn workspaces(connection: &Connection) -> rusqlite::Result<Vec<WorkspaceRow>> {
    connection
        .prepare_cached("SELECT id, name, path, device, inode, handle, added FROM workspaces ORDER BY added, id")?
        .query_map([], |row| {
            Ok(WorkspaceRow {
                id: parsed(row, 0)?,
                name: row.get(1)?,
                path: row.get(2)?,
                device: row.get::<_, i64>(3)?.cast_unsigned(),
                inode: row.get::<_, i64>(4)?.cast_unsigned(),
                handle: row.get(5)?,
                added: time(row, 6)?,
            })
        })?
        .collect()
}

/// The sessions that `query` names, newest first.
pub(super) fn sessions(connection: &Connection, query: &SessionQuery) -> rusqlite::Result<Vec<SessionRow>> {
    let kind = query.kind.map(|kind| kind.as_str());
    let workspace = query.workspace.map(|id| id.to_string());
    connection
        .prepare_cached(&format!(
            "SELECT {SESSION} FROM sessions WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR workspace = ?2)
             AND (NOT ?3 OR state <> 'ended') ORDER BY created DESC, id DESC LIMIT ?4"
        ))?
        .query_map(rusqlite::params![kind, workspace, query.live, rows_of(query.limit)], session_row)?
        .collect()
}

/// One session.
pub(super) fn session(connection: &Connection, id: SessionId) -> rusqlite::Result<Option<SessionRow>> {
    connection
        .prepare_cached(&format!("SELECT {SESSION} FROM sessions WHERE id = ?1"))?
        .query_row([id.to_string()], session_row)
        .optional()
}

/// How many sessions are not over.
pub(super) fn live_sessions(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT count(*) FROM sessions WHERE state <> 'ended'")?
        .query_row([], |row| unsigned(row, 0))
}

/// The sessions in which a question waits for an operator.
pub(super) fn asking_sessions(connection: &Connection) -> rusqlite::Result<BTreeSet<SessionId>> {
    connection
        .prepare_cached("SELECT DISTINCT session FROM operations WHERE state = 'pending'")?
        .query_map([], |row| parsed(row, 0))?
        .collect()
}

/// The columns of [`session_row`], in its order.
const SESSION: &str = "id, kind, workspace, document, created";

fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: parsed(row, 0)?,
        kind: parsed(row, 1)?,
        workspace: parsed(row, 2)?,
        document: json(row, 3)?,
        created: time(row, 4)?,
    })
}

/// The request that was remembered under `request_id`.
pub(super) fn request(connection: &Connection, request_id: &str) -> rusqlite::Result<Option<RequestRow>> {
    connection
        .prepare_cached("SELECT request_id, fingerprint, subject FROM requests WHERE request_id = ?1")?
        .query_row([request_id], |row| {
            Ok(RequestRow { request_id: row.get(0)?, fingerprint: parsed(row, 1)?, subject: row.get(2)? })
        })
        .optional()
}

/// The highest executor epoch of any executor event; 0 for none.
pub(super) fn last_executor_epoch(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row(
        "SELECT coalesce(max(CAST(json_extract(line, '$.data.epoch') AS INTEGER)), 0) FROM events
         WHERE kind IN ('executor.started', 'executor.lost')",
        [],
        |row| unsigned(row, 0),
    )
}

/// Whether the receipt of `operation` is there.
pub(super) fn has_receipt(connection: &Connection, operation: OperationId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM operations WHERE id = ?1 AND result IS NOT NULL")?
        .exists([operation.to_string()])
}

/// Whether `operation` may have taken effect: its files are needed to settle it, or to take it back.
pub(super) fn may_be_undone(connection: &Connection, operation: OperationId) -> rusqlite::Result<bool> {
    let [one, two, three] = [State::Dispatched, State::Completed, State::Unknown].map(State::as_str);
    connection.prepare_cached("SELECT 1 FROM operations WHERE id = ?1 AND state IN (?2, ?3, ?4)")?.exists([
        &operation.to_string(),
        one,
        two,
        three,
    ])
}

/// `bound`, `display` and `result`.
const LONG_COLUMNS: [usize; 3] = [7, 8, 14];
/// The columns of [`operation_row`], in its order, and where they are.
const OPERATION: &str = "id, approval, session, workspace, kind, state, binding, bound, display, flags, requested, \
                         expires, decided_by, comment, result, turn, call, reconciled, again \
                         FROM operations LEFT JOIN asked USING (number)";

fn operation_row(row: &Row<'_>) -> rusqlite::Result<OperationRow> {
    let binding: Digest = parsed(row, 6)?;
    let bound = json(row, 7)?;
    if canon::digest(&bound) != Ok(binding) {
        return Err(unlike(7, NotTheBinding(binding)));
    }
    let flags = row.get_ref(9)?.as_str()?;
    Ok(OperationRow {
        id: parsed(row, 0)?,
        approval: parsed(row, 1)?,
        session: parsed(row, 2)?,
        workspace: parsed(row, 3)?,
        kind: parsed(row, 4)?,
        state: parsed(row, 5)?,
        binding,
        bound,
        display: row.get(8)?,
        flags: serde_json::from_str(flags).map_err(|e| unlike(9, e))?,
        requested: time(row, 10)?,
        expires: time(row, 11)?,
        decided_by: optional_json(row, 12)?,
        comment: row.get(13)?,
        result: optional_json(row, 14)?,
        call: match row.get::<_, Option<i64>>(15)? {
            Some(_) => Some(ModelCall { turn: unsigned(row, 15)?, call: unsigned(row, 16)? }),
            None => None,
        },
        reconciled: optional_json(row, 17)?,
        again: optional_json(row, 18)?,
    })
}

/// What an operation binds is not what its binding names.
#[derive(Debug, thiserror::Error)]
#[error("an operation binds something else than its binding {0}")]
struct NotTheBinding(Digest);

/// A column of digits or words as the value that it spells.
pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.get_ref(column)?.as_str()?.parse().map_err(|e| unlike(column, e))
}

/// A column that counts.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| Error::IntegralValueOutOfRange(column, number))
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_micros)
}

fn json(row: &Row<'_>, column: usize) -> rusqlite::Result<Value> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|e| unlike(column, e))
}

fn optional_json(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Value>> {
    match row.get_ref(column)?.as_str_or_null()? {
        Some(text) => serde_json::from_str(text).map(Some).map_err(|e| unlike(column, e)),
        None => Ok(None),
    }
}

fn unlike(column: usize, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::FromSqlConversionFailure(column, Type::Text, Box::new(source))
}

const fn rows_of(limit: u32) -> u32 {
    if limit == 0 || limit > MAX_ROWS_PER_READ { MAX_ROWS_PER_READ } else { limit }
}
