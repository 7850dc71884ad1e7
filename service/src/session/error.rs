//! Why a session cannot go on for now.

use salaam_core::{event::DraftError, id::SessionId};

use crate::store::{CommitError, StoreError};

/// The task of a session lost its footing. It is begun anew from what is recorded, after a while: nothing that was
/// not recorded was done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The state cannot be read.
    #[error("the state of a session cannot be read: {0}")]
    Read(#[from] StoreError),
    /// The state cannot be written.
    #[error("a step of a session cannot be recorded: {0}")]
    Write(#[from] CommitError),
    /// An event has no form.
    #[error("a step of a session has no place in the journal: {0}")]
    Draft(#[from] DraftError),
    /// Something that is always recorded is not there.
    #[error("{what} of the session {session} is not recorded; `salaam journal verify` looks at all of it")]
    Missing {
        /// Whose.
        session: SessionId,
        /// What.
        what: &'static str,
    },
}
