//! The operator socket on disk: made with its mode from the start, never in place of something that is not a
//! dead socket of ours.
//!
//! Invariant: the caller holds the state lock, so no second service of this instance is starting.

use std::{
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open},
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen as start_listening, socket,
        },
        stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmod, fchmodat, fstat, fstatat},
    },
    unistd::{Gid, UnlinkatFlags, fchownat, geteuid, unlinkat},
};

use super::limits::{BACKLOG, SUN_PATH_BYTES};

/// The socket's name in the runtime directory.
pub const SOCKET_NAME: &str = "operator.sock";

/// Why there is no operator socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel would cut or refuse the name.
    #[error(
        "the socket path {path} has {length} bytes, and the system takes {most}; set SALAAM_RUNTIME_DIR to a shorter directory"
    )]
    PathTooLong {
        /// The whole path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The most, without the terminator.
        most: usize,
    },
    /// The path has a NUL byte.
    #[error("the socket path {0:?} holds a NUL byte; set SALAAM_RUNTIME_DIR to another directory")]
    PathNul(PathBuf),
    /// The runtime directory is not there, is a link, or cannot be opened.
    #[error("cannot open the runtime directory {path}: {source}; make it with `install -d -m {mode:04o} {path}`")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The mode that it needs.
        mode: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Others could reach into the runtime directory, or operators could not.
    #[error(
        "the runtime directory {path} is {owner}:{group} {found:04o} and must be {want_owner}:{want_group} {want:04o}; run `chown {want_owner}:{want_group} {path} && chmod {want:04o} {path}`"
    )]
    DirectoryMode {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its group.
        group: u32,
        /// Its mode.
        found: u32,
        /// The owner that it needs.
        want_owner: u32,
        /// The group that it needs; only matters for operators.
        want_group: u32,
        /// The mode that it needs.
        want: u32,
    },
    /// Something that is no socket of ours has the name.
    #[error("{path} is {found}, not a socket of this service; look at it and move it away")]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// Somebody answers on it.
    #[error("somebody listens on {path} already; stop that service first (`salaam service stop`)")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The socket that was made is not as it was asked for.
    #[error(
        "{path} came out with mode {found:04o} instead of {want:04o}; remove default ACLs from the runtime directory"
    )]
    Mode {
        /// The path.
        path: PathBuf,
        /// Its mode.
        found: u32,
        /// The mode that was asked for.
        want: u32,
    },
    /// A step failed.
    #[error("cannot {step} {path}: {source}")]
    Step {
        /// What was attempted.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The bound socket. Dropping it removes the file, if it is still this one.
#[derive(Debug)]
pub struct Listening {
    pub(super) listener: UnixListener,
    pub(super) file: File,
    pub(super) operators_gid: Option<u32>,
}

/// Makes RUNTIME/operator.sock: 0600, or 0660 with the operators group.
///
/// # Errors
/// Nothing is bound, and nothing that was there is changed, unless it was a dead socket of ours.
pub fn listen(runtime: &Path, operators_gid: Option<u32>) -> Result<Listening, SocketError> {
    let path = runtime.join(SOCKET_NAME);
    let address = address(&path)?;
    let directory = directory(runtime, operators_gid)?;
    clear(&directory, &path)?;
    let step = |step| {
        let path = path.clone();
        move |source: Errno| SocketError::Step { step, path, source: source.into() }
    };
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
        .map_err(step("make a socket for"))?;
    // The file takes the mode of the socket's inode less the umask (unix_bind in the kernel). So it is 0600 or
    // less from its first moment, without touching the umask that all threads share.
    fchmod(&fd, OWNER_ONLY).map_err(step("set the mode of the socket for"))?;
    bind(fd.as_raw_fd(), &address).map_err(step("bind"))?;
    let file = File::of(directory, path.clone())?;
    if let Some(gid) = operators_gid {
        // The group first, its rights after: nobody else's group ever has them.
        fchownat(&file.directory, SOCKET_NAME, None, Some(Gid::from_raw(gid)), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(step("give the operators group"))?;
        // Only we can put a link here: the directory is ours alone, as checked above.
        fchmodat(&file.directory, SOCKET_NAME, OWNER_AND_GROUP, FchmodatFlags::FollowSymlink)
            .map_err(step("set the mode of"))?;
    }
    file.check(if operators_gid.is_some() { OWNER_AND_GROUP } else { OWNER_ONLY })?;
    let backlog = Backlog::new(BACKLOG).map_err(step("listen on"))?;
    start_listening(&fd, backlog).map_err(step("listen on"))?;
    Ok(Listening { listener: UnixListener::from(fd), file, operators_gid })
}

impl Listening {
    /// Where clients find it.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// The socket's place on disk and which inode is ours.
#[derive(Debug)]
pub(super) struct File {
    directory: OwnedFd,
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl File {
    fn of(directory: OwnedFd, path: PathBuf) -> Result<Self, SocketError> {
        match look(&directory) {
            Ok(stat) => Ok(Self { directory, path, device: stat.st_dev, inode: stat.st_ino }),
            Err(source) => Err(SocketError::Step { step: "look at", path, source: source.into() }),
        }
    }

    fn check(&self, want: Mode) -> Result<(), SocketError> {
        let stat = look(&self.directory).map_err(|source| SocketError::Step {
            step: "look at",
            path: self.path.clone(),
            source: source.into(),
        })?;
        let found = stat.st_mode & 0o7777;
        if kind(&stat) != SFlag::S_IFSOCK || found != want.bits() {
            return Err(SocketError::Mode { path: self.path.clone(), found, want: want.bits() });
        }
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let ours = look(&self.directory).is_ok_and(|stat| stat.st_dev == self.device && stat.st_ino == self.inode);
        if ours && let Err(error) = unlinkat(&self.directory, SOCKET_NAME, UnlinkatFlags::NoRemoveDir) {
            tracing::warn!(path = %self.path.display(), %error, "the operator socket could not be removed");
        }
    }
}

fn address(path: &Path) -> Result<UnixAddr, SocketError> {
    let length = path.as_os_str().len();
    let most = SUN_PATH_BYTES - 1;
    if length > most {
        return Err(SocketError::PathTooLong { path: path.into(), length, most });
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(SocketError::PathNul(path.into()));
    }
    UnixAddr::new(path).map_err(|source| SocketError::Step {
        step: "name a socket at",
        path: path.into(),
        source: source.into(),
    })
}

/// Opens the runtime directory, which must be ours, and closed to all but operators.
fn directory(path: &Path, operators_gid: Option<u32>) -> Result<OwnedFd, SocketError> {
    let want = if operators_gid.is_some() { 0o710 } else { 0o700 };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let refuse = |source| SocketError::Directory { path: path.into(), mode: want, source };
    let directory = open(path, flags, Mode::empty()).map_err(refuse)?;
    let stat = fstat(&directory).map_err(refuse)?;
    let found = stat.st_mode & 0o7777;
    let want_owner = geteuid().as_raw();
    let want_group = operators_gid.unwrap_or(stat.st_gid);
    if stat.st_uid != want_owner || stat.st_gid != want_group || found != want {
        return Err(SocketError::DirectoryMode {
            path: path.into(),
            owner: stat.st_uid,
            group: stat.st_gid,
            found,
            want_owner,
            want_group,
            want,
        });
    }
    Ok(directory)
}

/// Removes what a dead service left: a socket, ours, on which nobody listens. Anything else stays and refuses.
fn clear(directory: &OwnedFd, path: &Path) -> Result<(), SocketError> {
    let stat = match look(directory) {
        Ok(stat) => stat,
        Err(Errno::ENOENT) => return Ok(()),
        Err(source) => return Err(SocketError::Step { step: "look at", path: path.into(), source: source.into() }),
    };
    let us = geteuid().as_raw();
    if kind(&stat) != SFlag::S_IFSOCK || stat.st_uid != us {
        return Err(SocketError::Occupied { path: path.into(), found: describe(&stat) });
    }
    match answers(path) {
        Ok(()) => return Err(SocketError::InUse { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // A full backlog (EAGAIN) is a living listener too.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(SocketError::InUse { path: path.into() });
        }
        Err(source) => return Err(SocketError::Step { step: "find out who listens on", path: path.into(), source }),
    }
    unlinkat(directory, SOCKET_NAME, UnlinkatFlags::NoRemoveDir).map_err(|source| SocketError::Step {
        step: "remove the dead socket",
        path: path.into(),
        source: source.into(),
    })
}

/// Connects without waiting: a listener that accepts nothing must not hang us.
fn answers(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?)
}

fn look(directory: &OwnedFd) -> nix::Result<FileStat> {
    fstatat(directory, SOCKET_NAME, AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn describe(stat: &FileStat) -> String {
    let kind = match kind(stat) {
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a FIFO",
        _ => "a device",
    };
    format!("{kind} of uid {}", stat.st_uid)
}

const OWNER_ONLY: Mode = Mode::from_bits_truncate(0o600);
const OWNER_AND_GROUP: Mode = Mode::from_bits_truncate(0o660);
