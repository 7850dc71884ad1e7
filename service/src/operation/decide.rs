//! From the question to the durable intent: the answer, its expiry, and the second look at dispatch.

use std::{sync::Arc, time::Duration};

use salaam_core::{
    approval::{Decision, Verdict, judge},
    bound::{Arguments, Bound},
    digest::Digest,
    event::{Draft, Kind},
    operation::State,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    context::event,
    owner::{Case, Ending, Heard, Owner},
    propose::{Ready, control_failed, dispatched_event, draft, flags, granted_event, no_sandbox, workspace_row},
};
use crate::{
    operation::{Refusal, Who, view},
    store::{Change, CommitError, Transaction},
};

/// Where an operator waits to hear what their decision came to.
pub(super) type Answer = oneshot::Sender<Result<(), Refusal>>;

/// What became of the question.
#[expect(clippy::large_enum_variant, reason = "made once an operation, moved once")]
pub(super) enum Decided {
    /// Whoever granted is answered once the second look is over, so that a stale grant is refused to them.
    Granted(Case, Answer),
    Over(Value),
}

/// What became of the grant.
#[expect(clippy::large_enum_variant, reason = "made once an operation, moved once")]
pub(super) enum Dispatch {
    Sent(Ready),
    Over(Value),
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
                () = std::future::ready(()), if left == 0 => return self.expire(case).await.map(Decided::Over),
            };
            match heard {
                Heard::End(ending) => return self.call_off(case, State::Pending, ending).await.map(Decided::Over),
                Heard::Decide { decision, binding, comment, who, request, answer } => {
                    match self.answer(&mut case, decision, binding.as_deref(), comment, &who, request).await {
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
        case: &mut Case,
        decision: Decision,
        binding: Option<&str>,
        comment: Option<String>,
        who: &Who,
        request: Option<(String, Digest)>,
    ) -> Result<(), Refusal> {
        let context = Arc::clone(&self.context);
        let row = &case.row;
        let verdict =
            judge(decision, row.state, row.binding, binding, row.expires, context.clock.now(), context.controls.hold());
        if let Some(refusal) = refusal(&verdict) {
            return Err(refusal);
        }
        let by = who.to_value();
        let (to, event) = match decision {
            Decision::Grant => (State::Granted, granted_event(case, &by)?),
            Decision::Deny => {
                let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "by": by, "comment": comment });
                (State::Denied, draft(event(Kind::ApprovalDenied, row.session, data))?)
            }
        };
        let subject = row.approval.to_string();
        let remember =
            request.map(|(request_id, fingerprint)| Change::RememberRequest { request_id, fingerprint, subject });
        self.step_and(remember, case, to, Some(by), comment, None, vec![event]).await?;
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
        let slots = Arc::clone(&self.context.slots);
        if slots.available_permits() == 0
            && let Some(granter) = granter.take()
        {
            // The wait may be long; what comes of it is in the operation.
            drop(granter.send(Ok(())));
        }
        let acquire = slots.acquire_owned();
        tokio::pin!(acquire);
        let slot = loop {
            tokio::select! {
                slot = &mut acquire => break slot.map_err(|_| control_failed())?,
                heard = self.ears.hear() => match heard {
                    Heard::End(ending) => return self.call_off(case, State::Granted, ending).await.map(Dispatch::Over),
                    Heard::Decide { answer, .. } => drop(answer.send(Err(already(State::Granted)))),
                },
            }
        };
        if self.context.clock.now() >= case.row.expires {
            return self.expire(case).await.map(Dispatch::Over);
        }
        let Arguments::Command { command, timeout_seconds, .. } = &case.bound.arguments;
        let profile = case.bound.policy.profile;
        let seen = match workspace_row(&self.context, case.row.workspace).await {
            Ok(row) => self.resolve(&row, command, profile, *timeout_seconds, true).await,
            Err(refusal) => Err(refusal),
        };
        let resolved = match seen {
            Ok(resolved) => resolved,
            Err(refusal) => {
                return self
                    .stale(case, vec![json!({ "field": "host", "id": refusal.id, "evidence": refusal.message })])
                    .await
                    .map(Dispatch::Over);
            }
        };
        let now = Bound {
            workspace: resolved.identity.clone(),
            files: resolved.prepared.files.clone(),
            policy: resolved.policy.clone(),
            ..case.bound.clone()
        };
        let mut changed = differences(&case.bound, &now);
        let flags = flags(command, &resolved);
        if flags != case.row.flags {
            changed.push(json!({ "field": "flags", "was": case.row.flags, "is": flags }));
        }
        if let Some(refusal) = no_sandbox(&self.context, profile) {
            changed.push(json!({ "field": "sandbox", "id": refusal.id, "evidence": refusal.message }));
        }
        if !changed.is_empty() {
            self.release().await;
            return self.stale(case, changed).await.map(Dispatch::Over);
        }
        if !self.context.controls.hold() {
            self.release().await;
            return self.stale(case, vec![json!({ "field": "controls" })]).await.map(Dispatch::Over);
        }
        self.timing.dispatched = Some(self.elapsed());
        let event = dispatched_event(&case, resolved.link.epoch())?;
        self.step(&mut case, State::Dispatched, None, None, None, vec![event]).await?;
        Ok(Dispatch::Sent(Ready { case, link: resolved.link, slot }))
    }

    async fn expire(&self, mut case: Case) -> Result<Value, Refusal> {
        let row = &case.row;
        let data =
            json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "expires": row.expires });
        let event = draft(event(Kind::ApprovalExpired, row.session, data))?;
        self.step(&mut case, State::Expired, None, None, None, vec![event]).await?;
        Ok(view::operation(&case.row))
    }

    async fn stale(&self, mut case: Case, changed: Vec<Value>) -> Result<Value, Refusal> {
        let row = &case.row;
        let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "changed": changed });
        let event = draft(event(Kind::ApprovalStale, row.session, data))?;
        let names: Vec<_> =
            changed.iter().filter_map(|c| c.get("path").or_else(|| c.get("field"))).map(ToString::to_string).collect();
        let error = json!({
            "id": "stale-approval",
            "message": format!("what was approved is no longer what would run; changed: {}", names.join(", ")),
            "fix": "propose it again and look at the new approval",
            "changed": changed,
        });
        self.step(&mut case, State::Stale, None, None, Some(json!({ "error": error })), vec![event]).await?;
        Ok(view::operation(&case.row))
    }

    async fn call_off(&mut self, mut case: Case, from: State, ending: Ending) -> Result<Value, Refusal> {
        debug_assert_eq!(from, case.row.state);
        let event = cancel_event(&case, &ending)?;
        let result = json!({ "error": { "id": "cancelled", "message": format!("cancelled before it was dispatched: {}", ending.cause), "fix": "propose it again" } });
        self.step(&mut case, State::Cancelled, None, None, Some(result), vec![event]).await?;
        Ok(view::operation(&case.row))
    }

    /// Takes one step of the table, durably.
    pub(super) async fn step(
        &self,
        case: &mut Case,
        to: State,
        decided_by: Option<Value>,
        comment: Option<String>,
        result: Option<Value>,
        events: Vec<Draft>,
    ) -> Result<(), Refusal> {
        self.step_and(None, case, to, decided_by, comment, result, events).await
    }

    #[expect(clippy::too_many_arguments, reason = "a step with one more change in its transaction")]
    async fn step_and(
        &self,
        also: Option<Change>,
        case: &mut Case,
        to: State,
        decided_by: Option<Value>,
        comment: Option<String>,
        result: Option<Value>,
        events: Vec<Draft>,
    ) -> Result<(), Refusal> {
        let from = case.row.state;
        from.step(to).map_err(|e| {
            Refusal::new(
                "illegal-step",
                500,
                e.to_string(),
                "report this: the state machine was asked for a step it does not have",
            )
        })?;
        let change = Change::StepOperation {
            id: self.id,
            from,
            to,
            decided_by: decided_by.clone(),
            comment: comment.clone(),
            result: result.clone(),
        };
        let remembers = also.is_some();
        let changes = also.into_iter().chain([change]).collect();
        match self.context.store.commit(Transaction { changes, events }).await {
            Ok(_) => {}
            Err(CommitError::Conflict { actual: None }) if remembers => return Err(super::request_id_reused()),
            Err(CommitError::Conflict { actual }) => return Err(already(actual.unwrap_or(State::Unknown))),
            Err(error @ CommitError::NotDurable(_)) => return Err(Refusal::journal(error)),
        }
        case.row.state = to;
        case.row.decided_by = decided_by.or(case.row.decided_by.take());
        case.row.comment = comment.or(case.row.comment.take());
        case.row.result = result.or(case.row.result.take());
        Ok(())
    }
}

