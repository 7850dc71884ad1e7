//! What goes wrong in the store: what was attempted, on which file, why, and what mends it.

use std::{io, path::PathBuf};

use rusqlite::ffi;
use salaam_core::{check::Check, operation::State};

/// The store could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal is not what was written. Nothing was changed.
    #[error("the journal in {path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which event or row, and what is wrong with it.
        why: String,
    },
    /// Something else lies where the journal should be. Nothing was changed.
    #[error("{path} is not a journal of this program: {why}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// A later program wrote it.
    #[error(
        "{path} has the form {found} and this program knows {known}: start the version that wrote it, or a later one"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The form of the file.
        found: i64,
        /// The form that this program writes.
        known: i64,
    },
    /// There is no journal (only when reading one offline).
    #[error("there is no journal at {path}")]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("could not {attempted} {path}: {source}")]
    File {
        /// What was attempted.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A database operation failed.
    #[error("could not {attempted} in {path}: {source}")]
    Database {
        /// What was attempted.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The store was closed, or its thread is gone.
    #[error("the journal in {path} is closed: the service is stopping")]
    Closed {
        /// The file.
        path: PathBuf,
    },
}

/// A transaction that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The change does not apply to the state as it is; nothing of this transaction was written.
    #[error("the state has moved on{}", actual.map(|state| format!(": it is {state}")).unwrap_or_default())]
    Conflict {
        /// The state in which the operation was found, where one was found.
        actual: Option<State>,
    },
    /// Nothing of this transaction counts; the state is as before. The text names file, cause and remedy.
    #[error("{0}")]
    NotDurable(String),
}

impl StoreError {
    /// Sorts a database failure: damage is told apart from what a retry or more space may mend.
    pub(super) fn database(attempted: &'static str, path: &std::path::Path, source: rusqlite::Error) -> Self {
        let damaged = || Self::Damaged { path: path.into(), why: format!("could not {attempted}: {source}") };
        match source.sqlite_error().map(|e| e.extended_code & 0xff) {
            Some(ffi::SQLITE_CORRUPT) => damaged(),
            Some(ffi::SQLITE_NOTADB) => Self::Foreign { path: path.into(), why: source.to_string() },
            Some(_) => Self::Database { attempted, path: path.into(), source },
            // A row that is missing or does not parse: we never write one.
            None => damaged(),
        }
    }

    /// The failed start check for this error: `journal-damaged`, with what was seen and what mends it.
    pub fn to_check(&self) -> Check {
        let fix = match self {
            Self::Damaged { path, .. } => format!(
                "keep a copy of {0}, then either restore a whole backup of it or move it, its -wal and the blobs directory away together to begin a new journal; `salaam journal verify` names the first bad event",
                path.display()
            ),
            Self::Foreign { path, .. } => {
                format!("move {} away, or name another state directory (SALAAM_STATE_DIR)", path.display())
            }
            Self::Newer { .. } => "install the version of Salaam that wrote it, or a later one".to_owned(),
            Self::Absent { path } => format!("check the state directory: {} should be there", path.display()),
            Self::File { path, source, .. } => remedy_of_io(source, path),
            Self::Database { path, source, .. } => remedy(source, path),
            Self::Closed { .. } => "start the service again".to_owned(),
        };
        Check::fail("journal-damaged", self.to_string(), fix)
    }
}

/// The text of a [`CommitError::NotDurable`] for a database failure.
pub(super) fn not_durable(path: &std::path::Path, attempted: &'static str, source: &rusqlite::Error) -> String {
    format!("could not {attempted} in {}: {source}; nothing was recorded; {}", path.display(), remedy(source, path))
}

/// Whether a failure leaves it open what the disk holds: then nothing more may be acknowledged (after a failed
/// fsync the kernel marks the pages clean, and the next fsync succeeds without them).
pub(super) fn disk_is_in_doubt(source: &rusqlite::Error) -> bool {
    source
        .sqlite_error()
        .is_some_and(|e| matches!(e.extended_code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

fn remedy(source: &rusqlite::Error, path: &std::path::Path) -> String {
    match source.sqlite_error().map(|e| e.extended_code & 0xff) {
        Some(ffi::SQLITE_FULL) => format!("free space on the file system of {}", path.display()),
        Some(ffi::SQLITE_IOERR) => {
            format!("free space on the file system of {} and look for disk errors in the kernel's log", path.display())
        }
        Some(ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM) => format!(
            "make {} and its directory belong to the service user with modes 0600 and 0700, on a file system that is mounted writable",
            path.display()
        ),
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_CONSTRAINT) => {
            format!("end whatever other program writes to {}", path.display())
        }
        Some(ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB) => "run `salaam journal verify`".to_owned(),
        Some(_) | None => "run `salaam journal verify` and restart the service".to_owned(),
    }
}

fn remedy_of_io(source: &io::Error, path: &std::path::Path) -> String {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free space on the file system of {}", path.display())
        }
        io::ErrorKind::NotFound => format!("make the state directory, 0700 and the service user's: {}", path.display()),
        _ => format!(
            "make {} belong to the service user, 0600 (a directory 0700), on a writable file system",
            path.display()
        ),
    }
}
