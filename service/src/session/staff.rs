//! Whom a session works with: workers, the desk of operations, readers. A trait, so that its course can be driven by
//! a test through every order of events; in the service there is one, made of the real parts (`app`).

use std::fmt;

use salaam_core::{
    id::{OperationId, WorkspaceId},
    reader,
    worker::{FromWorker, ToWorker},
};

use crate::{
    operation::{Attached, Proposal, Refusal},
    workers::{Gone, WorkerError},
};

/// What sessions need done.
pub trait Staff: fmt::Debug + Send + Sync + 'static {
    /// One worker.
    type Worker: Colleague;

    /// Starts a worker; it is confined, has shown it, and knows nothing yet.
    fn hire(&self, script: Option<Vec<u8>>) -> impl Future<Output = Result<Self::Worker, WorkerError>> + Send;

    /// Proposes an operation.
    fn propose(&self, proposal: Proposal) -> Result<Attached, Refusal>;

    /// Asks for the end of an open operation; does not wait for it.
    fn call_off(&self, operation: OperationId) -> impl Future<Output = ()> + Send;

    /// Takes back an operation that was not dispatched yet; what runs goes on.
    fn void(&self, operation: OperationId) -> impl Future<Output = ()> + Send;

    /// Looks into a workspace.
    fn look(
        &self,
        workspace: WorkspaceId,
        request: reader::Request,
    ) -> impl Future<Output = Result<reader::Answer, Refusal>> + Send;

    /// Whether no new operations are taken, since a stop is being prepared.
    fn is_draining(&self) -> bool;
}

/// One worker, as its session sees it.
pub trait Colleague: fmt::Debug + Send + 'static {
    /// Its process.
    fn pid(&self) -> i32;

    /// What it says next, or that it is lost. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<FromWorker, WorkerError>> + Send;

    /// Tells it something; does not wait for it to hear.
    fn send(&mut self, message: ToWorker) -> impl Future<Output = Result<(), WorkerError>> + Send;

    /// Ends it, and says whether it is gone.
    fn end(self) -> impl Future<Output = Gone> + Send;
}