/// The record that somebody ended it.
pub(super) fn cancel_event(case: &Case, ending: &Ending) -> Result<Draft, Refusal> {
    let by = ending.who.as_ref().map(Who::to_value);
    let data = json!({ "operation": case.row.id, "binding": case.row.binding, "cause": ending.cause, "by": by });
    draft(event(Kind::CancelRequested, case.row.session, data))
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

/// What an operator is told whose answer did not count.
pub(crate) fn refusal(verdict: &Verdict) -> Option<Refusal> {
    match verdict {
        Verdict::Accepted => None,
        Verdict::BindingMismatch => Some(Refusal::new(
            "binding-mismatch",
            409,
            "the binding named is not the one of this approval",
            "look at it again with `salaam approval show` and name the binding shown there, all 64 digits in the API",
        )),
        Verdict::Expired => Some(Refusal::new(
            "expired",
            409,
            "the approval lapsed before it was answered",
            "propose the operation again",
        )),
        Verdict::AlreadyDecided(state) => Some(already(*state)),
        Verdict::ControlFailed => Some(control_failed()),
    }
}

fn already(state: State) -> Refusal {
    Refusal::new(
        "already-decided",
        409,
        format!("the operation is {state}; an approval is used once"),
        "propose the operation again if it is still wanted",
    )
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
