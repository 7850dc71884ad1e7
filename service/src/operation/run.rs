//! From the durable intent to the executor's last word.

use std::time::Duration;

use salaam_core::{
    bound::{Arguments, Bound},
    bridge::{Edited, Exit, RunEvent, RunPlan},
    operation::{CancelCause, State},
    policy::Unsandboxed,
    result::{Failure, Sandbox},
};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    decide::too_late,
    ears::{Ending, Halt, Heard},
    owner::{Case, Owner},
    receipt::{Final, Spooler},
    record,
    refuse::control_failed,
    slots::Slot,
};
use crate::{
    executor::{BridgeError, Link, Running},
    operation::{Progress, Refusal, Work},
    store::{OperationRow, Transaction},
};

/// Beyond the command's own limit and the executor's grace, the executor is held to have lost it.
const OVERDUE: Duration = Duration::from_secs(30);
/// An end that was asked for twice in vain is given up after this.
const CANCEL_OVERDUE: Duration = Duration::from_secs(20);

/// The executor's last word on a command, or that there is none.
#[derive(Debug)]
pub(super) enum Ended {
    /// It ran and ended.
    Exited(Box<Exit>),
    /// Its files are changed.
    Edited(Box<Edited>),
    /// Nothing took effect.
    Failed(Failure),
    /// Nobody knows.
    Unknown(String),
}

/// What was seen of an operation before its end.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub sandbox: Option<Sandbox>,
    /// What the disk said of an edit without an answer.
    pub settled: Option<Value>,
}

/// How long a proposer may take none of the output before it is let go: long enough for a host that swaps and for a
/// person who turns a page, and far below what a command may take. Until then the command waits, and has its slot.
const UNREAD: Duration = Duration::from_secs(30);

/// What the proposer has not taken yet: a chunk, for which the command waits, or word that no more will come.
type Waiting = Option<Progress>;

impl Owner {
    /// Sends the command, follows it, and commits the receipt.
    pub(super) async fn run(&mut self, case: Case, link: &Link, slot: Slot) -> Result<Value, Refusal> {
        let Case { row, bound, work } = case;
        let plan = self.plan(&row, &bound, link.epoch())?;
        let stdin = match work {
            Work::Command { stdin, .. } => stdin.unwrap_or_default(),
            Work::Edit { .. } | Work::Undo { .. } => Vec::new(),
        };
        let cap = bound.policy.limits.output_bytes;
        let mut spooler = Spooler::start(&self.context.store, self.id, cap, self.written.clone());
        let mut seen = Seen::default();
        let ended = match link.run(plan, stdin).await {
            Ok(mut running) => self.follow(&mut running, &row, &bound, &mut spooler, &mut seen).await,
            Err(BridgeError::Refused { id, message }) => Ended::Failed(Failure { id, message }),
            Err(lost @ (BridgeError::Lost { .. } | BridgeError::Deadline { .. })) => Ended::Unknown(lost.to_string()),
        };
        self.timing.exited = Some(self.elapsed());
        // The executor has ended it, or is gone: the next command may start.
        drop(slot);
        let outputs = spooler.finish().await;
        self.receipt(Final { row, policy: bound.policy, ended, seen, outputs }).await
    }

    fn plan(&self, row: &OperationRow, bound: &Bound, epoch: u64) -> Result<RunPlan, Refusal> {
        let manifest = &self.context.manifest;
        let (command, stdin) = match &bound.arguments {
            Arguments::Command { command, stdin, .. } => (command, stdin),
            // The way of an operation follows from its kind.
            Arguments::Edit { .. } | Arguments::Undo { .. } => return Err(control_failed()),
        };
        let policy = &bound.policy;
        Ok(RunPlan {
            operation: self.id,
            epoch,
            workspace: row.workspace,
            command: command.clone(),
            stdin: *stdin,
            profile: policy.profile,
            network: policy.network,
            landlock: manifest.landlock,
            allow_unsandboxed: manifest.unsandboxed_commands == Unsandboxed::Allow,
            limits: policy.limits,
            files: bound.files.clone(),
            read_paths: manifest.local_sandbox_read_paths.iter().map(|path| path.clone().into_bytes()).collect(),
            // A path without one was never pinned: the executor refuses it.
            read_identities: manifest
                .local_sandbox_read_paths
                .iter()
                .map(|path| manifest.local_sandbox_read_identities.get(path).cloned().unwrap_or_default())
                .collect(),
            protected_paths: self.context.protected_paths(),
            whole_output: self.follow,
            environment: manifest.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        })
    }

