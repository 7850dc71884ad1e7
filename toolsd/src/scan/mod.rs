//! The look at a workspace after a command, before anybody is told of its end: what changed, and what of it would
//! make a later git, editor or shell run something. That is taken out of the way.
//!
//! By change time, which a program cannot set: the kernel stamps it (inode(7)). Whoever else worked there at the
//! same time is taken for the command.

mod changed;
mod guard;
mod judge;
mod quarantine;
mod walk;

pub use changed::{Grown, Used, changed, grown, used};
pub use guard::{Known, Settled, Watch, settle, survey};
pub use walk::Moment;

#[cfg(test)]
mod tests;
