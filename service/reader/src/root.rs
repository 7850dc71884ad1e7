//! Opens what is asked for beneath one root, component by component, each by descriptor.
//!
//! Promise: a path never leads out of the root, whatever is renamed or linked meanwhile; nothing that is
//! opened can block (no FIFO is waited for, no lease, no other file system entered); and every object that is
//! read, and every directory on the way to it, is one that the account behind the commands could use itself.
//!
//! One openat2(2) for a whole path would be shorter. It would not say which directories the path went through,
//! and a file may be open to all in a directory that is not.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat},
    libc,
    sys::stat::{FileStat, fstat},
};

use crate::{
    account::{Account, Guard, Want},
    limits::{MAX_LINKS, MAX_STEPS},
    refusal::Refusal,
};

/// Whether links on a path are followed. Only such as stay beneath the root ever are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Relative ones that stay inside.
    Inside,
    /// None, as where an edit must name the file itself.
    Never,
}

/// The root of a workspace, and on whose behalf it is read.
#[derive(Debug)]
pub struct Root<'fd> {
    root: BorrowedFd<'fd>,
    account: Account,
}

/// An open directory that the account may go through.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    listable: bool,
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct File {
    /// The descriptor.
    pub fd: OwnedFd,
    /// What it was when it was opened.
    pub stat: FileStat,
}

/// What an entry of a directory is, by its own inode.
#[derive(Debug)]
pub(crate) struct Place {
    fd: OwnedFd,
    /// What it is.
    pub(crate) stat: FileStat,
}

/// The kinds of things that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, socket or device.
    Other,
}

impl Kind {
    /// That of a mode.
    pub const fn of(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Link,
            _ => Self::Other,
        }
    }
}

/// Where a path ends.
enum End {
    Directory(Directory),
    Entry { parent: Directory, name: Vec<u8>, place: Place },
}

impl<'fd> Root<'fd> {
    /// The root is a directory, open as a place or for reading.
    pub const fn new(root: BorrowedFd<'fd>, account: Account) -> Self {
        Self { root, account }
    }

    /// The directory at `path`; an empty path and `.` are the root.
    ///
    /// # Errors
    /// Everything but a directory that may be gone through.
    pub fn directory(&self, path: &[u8], links: Links) -> Result<Directory, Refusal> {
        match self.resolve(path, links)? {
            End::Directory(directory) => Ok(directory),
            End::Entry { .. } => Err(Refusal::NotDirectory),
        }
    }

    /// The regular file at `path`.
    ///
    /// # Errors
    /// Everything but a regular file that may be read.
    pub fn file(&self, path: &[u8], links: Links) -> Result<File, Refusal> {
        match self.resolve(path, links)? {
            End::Directory(_) => Err(Refusal::NotRegular),
            End::Entry { parent, name, place } => match Kind::of(place.stat.st_mode) {
                Kind::File => self.open_file(&parent, &name),
                Kind::Link => Err(Refusal::LeadsOut),
                Kind::Directory | Kind::Other => Err(Refusal::NotRegular),
            },
        }
    }

    /// The regular file `name` in `directory`; a link is not followed.
    pub(crate) fn open_file(&self, directory: &Directory, name: &[u8]) -> Result<File, Refusal> {
        // Not to be waited for: a FIFO that took the file's place, or somebody's lease on it.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
        let fd = match open(&directory.fd, name, flags) {
            Ok(fd) => fd,
            Err(Errno::EACCES | Errno::EPERM) => {
                let place = Place::of(&directory.fd, name)?;
                return Err(self.closed_to_us(&place.stat));
            }
            Err(errno) => return Err(refused(errno)),
        };
        let (guard, stat) = Guard::of(&fd).map_err(|_| Refusal::Unreadable)?;
        match Kind::of(stat.st_mode) {
            Kind::File if self.account.may(Want::Read, &guard) => Ok(File { fd, stat }),
            Kind::File => Err(Refusal::Unreadable),
            Kind::Directory | Kind::Link | Kind::Other => Err(Refusal::NotRegular),
        }
    }

    /// The directory `name` in `directory`; a link is not followed.
    pub(crate) fn open_directory(&self, directory: &Directory, name: &[u8]) -> Result<Directory, Refusal> {
        let place = Place::of(&directory.fd, name)?;
        match Kind::of(place.stat.st_mode) {
            Kind::Directory => self.enter(&place),
            Kind::File | Kind::Link | Kind::Other => Err(Refusal::NotDirectory),
        }
    }

