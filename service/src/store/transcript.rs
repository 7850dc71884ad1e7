//! What was said in an agent's session, as SQL: turns, calls, answers, messages.
//!
//! Invariant: a turn, an answer and a message are written once. Which operation a call has is read from the
//! operations, where it was recorded in the transaction that proposed it.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use salaam_core::id::SessionId;

use super::{
    apply::Failed,
    reader::{parsed, unsigned},
    rows::{BriefRow, CallRow, Mail, MessageRow, ModelCall, TurnQuery, TurnRow},
};

pub(super) fn put_brief(connection: &Connection, row: &BriefRow) -> Result<(), Failed> {
    connection.prepare_cached("INSERT INTO briefs (session, task, script) VALUES (?1, ?2, ?3)")?.execute(params![
        row.session.to_string(),
        row.task,
        row.script
    ])?;
    Ok(())
}

pub(super) fn remove_script(connection: &Connection, session: SessionId) -> Result<(), Failed> {
    let removed = connection
        .prepare_cached("UPDATE briefs SET script = NULL WHERE session = ?1")?
        .execute([session.to_string()])?;
    one(removed)
}

pub(super) fn insert_turn(connection: &Connection, row: &TurnRow) -> Result<(), Failed> {
    let (session, number) = (row.session.to_string(), row.number.cast_signed());
    let next: i64 = connection
        .prepare_cached("SELECT coalesce(max(number) + 1, 0) FROM turns WHERE session = ?1")?
        .query_row([&session], |row| row.get(0))?;
    if next != number {
        return Err(Failed::Conflict(None));
    }
    connection
        .prepare_cached("INSERT INTO turns (session, number, epoch, text, awaits) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![session, number, row.epoch.cast_signed(), row.text, row.awaits])?;
    let mut insert = connection
        .prepare_cached("INSERT INTO calls (session, turn, number, tool, arguments) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (index, call) in (0_i64..).zip(&row.calls) {
        insert.execute(params![session, number, index, call.tool, call.arguments])?;
    }
    Ok(())
}

pub(super) fn answer_call(
    connection: &Connection,
    session: SessionId,
    call: ModelCall,
    answer: &str,
) -> Result<(), Failed> {
    let answered = connection
        .prepare_cached(
            "UPDATE calls SET answer = ?4 WHERE session = ?1 AND turn = ?2 AND number = ?3 AND answer IS NULL",
        )?
        .execute(params![session.to_string(), call.turn.cast_signed(), call.call.cast_signed(), answer])?;
    one(answered)
}

pub(super) fn insert_message(connection: &Connection, row: &MessageRow) -> Result<(), Failed> {
    connection.prepare_cached("INSERT INTO messages (session, number, turn, text) VALUES (?1, ?2, ?3, ?4)")?.execute(
        params![row.session.to_string(), row.number.cast_signed(), row.turn.map(u64::cast_signed), row.text],
    )?;
    Ok(())
}

pub(super) fn tell_message(connection: &Connection, session: SessionId, number: u64, turn: u64) -> Result<(), Failed> {
    let told = connection
        .prepare_cached("UPDATE messages SET turn = ?3 WHERE session = ?1 AND number = ?2 AND turn IS NULL")?
        .execute(params![session.to_string(), number.cast_signed(), turn.cast_signed()])?;
    one(told)
}

const fn one(changed: usize) -> Result<(), Failed> {
    if changed == 1 { Ok(()) } else { Err(Failed::Conflict(None)) }
}

/// What a session was given.
pub(super) fn brief(connection: &Connection, session: SessionId) -> rusqlite::Result<Option<BriefRow>> {
    connection
        .prepare_cached("SELECT session, task, script FROM briefs WHERE session = ?1")?
        .query_row([session.to_string()], |row| {
            Ok(BriefRow { session: parsed(row, 0)?, task: row.get(1)?, script: row.get(2)? })
        })
        .optional()
}

/// What a session was given to do.
pub(super) fn task(connection: &Connection, session: SessionId) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT task FROM briefs WHERE session = ?1")?
        .query_row([session.to_string()], |row| row.get(0))
        .optional()
}

/// Turns in order, with their calls.
pub(super) fn turns(connection: &Connection, query: &TurnQuery) -> rusqlite::Result<Vec<TurnRow>> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT {TURN} FROM turns WHERE session = ?1 AND number >= ?2 ORDER BY number"))?;
    let from = query.from.min(i64::MAX.unsigned_abs()).cast_signed();
    let mut rows = statement.query(params![query.session.to_string(), from])?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let turn = turn_row(connection, row)?;
        bytes += weight(&turn);
        if bytes > query.bytes && !turns.is_empty() {
            break;
        }
        turns.push(turn);
    }
    Ok(turns)
}

