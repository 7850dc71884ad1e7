//! What crosses between the service and the worker of one session, as values, and the phases in which each may
//! come. The wire form and its checks are in salaam-proto.
//!
//! The worker is hostile: it holds a provider's words. Its session is known from its socketpair, never from a field,
//! and a message out of its phase ends the link.

use crate::{
    canary::Canary,
    id::SessionId,
    policy::{Profile, word},
    tool::Answer,
};

/// The largest message to the worker: a past turn with its answers and the message after it.
pub const MAX_TO_WORKER_BYTES: usize = MAX_TURN_BYTES + (2 << 20);
/// The largest message from the worker: one turn.
pub const MAX_FROM_WORKER_BYTES: usize = MAX_TURN_BYTES + (64 << 10);
/// Text and arguments of one turn together.
pub const MAX_TURN_BYTES: usize = 4 << 20;
/// The text of one turn, or of an operator's message.
pub const MAX_TEXT_BYTES: usize = 256 << 10;
/// The task of a session.
pub const MAX_TASK_BYTES: usize = 64 << 10;
/// Calls of one turn.
pub const MAX_CALLS: usize = 32;
/// The name of a tool, whether there is one or not.
pub const MAX_TOOL_BYTES: usize = 128;
/// Turns of one session.
pub const MAX_TURNS: u64 = 10_000;
/// Names of tools in the inventory.
pub const MAX_TOOLS: usize = 16;
/// Why a session ended.
pub const MAX_REASON_BYTES: usize = 4096;

/// Who speaks to the worker's provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// A file of turns: no network, no key.
    Scripted,
}
word!(Provider { Scripted = "scripted" });

/// What the service tells the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToWorker {
    /// First, once, to a worker that is ready.
    Begin(Begin),
    /// A turn of an earlier epoch, in order, as many as [`Begin::past`] says.
    Past(PastTurn),
    /// To every call of the turn, in their order. A turn without calls is answered, too: it is recorded now, and the
    /// worker may go on.
    Answers {
        /// The turn.
        turn: u64,
        /// One for each call.
        answers: Vec<Answer>,
    },
    /// An operator's words, when the worker waits for them.
    Message {
        /// At most [`MAX_TEXT_BYTES`].
        text: String,
    },
    /// Nothing more is wanted; the link is closed after it.
    Stop,
}

/// What a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Its id, to be named in a provider's requests.
    pub session: SessionId,
    /// Which worker of the session this is, from 1.
    pub epoch: u64,
    /// Who is asked.
    pub provider: Provider,
    /// What is to be done.
    pub task: String,
    /// Under which profile commands run.
    pub profile: Profile,
    /// The inventory: which tools may be called.
    pub tools: Vec<String>,
    /// How many [`ToWorker::Past`] follow.
    pub past: u64,
}

/// A turn that an earlier worker took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastTurn {
    /// As it was proposed.
    pub turn: Turn,
    /// One for each call. None for the last turn where its calls are still open: the worker then waits for
    /// [`ToWorker::Answers`].
    pub answers: Vec<Answer>,
    /// What an operator said after it.
    pub message: Option<String>,
}

/// What the worker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWorker {
    /// Confined, and shown to be. It comes first and unasked: a worker is told nothing before.
    Ready {
        /// Its build, as `salaam --version` prints it.
        build: String,
        /// What it tried and could not do.
        canary: Vec<Canary>,
    },
    /// What the provider proposes next.
    Turn(Turn),
    /// There will be no more turns.
    Ended {
        /// How.
        outcome: EndedBy,
        /// Why, for a person.
        reason: String,
    },
}

/// One turn of the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    /// Its number, from 0, without gaps.
    pub number: u64,
    /// What it says.
    pub text: String,
    /// What it calls, in order.
    pub calls: Vec<RawCall>,
    /// Whether it then waits for an operator's message.
    pub awaits: bool,
}

/// A call as the provider wrote it; [`crate::tool::parse`] makes a [`Call`](crate::tool::Call) of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawCall {
    /// The tool.
    pub tool: String,
    /// Its arguments: JSON.
    pub arguments: String,
}

/// How a worker may end its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndedBy {
    /// The provider is done.
    Completed,
    /// It could not go on.
    Failed,
    /// A script's `expect` did not hold.
    ScriptMismatch,
}
word!(EndedBy { Completed = "completed", Failed = "failed", ScriptMismatch = "script-mismatch" });

impl EndedBy {
    /// What it means for the session.
    pub const fn outcome(self) -> crate::session::Outcome {
        match self {
            Self::Completed => crate::session::Outcome::Completed,
            Self::Failed => crate::session::Outcome::Failed,
            Self::ScriptMismatch => crate::session::Outcome::ScriptMismatch,
        }
    }
}

