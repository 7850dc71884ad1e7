//! The one thread that writes: drains its queue into one database transaction, commits, then answers.
//!
//! Invariant: no answer `Ok` is given before the COMMIT that covers it has returned, and none of a batch whose
//! COMMIT failed. Each caller's transaction has a savepoint of its own, so that a conflict takes back only its own.
//!
//! A COMMIT that failed answers everybody `NotDurable`. Should the machine then fail too before the next COMMIT
//! has overwritten the log, what was refused can still turn up after the restart. It is a whole transaction with
//! a chain that holds, and every step of an operation is safe to find: an intent without receipt is `unknown`.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::{Connection, params};
use salaam_core::{
    event::{Draft, Event, Head},
    time::Timestamp,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    apply::{Failed, apply},
    chain::{self, End},
    error::{CommitError, StoreError, disk_is_in_doubt, not_durable},
    rows::Transaction,
};
use crate::clock::Clock;

/// The largest line of the journal: the longest argument list with every byte written as six fits.
pub const MAX_EVENT_BYTES: usize = 16 << 20;
/// Transactions that wait; then callers wait. More than the operations that one host runs at once.
pub(super) const QUEUE: usize = 256;
/// Transactions in one COMMIT: bounds how long the first of them waits for the last.
const MAX_BATCH: usize = 128;
/// After so many COMMITs the log is moved into the database, between answers and the next batch. A commit of one
/// small transaction logs about ten pages of 4 KiB, so the log stays near 10 MiB.
const COMMITS_PER_CHECKPOINT: u32 = 256;

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Commit, and answer when it is durable.
    Commit {
        /// What.
        transaction: Transaction,
        /// To whom; may have gone.
        reply: Reply,
    },
    /// Answer, once what was queued before is carried out.
    Answer {
        /// To whom.
        reply: oneshot::Sender<()>,
    },
    /// Carry out what was queued before, close the database, answer, end.
    Close {
        /// To whom.
        reply: oneshot::Sender<()>,
    },
}

/// A batch that is durable.
struct Committed {
    end: End,
    /// In the order of the batch.
    answers: Vec<Result<Head, CommitError>>,
}

/// The step at which a batch failed.
struct Failure {
    attempted: &'static str,
    source: rusqlite::Error,
}

type Reply = oneshot::Sender<Result<Head, CommitError>>;

/// What others see of the journal's end.
#[derive(Debug)]
pub(super) struct Seen {
    head: Mutex<Head>,
    number: watch::Sender<u64>,
    /// Why the last batch was not written.
    trouble: Mutex<Option<String>>,
}

