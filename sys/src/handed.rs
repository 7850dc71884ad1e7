//! Descriptors handed over a unix socket, with bytes that say what they are (SCM_RIGHTS, unix(7)).
//!
//! nix gives received descriptors as bare numbers, which nobody closes when a check fails; hence recvmsg(2) here.

use std::{
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// What the kernel takes at the most in one message (`SCM_MAX_FD`, unix(7)).
pub const MOST: usize = 253;

/// Sends `fd` with `tag`.
///
/// # Errors
/// What sendmsg(2) gives.
pub fn send(socket: impl AsFd, tag: u8, fd: impl AsFd) -> io::Result<()> {
    send_all(socket, &[tag], &[fd.as_fd()])
}

/// Sends `bytes` with `fds`, at most [`MOST`], in one message.
///
/// # Errors
/// What sendmsg(2) gives; fewer bytes sent than given is an error too.
pub fn send_all(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    // No message at all is something else than one of no descriptors.
    let rights = if numbers.is_empty() { &[][..] } else { &rights[..] };
    let sent = sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Waits for one byte and the one descriptor with it, which is close-on-exec.
///
/// # Errors
/// `UnexpectedEof` at the end of the stream, `InvalidData` where there is not exactly one descriptor (whatever
/// came is closed), else what recvmsg(2) gives.
pub fn receive(socket: impl AsFd) -> io::Result<(u8, OwnedFd)> {
    let mut tag = [0];
    let (received, mut descriptors) = receive_all(socket, &mut tag)?;
    if received == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    match (descriptors.pop(), descriptors.is_empty(), tag) {
        (Some(descriptor), true, [tag]) => Ok((tag, descriptor)),
        (Some(_) | None, _, _) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the message does not carry exactly one descriptor"))
        }
    }
}

/// Waits for bytes, at most as many as `buffer` holds, and whatever descriptors came with them; they are close-on-exec.
/// No bytes = the end of the stream.
///
/// # Errors
/// `InvalidData` where more came beside the bytes than [`MOST`] descriptors (whatever came is closed), else what
/// recvmsg(2) gives; `WouldBlock` where the socket's own time limit has passed.
pub fn receive_all(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    // u64 for the alignment that cmsghdr needs; room for all that one message can carry.
    let mut control = [0_u64; 2 + MOST.div_ceil(2)];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control) as _;
    let received = loop {
        // SAFETY: header points at one iovec over `buffer` and at `control`, both alive and of the lengths given.
        let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(received) {
            Ok(received) => break received,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    // SAFETY: the kernel filled `control` and set msg_controllen; the CMSG macros walk within it. Descriptors are
    // read unaligned, as many as cmsg_len says, and are ours alone.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while !message.is_null() {
            if ((*message).cmsg_level, (*message).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let payload = ((*message).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(message);
                for index in 0..payload / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.cast::<RawFd>().add(index).read_unaligned()));
                }
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message carries too much beside its bytes"));
    }
    Ok((received, descriptors))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_tag_and_is_the_same_file() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&ours, b'S', &writer).unwrap();
        drop(writer);
        let (tag, handed) = receive(&theirs).unwrap();
        File::from(handed).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((tag, text.as_str()), (b'S', "through"));
    }

    #[test]
    fn none_two_and_the_end_of_the_stream_are_errors() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        ours.write_all(b"S").unwrap();
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for number in [2, 40] {
            let fds = vec![file.as_raw_fd(); number];
            let rights = [ControlMessage::ScmRights(&fds)];
            sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(b"S")], &rights, MsgFlags::empty(), None).unwrap();
            assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData, "{number}");
        }
        let fds = vec![file.as_fd(); MOST];
        send_all(&ours, b"SALAAM", &fds).unwrap();
        let mut buffer = [0; 16];
        let (bytes, arrived) = receive_all(&theirs, &mut buffer).unwrap();
        assert_eq!((bytes, arrived.len()), (6, MOST));
        assert!(send_all(&ours, b"SALAAM", &vec![file.as_fd(); MOST + 1]).is_err());
        send_all(&ours, b"SALAAM", &[]).unwrap();
        assert_eq!(receive_all(&theirs, &mut buffer).unwrap().1.len(), 0);
        drop(ours);
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
