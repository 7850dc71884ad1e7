//! What a start that ended before the hello means: sudo's refusal, or the executor's own.

use salaam_core::{bridge::VERSION, check::Check, policy::Mode, refusal::StartRefusal};

use super::{checks, spawn::Spawn};
use crate::child::Exit;

/// Names the check that failed. `said` is what sudo and the executor wrote, already made visible.
pub(super) fn ended_early(spawn: &Spawn, service_user: &str, exit: Exit, said: &str) -> Check {
    let evidence = if said.is_empty() { format!("it ended with {exit}") } else { format!("{exit}: {said}") };
    let refusal = match exit {
        Exit::Code(code) => StartRefusal::from_code(code),
        Exit::Signal(_) | Exit::Unknown => None,
    };
    let reinstall = format!("{}, then start again: service and executor must be of one build", spawn.reinstall());
    match (refusal, spawn.mode, exit) {
        (Some(StartRefusal::Version), _, _) => Check::fail("executor-version", evidence, reinstall),
        (Some(refusal @ StartRefusal::InstanceAccounts), _, _) => {
            Check::fail("tools-user-shared", evidence, fix(refusal).unwrap_or(&reinstall))
        }
        (Some(StartRefusal::Engine), _, _) => Check::fail("executor-missing", evidence, reinstall),
        (Some(refusal), _, _) => {
            Check::fail("executor-identity", evidence, fix(refusal).map_or(reinstall, str::to_owned))
        }
        // sudo refuses with 1; with 0 it did start something, and that did not prove itself.
        (None, Mode::ToolsUser, Exit::Code(0)) => Check::fail("executor-identity", evidence, reinstall),
        (None, Mode::ToolsUser, Exit::Code(_)) => denied(spawn, service_user, evidence, said),
        (None, Mode::ToolsUser, Exit::Signal(_) | Exit::Unknown) | (None, Mode::ServiceUser, _) => {
            Check::fail("executor-identity", evidence, "see the service's log for what ended it")
        }
    }
}

/// sudo left by itself. Its words are not an interface, so they only ever make the id more exact: whatever
/// it says, nothing was started.
fn denied(spawn: &Spawn, service_user: &str, evidence: String, said: &str) -> Check {
    if said.contains("no new privileges") {
        return checks::no_new_privs(Ok(true)).map_or_else(
            || Check::fail("no-new-privs", evidence.clone(), ""),
            |check| Check { evidence: evidence.clone(), ..check },
        );
    }
    // It is there, as was just seen; sudo looked below another root.
    if said.contains("command not found") && spawn.toolsd.exists() {
        let fix =
            format!("take runchroot for {service_user} out of sudoers (sudo visudo): sudo looks for it below that");
        return Check::fail("sudo-denied", evidence, fix);
    }
    if said.contains("command not found") || said.contains("unable to execute") {
        return Check::fail("executor-missing", evidence, spawn.reinstall());
    }
    Check::fail("sudo-denied", evidence, checks::sudoers_fix(spawn, service_user))
}

/// Two versions of the bridge.
pub(super) fn versions(spawn: &Spawn, theirs: u32) -> Check {
    Check::fail(
        "executor-version",
        format!("the executor speaks bridge version {theirs}, the service speaks {VERSION}"),
        format!("{}, then start again: service and executor must be of one build", spawn.reinstall()),
    )
}

/// None where the binaries must be put in place again.
const fn fix(refusal: StartRefusal) -> Option<&'static str> {
    Some(match refusal {
        StartRefusal::Usage => "the sudoers rule must allow no arguments: run `salaam host setup` again",
        StartRefusal::Harden | StartRefusal::Prober => "see the executor's message; the kernel must be 5.10 or later",
        StartRefusal::Root => "name a tools user other than root with --tools-user",
        StartRefusal::Capabilities => "take the capabilities from the account (pam_cap, AmbientCapabilities=)",
        StartRefusal::NoBridge => {
            "sudo must hand descriptor 0 through: `!log_input` for salaam-toolsd, as `salaam host setup` writes it"
        }
        StartRefusal::WrongSudoUid | StartRefusal::WrongCreator => {
            "only the service account itself may start its executor"
        }
        StartRefusal::InstanceFile => "run `salaam host setup` again; only root may write in /etc/salaam",
        StartRefusal::InstanceAccounts => "give each service account a tools user of its own: `salaam host setup`",
        StartRefusal::Handshake | StartRefusal::Version | StartRefusal::Engine => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::spawn::sample;

    #[test]
    fn every_early_end_has_one_id() {
        use Mode::{ServiceUser as S, ToolsUser as T};
        for (mode, exit, said, id) in [
            (T, Exit::Code(1), "sudo: a password is required", "sudo-denied"),
            (T, Exit::Code(1), "Sorry, user a is not allowed to execute", "sudo-denied"),
            (T, Exit::Code(1), "sudo: The \"no new privileges\" flag is set, which prevents …", "no-new-privs"),
            (T, Exit::Code(1), "sudo: /x/salaam-toolsd: command not found", "executor-missing"),
            (T, Exit::Code(1), "", "sudo-denied"),
            (T, Exit::Code(0), "", "executor-identity"),
            (T, Exit::Code(72), "salaam-toolsd: …", "executor-identity"),
            (T, Exit::Code(76), "salaam-toolsd: …", "executor-version"),
            (T, Exit::Code(78), "salaam-toolsd: cannot open …/salaam-launch", "executor-missing"),
            (S, Exit::Code(76), "salaam-toolsd: …", "executor-version"),
            (S, Exit::Code(1), "", "executor-identity"),
            (T, Exit::Signal(9), "", "executor-identity"),
        ] {
            let check = ended_early(&sample(mode), "salaam", exit, said);
            assert_eq!(check.id, id, "{mode} {exit} {said}");
            assert!(!check.fix.is_empty() && !check.evidence.is_empty() && check.refuses());
        }
        let check = ended_early(&sample(T), "salaam", Exit::Code(1), "sudo: a password is required");
        assert!(
            check.fix.ends_with("salaam ALL=(salaam-tools) NOPASSWD: /usr/local/libexec/salaam/salaam-toolsd \"\"")
        );
    }
}
