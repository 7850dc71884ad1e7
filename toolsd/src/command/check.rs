//! What of a plan can be judged without touching anything.

use salaam_core::{
    bridge::{MAX_PLAN_LIST, MAX_STDIN_BYTES, RunPlan},
    command::Command,
    digest::Digest,
    policy::{Network, Profile, Unsandboxed},
};

use super::Refusal;

/// How much stands between the command and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walling {
    /// Every layer.
    Full {
        /// The workspace may be written.
        writable: bool,
        /// Where the sandbox does not come up, the command may run bare.
        or_bare: bool,
    },
    /// A pid namespace only.
    Bare,
}

/// Judges `plan`; `floor` is what this host's owner lets the service ask for at the most.
pub(super) fn check(plan: &RunPlan, stdin: &[u8], floor: Unsandboxed) -> Result<Walling, Refusal> {
    plan.limits.validate().map_err(Refusal::Limits)?;
    // Built anew, so that the rules of core hold here too.
    match plan.command.clone() {
        Command::Argv(argv) => Command::argv(argv)?,
        Command::Shell(text) => Command::shell(text)?,
    };
    let lists = [plan.read_paths.len(), plan.protected_paths.len(), plan.environment.len(), plan.files.len()];
    if lists.into_iter().any(|length| length > MAX_PLAN_LIST) {
        return Err(Refusal::Plan("a list has more than 1024 entries"));
    }
    if plan.read_paths.len() != plan.read_identities.len() {
        return Err(Refusal::Plan("not every read path says what it is"));
    }
    let fits = |(name, value): &(String, String)| {
        !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0') && name.len() + value.len() < 100_000
    };
    if !plan.environment.iter().all(fits) {
        return Err(Refusal::Plan("an environment entry has no name, a `=` in it, a NUL byte, or 100 kB"));
    }
    let promised = match plan.stdin {
        None => stdin.is_empty(),
        Some((sha256, bytes)) => bytes == stdin.len() as u64 && sha256 == Digest::of(stdin),
    };
    if !promised || stdin.len() as u64 > MAX_STDIN_BYTES {
        return Err(Refusal::Plan("the standard input is not the one that it names"));
    }
    let bare_is_allowed = match (plan.allow_unsandboxed, floor) {
        (false, _) => Err(Refusal::Unsandboxed(
            "running bare is not allowed: set unsandboxed_commands = \"allow\" and re-pin, or choose another profile",
        )),
        (true, Unsandboxed::Refuse) => Err(Refusal::Unsandboxed(
            "the floor of this host forbids running bare: floor.unsandboxed_commands in the instance file",
        )),
        (true, Unsandboxed::Allow) => Ok(()),
    };
    match (plan.profile, plan.network) {
        (_, Network::Broker) => Err(Refusal::Plan("there is no broker network in this build")),
        (Profile::FullAccess, Network::Host) => bare_is_allowed.map(|()| Walling::Bare),
        (Profile::FullAccess, Network::None) => {
            Err(Refusal::Plan("full-access has the host's network; a plan that says none promises too much"))
        }
        // The host's network, with walls asked for: only where the plan knows that there are none to be had.
        (Profile::ReadOnly | Profile::WorkspaceWrite, Network::Host) => bare_is_allowed.map(|()| Walling::Bare),
        (profile @ (Profile::ReadOnly | Profile::WorkspaceWrite), Network::None) => {
            Ok(Walling::Full { writable: profile == Profile::WorkspaceWrite, or_bare: bare_is_allowed.is_ok() })
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use salaam_core::{
        id::{OperationId, WorkspaceId},
        limits::Limits,
        policy::Landlock,
    };

    use super::*;

    pub(crate) fn plan() -> RunPlan {
        RunPlan {
            operation: OperationId::new(1, [1; 10]),
            epoch: 1,
            workspace: WorkspaceId::new(1, [2; 10]),
            command: Command::Shell("true".into()),
            stdin: None,
            profile: Profile::WorkspaceWrite,
            network: Network::None,
            landlock: Landlock::Required,
            allow_unsandboxed: false,
            limits: Limits::default(),
            files: Vec::new(),
            read_paths: Vec::new(),
            read_identities: Vec::new(),
            protected_paths: Vec::new(),
            environment: Vec::new(),
            whole_output: false,
        }
    }

    #[test]
    fn bare_needs_the_plan_and_the_floor() {
        let bare = |allow_unsandboxed, floor| {
            let plan = RunPlan { profile: Profile::FullAccess, network: Network::Host, allow_unsandboxed, ..plan() };
            check(&plan, b"", floor).is_ok()
        };
        let verdicts = [
            bare(false, Unsandboxed::Allow),
            bare(true, Unsandboxed::Refuse),
            bare(false, Unsandboxed::Refuse),
            bare(true, Unsandboxed::Allow),
        ];
        assert_eq!(verdicts, [false, false, false, true]);
        let walled = RunPlan { allow_unsandboxed: true, ..plan() };
        assert_eq!(check(&walled, b"", Unsandboxed::Refuse).unwrap(), Walling::Full { writable: true, or_bare: false });
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_refused() {
        let stdin = Some((Digest::of(b"abc"), 3));
        let bad = [
            RunPlan { stdin, ..plan() },
            RunPlan { network: Network::Broker, ..plan() },
            RunPlan { network: Network::Host, ..plan() },
            RunPlan { command: Command::Shell("a\0b".into()), ..plan() },
            RunPlan { environment: vec![("A=B".into(), String::new())], ..plan() },
            RunPlan { read_paths: vec![b"/x".to_vec(); MAX_PLAN_LIST + 1], ..plan() },
            RunPlan { read_paths: vec![b"/x".to_vec()], ..plan() },
            RunPlan { limits: Limits { processes: 0, ..Limits::default() }, ..plan() },
        ];
        for plan in bad {
            assert!(check(&plan, b"", Unsandboxed::Refuse).is_err(), "{plan:?}");
        }
        assert!(check(&RunPlan { stdin, ..plan() }, b"abc", Unsandboxed::Refuse).is_ok());
        assert!(check(&plan(), b"abc", Unsandboxed::Refuse).is_err());
    }
}
