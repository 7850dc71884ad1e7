//! Where that goes which would have run: `.salaam/quarantine/OPERATION/` in the workspace itself, the one place that
//! this account has on the same file system. Each thing gets a number for a name, so that nothing finds it, and a
//! file loses its execute bits; `index` says for each its mode and where it was, so that it can be put back. Nothing of Salaam's reads it again, and no sandboxed
//! command can change it: `.salaam` is protected.

use std::{
    ffi::OsStr,
    fs::File,
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2},
    libc,
    sys::stat::{Mode, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};
use salaam_core::{id::OperationId, protect::OWN, show};

use crate::beneath;

/// Names that cross the bridge; all stand in the index.
const MAX_NAMED: usize = 1000;
/// Whoever may write the workspace may clear the quarantine away.
const DIRECTORY: Mode = Mode::from_bits_truncate(0o770);

/// Something to be taken away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Find {
    /// Where it is.
    pub(super) path: PathBuf,
    /// The content that stands there afterwards: what of a config runs nothing.
    pub(super) instead: Option<String>,
}

/// What was taken away.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Where it was.
    pub(super) paths: Vec<Vec<u8>>,
    /// Nothing was left where it was.
    pub(super) all: bool,
    /// Salaam's own directory, where one was made or used.
    pub(super) own: Option<u64>,
}

/// Takes away what was found.
pub(super) fn take(root: BorrowedFd<'_>, operation: OperationId, finds: Vec<Find>) -> Taken {
    let finds = inner_first(finds);
    if finds.is_empty() {
        return Taken { all: true, ..Taken::default() };
    }
    // A command made Salaam's own directory: it goes into the one that is put in its place.
    let planted = finds.iter().any(|find| find.path == Path::new(OWN));
    let place = Place::make(root, operation, planted);
    if let Err(errno) = &place {
        tracing::warn!(%operation, %errno, "there is no quarantine: what would run gets another name where it is");
    }
    let mut place = place.ok();
    let mut taken = Taken { all: true, own: place.as_ref().map(|place| place.own), ..Taken::default() };
    for (number, find) in finds.iter().enumerate() {
        let path = show::line(find.path.as_os_str().as_bytes());
        let put = place.as_mut().map_or(Err(Errno::ENOENT), |place| place.put(find, &format!("{number:04}")));
        // A full disk has no room for a directory, and a mount of its own is another file system.
        let done = put.or_else(|_| beside(root, &format!("{OWN}-{operation}-{number:04}"), find));
        match done {
            Ok(()) if taken.paths.len() >= MAX_NAMED => {}
            Ok(()) => taken.paths.push(find.path.as_os_str().as_bytes().to_vec()),
            Err(errno) => {
                tracing::warn!(path, %errno, "it would run and could not be taken away");
                taken.all = false;
            }
        }
    }
    taken
}

/// What lies in something else that is taken goes before it: it would keep the name by which it is found.
fn inner_first(mut finds: Vec<Find>) -> Vec<Find> {
    // By components, so that a directory comes right before what lies in it.
    finds.sort_by(|a, b| b.path.cmp(&a.path));
    finds.dedup_by(|a, b| a.path == b.path);
    finds
}

/// Gives it another name in its own directory, which needs no room. Where not even that can be had, a file is shut.
fn beside(root: BorrowedFd<'_>, other: &str, find: &Find) -> nix::Result<()> {
    let (above, name) = beneath::parent(root, &find.path)?;
    let renamed = renameat2(&above, name, &above, other, RenameFlags::RENAME_NOREPLACE);
    shut(above.as_fd(), Path::new(if renamed.is_ok() { OsStr::new(other) } else { name }), 0o400);
    renamed?;
    put_instead(above.as_fd(), name, find);
    Ok(())
}

/// Takes every right from a regular file but those of `mode`. Another account's keeps its mode, and has no name that
/// anything would look for.
fn shut(above: BorrowedFd<'_>, name: &Path, mode: libc::mode_t) {
    if let Ok(place) = beneath::open(above, name, OFlag::O_PATH | OFlag::O_NOFOLLOW)
        && fstat(&place).is_ok_and(|stat| beneath::kind(&stat) == libc::S_IFREG)
    {
        let _ = beneath::set_mode(&place, mode);
    }
}

