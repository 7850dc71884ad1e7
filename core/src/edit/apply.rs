//! What comes of changes: computed from the bytes before, and from nothing else.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    Change, EditError, FileChange, Image,
    bounds::{CREATED_MODE, MAX_EDIT_BYTES, MAX_FILE_BYTES, MAX_SCANNED_BYTES},
    change::paths,
    error::shown,
    find::{Endings, Needle, Overlap},
};

/// The files while changes are applied to them.
type Files<'a> = BTreeMap<Vec<u8>, Option<Cow<'a, Image>>>;

/// Applies `changes` in order to the files as they stand (absent = there is none). [`paths()`] says which are needed;
/// others are not looked at.
///
/// Returns every file that ends up different, in order of path.
///
/// # Errors
/// The first change that is refused, and why. Nothing of the edit counts then.
pub fn apply(changes: &[Change], before: &BTreeMap<Vec<u8>, Option<Image>>) -> Result<Vec<FileChange>, EditError> {
    let mut files = Files::new();
    for path in paths(changes)? {
        let image = before.get(&path).ok_or_else(|| EditError::Unread { path: shown(&path) })?;
        let image = image.as_ref().map(Cow::Borrowed);
        files.insert(path, image);
    }
    check_sizes(&files)?;
    let mut scanned = 0;
    for change in changes {
        step(change, &mut files, &mut scanned)?;
    }
    check_sizes(&files)?;
    let changed: Vec<FileChange> = files
        .into_iter()
        .map(|(path, post)| FileChange {
            pre: before.get(&path).cloned().flatten(),
            post: post.map(Cow::into_owned),
            path,
        })
        .filter(|file| file.pre != file.post)
        .collect();
    match changes.first() {
        Some(first) if changed.is_empty() => Err(EditError::no_change(first.path())),
        Some(_) | None => Ok(changed),
    }
}

/// One change. The path was checked; each arm refuses what would lose or overwrite something unseen.
fn step(change: &Change, files: &mut Files<'_>, scanned: &mut usize) -> Result<(), EditError> {
    match change {
        Change::Replace { path, old, new, all } => {
            let image = present(files, path, "changed")?;
            *scanned = scanned.saturating_add(image.content.len());
            if *scanned > MAX_SCANNED_BYTES {
                return Err(EditError::TooMuchToScan);
            }
            let content = replaced(path, &image.content, old, new, *all)?;
            if content == image.content {
                return Err(EditError::no_change(path));
            }
            let mode = image.mode;
            files.insert(path.clone(), Some(Cow::Owned(Image { content, mode })));
        }
        Change::Create { path, content } => {
            absent(files, path, "created")?;
            files.insert(path.clone(), owned(path, content, CREATED_MODE)?);
        }
        Change::Delete { path } => {
            present(files, path, "deleted")?;
            files.insert(path.clone(), None);
        }
        Change::Rename { path, to } => {
            let image = present(files, path, "renamed")?.clone();
            absent(files, to, "the new name of a file")?;
            files.insert(path.clone(), None);
            files.insert(to.clone(), Some(Cow::Owned(image)));
        }
        Change::Mode { path, mode } => {
            let image = present(files, path, "given another mode")?;
            if image.mode == *mode {
                return Err(EditError::no_change(path));
            }
            let image = Image { content: image.content.clone(), mode: *mode };
            files.insert(path.clone(), Some(Cow::Owned(image)));
        }
        Change::Write { path, content, mode } => {
            let image = owned(path, content, *mode)?;
            if files.get(path) == Some(&image) {
                return Err(EditError::no_change(path));
            }
            files.insert(path.clone(), image);
        }
    }
    Ok(())
}

fn present<'f>(files: &'f Files<'_>, path: &[u8], verb: &'static str) -> Result<&'f Image, EditError> {
    files.get(path).and_then(Option::as_deref).ok_or_else(|| EditError::absent(path, verb))
}

fn absent(files: &Files<'_>, path: &[u8], verb: &'static str) -> Result<(), EditError> {
    match files.get(path) {
        Some(Some(_)) => Err(EditError::exists(path, verb)),
        Some(None) | None => Ok(()),
    }
}

fn owned<'a>(path: &[u8], content: &[u8], mode: u32) -> Result<Option<Cow<'a, Image>>, EditError> {
    fits(path, content.len())?;
    Ok(Some(Cow::Owned(Image { content: content.to_vec(), mode })))
}

fn fits(path: &[u8], bytes: usize) -> Result<(), EditError> {
    if bytes > MAX_FILE_BYTES {
        return Err(EditError::FileTooLarge { path: shown(path), bytes });
    }
    Ok(())
}

fn check_sizes(files: &Files<'_>) -> Result<(), EditError> {
    let mut together = 0_usize;
    for (path, image) in files {
        let bytes = image.as_ref().map_or(0, |image| image.content.len());
        fits(path, bytes)?;
        together = together.saturating_add(bytes);
    }
    if together > MAX_EDIT_BYTES { Err(EditError::TooLarge) } else { Ok(()) }
}

/// `content` with `old` replaced: where it stands exactly once, or everywhere.
fn replaced(path: &[u8], content: &[u8], old: &[u8], new: &[u8], all: bool) -> Result<Vec<u8>, EditError> {
    let mut found = 0;
    if old.len() > content.len() {
        return Err(EditError::Matches { path: shown(path), found });
    }
    let needle = Needle::new(old);
    if !all {
        needle.each::<EditError>(content, Overlap::Counts, |_| {
            found += 1;
            Ok(())
        })?;
        if found != 1 {
            return Err(EditError::Matches { path: shown(path), found });
        }
    }
    let keeps_endings = needle.is_loose() && !new.contains(&b'\r');
    let mut endings = Endings::of(content);
    let mut out = Vec::with_capacity(content.len());
    let mut kept = 0;
    found = 0;
    needle.each(content, Overlap::Skipped, |place| {
        out.extend_from_slice(content.get(kept..place.start).unwrap_or_default());
        if keeps_endings {
            endings.put(&mut out, new, &place);
        } else {
            out.extend_from_slice(new);
        }
        kept = place.end;
        found += 1;
        fits(path, out.len())
    })?;
    if found == 0 {
        return Err(EditError::Matches { path: shown(path), found });
    }
    out.extend_from_slice(content.get(kept..).unwrap_or_default());
    fits(path, out.len())?;
    Ok(out)
}
