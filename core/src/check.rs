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

/// What a check that does not hold means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The service does not start, and while it runs gives no new grant.
    Required,
    /// Less is promised, and that is said.
    Degrading,
}
word!(Severity { Required = "required", Degrading = "degrading" });

impl Severity {
    /// Of the check with this id. What is not known to be less is required.
    pub fn of(id: &str) -> Self {
        let degrading = id.starts_with("sandbox-")
            || matches!(id, "can-linger" | "can-cron" | "can-at" | "sudo-rule-wide" | "instance-missing");
        if degrading { Self::Degrading } else { Self::Required }
    }
}

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

    /// It could not be tried, which is no proof.
    pub fn unproven(id: &str, evidence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.into(), status: Status::Unproven, evidence: evidence.into(), fix: fix.into() }
    }

    /// Whether it failed, or could not be tried.
    pub const fn refuses(&self) -> bool {
        match self.status {
            Status::Fail | Status::Unproven => true,
            Status::Pass | Status::Warn => false,
        }
    }

    /// Whether start must not go on, and no new grant may be given: something required refuses.
    pub fn blocks(&self) -> bool {
        self.refuses() && Severity::of(&self.id) == Severity::Required
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_required_blocks_and_an_unknown_id_is_required() {
        assert!(Check::fail("state-readable", "", "").blocks());
        assert!(Check::unproven("something-new", "", "").blocks());
        assert!(!Check::fail("sandbox-userns", "", "").blocks());
        assert!(!Check::unproven("can-cron", "", "").blocks());
        assert!(!Check::warn("state-readable", "", "").blocks());
    }
}
