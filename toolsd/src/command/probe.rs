//! The sandbox, tried on this host: built as for a command, with attacks in place of one. The same attacks are
//! carried out before, by the same program as the same account without any walls: what fails there as well proves
//! nothing.

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
    attack::{ATTACKS, Attack, Described},
    report::Record,
};

use super::{
    Refusal,
    aside::aside,
    cage::{Cage, temporary},
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

/// What came of every attack, outside and inside; absent where it was not heard of.
#[derive(Debug, Default)]
struct Songs {
    outside: BTreeMap<Attack, i32>,
    inside: BTreeMap<Attack, i32>,
}

async fn sing(shared: &Shared, landlock: Landlock, proof: Proof, cage: &Cage) -> Result<(Sandbox, Songs), Refusal> {
    let kit = &shared.kit;
    kit.bwrap()?;
    let victim = shared.spawner.spawn(cage.victim()).await.map_err(Refusal::kernel("starting the canary's victim"))?;
    let attacks = ATTACKS.iter().filter(|described| proof == Proof::Whole || described.always);
    let canary = cage.canary(victim.pid().as_raw(), attacks.map(|described| described.attack).collect())?;
    let plan = plan(landlock);
    let outside = stage::canary_outside(kit, cage.outside(), canary.clone())?;
    let mut tree = Tree::start(&shared.spawner, outside.start).await.map_err(not_heard)?;
    let outside = hear(&mut tree).await;
    tree.kill();
    tree.gone().await;
    cage.again().map_err(Refusal::kernel("clearing up after the attacks outside"))?;

    let root = sandbox::open_plain(&cage.inside()).map_err(Refusal::WorkspacePath)?;
    let workspace = Workspace::scratch(INSIDE.into(), root);
    let Staged { start, stderr, .. } = stage::canary(kit, &workspace, &plan, canary)?;
    let (mut tree, layers) = job::come_up(&shared.spawner, start, stderr.as_fd(), true).await?;
    let sandbox = job::measured(kit, &tree, layers, true);
    let inside = hear(&mut tree).await;
    tree.kill();
    tree.gone().await;
    Ok((sandbox, Songs { outside, inside }))
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
        protected_paths: Vec::new(),
        environment: Vec::new(),
    }
}

/// What one attack shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// It works outside and is denied inside, as it must be.
    Held,
    /// It fails outside as well: nothing is shown.
    Nothing,
    /// It is not denied, or not as it must be.
    Broken,
}

/// A denial counts by its errno: any other one may mean that the attack itself is broken.
fn shown(described: &Described, songs: &Songs) -> (Shown, String) {
    let word = |errno: Option<&i32>| match errno {
        None => "not tried".to_owned(),
        Some(0) => "works".to_owned(),
        Some(errno) => format!("{:?}", Errno::from_raw(*errno)),
    };
    let (outside, inside) = (songs.outside.get(&described.attack), songs.inside.get(&described.attack));
    let shown = match (outside, inside) {
        (_, Some(0) | None) => Shown::Broken,
        (Some(0), Some(errno)) if described.denied.contains(errno) => Shown::Held,
        (Some(0), Some(_)) => Shown::Broken,
        (Some(_) | None, Some(_)) => Shown::Nothing,
    };
    (shown, format!("outside {}, inside {} by the {}", word(outside), word(inside), described.layer))
}

fn judged(sandbox: Sandbox, proof: Proof, songs: &Songs) -> SandboxStatus {
    let tried = ATTACKS.iter().filter(|described| proof == Proof::Whole || described.always);
    let tried: Vec<_> = tried.map(|described| (described, shown(described, songs))).collect();
    let report = NOT_HELD;
    let proofs = tried.iter().map(|(described, (shown, evidence))| {
        let id = format!("sandbox-attack-{}", described.name);
        match shown {
            Shown::Held => Check::pass(&id, evidence.clone()),
            Shown::Nothing => Check::unproven(&id, format!("{evidence}: it fails on this host anyway"), ""),
            Shown::Broken => Check::fail(&id, evidence.clone(), report),
        }
    });
    let proofs: Vec<Check> = if proof == Proof::Whole { proofs.collect() } else { Vec::new() };
    let broken = tried.iter().filter(|(_, (shown, _))| *shown == Shown::Broken);
    let broken: Vec<String> =
        broken.map(|(described, (_, evidence))| format!("{}: {evidence}", described.name)).collect();
    if !broken.is_empty() {
        let mut status = failed("sandbox-canary", broken.join("; "), report.to_owned());
        status.checks.extend(proofs);
        return status;
    }
    let held: Vec<&str> =
        tried.iter().filter(|(_, (shown, _))| *shown == Shown::Held).map(|(described, _)| described.name).collect();
    // Where nothing of what is tried works without walls, nothing was shown about them.
    if held.is_empty() {
        let fix = "let this account read and write in its temporary directory";
        return failed("sandbox-canary", "no attack works outside".to_owned(), fix.to_owned());
    }
    let evidence =
        format!("{} of {} attacks work outside and are denied inside: {}", held.len(), tried.len(), held.join(", "));
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
