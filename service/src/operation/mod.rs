//! The life of an operation: one owner task each, which alone moves it from proposal to receipt.
//!
//! Promises: the intent is durable before anything is sent; the receipt is durable before anyone is told; a
//! grant is consumed by the transaction that records the intent; what is granted is checked again at
//! dispatch. A handler only waits and may vanish at any await.

mod apply;
mod context;
mod decide;
mod desk;
mod dispatch;
mod ears;
mod edits;
mod flow;
mod gate;
mod intent;
mod look;
pub(crate) mod orphan;
mod owner;
mod plan;
mod proposal;
mod propose;
mod receipt;
mod record;
mod refuse;
mod resume;
mod run;
mod session;
mod settle;
mod slots;
mod types;
pub(crate) mod view;

pub use context::{Context, Controls, MOST_SKETCHES, Tools};
pub use desk::Desk;
pub use flow::Flow;
pub use gate::Gate;
pub use proposal::{Origin, Proposal, Work};
pub(crate) use receipt::reply_text;
pub(crate) use refuse::{bridge_refusal, refusal, request_id_reused, stopping, workspace_refusal};
pub(crate) use resume::may_go_on;
pub use slots::Slots;
pub use types::{Attached, Progress, Refusal, Who};

/// What an owner task is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// An operator's answer.
    Decide {
        /// Yes or no.
        decision: salaam_core::approval::Decision,
        /// The binding that the operator named.
        binding: Option<String>,
        /// What the operator says to the proposer.
        comment: Option<String>,
        /// Who.
        who: crate::operation::Who,
        /// The caller's id of this request and the digest of its content, remembered with the decision.
        request: Option<(String, salaam_core::digest::Digest)>,
        /// Told when the decision is durable, or why it was not taken.
        answer: tokio::sync::oneshot::Sender<Result<(), crate::operation::Refusal>>,
    },
    /// End it, whatever it is doing.
    Cancel {
        /// Why.
        cause: salaam_core::operation::CancelCause,
        /// Who, if a person.
        who: Option<crate::operation::Who>,
        /// Told when the operation is over.
        answer: Option<tokio::sync::oneshot::Sender<()>>,
    },
    /// The worker that proposed it is gone: what was not sent is stale, what was sent goes on.
    Void,
}
