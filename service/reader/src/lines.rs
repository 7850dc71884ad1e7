//! Lines of a file by number: bytes as they are, long lines cut and said, the number of all lines where the end
//! was reached.

use std::time::Instant;

use salaam_core::reader::{Line, Lines, MAX_LINE_BYTES, MAX_LINES, MAX_PAGE_BYTES};

use crate::{
    chunks::{CHUNK_BYTES, fill},
    limits::{MAX_SCAN_BYTES, READ_TIME},
    refusal::Refusal,
    root::{Links, Root},
};

/// At most `most` lines of the file at `path`, from line `from` on (the first is 1; 0 is the same).
///
/// # Errors
/// What is no regular file that may be read; a file in which the lines lie too far down.
pub fn read(root: &Root<'_>, path: &[u8], from: u64, most: u64) -> Result<Lines, Refusal> {
    let until = Instant::now() + READ_TIME;
    let file = root.file(path, Links::Inside)?;
    let mut taken = Taken::new(from.max(1), most.clamp(1, MAX_LINES));
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut scanned = 0u64;
    let ended = loop {
        let got = match fill(&file.fd, &mut chunk, until) {
            Ok(got) => got,
            // The lines are there; only how many follow is not known.
            Err(Refusal::Slow) if taken.full() => break false,
            Err(refusal) => return Err(refusal),
        };
        scanned += got as u64;
        taken.take(chunk.get(..got).unwrap_or_default());
        if got < CHUNK_BYTES {
            break true;
        }
        if scanned >= MAX_SCAN_BYTES {
            if !taken.full() && taken.lines.is_empty() {
                return Err(Refusal::TooLarge { most: MAX_SCAN_BYTES });
            }
            break false;
        }
    };
    Ok(taken.finish(ended, u64::try_from(file.stat.st_size).unwrap_or(0)))
}

/// Lines that are being taken.
struct Taken {
    from: u64,
    most: u64,
    /// The number of the line at which the next byte belongs.
    number: u64,
    /// Bytes of that line so far.
    length: u64,
    room: usize,
    lines: Vec<Line>,
    binary: bool,
    more: bool,
}

impl Taken {
    const fn new(from: u64, most: u64) -> Self {
        let room = MAX_PAGE_BYTES;
        Self { from, most, number: 1, length: 0, room, lines: Vec::new(), binary: false, more: false }
    }

    fn full(&self) -> bool {
        self.more
    }

    fn take(&mut self, chunk: &[u8]) {
        self.binary |= chunk.contains(&0);
        let mut rest = chunk;
        while !rest.is_empty() {
            let (part, fed, after) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(at) => (rest.get(..=at), true, rest.get(at + 1..)),
                None => (Some(rest), false, None),
            };
            self.part(part.unwrap_or_default());
            if fed {
                self.number += 1;
                self.length = 0;
            }
            rest = after.unwrap_or_default();
        }
    }

    /// Bytes of the current line, its line feed among them.
    fn part(&mut self, part: &[u8]) {
        let first = self.length == 0;
        self.length += part.len() as u64;
        if self.number < self.from || self.more {
            return;
        }
        if first {
            if self.lines.len() as u64 >= self.most || self.room == 0 {
                self.more = true;
                return;
            }
            self.lines.push(Line::default());
        }
        if let Some(line) = self.lines.last_mut() {
            let keep = part.len().min(MAX_LINE_BYTES - line.bytes.len()).min(self.room);
            line.bytes.extend_from_slice(part.get(..keep).unwrap_or_default());
            line.cut += (part.len() - keep) as u64;
            self.room -= keep;
        }
    }

    fn finish(self, ended: bool, size: u64) -> Lines {
        // The last line need not end with a line feed.
        let total = self.number - u64::from(self.length == 0);
        Lines { more: self.more || !ended, total: ended.then_some(total), lines: self.lines, size, binary: self.binary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(chunks: &[&[u8]], from: u64, most: u64) -> Lines {
        let mut taken = Taken::new(from, most);
        chunks.iter().for_each(|chunk| taken.take(chunk));
        taken.finish(true, 0)
    }

    fn texts(lines: &Lines) -> Vec<&[u8]> {
        lines.lines.iter().map(|line| line.bytes.as_slice()).collect()
    }

    #[test]
    fn lines_are_the_same_however_the_chunks_fall() {
        let text = b"one\n\n\xff\xfethree\nfour";
        for at in 0..=text.len() {
            let (head, tail) = text.split_at(at);
            let all = taken(&[head, tail], 1, 10);
            assert_eq!(texts(&all), [&b"one\n"[..], b"\n", b"\xff\xfethree\n", b"four"], "{at}");
            assert_eq!((all.total, all.more), (Some(4), false));
            let some = taken(&[head, tail], 2, 2);
            assert_eq!(texts(&some), [&b"\n"[..], b"\xff\xfethree\n"], "{at}");
            assert_eq!((some.total, some.more), (Some(4), true));
        }
    }

    #[test]
    fn no_line_behind_the_end_is_made_up() {
        assert_eq!(taken(&[b""], 1, 5).total, Some(0));
        assert!(taken(&[b""], 1, 5).lines.is_empty());
        let ends = taken(&[b"a\nb\n"], 1, 2);
        assert_eq!((texts(&ends), ends.total, ends.more), (vec![&b"a\n"[..], b"b\n"], Some(2), false));
        assert!(taken(&[b"a\n"], 7, 2).lines.is_empty());
    }

    #[test]
    fn a_long_line_is_cut_and_the_answer_has_an_end() {
        let long = vec![b'x'; MAX_LINE_BYTES + 5];
        let lines = taken(&[&long, b"yy\nz"], 1, 5);
        assert_eq!((lines.lines[0].bytes.len(), lines.lines[0].cut), (MAX_LINE_BYTES, 8));
        assert_eq!(lines.lines[1].bytes, b"z");
        let many = [long.as_slice(), b"\n"].concat().repeat(200);
        let lines = taken(&[&many], 1, 1000);
        let bytes: usize = lines.lines.iter().map(|line| line.bytes.len()).sum();
        assert_eq!((bytes, lines.more, lines.total), (MAX_PAGE_BYTES, true, Some(200)));
    }
}
