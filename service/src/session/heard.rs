//! What an owner makes of what it heard: each is recorded, and what follows from it is done.

use std::time::{Duration, Instant};

use salaam_core::worker::{EndedBy, RawCall, Turn};

use super::{
    answer,
    carry::Carried,
    course::{Event, MOST_TURNS},
    error::SessionError,
    owner::{Carrying, Hired, Owner, Seat, leaving},
    record::{self, Note},
    staff::{Colleague, Staff},
};
use crate::{
    store::{CallRow, Change, TurnRow},
    workers::WorkerError,
};

/// Everything that is said in a session; a new worker is told all of it.
const MOST_TRANSCRIPT_BYTES: u64 = 64 << 20;
/// A worker that lived so long was not lost by what made it start.
const SETTLED: Duration = Duration::from_secs(60);

impl<S: Staff> Owner<S> {
    pub(super) async fn hired(&mut self, worker: S::Worker) -> Result<(), SessionError> {
        let epoch = record::epoch(&self.row.document) + 1;
        let event = record::started(self.id, epoch, worker.pid(), &self.reason)?;
        self.seat = Seat::Here(Box::new(Hired { worker, since: Instant::now(), asked: None }));
        self.report(Event::Ready, Note { epoch: Some(epoch), ..Note::of(event) }).await
    }

    /// The worker is gone, could not be started, or is not believed any more.
    pub(super) async fn lost(&mut self, error: &WorkerError) -> Result<(), SessionError> {
        let before = record::epoch(&self.row.document);
        let (epoch, pid, settled) = match std::mem::replace(&mut self.seat, Seat::Empty) {
            Seat::Here(hired) => {
                let found = (before, Some(hired.worker.pid()), hired.since.elapsed() >= SETTLED);
                self.seat = leaving(hired.worker);
                found
            }
            // It never was one: the next one has another number all the same.
            Seat::Empty | Seat::Hiring(_) | Seat::Leaving(_) => (before + 1, None, false),
        };
        let reason = error.to_string();
        let event = record::lost(self.id, epoch, pid, &reason)?;
        self.reason = format!("the worker before was lost: {reason}");
        let why = format!("its worker was lost too often; at last: {reason}");
        self.report(Event::Lost { settled }, Note { epoch: Some(epoch), reason: Some(why), ..Note::of(event) }).await
    }

    pub(super) async fn turn(&mut self, turn: Turn) -> Result<(), SessionError> {
        let epoch = record::epoch(&self.row.document);
        let calls = turn.calls.iter().map(|call| call.tool.len() + call.arguments.len());
        let bytes = (turn.text.len() + calls.sum::<usize>()) as u64;
        if self.bytes.saturating_add(bytes) > MOST_TRANSCRIPT_BYTES {
            let reason = format!("more was said in it than {MOST_TRANSCRIPT_BYTES} bytes");
            return self.report(Event::Fail, Note { reason: Some(reason), ..Note::default() }).await;
        }
        let event = Event::Turn { number: turn.number, calls: turn.calls.len() as u64, awaits: turn.awaits };
        let responded = record::responded(self.id, &self.row.document, epoch, &turn)?;
        let call =
            |call: RawCall| CallRow { tool: call.tool, arguments: call.arguments, operation: None, answer: None };
        let row = TurnRow {
            session: self.id,
            number: turn.number,
            epoch,
            text: turn.text,
            awaits: turn.awaits,
            calls: turn.calls.into_iter().map(call).collect(),
        };
        let reason = Some(format!("it took {} turns, which is the most", MOST_TURNS));
        let note = Note { changes: vec![Change::InsertTurn(row)], reason, bytes, ..Note::of(responded) };
        if let Seat::Here(hired) = &mut self.seat {
            hired.asked = None;
        }
        match self.advance(event, note).await? {
            Ok(()) => Ok(()),
            Err(misstep) => self.lost(&WorkerError::Impossible(misstep.to_string())).await,
        }
    }

    pub(super) async fn ended(&mut self, outcome: EndedBy, reason: String) -> Result<(), SessionError> {
        let note = Note { reason: Some(reason), ..Note::default() };
        match self.advance(Event::Ended(outcome.outcome()), note).await? {
            Ok(()) => Ok(()),
            Err(misstep) => self.lost(&WorkerError::Impossible(misstep.to_string())).await,
        }
    }

    pub(super) async fn carried(&mut self, carried: Carried) -> Result<(), SessionError> {
        let Some(Carrying { call, .. }) = self.carrying.take() else { return Ok(()) };
        let answer = match carried {
            Carried::Withdrawn => return self.report(Event::Withdrawn, Note::default()).await,
            Carried::Answer(answer) => *answer,
            Carried::Operation(operation) => {
                let store = &self.shared.store;
                let missing = SessionError::Missing { session: self.id, what: "an operation" };
                let row = store.operation(operation).await?.ok_or(missing)?;
                let unknown = row.state == salaam_core::operation::State::Unknown;
                if unknown && row.reconciled.is_none() {
                    return self.report(Event::Unknown(operation), Note::default()).await;
                }
                answer::of_operation(store, &row).await
            }
        };
        self.report(Event::Answered, self.answered(call, &answer)).await
    }
}
