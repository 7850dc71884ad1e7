//! Descriptors that came from whoever started us.

use std::{fs, io};

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

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_with_threads_keeps_its_descriptors() {
        // The test harness has threads, so this is refused and closes nothing.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || stopped.recv());
        assert!(super::close_inherited().is_err());
        drop(stop);
        assert!(other.join().unwrap().is_err());
    }
}
