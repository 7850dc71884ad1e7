//! One group as a directory that is held open: everything in it by name, no link followed, nothing outside reached.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    path::Path,
};

use nix::{
    dir::Dir,
    fcntl::{AT_FDCWD, OFlag, openat},
    libc,
    sys::{
        stat::{Mode, fchmod, fstat, mkdirat},
        statfs::{CGROUP2_SUPER_MAGIC, fstatfs},
    },
    unistd::{UnlinkatFlags, unlinkat},
};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// No file of a group is longer; a list of processes is cut, and then somebody else is in it anyway.
const MOST_READ: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// The group at `path`; what is no group of version 2 is an error.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let directory = openat(AT_FDCWD, path, DIRECTORY, Mode::empty())?;
        if fstatfs(&directory)?.filesystem_type() == CGROUP2_SUPER_MAGIC {
            Ok(Self(directory))
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it is no control group of version 2"))
        }
    }

    pub(super) fn child(&self, name: &str) -> io::Result<Self> {
        Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?))
    }

    /// Makes a group below, or finds the one that is there. Nobody but this account can enter it.
    pub(super) fn make(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.0, name, Mode::S_IRWXU) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => self.child(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets others look into it: its files are readable by all, and writable by this account.
    pub(super) fn show(&self) -> io::Result<()> {
        Ok(fchmod(&self.0, Mode::from_bits_truncate(0o755))?)
    }

    /// Removes an empty group below, and all that are below that one.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let below = match self.child(name) {
            Ok(below) => below,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for inner in below.children()? {
            below.remove(&inner)?;
        }
        Ok(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir)?)
    }

    /// The names of the groups below.
    pub(super) fn children(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::from_fd(self.0.try_clone()?)?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if entry.file_type() == Some(nix::dir::Type::Directory) && name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        Ok(names)
    }

    pub(super) fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        File::from(self.open(name, OFlag::O_RDONLY)?).take(MOST_READ).read_to_string(&mut text)?;
        Ok(text)
    }

    pub(super) fn write(&self, name: &str, value: impl ToString) -> io::Result<()> {
        // One write: the kernel takes each for a whole setting.
        File::from(self.open(name, OFlag::O_WRONLY)?).write_all(value.to_string().as_bytes())
    }

    /// A file of the group, held open.
    pub(super) fn open(&self, name: &str, how: OFlag) -> io::Result<OwnedFd> {
        Ok(openat(&self.0, name, how | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)
    }

    /// Whether a process lives in it or below.
    pub(super) fn is_populated(&self) -> io::Result<bool> {
        Ok(!self.read("cgroup.events")?.lines().any(|line| line == "populated 0"))
    }

    /// Whose it is.
    pub(super) fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.0)?.st_uid)
    }

    /// Whether the kernel has this file here and this account may write it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.open(name, OFlag::from_bits_retain(libc::O_WRONLY)).is_ok()
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }
}
