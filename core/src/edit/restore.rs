//! How an edit is taken back.

use super::{
    change::Change,
    image::{FileChange, Image},
};

/// The changes that give each file back the image beside it; absent = it was not there. What is there now does not
/// matter to them: the caller holds it against what the edit left.
pub fn restore<'a>(files: impl IntoIterator<Item = (&'a [u8], Option<&'a Image>)>) -> Vec<Change> {
    let change = |(path, image): (&[u8], Option<&Image>)| match image {
        Some(image) => Change::Write { path: path.to_vec(), content: image.content.clone(), mode: image.mode },
        None => Change::Delete { path: path.to_vec() },
    };
    files.into_iter().map(change).collect()
}

/// The changes that undo these.
pub fn reverse(files: &[FileChange]) -> Vec<Change> {
    restore(files.iter().map(|file| (file.path.as_slice(), file.pre.as_ref())))
}
