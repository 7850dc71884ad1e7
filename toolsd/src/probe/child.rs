//! The prober's own process. Its messages, one at a time, all numbers little-endian: a byte for the action, the
//! milliseconds that are left as u32, the length of the path as u16, the path; back come the errno and the exit code (or -1) as i32, the length of what
//! was said as u16, and what was said.

use std::{
    ffi::{CString, OsStr},
    fs::OpenOptions,
    io::{self, Read, Write},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _, net::UnixStream},
    },
    path::Path,
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    unistd::Pid,
};
use salaam_core::bridge::Action;

use super::programs::{self, Outcome};
use crate::{bridge, harden, refusal::StartError};

/// The one argument that there is: the executor gives it to the prober child, never sudo (the sudoers rule
/// allows none).
pub const PROBER: &str = "prober";

/// A prober that was started.
#[derive(Debug)]
pub struct Child {
    pub(super) socket: UnixStream,
    pub(super) pid: Pid,
}

/// Starts the prober from our own binary, with an empty environment.
pub fn spawn() -> io::Result<Child> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let (null, errors) = (OpenOptions::new().write(true).open("/dev/null")?, io::stderr());
    let fds = [(theirs.as_fd(), 0), (null.as_fd(), 1), (errors.as_fd(), 2)];
    let argv = [CString::new("salaam-toolsd")?, CString::new(PROBER)?];
    let pid = salaam_sys::spawn::spawn(c"/proc/self/exe", &argv, &[] as &[CString], &fds, false)?;
    Ok(Child { socket: ours, pid })
}

/// The prober's own main: hardened like the executor, except that it may still do what the account may.
pub fn child() -> Result<(), StartError> {
    harden::drop_what_was_inherited()?;
    harden::close_to_others()?;
    let own = harden::unprivileged_account()?;
    let mut socket = bridge::take()?.verify(bridge::Caller::Own(own))?.into_prober();
    // sudo leaves a process behind that mails its denial: it comes to us, and is waited for.
    nix::sys::prctl::set_child_subreaper(true).map_err(|errno| StartError::Prober(errno.into()))?;
    // The end of the socket is the end of the prober, whatever way it comes.
    while let Ok(outcome) = one_attempt(&mut socket) {
        programs::see_off();
        if answer(&mut socket, &outcome).is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads one attempt and carries it out.
pub(super) fn one_attempt(socket: &mut UnixStream) -> io::Result<Outcome> {
    let mut head = [0; 7];
    socket.read_exact(&mut head)?;
    let [code, m0, m1, m2, m3, low, high] = head;
    let left = Duration::from_millis(u32::from_le_bytes([m0, m1, m2, m3]).into());
    let mut path = vec![0; usize::from(u16::from_le_bytes([low, high]))];
    socket.read_exact(&mut path)?;
    let path = Path::new(OsStr::from_bytes(&path));
    let action = ACTIONS.iter().find(|(_, known)| *known == code).map(|(action, _)| *action);
    match action.ok_or(io::ErrorKind::InvalidData)? {
        Action::Read => Ok(Outcome::of_call(read(path))),
        Action::List => Ok(Outcome::of_call(list(path))),
        Action::Connect => Ok(Outcome::of_call(reach(path))),
        program @ (Action::SudoRoot
        | Action::SudoList
        | Action::SystemdRun
        | Action::Crontab
        | Action::At
        | Action::Linger) => Ok(programs::attempt(program, left)),
    }
}

/// Sends what came of it.
pub(super) fn answer(socket: &mut UnixStream, outcome: &Outcome) -> io::Result<()> {
    let mut message = outcome.errno.to_le_bytes().to_vec();
    message.extend(outcome.code.unwrap_or(NO_CODE).to_le_bytes());
    message.extend(u16::try_from(outcome.said.len()).map_err(io::Error::other)?.to_le_bytes());
    message.extend(&outcome.said);
    socket.write_all(&message)
}

/// Does not block on a FIFO or a device, takes no terminal, and reads nothing.
fn read(path: &Path) -> io::Result<()> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map(drop)
}

fn list(path: &Path) -> io::Result<()> {
    std::fs::read_dir(path)?.next().transpose().map(drop)
}

fn reach(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(client.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(())
}

/// In place of the exit code of what has none.
pub(super) const NO_CODE: i32 = -1;

/// Each action's byte.
pub(super) const ACTIONS: [(Action, u8); 9] = [
    (Action::Read, 1),
    (Action::Connect, 2),
    (Action::List, 3),
    (Action::SudoRoot, 4),
    (Action::SudoList, 5),
    (Action::SystemdRun, 6),
    (Action::Crontab, 7),
    (Action::At, 8),
    (Action::Linger, 9),
];
