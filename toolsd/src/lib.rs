//! The executor: runs what was granted, as the tools user, in a sandbox.
//!
//! It holds no credential and decides nothing; it checks everything again as if the service were hostile, and
//! it does not outlive its bridge. Floors, imports pointing down only: `rpc` → `app` steps → `command` →
//! `sandbox`, `supervise`, `output`, `scan`, `probe`, `bridge` → `floor`, `beneath`.

#![forbid(unsafe_code)]

pub mod app;
pub mod beneath;
pub mod bridge;
pub mod command;
pub mod edit;
pub mod floor;
pub mod harden;
pub mod output;
pub mod probe;
pub mod refusal;
pub mod rpc;
pub mod sandbox;
pub mod scan;
pub mod supervise;
