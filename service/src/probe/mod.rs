//! The probes: one engine that serves the start, `salaam doctor`, health and the look that is taken again and
//! again while the service runs.
//!
//! Promise: every check is carried out and every failed one is listed, each with what was seen and the command
//! that mends it. What could not be tried is `unproven`, which refuses a start like a failure.

mod account;
mod engine;
mod fix;
mod judge;
mod look;
mod process;
mod sandbox;
mod start;
mod sudo;
mod tries;

pub use engine::{Depth, Engine, Measured};
pub use process::Process;
pub use sandbox::ATTACKS;
pub use start::{SUDO, required_isolation, sudo};

#[cfg(test)]
mod tests;
