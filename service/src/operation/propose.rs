//! From a proposal to a question, or straight to a granted intent where the proposer may grant.

use std::sync::Arc;

use salaam_core::{
    bound::{Arguments, Bound, WorkspaceIdentity},
    bridge::{Prepare, Prepared},
    command::Command,
    digest::Digest,
    event::{Draft, Kind},
    id::SessionId,
    limits::Limits,
    operation::{Kind as Effect, State},
    policy::{Network, Policy, Profile, Unsandboxed},
    session,
    time::Timestamp,
};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Context,
    context::event,
    owner::{Case, Owner},
};
use crate::{
    executor::{BridgeError, Link},
    operation::{Progress, Proposal, Refusal, view},
    store::{Change, CommitError, OperationRow, SessionRow, Transaction, WorkspaceRow},
    workspace::WorkspaceError,
};

/// Where a proposal stands once it is recorded.
pub(super) enum Proposed {
    /// A question is open.
    Pending(Case),
    /// Granted by its proposer; no slot was free.
    Granted(Case),
    /// Granted and recorded as dispatched, in one transaction; the permit is its slot.
    Dispatched(Ready),
    /// It ended here.
    Over(Value),
}

/// An operation whose intent is durable, with its slot.
pub(super) struct Ready {
    pub case: Case,
    pub link: Link,
    pub slot: OwnedSemaphorePermit,
}

/// What a proposal comes to on this host now.
pub(super) struct Resolved {
    pub identity: WorkspaceIdentity,
    pub link: Link,
    pub policy: Policy,
    pub prepared: Prepared,
}

impl Owner {
    pub(super) async fn propose(&mut self, proposal: Proposal) -> Result<Proposed, Refusal> {
        let context = Arc::clone(&self.context);
        let row = workspace_row(&context, proposal.workspace).await?;
        let session = operator_session(&context, &row).await?;
        let profile = proposal.profile.unwrap_or_default();
        let timeout = timeout(&context.manifest.limits, proposal.timeout_seconds)?;
        let slot = if proposal.grant { Arc::clone(&context.slots).try_acquire_owned().ok() } else { None };
        let resolved = self.resolve(&row, &proposal.command, profile, timeout, slot.is_some()).await?;
        let case = self.case(&proposal, session, &resolved, timeout)?;

        let mut transaction = Transaction { changes: Vec::new(), events: vec![proposed_event(&case)?] };
        if let Some(request_id) = &proposal.request_id {
            let subject = self.id.to_string();
            transaction.changes.push(Change::RememberRequest {
                request_id: request_id.clone(),
                fingerprint: proposal.fingerprint(),
                subject,
            });
        }
        let mut case = Case { stdin: proposal.stdin.unwrap_or_default(), ..case };
        if let Some(refusal) = no_sandbox(&context, profile) {
            return self.refuse(case, transaction, refusal).await;
        }
        transaction.events.push(requested_event(&case)?);
        if !proposal.grant {
            self.record(&mut case, transaction, State::Pending).await?;
            drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
            return Ok(Proposed::Pending(case));
        }
        if !context.controls.hold() {
            return Err(control_failed());
        }
        self.timing.granted = Some(self.elapsed());
        let by = self.who.to_value();
        case.row.decided_by = Some(by.clone());
        transaction.events.push(granted_event(&case, &by)?);
        match slot {
            Some(slot) => {
                self.timing.dispatched = Some(self.elapsed());
                transaction.events.push(dispatched_event(&case, resolved.link.epoch())?);
                self.record(&mut case, transaction, State::Dispatched).await?;
                drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
                Ok(Proposed::Dispatched(Ready { case, link: resolved.link, slot }))
            }
            None => {
                self.record(&mut case, transaction, State::Granted).await?;
                drop(self.progress.send(Progress::Proposed(view::approval(&case.row))).await);
                Ok(Proposed::Granted(case))
            }
        }
    }

