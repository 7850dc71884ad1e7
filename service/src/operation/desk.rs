//! The operations that have an owner task: where orders are put, and where their ends are awaited.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salaam_core::{
    digest::Digest,
    id::{ApprovalId, OperationId},
    operation::CancelCause,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Context, Order, orphan,
    owner::{Farewell, Owner},
};
use crate::operation::{Attached, Proposal, Refusal, Who};

/// Orders that may queue at one operation: decisions and cancels, each from a person.
const MOST_ORDERS: usize = 16;
/// Progress that may queue towards the proposer; beyond it the command waits.
const MOST_PROGRESS: usize = 16;
/// Operations that may be open at once: each is a question that a person has to answer.
const MOST_OPEN: usize = 1024;
/// How long a proposer that does not read is waited for once the service stops.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Where the open operations are known.
#[derive(Debug)]
pub struct Desk {
    context: Arc<Context>,
    board: Arc<Board>,
}

/// What the owners' tasks share with the desk.
#[derive(Debug, Default)]
struct Board {
    open: Mutex<Open>,
    /// How many are open.
    count: watch::Sender<usize>,
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
}

impl Desk {
    /// An empty desk.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, board: Arc::default() }
    }

    /// How many operations are open.
    pub fn open(&self) -> usize {
        self.board.lock().entries.len()
    }

    /// Starts the owner of a new operation, or attaches to the open one that has the same request id.
    pub fn propose(&self, proposal: Proposal, who: Who) -> Result<Attached, Refusal> {
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
        let (orders, orders_rx) = mpsc::channel(MOST_ORDERS);
        let (progress, progress_rx) = mpsc::channel(MOST_PROGRESS);
        let (end_tx, end) = watch::channel(None);
        let (tie, tied) = oneshot::channel();
        let (tie, tied) = if proposal.detach { (None, None) } else { (Some(tie), Some(tied)) };
        let request = proposal.request_id.clone().map(|id| (id, proposal.fingerprint()));
        let mut open = self.board.lock();
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
            return Err(Refusal::new(
                "too-many-open",
                429,
                format!("{MOST_OPEN} operations are open"),
                "decide or cancel some: `salaam approval list`",
            ));
        }
        let owner = Owner::new(Arc::clone(&self.context), id, approval, who, orders_rx, progress, tied, end_tx);
        open.entries.insert(id, Entry { approval, request, orders, end });
        let count = open.entries.len();
        drop(open);
        self.board.count.send_replace(count);
        tokio::spawn(attend(Arc::clone(&self.context), Arc::clone(&self.board), owner, proposal));
        Ok(Attached::live(id, progress_rx, tie))
    }

    /// The open operation behind an approval.
    pub fn behind(&self, approval: ApprovalId) -> Option<OperationId> {
        self.board.lock().entries.iter().find(|(_, entry)| entry.approval == approval).map(|(id, _)| *id)
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

/// Sees one owner through. Whatever becomes of it, its operation is not left open, and is off the desk before
/// anybody who may be slow is told.
async fn attend(context: Arc<Context>, board: Arc<Board>, owner: Owner, proposal: Proposal) {
    let id = owner.id;
    let farewell = tokio::spawn(owner.live(proposal)).await;
    let in_order = match &farewell {
        Ok(farewell) => !farewell.unrecorded(),
        Err(error) => {
            tracing::error!(operation = %id, %error, "the owner of an operation ended abnormally");
            false
        }
    };
    if in_order {
        board.remove(id);
        return last_word(farewell.ok(), &context).await;
    }
    let settled = async {
        tokio::select! {
            biased;
            () = orphan::settle(&context.store, id) => {}
            // What cannot be settled now is settled by the next start.
            () = stop(&context) => {}
        }
        board.remove(id);
    };
    tokio::join!(settled, last_word(farewell.ok(), &context));
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

/// A request id that stands for something else.
pub(crate) fn request_id_reused() -> Refusal {
    Refusal::new(
        "request-id-reused",
        409,
        "this request_id was used for something else",
        "use a new request_id for each request that is not a repetition",
    )
}

/// Nothing more is taken.
pub(crate) fn stopping() -> Refusal {
    Refusal::new("stopping", 503, "the service is stopping", "try again when it is back")
}
