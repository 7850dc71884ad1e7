//! The result object: in replies, in `operation.result` (without text), and from `salaam run --json`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    canon,
    digest::Digest,
    edit::EditedFile,
    id::OperationId,
    operation::State,
    policy::{Isolation, Network, Profile},
};

/// The layers measured for one command; the executor's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// `bubblewrap` or `none`.
    pub backend: String,
    /// The backend's version, empty for none.
    pub version: String,
    /// The landlock ABI in force, 0 for none.
    pub landlock_abi: u32,
    /// `fully-enforced`, `partially-enforced` or `not-enforced`.
    pub landlock: String,
    /// Whether the seccomp filter is in force.
    pub seccomp: bool,
    /// The namespaces that are the command's own.
    pub namespaces: Vec<String>,
    /// Whether a prepared sandbox was used.
    pub warm: bool,
    /// The controllers by which its control group is limited; empty where it has none.
    #[serde(default)]
    pub cgroup: Vec<String>,
}

/// One output stream, whole and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Bytes that the command wrote.
    pub bytes: u64,
    /// SHA-256 of all of them.
    pub sha256: Digest,
    /// Bytes kept in the blob (head and tail).
    pub kept: u64,
    /// Whether some were not kept.
    pub truncated: bool,
}

impl Output {
    /// An empty stream.
    pub fn empty() -> Self {
        Self { bytes: 0, sha256: Digest::of(b""), kept: 0, truncated: false }
    }

    fn to_value(&self) -> Value {
        json!({ "bytes": canon::wide(self.bytes), "sha256": self.sha256, "kept": canon::wide(self.kept), "truncated": self.truncated })
    }
}

/// What the command used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time of the whole tree in milliseconds.
    pub cpu_ms: u64,
    /// The largest resident set of one of its processes in bytes.
    pub peak_memory_bytes: u64,
    /// From spawn to exit in milliseconds.
    pub wall_ms: u64,
}

/// When each step was taken, in microseconds after the proposal; absent = not reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each field is the moment that its name says")]
pub struct Timing {
    pub proposed: u64,
    pub granted: Option<u64>,
    pub dispatched: Option<u64>,
    pub spawned: Option<u64>,
    pub first_byte: Option<u64>,
    pub exited: Option<u64>,
    pub receipt: Option<u64>,
}

/// What a command changed in its workspace, by change time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// How many entries.
    pub count: u64,
    /// The first of them, relative to the root, at most 100.
    pub paths: Vec<Vec<u8>>,
    /// Whether the walk reached everything.
    pub complete: bool,
    /// How protected paths were kept.
    pub guard: Guard,
}

/// How the protected paths of a workspace were kept from a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guard {
    /// Mounts that nothing inside could change or move aside.
    pub mounts: u64,
    /// Protected paths beyond the most mounts that one sandbox has: kept by the look after the command only.
    pub scanned: u64,
    /// Whether that look reached everything, and could take away all that it found.
    pub complete: bool,
}

impl Changed {
    fn to_value(&self) -> Value {
        json!({
            "count": canon::wide(self.count),
            "paths": self.paths.iter().map(|path| canon::bytes(path)).collect::<Vec<_>>(),
            "complete": self.complete,
            "guard": {
                "mounts": canon::wide(self.guard.mounts),
                "scanned": canon::wide(self.guard.scanned),
                "complete": self.guard.complete,
            },
        })
    }
}

/// The receipt of an operation that was dispatched, or the end of one that was not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationResult {
    /// The operation.
    pub operation: OperationId,
    /// Its final state.
    pub state: State,
    /// The code that the process left with.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it ran into its time limit.
    pub timed_out: bool,
    /// The limit that ended it (`workspace_growth_bytes`), if one did.
    pub limit: Option<String>,
    /// Why it has no exit: an id and a sentence.
    pub error: Option<Failure>,
    /// The account that ran it.
    pub tool_uid: u32,
    /// What stood between it and the host.
    pub isolation: Isolation,
    /// Its profile.
    pub profile: Profile,
    /// Its network.
    pub network: Network,
    /// The manifest in force.
    pub manifest: Digest,
    /// The binding that was granted.
    pub binding: Digest,
    /// The layers measured for it; absent = it did not start.
    pub sandbox: Option<Sandbox>,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Processes that were still there when its own process exited, and were ended.
    pub left_processes: u64,
    /// What it changed.
    pub changed: Changed,
    /// What an edit did to each file; empty for a command.
    pub files: Vec<EditedFile>,
    /// What was moved to quarantine.
    pub quarantined: Vec<Vec<u8>>,
    /// Hosts that it reached or was refused, in order.
    pub egress: Vec<Value>,
    /// What it used.
    pub usage: Usage,
    /// When.
    pub timing: Timing,
}

/// Why nothing took effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A stable id such as `sandbox-userns`.
    pub id: String,
    /// What was attempted, on what, and why it failed.
    pub message: String,
}

impl OperationResult {
    /// The object for the journal: no output text.
    ///
    /// `files` is there only for an edit or undo that changed some: the object of a command stays as it was.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "operation": self.operation,
            "state": self.state,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "limit": self.limit,
            "error": self.error,
            "tool_uid": self.tool_uid,
            "isolation": self.isolation,
            "profile": self.profile,
            "network": self.network,
            "manifest": self.manifest,
            "binding": self.binding,
            "sandbox": self.sandbox,
            "output": { "stdout": self.stdout.to_value(), "stderr": self.stderr.to_value() },
            "left_processes": canon::wide(self.left_processes),
            "changed": self.changed.to_value(),
            "quarantined": self.quarantined.iter().map(|path| canon::bytes(path)).collect::<Vec<_>>(),
            "egress": self.egress,
            "usage": self.usage,
            "timing_us": self.timing,
        });
        if !self.files.is_empty()
            && let Some(map) = value.as_object_mut()
        {
            map.insert("files".into(), self.files.iter().map(EditedFile::to_value).collect());
        }
        value
    }
}
