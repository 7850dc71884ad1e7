//! What can come of a question beside its answer.

use std::{io, path::PathBuf, time::Duration};

use salaam_core::{
    canary::NotDenied,
    reader::{NotRead, Refused},
};

/// A question without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// It was refused, beneath the root.
    #[error("{}{}{}", .0.why.words(), if .0.detail.is_empty() { "" } else { ": " }, .0.detail)]
    Refused(NotRead),
    /// It is none that may be asked: a path that is absolute or goes up, a page that is too large.
    #[error("this cannot be asked of a reader: {0}")]
    Question(#[source] salaam_proto::WireError),
    /// The reader could not be started.
    #[error("starting {} failed: {source}; install it with packaging/install", program.display())]
    Spawn {
        /// What was started.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What it needs could not be made.
    #[error("{step} for a reader failed: {source}")]
    Prepare {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It is another build.
    #[error("the reader is of build {theirs}, the service of {ours}: install both from one build")]
    Build {
        /// What it says.
        theirs: String,
        /// What this is.
        ours: String,
    },
    /// Something was not denied to it.
    #[error("the reader is not confined: {} {}", .0.attack, .0.came_of_it)]
    NotConfined(NotDenied),
    /// It said what no reader says there.
    #[error("the reader sent what no reader sends ({what}); it was ended")]
    Impossible {
        /// What.
        what: String,
    },
    /// It took too long.
    #[error("the reader took longer than {} s and was ended; ask for less at a time", limit.as_secs())]
    Late {
        /// How long was waited.
        limit: Duration,
    },
    /// It died of the question, or before it.
    #[error("the reader is gone: {reason}")]
    Lost {
        /// What was seen.
        reason: String,
    },
    /// Too much is asked at once.
    #[error("too many reads at once: {most} {of} are the most; ask again")]
    Full {
        /// How many may be.
        most: usize,
        /// Of what.
        of: &'static str,
    },
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

impl ReaderError {
    /// A stable word for whoever asked.
    pub const fn id(&self) -> &'static str {
        match self {
            Self::Refused(refused) => refused.why.as_str(),
            Self::Question(_) => "reader-question",
            Self::Spawn { .. } | Self::Prepare { .. } => "reader-start",
            Self::Build { .. } => "reader-build",
            Self::NotConfined(_) => "reader-confined",
            Self::Impossible { .. } => "reader-impossible",
            Self::Late { .. } => Refused::Time.as_str(),
            Self::Lost { .. } => "reader-lost",
            Self::Full { .. } => "reader-busy",
            Self::Stopping => "stopping",
        }
    }

    /// The control that failed, where it is one: nothing may be read until it holds again.
    pub const fn control(&self) -> Option<&'static str> {
        match self {
            Self::NotConfined(_) => Some("reader-confined"),
            Self::Refused(_)
            | Self::Question(_)
            | Self::Spawn { .. }
            | Self::Prepare { .. }
            | Self::Build { .. }
            | Self::Impossible { .. }
            | Self::Late { .. }
            | Self::Lost { .. }
            | Self::Full { .. }
            | Self::Stopping => None,
        }
    }
}
