//! What is proposed, and by whom: a person or a session's worker.
//!
//! Promise: only a person's proposal has anything to grant with; a worker's cannot be spelled with one.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use salaam_core::{
    canon,
    command::Command,
    digest::Digest,
    edit::Change,
    id::{OperationId, SessionId, WorkspaceId},
    operation::Kind,
    policy::Profile,
    tool,
};
use serde_json::{Value, json};

use crate::{operation::Who, store::ModelCall};

/// What is proposed, where, and by whom.
#[derive(Debug)]
pub struct Proposal {
    /// Where it takes effect.
    pub workspace: WorkspaceId,
    /// What is done.
    pub work: Work,
    /// Absent = `workspace-write`.
    pub profile: Option<Profile>,
    /// Whether it goes on when the caller goes away.
    pub detach: bool,
    /// Whether the proposer takes the output as it comes; where not, it is only kept.
    pub follow: bool,
    /// Makes a repeated call answer for the first one.
    pub request_id: Option<String>,
    /// Who proposes it.
    pub origin: Origin,
}

/// What is done.
#[derive(Debug)]
pub enum Work {
    /// A program is run.
    Command {
        /// What is exec'd.
        command: Command,
        /// Its whole standard input; absent = empty.
        stdin: Option<Vec<u8>>,
        /// Absent = the configured limit; never above it.
        timeout_seconds: Option<u64>,
    },
    /// Files are changed.
    Edit {
        /// In order; a later one sees what an earlier one made.
        changes: Vec<Change>,
    },
    /// An edit is taken back.
    Undo {
        /// The edit, or an undo.
        operation: OperationId,
    },
}

/// Who proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A person.
    Operator {
        /// Who.
        who: Who,
        /// Whether they grant it in the same call.
        grant: bool,
        /// The session that it belongs to; absent = the workspace's operator session.
        session: Option<SessionId>,
    },
    /// A session's worker: a question is always asked.
    Worker {
        /// Its session.
        session: SessionId,
        /// The worker's epoch. It is bound; once another is current, the proposal is stale.
        epoch: u64,
        /// Which call of the model.
        call: ModelCall,
    },
}

impl Proposal {
    /// Names the content of a proposal, so that a request id cannot be used again for another one.
    pub fn fingerprint(&self) -> Digest {
        let session = match &self.origin {
            Origin::Operator { session, .. } => session.map(|id| json!([id])),
            Origin::Worker { session, epoch, call } => Some(json!([session, epoch, call.turn, call.call])),
        };
        let mut whole = vec![json!(self.workspace)];
        whole.extend(self.work.named());
        whole.extend([json!(self.profile), json!(self.origin.grants())]);
        whole.extend(session);
        Digest::of(Value::Array(whole).to_string().as_bytes())
    }
}

impl Work {
    /// What kind of effect it has.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Command { .. } => Kind::Command,
            Self::Edit { .. } => Kind::Edit,
            Self::Undo { .. } => Kind::Undo,
        }
    }

    /// What it takes to ask for it again, if that is kept: never a standard input.
    pub(super) fn to_again(&self) -> Option<Value> {
        match self {
            Self::Command { stdin: Some(bytes), .. } if !bytes.is_empty() => None,
            Self::Command { command, timeout_seconds, .. } => {
                let (key, words) = match command {
                    Command::Argv(words) => ("argv", words.iter().map(|word| canon::bytes(word)).collect()),
                    Command::Shell(text) => ("command", json!(text)),
                };
                Some(json!({ key: words, "timeout_seconds": timeout_seconds }))
            }
            Self::Edit { changes } => {
                let edits: Option<Vec<_>> = changes.iter().map(asked).collect();
                edits.map(|edits| json!({ "edits": edits }))
            }
            Self::Undo { operation } => Some(json!({ "undo": operation })),
        }
    }

    /// The inverse of [`Work::to_again`]; absent = it is not what that wrote.
    pub(super) fn from_again(value: &Value) -> Option<Self> {
        if let Some(operation) = value.get("undo") {
            return Some(Self::Undo { operation: operation.as_str()?.parse().ok()? });
        }
        if let Some(edits) = value.get("edits") {
            let arguments = json!({ "action": "edit", "edits": edits }).to_string();
            return match tool::parse("salaam_local", &arguments).ok()? {
                tool::Call::Edit { edits } => Some(Self::Edit { changes: edits }),
                tool::Call::List { .. }
                | tool::Call::Read { .. }
                | tool::Call::Search { .. }
                | tool::Call::Command { .. }
                | tool::Call::Undo { .. } => None,
            };
        }
        let command = match (value.get("argv"), value.get("command")) {
            (Some(words), None) => Command::from_json_argv(words.as_array()?),
            (None, Some(text)) => Command::shell(text.as_str()?.to_owned()),
            (Some(_), Some(_)) | (None, None) => return None,
        };
        let timeout_seconds = value.get("timeout_seconds").and_then(Value::as_u64);
        Some(Self::Command { command: command.ok()?, stdin: None, timeout_seconds })
    }

    /// Bytes that it carries: what an open question of it costs at the least.
    pub(super) fn carried(&self) -> usize {
        match self {
            Self::Command { command, stdin, .. } => {
                let words = match command {
                    Command::Argv(words) => words.iter().map(|word| word.len().saturating_add(WORD_BYTES)).sum(),
                    Command::Shell(text) => text.len(),
                };
                stdin.as_ref().map_or(0, Vec::len).saturating_add(words)
            }
            Self::Edit { changes } => changes.iter().map(|change| change.carried().saturating_add(WORD_BYTES)).sum(),
            Self::Undo { .. } => 0,
        }
    }

    /// Its content in a form that another content does not have.
    fn named(&self) -> Vec<Value> {
        match self {
            Self::Command { command, stdin, timeout_seconds } => {
                let words = match command {
                    Command::Argv(words) => {
                        json!(words.iter().map(|word| salaam_core::canon::bytes(word)).collect::<Vec<_>>())
                    }
                    Command::Shell(text) => json!(text),
                };
                vec![words, json!(stdin.as_deref().map(Digest::of)), json!(timeout_seconds)]
            }
            Self::Edit { changes } => {
                vec![json!("edit"), changes.iter().map(|change| change.named().to_value()).collect()]
            }
            Self::Undo { operation } => vec![json!("undo"), json!(operation)],
        }
    }
}