/// Where the conversation with a worker stands: each message is allowed in some phases and ends the link in all
/// others. Both sides keep one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// The worker confines itself.
    #[default]
    Silent,
    /// It has shown that it is confined, and knows nothing.
    Ready,
    /// [`ToWorker::Begin`] was sent; so many past turns follow.
    Loading {
        /// Past turns still to come, at least one.
        left: u64,
        /// The number of the next of them.
        past: u64,
    },
    /// The worker takes its next turn, or ends.
    Thinking {
        /// The number of that turn.
        next: u64,
    },
    /// The service owes the answers to a turn.
    Answering {
        /// The turn.
        turn: u64,
        /// How many calls it has.
        calls: usize,
        /// Whether the worker waits for a message after them.
        awaits: bool,
    },
    /// The worker waits for a message.
    Listening {
        /// The number of the turn after it.
        next: u64,
    },
    /// The worker was told to stop: what it still says is not heard.
    Stopping,
    /// The worker ended the session.
    Over,
}

/// A message out of its phase: the link is ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{message}` is out of place while the link is {phase:?}")]
pub struct OutOfPhase {
    /// The message, by its name.
    pub message: &'static str,
    /// Where the conversation stood.
    pub phase: Phase,
}

impl Phase {
    /// The phase after the service has sent `message`.
    ///
    /// # Errors
    /// It is out of place. A worker that hears such a message ends itself.
    pub fn sent(self, message: &ToWorker) -> Result<Self, OutOfPhase> {
        let refuse = |message| Err(OutOfPhase { message, phase: self });
        match (message, self) {
            (ToWorker::Begin(Begin { past: 0, .. }), Self::Ready) => Ok(Self::Thinking { next: 0 }),
            (ToWorker::Begin(begin), Self::Ready) => Ok(Self::Loading { left: begin.past, past: 0 }),
            (ToWorker::Begin(_), _) => refuse("begin"),
            (ToWorker::Past(given), Self::Loading { left, past }) if given.turn.number == past => {
                given.after(left.saturating_sub(1)).ok_or(OutOfPhase { message: "past", phase: self })
            }
            (ToWorker::Past(_), _) => refuse("past"),
            (ToWorker::Answers { turn, answers }, Self::Answering { turn: open, calls, awaits })
                if *turn == open && answers.len() == calls =>
            {
                let next = open.saturating_add(1);
                Ok(if awaits { Self::Listening { next } } else { Self::Thinking { next } })
            }
            (ToWorker::Answers { .. }, _) => refuse("answers"),
            (ToWorker::Message { .. }, Self::Listening { next }) => Ok(Self::Thinking { next }),
            (ToWorker::Message { .. }, _) => refuse("message"),
            (ToWorker::Stop, Self::Silent | Self::Stopping) => refuse("stop"),
            (ToWorker::Stop, _) => Ok(Self::Stopping),
        }
    }

    /// The phase after the worker has said `message`.
    ///
    /// # Errors
    /// It is out of place. The service ends such a worker.
    pub fn heard(self, message: &FromWorker) -> Result<Self, OutOfPhase> {
        let refuse = |message| Err(OutOfPhase { message, phase: self });
        match (message, self) {
            // What was under way when it was told to stop.
            (FromWorker::Turn(_) | FromWorker::Ended { .. }, Self::Stopping) => Ok(Self::Stopping),
            (FromWorker::Ready { .. }, Self::Silent) => Ok(Self::Ready),
            (FromWorker::Ready { .. }, _) => refuse("ready"),
            (FromWorker::Turn(turn), Self::Thinking { next }) if turn.number == next => Ok(turn.open()),
            (FromWorker::Turn(_), _) => refuse("turn"),
            (FromWorker::Ended { .. }, Self::Thinking { .. }) => Ok(Self::Over),
            (FromWorker::Ended { .. }, _) => refuse("ended"),
        }
    }
}

impl Turn {
    const fn open(&self) -> Phase {
        Phase::Answering { turn: self.number, calls: self.calls.len(), awaits: self.awaits }
    }
}

