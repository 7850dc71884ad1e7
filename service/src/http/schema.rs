//! The objects of the interface, as the OpenAPI description shows them. Nothing is made of these types: the
//! application answers with JSON, and clients read it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A string where the bytes are UTF-8, `{"base64":"…"}` where not.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Bytes {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Encoded(Base64),
}

/// An integer below 2^53, or a string of digits from there on.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Wide {
    /// Below 2^53.
    Number(u64),
    /// Its decimal digits.
    Digits(String),
}

/// Bytes that are not UTF-8.
#[derive(Debug, Serialize, ToSchema)]
pub struct Base64 {
    /// Standard base64 with padding.
    pub base64: String,
}

/// Every answer that is not 2xx.
#[derive(Debug, ToSchema)]
pub struct Failed {
    /// What is wrong.
    pub error: Failure,
}

/// What is wrong.
#[derive(Debug, ToSchema)]
pub struct Failure {
    /// A stable id such as `stale-approval`.
    #[schema(example = "stale-approval")]
    pub id: String,
    /// What was attempted, on what, and why it is refused.
    pub message: String,
    /// What mends it.
    pub fix: String,
}

/// A registered workspace.
#[derive(Debug, ToSchema)]
pub struct Workspace {
    /// ws_ and 32 hex digits.
    pub workspace: String,
    /// Its short name.
    pub name: String,
    /// Its absolute path.
    pub path: Bytes,
    /// Its device, when it was registered.
    pub device: Wide,
    /// Its inode, when it was registered.
    pub inode: Wide,
    /// Its file handle in hex, empty where the file system has none.
    pub handle: String,
    /// When it was registered.
    pub added: String,
}

/// All registered workspaces.
#[derive(Debug, ToSchema)]
pub struct Workspaces {
    /// In the order in which they were registered.
    pub workspaces: Vec<Workspace>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub struct Session {
    /// ses_ and 32 hex digits.
    pub session: String,
    /// `worker` or `operator`.
    pub kind: String,
    /// `starting`, `running`, `waiting` (with `waiting_for`) or `ended` (with `outcome`).
    pub state: String,
    /// `approval`, `message`, `budget` or `reconcile`.
    pub waiting_for: Option<String>,
    /// `completed`, `failed`, `cancelled` or `script-mismatch`.
    pub outcome: Option<String>,
    /// Why it is over; null where it is not.
    pub reason: Option<String>,
    /// Its workspace.
    pub workspace: String,
    /// Whether it works in the workspace itself.
    pub in_place: bool,
    /// `provider`, `model`, `endpoint` and `tools`.
    #[schema(value_type = Object)]
    pub route: Value,
    /// The profile of its commands.
    pub profile: String,
    /// The network of its commands.
    pub network: String,
    /// The account that runs its commands.
    pub tool_uid: u32,
    /// What stands between them and the host.
    pub isolation: String,
    /// Which worker it has or had last, counted from 1; 0 for operators.
    pub worker_epoch: u64,
    /// How many turns its agent took; absent for operators.
    pub turns_taken: Option<u64>,
    /// Its budget; empty = none.
    #[schema(value_type = Object)]
    pub budget: Value,
    /// When it was made.
    pub created: String,
}

/// A session with what was said in it. An operators' session has none of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionShown {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// What it is to do.
    pub task: Option<String>,
    /// Turns from the one that was asked for on, as many as fit.
    pub turns: Option<Vec<Turn>>,
    /// Whether there are more turns.
    pub more: Option<bool>,
    /// The messages to its agent, at most 256.
    pub messages: Option<Vec<Message>>,
}

/// One turn of an agent.
#[derive(Debug, Serialize, ToSchema)]
pub struct Turn {
    /// Its number, from 0.
    pub turn: u64,
    /// The worker that took it.
    pub epoch: u64,
    /// What it says.
    pub text: String,
    /// Whether it waits for a message after it.
    pub awaits: bool,
    /// What it asks for, in order.
    pub calls: Vec<Call>,
}

/// One call of a turn.
#[derive(Debug, Serialize, ToSchema)]
pub struct Call {
    /// The tool.
    pub tool: String,
    /// JSON, as the agent wrote it.
    pub arguments: String,
    /// The operation that was proposed for it, if one was.
    pub operation: Option<String>,
    /// What the agent is told; null while the call is open.
    #[schema(value_type = Option<Object>)]
    pub answer: Option<Value>,
}

