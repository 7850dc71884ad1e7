//! What a file has beside its bytes and is given to the one that takes its place: group, ACL, mode and what
//! programs noted on it (`user.` attributes).
//!
//! The new file belongs to this account; only root could give it away. Security labels and file capabilities
//! are not copied: the kernel takes those from a file that is written, too.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::AsFd,
    path::Path,
};

use nix::{
    errno::Errno,
    sys::stat::{Mode, fchmod, fstat},
    unistd::{Gid, fchown},
};
use salaam_sys::xattr;

use super::{Refusal, place::Opened};

const ACL: &CStr = c"system.posix_acl_access";
/// XATTR_SIZE_MAX and XATTR_LIST_MAX of the kernel.
const MAX_BYTES: usize = 64 << 10;

/// Group, ACL and notes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    gid: u32,
    acl: Option<Vec<u8>>,
    notes: Vec<(CString, Vec<u8>)>,
}

impl Attributes {
    /// Those of an open file.
    pub(super) fn of(file: &Opened, path: &Path) -> Result<Self, Refusal> {
        let failed = |what| move |e: io::Error| lost(what, path)(errno(&e));
        let acl = xattr::get(&file.fd, ACL, MAX_BYTES).map_err(failed("ACL"))?;
        let mut notes = Vec::new();
        let names = xattr::list(&file.fd, MAX_BYTES).map_err(failed("attributes"))?;
        for name in names.into_iter().filter(|name| name.as_bytes().starts_with(b"user.")) {
            // One that is gone meanwhile is one that was not there.
            if let Some(value) = xattr::get(&file.fd, &name, MAX_BYTES).map_err(failed("attributes"))? {
                notes.push((name, value));
            }
        }
        notes.sort_unstable();
        Ok(Self { gid: file.stat.st_gid, acl, notes })
    }
}

/// Gives a new file, which nobody else has open, the group and ACL of another (absent = those that the
/// directory gave it) and the mode; last the mode, since it is what lets others in.
pub(super) fn dress(file: impl AsFd, like: Option<&Attributes>, mode: u32, path: &Path) -> Result<(), Refusal> {
    let mode = Mode::from_bits(mode & 0o777).unwrap_or(Mode::S_IRUSR);
    if let Some(like) = like {
        let own = fstat(&file).map_err(lost("group", path))?;
        if own.st_gid != like.gid {
            fchown(&file, None, Some(Gid::from_raw(like.gid))).map_err(lost("group", path))?;
        }
        match &like.acl {
            Some(acl) => xattr::set(&file, ACL, acl),
            // The directory's default ACL gave it one that the old file did not have.
            None => xattr::remove(&file, ACL),
        }
        .or_else(
            |e| if like.acl.is_none() && e.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) { Ok(()) } else { Err(e) },
        )
        .map_err(|e| lost("ACL", path)(errno(&e)))?;
        for (name, value) in &like.notes {
            xattr::set(&file, name, value).map_err(|e| lost("attributes", path)(errno(&e)))?;
        }
    }
    fchmod(&file, mode).map_err(lost("mode", path))?;
    // Where a file system takes all this and does something else, the edit must not go on.
    let now = fstat(&file).map_err(lost("mode", path))?;
    if now.st_mode & 0o7777 != mode.bits() {
        return Err(lost("mode", path)(Errno::EOPNOTSUPP));
    }
    if like.is_some_and(|like| like.gid != now.st_gid) {
        return Err(lost("group", path)(Errno::EOPNOTSUPP));
    }
    Ok(())
}

fn lost(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Refusal {
    move |errno| match errno {
        Errno::ENOSPC | Errno::EDQUOT => Refusal::kernel("keeping the attributes of", path)(errno),
        errno => Refusal::Attributes { path: path.to_owned(), what, errno },
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}
