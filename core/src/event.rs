//! The journal's events: kinds, what each carries at the least, the hash chain, and its verification.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    canon::{self, CanonError},
    digest::Digest,
    id::SessionId,
    policy::word,
    time::Timestamp,
};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the written words below are the documentation; DESIGN names each")]
pub enum Kind {
    ServiceStarted,
    ServiceStopping,
    HostPlanned,
    ExecutorStarted,
    ExecutorLost,
    SessionCreated,
    SessionEnded,
    SessionMessage,
    WorkerStarted,
    WorkerLost,
    ProviderRequested,
    ProviderResponded,
    ProviderFailed,
    OperationProposed,
    OperationRefused,
    OperationDispatched,
    OperationResult,
    OperationUnknown,
    OperationReconciled,
    ApprovalRequested,
    ApprovalGranted,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalStale,
    CheckpointCreated,
    CheckpointRestored,
    PatchCreated,
    PatchApplied,
    BudgetReserved,
    BudgetReleased,
    BudgetExhausted,
    CancelRequested,
    EgressReached,
    EgressRefused,
    CredentialAdded,
    CredentialRemoved,
    CredentialRefreshed,
    ControlFailed,
    ControlRestored,
    WorkspaceAdded,
    WorkspaceRemoved,
    RuleCreated,
    RuleRevoked,
    RuleUsed,
}
word!(Kind {
    ServiceStarted = "service.started",
    ServiceStopping = "service.stopping",
    HostPlanned = "host.planned",
    ExecutorStarted = "executor.started",
    ExecutorLost = "executor.lost",
    SessionCreated = "session.created",
    SessionEnded = "session.ended",
    SessionMessage = "session.message",
    WorkerStarted = "worker.started",
    WorkerLost = "worker.lost",
    ProviderRequested = "provider.requested",
    ProviderResponded = "provider.responded",
    ProviderFailed = "provider.failed",
    OperationProposed = "operation.proposed",
    OperationRefused = "operation.refused",
    OperationDispatched = "operation.dispatched",
    OperationResult = "operation.result",
    OperationUnknown = "operation.unknown",
    OperationReconciled = "operation.reconciled",
    ApprovalRequested = "approval.requested",
    ApprovalGranted = "approval.granted",
    ApprovalDenied = "approval.denied",
    ApprovalExpired = "approval.expired",
    ApprovalStale = "approval.stale",
    CheckpointCreated = "checkpoint.created",
    CheckpointRestored = "checkpoint.restored",
    PatchCreated = "patch.created",
    PatchApplied = "patch.applied",
    BudgetReserved = "budget.reserved",
    BudgetReleased = "budget.released",
    BudgetExhausted = "budget.exhausted",
    CancelRequested = "cancel.requested",
    EgressReached = "egress.reached",
    EgressRefused = "egress.refused",
    CredentialAdded = "credential.added",
    CredentialRemoved = "credential.removed",
    CredentialRefreshed = "credential.refreshed",
    ControlFailed = "control.failed",
    ControlRestored = "control.restored",
    WorkspaceAdded = "workspace.added",
    WorkspaceRemoved = "workspace.removed",
    RuleCreated = "rule.created",
    RuleRevoked = "rule.revoked",
    RuleUsed = "rule.used",
});

impl Kind {
    /// The keys that `data` has at the least.
    pub const fn least(self) -> &'static [&'static str] {
        match self {
            Self::ServiceStarted | Self::ServiceStopping => &["version"],
            Self::HostPlanned => &["manifest", "difference"],
            Self::ExecutorStarted | Self::ExecutorLost => &["uid", "epoch", "pid", "reason"],
            Self::SessionCreated => &["route", "workspace", "profile", "manifest", "tool_uid", "isolation"],
            Self::SessionEnded => &["outcome"],
            Self::SessionMessage => &["by"],
            Self::WorkerStarted | Self::WorkerLost => &["epoch", "reason"],
            Self::ProviderRequested | Self::ProviderResponded | Self::ProviderFailed => &["route"],
            Self::OperationProposed => &["operation", "binding", "kind"],
            Self::OperationRefused => &["operation", "binding", "reason"],
            Self::OperationDispatched => &["operation", "binding", "executor_epoch"],
            Self::OperationResult => &["operation", "binding", "state", "tool_uid", "isolation"],
            Self::OperationUnknown => &["operation", "binding", "reason"],
            Self::OperationReconciled => &["operation", "binding", "verdict", "by"],
            Self::ApprovalRequested => &["operation", "binding", "approval", "bound"],
            Self::ApprovalGranted | Self::ApprovalDenied => &["operation", "binding", "approval", "by"],
            Self::ApprovalExpired => &["operation", "binding", "approval"],
            Self::ApprovalStale => &["operation", "binding", "approval", "changed"],
            Self::CheckpointCreated | Self::CheckpointRestored => &["checkpoint"],
            Self::PatchCreated | Self::PatchApplied => &["patch"],
            Self::BudgetReserved | Self::BudgetReleased | Self::BudgetExhausted => &["budget"],
            Self::CancelRequested => &["cause"],
            Self::EgressReached | Self::EgressRefused => &["operation", "host"],
            Self::CredentialAdded | Self::CredentialRemoved | Self::CredentialRefreshed => &["name"],
            Self::ControlFailed | Self::ControlRestored => &["id", "evidence"],
            Self::WorkspaceAdded => &["workspace", "path"],
            Self::WorkspaceRemoved => &["workspace"],
            Self::RuleCreated | Self::RuleRevoked | Self::RuleUsed => &["rule"],
        }
    }
}

