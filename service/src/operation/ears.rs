//! What an owner hears while its operation is open: orders, the proposer's tie, the service's stop.

use salaam_core::{approval::Decision, digest::Digest, operation::CancelCause};
use tokio::sync::{mpsc, oneshot, watch};

use super::Order;
use crate::operation::{Origin, Refusal, Who};

/// What ends an open operation from outside.
#[derive(Debug)]
pub(super) struct Ending {
    pub cause: CancelCause,
    pub who: Option<Who>,
}

/// Why an operation that was not sent goes no further.
#[derive(Debug)]
pub(super) enum Halt {
    /// Somebody or something ended it.
    Ended(Ending),
    /// Its worker is gone.
    Void,
}

/// The owner's ears.
#[derive(Debug)]
pub(super) struct Ears {
    orders: mpsc::Receiver<Order>,
    /// The desk let go of this operation: no order will come.
    unattended: bool,
    tied: Option<oneshot::Receiver<()>>,
    /// What it means that the proposer let go.
    gone: CancelCause,
    stopping: watch::Receiver<bool>,
    /// Told when the operation is over.
    pub waiting: Vec<oneshot::Sender<()>>,
}

/// What the ears heard.
#[derive(Debug)]
pub(super) enum Heard {
    Decide {
        decision: Decision,
        binding: Option<String>,
        comment: Option<String>,
        who: Who,
        request: Option<(String, Digest)>,
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    End(Halt),
}

impl Ears {
    pub(super) fn new(
        orders: mpsc::Receiver<Order>,
        tied: Option<oneshot::Receiver<()>>,
        origin: Option<&Origin>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let gone = match origin {
            Some(Origin::Operator { .. }) | None => CancelCause::ClientGone,
            Some(Origin::Worker { .. }) => CancelCause::Session,
        };
        Self { orders, unattended: false, tied, gone, stopping, waiting: Vec::new() }
    }

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
        let end = |cause, who| Heard::End(Halt::Ended(Ending { cause, who }));
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
                Some(Order::Void) => Heard::End(Halt::Void),
                // The desk is closed: it happens only when the service stops.
                None => {
                    self.unattended = true;
                    end(CancelCause::ServiceStopping, None)
                }
            },
            () = stopped => end(CancelCause::ServiceStopping, None),
            () = gone => {
                self.tied = None;
                end(self.gone, None)
            }
        }
    }

    /// From here on the service's stop was heard and is not heard again.
    pub(super) fn deaf_to_stop(&mut self) {
        let (_, never) = watch::channel(false);
        self.stopping = never;
    }
}
