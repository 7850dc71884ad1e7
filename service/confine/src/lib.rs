//! What a process of the service user gives up before it reads a byte.
//!
//! The worker and the reader have the service's uid, so every file, socket and process of the service would be
//! theirs. Their `main` is [`Program::run`]: with one thread, every layer is taken on by [`confine`], and they go on
//! only if each took hold: nothing here is best effort. What they could still do is tried afterwards by [`canary`].
//!
//! Invariant: nothing here gives a right; no layer can be taken off again by the process.

mod begin;
pub mod canary;
mod domain;
mod error;
mod filter;
mod harden;

use std::os::fd::{BorrowedFd, RawFd};

pub use begin::{Begun, Program};
pub use domain::{Domain, enter};
pub use error::ConfineError;
pub use filter::{Role, load};
pub use harden::{Limits, belong_to_creator, close_to_others, keep_descriptors, limit, no_new_privileges};

/// What a process keeps.
#[derive(Debug, Clone, Copy)]
pub struct Keep<'a> {
    /// Descriptors beside 0, 1 and 2 that its parent placed.
    pub descriptors: &'a [RawFd],
    /// The one directory beneath which it may read; none = no file at all.
    pub root: Option<BorrowedFd<'a>>,
    /// What it may use up.
    pub limits: Limits,
}

/// What took hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The landlock domain.
    pub domain: Domain,
    /// Instructions of the system call filter.
    pub filter: usize,
}

/// Takes on every layer, in the one order that works: what needs a file or a call that a later layer takes
/// away comes before it.
///
/// # Errors
/// The first layer that did not take hold; the process must then end.
pub fn confine(role: Role, keep: &Keep<'_>) -> Result<Held, ConfineError> {
    close_to_others()?;
    keep_descriptors(keep.descriptors)?;
    limit(&keep.limits)?;
    no_new_privileges()?;
    let domain = enter(keep.root)?;
    let filter = load(role)?;
    Ok(Held { domain, filter })
}
