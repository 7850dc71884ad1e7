//! What changed in a workspace: one walk by descriptor, no link followed, no mount crossed, bounded.
//!
//! By change time, which a program cannot set: the kernel stamps it (inode(7)). Whoever else worked there at
//! the same time is counted too.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2},
    libc,
    sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat},
    sys::statvfs::fstatvfs,
    unistd::geteuid,
};
use salaam_core::result::Changed;

/// Entries that one walk after a command looks at; about 40 ms.
pub const MAX_ENTRIES: usize = 20_000;
/// Entries that the watch over growth looks at; only where the file system as a whole has grown that much.
const MAX_ENTRIES_OF_GROWTH: usize = 200_000;
/// Paths that are named.
const MAX_PATHS: usize = 100;

/// A moment by the clock that stamps changes.
pub type Moment = (i64, i64);

/// Names what changed since `since`, and takes setuid and setgid bits off regular files among it.
///
/// A directory is named where nothing directly in it is: it is new and empty, or something was removed. One of
/// this account into which it may not look gets the owner's read and search bits: nothing hides there.
pub fn changed(root: BorrowedFd<'_>, since: Moment) -> Changed {
    let mut changed = Changed::default();
    changed.complete = walk(root, MAX_ENTRIES, Closed::Opened, |directory, own, entries| {
        let mut inside = false;
        for (name, stat) in entries.iter().filter(|(_, stat)| stamp(stat) >= since) {
            inside = true;
            if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
                continue;
            }
            let path = directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
                // What is another's cannot be changed and was not made by this account.
                let _ = strip(root, &path);
            }
            note(&mut changed, path);
        }
        if !inside && !directory.as_os_str().is_empty() && stamp(own) >= since {
            note(&mut changed, directory.to_owned());
        }
    });
    changed
}

fn note(changed: &mut Changed, path: PathBuf) {
    changed.count += 1;
    if changed.paths.len() < MAX_PATHS {
        changed.paths.push(path.into_os_string().into_encoded_bytes());
    }
}

/// Bytes on disk of regular files that changed since `since`.
pub fn grown(root: BorrowedFd<'_>, since: Moment) -> u64 {
    let mut bytes = 0u64;
    // The command still runs: its directories stay as it wants them.
    walk(root, MAX_ENTRIES_OF_GROWTH, Closed::Left, |_, _, entries| {
        let files = entries.iter().map(|(_, stat)| stat);
        let files = files.filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG && stamp(stat) >= since);
        bytes += files.map(|stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512).sum::<u64>();
    });
    bytes
}

/// Bytes in use on the file system of the workspace.
pub fn used(root: BorrowedFd<'_>) -> io::Result<u64> {
    let system = fstatvfs(root)?;
    Ok((system.blocks() - system.blocks_free()) * system.fragment_size())
}

fn stamp(stat: &FileStat) -> Moment {
    (stat.st_ctime, stat.st_ctime_nsec)
}

/// What becomes of a directory of this account into which it may not look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    Left,
    Opened,
}

type Entry = (CString, FileStat);

/// Calls `each` for every directory with its path, its own state and its entries, at most `most` entries in
/// all; false where something was not reached.
fn walk(root: BorrowedFd<'_>, most: usize, closed: Closed, mut each: impl FnMut(&Path, &FileStat, &[Entry])) -> bool {
    let Ok(device) = fstat(root).map(|stat| stat.st_dev) else { return false };
    let mut complete = true;
    let mut left = most;
    // Siblings share the path above them: a long one with many below it would be memory without measure.
    let mut waiting: Vec<(Rc<Path>, CString)> = vec![(Rc::from(Path::new("")), CString::default())];
    while let Some((above, name)) = waiting.pop() {
        let path: Rc<Path> = above.join(std::ffi::OsStr::from_bytes(name.to_bytes())).into();
        let Ok((own, entries, all)) = read(root, &path, left, closed) else {
            complete = false;
            continue;
        };
        complete &= all;
        left -= entries.len();
        each(&path, &own, &entries);
        if left == 0 {
            return false;
        }
        let directories = entries
            .into_iter()
            .filter(|(_, stat)| stat.st_mode & libc::S_IFMT == libc::S_IFDIR && stat.st_dev == device)
            .map(|(name, _)| (Rc::clone(&path), name));
        waiting.extend(directories);
    }
    complete
}

