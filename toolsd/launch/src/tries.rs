//! Carries out attacks, each in a process of its own: one that succeeds may change what the process is.

use std::{
    ffi::CStr,
    fs::OpenOptions,
    io::{self, Write as _},
    net::{Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use nix::{errno::Errno, libc, unistd::Pid};
use salaam_launch::{
    attack::{Attack, ENDED_BY_FILTER},
    plan::Canary,
};

use crate::tries_kernel as kernel;

/// How long one may take; each is a few system calls.
const SECONDS: libc::c_uint = 5;

/// Carries one out; 0 where it succeeded, else the error with which it failed. `launch` is the parent outside of the
/// domain.
pub(crate) fn attempt(attack: Attack, canary: &Canary, launch: Pid) -> i32 {
    // SAFETY: this program has one thread, so the child may do anything that the parent may.
    match unsafe { libc::fork() } {
        -1 => Errno::last() as i32,
        0 => {
            // SAFETY: takes an integer; what hangs is ended by it.
            unsafe { libc::alarm(SECONDS) };
            let errno = carry_out(attack, canary, launch)
                .map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // SAFETY: ends this process at once, without what the parent would do at its end.
            unsafe { libc::_exit(errno.clamp(0, 255)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the pointer is to an int that lives through the call.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if waited == child && libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else if waited == child && libc::WTERMSIG(status) == libc::SIGSYS {
                ENDED_BY_FILTER
            } else {
                // Ended by another signal: it neither succeeded nor was it denied as it must be.
                libc::ETIMEDOUT
            }
        }
    }
}

fn carry_out(attack: Attack, canary: &Canary, launch: Pid) -> io::Result<()> {
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
        Attack::Tcp => TcpStream::connect((Ipv4Addr::LOCALHOST, canary.tcp_port)).map(drop),
        Attack::Tcp6 => TcpStream::connect((Ipv6Addr::LOCALHOST, canary.tcp6_port)).map(drop),
        Attack::Udp => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((Ipv4Addr::LOCALHOST, canary.udp_port))?;
            // That nobody was there is told to the second one.
            socket.send(b"x")?;
            socket.send(b"x").map(drop)
        }
        Attack::AbstractSocket => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(&canary.abstract_name)?;
            UnixStream::connect_addr(&address).map(drop)
        }
        Attack::PathSocket => UnixStream::connect(path(&canary.socket)).map(drop),
        Attack::SharedMemory => std::fs::read(path(&canary.shared_memory)).map(drop),
        Attack::SharedSegment => kernel::attach(canary.segment),
        // SAFETY: takes two integers; continuing what is not stopped does nothing.
        Attack::Signal => done(unsafe { libc::kill(victim, libc::SIGCONT) }.into()),
        // SAFETY: seizing takes no memory of this process; it ends with this process.
        Attack::Trace => done(unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim, 0usize, 0usize) }),
        Attack::Environment => std::fs::read(of_victim("environ")).map(drop),
        Attack::CommandLine => std::fs::read(of_victim("cmdline")).map(drop),
        Attack::RootOfProcess => {
            let root = Path::new("/proc").join(victim.to_string()).join("root");
            std::fs::read(root.join(read.strip_prefix("/").unwrap_or(read))).map(drop)
        }
        Attack::Memory => std::fs::File::open(of_victim("mem")).map(drop),
        Attack::ReadMemory => kernel::read_memory(victim),
        Attack::Descriptor => {
            let process = call(libc::SYS_pidfd_open, [victim.into(), 0, 0, 0, 0])?;
            call(libc::SYS_pidfd_getfd, [process, 0, 0, 0, 0]).map(drop)
        }
        // SAFETY: takes three integers; the victim does nothing that could be late.
        Attack::Priority => done(unsafe { libc::setpriority(libc::PRIO_PROCESS, victim.cast_unsigned(), 19) }.into()),
        // SAFETY: takes two integers; no signal is sent, it is only asked whether one could be.
        Attack::SignalLaunch => done(unsafe { libc::kill(launch.as_raw(), 0) }.into()),
        Attack::Limits => {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the pointer is to a structure of this frame, and nothing is to be written back.
            done(
                unsafe { libc::prlimit(launch.as_raw(), libc::RLIMIT_CORE, &raw const limit, std::ptr::null_mut()) }
                    .into(),
            )
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
        Attack::Calls32 => kernel::call_of_32_bits(),
        Attack::CallsX32 => kernel::call_of_x32(),
        Attack::Perf => kernel::performance_event(),
        // FAN_REPORT_FID: what everybody may (fanotify(7)).
        Attack::Fanotify => call(libc::SYS_fanotify_init, [0x200, 0, 0, 0, 0]).map(drop),
        Attack::TerminalInput => kernel::type_into_a_terminal(),
        Attack::SegmentTables => kernel::segment_table(),
        Attack::SetUid => {
            std::fs::write("program", "")?;
            std::fs::set_permissions("program", std::fs::Permissions::from_mode(0o4755))
        }
        Attack::SetUidCreated => {
            use std::os::unix::fs::OpenOptionsExt as _;
            OpenOptions::new().create_new(true).write(true).mode(0o4755).open("created").map(drop)
        }
        Attack::SetUidOpenat2 => kernel::open_setuid(c"opened"),
        Attack::SetUidNode => {
            let mode = i64::from(libc::S_IFREG | 0o4755);
            call(libc::SYS_mknodat, [libc::AT_FDCWD.into(), c"node".as_ptr() as i64, mode, 0, 0]).map(drop)
        }
        Attack::FileSize => {
            // SAFETY: no handler is replaced; without this the limit would end the process before it is told.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            let file = OpenOptions::new().create_new(true).write(true).open("large")?;
            // A hole: it takes no space.
            let grown = file.set_len(canary.file_bytes);
            std::fs::remove_file("large")?;
            grown
        }
        Attack::MemorySize => kernel::map(canary.memory_bytes),
        Attack::Descriptors => kernel::descriptor(canary.open_files),
        Attack::Hook => std::fs::write(".git/hooks/pre-commit", ""),
        Attack::Config => OpenOptions::new().append(true).open(".git/config")?.write_all(b"\n"),
        Attack::Editor => OpenOptions::new().append(true).open(".vscode/tasks.json")?.write_all(b"\n"),
        Attack::MoveHooks => std::fs::rename(".git/hooks", ".git/aside"),
        Attack::SwapGit => {
            std::fs::create_dir("other")?;
            let (git, other) = (c".git".as_ptr() as i64, c"other".as_ptr() as i64);
            let (here, exchange) = (libc::AT_FDCWD.into(), i64::from(libc::RENAME_EXCHANGE));
            call(libc::SYS_renameat2, [here, git, here, other, exchange]).map(drop)
        }
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

pub(crate) fn call(number: libc::c_long, [a, b, c, d, e]: [i64; 5]) -> io::Result<i64> {
    // SAFETY: where an argument is an address, its caller above passes one of memory that lives through the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    done(result).map(|()| result)
}

pub(crate) fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
