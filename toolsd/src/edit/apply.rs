//! One edit, from what was approved to what is on disk: every file or none.
//!
//! 1. Read each file beneath the root and compute the edit again; anything that differs is refused.
//! 2. Make missing directories, write every new file under a temporary name beside its place, sync it.
//! 3. Swap: deletions, exchanges, creations. What comes to lie beside is hashed again; a file that had moved
//!    on is swapped back with all others.
//! 4. See that every directory is still where it was opened, so that nothing was done elsewhere.
//! 5. Remove what lies beside, sync the directories.
//!
//! A failure in 2 to 4 goes back by what is on disk, as [`super::settle()`] does after a crash.
//! What nobody can exclude: a process that keeps the old file open for writing writes into a file without a
//! name from then on, as with every program that replaces files.

use std::{
    collections::BTreeMap,
    io::Write as _,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;
use salaam_core::{
    edit::{self, Change, Expected, FileChange, Image, MAX_EDIT_BYTES},
    id::OperationId,
};

use super::{
    Refusal,
    attributes::{Attributes, dress},
    decide::{Kind, Standing},
    directories::{MOST, Names},
    guard::Guard,
    place::{Directory, Way, split, still_at},
    read::{Found, read_one},
    retreat::{self, Made},
    slot::{Slot, exists},
};

/// One edit, as it was approved.
#[derive(Debug)]
pub struct Work {
    /// The operation; its id is part of every temporary name.
    pub operation: OperationId,
    /// What is done.
    pub changes: Vec<Change>,
    /// What that comes to, by the service's computation.
    pub expected: Vec<Expected>,
    /// What the operator protects beside the built-in list, relative to the root.
    pub protected: Vec<Vec<u8>>,
    /// Directories that go where they are empty afterwards: an undo names what the edit had made.
    pub directories: Vec<PathBuf>,
}

/// Where an edit is; told before each step. An error there is one of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Files are read and the edit is computed again.
    Read,
    /// A directory is made.
    Make(usize),
    /// A new file is written beside its place.
    Stage(usize),
    /// A file is swapped.
    Swap(usize),
    /// What was swapped is checked.
    Check(usize),
    /// What lies beside is removed; the edit is in force.
    Finish,
    /// What the edit made or emptied is tidied.
    Tidy,
}

/// Carries out an edit and returns the directories that it made, parents first; blocks on the file system.
///
/// # Errors
/// See [`Refusal`]: nothing took effect, unless it is [`Refusal::Undecided`].
pub fn apply(
    root: BorrowedFd<'_>,
    work: &Work,
    step: &mut dyn FnMut(Step) -> Result<(), Refusal>,
) -> Result<Vec<PathBuf>, Refusal> {
    step(Step::Read)?;
    let mut read = read(root, work)?;
    let files = compute(work, &mut read)?;
    let names = Names::new(work.operation);
    let mut plan = Plan::new(work, &names, read, files)?;
    let done = plan.stage(&names, step).and_then(|()| plan.swap(root, step));
    if let Err(refusal) = done {
        return Err(plan.take_back(&names, refusal));
    }
    let finished = step(Step::Finish).and_then(|()| retreat::finish(&plan.slots)).and_then(|()| step(Step::Tidy));
    let tidied = finished.and_then(|()| {
        retreat::remove_directories(root, &work.directories)?;
        retreat::keep(&names, &plan.made)
    });
    // It is in force; what is left over is the next settling's.
    tidied.map_err(|refusal| Refusal::Undecided { evidence: format!("it is in force, but {refusal}") })?;
    Ok(plan.made.into_iter().map(|made| made.path).collect())
}

type Read = BTreeMap<PathBuf, Found>;

fn read(root: BorrowedFd<'_>, work: &Work) -> Result<Read, Refusal> {
    let paths = edit::paths(&work.changes)?;
    let paths: Vec<PathBuf> = paths.iter().map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))).collect();
    let mut guard = Guard::new(root, &work.protected, paths.clone());
    guard.permit()?;
    for directory in &work.directories {
        edit::check_path(directory.as_os_str().as_bytes())?;
        guard.permit_removal(directory)?;
    }
    let mut left = MAX_EDIT_BYTES;
    let mut read = Read::new();
    for path in paths {
        let found = read_one(root, &path, left)?;
        left -= found.image.as_ref().map_or(0, |image| image.content.len());
        read.insert(path, found);
    }
    Ok(read)
}

