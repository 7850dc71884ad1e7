//! One step of a session: recorded with everything that follows from it and can be recorded, then done.

use std::{ops::Range, sync::Arc, time::Duration};

use salaam_core::{policy::Profile, session::Outcome, tool::Answer};

use super::{
    answer,
    carry::{self, Errand, Known},
    course::{Action, Course, Event, Misstep},
    error::SessionError,
    owner::{Carrying, Due, Owner, Seat, leaving},
    record::{self, Note},
    staff::Staff,
};
use crate::store::{Change, Mail, ModelCall, SessionRow, Transaction};

impl<S: Staff> Owner<S> {
    /// Records what the record itself leads to, and does it.
    pub(super) async fn begin(&mut self, actions: Vec<Action>) -> Result<(), SessionError> {
        self.record(self.course, &actions, Note::default()).await?;
        self.perform(actions).await
    }

    /// The record of an answer.
    pub(super) fn answered(&self, call: ModelCall, answer: &Answer) -> Note {
        let answer = answer.to_json();
        let bytes = answer.len() as u64;
        Note { changes: vec![Change::AnswerCall { session: self.id, call, answer }], bytes, ..Note::default() }
    }

    /// Records a step that cannot be a misstep of the worker, and does what follows.
    pub(super) async fn report(&mut self, event: Event, note: Note) -> Result<(), SessionError> {
        match self.advance(event, note).await? {
            Ok(()) => Ok(()),
            Err(misstep) => {
                tracing::error!(session = %self.id, ?event, %misstep, "a session lost its way; it is begun anew");
                Err(SessionError::Missing { session: self.id, what: "a step before this one" })
            }
        }
    }

    /// Records a step and does what follows from it. A step that may not be taken changes nothing.
    pub(super) async fn advance(&mut self, event: Event, note: Note) -> Result<Result<(), Misstep>, SessionError> {
        let (next, actions) = match self.course.step(event) {
            Ok(step) => step,
            Err(misstep) => return Ok(Err(misstep)),
        };
        if matches!(event, Event::Message) {
            self.mail.all += 1;
        }
        if let Err(error) = self.record(next, &actions, note).await {
            if matches!(event, Event::Message) {
                self.mail.all -= 1;
            }
            return Err(error);
        }
        self.perform(actions).await?;
        Ok(Ok(()))
    }

    /// Records where the session stands after a step, with all that follows from it and can be recorded.
    async fn record(&mut self, next: Course, actions: &[Action], mut note: Note) -> Result<(), SessionError> {
        let epoch = note.epoch.unwrap_or_else(|| record::epoch(&self.row.document));
        let mut mail = self.mail;
        for action in actions {
            match *action {
                Action::Ask { message, .. } => {
                    if message && let Some(turn) = next.turns.checked_sub(1) {
                        mail = Mail { told: mail.told + 1, last: Some(turn), ..mail };
                        note.changes.push(Change::TellMessage { session: self.id, number: mail.told, turn });
                    }
                    note.events.push(record::requested(self.id, &self.row.document, epoch, next.turns)?);
                }
                Action::Conclude { outcome, from, of } => self.conclude(&mut note, outcome, from..of, &next).await?,
                Action::Hire { .. } | Action::Dismiss | Action::Carry { .. } | Action::Void | Action::CallOff => {}
            }
        }
        let mut document = self.row.document.clone();
        record::stand(&mut document, &next, &note);
        if document != self.row.document {
            // First: what comes with it may ask for the session.
            let row = SessionRow { document: document.clone(), ..self.row.clone() };
            note.changes.insert(0, Change::PutSession(row));
        }
        if !note.changes.is_empty() || !note.events.is_empty() {
            let transaction = Transaction { changes: note.changes, events: note.events };
            self.shared.store.commit(transaction).await?;
        }
        (self.row.document, self.course, self.mail) = (document, next, mail);
        self.bytes += note.bytes;
        Ok(())
    }

