//! The sandbox, tried on this host: built as for a command, with attacks in place of one. The same attacks are
//! carried out before and after, by the same program as the same account without any walls: what fails there as well
//! proves nothing, and what was taken away meanwhile was not denied.

use std::{collections::BTreeMap, os::fd::AsFd};

use nix::errno::Errno;
use salaam_core::{
    bridge::{RunPlan, SandboxStatus},
    check::Check,
    command::Command,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::Sandbox,
};
use salaam_launch::{
    attack::{
        ATTACKS, Attack, Described, ENDED_BY_FILTER, MOUNTS, NETWORK, PROCESSES, PROTECTED, SCOPES, SCOPES_SINCE,
        SECCOMP,
    },
    plan::Canary,
    report::Record,
};

use super::{
    Refusal,
    aside::aside,
    cage::{Cage, Turn, temporary},
    job,
    runner::Shared,
    stage::{self, Staged},
    workspace::Workspace,
};
use crate::{sandbox, supervise::Tree};

/// The steps, in the order in which one rests on the other.
const STEPS: [&str; 6] =
    ["sandbox-userns", "sandbox-mount", "sandbox-net", "sandbox-landlock", "sandbox-seccomp", "sandbox-canary"];

/// Where the canary's workspace is inside: not below the private /tmp, in which a write beside it would land.
const INSIDE: &str = "/canary";

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// What every start and every look while the service runs tries.
    Short,
    /// Every attack there is, each a check of its own.
    Whole,
}

/// Tries the sandbox.
pub(super) async fn probe(shared: &Shared, landlock: Landlock, proof: Proof) -> SandboxStatus {
    let cage = match aside(Cage::build) {
        Ok(cage) => cage,
        Err(error) => {
            let evidence = format!("the canary's own files could not be made in {}: {error}", temporary().display());
            let fix = format!("sudo chmod 1777 {}", temporary().display());
            return SandboxStatus { sandbox: None, checks: vec![Check::fail("sandbox-canary", evidence, fix)] };
        }
    };
    match sing(shared, landlock, proof, &cage).await {
        Ok((sandbox, songs)) => judged(sandbox, proof, &songs),
        Err(refusal) => {
            let (id, evidence, fix) = match refusal {
                Refusal::Sandbox(diagnosis) => (diagnosis.id.to_owned(), diagnosis.evidence, diagnosis.fix.to_owned()),
                Refusal::NoSandbox(failure) => {
                    (failure.id, failure.message, "install or update the package `bubblewrap`".to_owned())
                }
                other => {
                    // Of this process, not of the host.
                    let failure = other.into_failure();
                    let fix = "start the service again; if it stays, report it with the evidence";
                    ("sandbox-canary".to_owned(), format!("{}: {}", failure.id, failure.message), fix.to_owned())
                }
            };
            failed(&id, evidence, fix)
        }
    }
}

/// What came of every attack, outside (before and after) and inside; absent where it was not heard of.
#[derive(Debug, Default)]
struct Songs {
    before: BTreeMap<Attack, i32>,
    inside: BTreeMap<Attack, i32>,
    after: BTreeMap<Attack, i32>,
}

async fn sing(shared: &Shared, landlock: Landlock, proof: Proof, cage: &Cage) -> Result<(Sandbox, Songs), Refusal> {
    let kit = &shared.kit;
    kit.bwrap()?;
    let victim = shared.spawner.spawn(cage.victim()).await.map_err(Refusal::kernel("starting the canary's victim"))?;
    let attacks = ATTACKS.iter().filter(|described| proof == Proof::Whole || described.always);
    let canary = cage.canary(victim.pid().as_raw(), attacks.map(|described| described.attack).collect())?;
    let plan = plan(landlock);
    let before = outside(shared, cage, Turn::Before, canary.clone()).await?;

    let root = sandbox::open_plain(&cage.inside()).map_err(Refusal::WorkspacePath)?;
    let workspace = Workspace::scratch(INSIDE.into(), root);
    let Staged { start, stderr, leaf, .. } = stage::canary(kit, &workspace, &plan, canary.clone())?;
    let (mut tree, layers) = job::come_up(&shared.spawner, start, stderr.as_fd(), true).await?;
    let mut sandbox = job::measured(kit, &tree, layers, true);
    sandbox.cgroup = leaf.iter().flat_map(|leaf| leaf.controllers()).map(|name| (*name).to_owned()).collect();
    let inside = hear(&mut tree).await;
    tree.kill();
    tree.gone().await;

    let after = outside(shared, cage, Turn::After, canary).await?;
    Ok((sandbox, Songs { before, inside, after }))
}

