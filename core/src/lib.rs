//! The vocabulary and the decisions of Salaam.
//!
//! Invariant: nothing here opens a file, reads a clock, draws randomness or spawns anything. Time and
//! random bytes are arguments, so every decision can be replayed and tested as a table.

#![forbid(unsafe_code)]

pub mod approval;
pub mod bound;
pub mod bridge;
pub mod canary;
pub mod canon;
pub mod check;
pub mod command;
pub mod credential;
pub mod digest;
pub mod edit;
pub mod event;
pub mod git_config;
pub mod id;
pub mod instance;
pub mod kept;
pub mod limits;
pub mod manifest;
mod object;
pub mod operation;
pub mod policy;
pub mod protect;
pub mod reader;
pub mod refusal;
pub mod result;
pub mod script;
pub mod session;
pub mod show;
pub mod time;
pub mod tool;
pub mod turns;
pub mod worker;