    /// Looks at the host as it is now: at the proposal, and again at dispatch.
    pub(super) async fn resolve(
        &self,
        row: &WorkspaceRow,
        command: &Command,
        profile: Profile,
        timeout: u64,
        hold: bool,
    ) -> Result<Resolved, Refusal> {
        let context = &self.context;
        let identity = context.workspaces.identity(row).map_err(|e| workspace_refusal(&e))?;
        let link = context.executor.link().map_err(|e| bridge_refusal(&e))?;
        context.workspaces.open_on(&link, &identity).await.map_err(|e| workspace_refusal(&e))?;
        let prepare = Prepare { operation: self.id, workspace: row.id, command: command.clone(), hold };
        let prepared = link.prepare(prepare).await.map_err(|e| bridge_refusal(&e))?;
        let network = match profile {
            Profile::ReadOnly | Profile::WorkspaceWrite => context.manifest.command_network,
            Profile::FullAccess => Network::Host,
        };
        let policy = Policy {
            manifest: context.manifest_digest,
            profile,
            isolation: context.isolation(profile),
            network,
            limits: Limits { command_seconds: timeout, ..context.manifest.limits },
        };
        Ok(Resolved { identity, link, policy, prepared })
    }

    fn case(
        &self,
        proposal: &Proposal,
        session: SessionId,
        resolved: &Resolved,
        timeout: u64,
    ) -> Result<Case, Refusal> {
        let context = &self.context;
        let requested = context.clock.now();
        let expires = requested.plus_seconds(context.manifest.approval_ttl_seconds);
        let stdin = proposal.stdin.as_deref().filter(|bytes| !bytes.is_empty());
        let arguments = Arguments::Command {
            command: proposal.command.clone(),
            stdin: stdin.map(|bytes| (Digest::of(bytes), bytes.len() as u64)),
            timeout_seconds: timeout,
        };
        let bound = Bound {
            operation: self.id,
            kind: Effect::Command,
            workspace: resolved.identity.clone(),
            arguments,
            files: resolved.prepared.files.clone(),
            policy: resolved.policy.clone(),
            worker_epoch: 0,
            expires,
        };
        let value = bound.to_value().map_err(|e| {
            Refusal::new("not-canonical", 400, e.to_string(), "send text as UTF-8 and numbers below 2^53")
        })?;
        let binding = bound.binding().map_err(|e| {
            Refusal::new("not-canonical", 400, e.to_string(), "send text as UTF-8 and numbers below 2^53")
        })?;
        let flags = flags(&proposal.command, resolved);
        let row = self.row(proposal, session, value, binding, flags, requested, expires);
        Ok(Case { row, bound, stdin: Vec::new() })
    }

    #[expect(clippy::too_many_arguments, reason = "called once; each is a column")]
    fn row(
        &self,
        proposal: &Proposal,
        session: SessionId,
        bound: Value,
        binding: Digest,
        flags: Vec<String>,
        requested: Timestamp,
        expires: Timestamp,
    ) -> OperationRow {
        OperationRow {
            id: self.id,
            approval: self.approval,
            session,
            workspace: proposal.workspace,
            kind: Effect::Command,
            state: State::Proposed,
            binding,
            bound,
            display: proposal.command.display(),
            flags,
            requested,
            expires,
            decided_by: None,
            comment: None,
            result: None,
        }
    }

