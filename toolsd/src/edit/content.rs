//! Bytes of open files, read whole within a limit, or hashed.

use std::os::fd::AsFd;

use nix::{errno::Errno, libc::off_t, sys::uio::pread};
use salaam_core::{bridge::CHUNK_BYTES, digest::Digest, edit::MAX_FILE_BYTES};
use sha2::{Digest as _, Sha256};

/// The bytes from the beginning; `None` where there are more than `most`.
pub(super) fn read(file: impl AsFd, most: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut bytes = Vec::new();
    let whole = each_chunk(file, most, |chunk| bytes.extend_from_slice(chunk))?;
    Ok(whole.map(|_| bytes))
}

/// Digest and size; `None` where it is larger than a file of an edit can be.
pub(super) fn digest(file: impl AsFd) -> Result<Option<(Digest, u64)>, Errno> {
    let mut hash = Sha256::new();
    let whole = each_chunk(file, MAX_FILE_BYTES, |chunk| hash.update(chunk))?;
    Ok(whole.map(|bytes| (Digest::from_bytes(hash.finalize().into()), bytes)))
}

/// By position, since descriptors of one file may share theirs; read(2), so that a file that is cut short
/// meanwhile is only shorter.
fn each_chunk(file: impl AsFd, most: usize, mut take: impl FnMut(&[u8])) -> Result<Option<u64>, Errno> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at: usize = 0;
    loop {
        let offset = off_t::try_from(at).map_err(|_| Errno::EFBIG)?;
        let got = match pread(&file, &mut chunk, offset) {
            Err(Errno::EINTR) => continue,
            got => got?,
        };
        if got == 0 {
            return Ok(Some(at as u64));
        }
        at += got;
        if at > most {
            return Ok(None);
        }
        take(chunk.get(..got).unwrap_or_default());
    }
}
