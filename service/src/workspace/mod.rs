//! Registered workspaces: which directories may be one, and the descriptor that keeps each one the same.
//!
//! Invariant: nothing here reads a directory or opens a file in a workspace; only the root itself is opened,
//! with O_PATH.

mod refuse;
mod registry;

pub use refuse::{Place, Refused, judge_place};
pub use registry::{Registry, Workspace, WorkspaceError};
