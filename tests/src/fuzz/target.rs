//! What is fuzzed: a name, valid samples, words that matter, and one function that holds the invariants.

use super::{edit, git, text, wire};

/// One reader of foreign bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it reads, for the report.
    pub about: &'static str,
    /// Valid inputs to begin with.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Words that mean something to it.
    pub words: &'static [&'static str],
    /// Reads one input; panics where an invariant is broken. What it returns says which way the input went.
    pub read: fn(&[u8]) -> String,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    text::TOOL,
    text::SCRIPT,
    edit::EDIT,
    edit::DIFF,
    wire::BRIDGE,
    wire::PARTS,
    wire::WORKER,
    wire::READER,
    wire::LAUNCH,
    text::HOST,
    text::INSTANCE,
    text::MANIFEST,
    text::JOURNAL,
    text::COMMAND,
    git::CONFIG,
    git::PATHS,
    text::SHOWN,
];
