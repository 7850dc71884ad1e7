//! The agent loop of one session, in a process that can only speak to the service.
//!
//! It has the service's uid and holds what a provider said, so it must be able to do nothing by itself: it is
//! confined before it reads a byte, shows that it is, and from then on proposes; the service judges. The order of
//! everything is in `start` and `run`; what is decided is in `agent`, which touches nothing.
//!
//! Invariant: one thread; no file is opened and no socket made, here or in anything that is called from here.

pub mod agent;
mod handed;
mod run;
mod scripted;
mod start;

use std::process::ExitCode;

pub use scripted::Scripted;

/// Where the service places the socket over which descriptors come; 0 is the link, 1 and 2 are its log.
pub const HANDED: i32 = start::WORKER.given;
/// With a descriptor on that socket: the script.
pub const TAG_SCRIPT: u8 = b'S';

/// Everything, from the first line to the last.
pub fn main() -> ExitCode {
    start::WORKER.run(run::run)
}
