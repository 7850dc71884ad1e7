//! A seeded mutation fuzzer over everything that reads bytes from elsewhere.
//!
//! Promise: the same seed tries the same inputs; a panic, a broken invariant and an input that costs too much are
//! findings, with the input. It needs no instrumented build: what an input makes a target answer is the only feedback,
//! and an input with a new answer is mutated further.

mod campaign;
mod edit;
mod git;
mod mutate;
mod target;
mod text;
mod wire;

pub use campaign::{Finding, Outcome, Until, replay, run};
pub use target::{TARGETS, Target};
