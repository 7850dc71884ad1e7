//! What an operation needs to be sent: room, and for an edit its pre-images on the disk.

use std::sync::Arc;

use salaam_core::{
    edit::Change,
    id::{SessionId, WorkspaceId},
    operation::Kind,
};

use super::{
    Context,
    ears::{Halt, Heard},
    gate::{Gate, Pass},
    look::Look,
    owner::{Case, Owner},
    refuse::{already, control_failed},
    slots::{Slot, Slots},
};
use crate::{executor::Link, operation::Refusal};

/// An operation whose intent is durable.
pub(super) struct Ready {
    pub case: Case,
    pub link: Link,
    pub way: Way,
}

/// How it is sent, with what makes room for it.
pub(super) enum Way {
    /// As a command that runs.
    Command(Slot),
    /// As an edit, which the executor makes itself.
    Edit {
        pass: Pass,
        changes: Vec<Change>,
        /// Directories that go where they are empty afterwards.
        directories: Vec<Vec<u8>>,
    },
}

/// Room for one operation: a slot for a command that runs, or the right to be the one edit of a workspace.
pub(super) enum Room {
    Slot(Slot),
    Edit(Pass),
}

/// Where room is found; cheap to clone, so that a wait borrows nothing.
pub(super) struct Rooms {
    slots: Arc<Slots>,
    gate: Arc<Gate>,
}

impl Rooms {
    pub(super) fn of(context: &Context) -> Self {
        Self { slots: Arc::clone(&context.slots), gate: Arc::clone(&context.gate) }
    }

    fn try_one(&self, kind: Kind, workspace: WorkspaceId, session: SessionId) -> Option<Room> {
        if is_edit(kind) {
            self.gate.try_enter(workspace, session).map(Room::Edit)
        } else {
            self.slots.try_take(session).map(Room::Slot)
        }
    }

    /// Waits for room; absent = there will be none any more.
    pub(super) async fn one(&self, kind: Kind, workspace: WorkspaceId, session: SessionId) -> Option<Room> {
        if is_edit(kind) {
            self.gate.enter(workspace, session).await.map(Room::Edit)
        } else {
            self.slots.take(session).await.map(Room::Slot)
        }
    }
}

impl Owner {
    pub(super) fn try_room(&self, kind: Kind, workspace: WorkspaceId, session: SessionId) -> Option<Room> {
        Rooms::of(&self.context).try_one(kind, workspace, session)
    }

    /// Makes everything ready for the intent: what an edit replaces is on the disk before it. From here to the
    /// record nothing is sent.
    pub(super) async fn ready(&self, case: &Case, room: Room, look: Look) -> Result<(Link, Way), Refusal> {
        let link = look.link;
        match (room, look.sketch) {
            (Room::Slot(slot), None) => Ok((link, Way::Command(slot))),
            (Room::Edit(pass), Some(sketch)) => {
                let images = sketch.planned.files.into_iter().map(|file| (file.path, file.pre)).collect();
                self.context.store.keep_images(case.row.id, images).await.map_err(Refusal::journal)?;
                pass.sent_to(link.epoch());
                Ok((link, Way::Edit { pass, changes: sketch.planned.changes, directories: sketch.directories }))
            }
            // Both follow from the kind of the same work.
            (Room::Slot(_), Some(_)) | (Room::Edit(_), None) => Err(control_failed()),
        }
    }

    /// Lets go of what was kept for an edit that took no effect. What stays is removed by the next start.
    pub(super) async fn drop_images(&self) {
        if let Err(error) = self.context.store.drop_images(self.id).await {
            tracing::warn!(operation = %self.id, %error, "the files kept for an edit could not be removed");
        }
    }

    /// Waits for `what`; an order to end comes first.
    pub(super) async fn unless_ended<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return Ok(done),
                heard = self.ears.hear() => match heard {
                    Heard::End(halt) => return Err(halt),
                    Heard::Decide { answer, .. } => {
                        drop(answer.send(Err(already(salaam_core::operation::State::Granted))));
                    }
                },
            }
        }
    }
}

/// Whether the executor makes it itself instead of running a program.
pub(super) const fn is_edit(kind: Kind) -> bool {
    match kind {
        Kind::Command => false,
        Kind::Edit | Kind::Undo | Kind::Restore | Kind::Patch => true,
    }
}
