//! What crosses the bridge, as values: the service asks, the executor answers. The wire form and its checks
//! are in salaam-proto.

use crate::{
    bound::BoundFile,
    command::Command,
    digest::Digest,
    edit::{Change, EditedFile, Expected, Image},
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::{Changed, Failure, Sandbox, Usage},
};

/// The protocol spoken over the bridge. Both sides must speak the same.
pub const VERSION: u32 = 3;

/// How a build names itself: `0.1.0 (commit abcdef0, bridge 3)`.
pub fn build_name(number: &str, commit: &str) -> String {
    format!("{number} (commit {commit}, bridge {VERSION})")
}

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

/// The first 12 bytes that the executor sends; its [`VERSION`] follows as a little-endian u32.
pub const HELLO_MAGIC: &[u8; 12] = b"SALAAMTOOLSD";
/// The first 12 bytes that the service answers; its [`VERSION`] follows as a little-endian u32.
pub const ANSWER_MAGIC: &[u8; 12] = b"SALAAMSERVIC";
/// Length of both.
pub const HELLO_BYTES: usize = 16;

/// The 16 bytes that one side sends before HTTP/2.
pub fn hello_bytes(magic: &[u8; 12], version: u32) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    for (to, from) in bytes.iter_mut().zip(magic.iter().copied().chain(version.to_le_bytes())) {
        *to = from;
    }
    bytes
}

/// The version in the other side's 16 bytes; absent = they do not begin with `magic`.
pub fn hello_version(magic: &[u8; 12], bytes: &[u8; HELLO_BYTES]) -> Option<u32> {
    let version = bytes.strip_prefix(magic)?;
    Some(u32::from_le_bytes(version.try_into().ok()?))
}

/// What the service says first: the contents of `Hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// Its [`VERSION`].
    pub bridge_version: u32,
    /// Its build, as `salaam --version` prints it.
    pub build: String,
    /// The epoch that it gives this executor, from 1.
    pub epoch: u64,
}

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

/// Asks the executor to try its sandbox on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSandbox {
    /// How much landlock is demanded.
    pub landlock: Landlock,
    /// Whether every attack there is is carried out, each a check of its own, instead of the short set.
    pub prove: bool,
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

/// Asks the executor to open a workspace and keep it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWorkspace {
    /// The registered workspace.
    pub workspace: WorkspaceId,
    /// Its absolute path, links resolved.
    pub path: Vec<u8>,
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

/// What is tried. The last six run one program each, whose place and arguments the executor knows: the service
/// chooses among them and names nothing; their path is `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// open(O_RDONLY).
    Read,
    /// open(O_RDONLY | O_DIRECTORY) and read of the first entry.
    List,
    /// connect(2) to a socket path.
    Connect,
    /// sudo to root, without a password.
    SudoRoot,
    /// sudo's list of what is allowed, without a password: it answers where any rule needs none.
    SudoList,
    /// A transient unit of the account's own service manager.
    SystemdRun,
    /// The account's table of cron.
    Crontab,
    /// The account's queue of at.
    At,
    /// To keep the account's service manager without a session; taken back at once where it worked.
    Linger,
}
crate::policy::word!(Action {
    Read = "read",
    List = "list",
    Connect = "connect",
    SudoRoot = "sudo-root",
    SudoList = "sudo-list",
    SystemdRun = "systemd-run",
    Crontab = "crontab",
    At = "at",
    Linger = "linger",
});

impl Action {
    /// Whether it runs a program instead of a system call on a path.
    pub const fn is_program(self) -> bool {
        match self {
            Self::Read | Self::List | Self::Connect => false,
            Self::SudoRoot | Self::SudoList | Self::SystemdRun | Self::Crontab | Self::At | Self::Linger => true,
        }
    }
}

/// What of a tried program's output crosses the bridge, in bytes: the line that says why.
pub const MAX_SAID_BYTES: usize = 512;

