//! What the executor refuses whoever asks: the service cannot lift it.
//!
//! Two sources: what is written here, and the host's instance file, which only root can write.

mod instance;

use std::path::{Path, PathBuf};

use salaam_core::{
    bridge::RunPlan,
    instance::Instance,
    policy::{Network, Profile, Unsandboxed},
    refusal::StartRefusal,
    result::Failure,
};

use self::instance::Accounts;
use crate::bridge::Caller;

/// Where `salaam host setup` writes the instance files.
pub const INSTANCES: &str = "/etc/salaam";

/// Why the floor could not be laid.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// A file or the directory is not as root leaves it.
    #[error("{path}: {problem}: only root may write there; run `salaam host setup` again")]
    Untrusted {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file cannot be read.
    #[error("reading {path} failed: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not an instance.
    #[error("{path} is no instance file: {problem}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and why.
        problem: String,
    },
    /// It speaks of another pair.
    #[error(
        "{path} pairs service uid {service} with tools uid {tools}; uid {caller} called this executor as uid {own}: a tools user serves one service"
    )]
    Accounts {
        /// Which.
        path: PathBuf,
        /// Its service account.
        service: u32,
        /// Its tools account.
        tools: u32,
        /// Who called.
        caller: u32,
        /// Who we are.
        own: u32,
    },
}

impl FloorError {
    /// The exit code's reason.
    pub const fn refusal(&self) -> StartRefusal {
        match self {
            Self::Untrusted { .. } | Self::Unreadable { .. } | Self::Malformed { .. } => StartRefusal::InstanceFile,
            Self::Accounts { .. } => StartRefusal::InstanceAccounts,
        }
    }
}

/// The floor in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    instance: bool,
    unsandboxed: Unsandboxed,
    /// The instance's own directories: no command's workspace or read path touches them.
    closed: Vec<PathBuf>,
}

impl Floor {
    /// What holds on a host that was set up by hand.
    pub const fn builtin() -> Self {
        Self { instance: false, unsandboxed: Unsandboxed::Allow, closed: Vec::new() }
    }

    /// Reads every instance file in `directory`. The one of the caller applies; one that names our account
    /// together with another service ends the start. None at all = the built-in floor.
    pub fn read(directory: &Path, own: u32, caller: Caller) -> Result<Self, FloorError> {
        let mut floor = Self::builtin();
        for paired in instance::read_all(directory)? {
            let Accounts { service_uid: service, tools_uid: tools } = paired.accounts;
            let pair = match caller {
                // A service account may run without its tools user; a tools account never on its own.
                Caller::Own(_) => service == own,
                Caller::Service(uid) => service == uid && tools == own,
            };
            if pair {
                floor = Self::of(&paired.instance()?);
            } else if tools == own || service == caller.uid() {
                return Err(FloorError::Accounts { path: paired.path, service, tools, caller: caller.uid(), own });
            }
        }
        Ok(floor)
    }

    fn of(instance: &Instance) -> Self {
        let directories = &instance.directories;
        Self {
            instance: true,
            unsandboxed: instance.floor.unsandboxed_commands,
            closed: vec![
                directories.config.clone(),
                directories.state.clone(),
                directories.runtime.clone(),
                directories.libexec.clone(),
                PathBuf::from(INSTANCES),
            ],
        }
    }

    /// `instance` or `builtin`, for health.
    pub const fn word(&self) -> &'static str {
        if self.instance { "instance" } else { "builtin" }
    }

    /// Whether the service may ask for a bare run at all.
    pub const fn unsandboxed(&self) -> Unsandboxed {
        self.unsandboxed
    }

    /// Whether a directory may be a workspace.
    pub fn permit_workspace(&self, path: &Path) -> Result<(), Failure> {
        let refuse = |why: &str| Err(failure("workspace-refused", path, why));
        if SHARED.iter().any(|shared| path == Path::new(shared)) {
            return refuse("it is a directory of the system, not a project");
        }
        if SYSTEM.iter().any(|system| path.starts_with(system)) {
            return refuse("it lies in a directory of the system");
        }
        if self.closed.iter().any(|closed| overlap(path, closed)) {
            return refuse("it overlaps a directory of Salaam's own");
        }
        Ok(())
    }

    /// Whether a plan asks for nothing that must not be.
    pub fn permit_plan(&self, plan: &RunPlan) -> Result<(), Failure> {
        let refuse = |id: &str, message: String| Err(Failure { id: id.into(), message });
        if plan.allow_unsandboxed && self.unsandboxed == Unsandboxed::Refuse {
            return refuse(
                "floor-unsandboxed",
                "the instance file says unsandboxed_commands = \"refuse\": the service cannot lift that".into(),
            );
        }
        match plan.network {
            Network::None => {}
            Network::Broker => {
                return refuse("network-unavailable", "this executor has no broker; use network \"none\"".into());
            }
            Network::Host => match plan.profile {
                Profile::FullAccess => {}
                Profile::ReadOnly | Profile::WorkspaceWrite => {
                    return refuse(
                        "floor-network",
                        format!("the host's network goes only with profile full-access, not with {}", plan.profile),
                    );
                }
            },
        }
        for path in &plan.read_paths {
            self.permit_read_path(&path_of(path))?;
        }
        Ok(())
    }

    fn permit_read_path(&self, path: &Path) -> Result<(), Failure> {
        let refuse = |why: &str| Err(failure("read-path-refused", path, why));
        if path == Path::new("/") || HOMES.iter().any(|homes| path == Path::new(homes)) {
            return refuse("it holds every home or the whole host");
        }
        if path.parent().is_some_and(|parent| parent == Path::new("/home")) {
            return refuse("it is a whole home");
        }
        if salaam_core::credential::place_of(bytes_of(path)).is_some() {
            return refuse("credentials are kept there");
        }
        if self.closed.iter().any(|closed| overlap(path, closed)) {
            return refuse("it overlaps a directory of Salaam's own");
        }
        Ok(())
    }
}

fn failure(id: &str, path: &Path, why: &str) -> Failure {
    Failure { id: id.into(), message: format!("{} is refused: {why}", salaam_core::show::line(bytes_of(path))) }
}

fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes))
}

fn bytes_of(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// Directories that belong to everybody: a project lies below one, it is none of them.
const SHARED: &[&str] =
    &["/", "/home", "/root", "/srv", "/opt", "/var", "/var/lib", "/tmp", "/var/tmp", "/mnt", "/media"];
/// Directories in which no project lies.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/boot", "/dev", "/proc", "/sys", "/run"];
/// Where all homes are.
const HOMES: &[&str] = &["/home", "/root", "/var", "/var/lib"];

#[cfg(test)]
mod tests;
