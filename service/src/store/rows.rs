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
    /// Fails as `Conflict` if the id or its approval's id exists, if the session does not, or if the session has an
    /// operation of the same call.
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
    /// A person's word on an operation that is `unknown`; fails as `Conflict` unless it is, and has none yet.
    Reconcile {
        /// Which operation.
        id: OperationId,
        /// `{"verdict","comment","by"}`.
        word: Value,
    },
    /// What an agent's session was given. Fails as `Conflict` if it was given something before.
    PutBrief(BriefRow),
    /// The session is over: what it was given is no longer needed. Fails as `Conflict` if there is nothing.
    RemoveScript(SessionId),
    /// A turn of an agent, with its calls. Fails as `Conflict` if the session has a turn of that number.
    InsertTurn(TurnRow),
    /// The answer to a call; fails as `Conflict` unless the call is there and has none.
    AnswerCall {
        /// Whose.
        session: SessionId,
        /// Which.
        call: ModelCall,
        /// The JSON of the answer, as the agent is given it.
        answer: String,
    },
    /// A message to an agent; fails as `Conflict` if the session has one of that number.
    InsertMessage(MessageRow),
    /// A message is given to the agent after this turn; fails as `Conflict` unless it waits.
    TellMessage {
        /// Whose.
        session: SessionId,
        /// Which message.
        number: u64,
        /// After which turn.
        turn: u64,
    },
    /// Changes nothing; fails as `Conflict` unless the session lives and its worker has this epoch. In one
    /// transaction with a step, so that no epoch changes between the look and the step.
    ExpectEpoch {
        /// Which session.
        session: SessionId,
        /// The epoch that must be current.
        epoch: u64,
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

/// What an agent's session was given when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BriefRow {
    /// Whose.
    pub session: SessionId,
    /// What it is to do.
    pub task: String,
    /// What its provider replays; absent where that has no script, and once the session is over.
    pub script: Option<Vec<u8>>,
}

/// A call that a model made. A session has no two operations of the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelCall {
    /// The turn, from 0, as scripts count.
    pub turn: u64,
    /// Its place in the turn, from 0.
    pub call: u64,
}

/// One turn of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRow {
    /// Whose.
    pub session: SessionId,
    /// The first is 0, there are no gaps.
    pub number: u64,
    /// The epoch of the worker that sent it.
    pub epoch: u64,
    /// What the agent said.
    pub text: String,
    /// Whether it waits for a message after it.
    pub awaits: bool,
    /// What it asked for, in order.
    pub calls: Vec<CallRow>,
}

/// One call of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// The tool, as the agent named it.
    pub tool: String,
    /// The JSON of the arguments, as the agent sent it.
    pub arguments: String,
    /// The operation that was proposed for it. Never written here: it is read from the operations.
    pub operation: Option<OperationId>,
    /// The JSON of the answer. Absent = the call is open.
    pub answer: Option<String>,
}

/// One message to an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    /// To whom.
    pub session: SessionId,
    /// The first is 1, there are no gaps.
    pub number: u64,
    /// After which turn the agent was given it; absent = it waits.
    pub turn: Option<u64>,
    /// What it says.
    pub text: String,
}

/// The messages to an agent, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mail {
    /// All there are, which is the number of the last.
    pub all: u64,
    /// Those that it was given, which is the number of the last of them.
    pub told: u64,
    /// After which turn it was given the last one.
    pub last: Option<u64>,
}

/// Which sessions, newest first.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionQuery {
    /// Only those of this kind.
    pub kind: Option<salaam_core::session::Kind>,
    /// Only those of this workspace.
    pub workspace: Option<WorkspaceId>,
    /// Only those that are not over.
    pub live: bool,
    /// At most so many; 0 and anything above [`super::MAX_ROWS_PER_READ`] mean that many.
    pub limit: u32,
}

/// Which turns of a session, in order.
#[derive(Debug, Clone, Copy)]
pub struct TurnQuery {
    /// Whose.
    pub session: SessionId,
    /// The first of them.
    pub from: u64,
    /// Stops after so many bytes, but returns one turn at the least.
    pub bytes: usize,
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
    /// The call that it carries out; absent where an operator proposed it. A call never has two.
    pub call: Option<ModelCall>,
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
    /// A person's word on what is unknown: `{"verdict","comment","by"}`.
    pub reconciled: Option<Value>,
    /// What it takes to ask the question again after a restart; absent = a restart voids it.
    pub again: Option<Value>,
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
    /// Only those that are older than this one.
    pub before: Option<OperationId>,
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
