//! From the question to the durable intent: the answer, its expiry, and the second look at dispatch.

use std::{sync::Arc, time::Duration};

use salaam_core::{
    approval::{Decision, Verdict, judge},
    bound::Bound,
    digest::Digest,
    event::Draft,
    operation::{CancelCause, State},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    dispatch::{Ready, Rooms},
    ears::{Ending, Halt, Heard},
    look::{Look, Place},
    owner::{Case, Owner, Worker},
    record,
    refuse::{Unseen, already, control_failed, refusal},
    session,
};
use crate::{
    operation::{Refusal, Who, view},
    store::{Change, CommitError, OperationRow, Transaction},
};

/// Where an operator waits to hear what their decision came to.
pub(super) type Answer = oneshot::Sender<Result<(), Refusal>>;

/// What became of the question.
#[expect(clippy::large_enum_variant, reason = "made once an operation, moved once")]
pub(super) enum Decided {
    /// Whoever granted is answered once the second look is over, so that a stale grant is refused to them.
    Granted(Case, Answer),
    Over(Value),
    /// The service stops, and the next start asks again.
    Left,
}

/// What became of the grant.
#[expect(clippy::large_enum_variant, reason = "made once an operation, moved once")]
pub(super) enum Dispatch {
    Sent(Ready),
    Over(Value),
}

/// Why a step was not taken.
enum Step {
    /// The change that went with it does not apply.
    Other,
    Refused(Refusal),
}

impl Owner {
    /// Waits for an answer until it expires.
    pub(super) async fn decide(&mut self, mut case: Case) -> Result<Decided, Refusal> {
        loop {
            let now = self.context.clock.now();
            let left = u64::try_from(case.row.expires.as_micros().saturating_sub(now.as_micros())).unwrap_or(0);
            let heard = tokio::select! {
                biased;
                heard = self.ears.hear() => heard,
                () = tokio::time::sleep(Duration::from_micros(left)), if left > 0 => continue,
                () = std::future::ready(()), if left == 0 => return self.expire(case.row).await.map(Decided::Over),
            };
            match heard {
                Heard::End(Halt::Ended(Ending { cause: CancelCause::ServiceStopping, .. }))
                    if case.row.again.is_some() =>
                {
                    return Ok(Decided::Left);
                }
                Heard::End(halt) => return self.halt(case.row, halt).await.map(Decided::Over),
                Heard::Decide { decision, binding, comment, who, request, answer } => {
                    match self.answer(&mut case.row, decision, binding.as_deref(), comment, &who, request).await {
                        Ok(()) => {
                            return Ok(match decision {
                                Decision::Grant => Decided::Granted(case, answer),
                                Decision::Deny => {
                                    drop(answer.send(Ok(())));
                                    Decided::Over(view::operation(&case.row))
                                }
                            });
                        }
                        Err(refusal) => drop(answer.send(Err(refusal))),
                    }
                }
            }
        }
    }

    async fn answer(
        &mut self,
        row: &mut OperationRow,
        decision: Decision,
        binding: Option<&str>,
        comment: Option<String>,
        who: &Who,
        request: Option<(String, Digest)>,
    ) -> Result<(), Refusal> {
        let context = Arc::clone(&self.context);
        let verdict =
            judge(decision, row.state, row.binding, binding, row.expires, context.clock.now(), context.controls.hold());
        if let Some(refusal) = refusal(&verdict) {
            return Err(refusal);
        }
        let by = who.to_value();
        let (to, event) = match decision {
            Decision::Grant => (State::Granted, record::granted(row, &by)?),
            Decision::Deny => (State::Denied, record::denied(row, &by, comment.as_deref())?),
        };
        let subject = row.approval.to_string();
        let remember =
            request.map(|(request_id, fingerprint)| Change::RememberRequest { request_id, fingerprint, subject });
        match self.step_and(remember, row, to, Some(by), comment, None, vec![event]).await {
            Ok(()) => {}
            Err(Step::Other) => return Err(super::request_id_reused()),
            Err(Step::Refused(refusal)) => return Err(refusal),
        }
        if decision == Decision::Grant {
            self.timing.granted = Some(self.elapsed());
        }
        Ok(())
    }

    /// Waits for a slot, looks at everything again, records the intent, and tells `granter` what came of it.
    pub(super) async fn dispatch(&mut self, case: Case, granter: Option<Answer>) -> Result<Dispatch, Refusal> {
        let mut granter = granter;
        let dispatch = self.look_again(case, &mut granter).await;
        if let Some(granter) = granter {
            let told = match &dispatch {
                Ok(Dispatch::Sent(_)) => Ok(()),
                Ok(Dispatch::Over(value)) => lapsed(value).map_or(Ok(()), Err),
                Err(refusal) => Err(refusal.clone()),
            };
            // They may be gone.
            drop(granter.send(told));
        }
        dispatch
    }

