//! The handle that the rest of the service holds: queues writes, runs reads, hands out spools.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use salaam_core::{
    bridge::Stream,
    event::Head,
    id::{ApprovalId, OperationId, SessionId},
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    chain,
    error::{CommitError, StoreError},
    images::{self, KeptImage},
    reader::{self, Readers},
    rows::{
        BriefRow, CallRow, EventQuery, Mail, MessageRow, ModelCall, OpenOperations, OperationQuery, OperationRow,
        RequestRow, SessionQuery, SessionRow, Transaction, TurnQuery, TurnRow, WorkspaceRow,
    },
    schema::{self, Places},
    spool::{self, Spool},
    transcript,
    writer::{Job, QUEUE, Seen, Writer},
};
use crate::clock::Clock;

/// A handle to the store; clones share one writer thread.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    places: Places,
    queue: mpsc::Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    seen: Arc<Seen>,
    readers: Arc<Readers>,
}

/// What is cheap to know of the store's disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The database and its log.
    pub database: u64,
    /// What is left for the service user on that file system.
    pub free: u64,
}

/// What the store takes on its disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// The database and its log.
    pub database: u64,
    /// The kept output of commands.
    pub blobs: u64,
    /// What is left for the service user on that file system.
    pub free: u64,
}

impl Store {
    /// Opens or creates STATE/salaam.db (0600) and STATE/blobs (0700); STATE must exist and its lock be held.
    /// Checks the end of the chain and removes output that no receipt names. Blocking: milliseconds.
    pub fn open(state: &Path, clock: Clock) -> Result<Self, StoreError> {
        let places = Places::of(state)?;
        let connection = schema::open_writer(&places)?;
        let end = chain::verify_tail(&connection, &places.database)?;
        schema::migrate(&connection, &places.database)?;
        remove_orphans(&connection, &places)?;
        let readers = Arc::new(Readers::open(places.database.clone())?);
        let seen = Arc::new(Seen::new(end.head));
        let writer = Writer::new(connection, places.database.clone(), clock, end, Arc::clone(&seen));
        let (queue, jobs) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(jobs))
            .map_err(|source| schema::file("start the thread that writes to", &places.database, source))?;
        Ok(Self { shared: Arc::new(Shared { places, queue, thread: Mutex::new(Some(thread)), seen, readers }) })
    }

    /// Durable when it returns `Ok`, with the journal's head after this transaction. Callers may vanish: a commit
    /// that was queued is carried out.
    pub async fn commit(&self, transaction: Transaction) -> Result<Head, CommitError> {
        let path = self.shared.places.database.display();
        let (reply, answer) = oneshot::channel();
        self.shared.queue.send(Job::Commit { transaction, reply }).await.map_err(|_| {
            self.gone(format!(
                "{path} is closed: the service is stopping, or the thread that writes is gone; nothing was recorded"
            ))
        })?;
        answer.await.map_err(|_| {
            self.gone(format!(
                "the thread that writes to {path} is gone; whether this was recorded shows after a restart of the service"
            ))
        })?
    }

    /// Whether the thread that writes takes work: answers when what was queued before is carried out.
    pub async fn answers(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.shared.queue.send(Job::Answer { reply }).await.is_ok() && answer.await.is_ok()
    }

    fn gone(&self, text: String) -> CommitError {
        self.shared.seen.set_trouble(Some(text.clone()));
        CommitError::NotDurable(text)
    }

    /// The last committed event.
    pub fn head(&self) -> Head {
        self.shared.seen.head()
    }

    /// The number of the last committed event, for followers.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.seen.watch()
    }

    /// Canonical lines (no line feed) with their numbers, in order. None = there are no more.
    pub async fn events(&self, query: EventQuery) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        self.shared.readers.read("read events", move |c| reader::events(c, &query)).await
    }

    /// One operation by its id.
    pub async fn operation(&self, id: OperationId) -> Result<Option<OperationRow>, StoreError> {
        self.shared.readers.read("read an operation", move |c| reader::operation(c, "id", &id.to_string())).await
    }

    /// One operation by the id of its approval.
    pub async fn operation_of_approval(&self, id: ApprovalId) -> Result<Option<OperationRow>, StoreError> {
        self.shared.readers.read("read an approval", move |c| reader::operation(c, "approval", &id.to_string())).await
    }

    /// Operations, newest first.
    pub async fn operations(&self, query: OperationQuery) -> Result<Vec<OperationRow>, StoreError> {
        self.shared.readers.read("read operations", move |c| reader::operations(c, &query)).await
    }

    /// All workspaces, oldest first.
    pub async fn workspaces(&self) -> Result<Vec<WorkspaceRow>, StoreError> {
        self.shared.readers.read("read workspaces", reader::workspaces).await
    }

    /// Sessions, newest first.
    pub async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionRow>, StoreError> {
        self.shared.readers.read("read sessions", move |c| reader::sessions(c, &query)).await
    }

    /// One session by its id.
    pub async fn session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.shared.readers.read("read a session", move |c| reader::session(c, id)).await
    }

    /// How many sessions are not over.
    pub async fn live_sessions(&self) -> Result<u64, StoreError> {
        self.shared.readers.read("count sessions", reader::live_sessions).await
    }

    /// The sessions in which a question waits for an operator.
    pub async fn asking_sessions(&self) -> Result<BTreeSet<SessionId>, StoreError> {
        self.shared.readers.read("read which sessions wait", reader::asking_sessions).await
    }

    /// What an agent's session was given.
    pub async fn brief(&self, id: SessionId) -> Result<Option<BriefRow>, StoreError> {
        self.shared.readers.read("read what a session was given", move |c| transcript::brief(c, id)).await
    }

    /// What a session was given to do, without what its provider replays.
    pub async fn task(&self, id: SessionId) -> Result<Option<String>, StoreError> {
        self.shared.readers.read("read a session's task", move |c| transcript::task(c, id)).await
    }

    /// Turns of an agent's session with their calls and answers, in order.
    pub async fn turns(&self, query: TurnQuery) -> Result<Vec<TurnRow>, StoreError> {
        self.shared.readers.read("read turns", move |c| transcript::turns(c, &query)).await
    }

    /// The last turn of an agent's session.
    pub async fn last_turn(&self, id: SessionId) -> Result<Option<TurnRow>, StoreError> {
        self.shared.readers.read("read the last turn", move |c| transcript::last_turn(c, id)).await
    }

    /// Messages to an agent from this number on, in order, at most so many.
    pub async fn messages(&self, id: SessionId, from: u64, most: u32) -> Result<Vec<MessageRow>, StoreError> {
        self.shared.readers.read("read messages", move |c| transcript::messages(c, id, from, most)).await
    }

    /// The message that an agent was told after a turn.
    pub async fn message_after(&self, id: SessionId, turn: u64) -> Result<Option<String>, StoreError> {
        self.shared.readers.read("read a message", move |c| transcript::message_after(c, id, turn)).await
    }

    /// What messages there are to an agent.
    pub async fn mail(&self, id: SessionId) -> Result<Mail, StoreError> {
        self.shared.readers.read("count messages", move |c| transcript::mail(c, id)).await
    }

    /// Bytes of everything that was said in a session.
    pub async fn transcript_bytes(&self, id: SessionId) -> Result<u64, StoreError> {
        self.shared.readers.read("measure a session", move |c| transcript::bytes(c, id)).await
    }

    /// One call of an agent, with the operation that was proposed for it, if ever one was.
    pub async fn call(&self, session: SessionId, call: ModelCall) -> Result<Option<CallRow>, StoreError> {
        self.shared.readers.read("read a call", move |c| transcript::call(c, session, call)).await
    }

    /// What was remembered of a request.
    pub async fn request(&self, request_id: &str) -> Result<Option<RequestRow>, StoreError> {
        let request_id = request_id.to_owned();
        self.shared.readers.read("read a request", move |c| reader::request(c, &request_id)).await
    }

    /// The highest executor epoch that an event names, 0 for none.
    pub async fn last_executor_epoch(&self) -> Result<u64, StoreError> {
        self.shared.readers.read("read the executor epoch", reader::last_executor_epoch).await
    }

    /// How many operations are open.
    pub async fn open_operations(&self) -> Result<OpenOperations, StoreError> {
        self.shared.readers.read("count operations", reader::open_operations).await
    }

    /// Why the last attempt to write failed; `None` = it did not. Reading may still work.
    pub fn trouble(&self) -> Option<String> {
        self.shared.seen.trouble()
    }

    /// The size of the database and the space left. Costs the same however many operations there were.
    pub async fn space(&self) -> Result<Space, StoreError> {
        let places = self.shared.places.clone();
        let closed = StoreError::Closed { path: places.database.clone() };
        tokio::task::spawn_blocking(move || space(&places)).await.unwrap_or(Err(closed))
    }

    /// What the store takes on its disk; looks at every blob.
    pub async fn disk_use(&self) -> Result<DiskUse, StoreError> {
        let places = self.shared.places.clone();
        let closed = StoreError::Closed { path: places.database.clone() };
        tokio::task::spawn_blocking(move || disk_use(&places)).await.unwrap_or(Err(closed))
    }

    /// A spool for one output stream of one operation: `cap` bytes are kept as head and tail.
    pub fn spool(&self, operation: OperationId, stream: Stream, cap: u64) -> Spool {
        Spool::new(&self.shared.places.blobs, operation, stream, cap)
    }

    /// The kept bytes of a finished stream; `None` = nothing was kept.
    pub fn blob(&self, operation: OperationId, stream: Stream) -> Result<Option<File>, StoreError> {
        let blobs = &self.shared.places.blobs;
        spool::open(blobs, operation, stream).map_err(|source| schema::file("open output in", blobs, source))
    }

    /// Keeps files as they are before an edit; durable when it returns `Ok`. Before the edit's intent is recorded.
    pub async fn keep_images(&self, operation: OperationId, images: Vec<KeptImage>) -> Result<(), StoreError> {
        self.on_blobs("keep files in", move |blobs| images::keep(blobs, operation, &images)).await
    }

    /// The files as they were before an edit; `None` = none were kept.
    pub async fn images(&self, operation: OperationId) -> Result<Option<Vec<KeptImage>>, StoreError> {
        self.on_blobs("read kept files in", move |blobs| images::read(blobs, operation)).await
    }

    /// Lets go of the files of an edit that took no effect.
    pub async fn drop_images(&self, operation: OperationId) -> Result<(), StoreError> {
        self.on_blobs("remove kept files in", move |blobs| images::remove(blobs, operation)).await
    }

    async fn on_blobs<T: Send + 'static>(
        &self,
        attempted: &'static str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let places = self.shared.places.clone();
        let closed = StoreError::Closed { path: places.database.clone() };
        let run = move || work(&places.blobs).map_err(|source| schema::file(attempted, &places.blobs, source));
        tokio::task::spawn_blocking(run).await.unwrap_or(Err(closed))
    }

    /// Carries out what is queued, moves the log into the database, ends the writer thread. Commits and reads
    /// after that fail as closed.
    pub async fn close(&self) {
        self.shared.readers.close().await;
        let (reply, answer) = oneshot::channel();
        if self.shared.queue.send(Job::Close { reply }).await.is_ok() {
            // An error means that the thread is gone; the join below says so.
            let _ended = answer.await;
        }
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
            if !matches!(joined, Ok(true)) {
                tracing::error!("the thread of the journal ended by a panic");
            }
        }
    }
}

