//! What the worker says next, decided from what the service said: a state machine that touches nothing.
//!
//! Turns that an earlier worker of the session took are told, never taken again: their answers count as if they had
//! come just now. What the service says out of its phase ends the agent; it is never repaired.

use salaam_core::{
    id::OperationId,
    tool::Answer,
    worker::{FromWorker, OutOfPhase, Phase, ToWorker},
};

use crate::scripted::Scripted;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Say this to the service, and wait.
    Say(FromWorker),
    /// Wait for what the service says.
    Wait,
    /// Leave.
    Leave,
}

/// One session, from its first turn to its last.
#[derive(Debug)]
pub struct Agent {
    provider: Scripted,
    phase: Phase,
    /// The operations of every answered turn, for `$op:TURN.CALL`.
    operations: Vec<Vec<Option<OperationId>>>,
    /// The answers to the last one.
    answers: Vec<Answer>,
}

impl Agent {
    /// An agent that has shown that it is confined, and knows nothing of its session.
    pub const fn new(provider: Scripted) -> Self {
        Self { provider, phase: Phase::Ready, operations: Vec::new(), answers: Vec::new() }
    }

    /// Goes on with what the service said.
    ///
    /// # Errors
    /// It is out of place.
    pub fn step(&mut self, said: ToWorker) -> Result<Action, OutOfPhase> {
        self.phase = self.phase.sent(&said)?;
        match said {
            ToWorker::Past(past) if past.answers.len() == past.turn.calls.len() => self.keep(past.answers),
            ToWorker::Answers { turn: _, answers } => self.keep(answers),
            // The last one, and still open; of the others nothing is remembered.
            ToWorker::Past(_) | ToWorker::Begin(_) | ToWorker::Message { text: _ } | ToWorker::Stop => {}
        }
        match self.phase {
            Phase::Thinking { next } => self.think(next),
            Phase::Stopping => Ok(Action::Leave),
            Phase::Silent
            | Phase::Ready
            | Phase::Loading { .. }
            | Phase::Answering { .. }
            | Phase::Listening { .. }
            | Phase::Over => Ok(Action::Wait),
        }
    }

    fn keep(&mut self, answers: Vec<Answer>) {
        self.operations.push(answers.iter().map(|answer| answer.operation).collect());
        self.answers = answers;
    }

    fn think(&mut self, next: u64) -> Result<Action, OutOfPhase> {
        let known = |turn: usize, call: usize| *self.operations.get(turn)?.get(call)?;
        let say = self.provider.next(next, &self.answers, known);
        self.phase = self.phase.heard(&say)?;
        Ok(Action::Say(say))
    }
}

#[cfg(test)]
mod tests;
