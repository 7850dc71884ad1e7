//! The operations that have an owner task: where orders are put, and where their ends are awaited.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salaam_core::{
    bridge::Stream,
    digest::Digest,
    id::{ApprovalId, OperationId},
    operation::CancelCause,
};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{
    Context, Order,
    dispatch::is_edit,
    ears::Ears,
    flow::{Flow, Written},
    orphan,
    owner::{Farewell, Fate, Owner, Task, WEIGHT_UNIT, Worker},
    refuse::{request_id_reused, stopping, too_many_open},
};
use crate::{
    operation::{Attached, Origin, Progress, Proposal, Refusal, Who, Work},
    store::OperationRow,
};

/// Orders that may queue at one operation: decisions and cancels, each from a person.
const MOST_ORDERS: usize = 16;
/// Progress that may queue towards the proposer; beyond it the command waits.
const MOST_PROGRESS: usize = 16;
/// Operations that may be open at once: each is a question that a person has to answer.
const MOST_OPEN: usize = 1024;
/// What all that is open may take in memory, in bytes: what was proposed, what it binds, what is shown.
const MOST_OPEN_BYTES: usize = 192 << 20;
/// How long a proposer that does not read is waited for once the service stops.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Where the open operations are known.
#[derive(Debug)]
pub struct Desk {
    context: Arc<Context>,
    board: Arc<Board>,
}

/// What the owners' tasks share with the desk.
#[derive(Debug)]
struct Board {
    open: Mutex<Open>,
    /// How many are open.
    count: watch::Sender<usize>,
    /// What is left of [`MOST_OPEN_BYTES`].
    budget: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Open {
    entries: HashMap<OperationId, Entry>,
    /// Set by the stop; nothing is added after it.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    approval: ApprovalId,
    request: Option<(String, Digest)>,
    orders: mpsc::Sender<Order>,
    end: watch::Receiver<Option<Value>>,
    written: watch::Receiver<Written>,
}

impl Desk {
    /// An empty desk.
    pub fn new(context: Arc<Context>) -> Self {
        let budget = Arc::new(Semaphore::new(MOST_OPEN_BYTES / WEIGHT_UNIT));
        Self { context, board: Arc::new(Board { open: Mutex::default(), count: watch::Sender::new(0), budget }) }
    }

    /// How many operations are open.
    pub fn open(&self) -> usize {
        self.board.lock().entries.len()
    }

    /// Starts the owner of a new operation, or attaches to the open one that has the same request id.
    pub fn propose(&self, proposal: Proposal) -> Result<Attached, Refusal> {
        let now = self.context.clock.now();
        let random = || {
            self.context.clock.random().map_err(|e| {
                Refusal::new(
                    "no-randomness",
                    503,
                    format!("an id needs random bytes: {e}"),
                    "check getrandom(2) on this host",
                )
            })
        };
        let id = OperationId::new(now.unix_millis(), random()?);
        let approval = ApprovalId::new(now.unix_millis(), random()?);
        let request = proposal.request_id.clone().map(|id| (id, proposal.fingerprint()));
        let open = self.board.lock();
        if open.closed {
            return Err(stopping());
        }
        if let Some((asked, fingerprint)) = &request {
            let same = |entry: &Entry| entry.request.as_ref().is_some_and(|(known, _)| known == asked);
            if let Some((id, entry)) = open.entries.iter().find(|(_, entry)| same(entry)) {
                // What is open may not be recorded yet, so the journal cannot be asked for its content.
                return match &entry.request {
                    Some((_, known)) if known == fingerprint => Ok(Attached::late(*id, entry.end.clone())),
                    Some(_) | None => Err(request_id_reused()),
                };
            }
        }
        if open.entries.len() >= MOST_OPEN {
            return Err(too_many_open(&format!("{MOST_OPEN} operations are open")));
        }
        let (tie, tied) = oneshot::channel();
        let (tie, tied) = if proposal.detach { (None, None) } else { (Some(tie), Some(tied)) };
        let (owner, entry, progress) = owner(&self.context, &self.board, id, approval, Some(&proposal.origin), tied);
        self.open_with(open, owner, Entry { request, ..entry }, Task::Propose(proposal));
        Ok(Attached::live(id, progress, tie))
    }

    /// Takes over a question that an earlier service asked; false = the row is of none that can be asked again.
    pub fn ask_again(&self, row: OperationRow) -> bool {
        match row.again.as_ref().and_then(Work::from_again) {
            Some(work) => self.adopt(row.id, row.approval, Task::Ask(row, work)),
            None => false,
        }
    }

    /// Takes over an edit that an earlier service sent; false = the row is of none.
    pub fn settle(&self, row: OperationRow) -> bool {
        is_edit(row.kind) && self.adopt(row.id, row.approval, Task::Settle(row))
    }

    fn adopt(&self, id: OperationId, approval: ApprovalId, task: Task) -> bool {
        let open = self.board.lock();
        if open.closed {
            return false;
        }
        let (owner, entry, _progress) = owner(&self.context, &self.board, id, approval, None, None);
        self.open_with(open, owner, entry, task);
        true
    }

    fn open_with(&self, mut open: MutexGuard<'_, Open>, owner: Owner, entry: Entry, task: Task) {
        open.entries.insert(owner.id, entry);
        let count = open.entries.len();
        drop(open);
        self.board.count.send_replace(count);
        tokio::spawn(attend(Arc::clone(&self.context), Arc::clone(&self.board), owner, task));
    }

    /// The open operation behind an approval.
    pub fn behind(&self, approval: ApprovalId) -> Option<OperationId> {
        self.board.lock().entries.iter().find(|(_, entry)| entry.approval == approval).map(|(id, _)| *id)
    }

