//! Starting a program with an exact list of descriptors, environment from nothing, in a new session if asked.
//!
//! posix_spawn(3) instead of fork: nothing of ours runs between the copy and the exec, so a process with many
//! threads may use it. Every descriptor of ours is close-on-exec; only those listed reach the program.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn},
    sys::signal::SigSet,
    unistd::Pid,
};

/// POSIX_SPAWN_SETSID of glibc 2.26 and later, which neither nix nor libc names.
const SETSID: i32 = 0x80;

/// Starts `program` with `argv` and `env`, and with each descriptor of `fds` at the number beside it.
///
/// The program has default signal handlers and an empty signal mask; with `new_session` it leads a session
/// without a terminal. Errors are those of posix_spawn(3): when it returns, exec has happened or failed.
/// The caller reaps the process.
pub fn spawn(
    program: &CStr,
    argv: &[impl AsRef<CStr>],
    env: &[impl AsRef<CStr>],
    fds: &[(BorrowedFd<'_>, RawFd)],
    new_session: bool,
) -> io::Result<Pid> {
    let mut attributes = PosixSpawnAttr::init()?;
    let session = if new_session { SETSID } else { 0 };
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
            | PosixSpawnFlags::from_bits_retain(session),
    )?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;

    // dup2 onto a number that a later action still reads from would hand over the wrong file, so sources
    // that lie among the targets are moved above them first.
    let above = fds.iter().map(|(_, target)| *target).max().unwrap_or(-1) + 1;
    let mut moved: Vec<OwnedFd> = Vec::new();
    let mut actions = PosixSpawnFileActions::init()?;
    for (source, target) in fds {
        let number = if source.as_raw_fd() < above && source.as_raw_fd() != *target {
            let copy = duplicate_above(source.as_fd(), above)?;
            let number = copy.as_raw_fd();
            moved.push(copy);
            number
        } else {
            source.as_raw_fd()
        };
        actions.add_dup2(number, *target)?;
    }
    Ok(posix_spawn(program, &actions, &attributes, argv, env)?)
}

/// Marks every descriptor above 2 close-on-exec, so that what was inherited at start reaches no child.
///
/// To be called once at start. Errors with ENOSYS before Linux 5.11.
pub fn inherit_nothing() -> io::Result<()> {
    // SAFETY: close_range takes three integers; with CLOSE_RANGE_CLOEXEC it closes nothing, so no owner of a
    // descriptor is surprised.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Duplicates `fd` to a number of at least `least`, close-on-exec.
pub fn duplicate_above(fd: BorrowedFd<'_>, least: RawFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: fcntl has just made this descriptor and nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read};

    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    fn run(script: &CStr, fds: &[(BorrowedFd<'_>, RawFd)]) -> WaitStatus {
        let pid = spawn(c"/bin/sh", &[c"sh", c"-c", script], &[c"A=b"], fds, true).unwrap();
        waitpid(pid, None).unwrap()
    }

    #[test]
    fn only_the_listed_descriptors_and_variables_arrive_in_a_new_session() {
        inherit_nothing().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let script = c"echo $(ls /proc/self/fd) $A $HOME; test $(ps -o sid= -p $$) = $$";
        let status = run(script, &[(null.as_fd(), 0), (writer.as_fd(), 1), (writer.as_fd(), 2), (null.as_fd(), 7)]);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?} {text}");
        // 3 is the directory that ls itself reads.
        assert_eq!(text, "0 1 2 3 7 b\n");
    }

    #[test]
    fn descriptors_may_trade_places() {
        let (mut reader_a, a) = io::pipe().unwrap();
        let (mut reader_b, b) = io::pipe().unwrap();
        // By path: not every shell takes a number of two digits after `>&`.
        let at = |fd: &dyn AsRawFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let script = std::ffi::CString::new(format!("echo a >{}; echo b >{}", at(&b), at(&a))).unwrap();
        run(&script, &[(a.as_fd(), b.as_raw_fd()), (b.as_fd(), a.as_raw_fd())]);
        drop((a, b));
        let (mut text_a, mut text_b) = (String::new(), String::new());
        reader_a.read_to_string(&mut text_a).unwrap();
        reader_b.read_to_string(&mut text_b).unwrap();
        assert_eq!((text_a.as_str(), text_b.as_str()), ("a\n", "b\n"));
    }

    #[test]
    fn a_program_that_is_missing_is_an_error_here() {
        let error = spawn(c"/nowhere/program", &[c"program"], &[c"A=b"], &[], false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
