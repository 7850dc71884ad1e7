//! A message whose sender the kernel vouches for: SCM_CREDENTIALS and, where there is one, SCM_PIDFD (unix(7)).
//!
//! nix drops ancillary data that it does not know, and with it the descriptor in it; hence recvmsg(2) here.

use std::{
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg, setsockopt, sockopt::PassCred};

use crate::peer::Credentials;

/// `SO_PASSPIDFD` of Linux 6.5 (include/uapi/asm-generic/socket.h); libc does not name it everywhere.
const SO_PASSPIDFD: libc::c_int = 76;
/// `SCM_PIDFD` of Linux 6.5 (include/linux/socket.h).
const SCM_PIDFD: libc::c_int = 4;

/// A message and what the kernel said about its sender.
#[derive(Debug)]
pub struct Vouched {
    /// Bytes received; 0 = end of stream, and then the credentials mean nothing (they are all zero).
    pub bytes: usize,
    /// Who sent it; absent = the kernel did not say.
    pub credentials: Option<Credentials>,
    /// The sender as a descriptor; absent = the kernel has no SCM_PIDFD.
    pub pidfd: Option<OwnedFd>,
}

/// Has the kernel attach the sender to each message received on `socket`, or no longer. The pidfd is best
/// effort: returns whether the kernel attaches one.
///
/// # Errors
/// What setsockopt(2) gives for SO_PASSCRED.
pub fn attach(socket: impl AsFd, on: bool) -> io::Result<bool> {
    setsockopt(&socket, PassCred, &on)?;
    let value = libc::c_int::from(on);
    // SAFETY: the option value is a c_int of which the exact size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    Ok(result == 0)
}

/// Sends `bytes` with our own credentials attached. The kernel refuses credentials that are not ours.
///
/// # Errors
/// What sendmsg(2) gives; fewer bytes sent than given is an error too.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let own = UnixCredentials::new();
    let sent = sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmCredentials(&own)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Receives at most `buffer.len()` bytes without blocking, with what the kernel attached.
///
/// # Errors
/// `WouldBlock` when nothing is there yet; `InvalidData` when the ancillary data did not fit, which a peer
/// can bring about by passing descriptors; else what recvmsg(2) gives.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Vouched> {
    // u64 for the alignment that cmsghdr needs; room for both messages and then some.
    let mut control = [0_u64; 32];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control);
    // SAFETY: header points at one iovec over `buffer` and at `control`, both alive and of the lengths given.
    let received = unsafe {
        libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let mut vouched = Vouched { bytes, credentials: None, pidfd: None };
    let mut stray: Vec<OwnedFd> = Vec::new();
    // SAFETY: the kernel filled `control` and set msg_controllen; the CMSG macros walk within it. Payloads
    // are read unaligned and only where cmsg_len says that they are whole; descriptors in them are ours.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while !message.is_null() {
            let payload = (*message).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload == size_of::<libc::ucred>() => {
                    let sender: libc::ucred = data.cast::<libc::ucred>().read_unaligned();
                    vouched.credentials = Some(Credentials { pid: sender.pid, uid: sender.uid, gid: sender.gid });
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if payload == size_of::<RawFd>() => {
                    let fd: RawFd = data.cast::<RawFd>().read_unaligned();
                    // A negative number is an errno: the sender is gone already.
                    if fd >= 0 {
                        vouched.pidfd = Some(OwnedFd::from_raw_fd(fd));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..payload / size_of::<RawFd>() {
                        let fd: RawFd = data.cast::<RawFd>().add(index).read_unaligned();
                        stray.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                // Kinds that were not asked for carry no descriptor that must be closed.
                (_, _) => {}
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 || !stray.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message carries descriptors or too much beside it",
        ));
    }
    Ok(vouched)
}

/// Whether bytes wait on `socket` that nobody has read.
///
/// # Errors
/// What recv(2) gives, except that nothing is there.
pub fn has_more(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut byte = [0];
    match nix::sys::socket::recv(socket.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(bytes) => Ok(bytes > 0),
        Err(nix::errno::Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream};

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        attach(&ours, true).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_message_names_its_sender_even_without_being_asked_to() {
        for explicit in [true, false] {
            let (ours, mut theirs) = pair();
            if explicit {
                send(&theirs, b"hello").unwrap();
            } else {
                theirs.write_all(b"hello").unwrap();
            }
            let mut buffer = [0; 5];
            let got = receive(&ours, &mut buffer).unwrap();
            let sender = got.credentials.unwrap();
            assert_eq!((got.bytes, &buffer), (5, b"hello"));
            assert_eq!(sender.pid, i32::try_from(std::process::id()).unwrap());
            assert_eq!(sender.uid, nix::unistd::geteuid().as_raw());
        }
    }

    #[test]
    fn the_end_of_the_stream_comes_with_credentials_that_mean_nothing() {
        let (ours, theirs) = pair();
        drop(theirs);
        let got = receive(&ours, &mut [0; 16]).unwrap();
        assert_eq!(got.bytes, 0);
        // The trap: pid 0 and uid 0 look like root to a check that forgets the length.
        assert!(got.credentials.is_none_or(|sender| sender.pid == 0));
    }

    #[test]
    fn a_message_that_carries_descriptors_is_refused() {
        let (ours, theirs) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let fds = [file.as_raw_fd()];
        sendmsg::<()>(
            theirs.as_raw_fd(),
            &[IoSlice::new(b"0123456789abcdef")],
            &[ControlMessage::ScmRights(&fds)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        assert_eq!(receive(&ours, &mut [0; 16]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_was_not_read_is_seen() {
        let (ours, mut theirs) = pair();
        assert!(!has_more(ours.as_fd()).unwrap());
        theirs.write_all(b"x").unwrap();
        assert!(has_more(ours.as_fd()).unwrap());
    }
}
