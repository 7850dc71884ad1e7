//! Where a text stands in a file, in time linear in both (Knuth, Morris and Pratt), and what takes its place.
//!
//! A text without CR is quoted by somebody who saw lines, not their endings: its LF stands for LF and for CR LF,
//! and what takes its place gets the endings that were there. A text with CR means exactly its bytes.

use std::ops::Range;

const CR: u8 = b'\r';
const LF: u8 = b'\n';

/// A text to look for.
#[derive(Debug)]
pub(super) struct Needle<'a> {
    text: &'a [u8],
    /// For each length of a match the length of the longest shorter one that ends in the same place.
    shorter: Vec<u32>,
    /// LF stands for CR LF as well.
    loose: bool,
}

/// What counts as several matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    /// Each place where the text begins.
    Counts,
    /// The next match begins where the one before ends.
    Skipped,
}

impl<'a> Needle<'a> {
    /// A text that is not empty.
    pub(super) fn new(text: &'a [u8]) -> Self {
        let mut shorter = Vec::with_capacity(text.len());
        shorter.push(0);
        let mut length = 0;
        for byte in text.iter().skip(1) {
            length = extend(text, &shorter, length, *byte);
            // No file, and so no match, is as long as 4 GiB.
            shorter.push(u32::try_from(length).unwrap_or(0));
        }
        Self { text, shorter, loose: !text.contains(&CR) }
    }

    /// Whether what takes its place gets the endings of the file.
    pub(super) const fn is_loose(&self) -> bool {
        self.loose
    }

    /// Calls `found` with the place of each match, in order, until it says stop.
    pub(super) fn each<E>(
        &self,
        content: &[u8],
        overlap: Overlap,
        mut found: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut at, mut length) = (0, 0);
        while let Some(byte) = content.get(at) {
            let (byte, next) = if self.loose && *byte == CR && content.get(at + 1) == Some(&LF) {
                (LF, at + 2)
            } else {
                (*byte, at + 1)
            };
            length = extend(self.text, &self.shorter, length, byte);
            at = next;
            if length == self.text.len() {
                found(self.start(content, at)..at)?;
                length = match overlap {
                    Overlap::Counts => self.shorter.last().map_or(0, |length| *length as usize),
                    Overlap::Skipped => 0,
                };
            }
        }
        Ok(())
    }

    /// Where the match that ends at `end` begins.
    fn start(&self, content: &[u8], end: usize) -> usize {
        if !self.loose {
            return end.saturating_sub(self.text.len());
        }
        self.text.iter().rev().fold(end, |at, byte| {
            let pair = *byte == LF && at >= 2 && content.get(at - 2) == Some(&CR);
            at.saturating_sub(if pair { 2 } else { 1 })
        })
    }
}

/// The length of the match after `byte`, when it was `length` before.
fn extend(text: &[u8], shorter: &[u32], mut length: usize, byte: u8) -> usize {
    loop {
        if text.get(length) == Some(&byte) {
            return length + 1;
        }
        match length.checked_sub(1).and_then(|last| shorter.get(last)) {
            Some(less) => length = *less as usize,
            None => return 0,
        }
    }
}

/// The line endings around successive matches in one file.
#[derive(Debug)]
pub(super) struct Endings<'a> {
    content: &'a [u8],
    /// The first LF at or after the last place that was asked for; the length of the file = there is none.
    next: usize,
    /// The last LF of the file, looked for once.
    last: Option<Option<usize>>,
}

impl<'a> Endings<'a> {
    pub(super) const fn of(content: &'a [u8]) -> Self {
        Self { content, next: 0, last: None }
    }

    /// Appends `new`, which holds no CR, with the endings that stood at `place`: its first LF gets the first ending
    /// there, and so on; those beyond get the last ending there, or that of the line, or LF in a file without lines.
    pub(super) fn put(&mut self, out: &mut Vec<u8>, new: &[u8], place: &Range<usize>) {
        let content = self.content;
        let matched = content.get(place.clone()).unwrap_or_default();
        let mut there = matched.iter().enumerate().filter(|(_, byte)| **byte == LF).map(|(at, _)| place.start + at);
        let mut latest = None;
        for byte in new {
            if *byte == LF {
                let at = there.next().or(latest).or_else(|| self.around(place));
                latest = at;
                if at.is_some_and(|at| ends_with_cr(content, at)) {
                    out.push(CR);
                }
            }
            out.push(*byte);
        }
    }

    /// The LF that ends the line of a match without one: the next, or the last before it.
    fn around(&mut self, place: &Range<usize>) -> Option<usize> {
        let from = self.next.max(place.end);
        let ahead = self.content.get(from..).unwrap_or_default();
        // Places come in order, so no byte is looked at twice over all matches.
        self.next = ahead.iter().position(|byte| *byte == LF).map_or(self.content.len(), |found| from + found);
        if self.next < self.content.len() {
            return Some(self.next);
        }
        *self.last.get_or_insert_with(|| self.content.iter().rposition(|byte| *byte == LF))
    }
}

/// Whether the LF at `at` belongs to a CR LF.
fn ends_with_cr(content: &[u8], at: usize) -> bool {
    at.checked_sub(1).and_then(|before| content.get(before)) == Some(&CR)
}
