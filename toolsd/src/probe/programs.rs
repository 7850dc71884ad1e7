//! The programs that the prober runs: fixed places, fixed arguments, a small environment, bounded time and
//! output. None of them leaves anything behind: what `linger` sets it takes back.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getuid},
};
use salaam_core::bridge::{Action, MAX_SAID_BYTES};

/// One program: it answers at once, or waits for something that it will not get. Long enough for a machine on which
/// everything else runs, too; what all of them may take together is the asker's to say.
const WITHIN: Duration = Duration::from_secs(10);
/// For what sudo leaves behind to end. It is nobody's answer, so what takes longer is seen off another time.
const LEFT_WITHIN: Duration = Duration::from_millis(1500);
/// Between two looks at a program that closed its output and has not ended.
const LOOK: Duration = Duration::from_millis(5);

/// What came of an attempt, as the prober's socket carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) errno: i32,
    pub(super) code: Option<i32>,
    pub(super) said: Vec<u8>,
}

impl Outcome {
    pub(super) fn of_call(outcome: io::Result<()>) -> Self {
        Self { errno: outcome.err().map_or(0, |error| errno(&error)), code: None, said: Vec::new() }
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

const SUDO: &[&CStr] = &[c"/usr/bin/sudo", c"/usr/local/bin/sudo", c"/run/wrappers/bin/sudo"];
const SYSTEMD_RUN: &[&CStr] =
    &[c"/usr/bin/systemd-run", c"/bin/systemd-run", c"/run/current-system/sw/bin/systemd-run"];
const LOGINCTL: &[&CStr] = &[c"/usr/bin/loginctl", c"/bin/loginctl", c"/run/current-system/sw/bin/loginctl"];
const CRONTAB: &[&CStr] = &[c"/usr/bin/crontab", c"/run/wrappers/bin/crontab"];
const ATQ: &[&CStr] = &[c"/usr/bin/atq", c"/run/wrappers/bin/atq"];

/// Runs the program of `action`, for at most `left`. A system call's action is no program, and is answered EINVAL.
pub(super) fn attempt(action: Action, left: Duration) -> Outcome {
    let until = Instant::now() + left;
    let run = |places: &[&CStr], argv: &[&CStr]| {
        run_one(places, argv, until.saturating_duration_since(Instant::now()).min(WITHIN))
    };
    match action {
        // -k: what somebody typed a password for does not count.
        Action::SudoRoot => run(SUDO, &[c"sudo", c"-k", c"-n", c"-u", c"root", c"--", c"/bin/true"]),
        Action::SudoList => run(SUDO, &[c"sudo", c"-k", c"-n", c"-l"]),
        Action::SystemdRun => {
            run(SYSTEMD_RUN, &[c"systemd-run", c"--user", c"--quiet", c"--collect", c"--", c"/bin/true"])
        }
        Action::Crontab => run(CRONTAB, &[c"crontab", c"-l"]),
        Action::At => run(ATQ, &[c"atq"]),
        Action::Linger => {
            // Without a name it means the account of the caller's session, and this process has none (ENXIO).
            let Ok(own) = CString::new(getuid().to_string()) else {
                return Outcome::of_call(Err(io::Error::from_raw_os_error(libc::EINVAL)));
            };
            let outcome = run(LOGINCTL, &[c"loginctl", c"--no-ask-password", c"enable-linger", &own]);
            if outcome.code == Some(0) {
                // The answer is already known; a failure here shows at the next look, which finds it lingering.
                run(LOGINCTL, &[c"loginctl", c"--no-ask-password", c"disable-linger", &own]);
            }
            outcome
        }
        Action::Read | Action::List | Action::Connect => {
            Outcome::of_call(Err(io::Error::from_raw_os_error(libc::EINVAL)))
        }
    }
}

fn run_one(places: &[&CStr], argv: &[&CStr], limit: Duration) -> Outcome {
    let there = |place: &&&CStr| place.to_str().is_ok_and(|path| Path::new(path).exists());
    let Some(program) = places.iter().find(there) else {
        return Outcome::of_call(Err(io::Error::from_raw_os_error(libc::ENOENT)));
    };
    run_within(program, argv, limit).unwrap_or_else(|error| Outcome {
        errno: errno(&error),
        code: None,
        said: Vec::new(),
    })
}

/// Runs one program to its end, or to its limit: ETIMEDOUT then.
pub(super) fn run_within(program: &CStr, argv: &[&CStr], limit: Duration) -> io::Result<Outcome> {
    let (mut reading, writing) = io::pipe()?;
    let null = File::open("/dev/null")?;
    let fds = [(null.as_fd(), 0), (writing.as_fd(), 1), (writing.as_fd(), 2)];
    let until = Instant::now() + limit;
    let pid = salaam_sys::spawn::spawn(program, argv, &environment()?, &fds, true)?;
    drop(writing);
    let said = read_until(&mut reading, until);
    let code = reap(pid, until);
    let said = said?;
    match code? {
        Some(code) => Ok(Outcome { errno: 0, code: Some(code), said }),
        None => {
            // A set-uid program may be out of our reach; it gets its end from the pipe that closes.
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            Ok(Outcome { errno: libc::ETIMEDOUT, code: None, said })
        }
    }
}

/// Waits, for a while, for what the programs left behind. Only for a process that has no other children.
pub(super) fn see_off() {
    let until = Instant::now() + LEFT_WITHIN;
    while Instant::now() < until {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(LOOK),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            // Nobody is left.
            Err(_) => return,
        }
    }
}

/// What a command of this account would set for itself to find its service manager and bus.
fn environment() -> io::Result<[CString; 5]> {
    let runtime = format!("/run/user/{}", getuid());
    Ok([
        CString::new("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")?,
        CString::new("LANG=C")?,
        CString::new("HOME=/")?,
        CString::new(format!("XDG_RUNTIME_DIR={runtime}"))?,
        CString::new(format!("DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus"))?,
    ])
}

/// The beginning of what it writes; the rest is read and dropped.
fn read_until(reading: &mut io::PipeReader, until: Instant) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(reading.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, wait) {
            Ok(0) => return Ok(said),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut piece = [0; 1024];
        let read = reading.read(&mut piece)?;
        if read == 0 {
            return Ok(said);
        }
        let room = MAX_SAID_BYTES.saturating_sub(said.len());
        said.extend(piece.iter().take(read.min(room)));
    }
}

fn reap(pid: Pid, until: Instant) -> io::Result<Option<i32>> {
    const SIGNALLED: i32 = 128;
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Some(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Some(SIGNALLED + signal as i32)),
            Ok(
                WaitStatus::StillAlive
                | WaitStatus::Stopped(_, _)
                | WaitStatus::Continued(_)
                | WaitStatus::PtraceEvent(_, _, _)
                | WaitStatus::PtraceSyscall(_),
            )
            | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}
