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
    running: Mutex<BTreeMap<OperationId, Moment>>,
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
        lock(&self.running).insert(operation, salaam_sys::file::change_clock());
        Present { vigil: Arc::clone(self), operation, root: Arc::clone(root), path }
    }
}

impl Present {
    /// Looks at what is there before the first command is.
    pub(super) fn survey(&self, guarded: &Guarded) {
        let mut known = lock(&self.vigil.known);
        if known.is_none() {
            *known = Some(scan::survey(&self.watch(guarded)));
        }
    }

    /// Looks at what is there after the command, which began at `since`.
    pub(super) fn settle(&self, guarded: &Guarded, since: Moment) -> Settled {
        let mut known = lock(&self.vigil.known);
        let earliest = lock(&self.vigil.running).values().min().copied().unwrap_or(since);
        let known = known.get_or_insert_default();
        let mut settled = scan::settle(&self.watch(guarded), since, earliest, known, self.operation);
        settled.changed.guard.mounts = guarded.mounts;
        settled.changed.guard.scanned = guarded.scanned;
        settled
    }

    /// What a command without walls changed: nothing is protected from it.
    pub(super) fn changed(&self, since: Moment) -> Changed {
        scan::changed(self.root.as_fd(), since)
    }

    fn watch<'a>(&'a self, guarded: &'a Guarded) -> Watch<'a> {
        Watch {
            root: self.root.as_fd(),
            workspace: &self.path,
            read_only: &guarded.read_only,
            unmounted: &guarded.unmounted,
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        lock(&self.vigil.running).remove(&self.operation);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