/// An event before it has a place in the chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    kind: Kind,
    session: Option<SessionId>,
    data: Map<String, Value>,
}

/// Why there is no such event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// A key is missing.
    #[error("an event {kind} needs `{key}`")]
    Missing {
        /// The kind.
        kind: Kind,
        /// The key.
        key: &'static str,
    },
    /// Its data is not an object.
    #[error("the data of {0} is not an object")]
    NotAnObject(Kind),
    /// It has no canonical form.
    #[error("an event {kind} has no canonical form")]
    Canon {
        /// The kind.
        kind: Kind,
        /// Why.
        #[source]
        source: CanonError,
    },
}

impl Draft {
    /// Checks `data` (an object) against what the kind carries at the least and against the canonical form.
    pub fn new(kind: Kind, session: Option<SessionId>, data: Value) -> Result<Self, DraftError> {
        canon::to_vec(&data).map_err(|source| DraftError::Canon { kind, source })?;
        let Value::Object(data) = data else { return Err(DraftError::NotAnObject(kind)) };
        match kind.least().iter().find(|key| !data.contains_key(**key)) {
            Some(key) => Err(DraftError::Missing { kind, key }),
            None => Ok(Self { kind, session, data }),
        }
    }

    /// Its kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }
}

/// An event in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Its number; the first is 1, there are no gaps.
    pub seq: u64,
    /// When it was written.
    pub time: Timestamp,
    /// What happened.
    pub kind: Kind,
    /// In which session, if in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The particulars.
    pub data: Map<String, Value>,
    /// The hash of the event before; [`Digest::ZERO`] for the first.
    pub prev: Digest,
    /// SHA-256 of the canonical form of all the above.
    pub hash: Digest,
}

impl Event {
    /// Gives `draft` its place after `last`.
    pub fn seal(draft: Draft, last: Head, time: Timestamp) -> Result<Self, CanonError> {
        let mut event = Self {
            seq: last.seq + 1,
            time,
            kind: draft.kind,
            session: draft.session,
            data: draft.data,
            prev: last.hash,
            hash: Digest::ZERO,
        };
        event.hash = event.computed()?;
        Ok(event)
    }

    /// The hash that this event should have.
    pub fn computed(&self) -> Result<Digest, CanonError> {
        let mut map = self.to_map();
        map.remove("hash");
        canon::digest(&Value::Object(map))
    }

    /// The canonical line of an export, without a line feed.
    pub fn to_line(&self) -> Result<Vec<u8>, CanonError> {
        canon::to_vec(&Value::Object(self.to_map()))
    }

    fn to_map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("seq".into(), canon::wide(self.seq));
        map.insert("time".into(), self.time.to_string().into());
        map.insert("kind".into(), self.kind.as_str().into());
        if let Some(session) = self.session {
            map.insert("session".into(), session.to_string().into());
        }
        map.insert("data".into(), Value::Object(self.data.clone()));
        map.insert("prev".into(), self.prev.to_string().into());
        map.insert("hash".into(), self.hash.to_string().into());
        map
    }
}

/// The end of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the last event; 0 = none.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
}

impl Head {
    /// Before the first event.
    pub const START: Self = Self { seq: 0, hash: Digest::ZERO };

    /// Takes one more event, in order; `line` is its JSON. The line must be canonical: then anyone's parser
    /// hashes the same bytes.
    pub fn follow(self, line: &[u8]) -> Result<(Self, Event), Broken> {
        let at = self.seq + 1;
        let event: Event = serde_json::from_slice(line).map_err(|e| Broken::Unreadable { at, why: e.to_string() })?;
        if event.seq != at {
            return Err(Broken::Gap { at, found: event.seq });
        }
        if event.prev != self.hash {
            return Err(Broken::Link { at });
        }
        let canonical = event.to_line().map_err(|e| Broken::Unreadable { at, why: e.to_string() })?;
        let computed = event.computed().map_err(|e| Broken::Unreadable { at, why: e.to_string() })?;
        if canonical != line || computed != event.hash {
            return Err(Broken::Hash { at });
        }
        Ok((Self { seq: at, hash: event.hash }, event))
    }
}

