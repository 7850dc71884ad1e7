//! What goes wrong in a group that is the service's own to change.

use std::io;

use salaam_core::check::Check;

/// A group that was delegated and cannot be used as it must be.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A step of making it.
    #[error("{attempted} {name} failed: {source}")]
    Step {
        /// What was attempted.
        attempted: &'static str,
        /// On which group or file, relative to the service's own.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What was there before does not end.
    #[error("{name} still holds processes {seconds} s after cgroup.kill")]
    Populated {
        /// Which group.
        name: &'static str,
        /// How long that was awaited.
        seconds: u64,
    },
}

impl GroupError {
    /// As a row of the checks: what was promised to be limited is not, so nothing starts.
    pub fn to_check(&self) -> Check {
        let fix = "see what else works in the unit's control group (systemd-cgls -u salaam.service), or do without one, \
                   with limits on each process alone: systemctl edit salaam, [Service], Delegate=no";
        Check::fail("control-group", self.to_string(), fix)
    }
}

/// For `map_err`.
pub(super) fn step(attempted: &'static str, name: &str) -> impl FnOnce(io::Error) -> GroupError {
    let name = name.to_owned();
    move |source| GroupError::Step { attempted, name, source }
}
