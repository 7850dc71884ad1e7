//! The prober: a child that can do whatever the account can, and tries what it must not be able to.
//!
//! It is made before the executor sets no_new_privs. It opens, lists or connects, or runs one of a few programs
//! that are written down here with their arguments, and answers with what the kernel or the program said. It
//! ends when its socket closes.

mod child;
mod handle;
mod programs;

pub use child::{Child, PROBER, child, spawn};
pub use handle::Prober;

#[cfg(test)]
mod tests;
