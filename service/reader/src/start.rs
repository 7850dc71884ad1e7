//! From exec to a confined process that has shown what it can no longer do. It reads nothing.

use std::{
    env,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, openat2},
};
use salaam_confine::{ConfineError, Keep, Limits, Role, belong_to_creator, canary, confine};
use salaam_core::worker::Canary;
use salaam_sys::descriptors;

use crate::{
    ROOT,
    limits::{MAX_DEPTH, MAX_STEPS},
};

/// A whole file for an edit, once as it is read and once as it is sent, and the names of a search.
const MEMORY_BYTES: u64 = 128 << 20;
/// One for each directory on the way to where a search begins, one for each that it is in then, and its own few.
const OPEN_FILES: u64 = (MAX_STEPS + MAX_DEPTH + 24) as u64;

/// A confined process.
#[derive(Debug)]
pub(crate) struct Started {
    /// The link to the service. A file, not a socket: read(2) and write(2) are all that is left of it.
    pub(crate) link: File,
    /// The root of the workspace.
    pub(crate) root: OwnedFd,
    /// What was tried in vain, or not.
    pub(crate) canary: Vec<Canary>,
}

/// Why it is not confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Not what the service starts it with.
    #[error("descriptor {number} is missing ({source}): the service starts salaam-reader, nobody else")]
    Descriptor {
        /// Which.
        number: i32,
        /// Why.
        source: io::Error,
    },
    /// The state directory is missing on the command line.
    #[error("the state directory is missing: the service starts salaam-reader, nobody else")]
    Usage,
    /// A layer did not take hold.
    #[error(transparent)]
    Confine(#[from] ConfineError),
}

pub(crate) fn start() -> Result<Started, StartError> {
    let mut words = env::args_os().skip(1);
    // Only a name to be refused: nothing is ever read there.
    let (Some(state), None) = (words.next().map(PathBuf::from), words.next()) else { return Err(StartError::Usage) };
    let link = io::stdin().as_fd().try_clone_to_owned();
    let link = File::from(link.map_err(|source| StartError::Descriptor { number: 0, source })?);
    let root = descriptors::take_inherited(ROOT);
    let root = root.map_err(|source| StartError::Descriptor { number: ROOT, source })?;
    belong_to_creator(&link)?;
    let limits = Limits { memory_bytes: MEMORY_BYTES, open_files: OPEN_FILES, cpu_seconds: None };
    let keep = Keep { descriptors: &[ROOT, link.as_raw_fd()], root: Some(root.as_fd()), limits };
    confine(Role::Reader, &keep)?;
    let tried = canary::sing(&state).into_iter().map(|tried| (tried.attack, tried.errno));
    let canary = tried.chain(beyond(root.as_fd(), &state));
    let canary = canary.map(|(attack, errno)| Canary { attack: attack.to_owned(), errno }).collect();
    Ok(Started { link, root, canary })
}

/// The call that the filter leaves, used for what landlock must stop.
fn beyond(root: BorrowedFd<'_>, state: &Path) -> [(&'static str, i32); 3] {
    let open = |from: BorrowedFd<'_>, path: &Path| {
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
        openat2(from, path, how).map_or_else(|errno| errno, |_| Errno::from_raw(0)) as i32
    };
    [
        ("openat2-above", open(root, Path::new(".."))),
        ("openat2-state", open(AT_FDCWD, state)),
        ("openat2-processes", open(AT_FDCWD, Path::new("/proc/self/fd"))),
    ]
}
