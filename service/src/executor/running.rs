//! A command under way, as the service sees it: events in the one order that is possible.

use std::{pin::pin, sync::Arc, time::Duration};

use salaam_core::bridge::{RunEvent, RunInput};
use salaam_proto::wire;
use tokio::{sync::mpsc, time::Instant};
use tonic::Streaming;

use super::{
    end::End,
    error::BridgeError,
    link::{failed, lost},
    streams::Streams,
};

/// What the executor may take beyond a command's own time limit: TERM, its grace, KILL, the proof that the
/// tree is gone, the scan of the workspace, and output that still waits for us.
const BEYOND_LIMIT: Duration = Duration::from_secs(120);

/// A command under way. Dropping it ends the command: the stream to the executor ends with it.
#[derive(Debug)]
pub struct Running {
    events: Streaming<wire::RunEvent>,
    control: mpsc::Sender<wire::RunInput>,
    end: Arc<End>,
    stage: Stage,
    streams: Streams,
    limit: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was spawned: it may wait for its turn.
    Waiting,
    /// All layers hold.
    Spawned { until: Instant },
    /// The last event was given.
    Over,
}

impl Running {
    pub(super) const fn new(
        events: Streaming<wire::RunEvent>,
        control: mpsc::Sender<wire::RunInput>,
        end: Arc<End>,
        streams: Streams,
        limit: Duration,
    ) -> Self {
        Self { events, control, end, stage: Stage::Waiting, streams, limit }
    }

    /// The next event; `Exited` or `Failed` is the last. May be dropped and called again.
    ///
    /// # Errors
    /// [`BridgeError::Lost`]: the bridge is gone and the outcome unknown. [`BridgeError::Deadline`]: the
    /// command outlived its time limit by far; the bridge is closed. [`BridgeError::Refused`]: the executor
    /// did not take the plan, nothing took effect.
    pub async fn next(&mut self) -> Result<RunEvent, BridgeError> {
        let until = match self.stage {
            Stage::Waiting => None,
            Stage::Spawned { until } => Some(until),
            Stage::Over => return Err(BridgeError::Lost { reason: "the command is over".into() }),
        };
        let event = {
            let late = pin!(async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            });
            tokio::select! {
                biased;
                // First: events that arrived before the bridge broke still count.
                event = self.events.message() => event,
                reason = self.end.closed() => return Err(BridgeError::Lost { reason }),
                () = late => {
                    self.end.close("a command outlived its time limit and was not ended");
                    return Err(BridgeError::Deadline { call: "Run" });
                }
            }
        };
        match event {
            Ok(Some(event)) => match RunEvent::try_from(event) {
                Ok(event) => self.in_order(event),
                Err(error) => Err(self.impossible(&error.to_string())),
            },
            Ok(None) => Err(self.impossible("the command's events ended without its end")),
            Err(status) => Err(failed(&self.end, "Run", &status)),
        }
    }

    /// Asks for TERM, grace, KILL; the exit still comes from [`Running::next`].
    pub fn cancel(&self) {
        // A full channel already holds a cancel, a closed one belongs to a command that is over.
        let _ = self.control.try_send(RunInput::Cancel.into());
    }

    fn in_order(&mut self, event: RunEvent) -> Result<RunEvent, BridgeError> {
        self.stage = match (self.stage, &event) {
            (Stage::Waiting, RunEvent::Spawned(_)) => {
                Stage::Spawned { until: Instant::now() + self.limit + BEYOND_LIMIT }
            }
            (spawned @ Stage::Spawned { .. }, RunEvent::Output(stream, bytes)) => {
                self.streams.sent(*stream, bytes.len()).map_err(|why| self.impossible(why))?;
                spawned
            }
            (spawned @ Stage::Spawned { .. }, RunEvent::Beyond(beyond)) => {
                self.streams.beyond(beyond).map_err(|why| self.impossible(why))?;
                spawned
            }
            (Stage::Waiting | Stage::Spawned { .. }, RunEvent::Failed(_)) => Stage::Over,
            (Stage::Spawned { .. }, RunEvent::Exited(exit)) => {
                self.streams.may_end(exit).map_err(|why| self.impossible(why))?;
                Stage::Over
            }
            (Stage::Waiting, RunEvent::Output(_, _) | RunEvent::Beyond(_) | RunEvent::Exited(_)) => {
                return Err(self.impossible("output or an exit before the command was spawned"));
            }
            (Stage::Spawned { .. }, RunEvent::Spawned(_)) => {
                return Err(self.impossible("a command was spawned twice"));
            }
            (
                Stage::Over,
                RunEvent::Spawned(_)
                | RunEvent::Output(_, _)
                | RunEvent::Beyond(_)
                | RunEvent::Failed(_)
                | RunEvent::Exited(_),
            ) => {
                return Err(self.impossible("an event after the last"));
            }
        };
        Ok(event)
    }

    fn impossible(&self, why: &str) -> BridgeError {
        self.end.close(format!("impossible event: {why}"));
        lost(&self.end)
    }
}