/// Computes the edit from what was read here and holds it against what was approved.
fn compute(work: &Work, read: &mut Read) -> Result<Vec<FileChange>, Refusal> {
    let before: BTreeMap<Vec<u8>, Option<Image>> =
        read.iter_mut().map(|(path, found)| (path.as_os_str().as_bytes().to_vec(), found.image.take())).collect();
    for expected in &work.expected {
        let path = || PathBuf::from(std::ffi::OsStr::from_bytes(&expected.path));
        let now = before.get(&expected.path).ok_or_else(|| Refusal::Differs(path()))?;
        if now.as_ref().map(Image::stamp) != expected.pre {
            let what = match (now, &expected.pre) {
                (None, _) => "it is gone",
                (Some(_), None) => "it exists now",
                (Some(_), Some(_)) => "it has other content or another mode",
            };
            return Err(Refusal::Stale { path: path(), what });
        }
    }
    let files = edit::apply(&work.changes, &before)?;
    let mut expected = work.expected.iter();
    for file in &files {
        // What it was before is known to be what was expected; hashing megabytes once more tells nothing new.
        let post = file.post.as_ref().map(Image::stamp);
        if !expected.next().is_some_and(|expected| expected.path == file.path && expected.post == post) {
            return Err(Refusal::Differs(PathBuf::from(std::ffi::OsStr::from_bytes(&file.path))));
        }
    }
    match expected.next() {
        Some(more) => Err(Refusal::Differs(PathBuf::from(std::ffi::OsStr::from_bytes(&more.path)))),
        None => Ok(files),
    }
}

/// The slots of an edit in the order of the swaps, and what is needed to fill them.
struct Plan {
    slots: Vec<Slot>,
    /// By slot.
    new: Vec<New>,
    made: Vec<Made>,
}

struct New {
    way: Way,
    image: Option<Image>,
    /// What the new file is given.
    like: Option<Attributes>,
    /// What the old one had when it was read.
    old: Option<Attributes>,
}

impl Plan {
    fn new(work: &Work, names: &Names, mut read: Read, files: Vec<FileChange>) -> Result<Self, Refusal> {
        let origins = origins(&work.changes, &files);
        let known: BTreeMap<PathBuf, Option<Attributes>> =
            read.iter().map(|(path, found)| (path.clone(), found.attributes.clone())).collect();
        let mut both = Vec::with_capacity(files.len());
        for (number, (file, expected)) in files.into_iter().zip(&work.expected).enumerate() {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&file.path));
            let Some(found) = read.remove(&path) else { return Err(Refusal::Differs(path)) };
            let directory = match &found.way {
                Way::Whole(directory) => Some(Arc::clone(directory)),
                Way::Missing { .. } => None,
            };
            let Some(slot) = Slot::new(work.operation, number, expected, directory) else { continue };
            let like = match origins.get(&path) {
                Some(origin) => known.get(origin).cloned().flatten(),
                None => found.attributes.clone(),
            };
            free(&slot, names, &found.way)?;
            both.push((slot, New { way: found.way, image: file.post, like, old: found.attributes }));
        }
        both.sort_by_key(|(slot, _)| slot.kind);
        let (slots, new) = both.into_iter().unzip();
        Ok(Self { slots, new, made: Vec::new() })
    }

    fn stage(&mut self, names: &Names, step: &mut dyn FnMut(Step) -> Result<(), Refusal>) -> Result<(), Refusal> {
        for (number, (slot, new)) in self.slots.iter_mut().zip(&mut self.new).enumerate() {
            if let Way::Missing { last, at } = &new.way {
                slot.directory = Some(make(names, &mut self.made, last, at, &slot.path, step)?);
            }
            let Some(image) = new.image.take() else { continue };
            step(Step::Stage(number))?;
            let path = slot.beside();
            slot.stage(|file| {
                let failed = |attempted, e: std::io::Error| {
                    Refusal::kernel(attempted, &path)(Errno::from_raw(e.raw_os_error().unwrap_or(0)))
                };
                file.write_all(&image.content).map_err(|e| failed("writing", e))?;
                dress(file.as_fd(), new.like.as_ref(), image.mode, &path)?;
                file.sync_all().map_err(|e| failed("syncing", e))
            })?;
        }
        Ok(())
    }

    fn swap(&mut self, root: BorrowedFd<'_>, step: &mut dyn FnMut(Step) -> Result<(), Refusal>) -> Result<(), Refusal> {
        for (number, (slot, new)) in self.slots.iter_mut().zip(&self.new).enumerate() {
            step(Step::Swap(number))?;
            slot.swap()?;
            step(Step::Check(number))?;
            if slot.kind == Kind::Create {
                // It took the place of nothing.
                continue;
            }
            match slot.observe()?.0 {
                // Overlaid is somebody's later change of the new file, which is theirs to make.
                Standing::Swapped | Standing::Overlaid => {}
                Standing::Untouched
                | Standing::Staged
                | Standing::Cleared
                | Standing::Twice
                | Standing::Displaced
                | Standing::Unclear => return Err(slot.stale("it changed in the moment of the swap")),
            }
            if slot.attributes_beside()? != new.old {
                return Err(slot.stale("its group or ACL changed in the moment of the swap"));
            }
        }
        for slot in &self.slots {
            let here = slot.directory.as_ref().is_some_and(|held| still_at(root, split(&slot.path).0, held));
            if !here {
                return Err(slot.stale("its directory was moved away"));
            }
        }
        Ok(())
    }

    /// Goes back; says what could not be taken back instead of why the edit failed.
    fn take_back(&self, names: &Names, why: Refusal) -> Refusal {
        let back = retreat::roll_back(&self.slots).and_then(|()| retreat::unmake(names, &self.made));
        match (back, why) {
            (Ok(()), why) => why,
            (Err(Refusal::Undecided { evidence }), why) => {
                Refusal::Undecided { evidence: format!("{why}; {evidence}") }
            }
            (Err(other), why) => Refusal::Undecided { evidence: format!("{why}; {other}") },
        }
    }
}

