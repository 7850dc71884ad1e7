//! Starting a program inside a control group, from its first instruction (clone3(2), CLONE_INTO_CGROUP, Linux 5.7).
//!
//! A pid that is written into the group after the start races with what the program starts itself: what was made before
//! stays outside for ever. posix_spawn(3) can do it from glibc 2.39 on only, so the few lines between the copy and the
//! exec are here. They run in a copy of one thread of a process that may have many: kernel calls, nothing that takes a
//! lock or memory. All that they need is made before.

use std::{
    ffi::CStr,
    io::{self, Read as _},
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
};

use nix::unistd::Pid;

use crate::spawn::duplicate_above;

/// `CLONE_INTO_CGROUP` (linux/sched.h).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// `CLONE_CLEAR_SIGHAND` (linux/sched.h, Linux 5.5): every handler is the default one.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// What a shell exits with when it cannot exec; nobody sees it, because the errno was told before.
const NOT_STARTED: libc::c_int = 127;

/// The last real-time signal (signal(7)).
const LAST_SIGNAL: libc::c_int = 64;

/// `struct clone_args` (linux/sched.h), 88 bytes, the version with `cgroup`.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts `program` in the control group whose directory `group` is, with `argv` and `env`, with each descriptor of
/// `fds` at the number beside it, with default signal handlers and an empty mask, leading a session without a terminal.
///
/// When it returns, exec has happened or failed. The caller reaps the process.
///
/// # Errors
/// What clone3(2) gives (ENOSYS where a filter hides it, EACCES where the group is not this account's, EBUSY where
/// it has groups below it), and what the calls before exec and exec itself give.
pub fn spawn_in(
    group: BorrowedFd<'_>,
    program: &CStr,
    argv: &[impl AsRef<CStr>],
    env: &[impl AsRef<CStr>],
    fds: &[(BorrowedFd<'_>, RawFd)],
) -> io::Result<Pid> {
    let argv = pointers(argv);
    let env = pointers(env);
    // As in `spawn`: no source may lie among the targets, or it could be overwritten before it is read.
    let above = fds.iter().map(|(_, target)| *target).max().unwrap_or(-1) + 1;
    let mut moved: Vec<OwnedFd> = Vec::new();
    let mut places: Vec<(RawFd, RawFd)> = Vec::new();
    for (source, target) in fds {
        let copy = duplicate_above(*source, above)?;
        places.push((copy.as_raw_fd(), *target));
        moved.push(copy);
    }
    let (mut failed, below) = io::pipe()?;
    // Above the targets, too: it is written after they were filled.
    let failing = duplicate_above(below.as_fd(), above)?;
    drop(below);
    let mut args = CloneArgs {
        flags: CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: u64::try_from(group.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?,
        ..CloneArgs::default()
    };
    // SAFETY: args is a whole clone_args of the size given. Without CLONE_VM the child has a copy of this memory and of
    // this thread alone: it goes on below with what was made above, takes no lock, asks for no memory, and ends in exec
    // or _exit, so no destructor and no caller of this function ever runs in it.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    if pid == 0 {
        // SAFETY: as said; `argv` and `env` end with a null pointer and outlive the call.
        unsafe { become_it(program, argv.as_ptr(), env.as_ptr(), &places, failing.as_raw_fd()) }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    drop(failing);
    let pid = Pid::from_raw(libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidData)?);
    // Closed by exec: the end of the stream means that the program has begun, four bytes that it has not.
    let mut errno = [0; 4];
    let failure = match failed.read_exact(&mut errno) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(pid),
        Ok(()) => io::Error::from_raw_os_error(i32::from_ne_bytes(errno)),
        // Whether it has begun is not known (an interrupted read was tried again): then it has not.
        Err(error) => {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            error
        }
    };
    // Our own child, which ends at once.
    let _ = nix::sys::wait::waitpid(pid, None);
    Err(failure)
}

/// The child, up to exec.
///
/// # Safety
/// To be called in a process that has one thread and a memory of its own; `argv` and `env` end with a null pointer.
unsafe fn become_it(
    program: &CStr,
    argv: *const *const libc::c_char,
    env: *const *const libc::c_char,
    places: &[(RawFd, RawFd)],
    failing: RawFd,
) -> ! {
    // SAFETY: plain kernel calls on integers and on memory that the caller vouches for; none takes a lock.
    unsafe {
        // What is ignored stays so through CLONE_CLEAR_SIGHAND. KILL, STOP and the C library's own two cannot be set, which
        // is an error that means nothing.
        for signal in 1..=LAST_SIGNAL {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        let ready = libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) == 0
            && libc::setsid() >= 0
            // dup2 takes close-on-exec away; no source is its own target.
            && places.iter().all(|(source, target)| libc::dup2(*source, *target) == *target);
        if ready {
            libc::execve(program.as_ptr(), argv, env);
        }
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(failing, errno.as_ptr().cast(), errno.len());
        libc::_exit(NOT_STARTED)
    }
}

fn pointers(words: &[impl AsRef<CStr>]) -> Vec<*const libc::c_char> {
    words.iter().map(|word| word.as_ref().as_ptr()).chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    /// A group of this test's own, where there is a second hierarchy and this is root.
    fn group() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let path = PathBuf::from(line.split(' ').nth(1)?).join(format!("salaam-born-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(path)
    }

    #[test]
    fn a_program_is_in_the_group_from_its_first_instruction_with_only_what_it_was_given() {
        let Some(path) = group() else {
            println!("no hierarchy of control groups that this account may write; nothing shown");
            return;
        };
        crate::spawn::inherit_nothing().unwrap();
        let directory = fs::File::open(&path).unwrap();
        let run = |script: &CStr| {
            let (mut reader, writer) = io::pipe().unwrap();
            let null = fs::File::open("/dev/null").unwrap();
            let fds = [(null.as_fd(), 0), (writer.as_fd(), 1), (writer.as_fd(), 2)];
            let pid = spawn_in(directory.as_fd(), c"/bin/sh", &[c"sh", c"-c", script], &[c"A=b"], &fds).unwrap();
            drop(writer);
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Exited(_, 0)), "{text}");
            text
        };
        let place = format!("0::/{}\n", path.file_name().unwrap().to_str().unwrap());
        assert_eq!(run(c"(grep ^0:: /proc/self/cgroup)"), place, "and what it starts is there as well");
        assert_eq!(run(c"echo $(ls /proc/self/fd) $A $HOME"), "0 1 2 3 b\n");
        assert_eq!(run(c"test $(ps -o sid= -p $$) = $$; echo $?"), "0\n");
        // Signal 32 is the C library's own, and stays as it was inherited.
        let none = run(c"exec grep -cE '^Sig(Blk|Ign):\t00000000[08]0000000$' /proc/self/status");
        assert_eq!(none, "2\n");
        let missing = spawn_in(directory.as_fd(), c"/nowhere/program", &[c"x"], &[] as &[&CStr], &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::remove_dir(&path).unwrap();
        let gone = spawn_in(directory.as_fd(), c"/bin/true", &[c"true"], &[] as &[&CStr], &[]).unwrap_err();
        let errno = gone.raw_os_error();
        assert!(matches!(errno, Some(libc::ENODEV | libc::ENOENT)), "a group that is gone takes nobody in: {gone}");
    }

    #[test]
    fn what_is_no_group_is_refused_and_nothing_is_started() {
        let directory = fs::File::open("/tmp").unwrap();
        let error = spawn_in(directory.as_fd(), c"/bin/true", &[c"true"], &[] as &[&CStr], &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