/// The attacks without walls.
async fn outside(shared: &Shared, cage: &Cage, turn: Turn, canary: Canary) -> Result<BTreeMap<Attack, i32>, Refusal> {
    cage.again().map_err(Refusal::kernel("clearing up after the attacks"))?;
    let staged = stage::canary_outside(&shared.kit, cage.outside(turn), canary)?;
    let mut tree = Tree::start(&shared.spawner, staged.start).await.map_err(not_heard)?;
    let heard = hear(&mut tree).await;
    tree.kill();
    tree.gone().await;
    cage.again().map_err(Refusal::kernel("clearing up after the attacks"))?;
    Ok(heard)
}

fn not_heard(error: crate::supervise::StartError) -> Refusal {
    Refusal::Kernel { attempted: "attacking without a sandbox", source: std::io::Error::other(error) }
}

/// Everything that launch says of its attacks, until it has ended.
async fn hear(tree: &mut Tree) -> BTreeMap<Attack, i32> {
    let mut heard = BTreeMap::new();
    loop {
        match tokio::time::timeout(ONE_WITHIN, tree.record()).await {
            Ok(Some(Record::Attacked(attack, errno))) => drop(heard.insert(attack, errno)),
            Ok(Some(Record::Layers(_))) => {}
            Ok(Some(Record::Failed(..) | Record::Ended(_)) | None) | Err(_) => return heard,
        }
    }
}

/// An attack ends within five seconds, or launch ends it.
const ONE_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

