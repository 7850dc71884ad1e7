//! An edit whose executor died, or whose answer was lost: decided from disk alone.

use std::{
    ffi::OsStr,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;
use salaam_core::{
    edit::{self, Expected, MAX_FILES},
    id::OperationId,
    show,
};

use super::{
    Refusal,
    decide::Verdict,
    directories::{Names, above},
    guard,
    place::{Directory, directory, split},
    retreat::{self, Made},
    slot::{Slot, exists, sync},
};

/// What came of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It is in force, and nothing is left over.
    Finished {
        /// The directories that it made, parents first, as far as that can still be told.
        made: Vec<PathBuf>,
    },
    /// Nothing of it is in force or left over.
    RolledBack,
    /// Somebody else's changes, or a failing file system, do not let either be told or done.
    Undecided {
        /// What stands where.
        evidence: String,
    },
}

/// Finishes an edit that had swapped every file, takes back one that had not; blocks on the file system.
///
/// Running it again, also after it died itself, comes to the same.
///
/// # Errors
/// The files are none that an edit can have touched. Where the file system fails it is undecided, and trying
/// again is safe.
pub fn settle(
    root: BorrowedFd<'_>,
    operation: OperationId,
    expected: &[Expected],
    directories: &[PathBuf],
) -> Result<Settled, Refusal> {
    if expected.len() > MAX_FILES {
        return Err(Refusal::TooMany("an edit has at most 64 files"));
    }
    for path in
        expected.iter().map(|file| file.path.as_slice()).chain(directories.iter().map(|d| d.as_os_str().as_bytes()))
    {
        edit::check_path(path)?;
        guard::names(Path::new(OsStr::from_bytes(path)))?;
    }
    let left = |refusal| match refusal {
        Refusal::Undecided { evidence } => Settled::Undecided { evidence },
        other => Settled::Undecided { evidence: other.to_string() },
    };
    Ok(decide(root, operation, expected, directories).unwrap_or_else(left))
}

fn decide(
    root: BorrowedFd<'_>,
    operation: OperationId,
    expected: &[Expected],
    directories: &[PathBuf],
) -> Result<Settled, Refusal> {
    let names = Names::new(operation);
    let slots = slots(root, operation, expected)?;
    let (verdict, evidence) = retreat::judge(&slots)?;
    let paths: Vec<&Path> = expected.iter().map(|file| Path::new(OsStr::from_bytes(&file.path))).collect();
    match verdict {
        Verdict::Undecided => Ok(Settled::Undecided { evidence }),
        Verdict::Finish => {
            retreat::finish(&slots)?;
            let made = made(root, &names, &paths)?;
            retreat::remove_directories(root, directories)?;
            retreat::keep(&names, &made)?;
            Ok(Settled::Finished { made: made.into_iter().map(|made| made.path).collect() })
        }
        Verdict::RollBack => {
            retreat::roll_back(&slots)?;
            // The one temporary name may be in the way of removing others.
            if let Some(left) = sweep(root, &names, &paths)? {
                let left = show::line(left.as_os_str().as_encoded_bytes());
                return Ok(Settled::Undecided { evidence: format!("something of others is in {left}") });
            }
            retreat::unmake(&names, &made(root, &names, &paths)?)?;
            Ok(Settled::RolledBack)
        }
    }
}

fn slots(root: BorrowedFd<'_>, operation: OperationId, expected: &[Expected]) -> Result<Vec<Slot>, Refusal> {
    let mut slots = Vec::with_capacity(expected.len());
    for (number, file) in expected.iter().enumerate() {
        let path = Path::new(OsStr::from_bytes(&file.path));
        let found = open(root, split(path).0)?;
        if let Some(mut slot) = Slot::new(operation, number, file, found) {
            slot.ours = true;
            slots.push(slot);
        }
    }
    slots.sort_by_key(|slot| slot.kind);
    Ok(slots)
}

/// A directory as it is now; `None` where there is none beneath the root: then nothing of the edit is there.
fn open(root: BorrowedFd<'_>, path: &Path) -> Result<Option<Arc<Directory>>, Refusal> {
    match directory(root, path) {
        Ok(found) => Ok(Some(Arc::new(found))),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
        Err(errno) => Err(Refusal::kernel("opening the directory", path)(errno)),
    }
}

/// The marked directories above the files, parents first.
fn made(root: BorrowedFd<'_>, names: &Names, paths: &[&Path]) -> Result<Vec<Made>, Refusal> {
    let mut made = Vec::new();
    for path in above(paths.iter().copied()).into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
        let (Some(parent), Some(directory)) = (open(root, split(&path).0)?, open(root, &path)?) else { continue };
        if names.marked(&directory).map_err(Refusal::kernel("looking for the mark in", &path))? {
            made.push(Made { parent, directory, path });
        }
    }
    Ok(made)
}

/// Removes the directory that was under way; names one that is still there.
fn sweep(root: BorrowedFd<'_>, names: &Names, paths: &[&Path]) -> Result<Option<PathBuf>, Refusal> {
    for path in above(paths.iter().copied()) {
        let Some(directory) = open(root, &path)? else { continue };
        let failed = |errno| Refusal::kernel("removing a temporary directory in", &path)(errno);
        if exists(&*directory, &names.temporary).map_err(failed)? {
            if !names.sweep(&directory).map_err(failed)? {
                return Ok(Some(path.join(&names.temporary)));
            }
            sync(&directory, &path)?;
        }
    }
    Ok(None)
}
