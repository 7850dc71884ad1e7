//! Asking a worker for the next turn: a new one is told everything that was said, one that knows it the last answers.

use std::time::Instant;

use salaam_core::{
    policy::Profile,
    tool::{Answer, TOOLS},
    worker::{Begin, PastTurn, Provider, RawCall, ToWorker, Turn},
};

use super::{
    answer,
    error::SessionError,
    owner::{Owner, Seat},
    record,
    staff::{Colleague, Staff},
};
use crate::store::{CallRow, TurnQuery, TurnRow};

/// What is read of a transcript at once.
const PAGE_BYTES: usize = 1 << 20;

impl<S: Staff> Owner<S> {
    /// Asks. What is sent is recorded; a worker that cannot be told is lost, and the next one is told everything.
    pub(super) async fn ask(&mut self, begin: bool) -> Result<(), SessionError> {
        let sent = if begin { self.tell_everything().await? } else { self.tell_answers().await? };
        if let Seat::Here(hired) = &mut self.seat {
            hired.asked = Some(Instant::now());
        }
        if let Err(error) = sent {
            self.unheard(error);
        }
        Ok(())
    }

    async fn tell_everything(&mut self) -> Result<Result<(), crate::workers::WorkerError>, SessionError> {
        let store = self.shared.store.clone();
        let missing = |what| SessionError::Missing { session: self.id, what };
        let task = store.task(self.id).await?.ok_or_else(|| missing("the task"))?;
        let word = |key: &str| self.row.document.get(key).and_then(serde_json::Value::as_str);
        let begin = Begin {
            session: self.id,
            epoch: record::epoch(&self.row.document),
            provider: Provider::Scripted,
            task,
            profile: word("profile").and_then(|word| word.parse().ok()).unwrap_or(Profile::ReadOnly),
            tools: TOOLS.iter().map(|tool| (*tool).to_owned()).collect(),
            past: self.course.turns,
        };
        let Seat::Here(hired) = &mut self.seat else { return Ok(Ok(())) };
        if let Err(error) = hired.worker.send(ToWorker::Begin(begin)).await {
            return Ok(Err(error));
        }
        let mut from = 0;
        while from < self.course.turns {
            let page = store.turns(TurnQuery { session: self.id, from, bytes: PAGE_BYTES }).await?;
            if page.is_empty() {
                return Err(SessionError::Missing { session: self.id, what: "a turn" });
            }
            for row in page {
                from = row.number + 1;
                let message = if row.awaits { store.message_after(self.id, row.number).await? } else { None };
                let missing = SessionError::Missing { session: self.id, what: "an answer" };
                let past = past(row, message).ok_or(missing)?;
                if let Err(error) = hired.worker.send(ToWorker::Past(past)).await {
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(()))
    }

    async fn tell_answers(&mut self) -> Result<Result<(), crate::workers::WorkerError>, SessionError> {
        let store = self.shared.store.clone();
        let missing = |what| SessionError::Missing { session: self.id, what };
        let row = store.last_turn(self.id).await?.ok_or_else(|| missing("a turn"))?;
        let message = if row.awaits { store.message_after(self.id, row.number).await? } else { None };
        let answers = answers(&row.calls).ok_or_else(|| missing("an answer"))?;
        let Seat::Here(hired) = &mut self.seat else { return Ok(Ok(())) };
        if let Err(error) = hired.worker.send(ToWorker::Answers { turn: row.number, answers }).await {
            return Ok(Err(error));
        }
        match message {
            Some(text) => Ok(hired.worker.send(ToWorker::Message { text }).await),
            None => Ok(Ok(())),
        }
    }
}

/// Absent where an answer is missing or is none.
fn answers(calls: &[CallRow]) -> Option<Vec<Answer>> {
    calls.iter().map(|call| answer::parse(call.answer.as_deref()?)).collect()
}

fn past(row: TurnRow, message: Option<String>) -> Option<PastTurn> {
    let answers = answers(&row.calls)?;
    let call = |call: CallRow| RawCall { tool: call.tool, arguments: call.arguments };
    let calls = row.calls.into_iter().map(call).collect();
    Some(PastTurn { turn: Turn { number: row.number, text: row.text, calls, awaits: row.awaits }, answers, message })
}
