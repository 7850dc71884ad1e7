//! Why an operation is not proposed, not granted, or not dispatched: the refusals that the engine gives.

use salaam_core::{
    approval::Verdict,
    limits::Limits,
    operation::State,
    policy::{Profile, Unsandboxed},
};

use super::Context;
use crate::{executor::BridgeError, operation::Refusal, workspace::WorkspaceError};

/// A timeout that is asked for may be shorter than the limit, never longer.
pub(super) fn timeout(limits: &Limits, asked: Option<u64>) -> Result<u64, Refusal> {
    match asked {
        None => Ok(limits.command_seconds),
        Some(seconds) if (1..=limits.command_seconds).contains(&seconds) => Ok(seconds),
        Some(seconds) => Err(Refusal::new(
            "timeout-out-of-range",
            400,
            format!("a timeout of {seconds} s is not from 1 to limits.command_seconds, {}", limits.command_seconds),
            "ask for less, or raise limits.command_seconds in host.toml and re-plan",
        )),
    }
}

/// Why nothing may take effect here, if the host's isolation fell below what is required.
pub(super) fn below_required(context: &Context) -> Option<Refusal> {
    let measured = context.isolation(Profile::WorkspaceWrite);
    let required = crate::probe::required_isolation(context.manifest.required_isolation, measured);
    required.refuses().then(|| Refusal::new(&required.id, 409, required.evidence, required.fix))
}

/// Why a command of `profile` cannot run here, if it cannot.
pub(super) fn no_sandbox(context: &Context, profile: Profile) -> Option<Refusal> {
    if context.manifest.unsandboxed_commands == Unsandboxed::Allow {
        return None;
    }
    match profile {
        Profile::ReadOnly | Profile::WorkspaceWrite => {}
        Profile::FullAccess => {
            return Some(Refusal::new(
                "unsandboxed-refused",
                409,
                "the profile full-access runs without a sandbox, and unsandboxed_commands is `refuse`",
                "use workspace-write, or set unsandboxed_commands = \"allow\" in host.toml and run `salaam host plan --pin`",
            ));
        }
    }
    let tools = context.tools.borrow();
    let status = tools.sandbox.as_ref();
    if status.is_some_and(|status| status.sandbox.is_some()) {
        return None;
    }
    let failed = status.and_then(|status| status.checks.iter().find(|check| check.refuses()));
    let (id, evidence, fix) = failed
        .map_or(("sandbox-missing", "no executor has reported a sandbox", "salaam health"), |check| {
            (check.id.as_str(), check.evidence.as_str(), check.fix.as_str())
        });
    Some(Refusal::new(id, 409, format!("no usable sandbox on this host: {evidence}"), fix))
}

/// Why a profile has no edit, if it has none.
pub(super) fn read_only(profile: Profile) -> Option<Refusal> {
    match profile {
        Profile::ReadOnly => Some(Refusal::new(
            "profile-read-only",
            409,
            "the profile read-only writes nothing in the workspace",
            "use workspace-write",
        )),
        Profile::WorkspaceWrite | Profile::FullAccess => None,
    }
}

pub(crate) fn workspace_refusal(error: &WorkspaceError) -> Refusal {
    let fix = "put the directory back, or remove the workspace and add it again";
    match error {
        WorkspaceError::Unreachable { .. } => Refusal::new("workspace-unreachable", 409, error.to_string(), fix),
        WorkspaceError::NotADirectory { .. } => Refusal::new("workspace-not-a-directory", 409, error.to_string(), fix),
        WorkspaceError::Replaced { .. } => Refusal::new("workspace-replaced", 409, error.to_string(), fix),
        WorkspaceError::Disagree { .. } => Refusal::new("workspace-replaced", 409, error.to_string(), fix),
        WorkspaceError::Executor { source, .. } => {
            let inner = bridge_refusal(source);
            Refusal { message: error.to_string(), ..inner }
        }
    }
}

pub(crate) fn bridge_refusal(error: &BridgeError) -> Refusal {
    match error {
        BridgeError::Refused { id, message } => {
            Refusal::new(id, 409, message.clone(), "see the message; `salaam health` shows what the executor can do")
        }
        BridgeError::Lost { .. } => {
            Refusal::new("executor-gone", 503, error.to_string(), "`salaam health` shows when a new executor is there")
        }
        BridgeError::Deadline { .. } => Refusal::new(
            "executor-silent",
            503,
            error.to_string(),
            "`salaam health` shows when a new executor is there",
        ),
    }
}

pub(super) fn control_failed() -> Refusal {
    Refusal::new(
        "control-failed",
        503,
        "a required control does not hold, so nothing is granted",
        "`salaam doctor` names it with what mends it; it looks again, and grants go on once it holds",
    )
}

/// What an operator is told whose answer did not count.
pub(crate) fn refusal(verdict: &Verdict) -> Option<Refusal> {
    match verdict {
        Verdict::Accepted => None,
        Verdict::BindingMismatch => Some(Refusal::new(
            "binding-mismatch",
            409,
            "the binding named is not the one of this approval",
            "look at it again with `salaam approval show` and name the binding shown there, all 64 digits in the API",
        )),
        Verdict::Expired => Some(Refusal::new(
            "expired",
            409,
            "the approval lapsed before it was answered",
            "propose the operation again",
        )),
        Verdict::AlreadyDecided(state) => Some(already(*state)),
        Verdict::ControlFailed => Some(control_failed()),
    }
}

pub(super) fn already(state: State) -> Refusal {
    Refusal::new(
        "already-decided",
        409,
        format!("the operation is {state}; an approval is used once"),
        "propose the operation again if it is still wanted",
    )
}

/// A request id that stands for something else.
pub(crate) fn request_id_reused() -> Refusal {
    Refusal::new(
        "request-id-reused",
        409,
        "this request_id was used for something else",
        "use a new request_id for each request that is not a repetition",
    )
}

/// Nothing more is taken.
pub(crate) fn stopping() -> Refusal {
    Refusal::new("stopping", 503, "the service is stopping", "try again when it is back")
}

/// More questions are open than one host keeps for its operators.
pub(super) fn too_many_open(what: &str) -> Refusal {
    Refusal::new("too-many-open", 429, what, "decide or cancel some: `salaam approval list`")
}

/// Why something cannot be looked at, and for which file.
#[derive(Debug)]
pub(super) struct Unseen {
    pub refusal: Refusal,
    /// The file, relative to the root.
    pub path: Option<Vec<u8>>,
}

impl From<Refusal> for Unseen {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, path: None }
    }
}