/// A directory's own state, its entries, and whether these are all.
fn read(root: BorrowedFd<'_>, path: &Path, most: usize, closed: Closed) -> nix::Result<(FileStat, Vec<Entry>, bool)> {
    if closed == Closed::Opened {
        let place = open_beneath(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)?;
        let own = fstat(&place)?;
        if own.st_mode & OWN_LOOK != OWN_LOOK && own.st_uid == geteuid().as_raw() {
            set_mode(&place, own.st_mode | OWN_LOOK)?;
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOATIME;
    let open = |flags| open_beneath(root, path, flags);
    // O_NOATIME is for owners only.
    let directory = open(flags).or_else(|_| open(flags & !OFlag::O_NOATIME))?;
    let own = fstat(&directory)?;
    let mut directory = Dir::from_fd(directory)?;
    let mut all = true;
    let mut names: Vec<CString> = Vec::new();
    // Not past an error: a file system that has one may have it for ever.
    for entry in directory.iter() {
        let Ok(entry) = entry else {
            all = false;
            break;
        };
        if names.len() == most {
            break;
        }
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        match fstatat(&directory, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push((name, stat)),
            // Gone meanwhile: nothing to say about it.
            Err(Errno::ENOENT) => {}
            Err(_) => all = false,
        }
    }
    Ok((own, entries, all))
}

/// Read and search for the owner.
const OWN_LOOK: libc::mode_t = 0o500;

fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return openat(root, c".", flags, Mode::empty());
    }
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    openat2(root, path, how)
}

fn strip(root: BorrowedFd<'_>, path: &Path) -> nix::Result<()> {
    let file = open_beneath(root, path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)?;
    let mode = fstat(&file)?.st_mode;
    if mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(());
    }
    set_mode(&file, mode & 0o1777)
}

/// fchmod(2) refuses a descriptor that is only a place; its name under /proc is that very file.
fn set_mode(place: &OwnedFd, mode: libc::mode_t) -> nix::Result<()> {
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    fchmodat(AT_FDCWD, name.as_str(), Mode::from_bits_truncate(mode & 0o7777), FchmodatFlags::FollowSymlink)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::PermissionsExt},
    };

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("salaam-scan-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn open(&self) -> fs::File {
            fs::File::open(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn later() -> Moment {
        // Two ticks of the coarse clock, so that what was made before is before.
        std::thread::sleep(std::time::Duration::from_millis(20));
        salaam_sys::file::change_clock()
    }

    #[test]
    fn what_changed_is_named_and_what_did_not_is_not() {
        let scratch = Scratch::new("names");
        for name in ["old", "gone/x", "deep/er/file", "touched"] {
            let path = scratch.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "1").unwrap();
        }
        let since = later();
        fs::remove_file(scratch.0.join("gone/x")).unwrap();
        fs::write(scratch.0.join("deep/er/new"), "2").unwrap();
        fs::write(scratch.0.join("touched"), "2").unwrap();
        fs::create_dir(scratch.0.join("empty")).unwrap();
        std::os::unix::fs::symlink("/etc", scratch.0.join("link")).unwrap();
        let mut found = changed(scratch.open().as_fd(), since);
        found.paths.sort();
        let names = ["deep/er/new", "empty", "gone", "link", "touched"];
        assert_eq!(found.paths, names.map(|name| name.as_bytes().to_vec()));
        assert_eq!((found.count, found.complete), (5, true));
    }

    #[test]
    fn setgid_stays_on_directories_and_comes_off_files() {
        let scratch = Scratch::new("setgid");
        let since = later();
        for (name, mode) in [("file", 0o6755), ("unreadable", 0o2200)] {
            fs::write(scratch.0.join(name), "x").unwrap();
            fs::set_permissions(scratch.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(scratch.0.join("directory")).unwrap();
        fs::set_permissions(scratch.0.join("directory"), fs::Permissions::from_mode(0o2775)).unwrap();
        changed(scratch.open().as_fd(), since);
        let mode = |name| fs::metadata(scratch.0.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("file"), mode("unreadable"), mode("directory")), (0o755, 0o200, 0o2775));
    }

    #[test]
    fn a_walk_over_the_limit_says_that_it_is_not_complete() {
        let scratch = Scratch::new("limit");
        for number in 0..10 {
            fs::write(scratch.0.join(number.to_string()), "").unwrap();
        }
        assert!(!walk(scratch.open().as_fd(), 9, Closed::Left, |_, _, _| {}));
        assert!(walk(scratch.open().as_fd(), 11, Closed::Left, |_, _, _| {}));
    }

    #[test]
    fn growth_counts_what_is_on_disk_since_then() {
        let scratch = Scratch::new("growth");
        fs::write(scratch.0.join("before"), vec![1; 1 << 20]).unwrap();
        let since = later();
        fs::write(scratch.0.join("after"), vec![1; 256 << 10]).unwrap();
        let file = fs::File::open(scratch.0.join("after")).unwrap();
        file.sync_all().unwrap();
        let bytes = grown(scratch.open().as_fd(), since);
        assert!((256 << 10..512 << 10).contains(&bytes), "{bytes}");
    }
}
