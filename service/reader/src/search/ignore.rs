//! `.gitignore` and `.ignore`, from bytes that were read beneath the root.
//!
//! Promise: nothing here opens a file, and no error quotes a line: a line that is no rule matches nothing, as in
//! git. (An ignore file that is a link to a key was printed by a parser that opened it by its path.) Later rules
//! win over earlier ones, those of a directory over those of the ones above it.

use super::glob::{Glob, components, wild};
use crate::limits::{MAX_IGNORE_RULES, MAX_RULE_BYTES};

/// The rules of one directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// `!`: what matches is not ignored.
    keeps: bool,
    directories_only: bool,
    shape: Shape,
}

#[derive(Debug, PartialEq, Eq)]
enum Shape {
    /// The last component, wherever it is.
    Name(Glob),
    /// All components below the directory of the rule.
    Path(Vec<Part>),
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    One(Glob),
    /// `**`, or more of them
    Many,
}

/// What rules say about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Ignore,
    Keep,
    Nothing,
}

impl Rules {
    /// Adds the rules of one file; what comes later wins.
    pub(crate) fn add(&mut self, text: &[u8]) {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let lines = text.split(|byte| *byte == b'\n').filter(|line| line.len() <= MAX_RULE_BYTES);
        self.0.extend(lines.filter_map(rule).take(MAX_IGNORE_RULES));
    }

    /// What they say about the entry at `path`, its components below the directory of the rules.
    pub(crate) fn say(&self, path: &[&[u8]], directory: bool) -> Said {
        let matching = |rule: &&Rule| (directory || !rule.directories_only) && rule.shape.matches(path);
        match self.0.iter().rev().find(matching) {
            Some(Rule { keeps: true, .. }) => Said::Keep,
            Some(Rule { keeps: false, .. }) => Said::Ignore,
            None => Said::Nothing,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Shape {
    fn matches(&self, path: &[&[u8]]) -> bool {
        match self {
            Self::Name(glob) => path.last().is_some_and(|name| glob.matches(name)),
            Self::Path(parts) => wild(
                parts,
                path,
                |part| *part == Part::Many,
                |part, name| match part {
                    Part::One(glob) => glob.matches(name),
                    Part::Many => false,
                },
            ),
        }
    }
}

fn rule(line: &[u8]) -> Option<Rule> {
    let line = without_end(line.strip_suffix(b"\r").unwrap_or(line));
    if line.first() == Some(&b'#') {
        return None;
    }
    let (keeps, line) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
    let (directories_only, line) = line.strip_suffix(b"/").map_or((false, line), |rest| (true, rest));
    if line.is_empty() {
        return None;
    }
    let shape = if line.contains(&b'/') {
        let line = line.strip_prefix(b"/").unwrap_or(line);
        let mut parts: Vec<Part> = components(line)
            .into_iter()
            .map(|part| {
                if part.len() > 1 && part.iter().all(|byte| *byte == b'*') {
                    Part::Many
                } else {
                    Part::One(Glob::parse(part))
                }
            })
            .collect();
        // `a/**` is what is in `a`, not `a` itself.
        if parts.last() == Some(&Part::Many) {
            parts.push(Part::One(Glob::parse(b"*")));
        }
        Shape::Path(parts)
    } else {
        Shape::Name(Glob::parse(line))
    };
    Some(Rule { keeps, directories_only, shape })
}

/// Without the blanks at the end, but for one behind a backslash.
fn without_end(line: &[u8]) -> &[u8] {
    let mut end = 0;
    let mut escaped = false;
    for (at, byte) in line.iter().enumerate() {
        if escaped || *byte != b' ' {
            end = at + 1;
        }
        escaped = !escaped && *byte == b'\\';
    }
    line.get(..end).unwrap_or(line)
}

#[cfg(test)]
mod tests;
