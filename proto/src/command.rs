//! Commands, the content that they would run, and the small requests that name one thing.

use salaam_core::{
    bound::BoundFile,
    bridge::{Prepare, Prepared},
    command::{Command, MAX_ARGUMENTS},
    id::{OperationId, WorkspaceId},
};

use crate::{
    bounds::{self, WireError},
    wire,
};

impl From<Command> for wire::Command {
    fn from(command: Command) -> Self {
        let form = match command {
            Command::Argv(words) => {
                wire::command::Form::Argv(wire::Argv { words: words.into_iter().map(Into::into).collect() })
            }
            Command::Shell(text) => wire::command::Form::Shell(text),
        };
        Self { form: Some(form) }
    }
}

impl TryFrom<wire::Command> for Command {
    type Error = WireError;

    fn try_from(command: wire::Command) -> Result<Self, WireError> {
        const FORM: &str = "a command that can be run as it stands";
        match bounds::present("command.form", command.form)? {
            wire::command::Form::Argv(argv) => {
                let words = bounds::list("command.argv", argv.words, MAX_ARGUMENTS, |word| Ok(word.to_vec()))?;
                Self::argv(words).map_err(|_| WireError::Form { field: "command.argv", form: FORM })
            }
            wire::command::Form::Shell(text) => {
                Self::shell(text).map_err(|_| WireError::Form { field: "command.shell", form: FORM })
            }
        }
    }
}

impl From<BoundFile> for wire::BoundFile {
    fn from(file: BoundFile) -> Self {
        Self { path: file.path.into(), sha256: file.sha256.as_bytes().to_vec().into() }
    }
}

impl TryFrom<wire::BoundFile> for BoundFile {
    type Error = WireError;

    fn try_from(file: wire::BoundFile) -> Result<Self, WireError> {
        Ok(Self {
            path: bounds::absolute_path("file.path", &file.path)?,
            sha256: bounds::digest("file.sha256", &file.sha256)?,
        })
    }
}

impl From<Prepare> for wire::PrepareRequest {
    fn from(prepare: Prepare) -> Self {
        Self {
            operation: prepare.operation.to_string(),
            workspace: prepare.workspace.to_string(),
            command: Some(prepare.command.into()),
            hold: prepare.hold,
        }
    }
}

impl TryFrom<wire::PrepareRequest> for Prepare {
    type Error = WireError;

    fn try_from(request: wire::PrepareRequest) -> Result<Self, WireError> {
        Ok(Self {
            operation: bounds::id("operation", &request.operation)?,
            workspace: bounds::id("workspace", &request.workspace)?,
            command: bounds::present("command", request.command)?.try_into()?,
            hold: request.hold,
        })
    }
}

impl From<Prepared> for wire::PrepareReply {
    fn from(prepared: Prepared) -> Self {
        Self {
            files: prepared.files.into_iter().map(Into::into).collect(),
            unpinned: prepared.unpinned,
            git_outside: prepared.git_outside.map(bounds::cut),
        }
    }
}

impl TryFrom<wire::PrepareReply> for Prepared {
    type Error = WireError;

    fn try_from(reply: wire::PrepareReply) -> Result<Self, WireError> {
        let files = files(reply.files)?;
        let text = |path| bounds::text("git_outside", path, bounds::MAX_SENTENCE_BYTES);
        Ok(Self { files, unpinned: reply.unpinned, git_outside: reply.git_outside.map(text).transpose()? })
    }
}

/// Bound files in order of path, each path once: two digests for one path would leave open which one counts.
pub(crate) fn files(files: Vec<wire::BoundFile>) -> Result<Vec<BoundFile>, WireError> {
    let files = bounds::plan_list("files", files, BoundFile::try_from)?;
    if files.is_sorted_by(|a, b| a.path < b.path) {
        Ok(files)
    } else {
        Err(WireError::Form { field: "files", form: "in order of path, each path once" })
    }
}

/// `Release` of what is held for an operation.
pub fn release_request(operation: OperationId) -> wire::ReleaseRequest {
    wire::ReleaseRequest { operation: operation.to_string() }
}

/// The operation that a `Release` names.
///
/// # Errors
/// It is no operation id.
pub fn operation_of(request: &wire::ReleaseRequest) -> Result<OperationId, WireError> {
    bounds::id("operation", &request.operation)
}

/// `CloseWorkspace` of a workspace.
pub fn close_request(workspace: WorkspaceId) -> wire::CloseWorkspaceRequest {
    wire::CloseWorkspaceRequest { workspace: workspace.to_string() }
}

/// The workspace that a `CloseWorkspace` names.
///
/// # Errors
/// It is no workspace id.
pub fn workspace_of(request: &wire::CloseWorkspaceRequest) -> Result<WorkspaceId, WireError> {
    bounds::id("workspace", &request.workspace)
}
