//! The scripted provider: a file of turns, replayed in order, with no network and no key.

use salaam_core::{
    id::OperationId,
    script::Script,
    tool::Answer,
    worker::{EndedBy, FromWorker},
};

/// A script that is being replayed.
#[derive(Debug)]
pub struct Scripted(Script);

impl Scripted {
    /// Replays `script`.
    pub const fn new(script: Script) -> Self {
        Self(script)
    }

    /// What is said next: the turn with that number, after the answers to the one before it were held against its
    /// expectations; or the end. An operation that is missing is a call that came to nothing where the script counts
    /// on it.
    pub fn next(
        &self,
        number: u64,
        before: &[Answer],
        operation: impl Fn(usize, usize) -> Option<OperationId>,
    ) -> FromWorker {
        let Some(turn) = usize::try_from(number).ok().and_then(|place| self.0.turns.get(place)) else {
            return FromWorker::Ended { outcome: EndedBy::Completed, reason: "the script is at its end".into() };
        };
        match turn.check(before).and_then(|()| turn.proposed(number, operation)) {
            Ok(turn) => FromWorker::Turn(turn),
            Err(mismatch) => {
                FromWorker::Ended { outcome: EndedBy::ScriptMismatch, reason: format!("turn {number}: {mismatch}") }
            }
        }
    }
}
