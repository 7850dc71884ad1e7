//! The states of a session.

use serde::{Deserialize, Serialize};

use crate::policy::word;

/// Who proposes in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An agent loop in a worker process.
    Worker,
    /// An operator, by `salaam run` or POST /v1/operations.
    Operator,
}
word!(Kind { Worker = "worker", Operator = "operator" });

/// What a waiting session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitingFor {
    /// An operator's decision.
    Approval,
    /// A message from an operator.
    Message,
    /// More budget.
    Budget,
    /// A person's word on what is unknown.
    Reconcile,
}
word!(WaitingFor { Approval = "approval", Message = "message", Budget = "budget", Reconcile = "reconcile" });

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The agent said that it is done.
    Completed,
    /// It could not go on.
    Failed,
    /// An operator ended it.
    Cancelled,
    /// A script's `expect` did not hold.
    ScriptMismatch,
}
word!(Outcome { Completed = "completed", Failed = "failed", Cancelled = "cancelled", ScriptMismatch = "script-mismatch" });

/// What a person found out about an operation of which nobody knew the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It took effect.
    TookEffect,
    /// It had no effect.
    NoEffect,
}
word!(Verdict { TookEffect = "took-effect", NoEffect = "no-effect" });

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum State {
    /// Admitted; its worker is not ready.
    Starting,
    /// Its worker is at work.
    Running,
    /// It waits.
    Waiting {
        /// For what.
        waiting_for: WaitingFor,
    },
    /// It is over.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

impl State {
    /// Whether `to` may follow: an ended session stays ended, nothing returns to `starting`.
    pub const fn may_become(self, to: Self) -> bool {
        match (self, to) {
            (Self::Ended { .. }, _) | (_, Self::Starting) => false,
            (
                Self::Starting | Self::Running | Self::Waiting { .. },
                Self::Running | Self::Waiting { .. } | Self::Ended { .. },
            ) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_session_stays_ended() {
        let ended = State::Ended { outcome: Outcome::Completed };
        for to in [State::Starting, State::Running, State::Waiting { waiting_for: WaitingFor::Message }, ended] {
            assert!(!ended.may_become(to));
            assert!(!to.may_become(State::Starting));
        }
        assert!(State::Starting.may_become(ended));
    }

    #[test]
    fn the_written_form_has_state_and_its_reason() {
        let waiting = State::Waiting { waiting_for: WaitingFor::Reconcile };
        assert_eq!(serde_json::to_string(&waiting).unwrap(), r#"{"state":"waiting","waiting_for":"reconcile"}"#);
    }
}