    /// The end, with an answer to every call that has none.
    async fn conclude(
        &mut self,
        note: &mut Note,
        outcome: Outcome,
        open: Range<u64>,
        next: &Course,
    ) -> Result<(), SessionError> {
        let store = self.shared.store.clone();
        for call in open {
            let call = ModelCall { turn: next.turns.saturating_sub(1), call };
            let operation = store.call(self.id, call).await?.and_then(|row| row.operation);
            let row = match operation {
                Some(operation) => store.operation(operation).await?,
                None => None,
            };
            let answer = match row {
                Some(row) => answer::of_operation(&store, &row).await,
                None => answer::overtaken(),
            };
            note.changes.extend(self.answered(call, &answer).changes);
        }
        note.changes.push(Change::RemoveScript(self.id));
        let reason = note.reason.as_deref().or_else(|| record::reason(&self.row.document));
        note.events.push(record::ended(self.id, outcome.as_str(), reason, next.turns)?);
        Ok(())
    }

    async fn perform(&mut self, actions: Vec<Action>) -> Result<(), SessionError> {
        for action in actions {
            match action {
                Action::Hire { after } => self.hire(after),
                Action::Dismiss => self.dismiss(),
                Action::Ask { begin, .. } => self.ask(begin).await?,
                Action::Carry { call } => self.carry(call),
                Action::Void => self.void().await,
                Action::CallOff => self.call_off().await,
                // Recorded with the step.
                Action::Conclude { .. } => {}
            }
        }
        Ok(())
    }

    fn hire(&mut self, after: Duration) {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let before = std::mem::replace(&mut self.seat, Seat::Empty);
        self.seat = Seat::Hiring(Box::pin(async move {
            // Never two workers of one session.
            if let Seat::Leaving(leaving) = before {
                leaving.await;
            }
            tokio::time::sleep(after).await;
            shared.hire(id).await
        }));
    }

    pub(super) fn dismiss(&mut self) {
        self.seat = match std::mem::replace(&mut self.seat, Seat::Empty) {
            Seat::Here(hired) => leaving(hired.worker),
            // One that is on its way ends with the future that waits for it.
            Seat::Empty | Seat::Hiring(_) => Seat::Empty,
            Seat::Leaving(leaving) => Seat::Leaving(leaving),
        };
    }

    fn carry(&mut self, call: u64) {
        let call = ModelCall { turn: self.course.turns.saturating_sub(1), call };
        let profile = self.row.document.get("profile").and_then(serde_json::Value::as_str);
        let operation = Known::default();
        let errand = Errand {
            session: self.id,
            workspace: self.row.workspace,
            // What cannot be read is the least of all.
            profile: profile.and_then(|word| word.parse().ok()).unwrap_or(Profile::ReadOnly),
            epoch: record::epoch(&self.row.document),
            call,
            operation: operation.clone(),
        };
        let shared = Arc::clone(&self.shared);
        let doing = Box::pin(async move { carry::through(&shared.store, &shared.staff, &errand).await });
        self.carrying = Some(Carrying { call, operation, doing });
    }

    /// The worker that asked is gone: a question of it is void, and what was not proposed yet waits for the next.
    async fn void(&mut self) {
        let carried = self.carrying.as_ref().map(|carrying| carrying.operation.id());
        match carried {
            Some(Some(operation)) => self.shared.staff.void(operation).await,
            Some(None) => {
                self.carrying = None;
                self.due = Some(Due::Withdrawn);
            }
            None => {}
        }
    }

    async fn call_off(&mut self) {
        let carried = self.carrying.as_ref().map(|carrying| carrying.operation.id());
        match carried {
            Some(Some(operation)) => self.shared.staff.call_off(operation).await,
            Some(None) | None => {
                self.carrying = None;
                self.due = Some(Due::Withdrawn);
            }
        }
    }
}
