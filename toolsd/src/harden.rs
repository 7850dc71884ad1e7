//! Making the process what it must be before it trusts anything: nothing inherited, nothing that another
//! process of the same account can read out of it, no privilege that it could gain or lend.

use std::{env, io};

use nix::{
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        stat::{Mode, umask},
    },
    unistd::{getegid, geteuid, getgid, getuid},
};
use salaam_core::refusal::StartRefusal;

/// Group members of a workspace must be able to write what a command made.
const UMASK: Mode = Mode::S_IWOTH;

/// Why the process is not fit.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// A kernel call failed.
    #[error("{step} failed: {source}")]
    Step {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It runs as root, or with ids that differ.
    #[error(
        "salaam-toolsd runs as uid {real} (effective {effective}); it must be one account other than root: name it with --tools-user"
    )]
    Account {
        /// getuid(2).
        real: u32,
        /// geteuid(2).
        effective: u32,
    },
    /// It holds capabilities.
    #[error(
        "salaam-toolsd holds capabilities in its {set} set: take them from the account (pam_cap, ambient capabilities of the unit)"
    )]
    Capabilities {
        /// Which set.
        set: &'static str,
    },
    /// Capabilities could not be read.
    #[error("reading the process's capabilities failed: {0}")]
    UnknownCapabilities(caps::errors::CapsError),
}

impl HardenError {
    /// The exit code's reason.
    pub const fn refusal(&self) -> StartRefusal {
        match self {
            Self::Step { .. } => StartRefusal::Harden,
            Self::Account { .. } => StartRefusal::Root,
            Self::Capabilities { .. } | Self::UnknownCapabilities(_) => StartRefusal::Capabilities,
        }
    }
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> HardenError {
    move |source| HardenError::Step { step, source: source.into() }
}

/// Descriptors above 2, the working directory, the umask, and the keys of the session that the service was started in:
/// whoever possesses a session keyring may read what is in it, whatever the account. The environment stays where it is and is not read:
/// taking variables away is not safe in a process whose libraries may read them.
pub fn drop_what_was_inherited() -> Result<(), HardenError> {
    salaam_sys::descriptors::close_inherited().map_err(step("closing inherited descriptors"))?;
    env::set_current_dir("/").map_err(step("changing to /"))?;
    umask(UMASK);
    salaam_sys::keyring::leave_session().map_err(step("leaving the session keyring"))?;
    Ok(())
}

/// No core file, and no ptrace, /proc/PID/mem or pidfd_getfd by a command that runs under the same uid.
pub fn close_to_others() -> Result<(), HardenError> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("setting the core limit to 0"))?;
    prctl::set_dumpable(false).map_err(step("PR_SET_DUMPABLE 0"))?;
    match prctl::get_dumpable() {
        Ok(false) => Ok(()),
        Ok(true) => Err(step("PR_SET_DUMPABLE 0")(io::Error::other("the kernel still says dumpable"))),
        Err(error) => Err(step("PR_GET_DUMPABLE")(error)),
    }
}

/// The account, which is not root and holds no capability.
pub fn unprivileged_account() -> Result<u32, HardenError> {
    let (real, effective) = (getuid().as_raw(), geteuid().as_raw());
    if real == 0 || real != effective || getgid() != getegid() {
        return Err(HardenError::Account { real, effective });
    }
    for (set, name) in [
        (caps::CapSet::Permitted, "permitted"),
        (caps::CapSet::Effective, "effective"),
        (caps::CapSet::Inheritable, "inheritable"),
        (caps::CapSet::Ambient, "ambient"),
    ] {
        if !caps::read(None, set).map_err(HardenError::UnknownCapabilities)?.is_empty() {
            return Err(HardenError::Capabilities { set: name });
        }
    }
    Ok(real)
}

/// From here on no exec gains a privilege: no sudo, no setuid program, no file capability.
pub fn no_new_privileges() -> Result<(), HardenError> {
    prctl::set_no_new_privs().map_err(step("PR_SET_NO_NEW_PRIVS"))?;
    match prctl::get_no_new_privs() {
        Ok(true) => Ok(()),
        Ok(false) => Err(step("PR_SET_NO_NEW_PRIVS")(io::Error::other("the kernel says it is not set"))),
        Err(error) => Err(step("PR_GET_NO_NEW_PRIVS")(error)),
    }
}
