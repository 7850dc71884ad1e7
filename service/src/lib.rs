//! The service: holds credentials and state, judges, records, and asks the executor.
//!
//! Invariant: nothing here runs a model's command, runs any program in a workspace, or walks a workspace.
//! Floors, imports pointing down only: `cli`, `http` → `app` → `session` → `operation`, `probe` → `store`, `executor`,
//! `workers`, `readers`, `workspace`, `host`, `clock`, `child`, `group`.

#![forbid(unsafe_code)]

pub mod app;
pub mod child;
pub mod cli;
pub mod clock;
pub mod executor;
pub mod group;
pub mod host;
pub mod http;
pub mod operation;
pub mod probe;
pub mod readers;
pub mod session;
pub mod store;
pub mod version;
pub mod workers;
pub mod workspace;
