//! The names in a directory, in the order of their bytes, a page at a time.
//!
//! Promise: memory is bounded by the page, not by the directory. The largest names of a page are dropped as
//! smaller ones are found, so a directory of any size is listed in order without being held.

use std::{collections::BinaryHeap, ops::Bound, time::Instant};

use nix::dir::Dir;

use crate::{refusal::Refusal, root::Directory};

/// Names between two looks at the clock.
const BETWEEN_LOOKS: usize = 4096;

/// The first names of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// In order.
    pub(crate) names: Vec<Vec<u8>>,
    /// There are names behind the last one.
    pub(crate) more: bool,
}

/// The first `most` names behind `from`; `until` is when to give up.
pub(crate) fn names(directory: &Directory, from: Bound<&[u8]>, most: usize, until: Instant) -> Result<Names, Refusal> {
    let mut entries = Dir::from_fd(directory.reopen()?).map_err(Refusal::kernel("reading the directory"))?;
    let mut first = BinaryHeap::<Vec<u8>>::new();
    let mut more = false;
    for (number, entry) in entries.iter().enumerate() {
        let entry = entry.map_err(Refusal::kernel("reading the directory"))?;
        let name = entry.file_name().to_bytes();
        if number % BETWEEN_LOOKS == BETWEEN_LOOKS - 1 && Instant::now() >= until {
            return Err(Refusal::Slow);
        }
        let before = match from {
            Bound::Unbounded => false,
            Bound::Excluded(from) => name <= from,
            Bound::Included(from) => name < from,
        };
        if before || name == b"." || name == b".." {
            continue;
        }
        if first.len() < most {
            first.push(name.to_vec());
        } else {
            more = true;
            if let Some(mut last) = first.peek_mut()
                && name < last.as_slice()
            {
                last.clear();
                last.extend_from_slice(name);
            }
        }
    }
    Ok(Names { names: first.into_sorted_vec(), more })
}
