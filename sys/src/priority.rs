//! How much of the processors a thread asks for.

use std::io;

use libc::{PRIO_PROCESS, getpriority, setpriority};

/// Lowers the calling thread, and no other of its process, to a niceness; one that is lower already stays
/// (setpriority(2), "C library/kernel differences": on Linux the niceness is a thread's own).
///
/// Raising it again needs a privilege.
pub fn lower_own(niceness: i32) -> io::Result<()> {
    // SAFETY: both calls take integers only; 0 names the calling thread.
    let done = unsafe { setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0).max(niceness)) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        // SAFETY: as above.
        unsafe { getpriority(PRIO_PROCESS, 0) }
    }

    #[test]
    fn a_thread_lowers_itself_alone_and_never_raises_itself() {
        let before = niceness();
        let lowered = std::thread::spawn(move || {
            lower_own(before + 3).unwrap();
            lower_own(before).unwrap();
            niceness()
        });
        assert_eq!(lowered.join().unwrap(), before + 3);
        assert_eq!(niceness(), before);
    }
}
