//! The bridge from the executor's side: descriptor 0, its creator, and the first sixteen bytes.
//!
//! The steps consume each other: [`take`] → [`Taken::verify`] → [`Verified::greet`] → a stream that may speak
//! HTTP/2. There is no other way to one.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use nix::sys::socket::{SockType, UnixAddr, getsockname, getsockopt, sockopt};
use salaam_core::{
    bridge::{ANSWER_MAGIC, HELLO_BYTES, HELLO_MAGIC, VERSION, hello_bytes, hello_version},
    refusal::StartRefusal,
};
use salaam_sys::{handed, peer, vouched};

/// How long the service may take to answer the hello; it has only to compare bytes.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why there is no bridge.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// Descriptor 0 is something else.
    #[error(
        "descriptor 0 is no unix stream socket ({0}): the service starts salaam-toolsd; if it did, sudo's log_input is on for it (write the drop-in again with `salaam host setup`)"
    )]
    NotASocket(String),
    /// A call on it failed.
    #[error("{step} failed: {source}")]
    Step {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// sudo did not name its caller.
    #[error("SUDO_UID is not a uid")]
    NotAUid,
    /// sudo was called by root or by this very account.
    #[error("sudo was called by uid {0}, which is no service account for this executor")]
    CalledBy(u32),
    /// The pair was made by somebody else.
    #[error("the bridge was made by uid {creator}; uid {expected} called salaam-toolsd")]
    WrongCreator {
        /// By the kernel's word.
        creator: u32,
        /// By sudo's word, or our own uid.
        expected: u32,
    },
    /// The answer is none.
    #[error("the service did not answer the hello as it must: {0}")]
    Answer(&'static str),
    /// Another protocol.
    #[error(
        "the service speaks bridge version {theirs}, this salaam-toolsd speaks {VERSION}: install both from one build"
    )]
    Version {
        /// What the service speaks.
        theirs: u32,
    },
}

impl BridgeError {
    /// The exit code's reason.
    pub const fn refusal(&self) -> StartRefusal {
        match self {
            Self::NotASocket(_) | Self::Step { .. } => StartRefusal::NoBridge,
            Self::NotAUid => StartRefusal::WrongSudoUid,
            Self::CalledBy(_) | Self::WrongCreator { .. } => StartRefusal::WrongCreator,
            Self::Answer(_) => StartRefusal::Handshake,
            Self::Version { .. } => StartRefusal::Version,
        }
    }
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> BridgeError {
    move |source| BridgeError::Step { step, source: source.into() }
}

/// Who started this executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The same account, directly: service-user mode.
    Own(u32),
    /// A service account, through sudo.
    Service(u32),
}

impl Caller {
    /// The uid that must have made the bridge.
    pub const fn uid(self) -> u32 {
        match self {
            Self::Own(uid) | Self::Service(uid) => uid,
        }
    }
}

/// Reads who called. sudo sets SUDO_UID itself and lets no caller set it; where a process of this account
/// forges it, [`Taken::verify`] still holds it against the kernel's word.
pub fn caller(own: u32, sudo_uid: Option<OsString>) -> Result<Caller, BridgeError> {
    let Some(text) = sudo_uid else { return Ok(Caller::Own(own)) };
    let uid = decimal(&text).ok_or(BridgeError::NotAUid)?;
    if uid == 0 || uid == own { Err(BridgeError::CalledBy(uid)) } else { Ok(Caller::Service(uid)) }
}

