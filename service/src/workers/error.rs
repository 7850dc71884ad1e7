//! What can become of a worker beside its end.

use std::{io, path::PathBuf, time::Duration};

use salaam_core::{canary::NotDenied, worker::Phase};

use crate::child::Exit;

/// Why there is no worker, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be started.
    #[error("starting {} failed: {source}; install it with packaging/install", program.display())]
    Spawn {
        /// What was started.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What it needs could not be made.
    #[error("{step} for a worker failed: {source}")]
    Prepare {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It said nothing in time.
    #[error("the worker was not ready within {} s", limit.as_secs())]
    NotReady {
        /// How long was waited.
        limit: Duration,
    },
    /// It is another build.
    #[error("the worker is of build {theirs}, the service of {ours}: install both from one build")]
    Build {
        /// What it says.
        theirs: String,
        /// What this is.
        ours: String,
    },
    /// Something was not denied to it.
    #[error("the worker is not confined: {} {}", .0.attack, .0.came_of_it)]
    NotConfined(NotDenied),
    /// It said what no worker says there.
    #[error("the worker {0}; it was ended")]
    Impossible(String),
    /// It did not take what it was sent.
    #[error("the worker did not read what it was sent within {} s; it was ended", limit.as_secs())]
    Stalled {
        /// How long was waited.
        limit: Duration,
    },
    /// It is gone.
    #[error("the worker is gone: {reason}")]
    Lost {
        /// What was seen.
        reason: String,
    },
    /// It was to be told something that it does not expect there; nothing was sent.
    #[error("`{said}` cannot be sent while the link is {phase:?}")]
    OutOfPhase {
        /// What.
        said: &'static str,
        /// Where it stands.
        phase: Phase,
    },
}

impl WorkerError {
    /// The control that failed, where it is one: no worker may be started until it holds again.
    pub const fn control(&self) -> Option<&'static str> {
        match self {
            Self::NotConfined(_) => Some("worker-confined"),
            Self::Spawn { .. }
            | Self::Prepare { .. }
            | Self::NotReady { .. }
            | Self::Build { .. }
            | Self::Impossible(_)
            | Self::Stalled { .. }
            | Self::Lost { .. }
            | Self::OutOfPhase { .. } => None,
        }
    }
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Gone {
    /// The kernel says that the process is gone.
    Proven(Exit),
    /// It was killed and is not gone yet.
    Unproven {
        /// Its number.
        pid: i32,
    },
}
