//! Between service and worker.

use salaam_core::{
    canary::{Canary, MAX_CANARY},
    tool::{Answer, MAX_ANSWER_BYTES, MAX_ARGUMENTS_BYTES},
    worker::{
        Begin, FromWorker, MAX_CALLS, MAX_REASON_BYTES, MAX_TASK_BYTES, MAX_TEXT_BYTES, MAX_TOOL_BYTES, MAX_TOOLS,
        MAX_TURN_BYTES, MAX_TURNS, PastTurn, RawCall, ToWorker, Turn,
    },
};

use crate::{
    bounds::{self, MAX_ERRNO, MAX_SIGNAL, MAX_WORD_BYTES, WireError},
    worker_wire as wire,
};

impl From<ToWorker> for wire::ToWorker {
    fn from(message: ToWorker) -> Self {
        use wire::to_worker::Message as Form;
        let form = match message {
            ToWorker::Begin(begin) => Form::Begin(begin.into()),
            ToWorker::Past(past) => Form::Past(past.into()),
            ToWorker::Answers { turn, answers } => {
                Form::Answers(wire::Answers { turn, answers: answers.into_iter().map(Into::into).collect() })
            }
            ToWorker::Message { text } => Form::Said(wire::Message { text }),
            ToWorker::Stop => Form::Stop(wire::Stop {}),
        };
        Self { message: Some(form) }
    }
}

impl TryFrom<wire::ToWorker> for ToWorker {
    type Error = WireError;

    fn try_from(message: wire::ToWorker) -> Result<Self, WireError> {
        use wire::to_worker::Message as Form;
        Ok(match bounds::present("message", message.message)? {
            Form::Begin(begin) => Self::Begin(begin.try_into()?),
            Form::Past(past) => Self::Past(past.try_into()?),
            Form::Answers(given) => Self::Answers { turn: number(given.turn)?, answers: answers(given.answers)? },
            Form::Said(said) => Self::Message { text: bounds::text("message.text", said.text, MAX_TEXT_BYTES)? },
            Form::Stop(wire::Stop {}) => Self::Stop,
        })
    }
}

impl From<Begin> for wire::Begin {
    fn from(begin: Begin) -> Self {
        Self {
            session: begin.session.to_string(),
            epoch: begin.epoch,
            provider: begin.provider.as_str().into(),
            task: begin.task,
            profile: begin.profile.as_str().into(),
            tools: begin.tools,
            past: begin.past,
        }
    }
}

impl TryFrom<wire::Begin> for Begin {
    type Error = WireError;

    fn try_from(begin: wire::Begin) -> Result<Self, WireError> {
        if begin.epoch == 0 {
            return Err(WireError::Missing { field: "epoch" });
        }
        if begin.past > MAX_TURNS {
            return Err(WireError::Form { field: "past", form: "at most MAX_TURNS" });
        }
        Ok(Self {
            session: bounds::id("session", &begin.session)?,
            epoch: begin.epoch,
            provider: bounds::word("provider", &begin.provider)?,
            task: bounds::text("task", begin.task, MAX_TASK_BYTES)?,
            profile: bounds::word("profile", &begin.profile)?,
            tools: bounds::list("tools", begin.tools, MAX_TOOLS, |tool| bounds::name("tools", tool))?,
            past: begin.past,
        })
    }
}

impl From<PastTurn> for wire::PastTurn {
    fn from(past: PastTurn) -> Self {
        Self {
            turn: Some(past.turn.into()),
            answers: past.answers.into_iter().map(Into::into).collect(),
            message: past.message,
        }
    }
}

impl TryFrom<wire::PastTurn> for PastTurn {
    type Error = WireError;

    fn try_from(past: wire::PastTurn) -> Result<Self, WireError> {
        let turn = Turn::try_from(bounds::present("past.turn", past.turn)?)?;
        let answers = answers(past.answers)?;
        if !answers.is_empty() && answers.len() != turn.calls.len() {
            return Err(WireError::Form { field: "past.answers", form: "one for each call, or none" });
        }
        let message = past.message.map(|text| bounds::text("past.message", text, MAX_TEXT_BYTES)).transpose()?;
        Ok(Self { turn, answers, message })
    }
}

impl From<Answer> for wire::Answer {
    fn from(answer: Answer) -> Self {
        Self {
            outcome: answer.outcome.as_str().into(),
            exit_code: answer.exit_code,
            signal: answer.signal,
            stdout: answer.stdout,
            stderr: answer.stderr,
            truncated: answer.truncated,
            comment: answer.comment,
            operation: answer.operation.map(|operation| operation.to_string()),
        }
    }
}

impl TryFrom<wire::Answer> for Answer {
    type Error = WireError;

