//! What can go wrong while root sets up or takes away an instance.

use std::{io, path::PathBuf};

use crate::host::HostError;

/// A set-up that stopped. What was added until then is written down, and `--undo` takes it away.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Not root.
    #[error("host setup changes accounts and sudo's rules: run it as root (sudo salaam host setup …)")]
    NotRoot,
    /// A name that cannot be an account or a group.
    #[error("{option} is `{name}`, which is no account name")]
    Name {
        /// The option.
        option: &'static str,
        /// What was given.
        name: String,
    },
    /// Accounts that cannot be an instance's.
    #[error("{who} cannot be used: {why}; {fix}")]
    Account {
        /// Which account.
        who: String,
        /// Why not.
        why: String,
        /// What to do.
        fix: String,
    },
    /// A path that is not what set-up needs.
    #[error("{path} cannot be used: {why}; {fix}", path = .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: String,
        /// What to do.
        fix: String,
    },
    /// A kernel call on a path failed.
    #[error("{doing} {path}: {source}", path = .path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A program that set-up runs failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// As it was run.
        command: String,
        /// Its end.
        status: String,
        /// What it said, cut.
        stderr: String,
    },
    /// A very large workspace, and nobody said yes.
    #[error("{path} needs {changes} changes of group and mode; say --yes to make them", path = .path.display())]
    ManyChanges {
        /// The workspace.
        path: PathBuf,
        /// How many.
        changes: u64,
    },
    /// Something of the instance still runs.
    #[error("processes of {who} still run ({pids}); stop the service first (salaam service stop)")]
    InUse {
        /// The account.
        who: String,
        /// Their pids.
        pids: String,
    },
    /// Another set-up is at work.
    #[error("another host setup has {path} (fuser {path} names it); try again when it has ended", path = .path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
    /// Nothing to undo.
    #[error("{path} does not exist: there is no set-up of `{user}` to undo", path = .path.display())]
    NothingToUndo {
        /// The instance file.
        path: PathBuf,
        /// The service user.
        user: String,
    },
    /// Reading or writing an instance file failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl SetupError {
    /// The stable id, as in `{"error":{"id":…}}`.
    pub const fn id(&self) -> &'static str {
        match self {
            Self::NotRoot => "not-root",
            Self::Name { .. } | Self::Account { .. } => "setup-account",
            Self::Path { .. } => "setup-path",
            Self::Io { .. } => "setup-io",
            Self::Command { .. } => "setup-command",
            Self::ManyChanges { .. } => "setup-many-changes",
            Self::InUse { .. } => "setup-in-use",
            Self::Busy { .. } => "setup-busy",
            Self::NothingToUndo { .. } => "nothing-to-undo",
            Self::Host(error) => error.id(),
        }
    }

    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
