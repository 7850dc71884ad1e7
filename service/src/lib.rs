//! The service: holds credentials and state, judges, records, and asks the executor.
//!
//! Invariant: nothing here runs a model's command, runs any program in a workspace, or walks a workspace.
//! Floors, imports pointing down only: `cli`, `http` → `app` → `operation`, `probe` → `store`, `executor`,
//! `workspace`, `host`, `clock`.

#![forbid(unsafe_code)]

pub mod app;
pub mod cli;
pub mod clock;
pub mod executor;
pub mod host;
pub mod http;
pub mod operation;
pub mod probe;
pub mod store;
pub mod version;
pub mod workspace;
