//! Why an edit, a settling or a reading of files is refused: what was attempted, on what, and what helps.

use std::path::PathBuf;

use nix::errno::Errno;
use salaam_core::{edit::EditError, id::OperationId, result::Failure, show};

/// A refusal. Unless it is [`Refusal::Undecided`], nothing took effect.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The changes are refused for what they are.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A file is not, or is no longer, what was approved.
    #[error("{} changed after it was approved ({what}); propose the edit again", named(.path))]
    Stale {
        /// The file.
        path: PathBuf,
        /// What was seen.
        what: &'static str,
    },
    /// The computation here comes to something else than the service's.
    #[error("{} would become something else than was approved; the two programs are of different builds", named(.0))]
    Differs(PathBuf),
    /// A later git, editor, shell or Salaam itself runs or reads what lies there.
    #[error("{} is protected: {why}; an operator edits it outside Salaam", named(.path))]
    Protected {
        /// The path that was asked for.
        path: PathBuf,
        /// What protects it.
        why: &'static str,
    },
    /// The name is one of those under which edits keep files for a moment.
    #[error("{} has a name that Salaam keeps for itself (`.salaam-…`)", named(.0))]
    Reserved(PathBuf),
    /// A symbolic link, at the path or on the way to it.
    #[error("{} is a link to {}; edit that file by its own path", named(.path), named(.to))]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it points, as it is written in it.
        to: PathBuf,
    },
    /// Neither file nor nothing.
    #[error("{} is {kind}, not a regular file", named(.path))]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file has other names.
    #[error("{} has {links} names (hard links); replacing it would part them: copy it to a file of its own first", named(.path))]
    Linked {
        /// The file.
        path: PathBuf,
        /// How many.
        links: u64,
    },
    /// setuid, setgid or sticky.
    #[error("{} has mode {mode:04o}: a file with a setuid, setgid or sticky bit is not edited", named(.path))]
    Special {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Larger than an edit takes.
    #[error("{} is larger than {most} bytes", named(.path))]
    Large {
        /// The file, or the edit's last file.
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// A parent cannot be reached beneath the root.
    #[error("{} cannot be reached beneath the workspace: {why}", named(.path))]
    Unreachable {
        /// The path.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// Group, ACL or attributes of the old file cannot be given to the new one.
    #[error("{}: its {what} cannot be kept by this account ({errno}); give it the work group (`salaam host setup` does)", named(.path))]
    Attributes {
        /// The file.
        path: PathBuf,
        /// `group`, `ACL`, `mode` or `attributes`.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A name of this operation exists already.
    #[error("{} exists; Salaam needs that name for a moment: look at it and remove it", named(.0))]
    NameTaken(PathBuf),
    /// A running command has this very content bound.
    #[error("{} is bound by a command that is running; edit it when that has ended", named(.0))]
    Bound(PathBuf),
    /// The operation came before.
    #[error("{0} was carried out or tried already by this executor; an edit is applied once")]
    Repeated(OperationId),
    /// The executor is ending.
    #[error("the executor is ending; nothing was changed")]
    Stopped,
    /// Too much is asked for.
    #[error("{0}")]
    TooMany(&'static str),
    /// The kernel refused or failed.
    #[error("{attempted} {} failed: {errno}{}", named(.path), advice(*.errno))]
    Kernel {
        /// What was attempted.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// Neither all old nor all new could be brought about without overwriting what somebody else wrote.
    #[error("the edit is neither wholly in force nor wholly taken back: {evidence}")]
    Undecided {
        /// What stands where, for the person who decides.
        evidence: String,
    },
}

/// Paths of a workspace, and what links say, are text of others.
fn named(path: &std::path::Path) -> String {
    show::line(path.as_os_str().as_encoded_bytes())
}

const fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC => "; make room on that file system",
        Errno::EDQUOT => "; the tools user's quota is used up",
        Errno::EROFS => "; that file system is mounted read-only",
        Errno::EACCES => "; the tools user may not: give the work group the right",
        Errno::EPERM => "; the directory is sticky, or the file immutable or append-only",
        Errno::EINVAL | Errno::ENOSYS => "; that file system cannot exchange two files at once",
        _ => "",
    }
}

impl Refusal {
    /// Wraps a failed call.
    pub(super) fn kernel(attempted: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Kernel { attempted, path: path.into(), errno }
    }

    /// The stable id.
    pub fn id(&self) -> &'static str {
        match self {
            Self::Edit(_) => "edit-refused",
            Self::Stale { .. } => "stale",
            Self::Differs(_) => "differs",
            Self::Protected { .. } => "protected-path",
            Self::Reserved(_) => "reserved-name",
            Self::Link { .. } => "link",
            Self::Kind { .. } => "not-regular",
            Self::Linked { .. } => "linked",
            Self::Special { .. } => "special-mode",
            Self::Large { .. } => "too-large",
            Self::Unreachable { .. } => "unreachable",
            Self::Attributes { .. } => "attributes-lost",
            Self::NameTaken(_) => "name-taken",
            Self::Bound(_) => "bound-by-command",
            Self::Repeated(_) => "operation-repeated",
            Self::Stopped => "executor-ending",
            Self::TooMany(_) => "too-many",
            Self::Kernel { errno, .. } => match errno {
                Errno::ENOSPC | Errno::EDQUOT => "no-space",
                Errno::EROFS => "read-only",
                Errno::EACCES | Errno::EPERM => "denied",
                _ => "io",
            },
            Self::Undecided { .. } => "edit-undecided",
        }
    }

    /// The failure that crosses the bridge.
    pub fn into_failure(self) -> Failure {
        Failure { id: self.id().into(), message: self.to_string() }
    }
}
