//! One edit at a time in a workspace, in turn between sessions, and nothing on a new executor before the edit of an
//! old one is settled.
//!
//! An edit whose executor was lost is decided from what the disk says. That is only proof while nothing else has
//! taken effect in the workspace since.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::id::{SessionId, WorkspaceId};
use tokio::sync::watch;

use super::slots::{Slot, Slots};

/// Where edits are known from before their intent is durable until their receipt is.
#[derive(Debug)]
pub struct Gate {
    rooms: Mutex<HashMap<WorkspaceId, Room>>,
    changed: watch::Sender<()>,
}

/// A workspace in which an edit is under way, or waits.
#[derive(Debug)]
struct Room {
    /// One place. Copied only while `rooms` is locked, or by who holds a copy: the last one to leave can tell.
    turns: Arc<Slots>,
    inside: Vec<Inside>,
}

/// An edit: a number of its own, and the executor that it was sent to.
#[derive(Debug, Clone, Copy)]
struct Inside {
    number: u64,
    /// Absent = not sent yet.
    epoch: Option<u64>,
}

/// The right to have an edit under way; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    workspace: WorkspaceId,
    number: u64,
    turn: Option<Slot>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { rooms: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl Gate {
    /// In, if no edit is under way there and none waits that goes first.
    pub(super) fn try_enter(self: &Arc<Self>, workspace: WorkspaceId, session: SessionId) -> Option<Pass> {
        let turn = self.turns(workspace).try_take(session)?;
        Some(self.admit(workspace, turn, None))
    }

    /// Waits until no edit is under way there and its turn has come. May be dropped.
    pub(super) async fn enter(self: &Arc<Self>, workspace: WorkspaceId, session: SessionId) -> Option<Pass> {
        let turn = self.turns(workspace).take(session).await?;
        Some(self.admit(workspace, turn, None))
    }

    /// In at once, beside others: an edit that a service or an owner before this one sent.
    pub(super) fn enter_unsettled(self: &Arc<Self>, workspace: WorkspaceId, session: SessionId) -> Pass {
        let turn = self.turns(workspace).enter(session);
        self.admit(workspace, turn, Some(0))
    }

    /// Whether an edit that was sent to an executor before `epoch` is not settled there.
    pub(super) fn holds_back(&self, workspace: WorkspaceId, epoch: u64) -> bool {
        let rooms = self.lock();
        let inside = rooms.get(&workspace).map_or(&[][..], |room| &room.inside);
        inside.iter().any(|edit| edit.epoch.is_some_and(|sent| sent < epoch))
    }

    /// Waits until nothing holds `epoch` back there. May be dropped.
    pub(super) async fn clear(&self, workspace: WorkspaceId, epoch: u64) {
        let mut changed = self.changed.subscribe();
        while self.holds_back(workspace, epoch) {
            // The sender is ours, so it is there.
            drop(changed.changed().await);
        }
    }

    fn turns(&self, workspace: WorkspaceId) -> Arc<Slots> {
        Arc::clone(&self.lock().entry(workspace).or_default().turns)
    }

    fn admit(self: &Arc<Self>, workspace: WorkspaceId, turn: Slot, epoch: Option<u64>) -> Pass {
        let mut rooms = self.lock();
        let inside = &mut rooms.entry(workspace).or_default().inside;
        let number = inside.last().map_or(0, |last| last.number + 1);
        inside.push(Inside { number, epoch });
        Pass { gate: Arc::clone(self), workspace, number, turn: Some(turn) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Room {
    fn default() -> Self {
        Self { turns: Arc::new(Slots::new(1)), inside: Vec::new() }
    }
}

impl Pass {
    /// From here an effect is possible, by the executor of `epoch`.
    pub(super) fn sent_to(&self, epoch: u64) {
        let mut rooms = self.gate.lock();
        let inside = rooms.get_mut(&self.workspace).map(|room| &mut room.inside);
        if let Some(edit) = inside.and_then(|inside| inside.iter_mut().find(|edit| edit.number == self.number)) {
            edit.epoch = Some(epoch);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(room) = self.gate.lock().get_mut(&self.workspace) {
            room.inside.retain(|edit| edit.number != self.number);
        }
        // The next one is called only now that this one is not inside any more.
        drop(self.turn.take());
        let mut rooms = self.gate.lock();
        // Whoever waits, or was called a moment ago, holds a copy.
        if rooms.get(&self.workspace).is_some_and(|room| room.inside.is_empty() && Arc::strong_count(&room.turns) == 1)
        {
            rooms.remove(&self.workspace);
        }
        drop(rooms);
        self.gate.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(n: u8) -> WorkspaceId {
        WorkspaceId::new(1, [n; 10])
    }

    fn session(n: u8) -> SessionId {
        SessionId::new(1, [n; 10])
    }

    #[tokio::test]
    async fn edits_of_a_workspace_come_one_after_another_and_those_of_another_do_not_wait() {
        let gate = Arc::new(Gate::default());
        let first = gate.try_enter(workspace(1), session(1)).unwrap();
        assert!(gate.try_enter(workspace(1), session(1)).is_none());
        assert!(gate.try_enter(workspace(2), session(1)).is_some());
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(workspace(1), session(2)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        drop(waiting.await.unwrap());
        assert!(gate.try_enter(workspace(1), session(1)).is_some());
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_new_executor_before_the_edit_of_the_old_one_is_settled() {
        let gate = Arc::new(Gate::default());
        let pass = gate.try_enter(workspace(1), session(1)).unwrap();
        assert!(!gate.holds_back(workspace(1), 9), "nothing was sent");
        pass.sent_to(3);
        assert!(!gate.holds_back(workspace(1), 3), "the same executor keeps its own order");
        assert!(gate.holds_back(workspace(1), 4));
        assert!(!gate.holds_back(workspace(2), 4));
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.clear(workspace(1), 4).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(pass);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn what_an_earlier_service_sent_holds_everything_back() {
        let gate = Arc::new(Gate::default());
        let [one, two] =
            [gate.enter_unsettled(workspace(1), session(1)), gate.enter_unsettled(workspace(1), session(1))];
        assert!(gate.holds_back(workspace(1), 1) && gate.try_enter(workspace(1), session(1)).is_none());
        drop(two);
        assert!(gate.holds_back(workspace(1), 1));
        drop(one);
        assert!(!gate.holds_back(workspace(1), 1) && gate.try_enter(workspace(1), session(1)).is_some());
    }

    #[tokio::test]
    async fn edits_of_another_session_go_before_the_second_of_a_flood_and_nothing_is_left_of_a_room() {
        let gate = Arc::new(Gate::default());
        let (order, mut went) = tokio::sync::mpsc::unbounded_channel();
        let first = gate.try_enter(workspace(1), session(1)).unwrap();
        for n in [1, 1, 1, 2] {
            let (gate, order) = (Arc::clone(&gate), order.clone());
            tokio::spawn(async move {
                let pass = gate.enter(workspace(1), session(n)).await.unwrap();
                order.send(n).unwrap();
                drop(pass);
            });
            tokio::task::yield_now().await;
        }
        assert!(gate.try_enter(workspace(1), session(3)).is_none());
        drop(first);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            seen.push(went.recv().await.unwrap());
        }
        assert_eq!(seen, [1, 2, 1, 1]);
        tokio::task::yield_now().await;
        assert!(gate.lock().is_empty());
    }
}
