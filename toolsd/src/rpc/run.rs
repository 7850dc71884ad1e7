//! One command: the plan, its standard input whole and verified, then the engine; a cancel or the end of the
//! stream ends it.

use std::{pin::Pin, sync::PoisonError, time::Duration};

use salaam_core::{
    bridge::{RunEvent, RunInput, RunPlan},
    digest::Digest,
    result::Failure,
};
use salaam_proto::wire;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Status, Streaming};

use super::{
    Executor,
    gate::{Closer, WireErrorAt, impossible},
};

/// What the service reads.
pub(super) type Events = Pin<Box<dyn Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

/// The plan follows at once on the call.
const PLAN_WITHIN: Duration = Duration::from_secs(10);
/// At most 16 MiB through local memory.
const STDIN_WITHIN: Duration = Duration::from_secs(60);
/// Events of 64 KiB at the most that wait for the service: the rest waits in the command's pipe.
const EVENTS_WAITING: usize = 8;

/// Takes the plan and the standard input, and starts the command's owner task.
pub(super) async fn run(executor: &Executor, mut input: Streaming<wire::RunInput>) -> Result<Events, Status> {
    let epoch = executor.epoch()?;
    let plan = within(PLAN_WITHIN, "the plan", plan(&mut input)).await?;
    if plan.epoch != epoch {
        return Err(impossible(format!("Run: the plan is for epoch {}, this executor has {epoch}", plan.epoch)));
    }
    let stdin = within(STDIN_WITHIN, "standard input", stdin(&mut input, &plan)).await?;
    let (events, received) = mpsc::channel(EVENTS_WAITING);
    let owner = own(executor.clone(), plan, stdin, input, events);
    let mut running = executor.running.lock().unwrap_or_else(PoisonError::into_inner);
    while running.try_join_next().is_some() {}
    running.spawn(owner);
    Ok(Box::pin(ReceiverStream::new(received).map(|event| Ok(event.into()))))
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(impossible(format!("Run: {what} did not come within {} s", limit.as_secs()))))
}

/// What came next on the stream.
enum Next {
    Input(RunInput),
    /// The service half-closed or reset the stream: it no longer wants the command.
    Ended,
}

async fn next(input: &mut Streaming<wire::RunInput>) -> Result<Next, Status> {
    match input.message().await {
        Ok(Some(message)) => {
            let input = RunInput::try_from(message).map_err(|error| WireErrorAt("Run", error))?;
            Ok(Next::Input(input))
        }
        Ok(None) => Ok(Next::Ended),
        Err(status) if matches!(status.code(), Code::Cancelled) => Ok(Next::Ended),
        Err(status) => Err(impossible(format!("Run: {}", status.message()))),
    }
}

async fn plan(input: &mut Streaming<wire::RunInput>) -> Result<RunPlan, Status> {
    match next(input).await? {
        Next::Input(RunInput::Plan(plan)) => Ok(*plan),
        Next::Input(RunInput::Stdin(_) | RunInput::Cancel) => Err(impossible("Run: the plan comes first")),
        Next::Ended => Err(Status::cancelled("no plan came")),
    }
}

/// Standard input as the plan binds it: exactly so many bytes with exactly that digest.
async fn stdin(input: &mut Streaming<wire::RunInput>, plan: &RunPlan) -> Result<Vec<u8>, Status> {
    let Some((sha256, size)) = plan.stdin else { return Ok(Vec::new()) };
    // The wire check has bounded the size to MAX_STDIN_BYTES.
    let size = usize::try_from(size).map_err(impossible)?;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        match next(input).await? {
            Next::Input(RunInput::Stdin(chunk)) if chunk.len() <= size - bytes.len() => bytes.extend(chunk),
            Next::Input(RunInput::Stdin(_)) => return Err(impossible("Run: more standard input than was bound")),
            Next::Input(RunInput::Plan(_) | RunInput::Cancel) => {
                return Err(impossible("Run: standard input comes whole before anything else"));
            }
            Next::Ended => return Err(Status::cancelled("standard input ended early")),
        }
    }
    if Digest::of(&bytes) == sha256 { Ok(bytes) } else { Err(impossible("Run: standard input is not what was bound")) }
}

/// Owns the command until its last event. The engine's future is never dropped half-way: only it can prove
/// that the tree is gone.
async fn own(
    executor: Executor,
    plan: RunPlan,
    stdin: Vec<u8>,
    input: Streaming<wire::RunInput>,
    events: mpsc::Sender<RunEvent>,
) {
    if let Err(failure) = executor.floor.permit_plan(&plan) {
        fail(&events, failure).await;
        return;
    }
    let (cancel, cancelled) = oneshot::channel();
    let command = executor.runner.run(plan, stdin, events, cancelled);
    let mut command = std::pin::pin!(command);
    tokio::select! {
        () = &mut command => return,
        () = listen(input, cancel, &executor.closer) => {}
    }
    command.await;
}

async fn fail(events: &mpsc::Sender<RunEvent>, failure: Failure) {
    // A service that has gone away does not need to be told.
    let _ = events.send(RunEvent::Failed(failure)).await;
}

/// Waits for a cancel or the end of the stream, and cancels; returns when nothing more can come.
async fn listen(mut input: Streaming<wire::RunInput>, cancel: oneshot::Sender<()>, closer: &Closer) {
    let mut cancel = Some(cancel);
    loop {
        let ended = match next(&mut input).await {
            Ok(Next::Input(RunInput::Cancel)) => false,
            Ok(Next::Ended) => true,
            Ok(Next::Input(RunInput::Plan(_) | RunInput::Stdin(_))) => {
                closer.close("Run: after its standard input a command can only be cancelled".into());
                true
            }
            Err(status) => {
                closer.close(status.message().to_owned());
                true
            }
        };
        if let Some(cancel) = cancel.take() {
            // The command may have ended in this moment.
            let _ = cancel.send(());
        }
        if ended {
            return;
        }
    }
}
