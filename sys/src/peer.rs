//! Who is at the other end of a unix socket, by the kernel's word.
//!
//! For a connected socket this is the process that called connect(2) or listen(2); for a socketpair both
//! ends name the creator (unix(7), SO_PEERCRED), so only the side that did not create it learns anything.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Supplementary groups that Linux allows one process (NGROUPS_MAX).
pub const MAX_GROUPS: usize = 65_536;

/// A process as the kernel saw it when it connected or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id in our pid namespace; 0 = unknown there.
    pub pid: i32,
    /// Its effective user id.
    pub uid: u32,
    /// Its effective group id.
    pub gid: u32,
}

/// The peer's pid, uid and gid (SO_PEERCRED).
///
/// # Errors
/// What getsockopt(2) gives, for example for a descriptor that is no unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let peer = getsockopt(&socket, PeerCredentials)?;
    Ok(Credentials { pid: peer.pid(), uid: peer.uid(), gid: peer.gid() })
}

/// The peer's supplementary groups (SO_PEERGROUPS), sorted, each once.
///
/// # Errors
/// What getsockopt(2) gives; a peer with more than [`MAX_GROUPS`] groups is an error too.
pub fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let width = size_of::<libc::gid_t>();
    let mut room = 64;
    loop {
        let mut groups = vec![0 as libc::gid_t; room];
        let mut bytes = libc::socklen_t::try_from(room * width).map_err(io::Error::other)?;
        // SAFETY: `groups` is writable for `bytes` bytes, which is its exact length; the kernel writes at
        // most that much and updates `bytes`, and gid_t has no invalid bit patterns.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result == 0 {
            groups.truncate(bytes as usize / width);
            groups.sort_unstable();
            groups.dedup();
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: the list is longer; the kernel wrote the length that it needs.
        let needed = bytes as usize / width;
        if error.raw_os_error() != Some(libc::ERANGE) || needed <= room || needed > MAX_GROUPS {
            return Err(error);
        }
        room = needed;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_name_their_creator() {
        let (a, b) = UnixStream::pair().unwrap();
        for end in [&a, &b] {
            let peer = credentials(end).unwrap();
            assert_eq!(peer.pid, i32::try_from(std::process::id()).unwrap());
            assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        }
    }

    #[test]
    fn groups_are_those_of_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let mut own: Vec<_> = nix::unistd::getgroups().unwrap().into_iter().map(|gid| gid.as_raw()).collect();
        own.sort_unstable();
        own.dedup();
        assert_eq!(groups(&a).unwrap(), own);
    }

    #[test]
    fn what_is_no_socket_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(credentials(&file).is_err());
        assert!(groups(&file).is_err());
    }
}
