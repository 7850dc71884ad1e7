//! What an approval binds, and the binding: the SHA-256 of its canonical form.
//!
//! The service builds it once, shows it, stores it, and rebuilds it at dispatch; any difference is stale.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    canon::{self, CanonError},
    command::Command,
    digest::Digest,
    edit::{Expected, Named},
    id::{OperationId, WorkspaceId},
    operation::Kind,
    policy::Policy,
    time::Timestamp,
};

/// A workspace as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceIdentity {
    /// The registered id.
    pub id: WorkspaceId,
    /// Its absolute path, links resolved.
    pub path: Vec<u8>,
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// The file handle (name_to_handle_at(2)) in hex, empty where the file system has none: inode numbers
    /// are used again, handles carry a generation.
    pub handle: String,
}

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// A command with its standard input named by digest.
    Command {
        /// What is exec'd.
        command: Command,
        /// SHA-256 and size of the operator's standard input; absent = empty.
        stdin: Option<(Digest, u64)>,
        /// The time limit in seconds.
        timeout_seconds: u64,
    },
    /// Files are changed.
    Edit {
        /// The changes in order, their contents by digest.
        changes: Vec<Named>,
        /// What becomes of each file, in order of path.
        files: Vec<Expected>,
        /// SHA-256 of the shown form: the diff that the operator saw.
        diff: Digest,
    },
    /// An edit is taken back.
    Undo {
        /// Which.
        operation: OperationId,
        /// What becomes of each file, in order of path.
        files: Vec<Expected>,
        /// SHA-256 of the shown form.
        diff: Digest,
    },
}

/// A file whose content is bound. For an edit or undo these are the pre-images; a file that is not there yet has
/// [`BoundFile::ABSENT`], which no content hashes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundFile {
    /// The absolute path inside the workspace.
    pub path: Vec<u8>,
    /// The content that was read.
    pub sha256: Digest,
}

impl BoundFile {
    /// Stands for a file that must not be there.
    pub const ABSENT: Digest = Digest::ZERO;

    /// The pre-images of an edit below the workspace at `root`, in order of path.
    pub fn before(root: &[u8], files: &[Expected]) -> Vec<Self> {
        let absolute = |path: &[u8]| [root.strip_suffix(b"/").unwrap_or(root), b"/", path].concat();
        let bound = |file: &Expected| Self {
            path: absolute(&file.path),
            sha256: file.pre.map_or(Self::ABSENT, |stamp| stamp.sha256),
        };
        let mut bound: Vec<Self> = files.iter().map(bound).collect();
        bound.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        bound
    }
}

/// Everything that a grant covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The operation.
    pub operation: OperationId,
    /// The kind of effect.
    pub kind: Kind,
    /// The workspace.
    pub workspace: WorkspaceIdentity,
    /// What will be done.
    pub arguments: Arguments,
    /// Content that must be the same at dispatch.
    pub files: Vec<BoundFile>,
    /// Under which policy.
    pub policy: Policy,
    /// The worker epoch; 0 for an operator session.
    pub worker_epoch: u64,
    /// When the question lapses.
    pub expires: Timestamp,
}

impl Bound {
    /// The JSON that is served and hashed.
    pub fn to_value(&self) -> Result<Value, BoundError> {
        // Paths that are not UTF-8 cannot be keys; they are listed beside the map instead.
        let mut named = BTreeMap::new();
        let mut raw = Vec::new();
        for file in &self.files {
            match std::str::from_utf8(&file.path) {
                Ok(path) if path.is_ascii() => drop(named.insert(path.to_owned(), file.sha256)),
                _ => raw.push(json!({ "path": canon::bytes(&file.path), "sha256": file.sha256 })),
            }
        }
        let mut value = json!({
            "operation": self.operation,
            "kind": self.kind,
            "workspace": {
                "id": self.workspace.id,
                "path": canon::bytes(&self.workspace.path),
                "device": canon::wide(self.workspace.device),
                "inode": canon::wide(self.workspace.inode),
                "handle": self.workspace.handle,
            },
            "arguments": self.arguments.to_value(),
            "files": named,
            "policy": self.policy,
            "worker_epoch": canon::wide(self.worker_epoch),
            "expires": self.expires,
        });
        if !raw.is_empty()
            && let Some(map) = value.as_object_mut()
        {
            map.insert("other_files".into(), Value::Array(raw));
        }
        Ok(value)
    }

    /// The binding: SHA-256 of the canonical form.
    pub fn binding(&self) -> Result<Digest, BoundError> {
        Ok(canon::digest(&self.to_value()?)?)
    }

