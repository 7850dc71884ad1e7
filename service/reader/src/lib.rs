//! Lists, reads and searches one workspace for the service, beneath its root.
//!
//! Promise: nothing that lies in a workspace can lead the reader out of it, block it, or make it say more than
//! the account behind the commands could read itself. It has the service's uid, so it is confined before it reads
//! a byte: no file but beneath the root, no socket, no process, nothing written.
//!
//! Invariant: one thread; nothing is ever mapped (a truncation would be a SIGBUS), and no path is opened but by
//! [`root`].

#![forbid(unsafe_code)]

pub mod account;
mod chunks;
pub mod limits;
pub mod lines;
pub mod list;
mod names;
pub mod refusal;
pub mod root;
pub mod search;
mod serve;
mod start;
pub mod whole;

use std::process::ExitCode;

/// Where the service places the root of the workspace; 0 is the link, 1 and 2 are its log.
pub const ROOT: i32 = start::READER.given;

/// Everything, from the first line to the last.
pub fn main() -> ExitCode {
    start::READER.run(serve::serve)
}
