//! The canary: tries what must be denied, from where a command would.

use std::{ffi::CStr, io, net::TcpStream, os::unix::ffi::OsStrExt, os::unix::net::UnixStream};

use nix::{errno::Errno, libc};
use salaam_launch::{plan::Canary, report::Denials};

/// Tries everything and says what came of it.
pub(crate) fn sing(canary: &Canary) -> Denials {
    Denials {
        read: errno(std::fs::File::open(path(&canary.read))),
        write: errno(std::fs::OpenOptions::new().create_new(true).write(true).open(path(&canary.write))),
        connect: errno(TcpStream::connect(("127.0.0.1", canary.tcp_port))),
        abstract_connect: errno(connect_abstract(&canary.abstract_name)),
        user_namespace: new_user_namespace(),
    }
}

fn path(path: &CStr) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(path.to_bytes())
}

fn connect_abstract(name: &[u8]) -> io::Result<UnixStream> {
    use std::os::linux::net::SocketAddrExt;
    UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)
}

fn new_user_namespace() -> i32 {
    // SAFETY: unshare takes an integer; this process has one thread and exits right after.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 { 0 } else { Errno::last() as i32 }
}

fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}