/// Where and how a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Not an event.
    #[error("event {at} is not readable: {why}")]
    Unreadable {
        /// The number that was due.
        at: u64,
        /// What the parser said.
        why: String,
    },
    /// A number is missing or stands twice.
    #[error("event {at} is missing: {found} stands in its place")]
    Gap {
        /// The number that was due.
        at: u64,
        /// The number that came.
        found: u64,
    },
    /// It does not name the event before.
    #[error("event {at} does not follow from the event before it")]
    Link {
        /// Its number.
        at: u64,
    },
    /// Its content is not what was hashed.
    #[error("event {at} is not what was recorded: its hash does not match")]
    Hash {
        /// Its number.
        at: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chain(n: u64) -> Vec<Vec<u8>> {
        let mut head = Head::START;
        (0..n)
            .map(|i| {
                let draft = Draft::new(Kind::CancelRequested, None, json!({"cause": "operator", "n": i})).unwrap();
                let event = Event::seal(draft, head, Timestamp::from_micros(1_767_323_045_678_901)).unwrap();
                head = Head { seq: event.seq, hash: event.hash };
                event.to_line().unwrap()
            })
            .collect()
    }

    fn verify(lines: &[Vec<u8>]) -> Result<Head, Broken> {
        lines.iter().try_fold(Head::START, |head, line| head.follow(line).map(|(head, _)| head))
    }

    #[test]
    fn golden_event() {
        let draft = Draft::new(
            Kind::WorkspaceAdded,
            Some(SessionId::new(0, [0; 10])),
            json!({"workspace": "w", "path": canon::bytes(b"caf\xe9"), "inode": canon::wide(u64::MAX), "name": "\u{1f600}"}),
        )
        .unwrap();
        let event = Event::seal(draft, Head::START, Timestamp::from_micros(1_767_323_045_678_901)).unwrap();
        assert_eq!(
            String::from_utf8(event.to_line().unwrap()).unwrap(),
            concat!(
                r#"{"data":{"inode":"18446744073709551615","name":"😀","path":{"base64":"Y2Fm6Q=="},"workspace":"w"},"#,
                r#""hash":"600aeadfcbd31ef093f32f66a908c04926e17e0d2335f3d39f60adbb46f8a7fd","kind":"workspace.added","#,
                r#""prev":"0000000000000000000000000000000000000000000000000000000000000000","seq":1,"#,
                r#""session":"ses_00000000000070008000000000000000","time":"2026-01-02T03:04:05.678901Z"}"#
            )
        );
    }

    #[test]
    fn a_whole_chain_verifies() {
        assert_eq!(verify(&chain(5)).unwrap().seq, 5);
    }

    #[test]
    fn every_kind_of_damage_is_found_and_placed() {
        let whole = chain(5);
        let mut flipped = whole.clone();
        flipped[2] = String::from_utf8(flipped[2].clone()).unwrap().replace("\"n\":2", "\"n\":7").into_bytes();
        assert_eq!(verify(&flipped), Err(Broken::Hash { at: 3 }));
        let mut missing = whole.clone();
        missing.remove(1);
        assert_eq!(verify(&missing), Err(Broken::Gap { at: 2, found: 3 }));
        let mut torn = whole.clone();
        torn[4].truncate(30);
        assert!(matches!(verify(&torn), Err(Broken::Unreadable { at: 5, .. })));
        let mut reordered = whole.clone();
        reordered.swap(1, 2);
        assert!(matches!(verify(&reordered), Err(Broken::Gap { at: 2, .. })));
        let mut spaced = whole;
        spaced[0] = String::from_utf8(spaced[0].clone()).unwrap().replace("\"seq\":1", "\"seq\": 1").into_bytes();
        assert_eq!(verify(&spaced), Err(Broken::Hash { at: 1 }));
    }

    #[test]
    fn an_event_without_its_least_keys_is_refused() {
        for kind in Kind::ALL {
            let full: Map<String, Value> = kind.least().iter().map(|key| ((*key).to_owned(), json!(1))).collect();
            assert!(Draft::new(*kind, None, Value::Object(full.clone())).is_ok());
            for key in kind.least() {
                let mut less = full.clone();
                less.remove(*key);
                assert_eq!(Draft::new(*kind, None, Value::Object(less)), Err(DraftError::Missing { kind: *kind, key }));
            }
        }
    }

    #[test]
    fn every_operation_and_approval_event_names_operation_and_binding() {
        for kind in
            Kind::ALL.iter().filter(|k| k.as_str().starts_with("operation.") || k.as_str().starts_with("approval."))
        {
            assert!(kind.least().contains(&"operation") && kind.least().contains(&"binding"), "{kind}");
        }
    }
}
