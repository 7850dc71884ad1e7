//! The end of a command: asked, then told, then forced, each step with its time, so that nobody is waited for without
//! end: not a command that ignores TERM, not a launch that somebody has stopped, not what cannot be killed.

use std::{pin::Pin, time::Duration};

use tokio::time::{Sleep, sleep};

use super::job::Asked;
use crate::supervise::{PROOF, Tree};

/// Between TERM and KILL.
const GRACE: Duration = Duration::from_secs(2);
/// What launch may take where the executor itself ends, or nobody waits: less than the executor has for all of it
/// (rpc, `SHUTDOWN`), since what is left then has nobody.
const HURRY: Duration = Duration::from_secs(1);

/// How far the end of a command has come.
pub(super) struct Ending {
    step: Stage,
    until: Pin<Box<Sleep>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// TERM was sent.
    Asked,
    /// launch was told to kill, to count, and to say how it ended.
    Told,
    /// Killed from outside; only what cannot be killed is there still.
    Killed,
}

impl Ending {
    /// Begins it as `asked`.
    pub(super) fn begin(tree: &Tree, asked: Asked) -> Self {
        match asked {
            Asked::Cancel => {
                tree.term();
                Self::at(Stage::Asked, GRACE)
            }
            Asked::Stop if tree.is_ended_from_outside() => Self::kill(tree),
            Asked::Stop => Self::at(Stage::Told, tree.end().min(HURRY)),
        }
    }

    /// The next step, its time being up; none where nothing more can be done.
    pub(super) fn go_on(self, tree: &Tree) -> Option<Self> {
        match self.step {
            Stage::Asked => Some(Self::at(Stage::Told, tree.end())),
            Stage::Told => Some(Self::kill(tree)),
            Stage::Killed => None,
        }
    }

    fn kill(tree: &Tree) -> Self {
        tree.kill();
        Self::at(Stage::Killed, PROOF)
    }

    /// Whether it may still end by itself.
    pub(super) fn was_only_asked(&self) -> bool {
        self.step == Stage::Asked
    }

    fn at(step: Stage, time: Duration) -> Self {
        Self { step, until: Box::pin(sleep(time)) }
    }

    /// Waits until its time is up; for ever where nothing is ended.
    pub(super) async fn next(ending: &mut Option<Self>) {
        match ending {
            Some(ending) => ending.until.as_mut().await,
            None => std::future::pending().await,
        }
    }
}
