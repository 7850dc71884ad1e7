//! Directories that an edit makes for a file deeper down. Each carries a mark until the edit is over, so that
//! from disk alone it can be told whose it is; taking the edit back removes it where it is empty.
//!
//! A directory gets its mark under a temporary name and its own name after that: a crash leaves either a
//! marked directory or that one temporary name.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat, renameat2},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use salaam_core::{id::OperationId, show};

use super::{
    Refusal,
    place::{Directory, directory, split},
    slot::{exists, taken},
};

/// Directories that one edit makes.
pub(super) const MOST: usize = 256;

/// The names that an edit uses for directories.
#[derive(Debug)]
pub(super) struct Names {
    /// A directory that is being made or taken away.
    pub(super) temporary: OsString,
    /// The mark, in it.
    mark: OsString,
}

impl Names {
    pub(super) fn new(operation: OperationId) -> Self {
        Self { temporary: format!(".salaam-{operation}-d").into(), mark: format!(".salaam-{operation}-m").into() }
    }

    /// Makes `path`, whose parent is open, with its mark.
    pub(super) fn make(&self, parent: &Directory, path: &Path) -> Result<Arc<Directory>, Refusal> {
        let (_, name) = split(path);
        // The setgid bit and the default ACL of the parent apply, as for any directory that is made there.
        mkdirat(parent, self.temporary.as_os_str(), Mode::from_bits_truncate(0o777))
            .map_err(|errno| taken(errno, "making", path.with_file_name(&self.temporary)))?;
        let made = self.mark_and_name(parent, name).map_err(|errno| match errno {
            Errno::EEXIST => Refusal::Stale { path: path.to_owned(), what: "the directory exists now" },
            errno => Refusal::kernel("making", path)(errno),
        });
        if made.is_err() && !self.sweep(parent).unwrap_or(false) {
            let left = path.with_file_name(&self.temporary);
            let evidence = format!("{} could not be removed", show::line(left.as_os_str().as_encoded_bytes()));
            return Err(Refusal::Undecided { evidence });
        }
        made
    }

    fn mark_and_name(&self, parent: &Directory, name: &OsStr) -> Result<Arc<Directory>, Errno> {
        let made = directory(parent, Path::new(&self.temporary))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&made, self.mark.as_os_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        renameat2(parent, self.temporary.as_os_str(), parent, name, RenameFlags::RENAME_NOREPLACE)?;
        Ok(Arc::new(made))
    }

    /// Whether this edit made the directory.
    pub(super) fn marked(&self, made: &Directory) -> Result<bool, Errno> {
        exists(made, &self.mark)
    }

    /// Whether anything but the mark is in it.
    fn is_used(&self, made: &Directory) -> Result<bool, Errno> {
        let mut listing =
            Dir::openat(made, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        for entry in listing.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && name != self.mark.as_encoded_bytes() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the mark away: the directory stays.
    pub(super) fn unmark(&self, made: &Directory, path: &Path) -> Result<(), Refusal> {
        match unlinkat(made, self.mark.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(Refusal::kernel("removing the mark in", path)(errno)),
        }
    }

    /// Removes a marked directory with its mark. One into which somebody put something stays, without it.
    pub(super) fn unmake(&self, parent: &Directory, path: &Path) -> Result<(), Refusal> {
        let (_, name) = split(path);
        let temporary = self.temporary.as_os_str();
        let failed = |errno| Refusal::kernel("removing", path)(errno);
        // The common case without a move: what others put there is under no other name for a moment.
        match directory(parent, Path::new(name)) {
            Ok(here) if !self.marked(&here).map_err(failed)? => return Ok(()),
            Ok(here) if self.is_used(&here).map_err(failed)? => return self.unmark(&here, path),
            Ok(_) => {}
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        }
        match renameat2(parent, name, parent, temporary, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        }
        let moved = directory(parent, Path::new(temporary)).map_err(failed)?;
        if self.marked(&moved).map_err(failed)? {
            self.unmark(&moved, path)?;
            match unlinkat(parent, temporary, UnlinkatFlags::RemoveDir) {
                Ok(()) => return Ok(()),
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        renameat2(parent, temporary, parent, name, RenameFlags::RENAME_NOREPLACE).map_err(failed)
    }

    /// Removes the one directory that a crash can leave under the temporary name; true where there is none.
    pub(super) fn sweep(&self, parent: &Directory) -> Result<bool, Errno> {
        let temporary = self.temporary.as_os_str();
        match directory(parent, Path::new(temporary)) {
            Ok(left) => {
                let gone = unlinkat(&left, self.mark.as_os_str(), UnlinkatFlags::NoRemoveDir);
                gone.or_else(|errno| if errno == Errno::ENOENT { Ok(()) } else { Err(errno) })?;
            }
            Err(Errno::ENOENT) => return Ok(true),
            // Not what this edit would leave.
            Err(Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        match unlinkat(parent, temporary, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// Every directory above these files, the root (an empty path) among them, the deepest first.
pub(super) fn above<'a>(files: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = files.flat_map(|file| file.ancestors().skip(1)).map(Path::to_owned).collect();
    // Deepest first; a path sorts after what it lies in.
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// Removes a directory if it is empty; one that is not, or that is gone, is left as it is.
pub(super) fn remove_empty(parent: &Directory, name: &OsStr, path: &Path) -> Result<bool, Refusal> {
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOENT | Errno::ENOTDIR | Errno::EBUSY) => Ok(false),
        Err(errno) => Err(Refusal::kernel("removing", path)(errno)),
    }
}
