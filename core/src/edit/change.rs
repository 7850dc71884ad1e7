//! One change, and its digest form: what an approval binds of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    bounds::{MAX_CHANGES, MAX_FILES, MAX_MODE, OWNER_READS},
    error::{EditError, shown},
    path::check_path,
};
use crate::{canon, digest::Digest};

/// One change of one file. Changes are applied in order; a later one sees what an earlier one made.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// `old` becomes `new` where it stands: exactly once, or everywhere with `all`.
    Replace {
        /// The file.
        path: Vec<u8>,
        /// What must be there.
        old: Vec<u8>,
        /// What takes its place.
        new: Vec<u8>,
        /// Every occurrence instead of the only one.
        all: bool,
    },
    /// A file that is not there yet.
    Create {
        /// The file.
        path: Vec<u8>,
        /// All of it.
        content: Vec<u8>,
    },
    /// A file is taken away.
    Delete {
        /// The file.
        path: Vec<u8>,
    },
    /// A file gets another name, which nothing has.
    Rename {
        /// The file.
        path: Vec<u8>,
        /// Its new name.
        to: Vec<u8>,
    },
    /// Its permission bits.
    Mode {
        /// The file.
        path: Vec<u8>,
        /// At most [`MAX_MODE`].
        mode: u32,
    },
    /// A file is given back what it was, whatever is there now: only from undo, never from a model.
    Write {
        /// The file.
        path: Vec<u8>,
        /// All of it.
        content: Vec<u8>,
        /// Its permission bits.
        mode: u32,
    },
}

/// Contents may be megabytes of somebody's file: a log shows their size.
impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.named().to_value())
    }
}

/// Text by digest and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// Its SHA-256.
    pub sha256: Digest,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Text {
    /// Names `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self { sha256: Digest::of(bytes), bytes: bytes.len() as u64 }
    }

    fn to_value(self) -> Value {
        json!({ "sha256": self.sha256, "bytes": canon::wide(self.bytes) })
    }
}

/// A [`Change`] whose contents are named by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant and field is that of Change")]
pub enum Named {
    Replace { path: Vec<u8>, old: Text, new: Text, all: bool },
    Create { path: Vec<u8>, content: Text },
    Delete { path: Vec<u8> },
    Rename { path: Vec<u8>, to: Vec<u8> },
    Mode { path: Vec<u8>, mode: u32 },
    Write { path: Vec<u8>, content: Text, mode: u32 },
}

impl Named {
    /// The canonical form.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Replace { path, old, new, all } => json!({
                "change": "replace", "path": canon::bytes(path), "old": old.to_value(), "new": new.to_value(), "all": all,
            }),
            Self::Create { path, content } => {
                json!({ "change": "create", "path": canon::bytes(path), "content": content.to_value() })
            }
            Self::Delete { path } => json!({ "change": "delete", "path": canon::bytes(path) }),
            Self::Rename { path, to } => {
                json!({ "change": "rename", "path": canon::bytes(path), "to": canon::bytes(to) })
            }
            Self::Mode { path, mode } => {
                json!({ "change": "mode", "path": canon::bytes(path), "mode": octal(*mode) })
            }
            Self::Write { path, content, mode } => json!({
                "change": "write", "path": canon::bytes(path), "content": content.to_value(), "mode": octal(*mode),
            }),
        }
    }
}

/// Permission bits as they are written everywhere: four octal digits.
pub(super) fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

impl Change {
    /// The file that it names first.
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Replace { path, .. }
            | Self::Create { path, .. }
            | Self::Delete { path }
            | Self::Rename { path, .. }
            | Self::Mode { path, .. }
            | Self::Write { path, .. } => path,
        }
    }

    /// Its digest form.
    pub fn named(&self) -> Named {
        match self {
            Self::Replace { path, old, new, all } => {
                Named::Replace { path: path.clone(), old: Text::of(old), new: Text::of(new), all: *all }
            }
            Self::Create { path, content } => Named::Create { path: path.clone(), content: Text::of(content) },
            Self::Delete { path } => Named::Delete { path: path.clone() },
            Self::Rename { path, to } => Named::Rename { path: path.clone(), to: to.clone() },
            Self::Mode { path, mode } => Named::Mode { path: path.clone(), mode: *mode },
            Self::Write { path, content, mode } => {
                Named::Write { path: path.clone(), content: Text::of(content), mode: *mode }
            }
        }
    }

    /// Bytes of text that it carries.
    pub fn carried(&self) -> usize {
        match self {
            Self::Replace { old, new, .. } => old.len().saturating_add(new.len()),
            Self::Create { content, .. } | Self::Write { content, .. } => content.len(),
            Self::Delete { .. } | Self::Rename { .. } | Self::Mode { .. } => 0,
        }
    }

    fn check(&self) -> Result<(), EditError> {
        check_path(self.path())?;
        match self {
            Self::Replace { path, old, .. } if old.is_empty() => Err(EditError::NothingToFind { path: shown(path) }),
            Self::Replace { path, old, new, .. } if old == new => Err(EditError::no_change(path)),
            Self::Rename { path, to } if path == to => Err(EditError::no_change(path)),
            Self::Rename { to, .. } => check_path(to),
            Self::Mode { path, mode } | Self::Write { path, mode, .. } if *mode > MAX_MODE => {
                Err(EditError::Mode { path: shown(path), mode: *mode })
            }
            // The file is the executor's afterwards: what it cannot read, it could not take back either.
            Self::Mode { path, mode } if *mode & OWNER_READS == 0 => {
                Err(EditError::Mode { path: shown(path), mode: *mode })
            }
            Self::Replace { .. }
            | Self::Create { .. }
            | Self::Delete { .. }
            | Self::Mode { .. }
            | Self::Write { .. } => Ok(()),
        }
    }
}

/// The files whose images [`apply()`](super::apply()) needs, in order of path.
///
/// # Errors
/// A change is refused for its form: a path, a mode, too many, one file below another.
pub fn paths(changes: &[Change]) -> Result<BTreeSet<Vec<u8>>, EditError> {
    if changes.is_empty() {
        return Err(EditError::Empty);
    }
    if changes.len() > MAX_CHANGES {
        return Err(EditError::TooManyChanges(changes.len()));
    }
    let mut paths = BTreeSet::new();
    for change in changes {
        change.check()?;
        paths.insert(change.path().to_vec());
        if let Change::Rename { to, .. } = change {
            paths.insert(to.clone());
        }
    }
    if paths.len() > MAX_FILES {
        return Err(EditError::TooManyFiles(paths.len()));
    }
    for path in &paths {
        let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').filter_map(|(at, _)| path.get(..at));
        for above in above {
            if paths.contains(above) {
                return Err(EditError::Nested { path: shown(above), below: shown(path) });
            }
        }
    }
    Ok(paths)
}
