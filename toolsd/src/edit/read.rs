//! Whole files as they stand, for the service to compute an edit from, and for the edit itself.

use std::{
    ffi::OsStr,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use salaam_core::{
    bridge::FilesRead,
    edit::{Image, MAX_EDIT_BYTES, MAX_FILE_BYTES, check_path},
};

use super::{
    Refusal,
    attributes::Attributes,
    content,
    guard::Guard,
    place::{Entry, Way, look, split, way},
};

/// A file as it stands.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) way: Way,
    pub(super) image: Option<Image>,
    pub(super) attributes: Option<Attributes>,
}

/// Files as they stand, in the order asked; absent = there is none. At most [`MAX_EDIT_BYTES`] together; blocks
/// on the file system.
///
/// # Errors
/// One of them is nothing that an edit takes, protected, or cannot be read; no text of a file is in the refusal.
pub fn read_files(root: BorrowedFd<'_>, paths: Vec<Vec<u8>>, protected: &[Vec<u8>]) -> Result<FilesRead, Refusal> {
    let touched = paths.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
    for path in &paths {
        check_path(path)?;
    }
    Guard::new(root, protected, touched).permit()?;
    let mut left = MAX_EDIT_BYTES;
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let image = read_one(root, Path::new(OsStr::from_bytes(&path)), left)?.image;
        left -= image.as_ref().map_or(0, |image| image.content.len());
        files.push((path, image));
    }
    Ok(FilesRead { files })
}

/// One file, at most `left` bytes of it.
pub(super) fn read_one(root: BorrowedFd<'_>, path: &Path, left: usize) -> Result<Found, Refusal> {
    let (above, name) = split(path);
    let way = way(root, above)?;
    let absent = |way| Ok(Found { way, image: None, attributes: None });
    let Way::Whole(directory) = &way else { return absent(way) };
    match look(directory.as_ref(), name).map_err(Refusal::kernel("opening", path))? {
        Entry::Absent => absent(way),
        Entry::Other(odd) => Err(odd.refusal(path)),
        Entry::File(file) => {
            let most = MAX_FILE_BYTES.min(left);
            let content = content::read(&file.fd, most).map_err(Refusal::kernel("reading", path))?;
            let content = content.ok_or_else(|| Refusal::Large { path: path.to_owned(), most })?;
            let image = Some(Image { content, mode: file.mode() });
            Ok(Found { attributes: Some(Attributes::of(&file, path)?), image, way })
        }
    }
}