fn decimal(text: &OsStr) -> Option<u32> {
    let text = text.to_str()?;
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// The socket, moved off descriptor 0, of which nothing is known yet.
#[derive(Debug)]
pub struct Taken(UnixStream);

/// Moves the bridge off descriptor 0 and puts /dev/null there, so that no child can inherit it.
pub fn take() -> Result<Taken, BridgeError> {
    let fd = io::stdin().as_fd().try_clone_to_owned().map_err(step("duplicating descriptor 0"))?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(step("opening /dev/null"))?;
    nix::unistd::dup2_stdin(&null).map_err(step("putting /dev/null on descriptor 0"))?;
    match getsockopt(&fd, sockopt::SockType) {
        Ok(SockType::Stream) => {}
        Ok(other) => return Err(BridgeError::NotASocket(format!("{other:?}"))),
        Err(error) => return Err(BridgeError::NotASocket(error.to_string())),
    }
    let stream = UnixStream::from(fd);
    // An address of the unix family, and only that, reads back as one.
    let _: UnixAddr = getsockname(std::os::fd::AsRawFd::as_raw_fd(&stream))
        .map_err(|error| BridgeError::NotASocket(error.to_string()))?;
    Ok(Taken(stream))
}

impl Taken {
    /// Checks that the creator of the pair is the caller. SO_PEERCRED of a socketpair names its creator at
    /// both ends, and no process can make a pair in another one's name.
    pub fn verify(self, caller: Caller) -> Result<Verified, BridgeError> {
        let creator = peer::credentials(&self.0).map_err(step("SO_PEERCRED"))?.uid;
        if creator == caller.uid() {
            Ok(Verified(self.0))
        } else {
            Err(BridgeError::WrongCreator { creator, expected: caller.uid() })
        }
    }
}

/// A bridge whose creator is the caller.
#[derive(Debug)]
pub struct Verified(UnixStream);

impl Verified {
    /// The socket of the prober child: parent and child are one program, so nothing is negotiated.
    pub fn into_prober(self) -> UnixStream {
        self.0
    }

    /// Says who we are by the kernel's word and waits for the service to take it. HTTP/2 begins only then:
    /// a first frame sent early could be swallowed by the read of the hello.
    ///
    /// With the answer come the doors of control groups, where the service has them.
    pub fn greet(self) -> Result<Welcomed, BridgeError> {
        let stream = self.0;
        vouched::send(&stream, &hello_bytes(HELLO_MAGIC, VERSION)).map_err(step("sending the hello"))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(step("setting a time limit"))?;
        let mut answer = [0; HELLO_BYTES];
        // The service sends it as one message into an empty buffer; a part of it is none.
        let (bytes, doors) = handed::receive_all(&stream, &mut answer).map_err(|error| {
            BridgeError::Answer(match error.kind() {
                io::ErrorKind::WouldBlock => "nothing came within 10 s",
                io::ErrorKind::InvalidData => "too much came beside it",
                _ => "the bridge closed",
            })
        })?;
        if bytes != HELLO_BYTES {
            return Err(BridgeError::Answer(if bytes == 0 { "the bridge closed" } else { "it is not an answer" }));
        }
        stream.set_read_timeout(None).map_err(step("lifting the time limit"))?;
        match hello_version(ANSWER_MAGIC, &answer) {
            Some(VERSION) => Ok(Welcomed { stream, doors }),
            Some(theirs) => Err(BridgeError::Version { theirs }),
            None => Err(BridgeError::Answer("it is not an answer")),
        }
    }
}

/// A bridge over which HTTP/2 is next.
#[derive(Debug)]
pub struct Welcomed {
    /// The bridge.
    pub stream: UnixStream,
    /// What came with the service's answer, of which nothing is known yet.
    pub doors: Vec<OwnedFd>,
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_caller_is_who_sudo_says_or_oneself() {
        let of = |text: &str| caller(997, Some(text.into()));
        assert_eq!(caller(997, None).unwrap(), Caller::Own(997));
        assert_eq!(of("1001").unwrap(), Caller::Service(1001));
        for bad in ["", "-1", "+1", " 1", "1001x", "99999999999", "0x3e9"] {
            assert!(matches!(of(bad), Err(BridgeError::NotAUid)), "{bad}");
        }
        for bad in ["0", "997"] {
            assert!(matches!(of(bad), Err(BridgeError::CalledBy(_))), "{bad}");
        }
    }

    #[test]
    fn a_pair_that_another_account_made_is_refused() {
        let own = nix::unistd::geteuid().as_raw();
        let (a, b) = UnixStream::pair().unwrap();
        assert!(Taken(a).verify(Caller::Service(own)).is_ok());
        let error = Taken(b).verify(Caller::Service(own + 1)).unwrap_err();
        assert!(matches!(error, BridgeError::WrongCreator { creator, .. } if creator == own));
        assert_eq!(error.refusal().code(), 72);
    }

    #[test]
    fn only_the_exact_answer_opens_the_bridge() {
        let answered = |bytes: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            Verified(ours).greet().map(|_| ()).map_err(|error| error.refusal())
        };
        assert_eq!(answered(&hello_bytes(ANSWER_MAGIC, VERSION)), Ok(()));
        assert_eq!(answered(&hello_bytes(ANSWER_MAGIC, VERSION + 1)), Err(StartRefusal::Version));
        assert_eq!(answered(&hello_bytes(HELLO_MAGIC, VERSION)), Err(StartRefusal::Handshake));
        assert_eq!(answered(b"SALAAM"), Err(StartRefusal::Handshake));
        assert_eq!(answered(b""), Err(StartRefusal::Handshake));
    }
}
