//! One worker, from its start to the proof that it is gone.

use std::time::Duration;

use nix::sys::signal::Signal;
use salaam_core::{
    canary::{self, Canary},
    worker::{FromWorker, OutOfPhase, Phase, ToWorker},
};
use salaam_proto::frame::FrameError;
use tokio::net::UnixStream;

use super::{
    error::{Gone, WorkerError},
    link::{Hearing, Refused, TAKEN_WITHIN, Telling},
    start::{Options, Spawned, spawn},
};
use crate::child::{Child, Exit, Lines};

/// From spawn to its first word. It takes milliseconds; a host under load is no reason to give up.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// For a worker that was told to stop to leave by itself.
const LEAVES_WITHIN: Duration = Duration::from_millis(250);
/// For the kernel to end a killed process.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// For the exit and the last lines that make a reported loss more exact.
const SOON: Duration = Duration::from_millis(100);
/// Of what it wrote, so much goes into the reason of a loss.
const SAID_BYTES: usize = 1024;

/// A worker that has shown that it is confined.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    hearing: Hearing,
    telling: Telling,
    phase: Phase,
    lines: Lines,
    /// Why it was ended, once it was.
    fault: Option<String>,
}

impl Worker {
    /// Starts one and lets it show that it is confined. It is told nothing yet.
    ///
    /// To be called on a thread that lives as long as the service: the worker ends with the thread that started it
    /// (PR_SET_PDEATHSIG), so not in `spawn_blocking`.
    ///
    /// # Errors
    /// It does not start, is not ready in time, is of another build, or is not confined; nothing of it is left then.
    pub async fn start(options: &Options) -> Result<Self, WorkerError> {
        let Spawned { child, link, lines } = spawn(options)?;
        let mut worker = Self::over(child, link, lines, TAKEN_WITHIN);
        let ready = match tokio::time::timeout(READY_WITHIN, worker.next()).await {
            Ok(Ok(FromWorker::Ready { build, canary })) => fit(&options.build, build, &canary),
            Ok(Ok(FromWorker::Turn(_) | FromWorker::Ended { .. })) => {
                Err(WorkerError::Impossible("began before it was ready".into()))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(WorkerError::NotReady { limit: READY_WITHIN }),
        };
        match ready {
            Ok(()) => Ok(worker),
            Err(error) => {
                if let Gone::Unproven { pid } = worker.end().await {
                    tracing::error!(pid, "a worker that is not fit could not be ended");
                }
                Err(error)
            }
        }
    }

    pub(super) fn over(child: Child, link: UnixStream, lines: Lines, taken_within: Duration) -> Self {
        let (read, write) = link.into_split();
        Self {
            process: Process(Some(child)),
            hearing: Hearing::new(read),
            telling: Telling::new(write, taken_within),
            phase: Phase::default(),
            lines,
            fault: None,
        }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Where the conversation stands.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// What it says next. To be waited on all the time: while nothing is expected it resolves for a loss and for a
    /// worker that speaks out of turn. It may be dropped while it waits, and called again.
    ///
    /// # Errors
    /// It is gone, or was ended because it said what no worker says there.
    pub async fn next(&mut self) -> Result<FromWorker, WorkerError> {
        if let Some(reason) = &self.fault {
            return Err(WorkerError::Lost { reason: reason.clone() });
        }
        let heard = tokio::select! {
            biased;
            heard = self.hearing.next() => heard,
            refused = self.telling.refused() => return Err(self.refused(refused).await),
        };
        match heard {
            Ok(Some(message)) => match self.phase.heard(&message) {
                Ok(phase) => {
                    self.phase = phase;
                    Ok(message)
                }
                Err(error) => Err(self.impossible(&error)),
            },
            Ok(None) => Err(self.lost("it closed the link").await),
            Err(FrameError::Io(error)) => Err(self.lost(&format!("the link broke: {error}")).await),
            Err(
                error @ (FrameError::TooLong { .. }
                | FrameError::Torn
                | FrameError::Malformed
                | FrameError::Impossible(_)),
            ) => Err(self.impossible(&error)),
        }
    }

    /// Tells it something. It waits only while past turns are told faster than they are read.
    ///
    /// # Errors
    /// It is out of place (nothing was sent), or the worker is gone or did not read.
    pub async fn send(&mut self, message: ToWorker) -> Result<(), WorkerError> {
        if let Some(reason) = &self.fault {
            return Err(WorkerError::Lost { reason: reason.clone() });
        }
        let phase = self
            .phase
            .sent(&message)
            .map_err(|OutOfPhase { message, phase }| WorkerError::OutOfPhase { said: message, phase })?;
        let frame =
            Telling::frame(message).map_err(|source| WorkerError::Prepare { step: "framing a message", source })?;
        if self.telling.send(frame).await.is_err() {
            let refused = self.telling.refused().await;
            return Err(self.refused(refused).await);
        }
        self.phase = phase;
        Ok(())
    }

    /// Tells it to stop if it can still be told, then ends it, and takes the kernel's word that it is gone.
    pub async fn end(mut self) -> Gone {
        if self.fault.is_none()
            && let Ok(_) = self.phase.sent(&ToWorker::Stop)
            && let Ok(frame) = Telling::frame(ToWorker::Stop)
            && tokio::time::timeout(SOON, self.telling.send(frame)).await.is_ok()
            && let Some(exit) = self.process.reap(LEAVES_WITHIN).await
        {
            return Gone::Proven(exit);
        }
        self.process.kill();
        match self.process.reap(GONE_WITHIN).await {
            Some(exit) => Gone::Proven(exit),
            None => Gone::Unproven { pid: self.process.pid() },
        }
    }

    /// It said or sent what no worker does: it may not go on for a moment.
    fn impossible(&mut self, error: &dyn std::error::Error) -> WorkerError {
        self.process.kill();
        let what = format!("sent what no worker sends: {error}");
        self.fault = Some(format!("it {what}"));
        WorkerError::Impossible(what)
    }

    async fn refused(&mut self, refused: Refused) -> WorkerError {
        match refused {
            Refused::Stalled => {
                self.process.kill();
                self.fault = Some("it did not read what it was sent".into());
                WorkerError::Stalled { limit: TAKEN_WITHIN }
            }
            Refused::Closed => self.lost("it closed the link").await,
        }
    }

    async fn lost(&mut self, seen: &str) -> WorkerError {
        let exit = self.process.reap(SOON).await;
        // One that closed its link and lives on is of no use to anybody.
        self.process.kill();
        let said: String = self.lines.last(SOON).await.chars().take(SAID_BYTES).collect();
        let reason = match (exit, said.is_empty()) {
            (Some(exit), true) => format!("{seen}; {exit}"),
            (Some(exit), false) => format!("{seen}; {exit}: {said}"),
            (None, _) => format!("{seen} and was ended"),
        };
        self.fault = Some(reason.clone());
        WorkerError::Lost { reason }
    }
}

/// The process, which never outlives its owner.
#[derive(Debug)]
struct Process(Option<Child>);

impl Process {
    fn pid(&self) -> i32 {
        self.0.as_ref().map_or(0, |child| child.pid().as_raw())
    }

    fn kill(&self) {
        let Some(child) = &self.0 else { return };
        match child.signal(Signal::SIGKILL) {
            Ok(()) => {}
            // It is gone and reaped.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            Err(error) => tracing::error!(pid = child.pid().as_raw(), %error, "a worker cannot be killed"),
        }
    }

    async fn reap(&mut self, limit: Duration) -> Option<Exit> {
        match &mut self.0 {
            Some(child) => child.reap(limit).await,
            None => None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Whoever drops a worker without ending it leaves a zombie, unless somebody still waits for it.
        if let (Some(mut child), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn(async move { child.reap(GONE_WITHIN).await }));
        }
    }
}

/// Judges what a worker says of itself. One that was taken over before it said it is none of the service's making: the
/// program is root's, and it has read nothing yet.
pub(super) fn fit(ours: &str, theirs: String, tried: &[Canary]) -> Result<(), WorkerError> {
    if ours != theirs {
        return Err(WorkerError::Build { theirs, ours: ours.to_owned() });
    }
    canary::judge(canary::ALL, tried).map_err(WorkerError::NotConfined)
}
