//! One change of state as SQL. Runs inside the writer's savepoint and decides nothing but whether it applies.

use rusqlite::{Connection, OptionalExtension as _, ffi, params};
use salaam_core::{canon, id::OperationId, operation::State};
use serde_json::Value;

use super::{
    rows::{Change, OperationRow, SessionRow, WorkspaceRow},
    transcript,
};

/// Why a transaction is rolled back.
#[derive(Debug)]
pub(super) enum Failed {
    /// It does not apply; only this transaction is affected.
    Conflict(Option<State>),
    /// It is not fit to be written; only this transaction is affected.
    Unfit(String),
    /// The database failed; everything that was not yet committed is affected.
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error().map(|e| e.extended_code) {
            Some(
                ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_FOREIGNKEY,
            ) => Self::Conflict(None),
            Some(_) | None => Self::Database(error),
        }
    }
}

/// Applies `change`.
pub(super) fn apply(connection: &Connection, change: &Change) -> Result<(), Failed> {
    match change {
        Change::PutWorkspace(row) => put_workspace(connection, row),
        Change::RemoveWorkspace(id) => {
            let gone = connection.prepare_cached("DELETE FROM workspaces WHERE id = ?1")?.execute([id.to_string()])?;
            if gone == 1 { Ok(()) } else { Err(Failed::Conflict(None)) }
        }
        Change::PutSession(row) => put_session(connection, row),
        Change::InsertOperation(row) => insert_operation(connection, row),
        Change::StepOperation { id, from, to, decided_by, comment, result } => {
            let detail =
                Detail { decided_by: decided_by.as_ref(), comment: comment.as_deref(), result: result.as_ref() };
            step_operation(connection, *id, *from, *to, &detail)
        }
        Change::Reconcile { id, word } => {
            let reconciled = connection
                .prepare_cached(
                    "UPDATE operations SET reconciled = ?2 WHERE id = ?1 AND state = ?3 AND reconciled IS NULL",
                )?
                .execute(params![id.to_string(), word.to_string(), State::Unknown.as_str()])?;
            if reconciled == 1 { Ok(()) } else { Err(Failed::Conflict(state_of(connection, *id)?)) }
        }
        Change::ExpectEpoch { session, epoch } => {
            let current = connection
                .prepare_cached(
                    "SELECT 1 FROM sessions WHERE id = ?1 AND json_extract(document, '$.worker_epoch') = ?2
                     AND state <> 'ended'",
                )?
                .exists(params![session.to_string(), epoch.cast_signed()])?;
            if current { Ok(()) } else { Err(Failed::Conflict(None)) }
        }
        Change::PutBrief(row) => transcript::put_brief(connection, row),
        Change::RemoveScript(session) => transcript::remove_script(connection, *session),
        Change::InsertTurn(row) => transcript::insert_turn(connection, row),
        Change::AnswerCall { session, call, answer } => transcript::answer_call(connection, *session, *call, answer),
        Change::InsertMessage(row) => transcript::insert_message(connection, row),
        Change::TellMessage { session, number, turn } => transcript::tell_message(connection, *session, *number, *turn),
        Change::RememberRequest { request_id, fingerprint, subject } => {
            connection
                .prepare_cached("INSERT INTO requests (request_id, fingerprint, subject) VALUES (?1, ?2, ?3)")?
                .execute(params![request_id, fingerprint.to_string(), subject])?;
            Ok(())
        }
    }
}

fn put_workspace(connection: &Connection, row: &WorkspaceRow) -> Result<(), Failed> {
    connection
        .prepare_cached(
            "INSERT INTO workspaces (id, name, path, device, inode, handle, added) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, path = excluded.path, device = excluded.device,
             inode = excluded.inode, handle = excluded.handle, added = excluded.added",
        )?
        .execute(params![
            row.id.to_string(),
            row.name,
            row.path,
            row.device.cast_signed(),
            row.inode.cast_signed(),
            row.handle,
            row.added.as_micros(),
        ])?;
    Ok(())
}

fn put_session(connection: &Connection, row: &SessionRow) -> Result<(), Failed> {
    connection
        .prepare_cached(
            "INSERT INTO sessions (id, kind, workspace, document, created, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, workspace = excluded.workspace,
             document = excluded.document, created = excluded.created, state = excluded.state",
        )?
        .execute(params![
            row.id.to_string(),
            row.kind.as_str(),
            row.workspace.to_string(),
            row.document.to_string(),
            row.created.as_micros(),
            row.document.get("state").and_then(Value::as_str).unwrap_or("running"),
        ])?;
    Ok(())
}

fn insert_operation(connection: &Connection, row: &OperationRow) -> Result<(), Failed> {
    if canon::digest(&row.bound) != Ok(row.binding) {
        return Err(Failed::Unfit(format!("what {} binds does not hash to its binding {}", row.id, row.binding)));
    }
    if let Some(state) = state_of(connection, row.id)? {
        return Err(Failed::Conflict(Some(state)));
    }
    connection
        .prepare_cached(
            "INSERT INTO operations (id, approval, session, workspace, kind, state, binding, flags, requested, expires,
             decided_by, comment, result, turn, call, reconciled)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )?
        .execute(params![
            row.id.to_string(),
            row.approval.to_string(),
            row.session.to_string(),
            row.workspace.to_string(),
            row.kind.as_str(),
            row.state.as_str(),
            row.binding.to_string(),
            Value::from(row.flags.clone()).to_string(),
            row.requested.as_micros(),
            row.expires.as_micros(),
            row.decided_by.as_ref().map(Value::to_string),
            row.comment,
            row.result.as_ref().map(Value::to_string),
            row.call.map(|call| call.turn.cast_signed()),
            row.call.map(|call| call.call.cast_signed()),
            row.reconciled.as_ref().map(Value::to_string),
        ])?;
    connection.prepare_cached("INSERT INTO asked (number, bound, display, again) VALUES (?1, ?2, ?3, ?4)")?.execute(
        params![
            connection.last_insert_rowid(),
            row.bound.to_string(),
            row.display,
            row.again.as_ref().map(Value::to_string),
        ],
    )?;
    Ok(())
}

/// What a step adds to a row; what is absent stays as it is.
struct Detail<'a> {
    decided_by: Option<&'a Value>,
    comment: Option<&'a str>,
    result: Option<&'a Value>,
}

fn step_operation(
    connection: &Connection,
    id: OperationId,
    from: State,
    to: State,
    detail: &Detail<'_>,
) -> Result<(), Failed> {
    if let Err(illegal) = from.step(to) {
        return Err(Failed::Unfit(format!("{id}: {illegal}")));
    }
    let stepped = connection
        .prepare_cached(
            "UPDATE operations SET state = ?3, decided_by = coalesce(?4, decided_by), comment = coalesce(?5, comment),
             result = coalesce(?6, result) WHERE id = ?1 AND state = ?2",
        )?
        .execute(params![
            id.to_string(),
            from.as_str(),
            to.as_str(),
            detail.decided_by.map(Value::to_string),
            detail.comment,
            detail.result.map(Value::to_string),
        ])?;
    if stepped == 1 { Ok(()) } else { Err(Failed::Conflict(state_of(connection, id)?)) }
}

fn state_of(connection: &Connection, id: OperationId) -> rusqlite::Result<Option<State>> {
    connection
        .prepare_cached("SELECT state FROM operations WHERE id = ?1")?
        .query_row([id.to_string()], |row| super::reader::parsed(row, 0))
        .optional()
}