    fn try_from(answer: wire::Answer) -> Result<Self, WireError> {
        if answer.exit_code.is_some_and(|code| !(0..=255).contains(&code)) {
            return Err(WireError::Form { field: "answer.exit_code", form: "from 0 to 255" });
        }
        if answer.signal.is_some_and(|signal| !(1..=MAX_SIGNAL).contains(&signal)) {
            return Err(WireError::Form { field: "answer.signal", form: "a signal" });
        }
        let text = |field, text| bounds::text(field, text, MAX_ANSWER_BYTES);
        Ok(Self {
            outcome: bounds::word("answer.outcome", &answer.outcome)?,
            exit_code: answer.exit_code,
            signal: answer.signal,
            stdout: text("answer.stdout", answer.stdout)?,
            stderr: text("answer.stderr", answer.stderr)?,
            truncated: answer.truncated,
            comment: answer.comment.map(|comment| text("answer.comment", comment)).transpose()?,
            operation: answer.operation.map(|operation| bounds::id("answer.operation", &operation)).transpose()?,
        })
    }
}

impl From<FromWorker> for wire::FromWorker {
    fn from(message: FromWorker) -> Self {
        use wire::from_worker::Message as Form;
        let form = match message {
            FromWorker::Ready { build, canary } => {
                let canary = canary.into_iter().map(|c| wire::Canary { attack: c.attack, errno: c.errno }).collect();
                Form::Ready(wire::Ready { build, canary })
            }
            FromWorker::Turn(turn) => Form::Turn(turn.into()),
            FromWorker::Ended { outcome, reason } => Form::Ended(wire::Ended {
                outcome: outcome.as_str().into(),
                reason: bounds::cut_to(reason, MAX_REASON_BYTES),
            }),
        };
        Self { message: Some(form) }
    }
}

impl TryFrom<wire::FromWorker> for FromWorker {
    type Error = WireError;

    fn try_from(message: wire::FromWorker) -> Result<Self, WireError> {
        use wire::from_worker::Message as Form;
        Ok(match bounds::present("message", message.message)? {
            Form::Ready(ready) => {
                let canary = ready.canary.into_iter().map(|c| (c.attack, c.errno)).collect();
                Self::Ready { build: build(ready.build)?, canary: canaries(canary)? }
            }
            Form::Turn(turn) => Self::Turn(turn.try_into()?),
            Form::Ended(ended) => Self::Ended {
                outcome: bounds::word("ended.outcome", &ended.outcome)?,
                reason: bounds::text("ended.reason", ended.reason, MAX_REASON_BYTES)?,
            },
        })
    }
}

impl From<Turn> for wire::Turn {
    fn from(turn: Turn) -> Self {
        let call = |call: RawCall| wire::Call { tool: call.tool, arguments: call.arguments };
        Self {
            number: turn.number,
            text: turn.text,
            calls: turn.calls.into_iter().map(call).collect(),
            awaits: turn.awaits,
        }
    }
}

impl TryFrom<wire::Turn> for Turn {
    type Error = WireError;

    fn try_from(turn: wire::Turn) -> Result<Self, WireError> {
        let given = turn.calls.iter().map(|call| call.arguments.len()).fold(turn.text.len(), usize::saturating_add);
        if given > MAX_TURN_BYTES {
            return Err(WireError::TooLong { field: "turn", given, most: MAX_TURN_BYTES });
        }
        Ok(Self {
            number: number(turn.number)?,
            text: bounds::text("turn.text", turn.text, MAX_TEXT_BYTES)?,
            calls: bounds::list("turn.calls", turn.calls, MAX_CALLS, |call| {
                Ok(RawCall {
                    tool: bounds::text("call.tool", call.tool, MAX_TOOL_BYTES)?,
                    arguments: bounds::text("call.arguments", call.arguments, MAX_ARGUMENTS_BYTES)?,
                })
            })?,
            awaits: turn.awaits,
        })
    }
}

fn answers(answers: Vec<wire::Answer>) -> Result<Vec<Answer>, WireError> {
    bounds::list("answers", answers, MAX_CALLS, Answer::try_from)
}

const fn number(turn: u64) -> Result<u64, WireError> {
    if turn >= MAX_TURNS { Err(WireError::Form { field: "turn.number", form: "below MAX_TURNS" }) } else { Ok(turn) }
}

pub(crate) fn build(build: String) -> Result<String, WireError> {
    if build.is_empty() {
        return Err(WireError::Missing { field: "build" });
    }
    bounds::text("build", build, MAX_WORD_BYTES)
}

/// What a confined process says that it tried. None tried is no proof.
pub(crate) fn canaries(canary: Vec<(String, i32)>) -> Result<Vec<Canary>, WireError> {
    if canary.is_empty() {
        return Err(WireError::Missing { field: "canary" });
    }
    bounds::list("canary", canary, MAX_CANARY, |(attack, errno)| {
        if !(0..=MAX_ERRNO).contains(&errno) {
            return Err(WireError::Form { field: "canary.errno", form: "0 or an errno" });
        }
        Ok(Canary { attack: bounds::name("canary.attack", attack)?, errno })
    })
}

#[cfg(test)]
mod tests;
