//! Who could write a file, judged from owner and mode of it and of every directory above it.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Whose files are trusted beside root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trust {
    /// The owner that is accepted beside root.
    pub uid: u32,
}

impl Trust {
    /// Only root's.
    pub const ROOT: Self = Self { uid: 0 };

    /// What is wrong with an object of this owner and mode, if anything: `None` = nobody else can write it.
    pub fn fault(self, uid: u32, mode: u32) -> Option<String> {
        const OTHERS_WRITE: u32 = 0o022;
        if uid != 0 && uid != self.uid {
            return Some(format!("it belongs to uid {uid}"));
        }
        (mode & OTHERS_WRITE != 0).then(|| format!("others may write it (mode {:04o})", mode & 0o7777))
    }

    /// The same for a directory above an object: with the sticky bit the entries of others stay theirs.
    pub fn fault_above(self, uid: u32, mode: u32) -> Option<String> {
        const STICKY: u32 = 0o1000;
        if mode & STICKY != 0 && (uid == 0 || uid == self.uid) { None } else { self.fault(uid, mode) }
    }
}

/// The first of `path` and the directories above it that somebody else could change, with the reason. Links
/// in `path` are resolved first, so what is judged is what will be used.
pub fn untrusted(path: &Path, trust: Trust) -> io::Result<Option<(PathBuf, String)>> {
    let real = path.canonicalize()?;
    let own = real.metadata()?;
    if let Some(why) = trust.fault(own.uid(), own.mode()) {
        return Ok(Some((real, why)));
    }
    untrusted_above(&real, trust)
}

/// The same for the directories above `path` only; `path` has no links and need not exist.
pub(crate) fn untrusted_above(path: &Path, trust: Trust) -> io::Result<Option<(PathBuf, String)>> {
    for above in path.ancestors().skip(1) {
        let meta = match above.metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let Some(why) = trust.fault_above(meta.uid(), meta.mode()) {
            return Ok(Some((above.to_owned(), why)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_and_root_may_have_written_it() {
        let service = Trust { uid: 1001 };
        assert_eq!(service.fault(1001, 0o100_600), None);
        assert_eq!(service.fault(0, 0o100_644), None);
        assert!(service.fault(997, 0o100_600).is_some_and(|why| why.contains("uid 997")));
        assert!(service.fault(1001, 0o100_620).is_some());
        assert!(Trust::ROOT.fault(1001, 0o100_600).is_some());
    }

    #[test]
    fn a_sticky_directory_is_fine_above_and_never_as_the_object() {
        assert_eq!(Trust::ROOT.fault_above(0, 0o41_777), None);
        assert!(Trust::ROOT.fault_above(0, 0o40_777).is_some());
        assert!(Trust::ROOT.fault_above(5, 0o41_777).is_some());
        assert!(Trust::ROOT.fault(0, 0o41_777).is_some());
    }
}
