//! The sessions that live: where they are made, found, told things, and left alone when the service stops.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salaam_core::{
    digest::Digest,
    id::{OperationId, SessionId},
    session::Kind,
};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{
    order::{Order, Reply},
    owner::Owner,
    staff::Staff,
};
use crate::{
    operation::{Refusal, Who, stopping},
    store::{CommitError, SessionQuery, Store, StoreError, Transaction},
    workers::WorkerError,
};

/// Sessions that live at once: each has a process and what a person has to answer.
pub(crate) const MOST_LIVE: usize = 256;
/// Orders that may queue at one session, each from a person.
const MOST_ORDERS: usize = 16;
/// Workers that are started at once: what a restart with many sessions may take of the host.
const MOST_STARTING: usize = 4;
/// How long the journal is given between two tries, at first and at the most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// The sessions that live.
#[derive(Debug)]
pub struct Sessions<S: Staff> {
    shared: Arc<Shared<S>>,
    board: Arc<Board>,
}

/// What the owners of sessions share.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) store: Store,
    /// True when the service stops.
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) staff: S,
    starting: Semaphore,
}

#[derive(Debug, Default)]
struct Board {
    live: Mutex<Live>,
    /// How many live.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Live {
    entries: HashMap<SessionId, mpsc::Sender<Order>>,
    /// Set by the stop; nothing is added after it.
    closed: bool,
}

impl<S: Staff> Sessions<S> {
    /// None yet.
    pub fn new(store: Store, stopping: watch::Receiver<bool>, staff: S) -> Self {
        let shared = Shared { store, stopping, staff, starting: Semaphore::new(MOST_STARTING) };
        Self { shared: Arc::new(shared), board: Arc::default() }
    }

    /// How many live.
    pub fn live(&self) -> usize {
        self.board.lock().entries.len()
    }

    /// Takes up every session that the record says is not over. Returns how many.
    pub async fn resume(&self) -> Result<usize, StoreError> {
        let query = SessionQuery { kind: Some(Kind::Worker), live: true, ..SessionQuery::default() };
        let rows = self.shared.store.sessions(query).await?;
        let count = rows.len();
        for row in rows {
            if let Some(orders) = self.board.enter(row.id) {
                let (shared, board) = (Arc::clone(&self.shared), Arc::clone(&self.board));
                tokio::spawn(attend(shared, board, row.id, "the service was restarted", orders));
            }
        }
        Ok(count)
    }

