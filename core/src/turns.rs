//! Who is next where few may go at once: the whole decision, without a clock or a wait.
//!
//! Those who ask stand in lines, one for each `K` (a session, a workspace); within a line they go in the order in
//! which they asked. Between lines the one that has the fewest at work goes first, and of those the one whose last
//! turn is longest ago: whoever asks for fifty does not hold up another who asks for one.
//!
//! Promise: nobody waits for ever while places come back. A line that was passed over [`PATIENCE`] times goes before
//! all others, and if its own limit does not let it go yet, nobody goes before it. So the first of a line waits for
//! at most [`PATIENCE`] plus as many turns as there are lines.
//!
//! Whoever calls this takes as many turns as [`Turns::call`] gives after every change, so that between two changes
//! nobody waits who could go.

use std::collections::{BTreeMap, VecDeque};

/// How often a line is passed over at the most. Low enough that a second command of a session that has one at work
/// is not put off by a crowd of sessions with one each; high enough that a flood gets one turn in nine beside them.
pub const PATIENCE: u32 = 8;

/// One who waits; a number that is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The lines, and who is at work.
#[derive(Debug)]
pub struct Turns<K> {
    lines: Vec<Line<K>>,
    at_work: BTreeMap<K, u64>,
    total: u64,
    /// Numbers tickets and turns.
    next: u64,
}

#[derive(Debug)]
struct Line<K> {
    key: K,
    waiting: VecDeque<(Ticket, u64)>,
    /// When it had its last turn, or was begun.
    since: u64,
    passed: u32,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { lines: Vec::new(), at_work: BTreeMap::new(), total: 0, next: 0 }
    }
}

impl<K: Copy + Ord> Turns<K> {
    /// Joins the line of `key`, to go while fewer than `most` are at work; `most` of 0 counts as 1.
    pub fn ask(&mut self, key: K, most: u64) -> Ticket {
        let ticket = Ticket(self.number());
        let one = (ticket, most.max(1));
        match self.lines.iter_mut().find(|line| line.key == key) {
            Some(line) => line.waiting.push_back(one),
            None => self.lines.push(Line { key, waiting: VecDeque::from([one]), since: ticket.0, passed: 0 }),
        }
        ticket
    }

    /// Leaves the line; false = it has been called, or left.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        for line in &mut self.lines {
            if let Some(place) = line.waiting.iter().position(|(other, _)| *other == ticket) {
                line.waiting.remove(place);
                self.lines.retain(|line| !line.waiting.is_empty());
                return true;
            }
        }
        false
    }

    /// Whose turn it is, if anybody's: they are at work from here on.
    pub fn call(&mut self) -> Option<Ticket> {
        let chosen = self.chosen()?;
        for (_, other) in self.lines.iter_mut().enumerate().filter(|(at, _)| *at != chosen) {
            other.passed = other.passed.saturating_add(1);
        }
        let since = self.number();
        let line = self.lines.get_mut(chosen)?;
        let (ticket, _) = line.waiting.pop_front()?;
        (line.since, line.passed) = (since, 0);
        let key = line.key;
        if line.waiting.is_empty() {
            drop(self.lines.remove(chosen));
        }
        self.enter(key);
        Some(ticket)
    }

    /// Counts one more at work that did not ask: what was begun before this was there to be asked.
    pub fn enter(&mut self, key: K) {
        *self.at_work.entry(key).or_default() += 1;
        self.total += 1;
    }

    /// One of `key` is done. Without one at work it changes nothing.
    pub fn done(&mut self, key: K) {
        if let Some(count) = self.at_work.get_mut(&key) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.at_work.remove(&key);
            }
        }
    }

    /// How many are at work.
    pub const fn at_work(&self) -> u64 {
        self.total
    }

    /// Whether nobody is at work and nobody waits.
    pub const fn is_idle(&self) -> bool {
        self.total == 0 && self.lines.is_empty()
    }

    /// The line that goes next: the one that has waited too long, or of those that may go the least served.
    fn chosen(&self) -> Option<usize> {
        let overdue = self.lines.iter().enumerate().filter(|(_, line)| line.passed >= PATIENCE);
        if let Some((at, line)) = overdue.min_by_key(|(_, line)| line.since) {
            return self.may_go(line).then_some(at);
        }
        let may_go = self.lines.iter().enumerate().filter(|(_, line)| self.may_go(line));
        let served = |line: &Line<K>| self.at_work.get(&line.key).copied().unwrap_or_default();
        may_go.min_by_key(|(_, line)| (served(line), line.since)).map(|(at, _)| at)
    }

    fn may_go(&self, line: &Line<K>) -> bool {
        line.waiting.front().is_some_and(|(_, most)| self.total < *most)
    }

    const fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

#[cfg(test)]
mod tests;