/// What came of an [`Attempt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// The attempt.
    pub id: String,
    /// 0 = it succeeded (a program: it was started and ended), else the errno. ENOENT of a program: it is not
    /// installed.
    pub errno: i32,
    /// How a program ended: its exit code, 128 and the signal.
    pub code: Option<i32>,
    /// The beginning of what a program wrote.
    pub said: String,
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
    /// The root's `.git` is a file that leads here, which is outside of the workspace; a path that is no text is
    /// shown as well as it can be.
    pub git_outside: Option<String>,
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
    /// What each was when the manifest was pinned, in the same order; another one there is refused.
    pub read_identities: Vec<String>,
    /// What the operator protects beside the built-in list, relative to the root.
    pub protected_paths: Vec<Vec<u8>>,
    /// Environment entries that the operator declared.
    pub environment: Vec<(String, String)>,
    /// Somebody reads along: all output is to be sent, also what nobody keeps.
    pub whole_output: bool,
}

/// What crosses beside the contents of an edit or of the files read for one: paths, digests, ids and framing.
pub const MAX_EDIT_FRAME_BYTES: usize = 4 << 20;

/// Asks for files as an edit finds them: before anybody is asked about it, and those that only the executor's account
/// can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFiles {
    /// The workspace, opened before.
    pub workspace: WorkspaceId,
    /// Relative paths, in order, each once.
    pub paths: Vec<Vec<u8>>,
    /// As in the [`EditPlan`] that may follow: what no edit touches is refused here already.
    pub protected_paths: Vec<Vec<u8>>,
}

/// The answer to [`ReadFiles`]: each path as it stands; absent = there is no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesRead {
    /// In order of path.
    pub files: Vec<(Vec<u8>, Option<Image>)>,
}

/// One edit or undo to apply. The executor reads the files itself, computes again, and refuses any difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditPlan {
    /// The operation; applied once.
    pub operation: OperationId,
    /// The executor epoch that the service believes in.
    pub epoch: u64,
    /// The workspace, opened before.
    pub workspace: WorkspaceId,
    /// In order.
    pub changes: Vec<Change>,
    /// What must come of them, in order of path.
    pub expected: Vec<Expected>,
    /// What the operator protects beside the built-in list, relative to the root.
    pub protected_paths: Vec<Vec<u8>>,
    /// Directories that go where they are empty afterwards: an undo names what the edit had [`Edited::made`].
    pub directories: Vec<Vec<u8>>,
}

/// Directories that one edit makes: each is an owned change beside the files.
pub const MAX_EDIT_DIRECTORIES: usize = 256;

/// An edit that took effect, whole and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// What became of each file, in order of path.
    pub files: Vec<EditedFile>,
    /// Directories that were made for files deeper down, in order of path.
    pub made: Vec<Vec<u8>>,
}

/// Asks what became of an edit that was sent and never answered, and ends it: finished or taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The operation.
    pub operation: OperationId,
    /// The executor epoch that the service believes in.
    pub epoch: u64,
    /// The workspace, opened before.
    pub workspace: WorkspaceId,
    /// What must have come of it, in order of path.
    pub expected: Vec<Expected>,
    /// As in its [`EditPlan`].
    pub directories: Vec<Vec<u8>>,
}

/// What the disk says about an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// All of it is in place, and durable.
    Finished(Edited),
    /// None of it is.
    RolledBack,
    /// Something else has changed the files: nobody can tell, and nothing more was touched.
    Undecided {
        /// What was found, for a person.
        evidence: String,
    },
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
    /// What the command wrote: all of it where the plan asks for that or all of it is kept, else the first bytes
    /// that are kept and, after the last [`RunEvent::Beyond`], the last.
    Output(Stream, Vec<u8>),
    /// The stream is longer than what is kept of it: from here on it is only counted and hashed.
    Beyond(Beyond),
    /// Nothing took effect.
    Failed(Failure),
    /// The process ran and ended, with its whole tree.
    Exited(Box<Exit>),
}

/// What a stream comes to that is longer than what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond {
    /// Of which.
    pub stream: Stream,
    /// What the command has written to it, from its beginning.
    pub bytes: u64,
    /// SHA-256 of all of it; absent = the stream goes on.
    pub sha256: Option<Digest>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_are_golden_and_round_trip() {
        let bytes = hello_bytes(HELLO_MAGIC, 0x0102_0304);
        assert_eq!(&bytes, b"SALAAMTOOLSD\x04\x03\x02\x01");
        assert_eq!(hello_version(HELLO_MAGIC, &bytes), Some(0x0102_0304));
        assert_eq!(hello_version(ANSWER_MAGIC, &bytes), None);
    }
}