/// One message to an agent.
#[derive(Debug, Serialize, ToSchema)]
pub struct Message {
    /// Its number, from 1.
    pub message: u64,
    /// After which turn the agent was given it; null while it waits.
    pub turn: Option<u64>,
    /// What it says.
    pub text: String,
}

/// Sessions.
#[derive(Debug, ToSchema)]
pub struct Sessions {
    /// The newest first, at most 1000.
    pub sessions: Vec<Session>,
}

/// The question put to an operator about one operation.
#[derive(Debug, ToSchema)]
pub struct Approval {
    /// ap_ and 32 hex digits.
    pub approval: String,
    /// op_ and 32 hex digits.
    pub operation: String,
    /// ses_ and 32 hex digits.
    pub session: String,
    /// The sessions above that one.
    pub lineage: Vec<String>,
    /// The state of the operation.
    pub state: String,
    /// SHA-256 of the canonical form of `bound`; a grant names it whole.
    pub binding: String,
    /// Everything that a grant fixes.
    #[schema(value_type = Object)]
    pub bound: Value,
    /// What a person is shown: complete, with visible escapes.
    pub display: String,
    /// What to look at twice, such as `unsandboxed`, `landlock-not-enforced` or `operand-unpinned`.
    pub flags: Vec<String>,
    /// When it was asked.
    pub requested: String,
    /// When silence becomes `expired`.
    pub expires: String,
    /// Who answered.
    pub decided_by: Option<By>,
    /// What they said.
    pub comment: Option<String>,
}

/// Who did something, by the kernel's word.
#[derive(Debug, ToSchema)]
pub struct By {
    /// The account's name, or its uid in digits.
    pub principal: String,
    /// Its uid.
    pub uid: u32,
    /// The process that connected.
    pub pid: i32,
    /// `operator-socket`.
    pub via: String,
}

/// Approvals.
#[derive(Debug, ToSchema)]
pub struct Approvals {
    /// The oldest first.
    pub approvals: Vec<Approval>,
}

/// One operation, from proposal to receipt.
#[derive(Debug, ToSchema)]
pub struct Operation {
    /// op_ and 32 hex digits.
    pub operation: String,
    /// Its approval.
    pub approval: String,
    /// Its session.
    pub session: String,
    /// Its workspace.
    pub workspace: String,
    /// `command`, `edit`, `undo`, `restore` or `patch`.
    pub kind: String,
    /// `proposed`, `pending`, `granted`, `dispatched`, `completed`, `failed`, `timed-out`, `cancelled`,
    /// `unknown`, `refused`, `denied`, `expired` or `stale`.
    pub state: String,
    /// What was, or is to be, granted.
    pub binding: String,
    /// What a person is shown.
    pub display: String,
    /// What to look at twice.
    pub flags: Vec<String>,
    /// When it was proposed.
    pub requested: String,
    /// When silence becomes `expired`.
    pub expires: String,
    /// Who answered.
    pub decided_by: Option<By>,
    /// What they said.
    pub comment: Option<String>,
    /// The model's turn that it is a call of; absent = a person proposed it.
    pub turn: Option<u64>,
    /// Its place in that turn, from 0.
    pub call: Option<u64>,
    /// Why it has no exit.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// The receipt, when there is one.
    pub result: Option<OperationResult>,
}

/// Operations.
#[derive(Debug, ToSchema)]
pub struct Operations {
    /// The newest first.
    pub operations: Vec<Operation>,
}

/// The receipt of an operation. One that ended without being dispatched has `operation` and `state`.
#[derive(Debug, ToSchema)]
pub struct OperationResult {
    /// op_ and 32 hex digits.
    pub operation: String,
    /// Its session.
    pub session: Option<String>,
    /// Its final state.
    pub state: String,
    /// The code that the process left with.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it ran into its time limit.
    pub timed_out: bool,
    /// The account that ran it.
    pub tool_uid: u32,
    /// What stood between it and the host.
    pub isolation: String,
    /// Its profile.
    pub profile: String,
    /// Its network.
    pub network: String,
    /// The pinned host configuration.
    pub manifest: String,
    /// The binding that was granted.
    pub binding: String,
    /// The layers measured for it.
    #[schema(value_type = Option<Object>)]
    pub sandbox: Option<Value>,
    /// `stdout` and `stderr`.
    pub output: BTreeMap<String, Output>,
    /// Processes that were left behind and ended.
    pub left_processes: u64,
    /// What it changed in the workspace.
    #[schema(value_type = Object)]
    pub changed: Value,
    /// What became of each file, by digest: of an edit or an undo only.
    #[schema(value_type = Option<Vec<Object>>)]
    pub files: Option<Vec<Value>>,
    /// Directories that were made for them, where some were.
    pub made: Option<Vec<Bytes>>,
    /// What the disk said of an edit whose executor was lost: `outcome` (`finished`, `rolled-back`, `undecided`) and
    /// `executor_epoch`; only where it had to be asked.
    #[schema(value_type = Option<Object>)]
    pub settled: Option<Value>,
    /// What was said with the grant.
    pub comment: Option<String>,
    /// What was moved to quarantine.
    pub quarantined: Vec<Bytes>,
    /// Hosts that it reached or was refused.
    #[schema(value_type = Vec<Object>)]
    pub egress: Vec<Value>,
    /// CPU time, memory, wall time.
    #[schema(value_type = Object)]
    pub usage: Value,
    /// Microseconds after the proposal.
    #[schema(value_type = Object)]
    pub timing_us: Value,
}

