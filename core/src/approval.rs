//! The decision on one approval, as a pure function.

use crate::{digest::Digest, operation::State, policy::word, time::Timestamp};

/// The fewest hex digits of a binding that a grant on the command line names.
pub const LEAST_BINDING_DIGITS: usize = 12;

/// An operator's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Yes, to exactly what is bound.
    Grant,
    /// No.
    Deny,
}
word!(Decision { Grant = "grant", Deny = "deny" });

/// What becomes of an answer. Anything but `Accepted` changes nothing.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The answer counts.
    Accepted,
    /// The binding named is not the one that is stored.
    BindingMismatch,
    /// The approval lapsed.
    Expired,
    /// It was answered, or the operation moved on.
    AlreadyDecided(State),
    /// A required control does not hold; no new grant is given.
    ControlFailed,
}

/// Judges an answer. A denial needs no binding and is taken even when controls fail: it widens nothing.
pub fn judge(
    decision: Decision,
    state: State,
    bound: Digest,
    named: Option<&str>,
    expires: Timestamp,
    now: Timestamp,
    controls_hold: bool,
) -> Verdict {
    match state {
        State::Pending => {}
        State::Expired => return Verdict::Expired,
        State::Proposed
        | State::Granted
        | State::Dispatched
        | State::Completed
        | State::Failed
        | State::TimedOut
        | State::Cancelled
        | State::Unknown
        | State::Refused
        | State::Denied
        | State::Stale => return Verdict::AlreadyDecided(state),
    }
    if now >= expires {
        return Verdict::Expired;
    }
    match decision {
        Decision::Deny => Verdict::Accepted,
        Decision::Grant => match named {
            Some(named) if named == bound.to_string() => {
                if controls_hold {
                    Verdict::Accepted
                } else {
                    Verdict::ControlFailed
                }
            }
            Some(_) | None => Verdict::BindingMismatch,
        },
    }
}

/// Completes what a person typed to the full binding: at least [`LEAST_BINDING_DIGITS`] lower-case hex
/// digits from its start. The API itself takes only all 64.
pub fn completes(typed: &str, bound: Digest) -> bool {
    typed.len() >= LEAST_BINDING_DIGITS && bound.to_string().starts_with(typed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_unexpired_approval_with_its_own_binding_is_granted() {
        let bound = Digest::of(b"x");
        let all = bound.to_string();
        let expires = Timestamp::from_micros(1_000);
        let before = Timestamp::from_micros(expires.as_micros() - 1);
        let grant = |state, named: Option<&str>, now, controls| {
            judge(Decision::Grant, state, bound, named, expires, now, controls)
        };
        assert_eq!(grant(State::Pending, Some(&all), before, true), Verdict::Accepted);
        assert_eq!(grant(State::Pending, Some(&all), expires, true), Verdict::Expired);
        assert_eq!(grant(State::Pending, Some(&all), before, false), Verdict::ControlFailed);
        for named in [None, Some(""), Some(&all[..63]), Some(&all[..12]), Some(&all.to_uppercase())] {
            assert_eq!(grant(State::Pending, named, before, true), Verdict::BindingMismatch);
        }
        for state in State::ALL.iter().copied().filter(|s| !matches!(s, State::Pending | State::Expired)) {
            assert_eq!(grant(state, Some(&all), before, true), Verdict::AlreadyDecided(state));
        }
        assert_eq!(grant(State::Expired, Some(&all), before, true), Verdict::Expired);
    }

    #[test]
    fn a_denial_needs_no_binding_but_still_comes_in_time() {
        let expires = Timestamp::from_micros(1_000);
        let deny = |now| judge(Decision::Deny, State::Pending, Digest::ZERO, None, expires, now, false);
        assert_eq!(deny(Timestamp::from_micros(0)), Verdict::Accepted);
        assert_eq!(deny(expires), Verdict::Expired);
    }

    #[test]
    fn twelve_digits_complete_and_eleven_do_not() {
        let bound = Digest::of(b"x");
        let all = bound.to_string();
        assert!(completes(&all, bound) && completes(&all[..12], bound));
        assert!(!completes(&all[..11], bound) && !completes("", bound) && !completes(&format!("{all}0"), bound));
    }
}
