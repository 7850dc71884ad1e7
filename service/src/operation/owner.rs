//! The owner task: takes one operation through its states, and is the only one that does.

use std::{sync::Arc, time::Instant};

use salaam_core::{
    bound::Bound,
    id::{ApprovalId, OperationId, SessionId},
    result::Timing,
};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{
    Context,
    decide::{Decided, Dispatch},
    ears::Ears,
    flow::Written,
    gate::Pass,
    propose::Proposed,
    refuse::{stopping, too_many_open},
};
use crate::{
    operation::{Origin, Progress, Proposal, Refusal, Work},
    store::OperationRow,
};

/// What an owner is given to see through.
#[derive(Debug)]
pub(super) enum Task {
    /// Something new.
    Propose(Proposal),
    /// A question that an earlier service asked and that is still open.
    Ask(OperationRow, Work),
    /// An edit that was sent and has no receipt.
    Settle(OperationRow),
}

/// The worker that proposed an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub session: SessionId,
    pub epoch: u64,
}

impl Worker {
    pub(super) const fn of(origin: &Origin) -> Option<Self> {
        match origin {
            Origin::Operator { .. } => None,
            Origin::Worker { session, epoch, .. } => Some(Self { session: *session, epoch: *epoch }),
        }
    }
}

/// One operation's owner.
#[derive(Debug)]
pub(super) struct Owner {
    pub context: Arc<Context>,
    pub id: OperationId,
    pub approval: ApprovalId,
    pub worker: Option<Worker>,
    pub ears: Ears,
    pub progress: mpsc::Sender<Progress>,
    pub end: watch::Sender<Option<Value>>,
    /// How much of each stream can be read.
    pub written: watch::Sender<Written>,
    /// What open questions may take in memory, and what this one has of it.
    pub budget: Arc<Semaphore>,
    pub weight: Vec<OwnedSemaphorePermit>,
    /// The edit under way, where its end could not be recorded: nothing goes before it.
    pub pass: Option<Pass>,
    /// Whether the proposer takes the output as it comes.
    pub follow: bool,
    /// What a proposer that did not read is still to be told.
    pub cut: Option<Progress>,
    pub started: Instant,
    pub timing: Timing,
}

/// An operation that is recorded.
#[derive(Debug)]
pub(super) struct Case {
    pub row: OperationRow,
    pub bound: Bound,
    pub work: Work,
}

/// Why an operation is left without a last word of its own.
#[derive(Debug)]
pub(super) enum Stop {
    /// It could not be recorded.
    Refused(Refusal),
    /// It stands as it is recorded: the next start goes on with it.
    Left,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What became of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has its end.
    Recorded,
    /// Its end could not be recorded, or there is nothing of it.
    Unrecorded,
    /// It is open, for the next start.
    Left,
}

/// What is left of an owner whose operation is over.
#[derive(Debug)]
pub(super) struct Farewell {
    cut: Option<Progress>,
    last: Progress,
    fate: Fate,
    progress: mpsc::Sender<Progress>,
    waiting: Vec<oneshot::Sender<()>>,
    pass: Option<Pass>,
}

impl Farewell {
    /// The edit whose end is not recorded.
    pub(super) const fn take_pass(&mut self) -> Option<Pass> {
        self.pass.take()
    }

    /// What became of the record.
    pub(super) const fn fate(&self) -> Fate {
        self.fate
    }

    /// Tells who waited for the end, then the proposer. Only a proposer that does not read makes this last, and
    /// then no longer than it stays, or than `until`: the record stands without it.
    pub(super) async fn say(self, until: impl Future<Output = ()>) {
        for waiting in self.waiting {
            // Whoever asked may be gone.
            let _ = waiting.send(());
        }
        let words = async {
            for word in self.cut.into_iter().chain([self.last]) {
                if self.progress.send(word).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            () = words => {}
            () = until => {}
        }
    }
}

impl Owner {
    /// Sees `task` through. The last word is left to say: whoever is to hear it may be slow.
    pub(super) async fn live(mut self, task: Task) -> Farewell {
        let (last, fate) = match self.take_through(task).await {
            Ok(value) => {
                self.end.send_replace(Some(value.clone()));
                (Progress::Result(value), Fate::Recorded)
            }
            Err(stop) => {
                let (refusal, fate) = match stop {
                    Stop::Refused(refusal) => (refusal, Fate::Unrecorded),
                    Stop::Left => (stopping(), Fate::Left),
                };
                self.release().await;
                tracing::warn!(operation = %self.id, id = refusal.id, ?fate, "{refusal}");
                let value = serde_json::json!({ "operation": self.id, "error": { "id": refusal.id, "message": refusal.message, "fix": refusal.fix } });
                self.end.send_replace(Some(value));
                (Progress::Refused(refusal), fate)
            }
        };
        Farewell { cut: self.cut, last, fate, progress: self.progress, waiting: self.ears.waiting, pass: self.pass }
    }

    /// Gives back what the executor holds for this operation, which will not run.
    pub(super) async fn release(&self) {
        if let Ok(link) = self.context.executor.link()
            && let Err(error) = link.release(self.id).await
        {
            tracing::debug!(operation = %self.id, %error, "what was held is gone with its executor");
        }
    }

    async fn take_through(&mut self, task: Task) -> Result<Value, Stop> {
        let proposed = match task {
            Task::Propose(proposal) => {
                self.follow = proposal.follow;
                // Its own copy, and the one in what it binds.
                self.weigh(proposal.work.carried().saturating_mul(2))?;
                self.propose(proposal).await?
            }
            Task::Ask(row, work) => {
                self.weigh(work.carried().saturating_mul(2))?;
                self.ask_again(row, work).await?
            }
            Task::Settle(row) => return self.settle_row(row).await,
        };
        let (case, granter) = match proposed {
            Proposed::Over(value) => return Ok(value),
            Proposed::Dispatched(ready) => return self.send(ready).await,
            Proposed::Granted(case) => (case, None),
            Proposed::Pending(case) => match self.decide(case).await? {
                Decided::Granted(case, granter) => (case, Some(granter)),
                Decided::Over(value) => return Ok(value),
                Decided::Left => return Err(Stop::Left),
            },
        };
        tracing::debug!(operation = %self.id, "granted; waiting for room");
        match self.dispatch(case, granter).await? {
            Dispatch::Sent(ready) => self.send(ready).await,
            Dispatch::Over(value) => Ok(value),
        }
    }

    /// Takes what so many bytes cost out of what open questions may take; given back when the operation is over.
    pub(super) fn weigh(&mut self, bytes: usize) -> Result<(), Refusal> {
        let units = u32::try_from(bytes.div_ceil(WEIGHT_UNIT)).unwrap_or(u32::MAX);
        match Arc::clone(&self.budget).try_acquire_many_owned(units) {
            Ok(permit) => {
                self.weight.push(permit);
                Ok(())
            }
            Err(_) => Err(too_many_open("what is open takes all the memory that open operations may take")),
        }
    }

    /// Microseconds since the proposal.
    pub(super) fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// What is counted together, in bytes.
pub(super) const WEIGHT_UNIT: usize = 1024;
