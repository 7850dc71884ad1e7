//! What a person tells a session that lives.

use salaam_core::{
    digest::Digest,
    id::{OperationId, SessionId},
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{
    answer,
    course::{Event, Misstep},
    error::SessionError,
    owner::Owner,
    record,
    record::Note,
    staff::Staff,
};
use crate::{
    operation::{Refusal, Who},
    store::{Change, CommitError, MessageRow, ModelCall},
};

/// Told when what was asked for is durable, or why it is not done.
pub(super) type Reply = oneshot::Sender<Result<(), Refusal>>;

/// What a session's owner is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Words for the agent.
    Message {
        text: String,
        who: Who,
        /// The caller's own id of the request and the digest of its content.
        request: Option<(String, Digest)>,
        reply: Reply,
    },
    /// The end.
    Cancel {
        who: Who,
        reply: Reply,
        /// Told when the session is over.
        over: oneshot::Sender<()>,
    },
    /// What became of an operation.
    Reconcile {
        operation: OperationId,
        /// `{"verdict","comment","by"}`.
        word: Value,
        reply: Reply,
    },
}

impl<S: Staff> Owner<S> {
    pub(super) async fn obey(&mut self, order: Order) -> Result<(), SessionError> {
        match order {
            Order::Message { text, who, request, reply } => {
                let number = self.mail.all + 1;
                let event = record::message(self.id, number, &text, &who)?;
                let bytes = text.len() as u64;
                let mut changes =
                    vec![Change::InsertMessage(MessageRow { session: self.id, number, turn: None, text })];
                changes.extend(request.map(|(request_id, fingerprint)| Change::RememberRequest {
                    request_id,
                    fingerprint,
                    subject: self.id.to_string(),
                }));
                let note = Note { changes, bytes, ..Note::of(event) };
                self.reply(Event::Message, note, reply).await
            }
            Order::Cancel { who, reply, over } => {
                let note = Note::of(record::cancelled(self.id, &who)?);
                let who = who.principal;
                self.await_end(over);
                self.reply(Event::Cancel, Note { reason: Some(format!("cancelled by {who}")), ..note }, reply).await
            }
            Order::Reconcile { operation, word, reply } => self.reconcile(operation, word, reply).await,
        }
    }

    async fn reconcile(&mut self, operation: OperationId, word: Value, reply: Reply) -> Result<(), SessionError> {
        let store = self.shared.store.clone();
        let missing = SessionError::Missing { session: self.id, what: "an operation" };
        let mut row = store.operation(operation).await?.ok_or(missing)?;
        let event = record::reconciled(&row, &word)?;
        let change = Change::Reconcile { id: operation, word: word.clone() };
        row.reconciled = Some(word);
        let waits = self.course.unsure().filter(|(_, unsure)| *unsure == operation);
        let Some((call, _)) = waits else {
            // The session does not wait for it: its call is still being looked at, or was answered.
            let transaction = crate::store::Transaction { changes: vec![change], events: vec![event] };
            let done = store.commit(transaction).await;
            let _gone = reply.send(done.map(drop).map_err(|error| super::register::conflict(&error)));
            return Ok(());
        };
        let call = ModelCall { turn: self.course.turns.saturating_sub(1), call };
        let answer = answer::of_operation(&store, &row).await;
        let answered = self.answered(call, &answer);
        let mut changes = vec![change];
        changes.extend(answered.changes);
        let note = Note { changes, bytes: answered.bytes, ..Note::of(event) };
        self.reply(Event::Reconciled(operation), note, reply).await
    }

    /// Takes a step that a person asked for, and tells them what came of it.
    async fn reply(&mut self, event: Event, note: Note, reply: Reply) -> Result<(), SessionError> {
        let taken = self.advance(event, note).await;
        // The same request came twice at once, and the other was first: that is no reason to begin anew.
        if let (Event::Message, Err(SessionError::Write(error @ CommitError::Conflict { .. }))) = (event, &taken) {
            let _gone = reply.send(Err(super::register::conflict(error)));
            return Ok(());
        }
        let told = match &taken {
            Ok(Ok(())) => Ok(()),
            Ok(Err(misstep)) => Err(refusal(*misstep, self.id)),
            Err(error) => Err(Refusal::journal(error)),
        };
        // Whoever asked may be gone.
        let _ = reply.send(told);
        taken.map(drop)
    }
}

/// What a refused step of an operator comes to.
fn refusal(misstep: Misstep, id: SessionId) -> Refusal {
    match misstep {
        Misstep::Over => Refusal::new(
            "session-over",
            409,
            format!("the session {id} is over, or about to be"),
            "make another one: `salaam session create`",
        ),
        Misstep::TooManyMessages => Refusal::new(
            "too-many-messages",
            429,
            format!("{misstep}, and {id} has not asked for one yet"),
            "wait until it does: `salaam session follow`",
        ),
        Misstep::NotUnsure => {
            Refusal::new("not-unknown", 409, misstep.to_string(), "`salaam session show` says what it waits for")
        }
        Misstep::OutOfPhase | Misstep::WrongTurn { .. } | Misstep::Impossible => {
            Refusal::new("internal", 500, misstep.to_string(), "this is a mistake in salaam; report it")
        }
    }
}
