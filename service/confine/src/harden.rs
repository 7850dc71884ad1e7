//! What another process of the same uid could read out of this one, what was inherited, and what may be used up.

use std::os::fd::{AsFd, RawFd};

use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
    },
    unistd::{geteuid, getppid},
};
use salaam_sys::{descriptors, peer};

use crate::error::{ConfineError, step};

/// What a process may use up.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Heap and other private memory (RLIMIT_DATA): one message or script that is too much ends this process
    /// and not the host.
    pub memory_bytes: u64,
    /// Descriptors open at once.
    pub open_files: u64,
    /// Processor time in all, after which the kernel ends it; none = it lives as long as its session.
    pub cpu_seconds: Option<u64>,
}

/// Whoever made `link`, a socketpair, is this process's parent and has its uid; this process ends when that one
/// does, whatever it is busy with. The parent's *thread* counts (prctl(2)): it must live as long as the parent.
///
/// # Errors
/// Another creator, or a parent that is gone already.
pub fn belong_to_creator(link: impl AsFd) -> Result<(), ConfineError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("PR_SET_PDEATHSIG"))?;
    let creator = peer::credentials(link).map_err(step("asking who made the link"))?;
    // After prctl: a parent that went before it is no longer getppid(), one that goes later sends the signal.
    if (creator.pid, creator.uid) == (getppid().as_raw(), geteuid().as_raw()) {
        Ok(())
    } else {
        Err(ConfineError::Stranger { pid: creator.pid, uid: creator.uid })
    }
}

/// No core file, and no ptrace, /proc/PID/mem or pidfd_getfd by another process of the uid.
///
/// # Errors
/// What setrlimit(2) and prctl(2) give, or that the kernel still says dumpable.
pub fn close_to_others() -> Result<(), ConfineError> {
    prctl::set_dumpable(false).map_err(step("PR_SET_DUMPABLE 0"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("setting the core limit to 0"))?;
    match prctl::get_dumpable().map_err(step("PR_GET_DUMPABLE"))? {
        false => Ok(()),
        true => Err(ConfineError::NotHeld { step: "PR_SET_DUMPABLE 0" }),
    }
}

/// Closes every descriptor above 2 that is not in `kept`.
///
/// # Errors
/// A second thread, or what close_range(2) gives.
pub fn keep_descriptors(kept: &[RawFd]) -> Result<(), ConfineError> {
    descriptors::close_inherited_but(kept).map_err(step("closing inherited descriptors"))
}

/// Sets the limits, hard and soft, never above what they are already.
///
/// # Errors
/// What setrlimit(2) gives.
pub fn limit(limits: &Limits) -> Result<(), ConfineError> {
    let mut wanted = vec![
        (Resource::RLIMIT_DATA, limits.memory_bytes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        // It writes to pipes and sockets only, for which this does not count.
        (Resource::RLIMIT_FSIZE, 0),
        // No thread and no process is ever made; this one exists already.
        (Resource::RLIMIT_NPROC, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_MSGQUEUE, 0),
    ];
    wanted.extend(limits.cpu_seconds.map(|seconds| (Resource::RLIMIT_CPU, seconds)));
    for (resource, value) in wanted {
        let (_, hard) = getrlimit(resource).map_err(step("reading a limit"))?;
        let value = value.min(hard);
        setrlimit(resource, value, value).map_err(step("setting a limit"))?;
    }
    Ok(())
}

/// From here on no exec could gain a privilege; a filter needs it, too.
///
/// # Errors
/// What prctl(2) gives, or that the kernel does not show it.
pub fn no_new_privileges() -> Result<(), ConfineError> {
    prctl::set_no_new_privs().map_err(step("PR_SET_NO_NEW_PRIVS"))?;
    match prctl::get_no_new_privs().map_err(step("PR_GET_NO_NEW_PRIVS"))? {
        true => Ok(()),
        false => Err(ConfineError::NotHeld { step: "PR_SET_NO_NEW_PRIVS" }),
    }
}
