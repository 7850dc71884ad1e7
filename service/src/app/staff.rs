//! Whom sessions work with, in the service: real workers, the desk, readers.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use salaam_core::{
    id::{OperationId, WorkspaceId},
    operation::CancelCause,
    reader,
    worker::{FromWorker, ToWorker},
};

use crate::{
    operation::{Attached, Context, Desk, Proposal, Refusal, workspace_refusal},
    readers::ReaderError,
    session::{Colleague, Staff},
    workers::{self, Gone, Worker, WorkerError},
};

/// The parts that sessions need.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) desk: Arc<Desk>,
    pub(super) draining: Arc<Draining>,
    /// LIBEXEC/salaam-worker.
    pub(super) program: PathBuf,
    /// The state directory, which a worker tries to open, in vain.
    pub(super) state: PathBuf,
}

/// Whether new operations are refused because a stop is being prepared.
#[derive(Debug, Default)]
pub(super) struct Draining(Mutex<Option<Instant>>);

impl Draining {
    /// For so long from now on. It ends by itself, so that a stop that is given up half-way leaves nothing closed.
    pub(super) fn begin(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(time);
    }

    pub(super) fn is_on(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }
}

/// The control that a worker which is not confined fails ([`WorkerError::control`]); the next that is restores it.
const CONFINED: &str = "worker-confined";

impl Staff for Parts {
    type Worker = Worker;

    async fn hire(&self, script: Option<Vec<u8>>) -> Result<Worker, WorkerError> {
        let options = workers::Options {
            program: self.program.clone(),
            build: crate::version::BUILD.clone(),
            state_directory: self.state.clone(),
            script,
        };
        match Worker::start(&options).await {
            Ok(worker) => {
                if self.context.controls.failed().iter().any(|id| id == CONFINED) {
                    self.context.control_restored(CONFINED, "a worker has shown that it is confined").await;
                }
                Ok(worker)
            }
            Err(error) => {
                if let Some(control) = error.control() {
                    self.context.control_failed(control, &error.to_string()).await;
                }
                Err(error)
            }
        }
    }

    fn propose(&self, proposal: Proposal) -> Result<Attached, Refusal> {
        self.desk.propose(proposal)
    }

    async fn call_off(&self, operation: OperationId) {
        let order = crate::operation::Order::Cancel { cause: CancelCause::Session, who: None, answer: None };
        // Nobody owns it any more: then it is over.
        drop(self.desk.order(operation, order).await);
    }

    async fn void(&self, operation: OperationId) {
        // Dispatched, or over: what runs goes on.
        let _void = self.desk.void(operation).await;
    }

    async fn look(&self, workspace: WorkspaceId, request: reader::Request) -> Result<reader::Answer, Refusal> {
        let rows = self.context.store.workspaces().await.map_err(Refusal::journal)?;
        let row =
            rows.iter().find(|row| row.id == workspace).ok_or_else(|| Refusal::not_found("workspace", workspace))?;
        let root = self.context.workspaces.workspace(row).map_err(|error| workspace_refusal(&error))?;
        match self.context.readers.ask(workspace, &*root, request).await {
            Ok(seen) => Ok(seen),
            // What a reader refuses is an answer like any other.
            Err(ReaderError::Refused(refused)) => Ok(reader::Answer::Refused(refused)),
            Err(error) => {
                if let Some(control) = error.control() {
                    self.context.control_failed(control, &error.to_string()).await;
                }
                Err(Refusal::new(error.id(), 503, error.to_string(), "try again; the service's log says more"))
            }
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.is_on()
    }
}

impl Colleague for Worker {
    fn pid(&self) -> i32 {
        Self::pid(self)
    }

    async fn next(&mut self) -> Result<FromWorker, WorkerError> {
        Self::next(self).await
    }

    async fn send(&mut self, message: ToWorker) -> Result<(), WorkerError> {
        Self::send(self, message).await
    }

    async fn end(self) -> Gone {
        Self::end(self).await
    }
}
