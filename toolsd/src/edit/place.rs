//! Places beneath a root, by descriptor: no link is followed, no mount crossed, nothing is waited for.
//!
//! A directory that was opened stays that directory whatever its name leads to later; [`still_at`] tells
//! whether it is still where it was.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat},
    libc,
    sys::stat::{FileStat, Mode, fstat},
};

use super::Refusal;

/// An open directory, readable, so that it can be synced.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) identity: Identity,
}

/// Which object: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity(libc::dev_t, libc::ino_t);

impl From<&FileStat> for Identity {
    fn from(stat: &FileStat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

/// Opens beneath `root`; an empty path is the root itself.
pub(super) fn beneath(root: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(BENEATH))
}

/// Opens a directory beneath `root`.
pub(super) fn directory(root: impl AsFd, path: &Path) -> Result<Directory, Errno> {
    let fd = beneath(root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK)?;
    let identity = Identity::from(&fstat(&fd)?);
    Ok(Directory { fd, identity })
}

/// The directory of a file.
#[derive(Debug)]
pub(super) enum Way {
    /// It is there.
    Whole(Arc<Directory>),
    /// It is not; this is the last one on the way that is.
    Missing {
        /// The directory.
        last: Arc<Directory>,
        /// Its path, relative to the root.
        at: PathBuf,
    },
}

/// Directories above a file of an edit, each of which is looked at.
const MOST_DEEP: usize = 128;

/// Refuses a file that lies too deep.
pub(super) fn depth(path: &Path) -> Result<(), Refusal> {
    if path.components().count() <= MOST_DEEP {
        return Ok(());
    }
    Err(Refusal::Unreachable { path: path.to_owned(), why: "it lies more than 128 directories deep" })
}

/// Goes to the directory `path`, as far as there are directories.
pub(super) fn way(root: impl AsFd, path: &Path) -> Result<Way, Refusal> {
    depth(path)?;
    match directory(&root, path) {
        Ok(found) => return Ok(Way::Whole(Arc::new(found))),
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(why_not(&root, path, errno)),
    }
    for above in path.ancestors().skip(1) {
        match directory(&root, above) {
            Ok(found) => return Ok(Way::Missing { last: Arc::new(found), at: above.to_owned() }),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(why_not(&root, above, errno)),
        }
    }
    Err(Refusal::Unreachable { path: path.to_owned(), why: "the workspace itself is gone" })
}

/// Whether `path` leads to this directory.
pub(super) fn still_at(root: impl AsFd, path: &Path, directory: &Directory) -> bool {
    let found = beneath(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY);
    found.and_then(fstat).is_ok_and(|stat| Identity::from(&stat) == directory.identity)
}

/// What an errno of the walk means, with the link named where there is one.
fn why_not(root: impl AsFd, path: &Path, errno: Errno) -> Refusal {
    let unreachable = |why| Refusal::Unreachable { path: path.to_owned(), why };
    match errno {
        Errno::ELOOP => first_link(root, path).unwrap_or_else(|| unreachable("a link is on the way")),
        Errno::ENOTDIR => unreachable("what should be a directory is none"),
        Errno::EXDEV => unreachable("a mount is on the way"),
        Errno::ENAMETOOLONG => unreachable("a name on the way is too long"),
        other => Refusal::kernel("opening the directory", path)(other),
    }
}

fn first_link(root: impl AsFd, path: &Path) -> Option<Refusal> {
    let mut so_far = PathBuf::new();
    for part in path.components() {
        so_far.push(part);
        let place = beneath(&root, &so_far, OFlag::O_PATH | OFlag::O_NOFOLLOW).ok()?;
        if fstat(&place).ok()?.st_mode & libc::S_IFMT == libc::S_IFLNK {
            return Some(Refusal::Link { to: target(&place), path: so_far });
        }
    }
    None
}

/// Where a link points; empty where it cannot be told.
fn target(link: &OwnedFd) -> PathBuf {
    readlinkat(link, "").map(PathBuf::from).unwrap_or_default()
}

/// What is at a name.
#[derive(Debug)]
pub(super) enum Entry {
    /// Nothing.
    Absent,
    /// A regular file with one name and no special bits, open for reading.
    File(Opened),
    /// Something that no edit takes.
    Other(Odd),
}

/// An open regular file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) stat: FileStat,
}

impl Opened {
    /// st_mode & 07777.
    pub(super) const fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }
}

/// What no edit takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Odd {
    Link(PathBuf),
    Kind(&'static str),
    Linked(u64),
    Special(u32),
    Closed(Errno),
}

impl Odd {
    pub(super) fn refusal(self, path: &Path) -> Refusal {
        let path = path.to_owned();
        match self {
            Self::Link(to) => Refusal::Link { path, to },
            Self::Kind(kind) => Refusal::Kind { path, kind },
            Self::Linked(links) => Refusal::Linked { path, links },
            Self::Special(mode) => Refusal::Special { path, mode },
            Self::Closed(errno) => Refusal::kernel("reading", path)(errno),
        }
    }
}

/// Looks at one name in a directory. First as a place, which opens nothing: a FIFO would wait and a device
/// could act. A regular file is then opened by what was looked at, not by its name.
///
/// A file that was replaced between the two looks is looked for again: the name never was empty.
pub(super) fn look(directory: impl AsFd, name: &OsStr) -> Result<Entry, Errno> {
    for _ in 0..MOST_LOOKS {
        match look_once(&directory, name)? {
            Entry::Other(Odd::Linked(0)) => {}
            entry => return Ok(entry),
        }
    }
    // Replaced faster than it can be looked at.
    Err(Errno::EAGAIN)
}

/// Looks at a name under which there is another file each time.
const MOST_LOOKS: u32 = 1000;

fn look_once(directory: impl AsFd, name: &OsStr) -> Result<Entry, Errno> {
    let place = match beneath(directory, Path::new(name), OFlag::O_PATH | OFlag::O_NOFOLLOW) {
        Ok(place) => place,
        Err(Errno::ENOENT) => return Ok(Entry::Absent),
        Err(Errno::EXDEV) => return Ok(Entry::Other(Odd::Kind("a mount"))),
        Err(errno) => return Err(errno),
    };
    let stat = fstat(&place)?;
    let kind = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => None,
        libc::S_IFLNK => return Ok(Entry::Other(Odd::Link(target(&place)))),
        libc::S_IFDIR => Some("a directory"),
        libc::S_IFIFO => Some("a FIFO"),
        libc::S_IFSOCK => Some("a socket"),
        _ => Some("a device"),
    };
    if let Some(kind) = kind {
        return Ok(Entry::Other(Odd::Kind(kind)));
    }
    if stat.st_nlink != 1 {
        return Ok(Entry::Other(Odd::Linked(stat.st_nlink)));
    }
    if stat.st_mode & 0o7000 != 0 {
        return Ok(Entry::Other(Odd::Special(stat.st_mode & 0o7777)));
    }
    // O_NONBLOCK: another process's lease on the file would be waited for.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    match open(format!("/proc/self/fd/{}", place.as_raw_fd()).as_str(), flags, Mode::empty()) {
        Ok(fd) => Ok(Entry::File(Opened { fd, stat })),
        Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EWOULDBLOCK)) => Ok(Entry::Other(Odd::Closed(errno))),
        Err(errno) => Err(errno),
    }
}

/// Directory and name of a file.
pub(super) fn split(path: &Path) -> (&Path, &OsStr) {
    let name = match path.components().next_back() {
        Some(Component::Normal(name)) => name,
        _ => OsStr::new(""),
    };
    (path.parent().unwrap_or(Path::new("")), name)
}
