//! What changed in a workspace, by change time. Whoever else worked there at the same time is counted too.

use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    libc,
    sys::{
        stat::{FileStat, fstat},
        statvfs::fstatvfs,
    },
    unistd::geteuid,
};
use salaam_core::result::Changed;

use super::walk::{Closed, Entry, Moment, Reach, stamp, walk};
use crate::beneath;

/// Entries that the watch over growth looks at; only where the file system as a whole has grown that much.
const MAX_ENTRIES_OF_GROWTH: usize = 200_000;
/// Entries of which everything is asked after a command; about 40 ms.
pub(super) const MAX_ENTRIES: usize = 20_000;
/// Paths that are named.
const MAX_PATHS: usize = 100;

/// Names what changed since a moment, and takes setuid and setgid bits off regular files among it.
///
/// A directory is named where nothing directly in it is: it is new and empty, or something was removed.
pub(super) struct Changes<'a> {
    pub(super) root: BorrowedFd<'a>,
    pub(super) since: Moment,
    pub(super) found: Changed,
}

impl Changes<'_> {
    /// Takes one directory.
    pub(super) fn directory(&mut self, directory: &Path, own: &FileStat, entries: &[Entry]) {
        let mut inside = false;
        for entry in entries {
            let Some(stat) = entry.stat.as_ref().filter(|stat| stamp(stat) >= self.since) else { continue };
            inside = true;
            if entry.is(libc::S_IFDIR) {
                continue;
            }
            let path = directory.join(entry.name());
            if entry.is(libc::S_IFREG) && stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
                // What is another's cannot be changed and was not made by this account.
                let _ = strip(self.root, &path);
            }
            self.note(path);
        }
        if !inside && !directory.as_os_str().is_empty() && stamp(own) >= self.since {
            self.note(directory.to_owned());
        }
    }

    fn note(&mut self, path: PathBuf) {
        self.found.count += 1;
        if self.found.paths.len() < MAX_PATHS {
            self.found.paths.push(path.into_os_string().into_encoded_bytes());
        }
    }
}

/// Names what changed since `since` in a workspace of which nothing is protected.
pub fn changed(root: BorrowedFd<'_>, since: Moment) -> Changed {
    let mut changes = Changes { root, since, found: Changed::default() };
    let (most, closed) = (MAX_ENTRIES, Closed::Opened);
    let reached =
        walk(root, Reach { entries: most, looked_at: most, closed, always: |_| true }, |path, own, entries| {
            changes.directory(path, own, entries);
            true
        });
    changes.found.complete = reached.looked_at_all;
    changes.found
}

fn strip(root: BorrowedFd<'_>, path: &Path) -> nix::Result<()> {
    let file = beneath::open(root, path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
    let mode = fstat(&file)?.st_mode;
    if mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(());
    }
    beneath::set_mode(&file, mode & 0o1777)
}

/// What regular files that changed since a moment take up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grown {
    /// Bytes on the disk.
    pub bytes: u64,
    /// How many there are, of any kind.
    pub files: u64,
    /// A directory of this account was closed to it meanwhile: what lies in there is not counted.
    pub hidden: bool,
}

/// What changed since `since`, counted.
pub fn grown(root: BorrowedFd<'_>, since: Moment) -> Grown {
    let mut grown = Grown::default();
    let most = MAX_ENTRIES_OF_GROWTH;
    // The command still runs: its directories stay as it wants them.
    let reach = Reach { entries: most, looked_at: most, closed: Closed::Left, always: |_| true };
    let own = geteuid().as_raw();
    let reached = walk(root, reach, |_, _, entries| {
        for stat in entries.iter().filter_map(|entry| entry.stat).filter(|stat| stamp(stat) >= since) {
            grown.files += 1;
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFREG => grown.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
                libc::S_IFDIR => grown.hidden |= stat.st_uid == own && stat.st_mode & 0o500 != 0o500,
                _ => {}
            }
        }
        true
    });
    // More entries than are looked at: whether they are new is not known, and the count of the file system stands.
    if !reached.looked_at_all && grown.files >= most as u64 {
        grown.hidden = true;
    }
    grown
}

/// What is in use on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// Files of any kind; 0 where the file system does not count them.
    pub files: u64,
}

/// What is in use on the file system of the workspace.
pub fn used(root: BorrowedFd<'_>) -> io::Result<Used> {
    let system = fstatvfs(root)?;
    Ok(Used {
        bytes: (system.blocks() - system.blocks_free()) * system.fragment_size(),
        files: system.files().saturating_sub(system.files_free()),
    })
}
