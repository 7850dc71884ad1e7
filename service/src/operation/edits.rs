//! Looks at the files of an edit or an undo, and plans it.

use std::collections::BTreeSet;

use salaam_core::{
    bridge::ReadFiles,
    edit::{self, Change, EditError, Expected, MAX_EDIT_BYTES, MAX_FILE_BYTES},
    id::{OperationId, SessionId},
    operation::{Kind, State},
    protect,
    reader::{self, NotRead},
    show,
};

use super::{
    Context, intent,
    plan::{Before, Done, Planned, moved},
    refuse::{Unseen, bridge_refusal, workspace_refusal},
    slots::Slot,
};
use crate::{
    executor::Link,
    operation::Refusal,
    readers::ReaderError,
    store::{OperationRow, WorkspaceRow},
};

/// Where it is looked, and what was bound before.
pub(super) struct View<'a> {
    pub link: &'a Link,
    pub row: &'a WorkspaceRow,
    /// For whom.
    pub session: SessionId,
    /// What was bound of each file; absent = nothing yet.
    pub bound: Option<&'a [Expected]>,
}

/// A planned edit, while it is in memory.
#[derive(Debug)]
pub(super) struct Sketch {
    pub planned: Planned,
    /// Directories that go where they are empty afterwards.
    pub directories: Vec<Vec<u8>>,
    /// Bounds how many edits are in memory at once.
    _room: Slot,
}

/// What `changes` come to now.
pub(super) async fn edit(context: &Context, view: &View<'_>, changes: &[Change]) -> Result<Sketch, Unseen> {
    let paths = edit::paths(changes).map_err(|e| refused(&e))?;
    // By its name alone, before anything is looked at; the executor knows more names, and refuses by itself.
    if let Some(path) = paths.iter().find(|path| protect::is_protected(path)) {
        return Err(Refusal::new(
            "protected-path",
            422,
            format!("{} is protected: git, an editor, a shell or Salaam acts on what lies there", show::line(path)),
            "make this change by hand, outside of Salaam",
        )
        .into());
    }
    let room = room(context, view.session).await?;
    let before = before(context, view, paths).await?;
    let changes = changes.to_vec();
    let planned = plan(changes, before).await?;
    Ok(Sketch { planned, directories: Vec::new(), _room: room })
}

/// What taking `operation` back comes to now.
pub(super) async fn undo(context: &Context, view: &View<'_>, operation: OperationId) -> Result<Sketch, Unseen> {
    let row = undoable(context, view.row, operation).await?;
    let lost = || {
        Refusal::new(
            "not-undoable",
            409,
            format!("what {operation} replaced is not kept any more"),
            "edit the files by hand",
        )
    };
    let files = intent::files(&row).ok_or_else(lost)?;
    let room = room(context, view.session).await?;
    let kept = context.store.images(operation).await.map_err(Refusal::journal)?.ok_or_else(lost)?;
    let done = Done { files, before: kept };
    let before = before(context, view, done.paths()).await?;
    let changes = done.undone(&before)?;
    let planned = plan(changes, before).await?;
    Ok(Sketch { planned, directories: intent::made(&row), _room: room })
}

/// The row of an edit that took effect in this workspace.
async fn undoable(context: &Context, place: &WorkspaceRow, operation: OperationId) -> Result<OperationRow, Refusal> {
    let row = context.store.operation(operation).await.map_err(Refusal::journal)?;
    let row = row.ok_or_else(|| Refusal::not_found("operation", operation))?;
    let not = |why: String, fix: &str| Err(Refusal::new("not-undoable", 409, format!("{operation} {why}"), fix));
    match row.kind {
        Kind::Edit | Kind::Undo => {}
        Kind::Command | Kind::Restore | Kind::Patch => {
            return not(
                format!("is a {}: what it did is not known file by file", row.kind),
                "only edits and undos are taken back",
            );
        }
    }
    if row.workspace != place.id {
        return not(format!("is of another workspace than {}", place.id), "name the workspace that it was in");
    }
    if row.state != State::Completed {
        return not(format!("is {}: there is nothing to take back", row.state), "only what completed is taken back");
    }
    Ok(row)
}