    /// Names what differs from `now`, top-level field by field; empty = nothing. Time does not count here:
    /// expiry is its own refusal.
    pub fn changed(&self, now: &Self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        let mut differs = |name, different: bool| {
            if different {
                changed.push(name);
            }
        };
        differs("operation", self.operation != now.operation);
        differs("kind", self.kind != now.kind);
        differs("workspace", self.workspace != now.workspace);
        differs("arguments", self.arguments != now.arguments);
        differs("files", self.files != now.files);
        differs("policy.manifest", self.policy.manifest != now.policy.manifest);
        differs("policy.profile", self.policy.profile != now.policy.profile);
        differs("policy.isolation", self.policy.isolation != now.policy.isolation);
        differs("policy.network", self.policy.network != now.policy.network);
        differs("policy.limits", self.policy.limits != now.policy.limits);
        differs("worker_epoch", self.worker_epoch != now.worker_epoch);
        differs("expires", self.expires != now.expires);
        changed
    }
}

impl Arguments {
    fn to_value(&self) -> Value {
        match self {
            Self::Command { command, stdin, timeout_seconds } => {
                let mut value = match command {
                    Command::Argv(argv) => {
                        json!({ "argv": argv.iter().map(|arg| canon::bytes(arg)).collect::<Vec<_>>() })
                    }
                    Command::Shell(text) => json!({ "command": canon::bytes(text.as_bytes()) }),
                };
                if let Some(map) = value.as_object_mut() {
                    let stdin = stdin.map(|(sha256, bytes)| json!({ "sha256": sha256, "bytes": canon::wide(bytes) }));
                    map.insert("stdin".into(), stdin.unwrap_or(Value::Null));
                    map.insert("timeout_seconds".into(), canon::wide(*timeout_seconds));
                }
                value
            }
            Self::Edit { changes, files, diff } => json!({
                "edits": changes.iter().map(Named::to_value).collect::<Vec<_>>(),
                "files": files.iter().map(Expected::to_value).collect::<Vec<_>>(),
                "diff": { "sha256": diff },
            }),
            Self::Undo { operation, files, diff } => json!({
                "undo": operation,
                "files": files.iter().map(Expected::to_value).collect::<Vec<_>>(),
                "diff": { "sha256": diff },
            }),
        }
    }
}

/// Why something has no binding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundError {
    /// It has no canonical form.
    #[error("what is to be approved has no canonical form")]
    Canon(#[from] CanonError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limits::Limits,
        policy::{Isolation, Network, Profile},
    };

    fn sample() -> Bound {
        Bound {
            operation: OperationId::new(1, [1; 10]),
            kind: Kind::Command,
            workspace: WorkspaceIdentity {
                id: WorkspaceId::new(1, [2; 10]),
                path: b"/srv/caf\xe9".to_vec(),
                device: 2049,
                inode: u64::MAX,
                handle: "0102".into(),
            },
            arguments: Arguments::Command {
                command: Command::Argv(vec![b"id".to_vec(), b"-u".to_vec()]),
                stdin: None,
                timeout_seconds: 600,
            },
            files: vec![
                BoundFile { path: b"/srv/x/\xff".to_vec(), sha256: Digest::ZERO },
                BoundFile { path: b"/srv/x/run.sh".to_vec(), sha256: Digest::ZERO },
            ],
            policy: Policy {
                manifest: Digest::ZERO,
                profile: Profile::WorkspaceWrite,
                isolation: Isolation::ToolsUserBubblewrap,
                network: Network::None,
                limits: Limits::default(),
                control_group: Vec::new(),
            },
            worker_epoch: 0,
            expires: Timestamp::from_micros(0),
        }
    }

    #[test]
    fn awkward_values_have_a_canonical_form_and_a_stable_binding() {
        let canonical = String::from_utf8(canon::to_vec(&sample().to_value().unwrap()).unwrap()).unwrap();
        assert!(canonical.contains(r#""inode":"18446744073709551615""#), "{canonical}");
        assert!(canonical.contains(r#""path":{"base64":"L3Nydi9jYWbp"}"#), "{canonical}");
        assert_eq!(
            sample().binding().unwrap().to_string(),
            "a51c603a58dc57aa7109d5faf185354e387359ff9dd206355a43ca99579f062c"
        );
    }

    #[test]
    fn one_changed_byte_changes_the_binding_and_is_named() {
        let before = sample();
        let mut after = sample();
        after.arguments = Arguments::Command {
            command: Command::Argv(vec![b"id".to_vec(), b"-g".to_vec()]),
            stdin: None,
            timeout_seconds: 600,
        };
        assert_ne!(before.binding(), after.binding());
        assert_eq!(before.changed(&after), ["arguments"]);
        assert!(before.changed(&before).is_empty());
    }
}
