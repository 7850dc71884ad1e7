//! A file as it stands, the same by digest, and what became of it.

use serde_json::{Value, json};

use super::change::octal;
use crate::{canon, digest::Digest, policy::word};

/// A regular file: its bytes and its permission bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// All of it.
    pub content: Vec<u8>,
    /// st_mode & 0777: the permission bits and no others.
    pub mode: u32,
}

impl Image {
    /// The image by digest.
    pub fn stamp(&self) -> Stamp {
        Stamp { sha256: Digest::of(&self.content), bytes: self.content.len() as u64, mode: self.mode }
    }
}

/// A log shows what it is by digest.
impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stamp().fmt(f)
    }
}

/// An [`Image`] by digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// SHA-256 of its bytes.
    pub sha256: Digest,
    /// How many.
    pub bytes: u64,
    /// Its mode.
    pub mode: u32,
}

impl Stamp {
    /// The canonical form.
    pub fn to_value(self) -> Value {
        json!({ "sha256": self.sha256, "bytes": canon::wide(self.bytes), "mode": octal(self.mode) })
    }
}

/// What an edit makes of one file; absent = the file is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file, relative to the root.
    pub path: Vec<u8>,
    /// As it stands.
    pub pre: Option<Image>,
    /// As it will be; never the same as `pre`.
    pub post: Option<Image>,
}

impl FileChange {
    /// The change by digest.
    pub fn expected(&self) -> Expected {
        Expected {
            path: self.path.clone(),
            pre: self.pre.as_ref().map(Image::stamp),
            post: self.post.as_ref().map(Image::stamp),
        }
    }
}

/// A [`FileChange`] by digest: what both sides must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The file, relative to the root.
    pub path: Vec<u8>,
    /// Before; absent = there is none.
    pub pre: Option<Stamp>,
    /// After.
    pub post: Option<Stamp>,
}

impl Expected {
    /// The canonical form.
    pub fn to_value(&self) -> Value {
        json!({
            "path": canon::bytes(&self.path),
            "pre": self.pre.map(Stamp::to_value),
            "post": self.post.map(Stamp::to_value),
        })
    }
}

/// All of an edit by digest.
pub fn expected(files: &[FileChange]) -> Vec<Expected> {
    files.iter().map(FileChange::expected).collect()
}

/// How a file was changed on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The new file and the old one changed names (RENAME_EXCHANGE).
    Exchange,
    /// A new file got a name that nothing had (RENAME_NOREPLACE).
    Create,
    /// The file was moved aside and taken away.
    Delete,
}
word!(Method { Exchange = "exchange", Create = "create", Delete = "delete" });

/// What became of one file: in the receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedFile {
    /// The file, relative to the root.
    pub path: Vec<u8>,
    /// Before.
    pub pre: Option<Stamp>,
    /// After.
    pub post: Option<Stamp>,
    /// How.
    pub method: Method,
}

impl EditedFile {
    /// The form in a result: digests, with the modes beside them.
    pub fn to_value(&self) -> Value {
        let sha256 = |stamp: Option<Stamp>| stamp.map(|stamp| stamp.sha256);
        let mode = |stamp: Option<Stamp>| stamp.map(|stamp| octal(stamp.mode));
        json!({
            "path": canon::bytes(&self.path),
            "pre": sha256(self.pre),
            "post": sha256(self.post),
            "pre_mode": mode(self.pre),
            "post_mode": mode(self.post),
            "method": self.method,
        })
    }
}
