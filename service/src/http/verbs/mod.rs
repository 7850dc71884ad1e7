//! One function per verb of the operator interface: takes what was asked, checked, and hands it to
//! [`crate::app::App`].
//!
//! Invariant: nothing here decides; a verb that needs more than a call is a stream of calls.

pub(super) mod approvals;
pub(super) mod events;
pub(super) mod health;
pub(super) mod operations;
pub(super) mod output;
pub(super) mod sessions;
pub(super) mod workspaces;