impl PastTurn {
    /// The phase after it, with `left` more to come; none = only the last one may be open.
    const fn after(&self, left: u64) -> Option<Phase> {
        let next = self.turn.number.saturating_add(1);
        let answered = self.answers.len() == self.turn.calls.len();
        match (left, answered) {
            (0, false) if self.answers.is_empty() => Some(self.turn.open()),
            (0, true) if self.turn.awaits && self.message.is_none() => Some(Phase::Listening { next }),
            (0, true) => Some(Phase::Thinking { next }),
            (1.., true) => Some(Phase::Loading { left, past: next }),
            (_, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::State;

    fn turn(number: u64, calls: usize, awaits: bool) -> Turn {
        let call = RawCall { tool: "salaam_local".into(), arguments: "{}".into() };
        Turn { number, text: String::new(), calls: vec![call; calls], awaits }
    }

    fn past(number: u64, calls: usize, answers: usize, awaits: bool, message: bool) -> ToWorker {
        ToWorker::Past(PastTurn {
            turn: turn(number, calls, awaits),
            answers: vec![Answer::new(State::Completed); answers],
            message: message.then(String::new),
        })
    }

    fn begin(past: u64) -> ToWorker {
        ToWorker::Begin(Begin {
            session: SessionId::new(0, [0; 10]),
            epoch: 1,
            provider: Provider::Scripted,
            task: String::new(),
            profile: Profile::WorkspaceWrite,
            tools: Vec::new(),
            past,
        })
    }

    fn answers(turn: u64, number: usize) -> ToWorker {
        ToWorker::Answers { turn, answers: vec![Answer::new(State::Completed); number] }
    }

    const MESSAGE: fn() -> ToWorker = || ToWorker::Message { text: String::new() };

    #[rustfmt::skip]
    #[test]
    fn the_service_may_send_what_the_table_says_and_nothing_else() {
        let phases = [
            Phase::Silent, Phase::Ready, Phase::Loading { left: 2, past: 3 }, Phase::Loading { left: 1, past: 3 },
            Phase::Thinking { next: 3 }, Phase::Answering { turn: 3, calls: 2, awaits: false },
            Phase::Answering { turn: 3, calls: 0, awaits: true }, Phase::Listening { next: 4 }, Phase::Stopping, Phase::Over,
        ];
        let allowed = [
            (1, begin(0), Phase::Thinking { next: 0 }),
            (1, begin(2), Phase::Loading { left: 2, past: 0 }),
            (2, past(3, 1, 1, false, false), Phase::Loading { left: 1, past: 4 }),
            // Only the last one may be open, and then wholly.
            (2, past(3, 0, 0, true, false), Phase::Loading { left: 1, past: 4 }),
            (3, past(3, 1, 1, false, false), Phase::Thinking { next: 4 }),
            (3, past(3, 1, 0, true, false), Phase::Answering { turn: 3, calls: 1, awaits: true }),
            (3, past(3, 1, 1, true, false), Phase::Listening { next: 4 }),
            (3, past(3, 1, 1, true, true), Phase::Thinking { next: 4 }),
            (5, answers(3, 2), Phase::Thinking { next: 4 }),
            (6, answers(3, 0), Phase::Listening { next: 4 }),
            (7, MESSAGE(), Phase::Thinking { next: 4 }),
        ];
        for (place, message, after) in &allowed {
            assert_eq!(phases[*place].sent(message), Ok(*after), "{message:?}");
        }
        let all = [
            begin(0), begin(2), past(3, 1, 1, false, false), past(3, 2, 1, false, false), past(4, 0, 0, false, false),
            past(3, 1, 0, true, false), answers(3, 2), answers(3, 1), answers(4, 2), answers(3, 0), MESSAGE(),
        ];
        for (place, phase) in phases.iter().enumerate() {
            for message in &all {
                let listed = allowed.iter().any(|(at, allowed, _)| (*at, allowed) == (place, message));
                let also = matches!((place, message), (3, ToWorker::Past(p)) if p.turn.calls.len() == 1 && p.turn.number == 3);
                assert_eq!(phase.sent(message).is_ok(), listed || also, "{phase:?} {message:?}");
            }
            let stops = !matches!(phase, Phase::Silent | Phase::Stopping);
            assert_eq!(phase.sent(&ToWorker::Stop).is_ok(), stops, "{phase:?}");
        }
    }

    #[test]
    fn the_worker_may_say_what_the_table_says_and_nothing_else() {
        let ready = FromWorker::Ready { build: "b".into(), canary: Vec::new() };
        let ended = FromWorker::Ended { outcome: EndedBy::Completed, reason: String::new() };
        let said = |number| FromWorker::Turn(turn(number, 1, false));
        let open = Phase::Answering { turn: 3, calls: 1, awaits: false };
        for (phase, heard) in [
            (Phase::Silent, [Some(Phase::Ready), None, None, None]),
            (Phase::Ready, [None; 4]),
            (Phase::Loading { left: 1, past: 2 }, [None; 4]),
            (Phase::Thinking { next: 3 }, [None, Some(open), None, Some(Phase::Over)]),
            (open, [None; 4]),
            (Phase::Listening { next: 3 }, [None; 4]),
            (Phase::Stopping, [None, Some(Phase::Stopping), Some(Phase::Stopping), Some(Phase::Stopping)]),
            (Phase::Over, [None; 4]),
        ] {
            let all = [&ready, &said(3), &said(4), &ended].map(|message| phase.heard(message).ok());
            assert_eq!(all, heard, "{phase:?}");
        }
    }
}
