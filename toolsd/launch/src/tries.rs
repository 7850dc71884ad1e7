//! Carries out attacks, each in a process of its own: one that succeeds may change what the process is.

use std::{
    ffi::CStr,
    fs::OpenOptions,
    io::{self, Write as _},
    net::TcpStream,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use nix::{errno::Errno, libc};
use salaam_launch::{attack::Attack, plan::Canary};

/// How long one may take; each is a few system calls.
const SECONDS: libc::c_uint = 5;

/// Carries one out; 0 where it succeeded, else the error with which it failed.
pub(crate) fn attempt(attack: Attack, canary: &Canary) -> i32 {
    // SAFETY: this program has one thread, so the child may do anything that the parent may.
    match unsafe { libc::fork() } {
        -1 => Errno::last() as i32,
        0 => {
            // SAFETY: takes an integer; what hangs is ended by it.
            unsafe { libc::alarm(SECONDS) };
            let errno =
                carry_out(attack, canary).map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // SAFETY: ends this process at once, without what the parent would do at its end.
            unsafe { libc::_exit(errno.clamp(0, 255)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the pointer is to an int that lives through the call.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            // Ended by a signal: it neither succeeded nor was it denied as it must be.
            if waited == child && libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { libc::ETIMEDOUT }
        }
    }
}

fn carry_out(attack: Attack, canary: &Canary) -> io::Result<()> {
    let read = path(&canary.read);
    let victim = canary.victim;
    let of_victim = |file: &str| format!("/proc/{victim}/{file}");
    match attack {
        Attack::ReadOutside => std::fs::read(read).map(drop),
        Attack::WriteOutside => OpenOptions::new().create_new(true).write(true).open(path(&canary.write)).map(drop),
        Attack::ReadThroughProc => {
            std::fs::read(Path::new("/proc/self/root").join(read.strip_prefix("/").unwrap_or(read))).map(drop)
        }
        Attack::ReadThroughLink => {
            std::os::unix::fs::symlink(read, "link")?;
            std::fs::read("link").map(drop)
        }
        Attack::HardLink => std::fs::hard_link(read, "hard"),
        Attack::Tcp => TcpStream::connect(("127.0.0.1", canary.tcp_port)).map(drop),
        Attack::AbstractSocket => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(&canary.abstract_name)?;
            UnixStream::connect_addr(&address).map(drop)
        }
        Attack::PathSocket => UnixStream::connect(path(&canary.socket)).map(drop),
        Attack::SharedMemory => std::fs::read(path(&canary.shared_memory)).map(drop),
        // SAFETY: takes two integers; continuing what is not stopped does nothing.
        Attack::Signal => done(unsafe { libc::kill(victim, libc::SIGCONT) }.into()),
        // SAFETY: seizing takes no memory of this process; it ends with this process.
        Attack::Trace => done(unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim, 0usize, 0usize) }),
        Attack::Environment => std::fs::read(of_victim("environ")).map(drop),
        Attack::Memory => std::fs::File::open(of_victim("mem")).map(drop),
        Attack::Descriptor => {
            let process = call(libc::SYS_pidfd_open, [victim.into(), 0, 0, 0, 0])?;
            call(libc::SYS_pidfd_getfd, [process, 0, 0, 0, 0]).map(drop)
        }
        Attack::Limits => {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the pointer is to a structure of this frame, and nothing is to be written back.
            done(unsafe { libc::prlimit(victim, libc::RLIMIT_CORE, &raw const limit, std::ptr::null_mut()) }.into())
        }
        // SAFETY: takes an integer; this process does nothing else.
        Attack::UserNamespace => done(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()),
        Attack::UserNamespaceByClone => {
            let flags = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
            match call(libc::SYS_clone, [flags, 0, 0, 0, 0])? {
                // SAFETY: the new process ends at once.
                0 => unsafe { libc::_exit(0) },
                _ => Ok(()),
            }
        }
        Attack::IoUring => {
            // struct io_uring_params has 120 bytes.
            let mut parameters = [0u64; 15];
            call(libc::SYS_io_uring_setup, [1, parameters.as_mut_ptr() as i64, 0, 0, 0]).map(drop)
        }
        // UFFD_USER_MODE_ONLY: what everybody may.
        Attack::Userfaultfd => call(libc::SYS_userfaultfd, [1, 0, 0, 0, 0]).map(drop),
        Attack::Keyring => {
            let (kind, name) = (c"user".as_ptr() as i64, c"salaam".as_ptr() as i64);
            // KEY_SPEC_PROCESS_KEYRING: it goes with this process.
            call(libc::SYS_add_key, [kind, name, name, 1, -2]).map(drop)
        }
        Attack::Vsock => socket(libc::AF_VSOCK, libc::SOCK_STREAM),
        Attack::Alg => socket(libc::AF_ALG, libc::SOCK_SEQPACKET),
        Attack::Clone3 => match call(libc::SYS_clone3, [0, 0, 0, 0, 0]) {
            // It looked at what it was given: the call is there.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other.map(drop),
        },
        Attack::SetUid => {
            std::fs::write("program", "")?;
            std::fs::set_permissions("program", std::fs::Permissions::from_mode(0o4755))
        }
        Attack::Hook => std::fs::write(".git/hooks/pre-commit", ""),
        Attack::Config => OpenOptions::new().append(true).open(".git/config")?.write_all(b"\n"),
        Attack::MoveGit => std::fs::rename(".git", "moved"),
    }
}

fn path(path: &CStr) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))
}

fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes three integers.
    done(unsafe { libc::socket(family, kind, 0) }.into())
}

fn call(number: libc::c_long, [a, b, c, d, e]: [i64; 5]) -> io::Result<i64> {
    // SAFETY: where an argument is an address, its caller above passes one of memory that lives through the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    done(result).map(|()| result)
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