    /// Attaches to an open operation; only its end is seen.
    pub fn attach(&self, id: OperationId) -> Option<Attached> {
        self.board.lock().entries.get(&id).map(|entry| Attached::late(id, entry.end.clone()))
    }

    /// The output of an open operation from its beginning, as it comes, until the receipt.
    pub fn flow(&self, id: OperationId, stream: Stream) -> Option<Flow> {
        let written = self.board.lock().entries.get(&id).map(|entry| entry.written.clone())?;
        Some(Flow::new(self.context.store.clone(), id, stream, written))
    }

    /// Ends an open operation and answers when it is over; false = nobody owned it.
    pub async fn cancel(&self, id: OperationId, cause: CancelCause, who: Option<Who>) -> bool {
        let (answer, over) = oneshot::channel();
        if self.order(id, Order::Cancel { cause, who, answer: Some(answer) }).await.is_err() {
            return false;
        }
        // An owner that ended without hearing the order drops `answer`: it is over either way.
        drop(over.await);
        true
    }

    /// The worker that proposed it is gone: what was not sent becomes stale, what was sent goes on. False = nobody
    /// owned it.
    pub async fn void(&self, id: OperationId) -> bool {
        self.order(id, Order::Void).await.is_ok()
    }

    /// Puts an order; gives it back when nobody owns the operation (any more).
    pub(crate) async fn order(&self, id: OperationId, order: Order) -> Result<(), Order> {
        let orders = self.board.lock().entries.get(&id).map(|entry| entry.orders.clone());
        match orders {
            Some(orders) => orders.send(order).await.map_err(|returned| returned.0),
            None => Err(order),
        }
    }

    /// Takes nothing more, cancels what is open, and waits until every operation is over. May be called again
    /// where it was given up.
    pub async fn close(&self) {
        let orders: Vec<_> = {
            let mut open = self.board.lock();
            open.closed = true;
            open.entries.values().map(|entry| entry.orders.clone()).collect()
        };
        for orders in orders {
            // A full queue is no loss: every owner hears of the stop by itself.
            drop(orders.try_send(Order::Cancel { cause: CancelCause::ServiceStopping, who: None, answer: None }));
        }
        // The sender is ours, so it is there.
        drop(self.board.count.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: OperationId) {
        let count = {
            let mut open = self.lock();
            open.entries.remove(&id);
            open.entries.len()
        };
        self.count.send_replace(count);
    }
}

/// A new owner with its entry, and where its progress is seen.
fn owner(
    context: &Arc<Context>,
    board: &Board,
    id: OperationId,
    approval: ApprovalId,
    origin: Option<&Origin>,
    tied: Option<oneshot::Receiver<()>>,
) -> (Owner, Entry, mpsc::Receiver<Progress>) {
    let (orders, orders_rx) = mpsc::channel(MOST_ORDERS);
    let (progress, seen) = mpsc::channel(MOST_PROGRESS);
    let (end, ended) = watch::channel(None);
    let (written, readable) = watch::channel(Written::default());
    let owner = Owner {
        context: Arc::clone(context),
        id,
        approval,
        worker: origin.and_then(Worker::of),
        ears: Ears::new(orders_rx, tied, origin, context.stopping.clone()),
        progress,
        end,
        written,
        budget: Arc::clone(&board.budget),
        weight: Vec::new(),
        pass: None,
        follow: false,
        cut: None,
        started: std::time::Instant::now(),
        timing: salaam_core::result::Timing::default(),
    };
    (owner, Entry { approval, request: None, orders, end: ended, written: readable }, seen)
}

/// Sees one owner through. Whatever becomes of it, its operation is not left open, and is off the desk before
/// anybody who may be slow is told.
async fn attend(context: Arc<Context>, board: Arc<Board>, owner: Owner, task: Task) {
    let id = owner.id;
    let mut farewell = tokio::spawn(owner.live(task)).await;
    let fate = match &farewell {
        Ok(farewell) => farewell.fate(),
        Err(error) => {
            tracing::error!(operation = %id, %error, "the owner of an operation ended abnormally");
            Fate::Unrecorded
        }
    };
    let pass = farewell.as_mut().ok().and_then(Farewell::take_pass);
    match fate {
        Fate::Recorded | Fate::Left => {
            board.remove(id);
            return last_word(farewell.ok(), &context).await;
        }
        Fate::Unrecorded => {}
    }
    let settled = async {
        tokio::select! {
            biased;
            () = settle(&context, &board, id) => {}
            // What cannot be settled now is settled by the next start.
            () = stop(&context) => {}
        }
        drop(pass);
        board.remove(id);
    };
    tokio::join!(settled, last_word(farewell.ok(), &context));
}

/// Ends an operation whose owner is gone: an edit that was sent by what the disk says of it, all else as after a
/// crash.
async fn settle(context: &Arc<Context>, board: &Board, id: OperationId) {
    while let Some(row) = orphan::settle(&context.store, id).await {
        let (owner, _entry, _progress) = owner(context, board, id, row.approval, None, None);
        match tokio::spawn(owner.live(Task::Settle(row))).await {
            Ok(farewell) if farewell.fate() != Fate::Unrecorded => return,
            Ok(_) | Err(_) => tokio::time::sleep(orphan::PAUSES[1]).await,
        }
    }
}

async fn last_word(farewell: Option<Farewell>, context: &Context) {
    let until = async {
        stop(context).await;
        tokio::time::sleep(LAST_WORD).await;
    };
    if let Some(farewell) = farewell {
        farewell.say(until).await;
    }
}

async fn stop(context: &Context) {
    // An error means that the sender is gone, which happens only at the end.
    drop(context.stopping.clone().wait_for(|stop| *stop).await);
}