    async fn follow(
        &mut self,
        running: &mut Running,
        row: &OperationRow,
        bound: &Bound,
        spooler: &mut Spooler,
        seen: &mut Seen,
    ) -> Ended {
        let limit = Duration::from_secs(bound.policy.limits.command_seconds).saturating_add(OVERDUE);
        let overdue = tokio::time::sleep(limit);
        tokio::pin!(overdue);
        let unread = tokio::time::sleep(UNREAD);
        tokio::pin!(unread);
        let mut waiting: Waiting = None;
        let mut asked_to_end = false;
        let mut unheard = false;
        let mut late = false;
        loop {
            tokio::select! {
                biased;
                heard = self.ears.hear() => match heard {
                    Heard::Decide { answer, .. } => too_late(answer, State::Dispatched),
                    // Its worker is gone; what was sent goes on.
                    Heard::End(Halt::Void) => {}
                    Heard::End(Halt::Ended(ending)) => {
                        if matches!(ending.cause, CancelCause::ServiceStopping) {
                            self.ears.deaf_to_stop();
                        }
                        // Nobody reads any more, or nobody is to wait: what is left is only spooled.
                        waiting = None;
                        unheard = true;
                        if !asked_to_end {
                            asked_to_end = true;
                            self.record_cancel(row, &ending).await;
                            running.cancel();
                            overdue.as_mut().reset(tokio::time::Instant::now() + CANCEL_OVERDUE);
                        }
                    }
                },
                () = &mut overdue => {
                    if late || asked_to_end {
                        let what = if asked_to_end { "did not end it when asked" } else { "did not end it at its time limit" };
                        return Ended::Unknown(format!("the executor {what}"));
                    }
                    // A proposer that reads slowly may have held up the executor's last word: it is not waited for.
                    (late, unheard) = (true, true);
                    if waiting.take().is_some() {
                        self.cut = Some(Progress::Cut);
                    }
                    overdue.as_mut().reset(tokio::time::Instant::now() + OVERDUE);
                }
                taken = offer(&self.progress, &mut waiting), if waiting.is_some() => if !taken { waiting = None },
                () = &mut unread, if waiting.is_some() => {
                    tracing::info!(operation = %self.id, "its proposer does not read; it goes on without");
                    unheard = true;
                    waiting = None;
                    self.cut = Some(Progress::Cut);
                }
                told = offer(&self.progress, &mut self.cut), if self.cut.is_some() => if !told { self.cut = None },
                event = running.next(), if waiting.is_none() => match event {
                    Ok(RunEvent::Spawned(sandbox)) => {
                        self.timing.spawned = Some(self.elapsed());
                        seen.sandbox = Some(sandbox);
                    }
                    Ok(RunEvent::Output(stream, bytes)) => {
                        if self.timing.first_byte.is_none() {
                            self.timing.first_byte = Some(self.elapsed());
                        }
                        let forward = self.follow && !unheard && !self.progress.is_closed();
                        let copy = forward.then(|| bytes.clone());
                        spooler.write(stream, bytes).await;
                        waiting = copy.map(|bytes| Progress::Output(stream, bytes));
                        unread.as_mut().reset(tokio::time::Instant::now() + UNREAD);
                    }
                    Ok(RunEvent::Beyond(beyond)) => spooler.beyond(beyond).await,
                    Ok(RunEvent::Exited(exit)) => return Ended::Exited(exit),
                    Ok(RunEvent::Failed(failure)) => return Ended::Failed(failure),
                    Err(BridgeError::Refused { id, message }) => return Ended::Failed(Failure { id, message }),
                    Err(lost @ (BridgeError::Lost { .. } | BridgeError::Deadline { .. })) => return Ended::Unknown(lost.to_string()),
                },
            }
        }
    }

    /// The record must not keep a command alive: if it cannot be written, the command is ended all the same.
    async fn record_cancel(&self, row: &OperationRow, ending: &Ending) {
        let written = match record::cancelled(row, ending) {
            Ok(event) => self
                .context
                .store
                .commit(Transaction { changes: Vec::new(), events: vec![event] })
                .await
                .map_err(|e| e.to_string()),
            Err(refusal) => Err(refusal.to_string()),
        };
        if let Err(error) = written {
            tracing::error!(operation = %self.id, error, "a cancel could not be journaled");
        }
    }
}

/// Gives what waits to the proposer as soon as there is room; false = nobody is there. Cancel-safe: it stays until
/// there is room.
async fn offer(progress: &mpsc::Sender<Progress>, waiting: &mut Waiting) -> bool {
    let Ok(room) = progress.reserve().await else { return false };
    if let Some(progress) = waiting.take() {
        room.send(progress);
    }
    true
}

/// The state that an exit means.
pub(super) fn state_of(ended: &Ended) -> State {
    match ended {
        Ended::Exited(exit) if !exit.proven_gone => State::Unknown,
        Ended::Exited(exit) if exit.timed_out => State::TimedOut,
        Ended::Exited(exit) if exit.cancelled => State::Cancelled,
        Ended::Exited(_) | Ended::Edited(_) => State::Completed,
        // The executor's word that it was asked to end it before there was anything to end.
        Ended::Failed(failure) if failure.id == CANCELLED_EARLY => State::Cancelled,
        Ended::Failed(_) => State::Failed,
        Ended::Unknown(_) => State::Unknown,
    }
}

/// What the executor answers when a command was called off before it was spawned.
const CANCELLED_EARLY: &str = "cancelled-early";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_is_said_only_with_proof() {
        let exit = |cancelled, timed_out, proven_gone| {
            Ended::Exited(Box::new(Exit { cancelled, timed_out, proven_gone, ..Exit::default() }))
        };
        assert_eq!(state_of(&exit(true, false, true)), State::Cancelled);
        assert_eq!(state_of(&exit(true, false, false)), State::Unknown);
        assert_eq!(state_of(&exit(false, true, true)), State::TimedOut);
        assert_eq!(state_of(&exit(false, false, true)), State::Completed);
        assert_eq!(state_of(&exit(false, false, false)), State::Unknown);
        let failed = |id: &str| Ended::Failed(Failure { id: id.into(), message: String::new() });
        assert_eq!(state_of(&failed("cancelled-early")), State::Cancelled);
        assert_eq!(state_of(&failed("sandbox-userns")), State::Failed);
    }
}
