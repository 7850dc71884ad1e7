//! The owner task: takes one operation through its states, and is the only one that does.

use std::{sync::Arc, time::Instant};

use salaam_core::{
    bound::Bound,
    digest::Digest,
    id::{ApprovalId, OperationId},
    operation::CancelCause,
    result::Timing,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Context, Order};
use crate::{
    operation::{Progress, Proposal, Refusal, Who},
    store::OperationRow,
};

/// What ends an open operation from outside.
#[derive(Debug)]
pub(super) struct Ending {
    pub cause: CancelCause,
    pub who: Option<Who>,
}

/// The owner's ears: orders, the proposer's tie, the service's stop.
#[derive(Debug)]
pub(super) struct Ears {
    orders: mpsc::Receiver<Order>,
    /// The desk let go of this operation: no order will come.
    unattended: bool,
    tied: Option<oneshot::Receiver<()>>,
    stopping: watch::Receiver<bool>,
    /// Told when the operation is over.
    pub waiting: Vec<oneshot::Sender<()>>,
}

/// What the ears heard.
#[derive(Debug)]
pub(super) enum Heard {
    Decide {
        decision: salaam_core::approval::Decision,
        binding: Option<String>,
        comment: Option<String>,
        who: Who,
        request: Option<(String, Digest)>,
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    End(Ending),
}

impl Ears {
    /// Waits for the next thing that concerns the operation. Cancel-safe.
    pub(super) async fn hear(&mut self) -> Heard {
        let gone = async {
            match self.tied.as_mut() {
                // Resolves when the proposer's end is dropped; nothing is ever sent.
                Some(tied) => drop(tied.await),
                None => std::future::pending().await,
            }
        };
        let stopped = async {
            if self.stopping.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let end = |cause, who| Heard::End(Ending { cause, who });
        tokio::select! {
            biased;
            order = self.orders.recv(), if !self.unattended => match order {
                Some(Order::Decide { decision, binding, comment, who, request, answer }) => {
                    Heard::Decide { decision, binding, comment, who, request, answer }
                }
                Some(Order::Cancel { cause, who, answer }) => {
                    self.waiting.extend(answer);
                    end(cause, who)
                }
                // The desk is closed: it happens only when the service stops.
                None => {
                    self.unattended = true;
                    end(CancelCause::ServiceStopping, None)
                }
            },
            () = stopped => end(CancelCause::ServiceStopping, None),
            () = gone => {
                self.tied = None;
                end(CancelCause::ClientGone, None)
            }
        }
    }

    /// From here on the service's stop was heard and is not heard again.
    pub(super) fn deaf_to_stop(&mut self) {
        let (_, never) = watch::channel(false);
        self.stopping = never;
    }
}

/// One operation's owner.
#[derive(Debug)]
pub(super) struct Owner {
    pub context: Arc<Context>,
    pub id: OperationId,
    pub approval: ApprovalId,
    pub who: Who,
    pub ears: Ears,
    pub progress: mpsc::Sender<Progress>,
    pub end: watch::Sender<Option<Value>>,
    /// Whether the proposer takes the output as it comes.
    pub follow: bool,
    pub started: Instant,
    pub timing: Timing,
}

/// What is left of an owner whose operation is over.
#[derive(Debug)]
pub(super) struct Farewell {
    last: Progress,
    progress: mpsc::Sender<Progress>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Farewell {
    /// Whether the operation ended without a record of its end.
    pub(super) const fn unrecorded(&self) -> bool {
        matches!(self.last, Progress::Refused(_))
    }

    /// Tells who waited for the end, then the proposer. Only a proposer that does not read makes this last, and
    /// then no longer than it stays, or than `until`: the record stands without it.
    pub(super) async fn say(self, until: impl Future<Output = ()>) {
        for waiting in self.waiting {
            // Whoever asked may be gone.
            let _ = waiting.send(());
        }
        tokio::select! {
            biased;
            _ = self.progress.send(self.last) => {}
            () = until => {}
        }
    }
}

/// An operation that is recorded.
#[derive(Debug)]
pub(super) struct Case {
    pub row: OperationRow,
    pub bound: Bound,
    /// What an approval flags; bound as a set, so that a new flag makes it stale.
    pub stdin: Vec<u8>,
}

impl Owner {
    #[expect(clippy::too_many_arguments, reason = "called once, by the desk; each is a different thing")]
    pub(super) fn new(
        context: Arc<Context>,
        id: OperationId,
        approval: ApprovalId,
        who: Who,
        orders: mpsc::Receiver<Order>,
        progress: mpsc::Sender<Progress>,
        tied: Option<oneshot::Receiver<()>>,
        end: watch::Sender<Option<Value>>,
    ) -> Self {
        let stopping = context.stopping.clone();
        let ears = Ears { orders, unattended: false, tied, stopping, waiting: Vec::new() };
        Self {
            context,
            id,
            approval,
            who,
            ears,
            progress,
            end,
            follow: false,
            started: Instant::now(),
            timing: Timing::default(),
        }
    }

    /// From proposal to receipt. The last word is left to say: whoever is to hear it may be slow.
    pub(super) async fn live(mut self, proposal: Proposal) -> Farewell {
        self.follow = proposal.follow;
        let last = match self.take_through(proposal).await {
            Ok(value) => {
                self.end.send_replace(Some(value.clone()));
                Progress::Result(value)
            }
            Err(refusal) => {
                self.release().await;
                tracing::warn!(operation = %self.id, id = refusal.id, "{refusal}");
                let value = serde_json::json!({ "operation": self.id, "error": { "id": refusal.id, "message": refusal.message, "fix": refusal.fix } });
                self.end.send_replace(Some(value));
                Progress::Refused(refusal)
            }
        };
        Farewell { last, progress: self.progress, waiting: self.ears.waiting }
    }

    /// Gives back what the executor holds for this operation, which will not run.
    pub(super) async fn release(&self) {
        if let Ok(link) = self.context.executor.link()
            && let Err(error) = link.release(self.id).await
        {
            tracing::debug!(operation = %self.id, %error, "what was held is gone with its executor");
        }
    }

    async fn take_through(&mut self, proposal: Proposal) -> Result<Value, Refusal> {
        let grant = proposal.grant;
        let proposed = self.propose(proposal).await?;
        let (case, granter) = match proposed {
            super::propose::Proposed::Over(value) => return Ok(value),
            super::propose::Proposed::Dispatched(case) => return self.run(case).await,
            super::propose::Proposed::Granted(case) => (case, None),
            super::propose::Proposed::Pending(case) => match self.decide(case).await? {
                super::decide::Decided::Granted(case, granter) => (case, Some(granter)),
                super::decide::Decided::Over(value) => return Ok(value),
            },
        };
        tracing::debug!(operation = %self.id, grant, "granted; waiting for a slot");
        match self.dispatch(case, granter).await? {
            super::decide::Dispatch::Sent(case) => self.run(case).await,
            super::decide::Dispatch::Over(value) => Ok(value),
        }
    }

    /// Microseconds since the proposal.
    pub(super) fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
