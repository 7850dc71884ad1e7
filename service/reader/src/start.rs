//! What the service starts a reader with, and what a reader must be unable to do beyond what every confined process is.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, openat2},
};
use salaam_confine::{Begun, Limits, Program, Role};
use salaam_core::canary::{Canary, ROOTED};

use crate::limits::{MAX_DEPTH, MAX_STEPS};

/// A whole file for an edit, once as it is read and once as it is sent, and the names of a search.
const MEMORY_BYTES: u64 = 128 << 20;
/// One for each directory on the way to where a search begins, one for each that it is in then, and its own few.
const OPEN_FILES: u64 = (MAX_STEPS + MAX_DEPTH + 24) as u64;

/// A reader; what it is given is the root of the workspace.
pub(crate) const READER: Program = Program {
    name: "salaam-reader",
    role: Role::Reader,
    given: 3,
    limits: Limits { memory_bytes: MEMORY_BYTES, open_files: OPEN_FILES, cpu_seconds: None },
};

/// The call that the filter leaves, used for what landlock must stop.
pub(crate) fn beyond(begun: &Begun) -> impl Iterator<Item = Canary> {
    let open = |from: BorrowedFd<'_>, path: &Path| {
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
        openat2(from, path, how).map_or_else(|errno| errno, |_| Errno::from_raw(0)) as i32
    };
    let root = begun.given.as_fd();
    let came_of_it =
        [open(root, Path::new("..")), open(AT_FDCWD, &begun.state), open(AT_FDCWD, Path::new("/proc/self/fd"))];
    ROOTED.into_iter().zip(came_of_it).map(|(attack, errno)| Canary { attack: attack.to_owned(), errno })
}
