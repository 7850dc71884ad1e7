//! Processes by descriptor: a child, which is reaped, and others, which are only watched.

use std::{fmt, io, os::fd::OwnedFd, time::Duration};

use nix::{
    sys::{
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use salaam_sys::pidfd;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It left with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// Its status was taken by somebody else.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match Signal::try_from(*signal) {
                Ok(signal) => f.write_str(signal.as_str()),
                Err(_) => write!(f, "signal {signal}"),
            },
            Self::Unknown => f.write_str("an unknown status"),
        }
    }
}

/// Any process, by pidfd.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Watches the process behind `pidfd`.
    ///
    /// # Errors
    /// What the event loop gives.
    #[expect(
        deprecated,
        reason = "deprecated because the object might close its descriptor early; an OwnedFd cannot, and the replacement is an unsafe function"
    )]
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        AsyncFd::try_with_interest(pidfd, Interest::READABLE).map(Self).map_err(|error| error.into_parts().1)
    }

    /// Resolves once it has ended. An error of the event loop resolves too: the caller takes that for a loss,
    /// and asks [`Watched::has_ended`] for proof.
    pub async fn ended(&self) {
        // A pidfd stays readable, so readiness is never cleared.
        let _ = self.0.readable().await;
    }

    /// Whether it has ended, by the kernel's word, waiting at most `limit`.
    pub async fn has_ended(&self, limit: Duration) -> bool {
        let _ = timeout(limit, self.ended()).await;
        pidfd::has_ended(self.0.get_ref(), 0).unwrap_or(false)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        pidfd::signal(self.0.get_ref(), signal)
    }
}

/// A child of ours.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    watched: Watched,
    exit: Option<Exit>,
}

impl Child {
    /// Takes over a child that nobody has reaped: its number cannot have been used again.
    ///
    /// # Errors
    /// What pidfd_open(2) gives.
    pub fn new(pid: Pid) -> io::Result<Self> {
        let watched = Watched::new(pidfd::open(pid.as_raw())?)?;
        Ok(Self { pid, watched, exit: None })
    }

    /// Its number.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Resolves once it has ended; it is still to be reaped.
    pub async fn ended(&self) {
        self.watched.ended().await;
    }

    /// Reaps it, waiting at most `limit` for its end.
    pub async fn reap(&mut self, limit: Duration) -> Option<Exit> {
        if self.exit.is_none() && self.watched.has_ended(limit).await {
            self.exit = match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => Some(Exit::Code(code)),
                Ok(WaitStatus::Signaled(_, signal, _)) => Some(Exit::Signal(signal as i32)),
                Ok(
                    WaitStatus::StillAlive
                    | WaitStatus::Stopped(_, _)
                    | WaitStatus::Continued(_)
                    | WaitStatus::PtraceEvent(_, _, _)
                    | WaitStatus::PtraceSyscall(_),
                ) => None,
                Err(_) => Some(Exit::Unknown),
            };
        }
        self.exit
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// What pidfd_send_signal(2) gives: ESRCH once it was reaped, EPERM where it runs as another account.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.watched.signal(signal)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    fn shell(script: &str) -> Child {
        let argv = [c"sh".to_owned(), c"-c".to_owned(), CString::new(script).unwrap()];
        let pid = salaam_sys::spawn::spawn(c"/bin/sh", &argv, &[] as &[CString], &[], false).unwrap();
        Child::new(pid).unwrap()
    }

    #[tokio::test]
    async fn a_child_is_reaped_once_with_its_status() {
        let long = Duration::from_secs(10);
        let mut child = shell("exit 7");
        assert_eq!(child.reap(long).await, Some(Exit::Code(7)));
        assert_eq!(child.reap(long).await, Some(Exit::Code(7)));
        assert!(waitpid(child.pid(), None).is_err(), "no zombie is left");
        let mut child = shell("kill -9 $$");
        child.ended().await;
        assert_eq!(child.reap(long).await, Some(Exit::Signal(9)));
        let mut child = shell("sleep 60");
        assert_eq!(child.reap(Duration::ZERO).await, None);
        child.signal(Signal::SIGTERM).unwrap();
        assert_eq!(child.reap(long).await, Some(Exit::Signal(15)));
    }
}
