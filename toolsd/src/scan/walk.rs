//! One walk through a workspace: by descriptor, no link followed, no mount crossed, bounded.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    rc::Rc,
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    libc,
    sys::stat::{FileStat, fstat, fstatat},
    unistd::geteuid,
};

use crate::beneath;

/// A moment by the clock that stamps changes.
pub type Moment = (i64, i64);

/// When `stat` was changed last: the kernel stamps it, and no program can set it (inode(7)). A rename counts.
pub(super) fn stamp(stat: &FileStat) -> Moment {
    (stat.st_ctime, stat.st_ctime_nsec)
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
    let Ok(device) = fstat(root).map(|stat| stat.st_dev) else { return nothing };
    let mut reached = Reached { all: true, looked_at_all: true };
    let mut left = reach;
    // Siblings share the path above them: a long one with many below it would be memory without measure.
    let mut waiting: Vec<(Rc<Path>, CString)> = vec![(Rc::from(Path::new("")), CString::default())];
    while let Some((above, name)) = waiting.pop() {
        let path: Rc<Path> = above.join(OsStr::from_bytes(name.to_bytes())).into();
        let Ok(Listed { own, entries, all }) = list(root, &path, left) else {
            reached.all = false;
            continue;
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
            let inside =
                |entry: &Entry| entry.is(libc::S_IFDIR) && entry.stat.is_some_and(|stat| stat.st_dev == device);
            waiting.extend(entries.into_iter().filter(inside).map(|entry| (Rc::clone(&path), entry.name)));
        }
    }
    reached.looked_at_all &= reached.all;
    reached
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
