//! What nix lacks about files and pipes: handles, waiting bytes, and the clock that stamps changes.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// The file handle of what `file` is open on (name_to_handle_at(2)): its type and bytes, in hex. `None` where
/// the file system has none.
pub fn handle(file: impl AsFd) -> io::Result<Option<String>> {
    /// MAX_HANDLE_SZ of the kernel.
    const MOST: u32 = 128;
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; MOST as usize],
    }
    let mut handle = Handle { bytes: MOST, kind: 0, handle: [0; MOST as usize] };
    let mut mount = 0i32;
    // SAFETY: `handle` has the layout of struct file_handle with room for `bytes` bytes, `mount` is an int,
    // the path is empty and terminated; all live through the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if done != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EOVERFLOW | libc::ENOSYS | libc::EPERM) => Ok(None),
            _ => Err(error),
        };
    }
    let length = usize::try_from(handle.bytes).unwrap_or(0);
    let bytes = handle.kind.to_be_bytes().into_iter().chain(handle.handle.into_iter().take(length));
    Ok(Some(bytes.map(|byte| format!("{byte:02x}")).collect()))
}

/// What `file` is open on, so that it is known again after a restart of the machine: its inode and, where the file system
/// has them, its handle, since numbers are used again. Not its device, whose number changes with a restart.
pub fn identity(file: impl AsFd) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::File::from(file.as_fd().try_clone_to_owned()?).metadata()?.ino();
    Ok(format!("{inode}:{}", handle(file)?.unwrap_or_default()))
}

/// How many bytes wait in a pipe.
pub fn waiting_bytes(pipe: impl AsFd) -> io::Result<usize> {
    let mut waiting: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which lives through the call.
    match unsafe { libc::ioctl(pipe.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut waiting) } {
        0 => Ok(usize::try_from(waiting).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The clock from which file systems take change times: seconds and nanoseconds since the epoch. It lags the
/// precise clock by up to a tick, so it and no other is compared with them.
pub fn change_clock() -> (i64, i64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a structure of this frame; this clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    (now.tv_sec, now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn a_handle_names_one_file() {
        let root = File::open("/").unwrap();
        let other = File::open("/usr").unwrap();
        let (first, second) = (handle(&root).unwrap(), handle(&other).unwrap());
        assert_eq!(first, handle(&root).unwrap());
        assert!(first.is_none() || first != second);
    }

    #[test]
    fn waiting_bytes_are_those_not_read_yet() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"12345").unwrap();
        assert_eq!(waiting_bytes(&reader).unwrap(), 5);
    }

    #[test]
    fn a_change_is_never_stamped_before_the_change_clock() {
        let path = std::env::temp_dir().join(format!("salaam-sys-clock-{}", std::process::id()));
        for _ in 0..200 {
            let before = change_clock();
            let file = File::create(&path).unwrap();
            let stamp = file.metadata().unwrap();
            assert!((stamp.ctime(), stamp.ctime_nsec()) >= before);
        }
        std::fs::remove_file(path).unwrap();
    }
}
