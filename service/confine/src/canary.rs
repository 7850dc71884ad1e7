//! A confined process tries what [`ALL`] names, to show that it cannot. Without the layers each attempt would go through or
//! fail in another way, and none would do harm: `EPERM` and `EACCES` are proof, anything else is not.

use std::{path::Path, thread};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::{
        ptrace, signal,
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
        stat::Mode,
    },
    unistd::{Pid, execve, getpid, getppid},
};
use salaam_core::canary::{ALL, Canary};

/// Tries everything. `secret` is a file or directory that the uid may open, such as the state directory.
#[must_use]
pub fn sing(secret: &Path) -> Vec<Canary> {
    let results = [
        errno(socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)),
        errno(socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)),
        // Unhindered it is EISCONN or ENOTSOCK: descriptor 0 is connected already. A filter answers first.
        UnixAddr::new("/").map_or_else(|errno| errno as i32, |address| errno(connect(0, &address))),
        errno(open("/etc/passwd", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())),
        errno(open(secret, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())),
        // Unhindered it is ENOENT.
        errno(execve(c"/nonexistent/program", &[c"program"], &[] as &[&std::ffi::CStr])),
        match thread::Builder::new().stack_size(64 * 1024).spawn(|| ()) {
            Ok(thread) => errno(thread.join().map_err(|_| Errno::ECHILD)),
            Err(error) => error.raw_os_error().unwrap_or(-1),
        },
        errno(signal::kill(getppid(), None)),
        // Unhindered it is ESRCH: nobody has that number, so that nobody is ever stopped.
        errno(ptrace::attach(Pid::from_raw(0))),
        errno(nix::sys::uio::process_vm_readv(getppid(), &mut [], &[])),
        salaam_sys::pidfd::open(getpid().as_raw()).map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0),
    ];
    ALL.into_iter().zip(results).map(|(attack, errno)| Canary { attack: attack.to_owned(), errno }).collect()
}

fn errno<T>(result: Result<T, Errno>) -> i32 {
    result.map_or_else(|errno| errno as i32, |_| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_layer_no_attempt_counts_as_denied() {
        for attempt in sing(Path::new("/etc")) {
            assert!(!attempt.denied(), "{attempt:?}");
        }
    }
}
