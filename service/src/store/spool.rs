//! Keeping the output of a command: head and tail in a file, all of it counted and hashed.
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
use salaam_core::{bridge::Stream, digest::Digest, id::OperationId, result::Output};
use sha2::{Digest as _, Sha256};

/// The end of a stream that is kept in memory until the stream ends, of each stream under way.
const MOST_TAIL_BYTES: u64 = 1 << 20;

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
    /// Set by the first failure: what is written after a torn write would be glued to it.
    torn: Option<io::ErrorKind>,
    finished: bool,
}

impl Spool {
    /// A spool into `blobs` that keeps `cap` bytes: the first, and of the last up to 1 MiB or half of `cap`.
    pub(super) fn new(blobs: &Path, operation: OperationId, stream: Stream, cap: u64) -> Self {
        let tail = MOST_TAIL_BYTES.min(cap / 2);
        Self {
            path: blobs.join(name(operation, stream)),
            file: None,
            head_room: cap - tail,
            // At most 1 MiB.
            tail: Tail::new(usize::try_from(tail).unwrap_or(0)),
            kept_head: 0,
            bytes: 0,
            hash: Sha256::new(),
            torn: None,
            finished: false,
        }
    }

    /// Takes the next bytes of the stream. After an error (a full disk) nothing more is kept, and every later
    /// call fails with the same kind, [`Spool::finish`] too: drop the spool, which removes the file.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let room = usize::try_from(self.head_room - self.kept_head).unwrap_or(usize::MAX);
        let (head, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.keep(head)?;
        self.kept_head += head.len() as u64;
        self.tail.push(rest);
        Ok(())
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
        let sha256 = Digest::from_bytes(std::mem::take(&mut self.hash).finalize().into());
        Ok(Output { bytes: self.bytes, sha256, kept, truncated: kept < self.bytes })
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

/// The last bytes of a stream, in a ring.
#[derive(Debug)]
struct Tail {
    ring: Vec<u8>,
    most: usize,
    /// Where the oldest byte is, once the ring is full.
    oldest: usize,
}

impl Tail {
    const fn new(most: usize) -> Self {
        Self { ring: Vec::new(), most, oldest: 0 }
    }

    const fn len(&self) -> usize {
        self.ring.len()
    }

    fn push(&mut self, bytes: &[u8]) {
        let (_, bytes) = bytes.split_at_checked(bytes.len().saturating_sub(self.most)).unwrap_or((&[], bytes));
        let growth = bytes.len().min(self.most - self.ring.len());
        let (grow, turn) = bytes.split_at_checked(growth).unwrap_or((bytes, &[]));
        self.ring.extend_from_slice(grow);
        self.overwrite(turn);
    }

    /// Replaces the oldest bytes of a full ring.
    fn overwrite(&mut self, bytes: &[u8]) {
        let to_end = self.ring.len().saturating_sub(self.oldest);
        let (first, second) = bytes.split_at_checked(to_end).unwrap_or((bytes, &[]));
        copy_at(&mut self.ring, self.oldest, first);
        copy_at(&mut self.ring, 0, second);
        if self.most > 0 {
            self.oldest = (self.oldest + bytes.len()) % self.most;
        }
    }

    /// What it holds, older part first.
    fn take(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut newer = std::mem::take(&mut self.ring);
        let older = newer.split_off(self.oldest.min(newer.len()));
        self.oldest = 0;
        (older, newer)
    }
}

fn copy_at(ring: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = ring.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
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
