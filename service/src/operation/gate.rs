//! One edit at a time in a workspace, and nothing on a new executor before the edit of an old one is settled.
//!
//! An edit whose executor was lost is decided from what the disk says. That is only proof while nothing else has
//! taken effect in the workspace since.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::id::WorkspaceId;
use tokio::sync::watch;

/// Where edits are known from before their intent is durable until their receipt is.
#[derive(Debug)]
pub struct Gate {
    inside: Mutex<HashMap<WorkspaceId, Vec<Inside>>>,
    changed: watch::Sender<()>,
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
}

impl Default for Gate {
    fn default() -> Self {
        Self { inside: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl Gate {
    /// In, if no edit is under way there.
    pub(super) fn try_enter(self: &Arc<Self>, workspace: WorkspaceId) -> Option<Pass> {
        let mut inside = self.lock();
        let there = inside.entry(workspace).or_default();
        if there.is_empty() { Some(self.admit(there, workspace, None)) } else { None }
    }

    /// Waits until no edit is under way there. May be dropped.
    pub(super) async fn enter(self: &Arc<Self>, workspace: WorkspaceId) -> Pass {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(pass) = self.try_enter(workspace) {
                return pass;
            }
            // The sender is ours, so it is there.
            drop(changed.changed().await);
        }
    }

    /// In at once, beside others: an edit that a service or an owner before this one sent.
    pub(super) fn enter_unsettled(self: &Arc<Self>, workspace: WorkspaceId) -> Pass {
        let mut inside = self.lock();
        let there = inside.entry(workspace).or_default();
        self.admit(there, workspace, Some(0))
    }

    /// Whether an edit that was sent to an executor before `epoch` is not settled there.
    pub(super) fn holds_back(&self, workspace: WorkspaceId, epoch: u64) -> bool {
        let inside = self.lock();
        let there = inside.get(&workspace).map_or(&[][..], Vec::as_slice);
        there.iter().any(|edit| edit.epoch.is_some_and(|sent| sent < epoch))
    }

    /// Waits until nothing holds `epoch` back there. May be dropped.
    pub(super) async fn clear(&self, workspace: WorkspaceId, epoch: u64) {
        let mut changed = self.changed.subscribe();
        while self.holds_back(workspace, epoch) {
            drop(changed.changed().await);
        }
    }

    fn admit(self: &Arc<Self>, there: &mut Vec<Inside>, workspace: WorkspaceId, epoch: Option<u64>) -> Pass {
        let number = there.last().map_or(0, |last| last.number + 1);
        there.push(Inside { number, epoch });
        Pass { gate: Arc::clone(self), workspace, number }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Vec<Inside>>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// From here an effect is possible, by the executor of `epoch`.
    pub(super) fn sent_to(&self, epoch: u64) {
        let mut inside = self.gate.lock();
        let there = inside.entry(self.workspace).or_default();
        if let Some(edit) = there.iter_mut().find(|edit| edit.number == self.number) {
            edit.epoch = Some(epoch);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.gate.lock();
        if let Some(there) = inside.get_mut(&self.workspace) {
            there.retain(|edit| edit.number != self.number);
            if there.is_empty() {
                inside.remove(&self.workspace);
            }
        }
        drop(inside);
        self.gate.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(n: u8) -> WorkspaceId {
        WorkspaceId::new(1, [n; 10])
    }

    #[tokio::test]
    async fn edits_of_a_workspace_come_one_after_another_and_those_of_another_do_not_wait() {
        let gate = Arc::new(Gate::default());
        let first = gate.try_enter(workspace(1)).unwrap();
        assert!(gate.try_enter(workspace(1)).is_none());
        assert!(gate.try_enter(workspace(2)).is_some());
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(workspace(1)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        drop(waiting.await.unwrap());
        assert!(gate.try_enter(workspace(1)).is_some());
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_new_executor_before_the_edit_of_the_old_one_is_settled() {
        let gate = Arc::new(Gate::default());
        let pass = gate.try_enter(workspace(1)).unwrap();
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
        let [one, two] = [gate.enter_unsettled(workspace(1)), gate.enter_unsettled(workspace(1))];
        assert!(gate.holds_back(workspace(1), 1) && gate.try_enter(workspace(1)).is_none());
        drop(two);
        assert!(gate.holds_back(workspace(1), 1));
        drop(one);
        assert!(!gate.holds_back(workspace(1), 1) && gate.try_enter(workspace(1)).is_some());
    }
}
