//! Files as they were before an edit, kept beside the journal so that the edit can be taken back.
//!
//! One blob an operation: a line of JSON that names each file with its digest, then their bytes. It is on the disk
//! before the intent is; what no intent speaks of is removed at the next start.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use salaam_core::{
    canon,
    digest::Digest,
    edit::{Image, MAX_EDIT_BYTES, MAX_FILES, MAX_PATH_BYTES},
    id::OperationId,
};
use serde_json::{Value, json};

/// What follows the operation in the name of such a blob.
pub(super) const SUFFIX: &str = "images";
/// A file's name in base64 and its digest.
const MAX_HEAD_BYTES: usize = MAX_FILES * (2 * MAX_PATH_BYTES + 256);

/// A file by its path relative to the root; absent = it was not there.
pub type KeptImage = (Vec<u8>, Option<Image>);

/// Writes the images of `operation` and flushes them and their name.
pub(super) fn keep(blobs: &Path, operation: OperationId, images: &[KeptImage]) -> io::Result<()> {
    let path = place(blobs, operation);
    let written = write(&path, images).and_then(|()| File::open(blobs)?.sync_all());
    if written.is_err() {
        // Should this fail, the next start removes it.
        let _left = fs::remove_file(&path);
    }
    written
}

/// Removes the images of `operation`, if there are any.
pub(super) fn remove(blobs: &Path, operation: OperationId) -> io::Result<()> {
    match fs::remove_file(place(blobs, operation)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The images of `operation`, each as its digest says; absent = none were kept.
pub(super) fn read(blobs: &Path, operation: OperationId) -> io::Result<Option<Vec<KeptImage>>> {
    let opened =
        OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK).open(place(blobs, operation));
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let most = MAX_HEAD_BYTES + MAX_EDIT_BYTES;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    parse(&bytes).map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not what was written"))
}

fn place(blobs: &Path, operation: OperationId) -> PathBuf {
    blobs.join(format!("{operation}.{SUFFIX}"))
}

fn write(path: &Path, images: &[KeptImage]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(O_NOFOLLOW | O_CLOEXEC).open(path)?;
    let entry = |(path, image): &KeptImage| json!({ "path": canon::bytes(path), "image": image.as_ref().map(|image| image.stamp().to_value()) });
    let mut head = Value::Array(images.iter().map(entry).collect()).to_string();
    head.push('\n');
    file.write_all(head.as_bytes())?;
    for image in images.iter().filter_map(|(_, image)| image.as_ref()) {
        file.write_all(&image.content)?;
    }
    file.sync_all()
}

fn parse(bytes: &[u8]) -> Option<Vec<KeptImage>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, rest) = bytes.split_at_checked(end + 1)?;
    let head: Vec<Value> = serde_json::from_slice(head).ok()?;
    let mut rest = rest;
    let mut images = Vec::new();
    for entry in &head {
        let path = canon::to_bytes(entry.get("path")?)?;
        let stamp = entry.get("image")?;
        if stamp.is_null() {
            images.push((path, None));
            continue;
        }
        let (content, after) = rest.split_at_checked(usize::try_from(stamp.get("bytes")?.as_u64()?).ok()?)?;
        rest = after;
        let mode = u32::from_str_radix(stamp.get("mode")?.as_str()?, 8).ok()?;
        if stamp.get("sha256")?.as_str()?.parse() != Ok(Digest::of(content)) {
            return None;
        }
        images.push((path, Some(Image { content: content.to_vec(), mode })));
    }
    rest.is_empty().then_some(images)
}
