//! The running service: what every operator verb does.

use std::{sync::Arc, time::Duration};

use salaam_core::{
    approval::Decision,
    bridge::Stream,
    check::Check,
    digest::Digest,
    event::Draft,
    id::{ApprovalId, OperationId},
    operation::{CancelCause, State},
    time::Timestamp,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    staff::{Draining, Parts},
    watch::Look,
};
use crate::{
    host::Host,
    operation::{Attached, Context, Desk, Flow, Order, Proposal, Refusal, Who, view},
    session::Sessions,
    store::{Change, CommitError, EventQuery, OperationQuery, OperationRow, RequestRow, Store, Transaction},
};

/// Longest comment on a denial, in bytes: it reaches a model's context.
const MOST_COMMENT: usize = 4096;
/// Longest request id, in bytes.
const MOST_REQUEST_ID: usize = 128;
/// The running service.
#[derive(Debug)]
pub struct App {
    pub(super) context: Arc<Context>,
    pub(super) desk: Arc<Desk>,
    pub(super) sessions: Sessions<Parts>,
    pub(super) host: Host,
    pub(super) started: Timestamp,
    pub(super) checks: watch::Receiver<Vec<(Check, Timestamp)>>,
    pub(super) looks: mpsc::Sender<Look>,
    pub(super) draining: Arc<Draining>,
    pub(super) stop: watch::Sender<bool>,
    /// True once every operation is over and nothing more is recorded.
    pub(super) leave: watch::Sender<bool>,
}

impl App {
    /// Proposes an operation. It has an owner from here on; the caller may vanish.
    pub async fn propose(&self, proposal: Proposal) -> Result<Attached, Refusal> {
        if *self.context.stopping.borrow() {
            return Err(crate::operation::stopping());
        }
        if let Some(known) = self.known_request(proposal.request_id.as_deref()).await? {
            return self.again(&known.subject, known.fingerprint == proposal.fingerprint(), proposal).await;
        }
        if self.is_draining() {
            return Err(Refusal::new(
                "draining",
                503,
                "the service takes no new operations",
                "try again when it is back",
            ));
        }
        self.desk.propose(proposal)
    }

    /// Takes no new operations and sessions for so long; what is there goes on.
    pub fn drain(&self, time: Duration) {
        self.draining.begin(time);
    }

