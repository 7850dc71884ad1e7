//! Processes by descriptor: opening, signalling and reaping them, with what they used.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use nix::unistd::Pid;

/// A child that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// User and system time of it and of what it reaped, in microseconds.
    pub cpu_us: u64,
    /// The largest resident set among them in KiB.
    pub peak_kib: u64,
}

/// Opens a process by number (pidfd_open(2)). The number must be of a child that is not reaped yet, or be
/// checked afterwards: numbers are used again.
pub fn open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers; a result that is not negative is a descriptor of ours alone.
    unsafe {
        match i32::try_from(libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0u32)) {
            Ok(number) if number >= 0 => Ok(OwnedFd::from_raw_fd(number)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sends SIGKILL to the process behind `pidfd`; ESRCH where it is gone already.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    let number = pidfd.as_fd().as_raw_fd();
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open through the call and the kernel reads no structure through null.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, number, libc::SIGKILL, no_info, 0u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps `child` if it has ended; `None` while it runs. ECHILD where it is no child of this process.
pub fn reap(child: Pid) -> io::Result<Option<Ended>> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of this frame.
    match unsafe { libc::wait4(child.as_raw(), &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => return Ok(None),
        -1 => return Err(io::Error::last_os_error()),
        _ => {}
    }
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    Ok(Some(Ended {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_killed_child_is_reaped_once() {
        let none: &[&std::ffi::CStr] = &[];
        let child = crate::spawn::spawn(c"/bin/sleep", &[c"sleep", c"60"], none, &[], true).unwrap();
        let pidfd = open(child).unwrap();
        assert_eq!(reap(child).unwrap(), None);
        kill(&pidfd).unwrap();
        let start = Instant::now();
        let ended = loop {
            if let Some(ended) = reap(child).unwrap() {
                break ended;
            }
            assert!(start.elapsed() < Duration::from_secs(10));
        };
        assert_eq!((ended.code, ended.signal), (None, Some(libc::SIGKILL)));
        assert_eq!(reap(child).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        assert_eq!(kill(&pidfd).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
