//! What the executor says of its sandbox, and how much of it is taken at its word.
//!
//! That an attack was denied only the executor can say. That it says so of every step, and contradicts itself nowhere,
//! is looked at here: what is not proven whole is not used.

use salaam_core::{
    bridge::SandboxStatus,
    check::{Check, Status},
    policy::Landlock,
    result::Sandbox,
};

/// What a sandbox that can be used was shown to be.
const STEPS: [&str; 6] =
    ["sandbox-userns", "sandbox-mount", "sandbox-net", "sandbox-landlock", "sandbox-seccomp", "sandbox-canary"];
/// How the ids of the single attacks of a proof begin.
pub const ATTACKS: &str = "sandbox-attack-";

/// The status, without the sandbox where what stands beside does not prove it.
pub(super) fn believed(status: SandboxStatus, landlock: Landlock, prove: bool) -> SandboxStatus {
    let doubted = status.sandbox.as_ref().and_then(|sandbox| doubt(sandbox, &status.checks, landlock, prove));
    let Some(why) = doubted else { return status };
    let fix = "packaging/install, and start again; if it stays, report it with the evidence";
    let mut checks = status.checks;
    checks.retain(|check| check.id != "sandbox-canary");
    checks.push(Check::fail("sandbox-canary", format!("the executor calls its sandbox usable, and {why}"), fix));
    SandboxStatus { sandbox: None, checks }
}

fn doubt(sandbox: &Sandbox, checks: &[Check], landlock: Landlock, prove: bool) -> Option<String> {
    if sandbox.backend != "bubblewrap" || !sandbox.seccomp {
        return Some("names one without bubblewrap or without a filter".to_owned());
    }
    if landlock == Landlock::Required && sandbox.landlock != "fully-enforced" {
        return Some(format!("landlock is {} there, which is required", sandbox.landlock));
    }
    for step in STEPS {
        match checks.iter().find(|check| check.id == step).map(|check| check.status) {
            Some(Status::Pass) => {}
            // What the operator allowed to be without.
            Some(Status::Warn) if step == "sandbox-landlock" && landlock == Landlock::IfAvailable => {}
            Some(status) => return Some(format!("says `{}` of {step}", status.as_str())),
            None => return Some(format!("says nothing of {step}")),
        }
    }
    let attacks: Vec<&Check> = checks.iter().filter(|check| check.id.starts_with(ATTACKS)).collect();
    if let Some(failed) = attacks.iter().find(|check| matches!(check.status, Status::Fail | Status::Warn)) {
        return Some(format!("says `{}` of {}", failed.status.as_str(), failed.id));
    }
    let held = attacks.iter().any(|check| check.status == Status::Pass);
    (prove && !held).then(|| "names no attack that it held against".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(checks: Vec<Check>) -> SandboxStatus {
        let sandbox = Sandbox {
            backend: "bubblewrap".into(),
            version: "0.8.0".into(),
            landlock_abi: 6,
            landlock: "fully-enforced".into(),
            seccomp: true,
            namespaces: vec!["pid".into()],
            warm: false,
            cgroup: Vec::new(),
        };
        SandboxStatus { sandbox: Some(sandbox), checks }
    }

    fn usable(status: SandboxStatus, landlock: Landlock, prove: bool) -> bool {
        believed(status, landlock, prove).sandbox.is_some()
    }

    fn steps() -> Vec<Check> {
        STEPS.iter().map(|step| Check::pass(step, "e")).collect()
    }

    #[test]
    fn a_sandbox_is_used_only_where_every_step_is_said_to_hold() {
        use Landlock::{IfAvailable, Required};
        let held = [steps(), vec![Check::pass("sandbox-attack-x", "e"), Check::unproven("sandbox-attack-y", "e", "")]];
        assert!(usable(status(held.concat()), Required, true));
        assert!(usable(status(steps()), Required, false));
        for (at, step) in STEPS.iter().enumerate() {
            let mut other = steps();
            other[at] = Check::warn(step, "e", "f");
            assert!(!usable(status(other.clone()), Required, false), "{step}");
            assert_eq!(usable(status(other.clone()), IfAvailable, false), *step == "sandbox-landlock", "{step}");
            other.remove(at);
            let answer = believed(status(other), IfAvailable, false);
            let why = answer.checks.iter().find(|check| check.id == "sandbox-canary").unwrap();
            assert!(answer.sandbox.is_none() && why.evidence.contains(step), "{why:?}");
        }
    }

    #[test]
    fn what_is_said_of_the_layers_must_agree_with_what_was_asked() {
        let but = |change: fn(&mut Sandbox)| {
            let mut status = status(steps());
            status.sandbox.iter_mut().for_each(change);
            status
        };
        assert!(!usable(but(|sandbox| sandbox.seccomp = false), Landlock::IfAvailable, false));
        assert!(!usable(but(|sandbox| sandbox.backend = "none".into()), Landlock::IfAvailable, false));
        let partly = but(|sandbox| sandbox.landlock = "partially-enforced".into());
        assert!(!usable(partly.clone(), Landlock::Required, false));
        assert!(usable(partly, Landlock::IfAvailable, false));
    }

    #[test]
    fn a_proof_without_attacks_or_with_one_that_works_is_none() {
        for attacks in [
            vec![],
            vec![Check::unproven("sandbox-attack-x", "e", "")],
            vec![Check::pass("sandbox-attack-x", "e"), Check::fail("sandbox-attack-y", "e", "f")],
        ] {
            let answer = believed(status([steps(), attacks].concat()), Landlock::Required, true);
            assert!(answer.sandbox.is_none());
            assert_eq!(answer.checks.iter().filter(|check| check.id == "sandbox-canary").count(), 1);
        }
    }
}
