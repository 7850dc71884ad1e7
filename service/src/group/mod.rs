//! The service's own part of the control groups (cgroups(7), version 2), where the unit delegates it.
//!
//! The service alone makes groups, sets limits and kills in them. The tools account has no right to anything in the
//! tree: the executor is started inside its group, and is handed a descriptor for each place into which a command can
//! be put. So no command, whatever walls it has, can lift a limit, leave its group, or reach another one's.
//!
//! ```text
//! salaam.service/          delegated to the service user; holds no process itself
//!   service/               the service, its workers and readers
//!   tools/                 all of the tools account: one limit for all of it, one lever that ends all of it
//!     executor/            sudo and the executor, from their first instruction
//!     command-1/ …         one for each command that may run at once, and one for the probe
//! ```

mod bounds;
mod claim;
mod directory;
mod error;
mod held;
mod place;

pub use claim::{Claim, Ground, enter};
pub use error::GroupError;
pub use held::{Group, Room};

#[cfg(test)]
mod tests;