    async fn look_again(&mut self, mut case: Case, granter: &mut Option<Answer>) -> Result<Dispatch, Refusal> {
        let (kind, workspace, session) = (case.row.kind, case.row.workspace, case.row.session);
        let room = match self.try_room(kind, workspace, session) {
            Some(room) => room,
            None => {
                waits(granter);
                let rooms = Rooms::of(&self.context);
                match self.unless_ended(rooms.one(kind, workspace, session)).await {
                    Ok(room) => room.ok_or_else(control_failed)?,
                    Err(halt) => return self.halt(case.row, halt).await.map(Dispatch::Over),
                }
            }
        };
        let gate = Arc::clone(&self.context.gate);
        let look = loop {
            if self.context.clock.now() >= case.row.expires {
                return self.expire(case.row).await.map(Dispatch::Over);
            }
            let look = match self.second_look(&case).await {
                Ok(look) => look,
                Err(changed) => {
                    self.release().await;
                    return self.stale(case.row, changed).await.map(Dispatch::Over);
                }
            };
            let epoch = look.link.epoch();
            if !gate.holds_back(workspace, epoch) {
                break look;
            }
            // An edit of an executor before this one is not settled: what was seen may not last.
            drop(look);
            self.release().await;
            waits(granter);
            if let Err(halt) = self.unless_ended(gate.clear(workspace, epoch)).await {
                return self.halt(case.row, halt).await.map(Dispatch::Over);
            }
        };
        let (link, way) = self.ready(&case, room, look).await?;
        self.timing.dispatched = Some(self.elapsed());
        let event = record::dispatched(&case.row, link.epoch())?;
        let also = self.worker.map(|Worker { session, epoch }| Change::ExpectEpoch { session, epoch });
        let stepped = self.step_and(also, &mut case.row, State::Dispatched, None, None, None, vec![event]).await;
        if stepped.is_err() {
            self.release().await;
            self.drop_images().await;
        }
        match stepped {
            Ok(()) => Ok(Dispatch::Sent(Ready { case, link, way })),
            Err(Step::Other) => {
                self.stale(case.row, vec![json!({ "field": "worker_epoch" })]).await.map(Dispatch::Over)
            }
            Err(Step::Refused(refusal)) => Err(refusal),
        }
    }

    /// Looks at everything that is bound as it is now; an error is what differs.
    async fn second_look(&self, case: &Case) -> Result<Look, Vec<Value>> {
        let row = session::workspace_row(&self.context, case.row.workspace).await;
        let row = row.map_err(|refusal| unseen(refusal.into()))?;
        let session = self.context.store.session(case.row.session).await;
        let Some(session) = session.map_err(|e| unseen(Refusal::journal(e).into()))? else {
            return Err(vec![json!({ "field": "session" })]);
        };
        let current = session::current_epoch(&session);
        if let Some(Worker { epoch, .. }) = self.worker
            && current != Some(epoch)
        {
            return Err(vec![json!({ "field": "worker_epoch", "was": epoch, "is": current })]);
        }
        let place = Place { row: &row, session: &session, profile: case.bound.policy.profile };
        let look = self.look(&place, &case.work, true, Some(&case.bound)).await.map_err(unseen)?;
        let now = Bound {
            workspace: look.identity.clone(),
            arguments: look.arguments.clone(),
            files: look.files.clone(),
            policy: look.policy.clone(),
            ..case.bound.clone()
        };
        let mut changed = differences(&case.bound, &now);
        if look.flags != case.row.flags {
            changed.push(json!({ "field": "flags", "was": case.row.flags, "is": look.flags }));
        }
        if let Some(refusal) = &look.forbidden {
            changed.push(json!({ "field": "sandbox", "id": refusal.id, "evidence": refusal.message }));
        }
        if changed.is_empty() && !self.context.controls.hold() {
            changed.push(json!({ "field": "controls" }));
        }
        if changed.is_empty() { Ok(look) } else { Err(changed) }
    }

    async fn expire(&self, mut row: OperationRow) -> Result<Value, Refusal> {
        let event = record::expired(&row)?;
        self.step(&mut row, State::Expired, None, None, None, vec![event]).await?;
        Ok(view::operation(&row))
    }

    pub(super) async fn stale(&self, mut row: OperationRow, changed: Vec<Value>) -> Result<Value, Refusal> {
        let event = record::stale(&row, &changed)?;
        let name = |change: &Value| {
            let what = change.get("path").or_else(|| change.get("field"))?;
            let why = change.get("evidence").and_then(Value::as_str);
            Some(why.map_or_else(|| what.to_string(), |why| format!("{what} ({why})")))
        };
        let names: Vec<String> = changed.iter().filter_map(name).collect();
        let error = json!({
            "id": "stale-approval",
            "message": format!("what was approved is no longer what would run; changed: {}", names.join(", ")),
            "fix": "propose it again and look at the new approval",
            "changed": changed,
        });
        self.step(&mut row, State::Stale, None, None, Some(json!({ "error": error })), vec![event]).await?;
        Ok(view::operation(&row))
    }