/// What of a config runs nothing. Without room for it there is none, which git takes for an empty one.
fn put_instead(above: BorrowedFd<'_>, name: &OsStr, find: &Find) {
    let Some(text) = &find.instead else { return };
    let Ok(file) = create(above, name) else { return };
    if File::from(file).write_all(text.as_bytes()).is_err() {
        // Half a config would say something else.
        let _ = unlinkat(above, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// The directory of one operation.
struct Place<'a> {
    root: BorrowedFd<'a>,
    directory: OwnedFd,
    index: File,
    own: u64,
}

impl<'a> Place<'a> {
    fn make(root: BorrowedFd<'a>, operation: OperationId, planted: bool) -> nix::Result<Self> {
        let name = operation.to_string();
        let attempt = || -> nix::Result<(OwnedFd, OwnedFd)> {
            let own = directory(root, OWN)?;
            let all = directory(own.as_fd(), "quarantine")?;
            // Not one that is there: a command would have made it.
            mkdirat(&all, name.as_str(), DIRECTORY)?;
            Ok((own, directory(all.as_fd(), &name)?))
        };
        let made = if planted { None } else { attempt().ok() };
        let (own, directory) = match made {
            Some(made) => made,
            None => {
                let aside = format!("{OWN}-{name}");
                mkdirat(root, aside.as_str(), DIRECTORY)?;
                renameat2(root, aside.as_str(), root, OWN, RenameFlags::RENAME_EXCHANGE)?;
                let (own, directory) = attempt()?;
                renameat2(root, aside.as_str(), &directory, "planted", RenameFlags::RENAME_NOREPLACE)?;
                (own, directory)
            }
        };
        let ignore = create(own.as_fd(), OsStr::new(".gitignore"));
        // There already, or not to be had: git then shows the directory, no more.
        drop(ignore.map(|file| File::from(file).write_all(b"*\n")));
        let index = create(directory.as_fd(), OsStr::new("index"))?.into();
        let own = fstat(&own)?.st_ino;
        Ok(Self { root, directory, index, own })
    }

    fn put(&mut self, find: &Find, number: &str) -> nix::Result<()> {
        if find.path == Path::new(OWN) {
            // Put aside when this place was made.
            drop(self.index.write_all(format!("planted - {OWN}\n").as_bytes()));
            return Ok(());
        }
        let (above, name) = beneath::parent(self.root, &find.path)?;
        let mode = fstatat(&above, name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
        self.rename(&above, name, number)?;
        let line = format!("{number} {mode:04o} {}\n", show::line(find.path.as_os_str().as_bytes()));
        // Without its line it is still out of the way.
        drop(self.index.write_all(line.as_bytes()));
        shut(self.directory.as_fd(), Path::new(number), 0o440);
        put_instead(above.as_fd(), name, find);
        Ok(())
    }

    fn rename(&self, above: &OwnedFd, name: &OsStr, number: &str) -> nix::Result<()> {
        let rename = || renameat2(above, name, &self.directory, number, RenameFlags::RENAME_NOREPLACE);
        match rename() {
            Err(Errno::EACCES) => {}
            other => return other,
        }
        // A command may take the right to write from a directory of its own.
        let own = fstat(above)?;
        if own.st_uid != geteuid().as_raw() {
            return Err(Errno::EACCES);
        }
        beneath::set_mode(above, own.st_mode | 0o700)?;
        if let Ok(itself) = beneath::open(above.as_fd(), Path::new(name), OFlag::O_PATH | OFlag::O_DIRECTORY)
            && let Ok(stat) = fstat(&itself)
        {
            // To be moved, a directory must be writable itself: its `..` changes.
            let _ = beneath::set_mode(&itself, stat.st_mode | 0o700);
        }
        let done = rename();
        let _ = beneath::set_mode(above, own.st_mode);
        done
    }
}

/// Makes a directory if there is none and opens it as a place.
fn directory(above: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    match mkdirat(above, name, DIRECTORY) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(other) => return Err(other),
    }
    beneath::open(above, Path::new(name), OFlag::O_PATH | OFlag::O_DIRECTORY)
}

fn create(above: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(above, name, flags, Mode::from_bits_truncate(0o664))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_something_that_goes_goes_before_it() {
        let find = |path: &str| Find { path: path.into(), instead: None };
        let finds = ["a/b/c", "a/b", "a/b.c", "a", "a/b", "a/b/d"].map(find).into();
        assert_eq!(inner_first(finds), ["a/b.c", "a/b/d", "a/b/c", "a/b", "a"].map(find));
    }
}
