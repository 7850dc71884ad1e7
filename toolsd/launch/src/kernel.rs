//! The few calls on descriptors whose numbers are fixed by contract with toolsd.

use std::os::fd::{FromRawFd, OwnedFd};

use nix::{errno::Errno, libc};

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: i32) -> Result<(), Errno> {
    // SAFETY: this program owns no descriptor of those numbers through any Rust object; what is there was
    // inherited by mistake.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, libc::c_uint::MAX, 0) };
    if done == 0 {
        return Ok(());
    }
    // Before Linux 5.9 there is no close_range; the floor is 5.10, so this is a filter's doing.
    for number in first..MOST_DESCRIPTORS {
        close(number);
    }
    Ok(())
}

/// Descriptor numbers that are tried one by one without close_range.
const MOST_DESCRIPTORS: i32 = 4096;

/// Closes one descriptor.
pub(crate) fn close(number: i32) {
    // SAFETY: the numbers of the contract belong to nothing else in this program.
    unsafe { libc::close(number) };
}

/// Reads `number` to its end, at most `most` bytes.
pub(crate) fn read_whole(number: i32, most: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 16 * 1024];
    loop {
        // SAFETY: the pointer and the length describe `chunk`, which lives through the call.
        let got = unsafe { libc::pread(number, chunk.as_mut_ptr().cast(), chunk.len(), bytes.len() as libc::off_t) };
        let got = usize::try_from(got).map_err(|_| Errno::last())?;
        let Some(part) = chunk.get(..got).filter(|part| !part.is_empty()) else { return Ok(bytes) };
        bytes.extend_from_slice(part);
        if bytes.len() > most {
            return Err(Errno::E2BIG);
        }
    }
}

/// Reads one byte; `None` at the end or on an error.
pub(crate) fn read_byte(number: i32) -> Option<u8> {
    let mut byte = 0u8;
    loop {
        // SAFETY: the pointer is to one byte that lives through the call.
        match unsafe { libc::read(number, (&raw mut byte).cast(), 1) } {
            1 => return Some(byte),
            -1 if Errno::last() == Errno::EINTR => {}
            _ => return None,
        }
    }
}

/// Writes a few bytes whole; a pipe, or a file of the kernel's, takes them at once.
pub(crate) fn write_all(number: i32, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the pointer and the length describe `bytes`, which lives through the call.
    match unsafe { libc::write(number, bytes.as_ptr().cast(), bytes.len()) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

/// Waits for any child; the raw status, since nix knows no status with a real-time signal in it. `None` where
/// `WNOHANG` is among `flags` and nothing has happened.
pub(crate) fn wait(flags: i32) -> Result<Option<(i32, i32)>, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to an int that lives through the call.
        match unsafe { libc::waitpid(-1, &raw mut status, flags | libc::__WALL) } {
            0 => return Ok(None),
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Err(Errno::last()),
            thread => return Ok(Some((thread, status))),
        }
    }
}

/// A descriptor of a child that is not reaped; readable once all its threads have ended (pidfd_open(2), Linux 5.3).
pub(crate) fn watch(child: i32) -> Option<OwnedFd> {
    // SAFETY: takes two integers; a result that is not negative is a descriptor of ours alone.
    unsafe {
        match i32::try_from(libc::syscall(libc::SYS_pidfd_open, child, 0u32)) {
            Ok(number) if number >= 0 => Some(OwnedFd::from_raw_fd(number)),
            _ => None,
        }
    }
}