/// Where a file that comes is one that goes under another name: its group and ACL come along. By the change
/// that says so; where an undo has taken that apart, by the same bytes.
fn origins(changes: &[Change], files: &[FileChange]) -> BTreeMap<PathBuf, PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
    let mut origins: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for change in changes {
        match change {
            Change::Rename { path: from, to } => {
                let from = path(from);
                let first = origins.remove(&from).unwrap_or(from);
                origins.insert(path(to), first);
            }
            Change::Delete { path: gone } => drop(origins.remove(&path(gone))),
            Change::Replace { .. } | Change::Create { .. } | Change::Mode { .. } | Change::Write { .. } => {}
        }
    }
    let gone: Vec<&FileChange> = files.iter().filter(|file| file.post.is_none()).collect();
    for file in files.iter().filter(|file| file.pre.is_none()) {
        if let Some(same) = gone.iter().find(|gone| gone.pre == file.post) {
            origins.entry(path(&file.path)).or_insert_with(|| path(&same.path));
        }
    }
    origins
}

/// Refuses a name of this operation that is there already: it is not this edit's, whatever it is.
fn free(slot: &Slot, names: &Names, way: &Way) -> Result<(), Refusal> {
    let (directory, name, at) = match way {
        Way::Whole(directory) => (directory, &slot.temporary, slot.beside()),
        Way::Missing { last, at } => (last, &names.temporary, at.join(&names.temporary)),
    };
    match exists(directory.as_ref(), name) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Refusal::NameTaken(at)),
        Err(errno) => Err(Refusal::kernel("looking at", at)(errno)),
    }
}

/// Makes what is missing of a file's directories below `last`, but for what an earlier file's needed too.
fn make(
    names: &Names,
    made: &mut Vec<Made>,
    last: &Arc<Directory>,
    at: &Path,
    file: &Path,
    step: &mut dyn FnMut(Step) -> Result<(), Refusal>,
) -> Result<Arc<Directory>, Refusal> {
    let mut here = Arc::clone(last);
    let mut path = at.to_owned();
    for part in split(file).0.components().skip(at.components().count()) {
        path.push(part);
        if let Some(known) = made.iter().find(|made| made.path == path) {
            here = Arc::clone(&known.directory);
            continue;
        }
        if made.len() == MOST {
            return Err(Refusal::TooMany("an edit makes at most 256 directories; send several edits"));
        }
        step(Step::Make(made.len()))?;
        let directory = names.make(&here, &path)?;
        made.push(Made { parent: here, directory: Arc::clone(&directory), path: path.clone() });
        here = directory;
    }
    Ok(here)
}