    /// Ends what was not sent.
    async fn halt(&self, mut row: OperationRow, halt: Halt) -> Result<Value, Refusal> {
        match halt {
            Halt::Void => self.stale(row, vec![json!({ "field": "worker_epoch" })]).await,
            Halt::Ended(ending) => {
                let event = record::cancelled(&row, &ending)?;
                let result = json!({ "error": { "id": "cancelled", "message": format!("cancelled before it was dispatched: {}", ending.cause), "fix": "propose it again" } });
                self.step(&mut row, State::Cancelled, None, None, Some(result), vec![event]).await?;
                Ok(view::operation(&row))
            }
        }
    }

    /// Takes one step of the table, durably.
    pub(super) async fn step(
        &self,
        row: &mut OperationRow,
        to: State,
        decided_by: Option<Value>,
        comment: Option<String>,
        result: Option<Value>,
        events: Vec<Draft>,
    ) -> Result<(), Refusal> {
        match self.step_and(None, row, to, decided_by, comment, result, events).await {
            Ok(()) => Ok(()),
            Err(Step::Other) => Err(already(State::Unknown)),
            Err(Step::Refused(refusal)) => Err(refusal),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a step with one more change in its transaction")]
    async fn step_and(
        &self,
        also: Option<Change>,
        row: &mut OperationRow,
        to: State,
        decided_by: Option<Value>,
        comment: Option<String>,
        result: Option<Value>,
        events: Vec<Draft>,
    ) -> Result<(), Step> {
        let from = row.state;
        from.step(to).map_err(|e| {
            Step::Refused(Refusal::new(
                "illegal-step",
                500,
                e.to_string(),
                "report this: the state machine was asked for a step it does not have",
            ))
        })?;
        let change = Change::StepOperation {
            id: self.id,
            from,
            to,
            decided_by: decided_by.clone(),
            comment: comment.clone(),
            result: result.clone(),
        };
        let accompanied = also.is_some();
        let changes = also.into_iter().chain([change]).collect();
        match self.context.store.commit(Transaction { changes, events }).await {
            Ok(_) => {}
            Err(CommitError::Conflict { actual: None }) if accompanied => return Err(Step::Other),
            Err(CommitError::Conflict { actual }) => {
                return Err(Step::Refused(already(actual.unwrap_or(State::Unknown))));
            }
            Err(error @ CommitError::NotDurable(_)) => return Err(Step::Refused(Refusal::journal(error))),
        }
        row.state = to;
        row.decided_by = decided_by.or(row.decided_by.take());
        row.comment = comment.or(row.comment.take());
        row.result = result.or(row.result.take());
        Ok(())
    }
}

/// What could not be looked at, as something that changed.
pub(super) fn unseen(unseen: Unseen) -> Vec<Value> {
    let Refusal { id, message, .. } = unseen.refusal;
    vec![match unseen.path {
        None => json!({ "field": "host", "id": id, "evidence": message }),
        Some(path) => {
            json!({ "field": "files", "path": salaam_core::canon::bytes(&path), "id": id, "evidence": message })
        }
    }]
}

/// Whoever granted does not wait for room: what comes of it is in the operation.
fn waits(granter: &mut Option<Answer>) {
    if let Some(granter) = granter.take() {
        drop(granter.send(Ok(())));
    }
}

/// Answers a decision that comes too late.
pub(super) fn too_late(answer: oneshot::Sender<Result<(), Refusal>>, state: State) {
    drop(answer.send(Err(already(state))));
}

/// What whoever granted is told when the grant came to nothing.
fn lapsed(operation: &Value) -> Option<Refusal> {
    let text = |pointer: &str| operation.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let state = text("/state");
    if state == State::Stale.as_str() {
        Some(Refusal::new(text("/error/id"), 409, text("/error/message"), text("/error/fix")))
    } else if state == State::Expired.as_str() {
        refusal(&Verdict::Expired)
    } else {
        // Cancelled: the grant did count, and so did the other order.
        None
    }
}

/// Names what differs, files one by one.
fn differences(before: &Bound, now: &Bound) -> Vec<Value> {
    let mut changed = Vec::new();
    for field in before.changed(now) {
        if field != "files" {
            changed.push(json!({ "field": field }));
            continue;
        }
        let find =
            |bound: &Bound, path: &[u8]| bound.files.iter().find(|file| file.path == path).map(|file| file.sha256);
        let mut paths: Vec<_> = before.files.iter().chain(&now.files).map(|file| file.path.as_slice()).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let (was, is) = (find(before, path), find(now, path));
            if was != is {
                changed
                    .push(json!({ "field": "files", "path": salaam_core::canon::bytes(path), "was": was, "is": is }));
            }
        }
    }
    changed
}