    async fn record(&self, case: &mut Case, mut transaction: Transaction, state: State) -> Result<(), Refusal> {
        case.row.state = state;
        transaction.changes.push(Change::InsertOperation(Box::new(case.row.clone())));
        match self.context.store.commit(transaction).await {
            Ok(_) => Ok(()),
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
        let data = json!({ "operation": self.id, "binding": case.row.binding, "reason": refusal.id, "evidence": refusal.message, "fix": refusal.fix });
        transaction.events.push(draft(event(Kind::OperationRefused, case.row.session, data))?);
        case.row.result =
            Some(json!({ "error": { "id": refusal.id, "message": refusal.message, "fix": refusal.fix } }));
        self.release().await;
        self.record(&mut case, transaction, State::Refused).await?;
        Ok(Proposed::Over(view::operation(&case.row)))
    }
}

/// Nothing is proposed into a workspace that is not registered.
pub(super) async fn workspace_row(
    context: &Context,
    id: salaam_core::id::WorkspaceId,
) -> Result<WorkspaceRow, Refusal> {
    let rows = context.store.workspaces().await.map_err(Refusal::journal)?;
    rows.into_iter().find(|row| row.id == id).ok_or_else(|| Refusal::not_found("workspace", id))
}

/// The operator session of a workspace, made at its first use.
async fn operator_session(context: &Context, row: &WorkspaceRow) -> Result<SessionId, Refusal> {
    if let Some(id) = known_session(context, row).await? {
        return Ok(id);
    }
    let now = context.clock.now();
    let random = context
        .clock
        .random()
        .map_err(|e| Refusal::new("no-randomness", 503, e.to_string(), "check getrandom(2) on this host"))?;
    let id = SessionId::new(now.unix_millis(), random);
    let isolation = context.isolation(Profile::WorkspaceWrite);
    let document = json!({
        "session": id, "kind": session::Kind::Operator, "state": "running", "waiting_for": null, "outcome": null,
        "workspace": row.id, "in_place": true,
        "route": { "provider": "operator", "model": null, "endpoint": null, "tools": [] },
        "profile": Profile::WorkspaceWrite, "network": context.manifest.command_network,
        "tool_uid": context.tool_uid, "isolation": isolation, "worker_epoch": 0, "budget": {}, "created": now,
    });
    let data = json!({
        "kind": session::Kind::Operator, "route": document.get("route"), "workspace": row.id, "profile": Profile::WorkspaceWrite,
        "manifest": context.manifest_digest, "tool_uid": context.tool_uid, "isolation": isolation,
    });
    let created = draft(event(Kind::SessionCreated, id, data))?;
    let change =
        Change::PutSession(SessionRow { id, kind: session::Kind::Operator, workspace: row.id, document, created: now });
    match context.store.commit(Transaction { changes: vec![change], events: vec![created] }).await {
        Ok(_) => Ok(id),
        // Another first command made it at the same moment.
        Err(CommitError::Conflict { .. }) => known_session(context, row).await?.ok_or_else(|| {
            Refusal::new("conflict", 409, "the workspace's session was made and removed meanwhile", "try again")
        }),
        Err(error @ CommitError::NotDurable(_)) => Err(Refusal::journal(error)),
    }
}

async fn known_session(context: &Context, row: &WorkspaceRow) -> Result<Option<SessionId>, Refusal> {
    let sessions = context.store.sessions().await.map_err(Refusal::journal)?;
    let own = sessions.iter().find(|session| session.workspace == row.id && session.kind == session::Kind::Operator);
    Ok(own.map(|own| own.id))
}

/// A timeout that is asked for may be shorter than the limit, never longer.
fn timeout(limits: &Limits, asked: Option<u64>) -> Result<u64, Refusal> {
    match asked {
        None => Ok(limits.command_seconds),
        Some(seconds) if (1..=limits.command_seconds).contains(&seconds) => Ok(seconds),
        Some(seconds) => Err(Refusal::new(
            "timeout-out-of-range",
            400,
            format!("a timeout of {seconds} s is not from 1 to limits.command_seconds, {}", limits.command_seconds),
            "ask for less, or raise limits.command_seconds in host.toml and re-plan",
        )),
    }
}

/// What a person should look at twice.
pub(super) fn flags(command: &Command, resolved: &Resolved) -> Vec<String> {
    let sandboxed = resolved.policy.isolation.has_sandbox();
    let mut flags: Vec<String> = command.flags().into_iter().map(str::to_owned).collect();
    if !sandboxed {
        flags.push("unsandboxed".into());
    }
    // Bare, bytes cannot be bound over their paths: nothing that is run from the workspace is pinned.
    if resolved.prepared.unpinned || (!sandboxed && !resolved.prepared.files.is_empty()) {
        flags.push("operand-unpinned".into());
    }
    flags
}

/// Why a command of `profile` cannot run here, if it cannot.
pub(super) fn no_sandbox(context: &Context, profile: Profile) -> Option<Refusal> {
    let measured = context.isolation(Profile::WorkspaceWrite);
    let required = crate::probe::required_isolation(context.manifest.required_isolation, measured);
    if required.refuses() {
        return Some(Refusal::new(&required.id, 409, required.evidence, required.fix));
    }
    if context.manifest.unsandboxed_commands == Unsandboxed::Allow {
        return None;
    }
    match profile {
        Profile::ReadOnly | Profile::WorkspaceWrite => {}
        Profile::FullAccess => {
            return Some(Refusal::new(
                "unsandboxed-refused",
                409,
                "the profile full-access runs without a sandbox, and unsandboxed_commands is `refuse`",
                "use workspace-write, or set unsandboxed_commands = \"allow\" in host.toml and run `salaam host plan --pin`",
            ));
        }
    }
    let tools = context.tools.borrow();
    let status = tools.sandbox.as_ref();
    if status.is_some_and(|status| status.sandbox.is_some()) {
        return None;
    }
    let failed = status.and_then(|status| status.checks.iter().find(|check| check.refuses()));
    let (id, evidence, fix) = failed
        .map_or(("sandbox-missing", "no executor has reported a sandbox", "salaam health"), |check| {
            (check.id.as_str(), check.evidence.as_str(), check.fix.as_str())
        });
    Some(Refusal::new(id, 409, format!("no usable sandbox on this host: {evidence}"), fix))
}

pub(crate) fn workspace_refusal(error: &WorkspaceError) -> Refusal {
    let fix = "put the directory back, or remove the workspace and add it again";
    match error {
        WorkspaceError::Unreachable { .. } => Refusal::new("workspace-unreachable", 409, error.to_string(), fix),
        WorkspaceError::NotADirectory { .. } => Refusal::new("workspace-not-a-directory", 409, error.to_string(), fix),
        WorkspaceError::Replaced { .. } => Refusal::new("workspace-replaced", 409, error.to_string(), fix),
        WorkspaceError::Disagree { .. } => Refusal::new("workspace-replaced", 409, error.to_string(), fix),
        WorkspaceError::Executor { source, .. } => {
            let inner = bridge_refusal(source);
            Refusal { message: error.to_string(), ..inner }
        }
    }
}

pub(crate) fn bridge_refusal(error: &BridgeError) -> Refusal {
    match error {
        BridgeError::Refused { id, message } => {
            Refusal::new(id, 409, message.clone(), "see the message; `salaam health` shows what the executor can do")
        }
        BridgeError::Lost { .. } => {
            Refusal::new("executor-gone", 503, error.to_string(), "`salaam health` shows when a new executor is there")
        }
        BridgeError::Deadline { .. } => Refusal::new(
            "executor-silent",
            503,
            error.to_string(),
            "`salaam health` shows when a new executor is there",
        ),
    }
}

pub(super) fn control_failed() -> Refusal {
    Refusal::new(
        "control-failed",
        503,
        "a required control does not hold, so nothing is granted",
        "`salaam doctor` names it with what mends it; it looks again, and grants go on once it holds",
    )
}

/// A draft that its own writer got wrong is refused like anything else that cannot be recorded.
pub(super) fn draft(draft: Result<Draft, salaam_core::event::DraftError>) -> Result<Draft, Refusal> {
    draft.map_err(Refusal::journal)
}

fn proposed_event(case: &Case) -> Result<Draft, Refusal> {
    let row = &case.row;
    let data = json!({ "operation": row.id, "binding": row.binding, "kind": row.kind, "workspace": row.workspace, "display": row.display });
    draft(event(Kind::OperationProposed, row.session, data))
}

fn requested_event(case: &Case) -> Result<Draft, Refusal> {
    let row = &case.row;
    let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "bound": row.bound, "flags": row.flags, "expires": row.expires });
    draft(event(Kind::ApprovalRequested, row.session, data))
}

pub(super) fn granted_event(case: &Case, by: &Value) -> Result<Draft, Refusal> {
    let row = &case.row;
    draft(event(
        Kind::ApprovalGranted,
        row.session,
        json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "by": by }),
    ))
}

pub(super) fn dispatched_event(case: &Case, epoch: u64) -> Result<Draft, Refusal> {
    let row = &case.row;
    let data =
        json!({ "operation": row.id, "binding": row.binding, "executor_epoch": salaam_core::canon::wide(epoch) });
    draft(event(Kind::OperationDispatched, row.session, data))
}
