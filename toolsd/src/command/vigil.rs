//! Who runs in a workspace and what was in it before, so that what a command leaves behind can be told from what its
//! owner had there.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::{id::OperationId, result::Changed};

use crate::{
    sandbox::Protection,
    scan::{self, Known, Moment, Settled, Watch},
};

/// The vigil over one workspace.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    /// Absent before the first sandboxed command. Held through a whole look: two at once would take away the same.
    known: Mutex<Option<Known>>,
    busy: Mutex<Busy>,
}

/// Who runs, and since when somebody does.
#[derive(Debug, Default)]
struct Busy {
    /// When the first began of all that have run since nobody did. What the look after an earlier one has missed, since
    /// another moved it about, is found by the look after the last: everything since then counts for it.
    since: Option<Moment>,
    /// Each with whether no other has run beside it.
    running: BTreeMap<OperationId, bool>,
}

impl Busy {
    fn enter(&mut self, operation: OperationId, now: Moment) {
        let alone = self.running.is_empty();
        self.since = self.since.filter(|_| !alone).or(Some(now));
        self.running.values_mut().for_each(|alone| *alone = false);
        self.running.insert(operation, alone);
    }

    fn leave(&mut self, operation: OperationId) {
        self.running.remove(&operation);
        self.since = self.since.filter(|_| !self.running.is_empty());
    }

    fn is_alone(&self, operation: OperationId) -> bool {
        self.running.get(&operation).copied().unwrap_or(false)
    }
}

/// How the protected paths of one command are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Guarded {
    read_only: Vec<PathBuf>,
    unmounted: Vec<(PathBuf, bool)>,
    mounts: u64,
    scanned: u64,
}

impl Guarded {
    /// By these mounts, and by the look after the command.
    pub(super) fn by(protection: &Protection) -> Self {
        let read_only = protection.mounts.iter().filter(|mount| mount.read_only);
        Self {
            read_only: read_only.map(|mount| mount.path.clone()).collect(),
            unmounted: protection.unmounted.iter().map(|path| (path.path.clone(), path.exists)).collect(),
            mounts: protection.mounts.len() as u64,
            scanned: protection.scanned as u64,
        }
    }
}

/// A command under the vigil; it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Present {
    vigil: Arc<Vigil>,
    operation: OperationId,
    root: Arc<OwnedFd>,
    path: PathBuf,
}

impl Vigil {
    /// Notes that a command is about to begin in the workspace at `path`.
    pub(super) fn enter(self: &Arc<Self>, operation: OperationId, root: &Arc<OwnedFd>, path: PathBuf) -> Present {
        lock(&self.busy).enter(operation, salaam_sys::file::change_clock());
        Present { vigil: Arc::clone(self), operation, root: Arc::clone(root), path }
    }
}

impl Present {
    /// Looks at what is there before the first command is.
    pub(super) fn survey(&self, guarded: &Guarded) {
        let mut known = lock(&self.vigil.known);
        if known.is_none() {
            *known = Some(scan::survey(&self.watch(guarded, false)));
        }
    }

    /// Looks at what is there after the command, which began at `since`.
    pub(super) fn settle(&self, guarded: &Guarded, since: Moment) -> Settled {
        let mut known = lock(&self.vigil.known);
        let (earliest, alone) = {
            let busy = lock(&self.vigil.busy);
            (busy.since.unwrap_or(since), busy.is_alone(self.operation))
        };
        let known = known.get_or_insert_default();
        let mut settled = scan::settle(&self.watch(guarded, alone), since, earliest, known, self.operation);
        settled.changed.guard.mounts = guarded.mounts;
        settled.changed.guard.scanned = guarded.scanned;
        settled
    }

    /// What a command without walls changed: nothing is protected from it.
    pub(super) fn changed(&self, since: Moment) -> Changed {
        scan::changed(self.root.as_fd(), since)
    }

    fn watch<'a>(&'a self, guarded: &'a Guarded, alone: bool) -> Watch<'a> {
        Watch {
            root: self.root.as_fd(),
            workspace: &self.path,
            read_only: &guarded.read_only,
            alone,
            unmounted: &guarded.unmounted,
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        lock(&self.vigil.busy).leave(self.operation);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_after_what_still_ran_answers_for_all_of_it() {
        let of = |number| OperationId::new(number, [1; 10]);
        let mut busy = Busy::default();
        busy.enter(of(1), (1, 0));
        assert!(busy.is_alone(of(1)));
        busy.enter(of(2), (2, 0));
        busy.leave(of(1));
        busy.enter(of(3), (3, 0));
        busy.leave(of(2));
        assert_eq!((busy.since, busy.is_alone(of(3)), busy.is_alone(of(2))), (Some((1, 0)), false, false));
        busy.leave(of(3));
        busy.enter(of(4), (4, 0));
        assert_eq!((busy.since, busy.is_alone(of(4))), (Some((4, 0)), true));
    }
}
