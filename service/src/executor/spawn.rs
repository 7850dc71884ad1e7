//! What is started and as whom, and its command line: nothing of any request is on it (sudo logs it).

use std::{
    ffi::{CString, NulError},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::Pid;
use salaam_core::policy::Mode;
use salaam_sys::vouched;

use crate::group::{Group, Room};

/// What to start and as whom.
#[derive(Debug, Clone)]
pub struct Spawn {
    /// Through sudo as the tools user, or directly as the service user.
    pub mode: Mode,
    /// The tools account's name.
    pub tools_user: String,
    /// Its uid; in service-user mode the service's own.
    pub tools_uid: u32,
    /// The service's own uid.
    pub service_uid: u32,
    /// LIBEXEC/salaam-toolsd, absolute.
    pub toolsd: PathBuf,
    /// sudo, absolute: PATH is not consulted.
    pub sudo: PathBuf,
    /// The service's build, which the executor is told.
    pub build: String,
    /// The control groups that the service was given, if it was.
    pub group: Option<Arc<Group>>,
}

/// A child that was started, of which nothing is known yet.
#[derive(Debug)]
pub(super) struct Spawned {
    /// sudo, or the executor itself.
    pub(super) pid: Pid,
    /// Our end of the bridge.
    pub(super) bridge: UnixStream,
    /// What it writes on standard output and standard error.
    pub(super) written: [(&'static str, OwnedFd); 2],
}

impl Spawn {
    /// The one rule that sudo needs for it: exactly that binary, no arguments, exactly that account.
    pub fn sudoers_rule(&self, service_user: &str) -> String {
        super::checks::sudoers_line(self, service_user)
    }

    /// What puts the executor in place again.
    pub(super) fn reinstall(&self) -> String {
        super::checks::reinstall(self.toolsd.parent().unwrap_or(Path::new("/")))
    }

    /// The program and its arguments.
    pub(super) fn command_line(&self) -> Result<(CString, Vec<CString>), NulError> {
        let toolsd = word(&self.toolsd)?;
        match self.mode {
            Mode::ServiceUser => Ok((toolsd.clone(), vec![toolsd])),
            Mode::ToolsUser => {
                let user = CString::new(self.tools_user.as_bytes())?;
                let argv = vec![c"sudo".into(), c"-n".into(), c"-u".into(), user, c"--".into(), toolsd];
                Ok((word(&self.sudo)?, argv))
            }
        }
    }

    /// Starts it with the other end of a new socketpair as descriptor 0, in a session without a terminal and
    /// with an empty environment; where there is room for it, in its control group from its first instruction.
    pub(super) fn start(&self, room: Option<&Room>) -> io::Result<Spawned> {
        let (program, argv) = self.command_line()?;
        let (bridge, theirs) = UnixStream::pair()?;
        // Before the child exists: the kernel attaches the sender when it sends. Without SCM_PIDFD (before
        // Linux 6.5) the pidfd is opened by number.
        vouched::attach(&bridge, true)?;
        bridge.set_nonblocking(true)?;
        let theirs = OwnedFd::from(theirs);
        let (out, their_out) = io::pipe()?;
        let (err, their_err) = io::pipe()?;
        let fds = [(theirs.as_fd(), 0), (their_out.as_fd(), 1), (their_err.as_fd(), 2)];
        let empty = &[] as &[CString];
        let pid = match room {
            Some(room) => salaam_sys::born::spawn_in(room.executor(), &program, &argv, empty, &fds)?,
            None => salaam_sys::spawn::spawn(&program, &argv, empty, &fds, true)?,
        };
        // Our copies of the child's ends close here: only then does its end reach us as the end of a stream.
        Ok(Spawned { pid, bridge, written: [("stdout", out.into()), ("stderr", err.into())] })
    }
}

fn word(path: &Path) -> Result<CString, NulError> {
    CString::new(path.as_os_str().as_bytes())
}

#[cfg(test)]
pub(super) fn sample(mode: Mode) -> Spawn {
    Spawn {
        mode,
        tools_user: "salaam-tools".into(),
        tools_uid: 997,
        service_uid: 1001,
        toolsd: "/usr/local/libexec/salaam/salaam-toolsd".into(),
        sudo: "/usr/bin/sudo".into(),
        build: "0.1.0".into(),
        group: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_fixed_and_carries_nothing_of_a_request() {
        let line = |mode| {
            let (program, argv) = sample(mode).command_line().unwrap();
            let argv: Vec<_> = argv.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
            (program.to_str().unwrap().to_owned(), argv.join(" "))
        };
        let toolsd = "/usr/local/libexec/salaam/salaam-toolsd";
        assert_eq!(line(Mode::ServiceUser), (toolsd.into(), toolsd.into()));
        assert_eq!(line(Mode::ToolsUser), ("/usr/bin/sudo".into(), format!("sudo -n -u salaam-tools -- {toolsd}")));
    }
}
