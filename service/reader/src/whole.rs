//! A whole file, as an edit needs it: exactly the bytes, the mode, and which file it was. No link is followed,
//! for an edit must name the file itself.

use std::time::Instant;

use nix::sys::stat::{FileStat, fstat};
use salaam_core::{
    edit::{Image, MAX_FILE_BYTES, MAX_MODE},
    reader::Whole,
};

use crate::{
    chunks::{CHUNK_BYTES, fill},
    limits::READ_TIME,
    refusal::Refusal,
    root::{Links, Root},
};

/// The file at `path`, of at most `most` bytes.
///
/// # Errors
/// More bytes than that, or a file that changed while it was read: half of one state and half of another is none. A
/// write that began before, or within one tick of the clock that stamps changes, can go unseen; whoever edits compares
/// hashes once more.
pub fn whole(root: &Root<'_>, path: &[u8], most: u64) -> Result<Whole, Refusal> {
    let until = Instant::now() + READ_TIME;
    let most = most.min(MAX_FILE_BYTES as u64);
    let file = root.file(path, Links::Never)?;
    // Only a hint: a file that says that it is small is still read to its end.
    if u64::try_from(file.stat.st_size).unwrap_or(u64::MAX) > most {
        return Err(Refusal::TooLarge { most });
    }
    let mut content = Vec::new();
    loop {
        let before = content.len();
        content.resize(before + CHUNK_BYTES, 0);
        let got = fill(&file.fd, content.get_mut(before..).unwrap_or_default(), until)?;
        content.truncate(before + got);
        if content.len() as u64 > most {
            return Err(Refusal::TooLarge { most });
        }
        if got < CHUNK_BYTES {
            break;
        }
    }
    let after = fstat(&file.fd).map_err(Refusal::kernel("looking at it"))?;
    if times(&file.stat) != times(&after) || u64::try_from(after.st_size) != Ok(content.len() as u64) {
        return Err(Refusal::Changed);
    }
    let mode = after.st_mode & 0o7777;
    if mode > MAX_MODE {
        return Err(Refusal::SpecialMode);
    }
    let image = Image { content, mode };
    Ok(Whole { image, device: after.st_dev, inode: after.st_ino, links: after.st_nlink as u64 })
}

const fn times(stat: &FileStat) -> [i64; 4] {
    [stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec]
}