impl Seen {
    pub(super) fn new(head: Head) -> Self {
        Self { head: Mutex::new(head), number: watch::Sender::new(head.seq), trouble: Mutex::default() }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(super) fn head(&self) -> Head {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }

    fn set(&self, head: Head) {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = head;
        self.number.send_if_modified(|number| std::mem::replace(number, head.seq) != head.seq);
    }
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Writer {
    connection: Connection,
    database: PathBuf,
    clock: Clock,
    /// The last committed event.
    end: End,
    seen: Arc<Seen>,
    /// Set once what the disk holds is in doubt; then every commit is refused with this.
    doubt: Option<String>,
    commits: u32,
}

impl Writer {
    pub(super) fn new(connection: Connection, database: PathBuf, clock: Clock, end: End, seen: Arc<Seen>) -> Self {
        Self { connection, database, clock, end, seen, doubt: None, commits: 0 }
    }

    /// Works until it is closed or no handle is left.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut closers = Vec::new();
        while let Some(job) = queue.blocking_recv() {
            let mut batch = Vec::new();
            let mut asked = Vec::new();
            let mut next = Some(job);
            while let Some(job) = next {
                match job {
                    Job::Commit { transaction, reply } => batch.push((transaction, reply)),
                    Job::Answer { reply } => asked.push(reply),
                    Job::Close { reply } => {
                        queue.close();
                        closers.push(reply);
                    }
                }
                next = if batch.len() < MAX_BATCH { queue.try_recv().ok() } else { None };
            }
            if !batch.is_empty() {
                self.serve(batch);
            }
            for reply in asked {
                let _gone = reply.send(());
            }
        }
        self.finish();
        for closer in closers {
            // Whoever asked may have gone.
            let _gone = closer.send(());
        }
    }

    fn serve(&mut self, batch: Vec<(Transaction, Reply)>) {
        let (transactions, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let answers = match &self.doubt {
            Some(doubt) => refuse_all(replies.len(), doubt),
            None => match self.commit(transactions) {
                Ok(committed) => {
                    self.end = committed.end;
                    self.seen.set_trouble(None);
                    self.seen.set(committed.end.head);
                    committed.answers
                }
                Err(failure) => {
                    let text = not_durable(&self.database, failure.attempted, &failure.source);
                    tracing::error!(error = %text, transactions = replies.len(), "the journal could not be written");
                    self.recover(&failure.source);
                    let text = self.doubt.as_deref().unwrap_or(&text);
                    self.seen.set_trouble(Some(text.to_owned()));
                    refuse_all(replies.len(), text)
                }
            },
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // A caller that has gone finds the outcome in the database.
            let _gone = reply.send(answer);
        }
        self.commits += 1;
        if self.commits >= COMMITS_PER_CHECKPOINT {
            self.commits = 0;
            self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)");
        }
    }

    /// One database transaction for all. An error means that none of it counts.
    fn commit(&self, transactions: Vec<Transaction>) -> Result<Committed, Failure> {
        let run = |sql: &str, attempted: &'static str| {
            let outcome = self.connection.prepare_cached(sql).and_then(|mut s| s.execute([]));
            outcome.map_err(|source| Failure { attempted, source })
        };
        run("BEGIN IMMEDIATE", "begin a transaction")?;
        let mut end = self.end;
        let mut answers = Vec::with_capacity(transactions.len());
        for transaction in transactions {
            run("SAVEPOINT one", "set a savepoint")?;
            let answer = match self.write(transaction, end) {
                Ok(after) => {
                    end = after;
                    Ok(end.head)
                }
                Err(Failed::Database(source)) => {
                    return Err(Failure { attempted: "record an event or a change of state", source });
                }
                Err(Failed::Conflict(actual)) => Err(CommitError::Conflict { actual }),
                Err(Failed::Unfit(why)) => {
                    Err(CommitError::NotDurable(format!("refused to record it in {}: {why}", self.database.display())))
                }
            };
            if answer.is_err() {
                run("ROLLBACK TO one", "take back a transaction that does not apply")?;
            }
            run("RELEASE one", "release a savepoint")?;
            answers.push(answer);
        }
        if end.head != self.end.head {
            self.connection
                .prepare_cached("UPDATE head SET seq = ?1, hash = ?2 WHERE id = 1")
                .and_then(|mut s| s.execute(params![end.head.seq.cast_signed(), end.head.hash.to_string()]))
                .map_err(|source| Failure { attempted: "record the journal's head", source })?;
        }
        run("COMMIT", "commit")?;
        Ok(Committed { end, answers })
    }

    fn write(&self, transaction: Transaction, mut end: End) -> Result<End, Failed> {
        for change in &transaction.changes {
            apply(&self.connection, change)?;
        }
        for draft in transaction.events {
            end = self.append(draft, end)?;
        }
        Ok(end)
    }

    fn append(&self, draft: Draft, end: End) -> Result<End, Failed> {
        let time = not_before(end.time, self.clock.now());
        let unfit = |why: String| Failed::Unfit(format!("an event has no place in the journal: {why}"));
        let event = Event::seal(draft, end.head, time).map_err(|e| unfit(e.to_string()))?;
        let line = event.to_line().map_err(|e| unfit(e.to_string()))?;
        if line.len() > MAX_EVENT_BYTES {
            return Err(unfit(format!("{} has {} bytes; {MAX_EVENT_BYTES} is the most", event.kind, line.len())));
        }
        let line = std::str::from_utf8(&line).map_err(|e| unfit(e.to_string()))?;
        self.connection
            .prepare_cached("INSERT INTO events (seq, kind, session, operation, line) VALUES (?1, ?2, ?3, ?4, ?5)")
            .and_then(|mut s| {
                s.execute(params![
                    event.seq.cast_signed(),
                    event.kind.as_str(),
                    event.session.map(|id| id.to_string()),
                    chain::operation_of(&event),
                    line
                ])
            })
            // Not a conflict of this transaction: if the number is taken, someone else writes to the journal.
            .map_err(Failed::Database)?;
        Ok(End { head: Head { seq: event.seq, hash: event.hash }, time: Some(time) })
    }

    /// After a failed batch: back to what is committed, as the database has it.
    fn recover(&mut self, source: &rusqlite::Error) {
        // Most failures have rolled back already; then there is nothing to do.
        if !self.connection.is_autocommit()
            && let Err(e) = self.connection.execute_batch("ROLLBACK")
        {
            self.doubt_the_disk(&format!("could not roll back: {e}"));
        }
        if disk_is_in_doubt(source) {
            self.doubt_the_disk(&source.to_string());
        }
        match chain::verify_tail(&self.connection, &self.database) {
            Ok(end) if end.head == self.end.head => {}
            Ok(end) => {
                tracing::warn!(seq = end.head.seq, "the journal's end is not where it was left");
                self.end = end;
                self.seen.set(end.head);
            }
            Err(e) => self.doubt_the_disk(&e.to_string()),
        }
    }

