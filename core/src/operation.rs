//! The life of one operation, as a table of the steps that are allowed.

use crate::policy::word;

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Recorded, not yet put to anybody.
    Proposed,
    /// An operator is asked.
    Pending,
    /// An operator said yes; nothing was sent.
    Granted,
    /// The intent is durable and the grant consumed; from here an effect is possible.
    Dispatched,
    /// The process ran and ended, whatever its code or signal.
    Completed,
    /// Nothing took effect.
    Failed,
    /// It ran into its time limit and was ended.
    TimedOut,
    /// It was ended, or never started, by request; proven gone.
    Cancelled,
    /// An intent without a receipt.
    Unknown,
    /// A check refused it before anybody was asked.
    Refused,
    /// An operator said no.
    Denied,
    /// Nobody answered in time.
    Expired,
    /// What was shown is no longer what would run.
    Stale,
}
word!(State {
    Proposed = "proposed",
    Pending = "pending",
    Granted = "granted",
    Dispatched = "dispatched",
    Completed = "completed",
    Failed = "failed",
    TimedOut = "timed-out",
    Cancelled = "cancelled",
    Unknown = "unknown",
    Refused = "refused",
    Denied = "denied",
    Expired = "expired",
    Stale = "stale",
});

/// A step that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an operation that is {from} cannot become {to}")]
pub struct IllegalStep {
    /// Where it stands.
    pub from: State,
    /// Where it was to go.
    pub to: State,
}

impl State {
    /// The states that may follow. `unknown` is left only by a person's `reconcile`, which changes no state.
    pub const fn next(self) -> &'static [Self] {
        use State::{
            Cancelled, Completed, Denied, Dispatched, Expired, Failed, Granted, Pending, Proposed, Refused, Stale,
            TimedOut, Unknown,
        };
        match self {
            Proposed => &[Pending, Refused, Cancelled],
            Pending => &[Granted, Denied, Expired, Stale, Cancelled],
            Granted => &[Dispatched, Stale, Cancelled, Expired, Failed],
            Dispatched => &[Completed, Failed, TimedOut, Cancelled, Unknown],
            Completed | Failed | TimedOut | Cancelled | Unknown | Refused | Denied | Expired | Stale => &[],
        }
    }

    /// Takes one step, or says why not.
    pub fn step(self, to: Self) -> Result<Self, IllegalStep> {
        if self.next().contains(&to) { Ok(to) } else { Err(IllegalStep { from: self, to }) }
    }

    /// Whether nothing follows.
    pub const fn is_final(self) -> bool {
        self.next().is_empty()
    }

    /// What a restart makes of it: an intent without receipt is unknown, a question asked by the dead
    /// process is void, the rest stands.
    pub const fn after_crash(self) -> Option<Self> {
        match self {
            Self::Dispatched => Some(Self::Unknown),
            Self::Proposed | Self::Pending | Self::Granted => Some(Self::Cancelled),
            Self::Completed
            | Self::Failed
            | Self::TimedOut
            | Self::Cancelled
            | Self::Unknown
            | Self::Refused
            | Self::Denied
            | Self::Expired
            | Self::Stale => None,
        }
    }
}

/// What kind of effect an operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A program is run.
    Command,
    /// Files are changed.
    Edit,
    /// An edit is taken back.
    Undo,
    /// A checkpoint is restored.
    Restore,
    /// A patch is applied.
    Patch,
}
word!(Kind { Command = "command", Edit = "edit", Undo = "undo", Restore = "restore", Patch = "patch" });

/// Why an operation was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelCause {
    /// An operator asked.
    Operator,
    /// The caller of an attached operation went away before the receipt.
    ClientGone,
    /// The service is stopping.
    ServiceStopping,
    /// The service was restarted while the question was open.
    ServiceRestarted,
    /// What saw to it in the service ended without recording its end.
    OwnerLost,
    /// The session was cancelled or ended.
    Session,
}
word!(CancelCause {
    Operator = "operator",
    ClientGone = "client-gone",
    ServiceStopping = "service-stopping",
    ServiceRestarted = "service-restarted",
    OwnerLost = "owner-lost",
    Session = "session",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_step_and_no_other() {
        let allowed: Vec<String> = State::ALL
            .iter()
            .flat_map(|from| {
                State::ALL.iter().filter(move |to| from.step(**to).is_ok()).map(move |to| format!("{from}>{to}"))
            })
            .collect();
        assert_eq!(
            allowed,
            [
                "proposed>pending",
                "proposed>cancelled",
                "proposed>refused",
                "pending>granted",
                "pending>cancelled",
                "pending>denied",
                "pending>expired",
                "pending>stale",
                "granted>dispatched",
                "granted>failed",
                "granted>cancelled",
                "granted>expired",
                "granted>stale",
                "dispatched>completed",
                "dispatched>failed",
                "dispatched>timed-out",
                "dispatched>cancelled",
                "dispatched>unknown",
            ]
        );
    }

    #[test]
    fn a_grant_is_used_once() {
        assert!(State::Dispatched.step(State::Dispatched).is_err());
        assert!(State::Dispatched.step(State::Granted).is_err());
    }

    #[test]
    fn after_a_crash_nothing_stays_open_and_only_a_step_of_the_table_is_taken() {
        for state in State::ALL {
            match state.after_crash() {
                Some(next) => assert_eq!(state.step(next), Ok(next)),
                None => assert!(state.is_final()),
            }
        }
    }
}
