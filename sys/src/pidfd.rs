//! A process held by descriptor: its number may be used again, the descriptor names it for ever.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout};

/// Opens a pidfd for a live or unreaped process (pidfd_open(2), Linux 5.3). It is close-on-exec.
///
/// # Errors
/// ESRCH when there is no such process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process has ended within `timeout_ms` milliseconds (it may still be unreaped). A pidfd is
/// readable exactly from then on.
///
/// # Errors
/// What poll(2) gives.
pub fn has_ended(pidfd: impl AsFd, timeout_ms: u16) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    loop {
        match nix::poll::poll(&mut fds, PollTimeout::from(timeout_ms)) {
            Ok(ready) => return Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a signal to exactly that process (pidfd_send_signal(2)).
///
/// # Errors
/// ESRCH when it has been reaped, EPERM when the kernel does not let us.
pub fn signal(pidfd: impl AsFd, signal: nix::sys::signal::Signal) -> io::Result<()> {
    // SAFETY: a null siginfo asks the kernel to fill it in; no other pointer is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            signal as libc::c_int,
            std::ptr::null::<libc::siginfo_t>(),
            0_u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_ended_process_is_seen_and_a_running_one_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let fd = open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!has_ended(&fd, 0).unwrap());
        signal(&fd, nix::sys::signal::Signal::SIGKILL).unwrap();
        assert!(has_ended(&fd, 5000).unwrap());
        child.wait().unwrap();
        assert!(signal(&fd, nix::sys::signal::Signal::SIGKILL).is_err());
    }
}
