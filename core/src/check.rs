//! One check of the host: what was tried, what came of it, and what mends it.

use serde::{Deserialize, Serialize};

use crate::policy::word;

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It holds.
    Pass,
    /// It does not hold.
    Fail,
    /// It does not hold and only weakens what is promised.
    Warn,
    /// It could not be tried, which is no proof.
    Unproven,
}
word!(Status { Pass = "pass", Fail = "fail", Warn = "warn", Unproven = "unproven" });

/// A check that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A stable id such as `state-readable`.
    pub id: String,
    /// What came of it.
    pub status: Status,
    /// What was seen: an errno, a mode, a uid.
    pub evidence: String,
    /// The command or edit that mends it; empty where it holds.
    pub fix: String,
}

impl Check {
    /// It holds.
    pub fn pass(id: &str, evidence: impl Into<String>) -> Self {
        Self { id: id.into(), status: Status::Pass, evidence: evidence.into(), fix: String::new() }
    }

    /// It does not hold.
    pub fn fail(id: &str, evidence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.into(), status: Status::Fail, evidence: evidence.into(), fix: fix.into() }
    }

    /// It weakens what is promised.
    pub fn warn(id: &str, evidence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.into(), status: Status::Warn, evidence: evidence.into(), fix: fix.into() }
    }

    /// Whether start must not go on: a failure, or something that could not be tried.
    pub const fn refuses(&self) -> bool {
        matches!(self.status, Status::Fail | Status::Unproven)
    }
}
