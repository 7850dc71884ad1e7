//! The service's end of a worker: starts it confined, lets it say what its phase allows and nothing else, sees its
//! loss, and proves it gone.
//!
//! A worker is hostile: it holds what a provider said, and may be what a provider made of it. It is known by its
//! socketpair; a frame that is too long, does not parse or comes out of its phase ends it. Invariant: nothing that a
//! worker does or leaves undone holds up more than the task that owns it.

mod error;
mod link;
mod start;
mod worker;

pub use error::{Gone, WorkerError};
pub use start::Options;
pub use worker::Worker;

#[cfg(test)]
mod tests;