impl Origin {
    /// Whether the proposer grants it in the same call.
    pub const fn grants(&self) -> bool {
        match self {
            Self::Operator { grant, .. } => *grant,
            Self::Worker { .. } => false,
        }
    }

    /// The worker epoch that is bound; 0 for a person.
    pub const fn epoch(&self) -> u64 {
        match self {
            Self::Operator { .. } => 0,
            Self::Worker { epoch, .. } => *epoch,
        }
    }

    /// The model's call that it is, if it is one.
    pub const fn call(&self) -> Option<ModelCall> {
        match self {
            Self::Operator { .. } => None,
            Self::Worker { call, .. } => Some(*call),
        }
    }
}

/// What a word or a change costs beside its bytes.
const WORD_BYTES: usize = 64;

/// A change as a model or a person asks for it; absent = it cannot be asked for that way.
fn asked(change: &Change) -> Option<Value> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let path = text(change.path())?;
    Some(match change {
        Change::Replace { old, new, all, .. } => {
            json!({ "path": path, "old": text(old)?, "new": text(new)?, "all": all })
        }
        Change::Create { content, .. } => match text(content) {
            Some(content) => json!({ "path": path, "create": content }),
            None => json!({ "path": path, "create_base64": STANDARD.encode(content) }),
        },
        Change::Delete { .. } => json!({ "path": path, "delete": true }),
        Change::Rename { to, .. } => json!({ "path": path, "rename": text(to)? }),
        Change::Mode { mode, .. } => json!({ "path": path, "mode": format!("{mode:04o}") }),
        Change::Write { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(work: &Work) -> Option<String> {
        let kept = work.to_again()?;
        let back = Work::from_again(&kept).expect("what was kept is read");
        assert_eq!(back.to_again().as_ref(), Some(&kept));
        assert_eq!(format!("{back:?}"), format!("{work:?}"));
        Some(kept.to_string())
    }

    #[test]
    fn what_is_kept_over_a_restart_is_the_same_work_and_never_a_standard_input() {
        let command = |command, stdin| Work::Command { command, stdin, timeout_seconds: Some(7) };
        let words = Command::argv(vec![b"printf".to_vec(), b"\xff\n".to_vec()]).unwrap();
        assert!(again(&command(words.clone(), None)).is_some());
        assert!(again(&command(Command::shell("ls | wc".into()).unwrap(), None)).is_some());
        assert!(command(words, Some(b"x".to_vec())).to_again().is_none());
        assert!(again(&Work::Undo { operation: OperationId::new(1, [9; 10]) }).is_some());
        let path = |name: &str| name.as_bytes().to_vec();
        let changes = vec![
            Change::Replace { path: path("a"), old: path("x\n"), new: path("\u{202e}"), all: true },
            Change::Create { path: path("b"), content: path("text") },
            Change::Create { path: path("c"), content: vec![0xff, 0] },
            Change::Delete { path: path("d") },
            Change::Rename { path: path("e"), to: path("f") },
            Change::Mode { path: path("g"), mode: 0o755 },
        ];
        assert!(again(&Work::Edit { changes }).is_some());
        let write = Change::Write { path: path("a"), content: Vec::new(), mode: 0o644 };
        assert!(Work::Edit { changes: vec![write] }.to_again().is_none());
        assert!(Work::from_again(&json!({ "rm": true })).is_none());
    }
}
