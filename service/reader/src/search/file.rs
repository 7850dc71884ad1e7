//! One file, line by line: the first part of a long line, the first part of a long file, none of a binary one.

use std::time::Instant;

use regex::bytes::Regex;
use salaam_core::reader::{Found, MAX_MATCH_BYTES, MAX_PAGE_BYTES, Match, Place};

use crate::{
    chunks::{CHUNK_BYTES, fill},
    limits::{MAX_SEARCHED_FILE, MAX_SEARCHED_LINE},
    refusal::Refusal,
    root::File,
};

/// Lines between two looks at the clock, unless they are long.
const BETWEEN_LOOKS: u64 = 16;
/// A line that is looked at the clock after: a slow pattern takes a millisecond for it.
const LONG_LINE: usize = 256;
/// Of a line that is cut this much is given before the match.
const BEFORE_MATCH: usize = 100;

/// How the search of a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It was searched to its end, or as far as any is.
    Done,
    /// The page is full, or out of time: everything up to this line was searched.
    At(u64),
}

/// What one page may hold.
pub(super) struct Page<'a> {
    pub(super) regex: &'a Regex,
    pub(super) most: usize,
    /// When it ends, at the next line or entry.
    pub(super) until: Instant,
    /// When even a file or directory in the middle is given up.
    pub(super) last: Instant,
    pub(super) found: Found,
    pub(super) text_bytes: usize,
}

impl Page<'_> {
    /// Searches `file`, of which everything up to line `after` was searched before. At least one more line is.
    pub(super) fn file(&mut self, path: &[u8], file: &File, after: u64) -> Result<End, Refusal> {
        let mut buffer = vec![0; CHUNK_BYTES];
        // The line that is being put together, and whether it was longer than what is kept of it.
        let (mut line, mut long) = (Vec::new(), false);
        let (mut number, mut read) = (0u64, 0u64);
        self.found.files += 1;
        loop {
            let got = fill(&file.fd, &mut buffer, self.last)?;
            let mut rest = buffer.get(..got).unwrap_or_default();
            read += got as u64;
            if rest.contains(&0) {
                self.found.skipped.binary += 1;
                return Ok(End::Done);
            }
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                number += 1;
                let part = rest.get(..at).unwrap_or_default();
                rest = rest.get(at + 1..).unwrap_or_default();
                let whole = if line.is_empty() && part.len() <= MAX_SEARCHED_LINE {
                    part
                } else {
                    long |= keep(&mut line, part);
                    line.as_slice()
                };
                if number > after && self.line(path, number, whole) {
                    self.found.skipped.large += u64::from(long);
                    return Ok(End::At(number));
                }
                self.found.skipped.large += u64::from(long);
                (line, long) = (Vec::new(), false);
            }
            if number > after && Instant::now() >= self.until {
                return Ok(End::At(number));
            }
            long |= keep(&mut line, rest);
            if got < CHUNK_BYTES || read >= MAX_SEARCHED_FILE {
                break;
            }
        }
        self.found.skipped.large += u64::from(long || read >= MAX_SEARCHED_FILE);
        // A last line without a line feed.
        if !line.is_empty() && number + 1 > after && self.line(path, number + 1, &line) {
            return Ok(End::At(number + 1));
        }
        Ok(End::Done)
    }

    /// Searches one line; whether the page ends with it.
    fn line(&mut self, path: &[u8], number: u64, line: &[u8]) -> bool {
        if let Some(matched) = self.regex.find(line) {
            let cut = around(line, matched.start());
            self.text_bytes += cut.text.len() + path.len();
            self.found.matches.push(Match {
                place: Place { path: path.to_vec(), line: number },
                column: matched.start() as u64 + 1,
                ..cut
            });
        }
        let look = line.len() > LONG_LINE || number.is_multiple_of(BETWEEN_LOOKS);
        self.full() || (look && Instant::now() >= self.until)
    }

    /// Whether nothing more fits.
    pub(super) fn full(&self) -> bool {
        self.found.matches.len() >= self.most || self.text_bytes >= MAX_PAGE_BYTES
    }
}

/// Adds to a line what is searched of it; whether something was left out.
fn keep(line: &mut Vec<u8>, part: &[u8]) -> bool {
    let room = MAX_SEARCHED_LINE.saturating_sub(line.len());
    line.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
    part.len() > room
}

/// The part of a line around its byte `at`.
fn around(line: &[u8], at: usize) -> Match {
    let start = if line.len() <= MAX_MATCH_BYTES { 0 } else { at.saturating_sub(BEFORE_MATCH) };
    let end = line.len().min(start + MAX_MATCH_BYTES);
    Match {
        place: Place { path: Vec::new(), line: 0 },
        column: 0,
        text: line.get(start..end).unwrap_or_default().to_vec(),
        cut_before: start as u64,
        cut_after: (line.len() - end) as u64,
    }
}
