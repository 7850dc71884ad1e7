//! The workspaces in use: an O_PATH descriptor each, so that a directory put in the place of another is
//! noticed, and which executor has which one open.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{FileStat, SFlag, fstat},
};
use salaam_core::{bound::WorkspaceIdentity, bridge::OpenedWorkspace, id::WorkspaceId};

use crate::{
    executor::{BridgeError, Link},
    store::WorkspaceRow,
};

/// A workspace whose root is held open.
#[derive(Debug)]
pub struct Workspace {
    /// Its row.
    pub row: WorkspaceRow,
    root: OwnedFd,
}

impl AsFd for Workspace {
    /// Its root, as a place.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Why a workspace cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WorkspaceError {
    /// The path cannot be opened as it was registered.
    #[error("the workspace {path} cannot be opened: {why}")]
    Unreachable {
        /// Its path.
        path: String,
        /// The errno in words.
        why: String,
    },
    /// Not a directory.
    #[error("{path} is not a directory")]
    NotADirectory {
        /// Its path.
        path: String,
    },
    /// Another directory stands at its path.
    #[error("another directory stands at {path} than the one that was registered")]
    Replaced {
        /// Its path.
        path: String,
    },
    /// The executor sees another directory there than the service.
    #[error("the executor sees another directory at {path} than the service")]
    Disagree {
        /// Its path.
        path: String,
    },
    /// The executor could not open it.
    #[error("the executor cannot open {path}: {source}")]
    Executor {
        /// Its path.
        path: String,
        /// What it said.
        #[source]
        source: BridgeError,
    },
}

/// The workspaces that are registered and the executors that have them open.
#[derive(Debug, Default)]
pub struct Registry {
    held: Mutex<HashMap<WorkspaceId, Arc<Workspace>>>,
    opened: Mutex<HashMap<WorkspaceId, u64>>,
}

impl Registry {
    /// Opens the root at `path` (absolute, links resolved) without following a link.
    pub fn open_root(path: &[u8]) -> Result<(OwnedFd, FileStat), WorkspaceError> {
        let shown = || salaam_core::show::line(path);
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let root = match openat2(AT_FDCWD, Path::new(std::ffi::OsStr::from_bytes(path)), how) {
            Ok(root) => root,
            Err(nix::errno::Errno::ENOTDIR) => return Err(WorkspaceError::NotADirectory { path: shown() }),
            Err(e) => return Err(WorkspaceError::Unreachable { path: shown(), why: e.desc().to_owned() }),
        };
        let stat = fstat(&root).map_err(|e| WorkspaceError::Unreachable { path: shown(), why: e.desc().to_owned() })?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR {
            Ok((root, stat))
        } else {
            Err(WorkspaceError::NotADirectory { path: shown() })
        }
    }

    /// Holds a workspace that was just registered or read from the store.
    pub fn hold(&self, row: WorkspaceRow, root: OwnedFd) {
        let id = row.id;
        lock(&self.held).insert(id, Arc::new(Workspace { row, root }));
    }

    /// Forgets a workspace.
    pub fn forget(&self, id: WorkspaceId) {
        lock(&self.held).remove(&id);
        lock(&self.opened).remove(&id);
    }

    /// The identity that the row of `id` had, held by descriptor, and still stands at its path.
    pub fn identity(&self, row: &WorkspaceRow) -> Result<WorkspaceIdentity, WorkspaceError> {
        let held = lock(&self.held).get(&row.id).cloned();
        let held = match held {
            Some(held) => held,
            None => {
                let (root, _) = Self::open_root(&row.path)?;
                self.hold(row.clone(), root);
                lock(&self.held)
                    .get(&row.id)
                    .cloned()
                    .ok_or_else(|| WorkspaceError::Replaced { path: row.name.clone() })?
            }
        };
        let path = salaam_core::show::line(&row.path);
        let (_, now) = Self::open_root(&row.path)?;
        let kept = fstat(&held.root)
            .map_err(|e| WorkspaceError::Unreachable { path: path.clone(), why: e.desc().to_owned() })?;
        let same = (now.st_dev, now.st_ino) == (kept.st_dev, kept.st_ino)
            && (now.st_dev, now.st_ino) == (row.device, row.inode);
        if !same {
            return Err(WorkspaceError::Replaced { path });
        }
        Ok(WorkspaceIdentity {
            id: row.id,
            path: row.path.clone(),
            device: row.device,
            inode: row.inode,
            handle: row.handle.clone(),
        })
    }

    /// The workspace of `row`, held open, after the checks of [`Registry::identity`].
    pub fn workspace(&self, row: &WorkspaceRow) -> Result<Arc<Workspace>, WorkspaceError> {
        self.identity(row)?;
        lock(&self.held)
            .get(&row.id)
            .cloned()
            .ok_or_else(|| WorkspaceError::Replaced { path: salaam_core::show::line(&row.path) })
    }

    /// Makes sure that the executor behind `link` has the workspace open, and the same one.
    pub async fn open_on(&self, link: &Link, identity: &WorkspaceIdentity) -> Result<(), WorkspaceError> {
        if lock(&self.opened).get(&identity.id) == Some(&link.epoch()) {
            return Ok(());
        }
        let path = salaam_core::show::line(&identity.path);
        let opened = link
            .open_workspace(identity.id, &identity.path)
            .await
            .map_err(|source| WorkspaceError::Executor { path: path.clone(), source })?;
        if !same_directory(&opened, identity) {
            return Err(WorkspaceError::Disagree { path });
        }
        lock(&self.opened).insert(identity.id, link.epoch());
        Ok(())
    }

    /// How many descriptors are held, for tests and metrics.
    pub fn held(&self) -> usize {
        lock(&self.held).values().filter(|workspace| workspace.root.as_raw_fd() >= 0).count()
    }
}

/// Whether what the executor opened is what the service holds.
pub(crate) fn same_directory(opened: &OpenedWorkspace, identity: &WorkspaceIdentity) -> bool {
    (opened.device, opened.inode) == (identity.device, identity.inode) && opened.handle == identity.handle
}

/// A poisoned lock means that a holder panicked between two plain map operations; the map is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
