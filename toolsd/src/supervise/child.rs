//! A direct child, held by descriptor until it is reaped.

use std::{io, os::fd::OwnedFd};

use nix::unistd::Pid;
use salaam_sys::reap::{self, Ended};
use tokio::io::{Interest, unix::AsyncFd};

/// A child of this process. Dropped before it was reaped, it is killed, and reaped by a thread of its own.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    descriptor: Option<OwnedFd>,
    reaped: bool,
}

impl Child {
    /// Holds a child that has just been started and not been reaped.
    pub(super) fn hold(pid: Pid) -> io::Result<Self> {
        match reap::open(pid) {
            Ok(descriptor) => Ok(Self { pid, descriptor: Some(descriptor), reaped: false }),
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
        self.kill();
        let pid = self.pid;
        // Killed, so this takes milliseconds; a zombie would count against the account's limit for ever.
        let reaper = std::thread::Builder::new().name("reaper".into());
        drop(reaper.spawn(move || nix::sys::wait::waitpid(pid, None)));
    }
}
