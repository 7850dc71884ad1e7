//! A direct child, held by descriptor until it is reaped.

use std::{io, os::fd::OwnedFd};

use nix::unistd::Pid;
use salaam_sys::reap::{self, Ended};
use tokio::io::{Interest, unix::AsyncFd};

use super::orphans::Own;

/// A child of this process. Dropped before it was reaped, it is killed, and reaped by a thread of its own.
#[derive(Debug)]
pub struct Child {
    own: Option<Own>,
    pid: Pid,
    descriptor: Option<OwnedFd>,
    reaped: bool,
    ends_by_itself: bool,
}

impl Child {
    /// Holds a child that has just been started and not been reaped.
    /// With `ends_by_itself` it is not killed when dropped: it was told to end, and what hangs on it first.
    pub(super) fn hold(own: Own, ends_by_itself: bool) -> io::Result<Self> {
        let pid = own.pid();
        match reap::open(pid) {
            Ok(descriptor) => {
                Ok(Self { own: Some(own), pid, descriptor: Some(descriptor), reaped: false, ends_by_itself })
            }
            Err(error) => {
                // Without a descriptor it cannot be watched. Its number is still its own: nobody reaped it.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                let _ = nix::sys::wait::waitpid(pid, None);
                Err(error)
            }
        }
    }

    /// Its number, its own until it is reaped.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills it; nothing happens if it is gone.
    pub fn kill(&self) {
        if let (Some(descriptor), false) = (&self.descriptor, self.reaped) {
            drop(reap::kill(descriptor));
        }
    }

    /// Waits for its end and reaps it.
    pub async fn ended(&mut self) -> io::Result<Ended> {
        let Some(descriptor) = &self.descriptor else { return Err(io::ErrorKind::NotFound.into()) };
        let watched = watch(descriptor.try_clone()?)?;
        loop {
            let mut ready = watched.readable().await?;
            if let Some(ended) = reap::reap(self.pid)? {
                self.reaped = true;
                return Ok(ended);
            }
            ready.clear_ready();
        }
    }
}

/// Watches a descriptor that becomes readable.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for types that may close or exchange their descriptor; OwnedFd does neither"
)]
pub(super) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        if !self.ends_by_itself {
            self.kill();
        }
        let (pid, own) = (self.pid, self.own.take());
        // It is ending, so this takes milliseconds; a zombie would count against the account's limit for ever.
        let reaper = std::thread::Builder::new().name("reaper".into());
        drop(reaper.spawn(move || {
            let _ = nix::sys::wait::waitpid(pid, None);
            drop(own);
        }));
    }
}
