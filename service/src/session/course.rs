//! The course of a session, as a pure function: what happened in, what is to be done out.
//!
//! Invariant: a course holds nothing that the store does not; after a crash it is made anew from what is recorded
//! and goes on. It never asks for the same call twice while one is under way, asks the worker for a turn only when
//! every call of the turn before has its answer, and lets a worker speak only when it was asked.
//!
//! Absent on purpose: time, the store, processes. Whoever performs the actions records first what they follow from.

mod step;

use std::time::Duration;

use salaam_core::{
    id::OperationId,
    session::{Outcome, State, WaitingFor},
};

/// Turns of one session.
pub(super) const MOST_TURNS: u64 = salaam_core::worker::MAX_TURNS;
/// Messages that wait to be told: a person writes them.
pub(super) const MOST_WAITING: u64 = 64;
/// How long a new worker is waited with after each loss in a row. One more loss ends the session: what kills a
/// worker seven times in the same place kills the next one too.
pub(super) const RESTS: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
];

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Course {
    /// Turns that are recorded, which is the number of the next one.
    pub(super) turns: u64,
    /// Whether the last turn waits for a message.
    awaits: bool,
    stage: Stage,
    seat: Seat,
    /// Workers that were lost one after another, without a turn in between.
    losses: usize,
    /// Whether there ever was a worker.
    begun: bool,
    /// Messages that were not told yet.
    waiting: u64,
}

/// What stands between a session and its next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing; `asked` = the worker that is here was asked.
    Asking { asked: bool },
    /// The calls of the last turn, one after the other; `next` is the first without an answer.
    Calling { next: u64, of: u64, under_way: bool },
    /// Nobody knows what became of this call.
    Unsure { call: u64, of: u64, operation: OperationId },
    /// A message.
    Listening,
    /// It ends, once the call that is under way is over.
    Closing { outcome: Outcome, call: u64, of: u64 },
    /// It is over.
    Over(Outcome),
}

/// Who sits at the worker's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    Empty,
    /// `told` = it knows what was said before.
    Taken {
        told: bool,
    },
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A worker is confined and listens.
    Ready,
    /// It is gone, or it cannot be believed any more. `settled` = it had lived for a good while.
    Lost { settled: bool },
    /// It proposes.
    Turn { number: u64, calls: u64, awaits: bool },
    /// It says that there will be no more.
    Ended(Outcome),
    /// The call under way has its answer.
    Answered,
    /// The call under way was given up before anything was recorded of it.
    Withdrawn,
    /// The operation of the call under way ended, and nobody knows how.
    Unknown(OperationId),
    /// A person said what became of it.
    Reconciled(OperationId),
    /// A person said something.
    Message,
    /// A person ends it.
    Cancel,
    /// It cannot go on.
    Fail,
}

/// What is to be done, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a worker after so long.
    Hire { after: Duration },
    /// End the worker.
    Dismiss,
    /// Ask the worker for the next turn. `begin` = tell it everything first, instead of the last answers alone;
    /// `message` = the oldest message that waits belongs to it.
    Ask { begin: bool, message: bool },
    /// Carry out the call of this index of the last turn.
    Carry { call: u64 },
    /// Take back the question about the call under way; what runs goes on.
    Void,
    /// End the call under way.
    CallOff,
    /// Record the end, and an answer to each call of the last turn from index `from` on that is below `of`.
    Conclude { outcome: Outcome, from: u64, of: u64 },
}

/// What may not happen where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misstep {
    /// The worker spoke out of its turn.
    #[error("the worker spoke although nothing was asked of it")]
    OutOfPhase,
    /// It left out or repeated a turn.
    #[error("the worker sent turn {found} where turn {due} was due")]
    WrongTurn {
        /// The number that was due.
        due: u64,
        /// The number that came.
        found: u64,
    },
    /// The session is over, or about to be.
    #[error("the session is over")]
    Over,
    /// Nothing waits for that word.
    #[error("the session does not wait for a word on that operation")]
    NotUnsure,
    /// Too many messages wait.
    #[error("{MOST_WAITING} messages wait to be told")]
    TooManyMessages,
    /// The task of the session lost its way.
    #[error("something was reported that cannot have happened")]
    Impossible,
}

/// What is recorded of a session's last turn and messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    /// How many turns there are.
    pub(super) turns: u64,
    /// Calls of the last one.
    pub(super) calls: u64,
    /// Those that have an answer; calls are answered in order.
    pub(super) answered: u64,
    /// Whether it waits for a message.
    pub(super) awaits: bool,
    /// Whether it was told one.
    pub(super) told: bool,
    /// Messages that were not told yet.
    pub(super) waiting: u64,
    /// Whether there was a worker before.
    pub(super) begun: bool,
    /// Whether the first call without an answer has an operation.
    pub(super) proposed: bool,
    /// What it was about to end in, once that call is over.
    pub(super) closing: Option<Outcome>,
}

impl Course {
    /// Takes up a session where its record ends. One that was about to end ends; all others hire a worker first.
    pub(super) fn take_up(recorded: &Recorded) -> (Self, Vec<Action>) {
        let Recorded { turns, calls, answered, awaits, told, waiting, begun, proposed, closing } = *recorded;
        let awaits = awaits && !told;
        let stage = Stage::Calling { next: answered, of: calls, under_way: false };
        let mut course = Self { turns, awaits, stage, seat: Seat::Empty, losses: 0, begun, waiting };
        let mut actions = Vec::new();
        match closing {
            // What has an operation is only waited for.
            Some(outcome) if proposed => {
                course.stage = Stage::Closing { outcome, call: answered, of: calls };
                actions.push(Action::Carry { call: answered });
            }
            Some(outcome) => course.conclude(outcome, answered, calls, &mut actions),
            None => actions.push(Action::Hire { after: Duration::ZERO }),
        }
        course.follow(&mut actions);
        (course, actions)
    }

    /// The state that an operator sees. That a question waits for an operator is known from the operations.
    pub(super) const fn state(&self) -> State {
        match self.stage {
            Stage::Over(outcome) => State::Ended { outcome },
            Stage::Unsure { .. } => State::Waiting { waiting_for: WaitingFor::Reconcile },
            Stage::Listening => State::Waiting { waiting_for: WaitingFor::Message },
            Stage::Asking { .. } | Stage::Calling { .. } | Stage::Closing { .. } => {
                if self.begun {
                    State::Running
                } else {
                    State::Starting
                }
            }
        }
    }

    /// What it is about to end in, once the call that is under way is over.
    pub(super) const fn closing(&self) -> Option<Outcome> {
        match self.stage {
            Stage::Closing { outcome, .. } => Some(outcome),
            Stage::Asking { .. } | Stage::Calling { .. } | Stage::Unsure { .. } | Stage::Listening | Stage::Over(_) => {
                None
            }
        }
    }

    /// Whether nothing can follow.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_))
    }

    /// The operation that a person's word is waited for.
    pub(super) const fn unsure(&self) -> Option<(u64, OperationId)> {
        match self.stage {
            Stage::Unsure { call, operation, .. } => Some((call, operation)),
            Stage::Calling { .. }
            | Stage::Asking { .. }
            | Stage::Listening
            | Stage::Closing { .. }
            | Stage::Over(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
