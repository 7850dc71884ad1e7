//! `salaam host setup`: what root does once for an instance, and `--undo`, which takes it away again.
//!
//! Promise: it is idempotent; `--dry-run` prints the commands that do the same; what it adds is written down as it
//! goes, and `--undo` removes that and nothing else. Root never walks a workspace: a child that has become the
//! service user does, by descriptor.

mod error;
mod fit;
mod ground;
mod names;
mod plan;
mod run;
mod running;
mod step;
mod sudoers;
mod through;
mod undo;

pub use error::SetupError;
pub use fit::{Fit, Report, become_service, fit, fit_as};
pub use plan::Places;
pub use run::{Options, run, run_in};
