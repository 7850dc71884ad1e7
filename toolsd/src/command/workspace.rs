//! Workspaces as they were opened: a place held by descriptor, so that a name that leads elsewhere later
//! changes nothing.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags},
    libc,
    sys::stat::fstat,
    unistd::{AccessFlags, faccessat},
};
use salaam_core::{bridge::OpenedWorkspace, id::WorkspaceId};

use super::{Refusal, traffic::Traffic, vigil::Vigil};
use crate::sandbox::{PathRefusal, absolute, open_plain, refuse_workspace};

/// Workspaces that one executor holds open: one descriptor each.
const MOST: usize = 1024;

/// An open workspace.
#[derive(Debug)]
pub(super) struct Workspace {
    /// Its absolute path.
    pub(super) path: PathBuf,
    /// Its root, as a place.
    pub(super) root: Arc<OwnedFd>,
    /// Who runs in it.
    pub(super) traffic: Arc<Traffic>,
    /// What was in it, and since when somebody runs there.
    pub(super) vigil: Arc<Vigil>,
    identity: (u64, u64),
}

impl Workspace {
    /// One that is not registered: for the length of a probe, or of a test.
    pub(super) fn scratch(path: PathBuf, root: OwnedFd) -> Self {
        Self { path, root: Arc::new(root), traffic: Arc::default(), vigil: Arc::default(), identity: (0, 0) }
    }
}

/// All open workspaces.
#[derive(Debug, Default)]
pub(super) struct Workspaces(Mutex<HashMap<WorkspaceId, Arc<Workspace>>>);

impl Workspaces {
    /// Opens `path` under `id`; an id that is open already is opened anew.
    pub(super) fn open(&self, id: WorkspaceId, path: &[u8]) -> Result<OpenedWorkspace, Refusal> {
        let path = absolute(path).map_err(Refusal::WorkspacePath)?;
        refuse_workspace(&path).map_err(Refusal::WorkspacePath)?;
        let root = open_plain(&path).map_err(Refusal::WorkspacePath)?;
        let kernel = |errno: Errno| Refusal::WorkspacePath(PathRefusal::Open { path: path.clone(), errno });
        let stat = fstat(&root).map_err(kernel)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Refusal::WorkspaceNotDirectory(path.display().to_string()));
        }
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&root));
        let allowed = |access| faccessat(AT_FDCWD, own.as_str(), access, AtFlags::AT_EACCESS);
        // Without these not even a listing works.
        allowed(AccessFlags::R_OK | AccessFlags::X_OK).map_err(kernel)?;
        let writable = allowed(AccessFlags::W_OK).is_ok();
        let handle = salaam_sys::file::handle(&root).map_err(Refusal::kernel("reading the workspace's handle"))?;
        let opened =
            OpenedWorkspace { device: stat.st_dev, inode: stat.st_ino, handle: handle.unwrap_or_default(), writable };
        let mut all = self.lock();
        if all.len() >= MOST && !all.contains_key(&id) {
            return Err(Refusal::WorkspaceMany(MOST));
        }
        // One directory under two ids, or opened anew, has the traffic that it has.
        let identity = (stat.st_dev, stat.st_ino);
        let same = all.values().find(|other| other.identity == identity);
        let (traffic, vigil) =
            same.map(|other| (Arc::clone(&other.traffic), Arc::clone(&other.vigil))).unwrap_or_default();
        all.insert(id, Arc::new(Workspace { path, root: Arc::new(root), traffic, vigil, identity }));
        Ok(opened)
    }

    /// Forgets `id`; commands that run in it keep it until they end.
    pub(super) fn close(&self, id: WorkspaceId) {
        self.lock().remove(&id);
    }

    /// The open workspace.
    pub(super) fn find(&self, id: WorkspaceId) -> Result<Arc<Workspace>, Refusal> {
        self.lock().get(&id).cloned().ok_or(Refusal::WorkspaceUnknown(id))
    }

    /// Where all open ones are.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.lock().values().map(|workspace| workspace.path.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Arc<Workspace>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_workspace_is_refused_by_name() {
        let workspaces = Workspaces::default();
        let directory = std::env::temp_dir().join(format!("salaam-open-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("real")).unwrap();
        std::fs::write(directory.join("file"), "").unwrap();
        std::os::unix::fs::symlink("real", directory.join("link")).unwrap();
        let id = WorkspaceId::new(1, [1; 10]);
        let open = |name: &str| workspaces.open(id, directory.join(name).as_os_str().as_encoded_bytes());
        let ids = ["none", "file", "link"].map(|name| open(name).unwrap_err().id().to_owned());
        let opened = open("real");
        let found = workspaces.find(id).unwrap();
        workspaces.close(id);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(ids, ["workspace-missing", "workspace-not-directory", "workspace-refused"]);
        assert!(opened.unwrap().writable);
        assert!(found.path.ends_with("real"));
        assert_eq!(workspaces.find(id).unwrap_err().id(), "workspace-unknown");
    }
}
