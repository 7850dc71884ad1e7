//! Keeping the output of a command: head and tail in a file, all of it counted and hashed.
//!
//! A stream that is longer than what is kept of it is counted and hashed by the executor, which sends head and tail;
//! what it says of the whole is its word, as everything about a command is.
//!
//! A blob is its head followed by its tail without a mark between them: the receipt says how much the stream had
//! and how much was kept. A spool that is dropped unfinished leaves nothing; what a crash leaves is removed at the
//! next start, since no receipt names it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use salaam_core::{
    bridge::Stream,
    digest::Digest,
    id::OperationId,
    kept::{Kept, Tail},
    result::Output,
};
use sha2::{Digest as _, Sha256};

/// Receives one stream: counts and hashes all, keeps head and tail. Blocking; no file until the first byte.
#[derive(Debug)]
pub struct Spool {
    path: PathBuf,
    file: Option<File>,
    head_room: u64,
    tail: Tail,
    kept_head: u64,
    bytes: u64,
    hash: Sha256,
    beyond: Option<Whole>,
    /// Set by the first failure: what is written after a torn write would be glued to it.
    torn: Option<io::ErrorKind>,
    finished: bool,
}

/// What the executor says of a stream that it did not send whole.
#[derive(Debug, Clone, Copy)]
struct Whole {
    bytes: u64,
    /// Absent while it goes on.
    sha256: Option<Digest>,
}

impl Spool {
    /// A spool into `blobs` that keeps `cap` bytes: the first, and of the last up to 1 MiB or half of `cap`.
    pub(super) fn new(blobs: &Path, operation: OperationId, stream: Stream, cap: u64) -> Self {
        let kept = Kept::of(cap);
        Self {
            path: blobs.join(name(operation, stream)),
            file: None,
            head_room: kept.head,
            tail: kept.tail(),
            kept_head: 0,
            bytes: 0,
            hash: Sha256::new(),
            beyond: None,
            torn: None,
            finished: false,
        }
    }

    /// Takes the next bytes of the stream. After an error (a full disk) nothing more is kept, and every later
    /// call fails with the same kind, [`Spool::finish`] too: drop the spool, which removes the file.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(Whole { sha256: Some(_), .. }) = self.beyond {
            self.tail.push(bytes);
            return Ok(());
        }
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let room = usize::try_from(self.head_room - self.kept_head).unwrap_or(usize::MAX);
        let (head, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.keep(head)?;
        self.kept_head += head.len() as u64;
        self.tail.push(rest);
        Ok(())
    }

    /// Takes what the stream comes to that is not sent whole. With the digest it has ended: what is written now is
    /// its end.
    pub fn beyond(&mut self, bytes: u64, sha256: Option<Digest>) {
        self.beyond = Some(Whole { bytes, sha256 });
    }

    /// How many bytes can be read from the blob while the stream goes on.
    pub const fn readable(&self) -> u64 {
        self.kept_head
    }

    /// Writes the tail, fsyncs file and directory; then the receipt may be committed.
    pub fn finish(mut self) -> io::Result<Output> {
        let kept = self.kept_head + self.tail.len() as u64;
        let (older, newer) = self.tail.take();
        self.keep(&older)?;
        self.keep(&newer)?;
        if let Some(file) = &self.file {
            file.sync_all()?;
            if let Some(directory) = self.path.parent() {
                File::open(directory)?.sync_all()?;
            }
        }
        self.finished = true;
        let received = Digest::from_bytes(std::mem::take(&mut self.hash).finalize().into());
        // Of a stream that was cut off while it was only counted, the digest is that of what was received.
        let (bytes, sha256) = match self.beyond {
            Some(Whole { bytes, sha256 }) => (bytes, sha256.unwrap_or(received)),
            None => (self.bytes, received),
        };
        Ok(Output { bytes, sha256, kept, truncated: kept < bytes })
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(kind) = self.torn {
            return Err(kind.into());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let outcome = self.open().and_then(|file| file.write_all(bytes));
        self.torn = outcome.as_ref().err().map(io::Error::kind);
        outcome
    }

    fn open(&mut self) -> io::Result<&mut File> {
        match &mut self.file {
            Some(file) => Ok(file),
            // An operation runs once, so its blob is never there yet.
            empty @ None => Ok(empty.insert(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .custom_flags(O_NOFOLLOW | O_CLOEXEC)
                    .open(&self.path)?,
            )),
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if !self.finished && self.file.is_some() {
            // Should this fail, the next start removes it.
            let _left = fs::remove_file(&self.path);
        }
    }
}

/// Opens a finished blob; absent = nothing was kept.
pub(super) fn open(blobs: &Path, operation: OperationId, stream: Stream) -> io::Result<Option<File>> {
    let path = blobs.join(name(operation, stream));
    match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a blob holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blob {
    /// The output of a command.
    Output,
    /// The files of an edit.
    Images,
}

/// What a blob's file name speaks of; absent = not the name of a blob.
pub(super) fn operation_of(file_name: &str) -> Option<(OperationId, Blob)> {
    let (operation, what) = file_name.split_once('.')?;
    let blob = if what == super::images::SUFFIX {
        Blob::Images
    } else {
        what.parse::<Stream>().ok()?;
        Blob::Output
    };
    Some((operation.parse().ok()?, blob))
}

fn name(operation: OperationId, stream: Stream) -> String {
    format!("{operation}.{stream}")
}