/// Output of operations that have no receipt is of no use: nothing says how much of the stream it is. Files of edits
/// are kept while the edit may have taken effect.
fn remove_orphans(connection: &rusqlite::Connection, places: &Places) -> Result<(), StoreError> {
    let blobs = &places.blobs;
    let fail = |source| schema::file("list", blobs, source);
    let mut removed = false;
    for entry in std::fs::read_dir(blobs).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let fail = |source| StoreError::database("look for a receipt", &places.database, source);
        let needed = match name.to_str().and_then(spool::operation_of) {
            Some((operation, spool::Blob::Output)) => reader::has_receipt(connection, operation).map_err(fail)?,
            Some((operation, spool::Blob::Images)) => reader::may_be_undone(connection, operation).map_err(fail)?,
            None => {
                tracing::warn!(?name, "something that is no blob lies among the blobs");
                continue;
            }
        };
        if !needed {
            std::fs::remove_file(entry.path()).map_err(|source| schema::file("remove", &entry.path(), source))?;
            removed = true;
        }
    }
    if removed { schema::flush_directory(blobs) } else { Ok(()) }
}

fn disk_use(places: &Places) -> Result<DiskUse, StoreError> {
    let mut blobs = 0;
    for entry in std::fs::read_dir(&places.blobs).map_err(|source| schema::file("list", &places.blobs, source))? {
        let entry = entry.map_err(|source| schema::file("list", &places.blobs, source))?;
        blobs += size(&entry.path())?;
    }
    let Space { database, free } = space(places)?;
    Ok(DiskUse { database, blobs, free })
}

fn space(places: &Places) -> Result<Space, StoreError> {
    let disk = nix::sys::statvfs::statvfs(&places.state)
        .map_err(|errno| schema::file("ask for the free space of", &places.state, errno.into()))?;
    Ok(Space {
        database: size(&places.database)? + size(&schema::beside(&places.database, "-wal"))?,
        free: disk.blocks_available() * disk.fragment_size(),
    })
}

/// What a file takes on its disk; nothing if it is not there.
fn size(path: &Path) -> Result<u64, StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(found.blocks() * 512),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(schema::file("look at", path, source)),
    }
}
