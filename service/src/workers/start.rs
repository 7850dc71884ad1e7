//! What a worker is started with, and nothing else: its link, the socket over which descriptors come, and a pipe
//! for its log.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream as Blocking},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::Pid,
};
use salaam_sys::handed;
use tokio::net::UnixStream;

use super::error::WorkerError;
use crate::child::{Child, Lines};

/// What to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// LIBEXEC/salaam-worker, absolute.
    pub program: PathBuf,
    /// The service's own build: the worker's must be the same.
    pub build: String,
    /// The state directory, which the worker tries to open, in vain.
    pub state_directory: PathBuf,
    /// The scripted provider's file.
    pub script: Option<Vec<u8>>,
}

/// A process of which nothing is known yet.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) child: Child,
    pub(super) link: UnixStream,
    pub(super) lines: Lines,
}

/// Where the worker finds the socket over which descriptors come (salaam-worker's `HANDED`).
const HANDED: i32 = 3;
/// With a descriptor on it: the script (salaam-worker's `TAG_SCRIPT`).
const TAG_SCRIPT: u8 = b'S';

pub(super) fn spawn(options: &Options) -> Result<Spawned, WorkerError> {
    let prepare = |step| move |source| WorkerError::Prepare { step, source };
    let (handing, theirs) = Blocking::pair().map_err(prepare("making a socketpair"))?;
    if let Some(script) = &options.script {
        // It fits into the socket's buffer, so that nobody waits; the worker reads it once it knows its session.
        let memory = sealed(script).map_err(prepare("making sealed memory"))?;
        handed::send(&handing, TAG_SCRIPT, memory).map_err(prepare("handing over the script"))?;
    }
    let (pid, link, log) = exec(options, theirs.into())?;
    let child = Child::new(pid).map_err(|source| {
        bury(pid);
        prepare("watching the process")(source)
    })?;
    let id = u32::try_from(pid.as_raw()).unwrap_or_default();
    let lines = Lines::read_slowly([("log", log)], "worker", id).map_err(prepare("reading the log"))?;
    let link = UnixStream::from_std(link).map_err(prepare("watching the link"))?;
    Ok(Spawned { child, link, lines })
}

/// In a session without a terminal, with an empty environment. The other ends are the worker's alone when this
/// returns.
fn exec(options: &Options, handed: OwnedFd) -> Result<(Pid, Blocking, OwnedFd), WorkerError> {
    let prepare = |step| move |source| WorkerError::Prepare { step, source };
    let (link, theirs) = Blocking::pair().map_err(prepare("making a socketpair"))?;
    link.set_nonblocking(true).map_err(prepare("making a socketpair"))?;
    let (log, their_log) = io::pipe().map_err(prepare("making a pipe"))?;
    let theirs = OwnedFd::from(theirs);
    let fds = [(theirs.as_fd(), 0), (their_log.as_fd(), 1), (their_log.as_fd(), 2), (handed.as_fd(), HANDED)];
    let failed = |source| WorkerError::Spawn { program: options.program.clone(), source };
    let program = word(&options.program).map_err(failed)?;
    let argv = [program.clone(), word(&options.state_directory).map_err(failed)?];
    let pid = salaam_sys::spawn::spawn(&program, &argv, &[] as &[CString], &fds, true).map_err(failed)?;
    Ok((pid, link, log.into()))
}

/// Ends a child that cannot be watched. It is not reaped yet, so the number is still its own; a killed process is
/// gone in an instant.
fn bury(pid: Pid) {
    let gone = kill(pid, Signal::SIGKILL).and_then(|()| waitpid(pid, None));
    if let Err(error) = gone {
        tracing::error!(pid = pid.as_raw(), %error, "a worker that cannot be watched could not be ended");
    }
}

fn word(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

/// Memory with `bytes` that nobody can change any more, the service included.
fn sealed(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"script", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.write_all(bytes)?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}