fn plan(landlock: Landlock) -> RunPlan {
    RunPlan {
        operation: OperationId::new(0, [0; 10]),
        epoch: 0,
        workspace: WorkspaceId::new(0, [0; 10]),
        command: Command::Argv(Vec::new()),
        stdin: None,
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock,
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

/// What one attack shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// It works outside, before and after, and is denied inside, as it must be.
    Held,
    /// It fails outside as well, or is denied by what this kernel does not have: nothing is shown.
    Nothing(&'static str),
    /// It is not denied, or not as it must be.
    Broken,
}

/// A denial counts by its errno: any other one may mean that the attack itself is broken.
fn shown(described: &Described, songs: &Songs, landlock_abi: u32) -> (Shown, String) {
    let word = |errno: Option<&i32>| match errno {
        None => "not tried".to_owned(),
        Some(0) => "works".to_owned(),
        Some(&ENDED_BY_FILTER) => "ended by SIGSYS".to_owned(),
        Some(errno) => format!("{:?}", Errno::from_raw(*errno)),
    };
    let of = |songs: &BTreeMap<Attack, i32>| songs.get(&described.attack).copied();
    let (before, inside, after) = (of(&songs.before), of(&songs.inside), of(&songs.after));
    let shown = match (before, inside, after) {
        _ if described.layer == SCOPES && landlock_abi < SCOPES_SINCE => {
            Shown::Nothing("this kernel has no such scope")
        }
        (_, Some(0) | None, _) => Shown::Broken,
        (Some(0), Some(errno), Some(0)) if described.denied.contains(&errno) => Shown::Held,
        (Some(0), Some(_), Some(0)) => Shown::Broken,
        (Some(0), Some(_), _) => {
            Shown::Nothing("it no longer works outside: what is attacked was taken away meanwhile")
        }
        (Some(_) | None, Some(_), _) => Shown::Nothing("it fails on this host anyway"),
    };
    let mut evidence =
        format!("outside {}, inside {} by the {}", word(before.as_ref()), word(inside.as_ref()), described.layer);
    if before == Some(0) && after != Some(0) {
        evidence = format!("{evidence}, then outside {}", word(after.as_ref()));
    }
    (shown, evidence)
}

/// The layers of which a proof must show something: what is tried of each needs nothing but an account.
const SHOWN: [&str; 5] = [MOUNTS, NETWORK, PROCESSES, SECCOMP, PROTECTED];

fn judged(sandbox: Sandbox, proof: Proof, songs: &Songs) -> SandboxStatus {
    let tried = ATTACKS.iter().filter(|described| proof == Proof::Whole || described.always);
    let tried: Vec<_> = tried.map(|described| (described, shown(described, songs, sandbox.landlock_abi))).collect();
    let proofs = tried.iter().map(|(described, (shown, evidence))| {
        let id = format!("sandbox-attack-{}", described.name);
        match shown {
            Shown::Held => Check::pass(&id, evidence.clone()),
            Shown::Nothing(why) => Check::unproven(&id, format!("not shown: {evidence}: {why}"), ""),
            Shown::Broken => Check::fail(&id, evidence.clone(), NOT_HELD),
        }
    });
    let proofs: Vec<Check> = if proof == Proof::Whole { proofs.collect() } else { Vec::new() };
    let broken = tried.iter().filter(|(_, (shown, _))| *shown == Shown::Broken);
    let broken: Vec<String> =
        broken.map(|(described, (_, evidence))| format!("{}: {evidence}", described.name)).collect();
    let with_proofs = |mut status: SandboxStatus| {
        status.checks.extend(proofs.iter().cloned());
        status
    };
    if !broken.is_empty() {
        return with_proofs(failed("sandbox-canary", broken.join("; "), NOT_HELD.to_owned()));
    }
    let held: Vec<&Described> =
        tried.iter().filter(|(_, (shown, _))| *shown == Shown::Held).map(|(described, _)| *described).collect();
    // Where nothing of what is tried works without walls, nothing was shown about them.
    let unshown = SHOWN.iter().filter(|layer| held.iter().all(|described| described.layer != **layer));
    let unshown: Vec<&str> = unshown.copied().collect();
    if !unshown.is_empty() {
        let lost = tried.iter().filter(|(described, _)| unshown.contains(&described.layer));
        let lost: Vec<String> = lost.map(|(described, (_, seen))| format!("{}: {seen}", described.name)).collect();
        let evidence = format!("nothing was shown about {}: {}", unshown.join(", "), lost.join("; "));
        return with_proofs(failed("sandbox-canary", evidence, NOT_SHOWN.to_owned()));
    }
    let names: Vec<&str> = held.iter().map(|described| described.name).collect();
    let evidence =
        format!("{} of {} attacks work outside and are denied inside: {}", names.len(), tried.len(), names.join(", "));
    let landlock = if sandbox.landlock == "fully-enforced" {
        Check::pass("sandbox-landlock", format!("ABI {}, {}", sandbox.landlock_abi, sandbox.landlock))
    } else {
        Check::warn(
            "sandbox-landlock",
            sandbox.landlock.clone(),
            "add landlock to the kernel's security modules (boot parameter lsm=landlock,…)",
        )
    };
    let namespaces = sandbox.namespaces.join(", ");
    let steps = [
        Check::pass("sandbox-userns", format!("own namespaces: {namespaces}")),
        Check::pass("sandbox-mount", format!("bubblewrap {}", sandbox.version)),
        Check::pass("sandbox-net", "a private network with a loopback of its own"),
        landlock,
        Check::pass("sandbox-seccomp", "the filter is loaded"),
        Check::pass("sandbox-canary", evidence),
    ];
    let checks = steps.into_iter().chain(proofs).collect();
    SandboxStatus { sandbox: Some(sandbox), checks }
}

/// What is attacked is this account's own: another process of it took that away, or it has no room for it.
const NOT_SHOWN: &str = "let this account read and write in its temporary directory, end what else runs as it, and \
look again";

/// The walls stand and do not hold: what builds them is not what was tested.
const NOT_HELD: &str = "sudo apt-get install --reinstall bubblewrap (or your system's package manager), then \
packaging/install, and start again; if it stays, report it with the evidence";

/// The probe itself died.
pub(super) fn broken(evidence: String) -> SandboxStatus {
    failed("sandbox-canary", evidence, "start the service again; if it stays, report it with the evidence".to_owned())
}

/// The steps before the failed one stand; those after it were not reached.
fn failed(id: &str, evidence: String, fix: String) -> SandboxStatus {
    let at = STEPS.iter().position(|step| *step == id);
    let before = STEPS.iter().take(at.unwrap_or(0)).map(|step| Check::pass(step, "passed on the way"));
    let checks = before.chain([Check::fail(id, evidence, fix)]).collect();
    SandboxStatus { sandbox: None, checks }
}

#[cfg(test)]
mod tests {
    use salaam_core::check::Status;

    use super::*;

    /// Every attack works outside and is denied inside as it should be.
    fn held() -> Songs {
        let works: BTreeMap<Attack, i32> = ATTACKS.iter().map(|described| (described.attack, 0)).collect();
        let denied = ATTACKS.iter().map(|described| (described.attack, described.denied[0])).collect();
        Songs { before: works.clone(), inside: denied, after: works }
    }

    fn sandbox(landlock_abi: u32) -> Sandbox {
        let landlock = if landlock_abi == 0 { "not-enforced" } else { "fully-enforced" };
        Sandbox {
            backend: "bubblewrap".into(),
            version: String::new(),
            landlock_abi,
            landlock: landlock.into(),
            seccomp: true,
            namespaces: Vec::new(),
            warm: false,
            cgroup: Vec::new(),
        }
    }

    fn of<'a>(status: &'a SandboxStatus, name: &str) -> &'a Check {
        let id = format!("sandbox-attack-{name}");
        status.checks.iter().find(|check| check.id == id).unwrap()
    }

    #[test]
    fn what_works_inside_or_was_not_heard_of_or_is_denied_otherwise_is_named_and_ends_the_sandbox() {
        for attack in ATTACKS {
            for inside in [Some(0), None, Some(nix::libc::EIO)] {
                let mut songs = held();
                match inside {
                    Some(errno) => drop(songs.inside.insert(attack.attack, errno)),
                    None => drop(songs.inside.remove(&attack.attack)),
                }
                let status = judged(sandbox(7), Proof::Whole, &songs);
                assert!(status.sandbox.is_none(), "{}: {inside:?}", attack.name);
                assert_eq!(of(&status, attack.name).status, Status::Fail, "{}: {inside:?}", attack.name);
                let canary = status.checks.iter().find(|check| check.id == "sandbox-canary").unwrap();
                assert!(canary.evidence.starts_with(attack.name), "{canary:?}");
                // The short set has it too, if it is in there, and names no others.
                assert_eq!(
                    judged(sandbox(7), Proof::Short, &songs).sandbox.is_none(),
                    attack.always,
                    "{}",
                    attack.name
                );
            }
        }
        assert!(judged(sandbox(7), Proof::Whole, &held()).sandbox.is_some());
    }

    #[test]
    fn what_does_not_work_outside_before_and_after_is_never_held() {
        for (before, after) in [(nix::libc::ENOENT, 0), (0, nix::libc::ENOENT), (nix::libc::ENOSYS, nix::libc::ENOSYS)]
        {
            let mut songs = held();
            songs.before.insert(Attack::HardLink, before);
            songs.after.insert(Attack::HardLink, after);
            let status = judged(sandbox(7), Proof::Whole, &songs);
            let check = of(&status, "hard-link-outside");
            assert!(status.sandbox.is_some(), "others of its layer are shown");
            assert!(check.status == Status::Unproven && check.evidence.starts_with("not shown: "), "{check:?}");
        }
    }

    #[test]
    fn a_layer_of_which_nothing_is_shown_is_not_believed() {
        for layer in SHOWN {
            for proof in [Proof::Short, Proof::Whole] {
                let mut songs = held();
                for described in ATTACKS.iter().filter(|described| described.layer == layer) {
                    songs.after.insert(described.attack, nix::libc::ENOENT);
                }
                let status = judged(sandbox(7), proof, &songs);
                let canary = status.checks.iter().find(|check| check.id == "sandbox-canary").unwrap();
                assert!(status.sandbox.is_none() && canary.status == Status::Fail, "{layer}: {canary:?}");
                assert!(canary.evidence.contains(&format!("nothing was shown about {layer}")), "{canary:?}");
            }
        }
    }

    #[test]
    fn a_scope_is_asked_for_only_where_the_kernel_has_scopes() {
        let mut songs = held();
        songs.inside.insert(Attack::SignalLaunch, 0);
        for (abi, usable, shown) in [(0, true, Status::Unproven), (5, true, Status::Unproven), (6, false, Status::Fail)]
        {
            let status = judged(sandbox(abi), Proof::Whole, &songs);
            assert_eq!((status.sandbox.is_some(), of(&status, "signal-launch").status), (usable, shown), "{abi}");
        }
    }

    #[test]
    fn a_whole_proof_crosses_the_bridge() {
        let status = judged(sandbox(7), Proof::Whole, &held());
        let checks = status.checks.len();
        let crossed = salaam_proto::wire::ProbeSandboxReply::from(status);
        assert_eq!(SandboxStatus::try_from(crossed).unwrap().checks.len(), checks);
    }
}
