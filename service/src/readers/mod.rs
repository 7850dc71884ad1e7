//! Reads of workspaces: one confined reader for each workspace in use, started when it is asked, restarted after
//! its death, closed when nobody asks any more.
//!
//! A reader has the service's uid and looks at bytes that a stranger wrote, so it is taken for hostile: what it says
//! is checked, and one that is late, says what no reader says, or dies is ended; the question that it was at gets an
//! error and is never asked again by itself.

mod error;
mod owner;
mod process;
mod seats;

pub use error::ReaderError;
pub use process::Options;
pub use seats::Readers;

#[cfg(test)]
mod tests;