/// The last turn.
pub(super) fn last_turn(connection: &Connection, session: SessionId) -> rusqlite::Result<Option<TurnRow>> {
    connection
        .prepare_cached(&format!("SELECT {TURN} FROM turns WHERE session = ?1 ORDER BY number DESC LIMIT 1"))?
        .query_row([session.to_string()], |row| turn_row(connection, row))
        .optional()
}

/// One call.
pub(super) fn call(connection: &Connection, session: SessionId, call: ModelCall) -> rusqlite::Result<Option<CallRow>> {
    connection
        .prepare_cached(&format!("{CALL} AND c.number = ?3"))?
        .query_row(params![session.to_string(), call.turn.cast_signed(), call.call.cast_signed()], call_row)
        .optional()
}

/// Messages from this number on, in order, at most so many.
pub(super) fn messages(
    connection: &Connection,
    session: SessionId,
    from: u64,
    most: u32,
) -> rusqlite::Result<Vec<MessageRow>> {
    connection
        .prepare_cached(
            "SELECT session, number, turn, text FROM messages WHERE session = ?1 AND number >= ?2
             ORDER BY number LIMIT ?3",
        )?
        .query_map(params![session.to_string(), from.cast_signed(), most], |row| {
            let turn = row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned);
            Ok(MessageRow { session: parsed(row, 0)?, number: unsigned(row, 1)?, turn, text: row.get(3)? })
        })?
        .collect()
}

/// What was told after a turn.
pub(super) fn message_after(
    connection: &Connection,
    session: SessionId,
    turn: u64,
) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT text FROM messages WHERE session = ?1 AND turn = ?2")?
        .query_row(params![session.to_string(), turn.cast_signed()], |row| row.get(0))
        .optional()
}

/// How many messages there are and were told, and after which turn the last one was.
pub(super) fn mail(connection: &Connection, session: SessionId) -> rusqlite::Result<Mail> {
    connection.prepare_cached("SELECT count(*), count(turn), max(turn) FROM messages WHERE session = ?1")?.query_row(
        [session.to_string()],
        |row| {
            let last = row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned);
            Ok(Mail { all: unsigned(row, 0)?, told: unsigned(row, 1)?, last })
        },
    )
}

/// Bytes of everything that was said.
pub(super) fn bytes(connection: &Connection, session: SessionId) -> rusqlite::Result<u64> {
    connection
        .prepare_cached(
            "SELECT (SELECT coalesce(sum(octet_length(text)), 0) FROM turns WHERE session = ?1)
             + (SELECT coalesce(sum(octet_length(tool) + octet_length(arguments)
                + coalesce(octet_length(answer), 0)), 0) FROM calls WHERE session = ?1)
             + (SELECT coalesce(sum(octet_length(text)), 0) FROM messages WHERE session = ?1)",
        )?
        .query_row([session.to_string()], |row| unsigned(row, 0))
}

/// The columns of [`turn_row`], in its order.
const TURN: &str = "session, number, epoch, text, awaits";

fn turn_row(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    let session: SessionId = parsed(row, 0)?;
    let number: i64 = row.get(1)?;
    let calls = connection
        .prepare_cached(&format!("{CALL} ORDER BY c.number"))?
        .query_map(params![session.to_string(), number], call_row)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(TurnRow {
        session,
        number: unsigned(row, 1)?,
        epoch: unsigned(row, 2)?,
        text: row.get(3)?,
        awaits: row.get(4)?,
        calls,
    })
}

/// The calls of a turn, with the columns of [`call_row`] in its order.
const CALL: &str = "SELECT c.tool, c.arguments, o.id, c.answer FROM calls c LEFT JOIN operations o
     ON o.session = c.session AND o.turn = c.turn AND o.call = c.number WHERE c.session = ?1 AND c.turn = ?2";

fn call_row(row: &Row<'_>) -> rusqlite::Result<CallRow> {
    let operation = match row.get_ref(2)?.as_str_or_null()? {
        Some(_) => Some(parsed(row, 2)?),
        None => None,
    };
    Ok(CallRow { tool: row.get(0)?, arguments: row.get(1)?, operation, answer: row.get(3)? })
}

fn weight(turn: &TurnRow) -> usize {
    let call = |call: &CallRow| call.tool.len() + call.arguments.len() + call.answer.as_ref().map_or(0, String::len);
    turn.text.len() + turn.calls.iter().map(call).sum::<usize>()
}
