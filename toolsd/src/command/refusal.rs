//! Why a command does not run.

use nix::errno::Errno;
use salaam_core::{
    command::CommandError,
    id::{OperationId, WorkspaceId},
    limits::LimitOutOfRange,
    result::Failure,
};

use crate::sandbox::{Diagnosis, PathRefusal};

/// A refusal; nothing took effect.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The workspace is not open here.
    #[error("{0} is not open in this executor; add it again")]
    WorkspaceUnknown(WorkspaceId),
    /// Too many workspaces are open.
    #[error("{0} workspaces are open already; remove one")]
    WorkspaceMany(usize),
    /// The path cannot be a workspace.
    #[error(transparent)]
    WorkspacePath(PathRefusal),
    /// It is not a directory.
    #[error("{0} is not a directory")]
    WorkspaceNotDirectory(String),
    /// A read path is refused.
    #[error(transparent)]
    ReadPath(PathRefusal),
    /// The command is not one.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A limit is outside what this executor takes.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Limits(Vec<LimitOutOfRange>),
    /// The plan contradicts itself.
    #[error("the plan is refused: {0}")]
    Plan(&'static str),
    /// The operation was run before.
    #[error("{0} was run already by this executor; an operation runs once")]
    Repeated(OperationId),
    /// What is held is not what the plan names.
    #[error("{0} changed after it was approved; propose the command again")]
    Stale(String),
    /// A file to bind was another one at each look.
    #[error("{0} is being replaced all the time; propose the command again when nothing writes it any more")]
    Replaced(String),
    /// Too much is held for operations that have not run.
    #[error("{0}; let prepared operations run or release them")]
    HoldsTooMuch(&'static str),
    /// The floor or the plan forbids a bare run.
    #[error("{0}")]
    Unsandboxed(&'static str),
    /// No bubblewrap.
    #[error("{}", .0.message)]
    NoSandbox(Failure),
    /// The sandbox did not come up.
    #[error("{evidence}; {fix}", evidence = .0.evidence, fix = .0.fix)]
    Sandbox(Diagnosis),
    /// The program could not be exec'd.
    #[error("{program} could not be run: {errno}")]
    Exec {
        /// Its name as given.
        program: String,
        /// Why.
        errno: Errno,
    },
    /// It was cancelled while it waited to start.
    #[error("it was cancelled before it started")]
    Cancelled,
    /// A call of the kernel that should not fail.
    #[error("{attempted} failed")]
    Kernel {
        /// What was attempted.
        attempted: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

impl Refusal {
    /// Wraps a failed call.
    pub(super) fn kernel(attempted: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Kernel { attempted, source }
    }

    /// The stable id.
    pub fn id(&self) -> &str {
        match self {
            Self::WorkspaceUnknown(_) => "workspace-unknown",
            Self::WorkspaceMany(_) => "workspace-too-many",
            Self::WorkspacePath(refusal) => match refusal {
                PathRefusal::Open { errno: Errno::ENOENT, .. } => "workspace-missing",
                PathRefusal::Open { .. } | PathRefusal::Writable { .. } => "workspace-unusable",
                PathRefusal::NotPlain(_)
                | PathRefusal::System(_)
                | PathRefusal::Home(_)
                | PathRefusal::Credential { .. }
                | PathRefusal::Kind(_)
                | PathRefusal::Replaced(_)
                | PathRefusal::Secret { .. }
                | PathRefusal::Link(_) => "workspace-refused",
            },
            Self::WorkspaceNotDirectory(_) => "workspace-not-directory",
            Self::ReadPath(_) => "read-path-refused",
            Self::Command(_) => "command-refused",
            Self::Limits(_) => "limits-refused",
            Self::Plan(_) => "plan-refused",
            Self::Repeated(_) => "operation-repeated",
            Self::Stale(_) => "stale-operand",
            Self::Replaced(_) => "operand-replaced",
            Self::HoldsTooMuch(_) => "held-too-much",
            Self::Unsandboxed(_) => "unsandboxed-refused",
            Self::NoSandbox(failure) => &failure.id,
            Self::Sandbox(diagnosis) => diagnosis.id,
            Self::Exec { .. } => "exec-failed",
            Self::Cancelled => "cancelled-early",
            Self::Kernel { .. } => "executor-failed",
        }
    }

    /// The failure that crosses the bridge.
    pub fn into_failure(self) -> Failure {
        let id = self.id().to_owned();
        let mut message = self.to_string();
        if let Self::Kernel { source, .. } = &self {
            message = format!("{message}: {source}");
        }
        Failure { id, message }
    }
}
