//! What every owner task shares.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::{
    bridge::SandboxStatus,
    digest::Digest,
    event::{Draft, Kind},
    manifest::Manifest,
    policy::{Isolation, Mode, Profile},
};
use serde_json::json;
use tokio::sync::watch;

use super::{Gate, Slots};
use crate::{
    clock::Clock,
    executor::{Executor, Link},
    group::Claim,
    readers::Readers,
    store::{Store, Transaction},
    workspace::Registry,
};

/// What the tools side can do now, as measured; replaced whole after every start of an executor.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    /// Absent = no executor.
    pub sandbox: Option<SandboxStatus>,
}

/// The controls that a grant needs and that do not hold now, by id.
#[derive(Debug, Default)]
pub struct Controls {
    failed: Mutex<BTreeSet<String>>,
}

impl Controls {
    /// Records that a required control failed: no new grants until it holds again. Whether that is new.
    pub fn fail(&self, id: &str) -> bool {
        self.set().insert(id.to_owned())
    }

    /// Records that it holds again. Whether that is new.
    pub fn clear(&self, id: &str) -> bool {
        self.set().remove(id)
    }

    /// Those that do not hold, in order.
    pub fn failed(&self) -> Vec<String> {
        self.set().iter().cloned().collect()
    }

    /// Whether grants may be given.
    pub fn hold(&self) -> bool {
        self.set().is_empty()
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Edits whose files are in memory at once: each has at the most twice 32 MiB and what is shown of it.
pub const MOST_SKETCHES: u64 = 2;

/// Shared by all owner tasks; made once at start.
#[derive(Debug)]
pub struct Context {
    /// Time and randomness.
    pub clock: Clock,
    /// The journal and the state.
    pub store: Store,
    /// The bridge.
    pub executor: Executor,
    /// What reads workspaces.
    pub readers: Readers,
    /// Workspace descriptors.
    pub workspaces: Registry,
    /// The pinned configuration.
    pub manifest: Manifest,
    /// Its name.
    pub manifest_digest: Digest,
    /// The uid that commands run as.
    pub tool_uid: u32,
    /// Whether required controls hold.
    pub controls: Controls,
    /// One place for each command that may run at once.
    pub slots: Arc<Slots>,
    /// Edits under way.
    pub gate: Arc<Gate>,
    /// One place for each edit whose files may be in memory at once.
    pub sketches: Arc<Slots>,
    /// What the tools side can do.
    pub tools: watch::Receiver<Tools>,
    /// True when the service stops.
    pub stopping: watch::Receiver<bool>,
    /// Whether commands have control groups.
    pub group: Claim,
}

impl Context {
    /// The account axis.
    pub const fn mode(&self) -> Mode {
        self.manifest.mode
    }

    /// The controllers by which a command of this executor would be held as a whole.
    pub fn control_group(&self, link: &Link) -> Vec<String> {
        let held = self.group.group().filter(|_| link.is_grouped());
        held.iter().flat_map(|group| group.controllers()).map(|name| (*name).to_owned()).collect()
    }

    /// The isolation that a command of `profile` would have now.
    pub fn isolation(&self, profile: Profile) -> Isolation {
        let usable = self.tools.borrow().sandbox.as_ref().is_some_and(|status| status.sandbox.is_some());
        let wanted = match profile {
            Profile::ReadOnly | Profile::WorkspaceWrite => true,
            Profile::FullAccess => false,
        };
        Isolation::of(self.mode(), usable && wanted)
    }

    /// Whether the sandbox stands without landlock, or with a part of it, as the operator allowed.
    pub(super) fn lacks_landlock(&self) -> bool {
        let tools = self.tools.borrow();
        let sandbox = tools.sandbox.as_ref().and_then(|status| status.sandbox.as_ref());
        sandbox.is_some_and(|sandbox| sandbox.landlock != "fully-enforced")
    }

    /// What the operator protects beside the executor's own list, relative to a root.
    pub(super) fn protected_paths(&self) -> Vec<Vec<u8>> {
        self.manifest.protected_paths.iter().map(|path| path.clone().into_bytes()).collect()
    }

    /// Journals that a required control failed, and stops new grants.
    pub async fn control_failed(&self, id: &str, evidence: &str) {
        self.controls.fail(id);
        self.journal_control(Kind::ControlFailed, id, evidence).await;
    }

    /// Journals that a control holds again, and lets grants go on. The record comes first: what is not recorded
    /// did not happen.
    pub async fn control_restored(&self, id: &str, evidence: &str) {
        if self.journal_control(Kind::ControlRestored, id, evidence).await {
            self.controls.clear(id);
        }
    }

    async fn journal_control(&self, kind: Kind, id: &str, evidence: &str) -> bool {
        let draft = Draft::new(kind, None, json!({ "id": id, "evidence": evidence }));
        if let Ok(draft) = draft
            && let Err(error) = self.store.commit(Transaction { changes: Vec::new(), events: vec![draft] }).await
        {
            tracing::error!(control = id, %kind, %error, "it could not be journaled");
            return false;
        }
        true
    }
}
