//! Content that was read once, hashed, and is kept for the one run that may use it.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::{bound::BoundFile, bridge::MAX_PINNED_BYTES, digest::Digest, id::OperationId};

use super::Refusal;

/// Operations for which something is held; the service runs at most as many commands at once.
const MOST_OPERATIONS: usize = 256;
/// Bytes that are held for all of them; memfds are memory of this process.
const MOST_BYTES: u64 = 4 * MAX_PINNED_BYTES;

/// One file.
#[derive(Debug, Clone)]
pub(super) struct HeldFile {
    /// Its absolute path inside the workspace, links resolved.
    pub(super) path: PathBuf,
    /// The words of the command that lead to it.
    pub(super) words: Vec<Vec<u8>>,
    /// Its content, sealed.
    pub(super) content: Arc<OwnedFd>,
    /// The digest of that content.
    pub(super) sha256: Digest,
    /// Its size.
    pub(super) bytes: u64,
    /// Its permissions.
    pub(super) mode: u32,
}

impl HeldFile {
    /// As it is named in an approval.
    pub(super) fn bound(&self) -> BoundFile {
        BoundFile { path: self.path.as_os_str().as_encoded_bytes().to_vec(), sha256: self.sha256 }
    }
}

/// Everything that is held.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<HashMap<OperationId, Vec<HeldFile>>>);

impl Held {
    /// Keeps `files` for `operation`; what was kept for it before is dropped.
    pub(super) fn keep(&self, operation: OperationId, files: Vec<HeldFile>) -> Result<(), Refusal> {
        let mut all = self.lock();
        all.remove(&operation);
        if all.len() >= MOST_OPERATIONS {
            return Err(Refusal::HoldsTooMuch("content is held for 256 operations already"));
        }
        let bytes: u64 = all.values().flatten().chain(&files).map(|file| file.bytes).sum();
        if bytes > MOST_BYTES {
            return Err(Refusal::HoldsTooMuch("512 MiB of content is held already"));
        }
        all.insert(operation, files);
        Ok(())
    }

    /// Takes what is held for `operation`, which must be exactly `named`.
    pub(super) fn take(&self, operation: OperationId, named: &[BoundFile]) -> Result<Vec<HeldFile>, Refusal> {
        let held = self.lock().remove(&operation).unwrap_or_default();
        let mut named: Vec<_> = named.iter().collect();
        named.sort_by(|a, b| a.path.cmp(&b.path));
        let differs = |file: &BoundFile| Refusal::Stale(String::from_utf8_lossy(&file.path).into_owned());
        for (index, file) in held.iter().enumerate() {
            let bound = file.bound();
            if named.get(index) != Some(&&bound) {
                return Err(differs(&bound));
            }
        }
        match named.get(held.len()) {
            Some(more) => Err(differs(more)),
            None => Ok(held),
        }
    }

    /// Drops what is held for `operation`.
    pub(super) fn release(&self, operation: OperationId) {
        self.lock().remove(&operation);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OperationId, Vec<HeldFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> HeldFile {
        HeldFile {
            path: path.into(),
            words: Vec::new(),
            content: Arc::new(super::super::memory::sealed("t", content).unwrap()),
            sha256: Digest::of(content),
            bytes: content.len() as u64,
            mode: 0o755,
        }
    }

    #[test]
    fn only_exactly_what_is_held_is_given_and_only_once() {
        let operation = OperationId::new(1, [1; 10]);
        let held = Held::default();
        let files = [file("/w/a", b"a"), file("/w/b", b"b")];
        let named: Vec<_> = files.iter().map(HeldFile::bound).collect();
        let try_with = |named: &[BoundFile]| {
            held.keep(operation, files.to_vec()).unwrap();
            held.take(operation, named).map(|files| files.len()).map_err(|refusal| refusal.id().to_owned())
        };
        let stale = Err("stale-operand".to_owned());
        let mut other = named.clone();
        other[1].sha256 = Digest::ZERO;
        assert_eq!(try_with(&named), Ok(2));
        assert_eq!(try_with(&other), stale);
        assert_eq!(try_with(&named[..1]), stale);
        assert_eq!(try_with(&[]), stale);
        assert_eq!(
            try_with(&[named.clone(), vec![BoundFile { path: b"/w/c".to_vec(), sha256: Digest::ZERO }]].concat()),
            stale
        );
        assert_eq!(held.take(operation, &named).unwrap_err().id(), "stale-operand");
    }
}
