//! The bytes of an open file in order, a chunk at a time, with an end: what grows, shrinks or is endless while it
//! is read gives fewer bytes or [`Refusal::Slow`], never a hang, and never a signal (nothing is mapped).

use std::{os::fd::AsFd, time::Instant};

use nix::{errno::Errno, unistd::read};

use crate::refusal::Refusal;

/// Read at once.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Fills `buffer` from where the last read ended; fewer bytes only at the end of the file.
pub(crate) fn fill(file: impl AsFd, buffer: &mut [u8], until: Instant) -> Result<usize, Refusal> {
    let mut filled = 0;
    while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
        if Instant::now() >= until {
            return Err(Refusal::Slow);
        }
        match read(&file, room) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Refusal::Kernel { step: "reading it", errno }),
        }
    }
    Ok(filled)
}
