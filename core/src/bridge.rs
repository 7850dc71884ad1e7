//! What crosses the bridge, as values: the service asks, the executor answers. The wire form and its checks
//! are in salaam-proto.

use crate::{
    bound::BoundFile,
    command::Command,
    digest::Digest,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::{Changed, Failure, Sandbox, Usage},
};

/// The protocol spoken over the bridge. Both sides must speak the same.
pub const VERSION: u32 = 1;

/// The largest standard input of a command.
pub const MAX_STDIN_BYTES: u64 = 16 << 20;
/// The largest single message in either direction.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Payload of one output or input message.
pub const CHUNK_BYTES: usize = 64 << 10;
/// The largest content that is bound for one operation, all files together; what is larger is `unpinned`.
pub const MAX_PINNED_BYTES: u64 = 128 << 20;
/// Read paths, protected paths and environment entries of one plan, each.
pub const MAX_PLAN_LIST: usize = 1024;

/// How the executor introduces itself after the kernel vouched for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its [`VERSION`].
    pub bridge_version: u32,
    /// Its build, as `salaam --version` prints it.
    pub build: String,
    /// Its real uid.
    pub uid: u32,
    /// Its real gid and getgroups(2), sorted.
    pub groups: Vec<u32>,
    /// Whether it read an instance file (`instance`) or stands on its built-in floor (`builtin`).
    pub floor: String,
}

/// What the executor's sandbox can do on this host, tried at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    /// The layers that a probe command had; absent = none is usable.
    pub sandbox: Option<Sandbox>,
    /// Each step that was tried (`sandbox-userns`, `sandbox-mount`, `sandbox-net`, `sandbox-landlock`,
    /// `sandbox-seccomp`, `sandbox-canary`).
    pub checks: Vec<crate::check::Check>,
}

/// A workspace as the executor opened it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedWorkspace {
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// The file handle in hex, empty where the file system has none.
    pub handle: String,
    /// Whether the tools user can write at its root.
    pub writable: bool,
}

/// Something that the tools user tries, to prove that it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Names the attempt in the answer.
    pub id: String,
    /// What is tried.
    pub action: Action,
    /// On what.
    pub path: Vec<u8>,
}

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// open(O_RDONLY).
    Read,
    /// connect(2) to a socket path.
    Connect,
}
crate::policy::word!(Action { Read = "read", Connect = "connect" });

/// What came of an [`Attempt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// The attempt.
    pub id: String,
    /// 0 = it succeeded, else the errno.
    pub errno: i32,
}

/// Asks for the content that a command would run from the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// For which operation.
    pub operation: OperationId,
    /// In which workspace.
    pub workspace: WorkspaceId,
    /// The command.
    pub command: Command,
    /// Whether the executor keeps the bytes that it hashed, for [`RunPlan`] to use and no others.
    pub hold: bool,
}

/// The answer to [`Prepare`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Content found, by absolute path, in order of path.
    pub files: Vec<BoundFile>,
    /// Something would run whose content cannot be bound.
    pub unpinned: bool,
}

/// One command to run. The executor checks all of it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// The operation; run once.
    pub operation: OperationId,
    /// The executor epoch that the service believes in; another one is refused.
    pub epoch: u64,
    /// The workspace, opened before.
    pub workspace: WorkspaceId,
    /// What is exec'd.
    pub command: Command,
    /// SHA-256 and size of the standard input that follows; absent = empty.
    pub stdin: Option<(Digest, u64)>,
    /// The profile.
    pub profile: Profile,
    /// The network.
    pub network: Network,
    /// How much landlock is demanded.
    pub landlock: Landlock,
    /// Whether it may run bare where no sandbox is usable (`unsandboxed_commands = "allow"`).
    pub allow_unsandboxed: bool,
    /// Its limits; `command_seconds` is the timeout of this command.
    pub limits: Limits,
    /// The bound content; must be what was prepared and held.
    pub files: Vec<BoundFile>,
    /// Absolute paths that are readable beside the system's, links resolved.
    pub read_paths: Vec<Vec<u8>>,
    /// What the operator protects beside the built-in list, relative to the root.
    pub protected_paths: Vec<Vec<u8>>,
    /// Environment entries that the operator declared.
    pub environment: Vec<(String, String)>,
}

/// What the executor is told while a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunInput {
    /// First, exactly once.
    Plan(Box<RunPlan>),
    /// Bytes of standard input, in order, before the command starts.
    Stdin(Vec<u8>),
    /// End it: TERM, a short grace, KILL.
    Cancel,
}

/// Which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}
crate::policy::word!(Stream { Stdout = "stdout", Stderr = "stderr" });

/// What the executor tells while a command runs. `Failed` or `Exited` comes last, exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    /// All layers hold, exec is next.
    Spawned(Sandbox),
    /// What the command wrote.
    Output(Stream, Vec<u8>),
    /// Nothing took effect.
    Failed(Failure),
    /// The process ran and ended, with its whole tree.
    Exited(Box<Exit>),
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// The code that it left with.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It ran into its time limit.
    pub timed_out: bool,
    /// It was ended by [`RunInput::Cancel`].
    pub cancelled: bool,
    /// Another limit ended it (`workspace_growth_bytes`).
    pub limit: Option<String>,
    /// The whole tree is proven gone (its pid namespace's init was reaped).
    pub proven_gone: bool,
    /// Processes still there when its own process exited.
    pub left_processes: u64,
    /// What it used.
    pub usage: Usage,
    /// What it changed in the workspace.
    pub changed: Changed,
    /// What was quarantined.
    pub quarantined: Vec<Vec<u8>>,
}
