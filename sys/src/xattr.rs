//! Extended attributes by descriptor: how POSIX ACLs are read and written without a path that could be
//! exchanged in between.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd as _},
};

/// The value of `name` on the open object, at most `most` bytes; `None` where it has none or the file system
/// has no such attributes. `ERANGE` for a longer one. The descriptor must not be an O_PATH one.
pub fn get(object: impl AsFd, name: &CStr, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; most];
    // SAFETY: the descriptor is open for as long as `object` is borrowed, `name` is NUL-terminated, and the
    // kernel writes at most `value.len()` bytes into the buffer, which outlives the call.
    let length =
        unsafe { libc::fgetxattr(object.as_fd().as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match usize::try_from(length) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
            e => Err(e),
        },
    }
}

/// The names of the attributes on the open object, at most `most` bytes of them; none where the file system has
/// no such attributes. `ERANGE` for more.
pub fn list(object: impl AsFd, most: usize) -> io::Result<Vec<CString>> {
    let mut names = vec![0u8; most];
    // SAFETY: the descriptor is open for as long as `object` is borrowed, and the kernel writes at most
    // `names.len()` bytes into the buffer, which outlives the call.
    let length = unsafe { libc::flistxattr(object.as_fd().as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    match usize::try_from(length) {
        Ok(length) => {
            let names = names.get(..length).unwrap_or_default();
            Ok(names
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty())
                .filter_map(|n| CString::new(n).ok())
                .collect())
        }
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
            e => Err(e),
        },
    }
}

/// Sets `name` on the open object.
pub fn set(object: impl AsFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `object` is borrowed, `name` is NUL-terminated, and the
    // kernel only reads `value.len()` bytes of the slice.
    let done =
        unsafe { libc::fsetxattr(object.as_fd().as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes `name` from the open object; it is no error where it has none.
pub fn remove(object: impl AsFd, name: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `object` is borrowed, and `name` is NUL-terminated.
    let done = unsafe { libc::fremovexattr(object.as_fd().as_raw_fd(), name.as_ptr()) };
    match io::Error::last_os_error() {
        _ if done == 0 => Ok(()),
        e if e.raw_os_error() == Some(libc::ENODATA) => Ok(()),
        e => Err(e),
    }
}
