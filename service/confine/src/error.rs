//! Why a process is not confined. Each is the end of that process.

use std::io;

/// A layer that did not take hold.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A kernel call failed.
    #[error("{step} failed: {source}")]
    Step {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel took the call and does not show its effect.
    #[error("{step} did not take hold")]
    NotHeld {
        /// What was attempted.
        step: &'static str,
    },
    /// The link was made by another process than the parent.
    #[error(
        "the link was made by process {pid} of uid {uid}, which is not this process's parent: the service starts it"
    )]
    Stranger {
        /// Its number.
        pid: i32,
        /// Its account.
        uid: u32,
    },
    /// No landlock.
    #[error(
        "the kernel has no landlock, without which this process could open every file of the service: use Linux 5.13 or later with `landlock` among its security modules (lsm=)"
    )]
    NoLandlock,
    /// A landlock ruleset was refused.
    #[error("landlock (ABI {abi}) refused the rules: {source}")]
    Landlock {
        /// The kernel's ABI.
        abi: i32,
        /// What was refused.
        source: Box<landlock::RulesetError>,
    },
    /// Landlock holds only in part.
    #[error("landlock (ABI {abi}) enforces only a part of the rules")]
    LandlockPartial {
        /// The kernel's ABI.
        abi: i32,
    },
    /// seccompiler knows x86_64, aarch64 and riscv64.
    #[error("there is no system call filter for {}", std::env::consts::ARCH)]
    Architecture(#[source] seccompiler::BackendError),
    /// The rules do not compile.
    #[error("the system call filter does not compile")]
    Rules(#[source] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error("the kernel refused the system call filter: it needs CONFIG_SECCOMP_FILTER")]
    Filter(#[source] seccompiler::Error),
}

/// Names the step that a kernel call belongs to.
pub(crate) fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> ConfineError {
    move |source| ConfineError::Step { step, source: source.into() }
}