    fn resolve(&self, path: &[u8], links: Links) -> Result<End, Refusal> {
        if path.first() == Some(&b'/') || path.contains(&0) {
            return Err(Refusal::LeadsOut);
        }
        let top = Place::of(self.root, b".")?;
        let mut here = self.enter(&top)?;
        // Those above `here`, so that `..` goes back the way that was come, and never above the root.
        let mut above = Vec::new();
        let mut ahead: Vec<Vec<u8>> = components(path);
        let (mut steps, mut followed) = (0, 0);
        while let Some(name) = ahead.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(Refusal::TooManySteps);
            }
            if name == b".." {
                here = above.pop().ok_or(Refusal::LeadsOut)?;
                continue;
            }
            let place = Place::of(&here.fd, &name)?;
            match Kind::of(place.stat.st_mode) {
                Kind::Directory => above.push(std::mem::replace(&mut here, self.enter(&place)?)),
                Kind::Link if links == Links::Inside => {
                    followed += 1;
                    if followed > MAX_LINKS {
                        return Err(Refusal::TooManySteps);
                    }
                    let target = readlinkat(&place.fd, "").map_err(refused)?.into_vec();
                    if target.first() == Some(&b'/') {
                        return Err(Refusal::LeadsOut);
                    }
                    ahead.extend(components(&target));
                }
                Kind::File | Kind::Link | Kind::Other if ahead.is_empty() => {
                    return Ok(End::Entry { parent: here, name, place });
                }
                Kind::Link => return Err(Refusal::LeadsOut),
                Kind::File | Kind::Other => return Err(Refusal::NotDirectory),
            }
        }
        Ok(End::Directory(here))
    }

    fn enter(&self, place: &Place) -> Result<Directory, Refusal> {
        let fd = match open(&place.fd, b".", OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::EACCES | Errno::EPERM) => return Err(self.closed_to_us(&place.stat)),
            Err(errno) => return Err(refused(errno)),
        };
        let (guard, _) = Guard::of(&fd).map_err(|_| Refusal::Unreadable)?;
        if !self.account.may(Want::Search, &guard) {
            return Err(Refusal::Unreadable);
        }
        Ok(Directory { fd, listable: self.account.may(Want::Read, &guard) })
    }

    /// The kernel did not open it for the service user. An access list cannot be read then; the owner's class
    /// is exact without it, and what a command left at 0600 is the case that matters.
    fn closed_to_us(&self, stat: &FileStat) -> Refusal {
        if stat.st_uid == self.account.uid && stat.st_mode & libc::S_IRUSR != 0 {
            Refusal::ToolsOnly
        } else {
            Refusal::Unreadable
        }
    }
}

impl Directory {
    /// What the entry `name` is; a mount point is [`Refusal::Mount`].
    pub(crate) fn place(&self, name: &[u8]) -> Result<Place, Refusal> {
        Place::of(&self.fd, name)
    }

    /// The same directory once more, to read its names from the start.
    pub(crate) fn reopen(&self) -> Result<OwnedFd, Refusal> {
        if !self.listable {
            return Err(Refusal::Unreadable);
        }
        open(&self.fd, b".", OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(refused)
    }
}

impl Place {
    fn of(directory: impl AsFd, name: &[u8]) -> Result<Self, Refusal> {
        let fd = open(directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW).map_err(refused)?;
        let stat = fstat(&fd).map_err(refused)?;
        Ok(Self { fd, stat })
    }

    /// Where a link leads, as it says itself.
    pub(crate) fn target(&self) -> Result<Vec<u8>, Refusal> {
        Ok(readlinkat(&self.fd, "").map_err(refused)?.into_vec())
    }
}

/// One component. No link is followed and no mount crossed: a FUSE file system of the tools user would
/// otherwise decide when, and whether, a call returns.
fn open(directory: impl AsFd, name: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    );
    openat2(directory, OsStr::from_bytes(name), how)
}

/// The components of a path, the first one last.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let named = |part: &&[u8]| !part.is_empty() && *part != b".";
    path.split(|byte| *byte == b'/').filter(named).rev().map(<[u8]>::to_vec).collect()
}

fn refused(errno: Errno) -> Refusal {
    match errno {
        Errno::ENOENT => Refusal::Missing,
        Errno::ENOTDIR => Refusal::NotDirectory,
        // What was a file when it was looked at is a link now.
        Errno::ELOOP => Refusal::LeadsOut,
        Errno::EXDEV => Refusal::Mount,
        // A lease: only a lookup of `..` could give this otherwise, and none is made.
        Errno::EAGAIN => Refusal::Busy,
        // A FIFO, socket or device that took its place.
        Errno::ENXIO | Errno::ENODEV => Refusal::NotRegular,
        Errno::ENAMETOOLONG => Refusal::Missing,
        Errno::EACCES | Errno::EPERM => Refusal::Unreadable,
        errno => Refusal::Kernel { step: "opening it", errno },
    }
}

#[cfg(test)]
mod tests;
