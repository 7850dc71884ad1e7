//! Why a request got no answer. Invariant: nothing here quotes a byte of the workspace; the asker knows the
//! path that it asked for.

use nix::errno::Errno;
use salaam_core::reader::{NotRead, Refused};

/// A request without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing is there.
    #[error("there is nothing at this path")]
    Missing,
    /// A component on the way is no directory, or a directory was asked for and something else is there.
    #[error("what is at this path is no directory")]
    NotDirectory,
    /// Not a regular file: a directory, FIFO, socket or device.
    #[error("what is at this path is no regular file")]
    NotRegular,
    /// A link on the way is absolute, leads above the root, or is not to be followed here.
    #[error("a link at this path leads out of the workspace, or is not followed here")]
    LeadsOut,
    /// Another file system is mounted on the way.
    #[error("another file system is mounted at this path; the reader stays on the workspace's own")]
    Mount,
    /// More links or components than [`crate::limits::MAX_STEPS`] and [`crate::limits::MAX_LINKS`].
    #[error("the path takes too many steps or links")]
    TooManySteps,
    /// The account that runs commands could not read it, so it stays secret.
    #[error("the tools user may not read this, so the reader does not")]
    Unreadable,
    /// The account that runs commands could read it, the service user cannot.
    #[error("only the tools user may read this")]
    ToolsOnly,
    /// Somebody holds a lease on it.
    #[error("another process holds a lease on this file")]
    Busy,
    /// It changed while it was read.
    #[error("it changed while it was read")]
    Changed,
    /// More bytes than were asked for at the most, or than may be asked for.
    #[error("it has more bytes than the {most} that may be read")]
    TooLarge {
        /// The limit in bytes.
        most: u64,
    },
    /// It has mode bits that no edit keeps.
    #[error("it is set-user-ID, set-group-ID or sticky")]
    SpecialMode,
    /// It took too long.
    #[error("it took longer than it may")]
    Slow,
    /// The pattern is none.
    #[error("the pattern cannot be searched for: {reason}")]
    Pattern {
        /// What the parser says, without the pattern.
        reason: String,
    },
    /// The kernel refused.
    #[error("{step} failed: {}", .errno.desc())]
    Kernel {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

impl Refusal {
    /// For `map_err`: what the kernel said to `step`.
    pub(crate) fn kernel(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Kernel { step, errno }
    }

    /// What is said about it: a word, and for a pattern what is wrong with that.
    pub fn said(&self) -> NotRead {
        let why = match self {
            Self::Missing => Refused::NotFound,
            Self::NotDirectory => Refused::NotADirectory,
            Self::NotRegular => Refused::NotRegular,
            Self::LeadsOut => Refused::Link,
            Self::Mount => Refused::Mount,
            Self::TooManySteps => Refused::Steps,
            Self::Unreadable => Refused::Closed,
            Self::ToolsOnly => Refused::ToolsOnly,
            Self::Busy => Refused::Busy,
            Self::Changed => Refused::Changed,
            Self::TooLarge { .. } => Refused::TooLarge,
            Self::SpecialMode => Refused::SpecialMode,
            Self::Slow => Refused::Time,
            Self::Pattern { reason } => return NotRead { why: Refused::Pattern, detail: reason.clone() },
            Self::Kernel { .. } => Refused::Io,
        };
        NotRead { why, detail: String::new() }
    }
}
