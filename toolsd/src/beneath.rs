//! Looking at what lies beneath a root: by descriptor, through no link, over no mount.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat},
    libc,
    sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat},
};

/// Opens `path`, relative to `root`; the empty path is the root itself.
pub fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_CLOEXEC;
    if path.as_os_str().is_empty() {
        return openat(root, c".", flags, Mode::empty());
    }
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    openat2(root, path, how)
}

/// The same, also over a mount: for what is then shown read-only as a whole.
pub fn open_over_mounts(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(root, path, how)
}

/// Opens the directory in which `path` lies, as a place, and gives the last name.
pub fn parent<'a>(root: BorrowedFd<'_>, path: &'a Path) -> nix::Result<(OwnedFd, &'a OsStr)> {
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    let above = path.parent().unwrap_or(Path::new(""));
    Ok((open(root, above, OFlag::O_PATH | OFlag::O_DIRECTORY)?, name))
}

/// Looks up the last name of `path` in the directory in which it lies. What lies in the root itself, as most that is
/// protected does, is looked up there and not in the root opened once more: every command waits for it.
fn in_parent<T>(
    root: BorrowedFd<'_>,
    path: &Path,
    look: impl FnOnce(BorrowedFd<'_>, &OsStr) -> nix::Result<T>,
) -> nix::Result<T> {
    let mut parts = path.components();
    if let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) {
        return look(root, name);
    }
    let (above, name) = parent(root, path)?;
    look(above.as_fd(), name)
}

/// What is at `path` itself, a link as a link; `None` where nothing is, or the way there is none.
pub fn stat(root: BorrowedFd<'_>, path: &Path) -> nix::Result<Option<FileStat>> {
    let look = |above: BorrowedFd<'_>, name: &OsStr| fstatat(above, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    match in_parent(root, path, look) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
        Err(other) => Err(other),
    }
}

/// The content of a regular file of at most `most` bytes; `None` for anything else.
pub fn content(root: BorrowedFd<'_>, path: &Path, most: u64) -> nix::Result<Option<Vec<u8>>> {
    // Not blocking: a FIFO waits for nobody.
    let opened = open(root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY);
    let file = match opened {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::ENXIO) => return Ok(None),
        Err(other) => return Err(other),
    };
    if kind(&fstat(&file)?) != libc::S_IFREG {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    match File::from(file).take(most + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 <= most => Ok(Some(bytes)),
        Ok(_) => Ok(None),
        Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// Where a link at `path` leads, as written; `None` where there is none.
pub fn link(root: BorrowedFd<'_>, path: &Path) -> nix::Result<Option<Vec<u8>>> {
    match in_parent(root, path, |above, name| readlinkat(above, name)) {
        Ok(target) => Ok(Some(target.as_bytes().to_vec())),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EINVAL) => Ok(None),
        Err(other) => Err(other),
    }
}

/// The file type bits.
pub fn kind(stat: &FileStat) -> libc::mode_t {
    stat.st_mode & libc::S_IFMT
}

/// fchmod(2) refuses a descriptor that is only a place; its name under /proc is that very file.
pub fn set_mode(place: &OwnedFd, mode: libc::mode_t) -> nix::Result<()> {
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    fchmodat(AT_FDCWD, name.as_str(), Mode::from_bits_truncate(mode & 0o7777), FchmodatFlags::FollowSymlink)
}