/// One stream of a command.
#[derive(Debug, ToSchema)]
pub struct Output {
    /// Bytes that it wrote.
    pub bytes: u64,
    /// SHA-256 of all of them.
    pub sha256: String,
    /// Whether some were not kept.
    pub truncated: bool,
    /// Up to 64 KiB of it, where it is UTF-8.
    pub text: Option<String>,
    /// Up to 64 KiB of it, where it is not.
    pub base64: Option<String>,
}

/// One line of a followed operation: exactly one of the four. `result` or `error` is the last.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum Progress {
    /// What was proposed.
    Approval(Approval),
    /// A piece of output.
    Output(Piece),
    /// Its reader took none of the output for half a minute: no more of it comes, the command and its record go on.
    Cut(Cut),
    /// The end.
    Result(OperationResult),
    /// It ended without a receipt.
    Error(Failure),
}

/// A piece of output.
#[derive(Debug, ToSchema)]
pub struct Piece {
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The bytes.
    pub base64: String,
}

/// The output is cut here.
#[derive(Debug, ToSchema)]
pub struct Cut {
    /// What happened.
    pub message: String,
    /// Where the rest is.
    pub fix: String,
}

/// One event of the journal.
#[derive(Debug, ToSchema)]
pub struct Event {
    /// Its number; the first is 1, there are no gaps.
    pub seq: u64,
    /// When it was written.
    pub time: String,
    /// What happened.
    #[schema(example = "operation.result")]
    pub kind: String,
    /// In which session.
    pub session: Option<String>,
    /// The particulars.
    #[schema(value_type = Object)]
    pub data: Value,
    /// The hash of the event before.
    pub prev: String,
    /// SHA-256 of the canonical form of all the above.
    pub hash: String,
}

/// One check of the host.
#[derive(Debug, ToSchema)]
pub struct Probe {
    /// A stable id such as `state-readable`.
    pub id: String,
    /// `required` (a start is refused, new grants are) or `degrading`.
    pub severity: String,
    /// `pass`, `fail`, `warn` or `unproven`.
    pub result: String,
    /// What was seen.
    pub evidence: String,
    /// What mends it; empty where it holds.
    pub fix: String,
    /// When it was tried.
    pub at: String,
}

/// Checks of the host.
#[derive(Debug, ToSchema)]
pub struct Probes {
    /// In the order in which they were tried.
    pub probes: Vec<Probe>,
}

/// How the service is.
#[derive(Debug, ToSchema)]
pub struct Health {
    /// `ok` or `degraded`.
    pub status: String,
    /// The build.
    pub version: String,
    /// When it started.
    pub started: String,
    /// Its process.
    pub service_pid: u32,
    /// Its account.
    pub service_uid: u32,
    /// The pinned host configuration.
    pub manifest: String,
    /// `instance` or `builtin`.
    pub floor: String,
    /// Who runs commands, in what, and the proofs.
    #[schema(value_type = Object)]
    pub tool_execution: Value,
    /// `last_seq` and `last_hash`.
    #[schema(value_type = Object)]
    pub journal: Value,
    /// `active`.
    #[schema(value_type = Object)]
    pub sessions: Value,
    /// `pending`.
    #[schema(value_type = Object)]
    pub approvals: Value,
    /// `live` and `routes`.
    #[schema(value_type = Object)]
    pub provider: Value,
    /// What is weaker than it could be.
    pub warnings: Vec<String>,
}
