//! From a proposal to a question, or straight to a granted intent where the proposer may grant.

use std::sync::Arc;

use salaam_core::{bound::Bound, operation::State};
use serde_json::{Value, json};

use super::{
    dispatch::Ready,
    look::{Look, Place},
    owner::{Case, Owner},
    record,
    refuse::control_failed,
    session,
};
use crate::{
    operation::{Origin, Progress, Proposal, Refusal, Who, view},
    store::{Change, CommitError, OperationRow, SessionRow, Transaction},
};

/// Where a proposal stands once it is recorded.
#[expect(clippy::large_enum_variant, reason = "made once an operation, moved once")]
pub(super) enum Proposed {
    /// A question is open.
    Pending(Case),
    /// Granted by its proposer; there was no room for it.
    Granted(Case),
    /// Granted and recorded as dispatched, in one transaction.
    Dispatched(Ready),
    /// It ended here.
    Over(Value),
}

impl Owner {
    pub(super) async fn propose(&mut self, proposal: Proposal) -> Result<Proposed, Refusal> {
        let context = Arc::clone(&self.context);
        let row = session::workspace_row(&context, proposal.workspace).await?;
        let session = session::of(&context, &proposal.origin, &row).await?;
        let granter = granter(&proposal.origin).cloned();
        let room = granter.as_ref().and_then(|_| self.try_room(proposal.work.kind(), row.id, session.id));
        let place = Place { row: &row, session: &session, profile: proposal.profile.unwrap_or_default() };
        let mut look =
            self.look(&place, &proposal.work, room.is_some(), None).await.map_err(|unseen| unseen.refusal)?;

        let mut changes = Vec::new();
        if let Some(request_id) = &proposal.request_id {
            changes.push(Change::RememberRequest {
                request_id: request_id.clone(),
                fingerprint: proposal.fingerprint(),
                subject: self.id.to_string(),
            });
        }
        let forbidden = look.forbidden.take();
        let mut case = self.case(proposal, &session, &mut look)?;
        let mut transaction = Transaction { changes, events: vec![record::proposed(&case.row)?] };
        if let Some(refusal) = forbidden {
            return self.refuse(case, transaction, refusal).await;
        }
        transaction.events.push(record::requested(&case.row)?);
        let Some(who) = granter else {
            drop(look);
            self.record(&mut case, transaction, State::Pending).await?;
            drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
            return Ok(Proposed::Pending(case));
        };
        if !context.controls.hold() {
            return Err(control_failed());
        }
        self.timing.granted = Some(self.elapsed());
        let by = who.to_value();
        case.row.decided_by = Some(by.clone());
        transaction.events.push(record::granted(&case.row, &by)?);
        match room.filter(|_| !context.gate.holds_back(row.id, look.link.epoch())) {
            Some(room) => {
                let (link, way) = self.ready(&case, room, look).await?;
                self.timing.dispatched = Some(self.elapsed());
                transaction.events.push(record::dispatched(&case.row, link.epoch())?);
                if let Err(refusal) = self.record(&mut case, transaction, State::Dispatched).await {
                    self.drop_images().await;
                    return Err(refusal);
                }
                drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
                Ok(Proposed::Dispatched(Ready { case, link, way }))
            }
            None => {
                drop(look);
                self.record(&mut case, transaction, State::Granted).await?;
                drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
                Ok(Proposed::Granted(case))
            }
        }
    }

    /// The case as it will be recorded; takes what it binds out of `look`.
    fn case(&mut self, proposal: Proposal, session: &SessionRow, look: &mut Look) -> Result<Case, Refusal> {
        let context = &self.context;
        let requested = context.clock.now();
        let expires = requested.plus_seconds(context.manifest.approval_ttl_seconds);
        let kind = proposal.work.kind();
        let bound = Bound {
            operation: self.id,
            kind,
            workspace: look.identity.clone(),
            arguments: look.arguments.clone(),
            files: std::mem::take(&mut look.files),
            policy: look.policy.clone(),
            worker_epoch: proposal.origin.epoch(),
            expires,
        };
        let not_canonical = |e: &dyn std::error::Error| {
            Refusal::new("not-canonical", 400, e.to_string(), "send text as UTF-8 and numbers below 2^53")
        };
        let value = bound.to_value().map_err(|e| not_canonical(&e))?;
        let row = OperationRow {
            id: self.id,
            approval: self.approval,
            session: session.id,
            workspace: proposal.workspace,
            kind,
            state: State::Proposed,
            binding: bound.binding().map_err(|e| not_canonical(&e))?,
            display: std::mem::take(&mut look.display),
            flags: std::mem::take(&mut look.flags),
            requested,
            expires,
            decided_by: None,
            comment: None,
            result: None,
            call: proposal.origin.call(),
            reconciled: None,
            again: again(&proposal),
            bound: value,
        };
        self.weigh(row.display.len().saturating_add(row.bound.to_string().len()))?;
        Ok(Case { row, bound, work: proposal.work })
    }

    async fn record(&self, case: &mut Case, mut transaction: Transaction, state: State) -> Result<(), Refusal> {
        case.row.state = state;
        transaction.changes.push(Change::InsertOperation(Box::new(case.row.clone())));
        match self.context.store.commit(transaction).await {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict { .. }) if case.row.call.is_some() => Err(Refusal::new(
                "call-repeated",
                409,
                "the session has an operation of this call",
                "a call is proposed once; its operation has the outcome",
            )),
            Err(CommitError::Conflict { .. }) => Err(Refusal::new(
                "request-id-reused",
                409,
                "another request with this request_id was recorded at the same moment",
                "send the same request again; use a new request_id for another operation",
            )),
            Err(error @ CommitError::NotDurable(_)) => Err(Refusal::journal(error)),
        }
    }

    async fn refuse(
        &self,
        mut case: Case,
        mut transaction: Transaction,
        refusal: Refusal,
    ) -> Result<Proposed, Refusal> {
        transaction.events.push(record::refused(&case.row, &refusal)?);
        case.row.result =
            Some(json!({ "error": { "id": refusal.id, "message": refusal.message, "fix": refusal.fix } }));
        self.release().await;
        self.record(&mut case, transaction, State::Refused).await?;
        Ok(Proposed::Over(view::operation(&case.row)))
    }
}

/// Who grants in the same call. A worker's proposal has nobody.
const fn granter(origin: &Origin) -> Option<&Who> {
    match origin {
        Origin::Operator { who, grant: true, .. } => Some(who),
        Origin::Operator { grant: false, .. } | Origin::Worker { .. } => None,
    }
}

/// What it takes to ask the question again after a restart. Only what a person proposed and does not wait for: a
/// worker has another epoch then, and a caller who is tied to the question is gone.
fn again(proposal: &Proposal) -> Option<Value> {
    match proposal.origin {
        Origin::Operator { grant: false, .. } if proposal.detach => proposal.work.to_again(),
        Origin::Operator { .. } | Origin::Worker { .. } => None,
    }
}
