//! What is stored beside the journal, and what may be asked: plain values, no SQL.

use salaam_core::{
    digest::Digest,
    event::Draft,
    id::{ApprovalId, OperationId, SessionId, WorkspaceId},
    operation::{Kind, State},
    time::Timestamp,
};
use serde_json::Value;

/// State changes and the events that go with them, committed together.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Applied in order, before the events.
    pub changes: Vec<Change>,
    /// Recorded in order.
    pub events: Vec<Draft>,
}

/// One change of state.
#[derive(Debug)]
pub enum Change {
    /// Adds a workspace or replaces the one of that id. Fails as `Conflict` if another has its name or path.
    PutWorkspace(WorkspaceRow),
    /// Fails as `Conflict` if there is none of that id.
    RemoveWorkspace(WorkspaceId),
    /// Adds a session or replaces the one of that id. Fails as `Conflict` if the workspace has another operator's.
    PutSession(SessionRow),
    /// Fails as `Conflict` if the id or its approval's id exists, or if the session does not.
    InsertOperation(Box<OperationRow>),
    /// Compare and swap of the state; fails as `Conflict` unless the row is in `from` and the table of
    /// `core::operation` has the step. `None` fields stay. The binding of a row never changes.
    StepOperation {
        /// Which operation.
        id: OperationId,
        /// Where it must stand.
        from: State,
        /// Where it goes.
        to: State,
        /// Who decided, for a decision.
        decided_by: Option<Value>,
        /// What they said.
        comment: Option<String>,
        /// The receipt.
        result: Option<Value>,
    },
    /// Idempotency: fails as `Conflict` if the request id exists.
    RememberRequest {
        /// The caller's own id of its request.
        request_id: String,
        /// The digest of what was asked, so that the same id with another content is noticed.
        fingerprint: Digest,
        /// What came of it: an id.
        subject: String,
    },
}

/// A registered workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceRow {
    /// Its id.
    pub id: WorkspaceId,
    /// Its name, unique.
    pub name: String,
    /// Its absolute path with links resolved, unique; not necessarily UTF-8.
    pub path: Vec<u8>,
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// The file handle in hex, empty where the file system has none.
    pub handle: String,
    /// When it was registered.
    pub added: Timestamp,
}

/// A session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Its id.
    pub id: SessionId,
    /// Who proposes in it.
    pub kind: salaam_core::session::Kind,
    /// Where.
    pub workspace: WorkspaceId,
    /// The session object as it is served.
    pub document: Value,
    /// When it was made.
    pub created: Timestamp,
}

/// One operation with its approval.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationRow {
    /// Its id.
    pub id: OperationId,
    /// The id of the question put to an operator.
    pub approval: ApprovalId,
    /// The session that proposed it; must exist.
    pub session: SessionId,
    /// Where it takes effect.
    pub workspace: WorkspaceId,
    /// What kind of effect.
    pub kind: Kind,
    /// Where it stands.
    pub state: State,
    /// The digest of `bound`.
    pub binding: Digest,
    /// The JSON of what is bound, whose canonical form hashes to `binding`; checked on the way in and out.
    pub bound: Value,
    /// What an operator is shown.
    pub display: String,
    /// What an operator is warned of.
    pub flags: Vec<String>,
    /// When it was put to the operator.
    pub requested: Timestamp,
    /// When the question lapses.
    pub expires: Timestamp,
    /// Who decided.
    pub decided_by: Option<Value>,
    /// What they said.
    pub comment: Option<String>,
    /// The receipt.
    pub result: Option<Value>,
}

/// A request that was carried out before.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRow {
    /// The caller's own id of it.
    pub request_id: String,
    /// The digest of what was asked.
    pub fingerprint: Digest,
    /// What came of it: an id.
    pub subject: String,
}

/// Which events; all conditions hold together.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Only events with a higher number.
    pub after: u64,
    /// Only this kind, as it is written.
    pub kind: Option<String>,
    /// Only this session.
    pub session: Option<SessionId>,
    /// Only events that name this operation.
    pub operation: Option<OperationId>,
    /// At most so many; 0 and anything above [`super::MAX_ROWS_PER_READ`] mean that many. Fewer may come
    /// although there are more (see [`super::MAX_EVENT_BYTES_PER_READ`]); none means that there are no more.
    pub limit: u32,
}

/// Which operations, newest first.
#[derive(Debug, Clone, Default)]
pub struct OperationQuery {
    /// Only in these states; empty = in any.
    pub states: Vec<State>,
    /// Only this session.
    pub session: Option<SessionId>,
    /// Only this workspace.
    pub workspace: Option<WorkspaceId>,
    /// At most so many; 0 and anything above [`super::MAX_ROWS_PER_READ`] mean that many. Fewer may come although
    /// there are more (see [`super::MAX_OPERATION_BYTES_PER_READ`]).
    pub limit: u32,
}

/// How many operations are open, by where they stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOperations {
    /// All that are not over.
    pub all: u64,
    /// Those that wait for an operator.
    pub pending: u64,
    /// Those that were granted and may have an effect: they wait for a slot, or run.
    pub granted: u64,
}