    fn doubt_the_disk(&mut self, why: &str) {
        let text = format!(
            "what the disk holds of {} is in doubt ({why}); nothing more is recorded until the service is restarted, which verifies it",
            self.database.display()
        );
        tracing::error!(error = %text, "the journal is closed to writing");
        let doubt = self.doubt.get_or_insert(text);
        self.seen.set_trouble(Some(doubt.clone()));
    }

    /// Moves the log into the database. On a full disk that waits; the log still holds everything.
    fn checkpoint(&mut self, pragma: &'static str) {
        if let Err(source) = self.connection.query_row(pragma, [], |_| Ok(())) {
            tracing::warn!(error = %source, "could not move the log into the database");
            if disk_is_in_doubt(&source) {
                self.doubt_the_disk(&source.to_string());
            }
        }
    }

    fn finish(mut self) {
        if self.doubt.is_none() {
            self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
        }
        if let Err((_, source)) = self.connection.close() {
            tracing::warn!(error = %StoreError::database("close", &self.database, source), "the database did not close");
        }
    }
}

/// The time of an event: now, but never earlier than the event before it, whatever the host's clock does.
fn not_before(last: Option<Timestamp>, now: Timestamp) -> Timestamp {
    last.map_or(now, |last| last.max(now))
}

fn refuse_all(count: usize, text: &str) -> Vec<Result<Head, CommitError>> {
    (0..count).map(|_| Err(CommitError::NotDurable(text.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;
    use crate::store::schema::{self, Places};

    /// A writer on a journal of its own, without its thread.
    fn writer(name: &str) -> (PathBuf, Writer) {
        let state = std::env::temp_dir().join(format!("salaam-store-{name}-{}", std::process::id()));
        std::fs::create_dir(&state).unwrap();
        let places = Places::of(&state).unwrap();
        let connection = schema::open_writer(&places).unwrap();
        let end = chain::verify_tail(&connection, &places.database).unwrap();
        let seen = Arc::new(Seen::new(end.head));
        (state, Writer::new(connection, places.database, Clock, end, seen))
    }

    fn failure(extended: std::ffi::c_int) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended), None)
    }

    fn serve_one(writer: &mut Writer) -> Result<Head, CommitError> {
        let (reply, mut answer) = oneshot::channel();
        let data = serde_json::json!({"cause": "operator"});
        let draft = Draft::new(salaam_core::event::Kind::CancelRequested, None, data).unwrap();
        writer.serve(vec![(Transaction { changes: Vec::new(), events: vec![draft] }, reply)]);
        answer.try_recv().unwrap()
    }

    #[test]
    fn after_a_failed_fsync_nothing_more_is_acknowledged() {
        let (state, mut writer) = writer("fsync");
        writer.recover(&failure(ffi::SQLITE_FULL));
        assert_eq!(serve_one(&mut writer).unwrap().seq, 1);
        writer.recover(&failure(ffi::SQLITE_IOERR_FSYNC));
        assert!(matches!(serve_one(&mut writer), Err(CommitError::NotDurable(text)) if text.contains("in doubt")));
        drop(writer);
        std::fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn a_transaction_left_open_by_a_failure_is_taken_back() {
        let (state, mut writer) = writer("open");
        writer.connection.execute_batch("BEGIN IMMEDIATE; UPDATE head SET seq = 9").unwrap();
        writer.recover(&failure(ffi::SQLITE_IOERR));
        assert_eq!(serve_one(&mut writer).unwrap().seq, 1);
        drop(writer);
        std::fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn a_second_writer_on_the_same_journal_is_noticed_and_followed() {
        let (state, mut first) = writer("second");
        let places = Places::of(&state).unwrap();
        let connection = schema::open_writer(&places).unwrap();
        let seen = Arc::new(Seen::new(first.end.head));
        let mut second = Writer::new(connection, places.database, Clock, first.end, seen);
        assert_eq!(serve_one(&mut first).unwrap().seq, 1);
        assert!(matches!(serve_one(&mut second), Err(CommitError::NotDurable(_))));
        assert_eq!(serve_one(&mut second).unwrap().seq, 2);
        drop((first, second));
        std::fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn no_event_is_earlier_than_the_one_before() {
        let (early, late) = (Timestamp::from_micros(1), Timestamp::from_micros(2));
        assert_eq!(not_before(Some(late), early), late);
        assert_eq!(not_before(Some(early), late), late);
        assert_eq!(not_before(None, early), early);
    }
}
