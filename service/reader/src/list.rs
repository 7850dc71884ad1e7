//! One directory, a page at a time, with what each entry is by its own inode. A link is shown, not followed.

use std::{ops::Bound, time::Instant};

use salaam_core::reader::{Entry, EntryKind, Listed, MAX_ENTRIES};

use crate::{
    limits::READ_TIME,
    names::names,
    refusal::Refusal,
    root::{Directory, Kind, Links, Root},
};

/// At most `most` entries of the directory at `path`, behind the name `after`.
///
/// # Errors
/// What is no directory, or may not be listed.
pub fn list(root: &Root<'_>, path: &[u8], after: Option<&[u8]>, most: usize) -> Result<Listed, Refusal> {
    let until = Instant::now() + READ_TIME;
    let directory = root.directory(path, Links::Inside)?;
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let page = names(&directory, from, most.clamp(1, MAX_ENTRIES), until)?;
    let mut entries = Vec::with_capacity(page.names.len());
    for name in page.names {
        entries.extend(entry(root, &directory, name)?);
    }
    Ok(Listed { entries, more: page.more })
}

/// One entry; none that was unlinked since its name was read.
fn entry(root: &Root<'_>, directory: &Directory, name: Vec<u8>) -> Result<Option<Entry>, Refusal> {
    let mut entry = Entry { name, kind: EntryKind::Other, size: 0, mode: 0, closed: false, target: Vec::new() };
    let place = match directory.place(&entry.name) {
        Ok(place) => place,
        Err(Refusal::Mount) => return Ok(Some(entry)),
        Err(Refusal::Missing) => return Ok(None),
        Err(other) => return Err(other),
    };
    entry.mode = place.stat.st_mode & 0o7777;
    match Kind::of(place.stat.st_mode) {
        Kind::File => {
            entry.kind = EntryKind::File;
            entry.size = u64::try_from(place.stat.st_size).unwrap_or(0);
            entry.closed = root.open_file(directory, &entry.name).is_err();
        }
        Kind::Directory => {
            entry.kind = EntryKind::Directory;
            entry.closed = root.open_directory(directory, &entry.name).is_err();
        }
        Kind::Link => {
            entry.kind = EntryKind::Link;
            entry.target = place.target()?;
        }
        Kind::Other => {}
    }
    Ok(Some(entry))
}
