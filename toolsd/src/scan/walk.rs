//! One walk through a workspace: by descriptor, no link followed, no mount crossed, bounded.

use std::{
    collections::VecDeque,
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    rc::Rc,
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag},
    libc,
    sys::{
        stat::{FileStat, fstat, fstatat},
        statfs::fstatfs,
    },
    unistd::{AccessFlags, faccessat, geteuid},
};

use crate::beneath;

/// A moment by the clock that stamps changes.
pub type Moment = (i64, i64);

/// When `stat` was changed last: the kernel stamps it, and no program can set it (inode(7)). A rename counts.
///
/// File systems that count in whole seconds cut off what comes after: there the end of that second is taken. Where
/// nanoseconds count, a stamp without any is one in a thousand million.
pub(super) fn stamp(stat: &FileStat) -> Moment {
    match stat.st_ctime_nsec {
        0 => (stat.st_ctime, 999_999_999),
        nanoseconds => (stat.st_ctime, nanoseconds),
    }
}

/// Whether the kernel itself stamps changes on the file system of `root`, by the clock of this machine. Elsewhere it is
/// a server's clock, or what a program says (FAT has no change time of its own), and a look proves nothing.
pub(super) fn stamps_changes(root: BorrowedFd<'_>) -> bool {
    /// ext2 to 4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs, bcachefs, jfs, nilfs: linux/magic.h.
    const LOCAL: &[i64] = &[
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0x0102_1994,
        0x794c_7630,
        0x2fc1_2fc1,
        0xf2f5_2010,
        0xca45_1a4e,
        0x3153_464a,
        0x3434,
    ];
    fstatfs(root).is_ok_and(|system| LOCAL.contains(&system.filesystem_type().0))
}

/// What becomes of a directory of this account into which it may not look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Left,
    Opened,
}

/// How far a walk goes.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    /// Entries in all.
    pub(super) entries: usize,
    /// Entries of which everything is asked; of those after them only directories, links and what `always` names.
    pub(super) looked_at: usize,
    pub(super) closed: Closed,
    pub(super) always: fn(&[u8]) -> bool,
}

/// One entry of a directory.
pub(super) struct Entry {
    pub(super) name: CString,
    /// Absent where it was not asked: a file beyond what is looked at.
    pub(super) stat: Option<FileStat>,
}

impl Entry {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }

    pub(super) fn is(&self, kind: libc::mode_t) -> bool {
        self.stat.as_ref().is_some_and(|stat| beneath::kind(stat) == kind)
    }
}

/// What a walk did not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reached {
    /// Every directory was read to its end.
    pub(super) all: bool,
    /// And everything was asked of every entry.
    pub(super) looked_at_all: bool,
}

/// Calls `each` for every directory with its path, its own state and its entries. A directory for which it says
/// false is not gone into.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    reach: Reach,
    mut each: impl FnMut(&Path, &FileStat, &[Entry]) -> bool,
) -> Reached {
    let nothing = Reached { all: false, looked_at_all: false };
    let mut reached = Reached { all: stamps_changes(root), looked_at_all: true };
    let mut left = reach;
    // What lies near the top first: whoever hides something behind a crowd of files hides it deep.
    // Siblings share the path above them: a long one with many below it would be memory without measure.
    let mut waiting: VecDeque<(Rc<Path>, CString)> = VecDeque::from([(Rc::from(Path::new("")), CString::default())]);
    while let Some((above, name)) = waiting.pop_front() {
        let path: Rc<Path> = above.join(OsStr::from_bytes(name.to_bytes())).into();
        let Listed { own, entries, all } = match list(root, &path, left) {
            Ok(listed) => listed,
            // No command went in there either.
            Err(Errno::EACCES) if is_shut(root, &path) => continue,
            // One of these is a mount: what lies on it may be written and is not looked at.
            Err(_) => {
                reached.all = false;
                continue;
            }
        };
        reached.all &= all;
        left.entries -= entries.len();
        left.looked_at = left.looked_at.saturating_sub(entries.len());
        reached.looked_at_all &= entries.iter().all(|entry| entry.stat.is_some());
        let goes_on = each(&path, &own, &entries);
        if left.entries == 0 {
            return nothing;
        }
        if goes_on {
            let inside = entries.into_iter().filter(|entry| entry.is(libc::S_IFDIR));
            waiting.extend(inside.map(|entry| (Rc::clone(&path), entry.name)));
        }
    }
    reached.looked_at_all &= reached.all;
    reached
}

/// Whether this account may neither list nor enter a directory of another's.
fn is_shut(root: BorrowedFd<'_>, path: &Path) -> bool {
    let Ok(place) = beneath::open(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY) else { return false };
    // Through /proc: a descriptor that is only a place cannot be asked itself.
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    let enters = faccessat(AT_FDCWD, name.as_str(), AccessFlags::X_OK, AtFlags::AT_EACCESS);
    enters == Err(Errno::EACCES) && fstat(&place).is_ok_and(|own| own.st_uid != geteuid().as_raw())
}

/// A directory's own state, its entries, and whether these are all.
pub(super) struct Listed {
    pub(super) own: FileStat,
    pub(super) entries: Vec<Entry>,
    pub(super) all: bool,
}

/// Reads one directory.
pub(super) fn list(root: BorrowedFd<'_>, path: &Path, reach: Reach) -> nix::Result<Listed> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOATIME;
    // O_NOATIME is for owners only.
    let open = || beneath::open(root, path, flags).or_else(|_| beneath::open(root, path, flags & !OFlag::O_NOATIME));
    let directory = match open() {
        Err(Errno::EACCES) if reach.closed == Closed::Opened => {
            open_up(&beneath::open(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY)?)?;
            open()?
        }
        other => other?,
    };
    if reach.closed == Closed::Opened {
        // Without the right to search, names can be read and nothing be asked of them.
        open_up(&directory)?;
    }
    let own = fstat(&directory)?;
    let mut directory = Dir::from_fd(directory)?;
    let mut all = true;
    let mut names: Vec<(CString, Option<Type>)> = Vec::new();
    // Not past an error: a file system that has one may have it for ever.
    for entry in directory.iter() {
        let Ok(entry) = entry else {
            all = false;
            break;
        };
        if names.len() == reach.entries {
            all = false;
            break;
        }
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    let mut entries = Vec::with_capacity(names.len());
    for (name, kind) in names {
        let plain = matches!(kind, Some(Type::File)) && !(reach.always)(name.to_bytes());
        if plain && entries.len() >= reach.looked_at {
            entries.push(Entry { name, stat: None });
            continue;
        }
        match fstatat(directory.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push(Entry { name, stat: Some(stat) }),
            // Gone meanwhile: nothing to say about it.
            Err(Errno::ENOENT) => {}
            Err(_) => all = false,
        }
    }
    Ok(Listed { own, entries, all })
}

fn open_up(directory: &OwnedFd) -> nix::Result<()> {
    let own = fstat(directory)?;
    if own.st_mode & OWN_LOOK != OWN_LOOK && own.st_uid == geteuid().as_raw() {
        beneath::set_mode(directory, own.st_mode | OWN_LOOK)?;
    }
    Ok(())
}

/// Read and search for the owner.
const OWN_LOOK: libc::mode_t = 0o500;
