//! What one request may take, beside the limits of its form (`salaam_core::reader`). Whoever asks cannot lift these.

use std::time::Duration;

/// Links followed on one path; the kernel's own number.
pub const MAX_LINKS: usize = 40;
/// Components walked for one path, those of links included. Each may hold a descriptor, and 40 links of 4096 bytes
/// would otherwise make 80,000 steps of `a/../a/..`.
pub const MAX_STEPS: usize = 1024;
/// Directories below one another that a search enters. Each holds one descriptor.
pub const MAX_DEPTH: usize = 200;
/// Names that a search holds at a time, of all directories that it is in; a larger directory is read more than
/// once. A name has up to 255 bytes.
pub const MAX_NAMES: usize = 32_768;
/// Names of each directory that it holds even so.
pub const LEAST_NAMES: usize = 512;

/// Bytes read for one read by lines. What lies further down cannot be asked for by line.
pub const MAX_SCAN_BYTES: u64 = 256 << 20;
/// Of one line this much is searched: an automaton of a megabyte takes its size times the text's in steps.
pub const MAX_SEARCHED_LINE: usize = 16 << 10;
/// Of one file this much is searched.
pub const MAX_SEARCHED_FILE: u64 = 32 << 20;
/// A compiled pattern in bytes: `\w{500}` is refused, `\w{40}` is not.
pub const MAX_AUTOMATON_BYTES: usize = 1 << 20;
/// Groups within groups in a pattern.
pub const MAX_NEST: u32 = 50;
/// What a search may take for one answer; then it gives what it found and where to go on.
pub const SEARCH_TIME: Duration = Duration::from_secs(3);
/// What any other request may take.
pub const READ_TIME: Duration = Duration::from_secs(3);

/// An ignore file that is longer is not read.
pub const MAX_IGNORE_BYTES: u64 = 256 << 10;
/// Rules of one ignore file; those behind are not applied.
pub const MAX_IGNORE_RULES: usize = 4096;
/// A longer rule is not applied.
pub const MAX_RULE_BYTES: usize = 1024;
