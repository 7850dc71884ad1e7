//! What goes in and out of the verbs, independent of HTTP.

use salaam_core::{bridge::Stream, id::OperationId};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

/// Who asks, by the kernel's word (SO_PEERCRED of the operator socket).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The peer's uid.
    pub uid: u32,
    /// The peer's pid when it connected.
    pub pid: i32,
    /// The account's name, or its uid in digits.
    pub principal: String,
    /// Through what it came: `operator-socket`.
    pub via: &'static str,
}

impl Who {
    /// The `by` of an event.
    pub fn to_value(&self) -> Value {
        json!({ "principal": self.principal, "uid": self.uid, "pid": self.pid, "via": self.via })
    }
}

/// A verb that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// A stable id.
    pub id: String,
    /// The HTTP status that goes with it.
    pub status: u16,
    /// What was attempted, on what, and why not.
    pub message: String,
    /// What mends it.
    pub fix: String,
}

impl Refusal {
    /// A refusal with all its parts.
    pub fn new(id: &str, status: u16, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.to_owned(), status, message: message.into(), fix: fix.into() }
    }

    /// Nothing has that id.
    pub fn not_found(noun: &str, id: impl std::fmt::Display) -> Self {
        Self::new(
            "not-found",
            404,
            format!("there is no {noun} {id}"),
            format!("`salaam {noun} list` shows those there are"),
        )
    }

    /// The store cannot answer or record.
    pub fn journal(error: impl std::fmt::Display) -> Self {
        Self::new(
            "journal-not-writable",
            503,
            error.to_string(),
            "free space on the state directory's file system, then try again",
        )
    }
}

/// What happens to a proposed operation, in order. `Result` is the last.
#[derive(Debug)]
pub enum Progress {
    /// The approval object, as GET /v1/approvals/{id} gives it.
    Proposed(Value),
    /// What the command wrote.
    Output(Stream, Vec<u8>),
    /// The proposer took none of it for too long: what follows is only kept.
    Cut,
    /// The result object with its text, or the operation object if it ended undispatched. Both have
    /// `operation` and `state`.
    Result(Value),
    /// Nothing was recorded, or the record failed.
    Refused(Refusal),
}

/// Attached to an operation. Dropping it before the result cancels the operation (cause `client-gone`)
/// unless it was proposed with `detach`.
#[derive(Debug)]
pub struct Attached {
    operation: OperationId,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The proposer: sees everything; `_tie` drops with it.
    Live { progress: mpsc::Receiver<Progress>, _tie: Option<oneshot::Sender<()>> },
    /// Somebody who asked again with the same request id: sees the end.
    Late { end: watch::Receiver<Option<Value>> },
    /// The operation is over.
    Over(Option<Value>),
}

impl Attached {
    pub(crate) const fn live(
        operation: OperationId,
        progress: mpsc::Receiver<Progress>,
        tie: Option<oneshot::Sender<()>>,
    ) -> Self {
        Self { operation, source: Source::Live { progress, _tie: tie } }
    }

    pub(crate) const fn late(operation: OperationId, end: watch::Receiver<Option<Value>>) -> Self {
        Self { operation, source: Source::Late { end } }
    }

    pub(crate) const fn over(operation: OperationId, end: Value) -> Self {
        Self { operation, source: Source::Over(Some(end)) }
    }

    /// The operation.
    pub const fn operation(&self) -> OperationId {
        self.operation
    }

    /// What happens next; `None` after the result.
    pub async fn next(&mut self) -> Option<Progress> {
        match &mut self.source {
            Source::Live { progress, .. } => progress.recv().await,
            Source::Late { end } => {
                let value = end.wait_for(Option::is_some).await.ok()?.clone();
                self.source = Source::Over(None);
                value.map(Progress::Result)
            }
            Source::Over(end) => end.take().map(Progress::Result),
        }
    }
}