    /// Records a new session and gives it its owner. Whoever asks may vanish.
    pub async fn make(&self, id: SessionId, made: Transaction) -> Result<(), Refusal> {
        // Its place first, so that two that are made at once do not both take the last one.
        let orders = match self.board.live_sessions() {
            None => return Err(stopping()),
            Some(live) if live >= MOST_LIVE => return Err(too_many()),
            Some(_) => self.board.enter(id).ok_or_else(stopping)?,
        };
        let (shared, board) = (Arc::clone(&self.shared), Arc::clone(&self.board));
        let (reply, recorded) = oneshot::channel();
        tokio::spawn(async move {
            let outcome = shared.store.commit(made).await.map(drop).map_err(|error| conflict(&error));
            let is_made = outcome.is_ok();
            // Whoever asked may be gone.
            let _ = reply.send(outcome);
            if is_made {
                attend(shared, board, id, "the session begins", orders).await;
            } else {
                board.leave(id);
            }
        });
        recorded.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Says something to a session's agent; durable when this returns. Absent = the session does not live.
    pub async fn message(
        &self,
        id: SessionId,
        text: String,
        who: &Who,
        request: Option<(String, Digest)>,
    ) -> Option<Result<(), Refusal>> {
        self.tell(id, |reply| Order::Message { text, who: who.clone(), request, reply }).await
    }

    /// Ends a session; what runs in it is ended first. Returns when it is over, or after `most`, whichever comes first.
    pub async fn cancel(&self, id: SessionId, who: &Who, most: Duration) -> Option<Result<(), Refusal>> {
        let (over, ended) = oneshot::channel();
        let told = self.tell(id, |reply| Order::Cancel { who: who.clone(), reply, over }).await?;
        if told.is_ok() {
            // An error means that the owner is gone, and the session with it.
            drop(tokio::time::timeout(most, ended).await);
        }
        Some(told)
    }

    /// Says what became of an operation.
    pub async fn reconcile(&self, id: SessionId, operation: OperationId, word: Value) -> Option<Result<(), Refusal>> {
        self.tell(id, |reply| Order::Reconcile { operation, word, reply }).await
    }

    async fn tell(&self, id: SessionId, order: impl FnOnce(Reply) -> Order) -> Option<Result<(), Refusal>> {
        let orders = self.board.lock().entries.get(&id).cloned()?;
        let (reply, told) = oneshot::channel();
        orders.send(order(reply)).await.ok()?;
        // An owner that ends without an answer has not done it.
        told.await.ok()
    }

    /// Takes nothing more, and waits until every owner has let go. Sessions stay as they are recorded.
    pub async fn close(&self) {
        self.board.lock().closed = true;
        // The sender is ours, so it is there.
        drop(self.board.count.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl<S: Staff> Shared<S> {
    /// Starts a worker for a session, when there is room to start one.
    pub(super) async fn hire(&self, id: SessionId) -> Result<S::Worker, WorkerError> {
        let failed = |step| {
            move |error: &dyn std::error::Error| WorkerError::Prepare {
                step,
                source: std::io::Error::other(error.to_string()),
            }
        };
        let _place = self.starting.acquire().await.map_err(|error| failed("waiting for room")(&error))?;
        let brief = self.store.brief(id).await.map_err(|error| failed("reading the script")(&error))?;
        self.staff.hire(brief.and_then(|brief| brief.script)).await
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many live; absent = nothing is taken any more.
    fn live_sessions(&self) -> Option<usize> {
        let live = self.lock();
        if live.closed { None } else { Some(live.entries.len()) }
    }

    /// A place for a session; absent = it has one, or nothing is taken any more.
    fn enter(&self, id: SessionId) -> Option<mpsc::Receiver<Order>> {
        let (orders, receiver) = mpsc::channel(MOST_ORDERS);
        let count = {
            let mut live = self.lock();
            if live.closed || live.entries.contains_key(&id) {
                return None;
            }
            live.entries.insert(id, orders);
            live.entries.len()
        };
        self.count.send_replace(count);
        Some(receiver)
    }

    fn leave(&self, id: SessionId) {
        let count = {
            let mut live = self.lock();
            live.entries.remove(&id);
            live.entries.len()
        };
        self.count.send_replace(count);
    }
}

/// Sees a session through, with one owner after the other: one that loses its footing is followed by one that goes
/// on from the record.
async fn attend<S: Staff>(
    shared: Arc<Shared<S>>,
    board: Arc<Board>,
    id: SessionId,
    reason: &'static str,
    orders: mpsc::Receiver<Order>,
) {
    let [mut pause, longest] = PAUSES;
    let mut reason = reason;
    // Handed from one owner to the next; no two ever want it.
    let orders = Arc::new(tokio::sync::Mutex::new(orders));
    let mut stop = shared.stopping.clone();
    loop {
        let (sharing, orders) = (Arc::clone(&shared), Arc::clone(&orders));
        let life = tokio::spawn(async move {
            match Owner::take_up(sharing, id, reason).await? {
                Some((owner, actions)) => owner.live(actions, &mut *orders.lock().await).await,
                None => Ok(()),
            }
        });
        match life.await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => tracing::error!(session = %id, %error, "a session is held up"),
            Err(error) => tracing::error!(session = %id, %error, "the owner of a session ended abnormally"),
        }
        reason = "its owner in the service was replaced";
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // An error means that the sender is gone, which happens only at the end.
            _ = stop.wait_for(|stop| *stop) => break,
        }
        pause = (pause * 2).min(longest);
    }
    board.leave(id);
}

/// Why nothing was recorded.
pub(super) fn conflict(error: &CommitError) -> Refusal {
    match error {
        CommitError::Conflict { .. } => Refusal::new(
            "conflict",
            409,
            "the same thing was recorded at the same moment",
            "look again; the same request may be sent again",
        ),
        error @ CommitError::NotDurable(_) => Refusal::journal(error),
    }
}

fn too_many() -> Refusal {
    Refusal::new(
        "too-many-sessions",
        429,
        format!("{MOST_LIVE} sessions live"),
        "wait for the end of one, or `salaam session cancel`",
    )
}
