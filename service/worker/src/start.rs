//! From exec to a confined process that has shown what it can no longer do. It reads nothing.

use std::{
    env,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::PathBuf,
};

use salaam_confine::{ConfineError, Keep, Limits, Role, belong_to_creator, canary, confine};
use salaam_core::worker::Canary;
use salaam_sys::descriptors;

use crate::HANDED;

/// Parsed, the largest script and a whole transcript take a third of it.
const MEMORY_BYTES: u64 = 256 << 20;
/// The five that it has, and one that is handed over.
const OPEN_FILES: u64 = 8;

/// A confined process.
#[derive(Debug)]
pub(crate) struct Started {
    /// The link to the service. A file, not a socket: read(2) and write(2) are all that is left of it.
    pub(crate) link: File,
    /// Where descriptors come from.
    pub(crate) handed: OwnedFd,
    /// What was tried in vain, or not.
    pub(crate) canary: Vec<Canary>,
}

/// Why it is not confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Not what the service starts it with.
    #[error("descriptor {number} is missing ({source}): the service starts salaam-worker, nobody else")]
    Descriptor {
        /// Which.
        number: i32,
        /// Why.
        source: io::Error,
    },
    /// The state directory is missing on the command line.
    #[error("the state directory is missing: the service starts salaam-worker, nobody else")]
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
    let handed = descriptors::take_inherited(HANDED);
    let handed = handed.map_err(|source| StartError::Descriptor { number: HANDED, source })?;
    belong_to_creator(&link)?;
    let limits = Limits { memory_bytes: MEMORY_BYTES, open_files: OPEN_FILES, cpu_seconds: None };
    confine(Role::Worker, &Keep { descriptors: &[HANDED, link.as_raw_fd()], root: None, limits })?;
    let canary = canary::sing(&state).into_iter();
    let canary = canary.map(|tried| Canary { attack: tried.attack.to_owned(), errno: tried.errno }).collect();
    Ok(Started { link, handed, canary })
}
