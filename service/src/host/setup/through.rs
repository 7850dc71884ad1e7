//! Letting the tools user pass through the directories above a workspace, with as little as that takes: one ACL
//! entry, execute only.

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::{Mode, fstat},
};

use super::SetupError;
use crate::host::acl;

/// The directories above `workspace` (resolved) through which an account cannot pass, topmost first.
pub(crate) fn closed_to(workspace: &Path, uid: u32, groups: &[u32]) -> Result<Vec<PathBuf>, SetupError> {
    let mut closed = Vec::new();
    for above in workspace.ancestors().skip(1) {
        let directory = open_plainly(above)?;
        let stat = fstat(&directory).map_err(|e| SetupError::io("cannot examine", above)(e.into()))?;
        let list = acl::of(&directory).map_err(SetupError::io("cannot read the ACL of", above))?;
        let list = list.unwrap_or_else(|| acl::Acl::of_mode(stat.st_mode));
        if !list.permits((stat.st_uid, stat.st_gid), uid, groups, acl::EXECUTE) {
            closed.push(above.to_owned());
        }
    }
    closed.reverse();
    Ok(closed)
}

/// Adds the entry to one directory.
pub(crate) fn let_through(directory: &Path, uid: u32) -> Result<(), SetupError> {
    change(directory, |list| Some(list.with_user(uid, acl::EXECUTE)))
}

/// Takes the entry away again; what is left of an ACL that says no more than a mode goes too.
pub(crate) fn shut_again(directory: &Path, uid: u32) -> Result<(), SetupError> {
    change(directory, |list| list.is_extended().then(|| list.without_user(uid)))
}

fn change(path: &Path, new: impl FnOnce(acl::Acl) -> Option<acl::Acl>) -> Result<(), SetupError> {
    let directory = open_plainly(path)?;
    let apply = || -> io::Result<()> {
        let mode = fstat(&directory)?.st_mode;
        let old = acl::of(&directory)?.unwrap_or_else(|| acl::Acl::of_mode(mode));
        match new(old) {
            None => Ok(()),
            Some(list) => salaam_sys::xattr::set(&directory, acl::ACCESS, &list.to_bytes()),
        }
    };
    apply().map_err(SetupError::io("cannot change the ACL of", path))
}

/// Opens a directory step by step from the root, following no link: an owner of one of the steps who puts a link
/// there does not choose whose ACL root changes.
fn open_plainly(path: &Path) -> Result<OwnedFd, SetupError> {
    let fail = |e: nix::Error| SetupError::io("cannot open", path)(e.into());
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut directory = open("/", flags, Mode::empty()).map_err(fail)?;
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => directory = openat(&directory, name, flags, Mode::empty()).map_err(fail)?,
            Component::ParentDir | Component::Prefix(_) => {
                let why = "it holds `..`".to_owned();
                return Err(SetupError::Path { path: path.to_owned(), why, fix: "give the path itself".into() });
            }
        }
    }
    Ok(directory)
}

/// Whether a path is a directory that exists, by its own metadata.
pub(crate) fn owner_and_mode(path: &Path) -> Result<Option<(u32, u32, u32)>, SetupError> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(SetupError::io("cannot examine", path)(e)),
        Ok(meta) if meta.is_dir() => Ok(Some((meta.uid(), meta.gid(), meta.mode() & 0o7777))),
        Ok(_) => {
            let why = "it is no directory".to_owned();
            Err(SetupError::Path { path: path.to_owned(), why, fix: "move it away".into() })
        }
    }
}
