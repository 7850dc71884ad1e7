//! Back or forward from any point of an edit, by what is on disk: for an edit that failed, and for one whose
//! executor died. Invariant: only temporary names of the one operation are removed, and only a file that is
//! exactly the new one is moved aside.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;
use salaam_core::show;

use super::{
    Refusal,
    decide::{Kind, Standing, Verdict, verdict},
    directories::{Names, remove_empty},
    place::{Directory, directory, split},
    slot::{Slot, sync},
};

/// Brings every file back to what it was before. Slots are in the order of the swaps.
pub(super) fn roll_back(slots: &[Slot]) -> Result<(), Refusal> {
    let mut trouble = Vec::new();
    for slot in slots.iter().rev() {
        // One that cannot be taken back does not keep the others from it.
        if let Err(refusal) = back(slot) {
            trouble.push(refusal.to_string());
        }
    }
    if trouble.is_empty() { sync_all(slots) } else { Err(Refusal::Undecided { evidence: trouble.join("; ") }) }
}

fn back(slot: &Slot) -> Result<(), Refusal> {
    match slot.observe()?.0 {
        Standing::Untouched => Ok(()),
        Standing::Staged => slot.clear(),
        Standing::Swapped | Standing::Displaced => {
            slot.swap_back()?;
            slot.clear()
        }
        Standing::Overlaid | Standing::Unclear if slot.kind != Kind::Delete && slot.is_superseded()? => slot.clear(),
        Standing::Cleared | Standing::Twice | Standing::Overlaid | Standing::Unclear => {
            Err(slot.stale("somebody changed it while the edit was under way, and that is kept"))
        }
    }
}

/// Removes what lies beside; every file is swapped and checked.
pub(super) fn finish(slots: &[Slot]) -> Result<(), Refusal> {
    for slot in slots {
        if slot.ours {
            slot.clear()?;
        }
    }
    sync_all(slots)
}

fn sync_all(slots: &[Slot]) -> Result<(), Refusal> {
    let mut synced = Vec::new();
    for slot in slots {
        if let Some(directory) = &slot.directory
            && !synced.contains(&directory.identity)
        {
            sync(directory, &slot.path)?;
            synced.push(directory.identity);
        }
    }
    Ok(())
}

/// What the files say together, and what was seen of each.
pub(super) fn judge(slots: &[Slot]) -> Result<(Verdict, String), Refusal> {
    let mut all = Vec::with_capacity(slots.len());
    let mut evidence = Vec::new();
    for slot in slots {
        let (standing, beside) = slot.observe()?;
        all.push((standing, beside));
        let kept = if beside { format!(" ({} lies beside it)", slot.temporary.display()) } else { String::new() };
        evidence.push(format!("{} is {}{kept}", show::line(slot.path.as_os_str().as_encoded_bytes()), word(standing)));
    }
    Ok((verdict(&all), evidence.join("; ")))
}

const fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Untouched => "as before",
        Standing::Staged => "not swapped yet",
        Standing::Swapped | Standing::Cleared => "swapped",
        Standing::Twice => "as the edit makes it, by somebody else",
        Standing::Overlaid => "swapped and changed by somebody else since",
        Standing::Displaced => "swapped with a file that somebody else had changed",
        Standing::Unclear => "neither as before nor as the edit makes it",
    }
}

/// A directory that the edit made, and the one that it was made in.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) parent: Arc<Directory>,
    pub(super) directory: Arc<Directory>,
    pub(super) path: PathBuf,
}

/// Removes the directories that the edit made, the deepest first; one with something of others in it stays.
pub(super) fn unmake(names: &Names, made: &[Made]) -> Result<(), Refusal> {
    for made in made.iter().rev() {
        names.unmake(&made.parent, &made.path)?;
        sync(&made.parent, &made.path)?;
    }
    Ok(())
}

/// Takes the marks away: the directories stay.
pub(super) fn keep(names: &Names, made: &[Made]) -> Result<(), Refusal> {
    for made in made {
        names.unmark(&made.directory, &made.path)?;
        sync(&made.directory, &made.path)?;
        sync(&made.parent, &made.path)?;
    }
    Ok(())
}

/// Removes those of `paths` that are empty now, the deepest first.
pub(super) fn remove_directories(root: impl std::os::fd::AsFd, paths: &[PathBuf]) -> Result<(), Refusal> {
    let mut paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    for path in paths {
        let (parent, name): (&Path, &OsStr) = split(path);
        let parent = match directory(&root, parent) {
            Ok(parent) => parent,
            // Gone or elsewhere by now: nothing of the edit is there.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => continue,
            Err(errno) => return Err(Refusal::kernel("opening the directory of", path)(errno)),
        };
        if remove_empty(&parent, name, path)? {
            sync(&parent, path)?;
        }
    }
    Ok(())
}
