//! One command, from the plan that the service sent to the proof that nothing of it is left.
//!
//! Everything is checked again here as if the service were hostile. What is not exactly as it must be is
//! refused before anything starts; a refusal names an id, what was attempted, and the remedy.

mod aside;
mod cage;
mod check;
mod ending;
mod growth;
mod hold;
mod job;
mod memory;
mod prepare;
mod probe;
mod refusal;
mod repository;
mod runner;
mod slots;
mod stage;
mod traffic;
mod vigil;
mod workspace;

pub use probe::Proof;
pub use refusal::Refusal;
pub use runner::{Editing, Runner, RunnerConfig, RunnerError};
