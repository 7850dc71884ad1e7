//! What is kept of a stream of output: its first bytes and its last, by the same rule on both sides of the bridge.

/// The end of a stream that is kept in memory until the stream ends, of each stream under way.
const MOST_TAIL_BYTES: u64 = 1 << 20;

/// How much is kept of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// So many of its first bytes.
    pub head: u64,
    /// So many of its last, where it is longer.
    pub tail: u64,
}

impl Kept {
    /// What `cap` bytes are spent on: the first, and of the last up to 1 MiB or half of `cap`.
    pub const fn of(cap: u64) -> Self {
        let half = cap / 2;
        let tail = if half < MOST_TAIL_BYTES { half } else { MOST_TAIL_BYTES };
        Self { head: cap - tail, tail }
    }

    /// Of a stream that is no longer than this, everything is kept.
    pub const fn whole(self) -> u64 {
        self.head + self.tail
    }

    /// An empty ring for the last bytes.
    pub fn tail(self) -> Tail {
        // At most 1 MiB.
        Tail::new(usize::try_from(self.tail).unwrap_or(0))
    }
}

/// The last bytes of a stream, in a ring.
#[derive(Debug)]
pub struct Tail {
    ring: Vec<u8>,
    most: usize,
    /// Where the oldest byte is, once the ring is full.
    oldest: usize,
}

impl Tail {
    const fn new(most: usize) -> Self {
        Self { ring: Vec::new(), most, oldest: 0 }
    }

    /// How many bytes it holds.
    pub const fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Takes the next bytes; the oldest make room.
    pub fn push(&mut self, bytes: &[u8]) {
        let (_, bytes) = bytes.split_at_checked(bytes.len().saturating_sub(self.most)).unwrap_or((&[], bytes));
        let growth = bytes.len().min(self.most - self.ring.len());
        let (grow, turn) = bytes.split_at_checked(growth).unwrap_or((bytes, &[]));
        self.ring.extend_from_slice(grow);
        self.overwrite(turn);
    }

    /// Replaces the oldest bytes of a full ring.
    fn overwrite(&mut self, bytes: &[u8]) {
        let to_end = self.ring.len().saturating_sub(self.oldest);
        let (first, second) = bytes.split_at_checked(to_end).unwrap_or((bytes, &[]));
        copy_at(&mut self.ring, self.oldest, first);
        copy_at(&mut self.ring, 0, second);
        if self.most > 0 {
            self.oldest = (self.oldest + bytes.len()) % self.most;
        }
    }

    /// What it holds, older part first.
    pub fn take(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut newer = std::mem::take(&mut self.ring);
        let older = newer.split_off(self.oldest.min(newer.len()));
        self.oldest = 0;
        (older, newer)
    }
}

fn copy_at(ring: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = ring.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_spent_on_the_first_bytes_and_at_most_a_mebibyte_of_the_last() {
        assert_eq!(Kept::of(64 << 20), Kept { head: 63 << 20, tail: 1 << 20 });
        assert_eq!(Kept::of(9), Kept { head: 5, tail: 4 });
        assert_eq!(Kept::of(0), Kept { head: 0, tail: 0 });
        assert_eq!(Kept::of(9).whole(), 9);
    }

    #[test]
    fn a_tail_holds_the_last_bytes_however_they_come() {
        let all: Vec<u8> = (0..=255).collect();
        for most in [1, 7, 64] {
            for piece in [1, 3, 7, 64, 100, 256] {
                let mut tail = Tail::new(most);
                all.chunks(piece).for_each(|bytes| tail.push(bytes));
                let (older, newer) = tail.take();
                assert_eq!([older, newer].concat(), all[all.len() - most..], "{most} of pieces of {piece}");
            }
        }
        let mut none = Tail::new(0);
        none.push(b"x");
        assert!(none.is_empty());
    }
}
