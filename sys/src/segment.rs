//! A page of System V shared memory that goes with the process that made it.

use std::{io, ptr};

use nix::{errno::Errno, libc};

/// A segment that others of the same IPC namespace can attach by its number. It is marked for removal from the
/// start, so that nothing of it stays, whatever way this process ends (shmctl(2): Linux lets it be attached all the
/// same).
#[derive(Debug)]
pub struct Segment {
    id: i32,
    at: *mut libc::c_void,
}

// SAFETY: the address is never read or written, only given back to the kernel.
unsafe impl Send for Segment {}
// SAFETY: as above; nothing of it changes while it is there.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes one of one page, for this account only.
    ///
    /// # Errors
    /// The kernel has none, or no room for one.
    pub fn new() -> io::Result<Self> {
        const PAGE: usize = 4096;
        // SAFETY: takes numbers.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, PAGE, libc::IPC_CREAT | 0o600) };
        if id < 0 {
            return Err(Errno::last().into());
        }
        // SAFETY: the kernel chooses a place where nothing is mapped, and nothing is read or written there.
        let at = unsafe { libc::shmat(id, ptr::null(), libc::SHM_RDONLY) };
        let attached = if at.addr() == usize::MAX { Err(Errno::last()) } else { Ok(()) };
        // SAFETY: this command reads and writes no structure.
        let removed = unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        attached?;
        let segment = Self { id, at };
        if removed == 0 { Ok(segment) } else { Err(Errno::last().into()) }
    }

    /// Its number.
    pub const fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the address is what shmat gave, and nothing refers to it.
        unsafe { libc::shmdt(self.at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_can_be_attached_while_it_is_there_and_not_after() {
        let segment = Segment::new().unwrap();
        // SAFETY: as in `new`; it ends with this process.
        let attach = |id| unsafe { libc::shmat(id, ptr::null(), libc::SHM_RDONLY) };
        let at = attach(segment.id());
        assert_ne!(at.addr(), usize::MAX);
        // SAFETY: the address is what shmat gave.
        unsafe { libc::shmdt(at) };
        let id = segment.id();
        drop(segment);
        assert_eq!(attach(id).addr(), usize::MAX);
    }
}