    /// Whether new operations are refused because a stop is being prepared.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_on()
    }

    /// What was remembered of the caller's own id of a request.
    pub(super) async fn known_request(&self, request_id: Option<&str>) -> Result<Option<RequestRow>, Refusal> {
        let Some(request_id) = request_id else { return Ok(None) };
        if request_id.is_empty() || request_id.len() > MOST_REQUEST_ID {
            return Err(Refusal::new(
                "bad-request",
                400,
                format!("a request_id has 1 to {MOST_REQUEST_ID} bytes"),
                "use a UUID",
            ));
        }
        self.context.store.request(request_id).await.map_err(Refusal::journal)
    }

    /// The same request once more: the answer is the first one's.
    async fn again(&self, subject: &str, same: bool, proposal: Proposal) -> Result<Attached, Refusal> {
        use crate::operation::request_id_reused as reused;
        let id: OperationId = subject.parse().map_err(|_| reused())?;
        if !same {
            return Err(reused());
        }
        let row = self.operation_row(id).await?;
        if row.state.is_final() {
            return Ok(Attached::over(id, self.outcome(&row).await?));
        }
        // Still open: the desk finds it by its request id.
        self.desk.propose(proposal)
    }

    /// Approvals, newest first.
    pub async fn approvals(&self, pending_only: bool) -> Result<Vec<Value>, Refusal> {
        let states = if pending_only { vec![State::Pending] } else { Vec::new() };
        let rows = self
            .context
            .store
            .operations(OperationQuery { states, limit: MOST_LISTED, ..OperationQuery::default() })
            .await
            .map_err(Refusal::journal)?;
        Ok(rows.iter().map(view::approval).collect())
    }

    /// One approval.
    pub async fn approval(&self, id: ApprovalId) -> Result<Value, Refusal> {
        Ok(view::approval(&self.behind(id).await?))
    }

    /// Takes an operator's answer. `binding`: all 64 hex digits for a grant. `request_id`: the same answer once more
    /// is answered as the first.
    pub async fn decide(
        &self,
        id: ApprovalId,
        decision: Decision,
        binding: Option<String>,
        comment: Option<String>,
        request_id: Option<String>,
        who: &Who,
    ) -> Result<Value, Refusal> {
        if comment.as_ref().is_some_and(|comment| comment.len() > MOST_COMMENT) {
            return Err(Refusal::new(
                "bad-request",
                400,
                format!("a comment has at most {MOST_COMMENT} bytes"),
                "shorten it",
            ));
        }
        let content = Digest::of(json!([id, decision, binding, comment]).to_string().as_bytes());
        if self.was_decided_by(request_id.as_deref(), id, content).await? {
            return self.approval(id).await;
        }
        let row = self.behind(id).await?;
        if let Some(operation) = self.desk.behind(id) {
            let (answer, answered) = oneshot::channel();
            let request = request_id.clone().map(|id| (id, content));
            let order =
                Order::Decide { decision, binding: binding.clone(), comment, who: who.clone(), request, answer };
            if self.desk.order(operation, order).await.is_ok()
                && let Ok(answer) = answered.await
            {
                // The same request may have been taken a moment before.
                if let Err(refusal) = answer
                    && !self.was_decided_by(request_id.as_deref(), id, content).await?
                {
                    return Err(refusal);
                }
                return self.approval(id).await;
            }
        }
        // Nobody owns it any more: judged for the reason alone, nothing is granted here.
        let row = self.operation_row(row.id).await?;
        let verdict = salaam_core::approval::judge(
            decision,
            row.state,
            row.binding,
            binding.as_deref(),
            row.expires,
            self.context.clock.now(),
            false,
        );
        Err(crate::operation::refusal(&verdict).unwrap_or_else(|| {
            Refusal::new("no-owner", 503, "the operation has no owner; a restart voids it", "restart the service")
        }))
    }

    /// Whether this very answer was taken before.
    async fn was_decided_by(&self, request_id: Option<&str>, id: ApprovalId, content: Digest) -> Result<bool, Refusal> {
        match self.known_request(request_id).await? {
            None => Ok(false),
            Some(known) if known.fingerprint == content && known.subject == id.to_string() => Ok(true),
            Some(_) => Err(crate::operation::request_id_reused()),
        }
    }

    /// Operations, newest first.
    pub async fn operations(&self, limit: u32) -> Result<Vec<Value>, Refusal> {
        let rows = self
            .context
            .store
            .operations(OperationQuery { limit: limit.min(MOST_LISTED), ..OperationQuery::default() })
            .await
            .map_err(Refusal::journal)?;
        Ok(rows.iter().map(view::operation).collect())
    }

    /// One operation.
    pub async fn operation(&self, id: OperationId) -> Result<Value, Refusal> {
        Ok(view::operation(&self.operation_row(id).await?))
    }

    /// The kept bytes of a stream; `None` = nothing was kept.
    pub async fn output(&self, id: OperationId, stream: Stream) -> Result<Option<std::fs::File>, Refusal> {
        let row = self.operation_row(id).await?;
        if !row.state.is_final() {
            return Err(Refusal::new("not-over", 409, format!("{id} is {}", row.state), "wait for its result"));
        }
        self.context.store.blob(id, stream).map_err(Refusal::journal)
    }

    /// The output of an operation that is open, from its beginning; nothing = it is over, or there is none.
    pub fn flow(&self, id: OperationId, stream: Stream) -> Option<Flow> {
        self.desk.flow(id, stream)
    }

    /// Ends an operation and answers when it is over.
    pub async fn cancel(&self, id: OperationId, cause: CancelCause, who: &Who) -> Result<Value, Refusal> {
        let row = self.operation_row(id).await?;
        if !self.desk.cancel(id, cause, Some(who.clone())).await {
            let row = if row.state.is_final() { row } else { self.operation_row(id).await? };
            return Err(Refusal::new(
                "already-over",
                409,
                format!("{id} is {}", row.state),
                "external effects of a command are not undone by a cancel",
            ));
        }
        self.operation(id).await
    }

    /// Events as canonical lines with their numbers.
    pub async fn events(&self, query: EventQuery) -> Result<Vec<(u64, Vec<u8>)>, Refusal> {
        self.context.store.events(query).await.map_err(Refusal::journal)
    }

    /// The store, for followers.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Resolves when every operation is over and the last event is recorded: what is left is to tell it.
    pub async fn leaving(&self) {
        // The sender is ours, so it is there.
        drop(self.leave.subscribe().wait_for(|leave| *leave).await);
    }

    /// Begins to stop: nothing new is taken, what is open is cancelled.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) async fn operation_row(&self, id: OperationId) -> Result<OperationRow, Refusal> {
        self.context
            .store
            .operation(id)
            .await
            .map_err(Refusal::journal)?
            .ok_or_else(|| Refusal::not_found("operation", id))
    }

    async fn behind(&self, id: ApprovalId) -> Result<OperationRow, Refusal> {
        self.context
            .store
            .operation_of_approval(id)
            .await
            .map_err(Refusal::journal)?
            .ok_or_else(|| Refusal::not_found("approval", id))
    }

    /// The end of an operation, as its proposer would have been told.
    async fn outcome(&self, row: &OperationRow) -> Result<Value, Refusal> {
        if row.result.as_ref().is_none_or(|result| result.get("output").is_none()) {
            return Ok(view::operation(row));
        }
        let store = self.context.store.clone();
        let id = row.id;
        let heads = tokio::task::spawn_blocking(move || {
            [Stream::Stdout, Stream::Stderr].map(|stream| head(&store, id, stream))
        })
        .await;
        let [stdout, stderr] = heads.unwrap_or_default();
        Ok(view::result(row, &stdout, &stderr))
    }

    pub(super) async fn commit(&self, changes: Vec<Change>, events: Vec<Draft>) -> Result<(), Refusal> {
        match self.context.store.commit(Transaction { changes, events }).await {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict { .. }) => Err(Refusal::new(
                "conflict",
                409,
                "the same thing was changed at the same moment",
                "look again and repeat",
            )),
            Err(error @ CommitError::NotDurable(_)) => Err(Refusal::journal(error)),
        }
    }
}

/// States in which an operation still has an owner.
pub(super) const OPEN: [State; 4] = [State::Proposed, State::Pending, State::Granted, State::Dispatched];
/// Rows of a listing.
pub(super) const MOST_LISTED: u32 = 1000;

fn head(store: &Store, id: OperationId, stream: Stream) -> Vec<u8> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    if let Ok(Some(file)) = store.blob(id, stream) {
        drop(file.take(64 << 10).read_to_end(&mut bytes));
    }
    bytes
}
