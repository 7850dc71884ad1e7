//! Descriptors that came from whoever started us.

use std::{
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering},
};

/// Closes every descriptor above 2 (close_range(2), Linux 5.9). Only for the first lines of `main`: it
/// refuses once a second thread exists, because then a descriptor may already have an owner.
///
/// # Errors
/// A second thread, or what close_range(2) gives.
pub fn close_inherited() -> io::Result<()> {
    // Counting needs a descriptor of its own; it is closed again when this statement ends.
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("descriptors may be closed only before a second thread exists"));
    }
    // SAFETY: three integers. The process has one thread and is in the first lines of `main`, as the contract
    // above demands: no descriptor above 2 has an owner whose later close could hit a stranger's.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor above 2 but for those listed. The rules of [`close_inherited`] hold.
///
/// # Errors
/// A second thread, a number below 3 among `kept`, or what close_range(2) gives.
pub fn close_inherited_but(kept: &[RawFd]) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("descriptors may be closed only before a second thread exists"));
    }
    let mut kept: Vec<u32> = kept.iter().map(|number| u32::try_from(*number).unwrap_or(0)).collect();
    kept.sort_unstable();
    let mut first = FIRST_INHERITED;
    for number in kept.into_iter().chain([u32::MAX]) {
        if number < first {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // The last one, u32::MAX, is no descriptor; it stands for the end and is closed with the rest.
        let last = if number == u32::MAX { number } else { number - 1 };
        if last >= first {
            // SAFETY: three integers, and as in `close_inherited`: one thread, in the first lines of `main`.
            let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = number.saturating_add(1);
    }
    Ok(())
}

/// Takes ownership of a descriptor that the parent placed at `number`, between 3 and 63. Each can be taken
/// once.
///
/// # Errors
/// EBADF when nothing is open there, when it was taken before, or when the number is out of range.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    let closed = || io::Error::from_raw_os_error(libc::EBADF);
    let index = u32::try_from(number).ok().filter(|index| (FIRST_INHERITED..u64::BITS).contains(index));
    let bit = 1_u64 << index.ok_or_else(closed)?;
    // SAFETY: F_GETFD takes integers only.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if TAKEN.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return Err(closed());
    }
    // SAFETY: it is open, and the mark above gives it away once. That it was inherited, and so has no other
    // owner here, is the contract with the parent; programs call this in the first lines of `main`.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// 0, 1 and 2 belong to the standard library.
const FIRST_INHERITED: u32 = 3;

/// One bit a descriptor that was taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_with_threads_keeps_its_descriptors() {
        // The test harness has threads, so this is refused and closes nothing.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || stopped.recv());
        assert!(super::close_inherited().is_err());
        assert!(super::close_inherited_but(&[3]).is_err());
        drop(stop);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn what_the_parent_placed_is_taken_once() {
        use std::os::fd::{AsFd as _, AsRawFd as _, IntoRawFd as _};
        let file = std::fs::File::open("/dev/null").unwrap();
        let placed = crate::spawn::duplicate_above(file.as_fd(), 40).unwrap().into_raw_fd();
        let taken = super::take_inherited(placed).unwrap();
        assert_eq!(taken.as_raw_fd(), placed);
        assert!(super::take_inherited(placed).is_err());
        for never in [-1, 0, 2, 62, 64, i32::MAX] {
            assert!(super::take_inherited(never).is_err(), "{never}");
        }
    }
}
