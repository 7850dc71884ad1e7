//! Health: each part, its state and the evidence, without secrets.

use salaam_core::{
    check::{Check, Severity, Status},
    policy::Profile,
    time::Timestamp,
    worker::Provider,
};
use serde_json::{Value, json};

use super::{service::App, watch::Look};
use crate::{group::Claim, operation::Refusal};

impl App {
    /// The object of GET /v1/health.
    pub async fn health(&self) -> Value {
        let context = &self.context;
        let manifest = &context.manifest;
        let link = context.executor.link().ok();
        let tools = context.tools.borrow().clone();
        let sandbox = tools.sandbox.as_ref().and_then(|status| status.sandbox.clone());
        let probes: Vec<_> = self.checks.borrow().iter().map(probe).collect();
        let mut warnings = self.warnings(sandbox.is_some(), link.is_some());
        let mut journal_failed = |what: String| warnings.push((true, format!("journal: {what}")));
        if let Some(trouble) = context.store.trouble() {
            journal_failed(trouble);
        }
        // What cannot be read is not there; it is never said to be zero.
        let open = context.store.open_operations().await.inspect_err(|e| journal_failed(e.to_string())).ok();
        let sessions = context.store.live_sessions().await.inspect_err(|e| journal_failed(e.to_string())).ok();
        let space = context.store.space().await.inspect_err(|e| journal_failed(e.to_string())).ok();
        if let Some(space) = space.filter(|space| space.free < LITTLE_SPACE) {
            journal_failed(format!("{} bytes are left on the state directory's file system", space.free));
        }
        let head = context.store.head();
        let executors: Vec<_> = link
            .iter()
            .map(|link| json!({ "uid": context.tool_uid, "epoch": salaam_core::canon::wide(link.epoch()), "pid": link.pid(), "sudo_pid": link.sudo_pid(), "control_group": link.is_grouped() }))
            .collect();
        json!({
            "status": if warnings.iter().any(|(degrades, _)| *degrades) { "degraded" } else { "ok" },
            "version": crate::version::NUMBER,
            "started": self.started,
            "service_pid": std::process::id(),
            "service_uid": self.host.service_uid,
            "manifest": context.manifest_digest,
            "floor": self.host.floor,
            "tool_execution": {
                "mode": manifest.mode,
                "tools_user": manifest.tools_user,
                "tool_uid": context.tool_uid,
                "isolation": context.isolation(Profile::WorkspaceWrite),
                "executors": executors,
                "control_group": group(&context.group),
                "sandbox": sandbox,
                "unsandboxed_commands": manifest.unsandboxed_commands,
                "network": manifest.command_network,
                "probes": probes,
            },
            "journal": {
                "last_seq": salaam_core::canon::wide(head.seq), "last_hash": head.hash,
                "bytes": space.map(|space| space.database), "free_bytes": space.map(|space| salaam_core::canon::wide(space.free)),
            },
            "sessions": { "active": sessions },
            "operations": { "open": open.map(|open| open.all), "granted": open.map(|open| open.granted) },
            "approvals": { "pending": open.map(|open| open.pending) },
            "provider": { "live": false, "routes": Provider::ALL },
            "warnings": warnings.into_iter().map(|(_, text)| text).collect::<Vec<_>>(),
        })
    }

    /// What an operator should know, and whether it makes the service `degraded`.
    fn warnings(&self, sandbox: bool, executor: bool) -> Vec<(bool, String)> {
        let manifest = &self.context.manifest;
        let mut warnings = Vec::new();
        if !executor {
            warnings.push((true, "no executor: nothing can run until a new one is there".to_owned()));
        } else if !sandbox {
            warnings.push((
                true,
                format!(
                    "no usable sandbox: commands are {}",
                    if manifest.unsandboxed_commands == salaam_core::policy::Unsandboxed::Refuse {
                        "refused"
                    } else {
                        "run bare"
                    }
                ),
            ));
        }
        let checks = self.checks.borrow();
        for id in self.context.controls.failed() {
            let seen = checks.iter().find(|(check, _)| check.id == id);
            let evidence = seen.map_or_else(String::new, |(check, _)| format!(": {}", check.evidence));
            warnings.push((true, format!("no new grants: the control {id} does not hold{evidence}")));
        }
        if self.is_draining() {
            warnings.push((false, "draining: no new operations are taken".to_owned()));
        }
        if manifest.mode == salaam_core::policy::Mode::ServiceUser {
            warnings.push((false, "service-user mode: commands run as the service's own account; what the sandbox does not hide from them, they can read and change".to_owned()));
        }
        let told = |check: &Check| match check.status {
            Status::Warn => true,
            // A sandbox that is not usable was said above; one control that fails, too.
            Status::Fail | Status::Unproven => check.id.starts_with("can-"),
            Status::Pass => false,
        };
        for (check, _) in checks.iter().filter(|(check, _)| told(check)) {
            warnings.push((false, format!("{}: {}", check.id, check.evidence)));
        }
        warnings
    }

    /// Carries all checks out again. Health and the next proposal go by it; a required one that fails stops new
    /// grants, and one that holds again lets them go on.
    ///
    /// To `prove` is to carry out every attack that there is on the sandbox, each a check of its own.
    pub async fn probe_again(&self, prove: bool) -> Result<Value, Refusal> {
        let (look, done) = Look::answered(prove);
        self.looks.send(look).await.map_err(|_| crate::operation::stopping())?;
        done.await.map_err(|_| crate::operation::stopping())?;
        Ok(self.probes())
    }

    /// The checks as they were carried out last.
    pub fn probes(&self) -> Value {
        json!({ "probes": self.checks.borrow().iter().map(probe).collect::<Vec<_>>() })
    }
}

/// What bounds all commands together, where something does.
fn group(claim: &Claim) -> Value {
    match claim {
        Claim::Held(group) => {
            let (memory, tasks) = group.most();
            json!({
                "held": true, "name": group.name(), "controllers": group.controllers(),
                "memory_bytes": memory.map(salaam_core::canon::wide), "tasks": tasks.map(salaam_core::canon::wide),
            })
        }
        Claim::None { evidence } => json!({ "held": false, "evidence": evidence }),
    }
}

fn probe((check, at): &(Check, Timestamp)) -> Value {
    json!({ "id": check.id, "severity": Severity::of(&check.id), "result": check.status, "evidence": check.evidence, "fix": check.fix, "at": at })
}

/// Less than this is soon used up: one command may keep twice `limits.output_bytes`, 128 MiB by default.
const LITTLE_SPACE: u64 = 256 << 20;
