//! Why a verb did not do what it was asked, with the id, the remedy and the exit code of each.

use std::{io, path::PathBuf};

use serde_json::{Value, json};

use super::exit;

/// A failed check of a refused start, as the interface writes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(super) struct FailedCheck {
    /// A stable id such as `state-readable`.
    pub id: String,
    /// What was seen.
    #[serde(default)]
    pub evidence: String,
    /// What mends it.
    #[serde(default)]
    pub fix: String,
}

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The service, or this program in its place, refused: an error of the interface.
    #[error("{message}")]
    Refused {
        /// A stable id.
        id: String,
        /// The HTTP status, 0 where none was involved.
        status: u16,
        /// What was refused and why.
        message: String,
        /// The remedy, or empty.
        fix: String,
        /// The failed checks of a refused start.
        checks: Vec<FailedCheck>,
    },
    /// Nobody listens.
    #[error("the service is not running: {why} on {socket}")]
    NotRunning {
        /// The socket that was tried.
        socket: PathBuf,
        /// What the kernel said.
        why: io::Error,
    },
    /// The kernel does not let the caller at the socket, or the service does not know it as an operator.
    #[error("you are {you}, who is no operator of the service of {owner} at {socket}")]
    NotOperator {
        /// Who calls.
        you: String,
        /// Whose service it is.
        owner: String,
        /// Its account name, for the remedy.
        account: String,
        /// The group of its operators, if it has one.
        group: Option<String>,
        /// The socket.
        socket: PathBuf,
    },
    /// Someone else listens there; nothing was sent.
    #[error("{socket} is served by {found}, not by {expected}: nothing was sent")]
    WrongListener {
        /// The socket.
        socket: PathBuf,
        /// Who should listen.
        expected: String,
        /// Who does.
        found: String,
    },
    /// Several services could be meant.
    #[error("several services are set up on this host: {}", names.join(", "))]
    SeveralInstances {
        /// The instances.
        names: Vec<String>,
    },
    /// The connection broke, or the answer is not what the interface says.
    #[error("{attempted}: {why}")]
    Connection {
        /// What was attempted.
        attempted: String,
        /// What went wrong.
        why: String,
    },
    /// Something local went wrong.
    #[error("{attempted} {path}: {source}")]
    Local {
        /// What was attempted.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The result that was printed says what is wrong; only the exit code is still owed.
    #[error("see above")]
    Shown,
    /// Whoever read the output went away: nothing to say and nobody to say it to.
    #[error("the reader of the output went away")]
    BrokenPipe,
}

impl Trouble {
    /// A refusal without an HTTP status.
    pub(super) fn refused(id: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Refused { id: id.into(), status: 0, message: message.into(), fix: fix.into(), checks: Vec::new() }
    }

    /// The command line asks for something that cannot be.
    pub(super) fn usage(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::refused("usage", message, fix)
    }

    /// The error object that the service answered with `status`.
    pub(super) fn of_answer(status: u16, body: &Value) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let error = body.get("error");
        let field = |name| text(error.and_then(|error| error.get(name)));
        let checks: Vec<FailedCheck> = error
            .and_then(|e| e.get("checks"))
            .and_then(|c| serde_json::from_value(c.clone()).ok())
            .unwrap_or_default();
        let id = field("id");
        if id.is_empty() {
            return Self::Connection {
                attempted: "reading the service's answer".into(),
                why: format!("status {status} without an error object"),
            };
        }
        let mut message = field("message");
        if message.is_empty() {
            message = match checks.len() {
                0 => id.clone(),
                1 => "the start was refused: 1 check failed".to_owned(),
                n => format!("the start was refused: {n} checks failed"),
            };
        }
        Self::Refused { id, status, message, fix: field("fix"), checks }
    }

    /// Its stable id.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Refused { id, .. } => id,
            Self::NotRunning { .. } => "not-running",
            Self::NotOperator { .. } => "not-an-operator",
            Self::WrongListener { .. } => "wrong-listener",
            Self::SeveralInstances { .. } => "several-instances",
            Self::Connection { .. } => "connection",
            Self::Local { .. } => "local",
            Self::Shown => "shown",
            Self::BrokenPipe => "broken-pipe",
        }
    }

    /// What the caller can do, or empty.
    pub(super) fn fix(&self) -> String {
        match self {
            Self::Refused { fix, .. } => fix.clone(),
            Self::NotRunning { .. } => "start it: salaam service start".into(),
            Self::NotOperator { account, group: Some(group), .. } => format!(
                "be one: sudo usermod -aG {group} \"$USER\" and log in again; or act as that account: sudo -u {account} salaam …"
            ),
            Self::NotOperator { account, group: None, .. } => format!(
                "act as that account: sudo -u {account} salaam …; or set up a group of operators: sudo salaam host setup --operators-group …"
            ),
            Self::WrongListener { .. } => {
                "see who made the socket; name the right service with --instance or SALAAM_RUNTIME_DIR".into()
            }
            Self::SeveralInstances { .. } => "name one: --instance NAME or SALAAM_INSTANCE".into(),
            Self::Connection { .. } => "see the service's log and `salaam service status`".into(),
            Self::Local { .. } | Self::Shown | Self::BrokenPipe => String::new(),
        }
    }

    /// The exit code of every verb but `run`.
    pub(super) fn exit(&self) -> u8 {
        match self {
            Self::Refused { id, status, .. } => exit::of(id, *status),
            Self::NotRunning { .. } => exit::NOT_RUNNING,
            Self::NotOperator { .. } | Self::WrongListener { .. } => exit::REFUSED,
            Self::SeveralInstances { .. } => exit::USAGE,
            Self::Connection { .. } | Self::Local { .. } | Self::Shown => exit::FAILED,
            Self::BrokenPipe => exit::OK,
        }
    }

    /// The `{"error":{…}}` object.
    pub(super) fn to_value(&self) -> Value {
        let mut error = json!({ "id": self.id(), "message": self.to_string(), "fix": self.fix() });
        if let Self::Refused { checks, .. } = self
            && !checks.is_empty()
            && let Some(map) = error.as_object_mut()
        {
            let list = checks.iter().map(|c| json!({ "id": c.id, "evidence": c.evidence, "fix": c.fix }));
            map.insert("checks".into(), list.collect());
        }
        json!({ "error": error })
    }
}
