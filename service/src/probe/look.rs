//! The service's own look at what the tools user tries, just before: what it opens itself, or sees, is there, so
//! that a denial is about rights and nothing else.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd as _,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AT_FDCWD, AtFlags},
    libc,
    unistd::{AccessFlags, faccessat},
};
use salaam_core::bridge::Action;

use super::tries::{Owner, Try};
use crate::host::Host;

/// What the service itself found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// It opened it, or connected to it.
    Opened,
    /// It saw it; opening it is not the service's.
    Seen,
    /// There is no such thing.
    Absent,
    /// Any other errno.
    Denied(i32),
}

/// Looks.
pub(super) fn look(one: &Try) -> Own {
    let opened = match one.owner {
        Owner::Program => return Own::Seen,
        Owner::Other => return of(one.path.symlink_metadata().map(drop), Own::Seen),
        Owner::Database => as_path(&one.path),
        Owner::Service | Owner::Process | Owner::Everybody => open(one),
    };
    match of(opened, Own::Opened) {
        // A process that is not dumpable has its environment and its memory as root's files: even its own
        // account may not open them.
        Own::Denied(libc::EACCES) if one.owner == Owner::Process && is_roots(&one.path) => Own::Seen,
        own => own,
    }
}

fn of(outcome: io::Result<()>, good: Own) -> Own {
    match outcome {
        Ok(()) => good,
        Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::ENOENT | libc::ENOTDIR => Own::Absent,
            errno => Own::Denied(errno),
        },
    }
}

fn open(one: &Try) -> io::Result<()> {
    match one.action {
        Action::Read => {
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            File::options().read(true).custom_flags(flags).open(&one.path).map(drop)
        }
        Action::List => std::fs::read_dir(&one.path)?.next().transpose().map(drop),
        Action::Connect => UnixStream::connect(&one.path).map(drop),
        Action::SudoRoot | Action::SudoList | Action::SystemdRun | Action::Crontab | Action::At | Action::Linger => {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

/// Reaches the object and asks the kernel whether this process may read it, without opening it for reading: closing
/// such a descriptor drops every POSIX lock that this process has on the file (fcntl(2)), and with those on the
/// database nothing keeps another program from taking its log away. O_PATH drops none.
fn as_path(path: &Path) -> io::Result<()> {
    let object = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    let itself = format!("/proc/self/fd/{}", object.as_raw_fd());
    Ok(faccessat(AT_FDCWD, itself.as_str(), AccessFlags::R_OK, AtFlags::AT_EACCESS)?)
}

fn is_roots(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o077 == 0)
}

/// Whether /proc hides other accounts' processes: then that they are absent for the tools user is the denial.
pub(super) fn proc_hides() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    hides(&mounts)
}

fn hides(mounts: &str) -> bool {
    let proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    let options = proc.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    options
        .split(',')
        .any(|option| matches!(option, "hidepid=2" | "hidepid=invisible" | "hidepid=4" | "hidepid=ptraceable"))
}

/// The operator socket, or, before it exists, one of the same rights in the same directory.
#[derive(Debug)]
pub(super) struct Door {
    path: PathBuf,
    /// Held for its life: a socket without a listener refuses everybody.
    made: Option<UnixListener>,
}

/// Not longer than the operator socket's own name.
const STAND_IN: &str = "probe.sock";

impl Door {
    /// None where the runtime directory is not there yet or takes no socket: other checks say why.
    pub(super) fn of(host: &Host) -> Option<Self> {
        let real = host.dirs.socket();
        if UnixStream::connect(&real).is_ok() {
            return Some(Self { path: real, made: None });
        }
        let path = host.dirs.runtime.join(STAND_IN);
        match stand_in(&path, host.operators_gid) {
            Ok(made) => Some(Self { path, made: Some(made) }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no socket could be made for the tools user to try");
                None
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if self.made.is_some() {
            // Left behind it is a dead socket, which the next look removes.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn stand_in(path: &Path, operators_gid: Option<u32>) -> io::Result<UnixListener> {
    const OWNER: u32 = 0o600;
    const OPERATORS: u32 = 0o660;
    if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let rights = || -> io::Result<()> {
        if let Some(gid) = operators_gid {
            std::os::unix::fs::chown(path, None, Some(gid))?;
        }
        let mode = if operators_gid.is_some() { OPERATORS } else { OWNER };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    rights().inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_processes_are_read_from_the_last_mount_on_proc() {
        let line = |options: &str| format!("22 1 0:21 / /proc rw,nosuid shared:12 - proc proc {options}\n");
        assert!(!hides(&line("rw")) && !hides(&line("rw,hidepid=1")) && !hides(""));
        assert!(hides(&line("rw,hidepid=invisible")) && hides(&line("rw,gid=4,hidepid=2")));
        assert!(!hides(&format!("{}{}", line("rw,hidepid=2"), line("rw"))));
    }
}
