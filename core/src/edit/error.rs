//! Why an edit is refused. Paths are named, shown visibly and cut; what stands in a file is never quoted.

use super::bounds::{
    MAX_CHANGES, MAX_DIFF_BYTES, MAX_EDIT_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_PATH_BYTES, MAX_SCANNED_BYTES,
};
use crate::show;

/// What is wrong with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// Nothing.
    #[error("it is empty")]
    Empty,
    /// No system call would take it.
    #[error("it or a name in it is too long ({MAX_PATH_BYTES} bytes in all and 255 for a name are the most)")]
    TooLong,
    /// A NUL byte.
    #[error("it holds a NUL byte")]
    Nul,
    /// From the root of the host.
    #[error("it must be relative to the root of the workspace")]
    Absolute,
    /// With `..`.
    #[error("it must not hold `..`")]
    Upwards,
    /// With an empty or `.` component.
    #[error("it must not hold `.`, `//` or a slash at the end")]
    NotPlain,
}

/// Why an edit is refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No change at all.
    #[error("the edit has no changes")]
    Empty,
    /// Too many changes.
    #[error("the edit has {0} changes; {MAX_CHANGES} is the most; send several edits")]
    TooManyChanges(usize),
    /// Too many files.
    #[error("the edit touches {0} files; {MAX_FILES} is the most; send several edits")]
    TooManyFiles(usize),
    /// A path that cannot be one.
    #[error("the path `{path}` is refused: {fault}")]
    Path {
        /// The path, shown.
        path: String,
        /// What is wrong.
        fault: PathFault,
    },
    /// One file of the edit would lie below another.
    #[error("`{below}` lies below `{path}`, which the edit takes for a file; send two edits")]
    Nested {
        /// The file.
        path: String,
        /// The path below it.
        below: String,
    },
    /// The caller did not say how a file stands.
    #[error("`{path}` was not read before the edit was computed")]
    Unread {
        /// The path, shown.
        path: String,
    },
    /// A file that must be there is not.
    #[error("`{path}` cannot be {verb}: there is no such file")]
    Absent {
        /// The path, shown.
        path: String,
        /// What was to be done.
        verb: &'static str,
    },
    /// A file that must not be there is.
    #[error("`{path}` cannot be {verb}: it exists; edit or delete it first")]
    Exists {
        /// The path, shown.
        path: String,
        /// What was to be done.
        verb: &'static str,
    },
    /// The text to replace is empty.
    #[error("`{path}`: the text to replace is empty; create a file with `create`")]
    NothingToFind {
        /// The path, shown.
        path: String,
    },
    /// The text to replace is not there exactly once.
    #[error("`{path}`: the text to replace has {found} matches; {}", advice(*found))]
    Matches {
        /// The path, shown.
        path: String,
        /// How many there are.
        found: usize,
    },
    /// A change, or the edit as a whole, changes nothing.
    #[error("`{path}`: no change")]
    NoChange {
        /// The path, shown.
        path: String,
    },
    /// A mode beyond the permission bits, or one with which nobody could take the edit back.
    #[error("`{path}`: the mode {mode:o} is refused; it must be from 0000 to 0777 and let the owner read")]
    Mode {
        /// The path, shown.
        path: String,
        /// The mode.
        mode: u32,
    },
    /// A file is too large.
    #[error("`{path}` has or would have {bytes} bytes; {MAX_FILE_BYTES} is the most")]
    FileTooLarge {
        /// The path, shown.
        path: String,
        /// Its size.
        bytes: usize,
    },
    /// All files together are too large.
    #[error("the files have or would have more than {MAX_EDIT_BYTES} bytes together; send several edits")]
    TooLarge,
    /// Matching would read too much.
    #[error("the changes would read more than {MAX_SCANNED_BYTES} bytes; send fewer changes to large files at once")]
    TooMuchToScan,
    /// It cannot be shown whole.
    #[error("the edit takes more than {MAX_DIFF_BYTES} bytes to show, so nobody could review it; send several edits")]
    TooLongToShow,
}

const fn advice(found: usize) -> &'static str {
    if found == 0 {
        "read the file again and quote it exactly"
    } else {
        "quote more of the lines around it, or set `all`"
    }
}

/// What of a path an error shows.
const SHOWN_PATH_CHARS: usize = 256;

/// A path as errors name it.
pub(super) fn shown(path: &[u8]) -> String {
    show::excerpt(path, SHOWN_PATH_CHARS)
}

impl EditError {
    pub(super) fn path(path: &[u8], fault: PathFault) -> Self {
        Self::Path { path: shown(path), fault }
    }

    pub(super) fn no_change(path: &[u8]) -> Self {
        Self::NoChange { path: shown(path) }
    }

    pub(super) fn absent(path: &[u8], verb: &'static str) -> Self {
        Self::Absent { path: shown(path), verb }
    }

    pub(super) fn exists(path: &[u8], verb: &'static str) -> Self {
        Self::Exists { path: shown(path), verb }
    }
}