/// Each file as it stands, or the name of the first that is no longer what was bound.
///
/// The service's own reader reads; only what nobody but the executor's account can read is the executor's word. The
/// first time the executor reads everything too: an edit that it would refuse, or sees differently, is not put to
/// anybody.
async fn before(context: &Context, view: &View<'_>, paths: BTreeSet<Vec<u8>>) -> Result<Before, Unseen> {
    let root = context.workspaces.workspace(view.row).map_err(|e| workspace_refusal(&e))?;
    let mut before = Before::new();
    let mut closed = BTreeSet::new();
    let mut room = MAX_EDIT_BYTES;
    for path in &paths {
        match context.readers.whole(view.row.id, &*root, path.clone(), MAX_FILE_BYTES as u64).await {
            Ok(whole) => {
                room = room.checked_sub(whole.image.content.len()).ok_or_else(|| refused(&EditError::TooLarge))?;
                before.insert(path.clone(), Some(whole.image));
            }
            Err(ReaderError::Refused(NotRead { why: reader::Refused::NotFound, .. })) => {
                before.insert(path.clone(), None);
            }
            Err(ReaderError::Refused(NotRead { why: reader::Refused::ToolsOnly, .. })) => {
                closed.insert(path.clone());
            }
            Err(error) => return Err(unread(context, path, error).await),
        }
    }
    let asked = if view.bound.is_none() { paths } else { closed };
    if !asked.is_empty() {
        let read = ReadFiles {
            workspace: view.row.id,
            paths: asked.into_iter().collect(),
            protected_paths: context.protected_paths(),
        };
        let read = view.link.read_files(read).await.map_err(|e| bridge_refusal(&e))?;
        for (path, image) in read.files {
            match before.get(&path) {
                Some(seen) if *seen != image => return Err(disagree(path)),
                Some(_) => {}
                None => drop(before.insert(path, image)),
            }
        }
    }
    match view.bound.and_then(|bound| moved(bound, &before)) {
        None => Ok(before),
        Some(path) => Err(Unseen {
            refusal: Refusal::new(
                "stale",
                409,
                format!("{} is no longer what was shown", show::line(path)),
                "propose it again and look at the new approval",
            ),
            path: Some(path.to_vec()),
        }),
    }
}

/// A file that was not read.
async fn unread(context: &Context, path: &[u8], error: ReaderError) -> Unseen {
    let message = format!("{} cannot be read for an edit: {error}", show::line(path));
    if let Some(control) = error.control() {
        context.control_failed(control, &message).await;
    }
    let status = match &error {
        ReaderError::Question(_) => 400,
        ReaderError::Refused(_) => 409,
        ReaderError::Spawn { .. }
        | ReaderError::Prepare { .. }
        | ReaderError::Build { .. }
        | ReaderError::NotConfined(_)
        | ReaderError::Impossible { .. }
        | ReaderError::Late { .. }
        | ReaderError::Lost { .. }
        | ReaderError::Full { .. }
        | ReaderError::Stopping => 503,
    };
    let refusal = Refusal::new(error.id(), status, message, "see the message; nothing was changed");
    Unseen { refusal, path: Some(path.to_vec()) }
}

/// It changes while it is looked at, or one of the two looks elsewhere: not something to ask anybody about.
fn disagree(path: Vec<u8>) -> Unseen {
    let message = format!("service and executor see {} differently", show::line(&path));
    let refusal = Refusal::new("differs", 409, message, "propose it again once nothing writes to it");
    Unseen { refusal, path: Some(path) }
}

/// Off the threads that everybody shares: matching reads up to 256 MiB.
async fn plan(changes: Vec<Change>, before: Before) -> Result<Planned, Unseen> {
    let planned = tokio::task::spawn_blocking(move || Planned::of(changes, &before)).await;
    let planned = planned.map_err(|e| Refusal::new("edit-refused", 500, e.to_string(), "report this"))?;
    planned.map_err(|e| refused(&e).into())
}

async fn room(context: &Context, session: SessionId) -> Result<Slot, Refusal> {
    context.sketches.take(session).await.ok_or_else(super::refuse::control_failed)
}

fn refused(error: &EditError) -> Refusal {
    Refusal::new("edit-refused", 409, error.to_string(), "see the message; nothing was changed")
}
