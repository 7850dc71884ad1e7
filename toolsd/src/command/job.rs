//! One command under way: started behind its walls, watched until it ends or must end, proven gone.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use salaam_core::{
    bridge::{Exit, RunEvent, RunPlan, Stream},
    command::Command,
    kept::Kept,
    result::{Changed, Guard, Sandbox, Usage},
};
use salaam_launch::report::{Ended, Enforcement, Layers, Record, Step};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval_at, sleep, timeout},
};

use super::{
    Refusal,
    aside::aside,
    check::Walling,
    ending::Ending,
    growth::Growth,
    stage::{self, Kit, Scene, Staged},
    vigil::{Guarded, Present},
};
use crate::{
    output::{self, Wanted, Way},
    sandbox::{Diagnosis, Host, diagnose, knobs},
    scan::{self, Settled},
    supervise::{Gone, Leaf, Spawner, StartError, Tree},
};

/// A sandbox comes up in milliseconds; on a machine that swaps, in seconds.
const COMES_UP_WITHIN: Duration = Duration::from_secs(30);
/// How often growth is looked at: one statvfs each.
const GROWTH_INTERVAL: Duration = Duration::from_millis(250);
/// How long output is awaited when the tree could not be proven gone: somebody may hold the pipes for ever.
const DRAIN: Duration = Duration::from_millis(250);

/// Who may want it to end.
#[derive(Debug)]
pub(super) struct Ends {
    /// The service asks, or its stream is gone.
    pub(super) cancel: oneshot::Receiver<()>,
    /// Nobody waits for it any more.
    pub(super) abandoned: oneshot::Receiver<()>,
    /// The executor ends.
    pub(super) stop: watch::Receiver<bool>,
}

/// How it shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// TERM, grace, KILL.
    Cancel,
    /// KILL.
    Stop,
}

impl Ends {
    /// Waits until somebody asks. A receiver of which the sender is gone asks as well.
    pub(super) async fn asked(&mut self) -> Asked {
        tokio::select! {
            biased;
            () = raised(&mut self.stop) => Asked::Stop,
            _ = &mut self.abandoned => Asked::Stop,
            _ = &mut self.cancel => Asked::Cancel,
        }
    }
}

/// Waits for a flag; a sender that is gone counts as raised.
pub(super) async fn raised(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|raised| *raised).await);
}

/// A sandbox in which exec is next.
struct Standing {
    tree: Tree,
    stdout: OwnedFd,
    stderr: OwnedFd,
    sandbox: Sandbox,
    guarded: Option<Guarded>,
    leaf: Option<Leaf>,
    since: scan::Moment,
    began: Instant,
}

/// Runs the command of `scene` to its end.
pub(super) async fn run(
    kit: &Kit,
    spawner: &Spawner,
    scene: &Scene<'_>,
    walling: Walling,
    events: &mpsc::Sender<RunEvent>,
    ends: &mut Ends,
) -> Result<Exit, Refusal> {
    let workspace = scene.workspace;
    let present = workspace.vigil.enter(scene.plan.operation, &workspace.root, workspace.path.clone());
    let (standing, asked) = {
        let mut standing = std::pin::pin!(stand(kit, spawner, scene, walling, &present));
        tokio::select! {
            biased;
            standing = &mut standing => (standing?, None),
            // A sandbox half up is never let go of: a bwrap that is killed before it has named its child leaves
            // that behind, and the command may have begun by now. It stands in milliseconds, and ends like any other.
            asked = ends.asked() => (standing.await?, Some(asked)),
        }
    };
    let Standing { mut tree, stdout, stderr, sandbox, guarded, leaf, since, began } = standing;
    // Nobody listening shows again in the watch below, which then ends the command.
    drop(events.send(RunEvent::Spawned(sandbox)).await);
    let (gone_now, gone) = watch::channel(false);
    let mut readers = JoinSet::new();
    for (pipe, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
        let way = Way { stream, wanted: wanted(scene.plan), events: events.clone() };
        readers.spawn(output::forward(pipe, way, gone.clone()));
    }

    let watched = watch_over(&mut tree, scene, since, began, events, ends, asked).await;
    // A lever more: it reaches what nothing else does.
    if let (Some(leaf), None) = (&leaf, &watched.ended) {
        leaf.kill();
    }
    let gone = tree.gone().await;
    let wall_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    gone_now.send_replace(true);
    let drained = async { while readers.join_next().await.is_some() {} };
    if gone.proven {
        // The readers end by themselves; only whoever takes the events can hold them up, and may.
        let mut stop = ends.stop.clone();
        tokio::select! {
            biased;
            () = drained => {}
            () = raised(&mut stop) => {}
        }
    } else {
        drop(timeout(DRAIN, drained).await);
    }
    let mut swapped_late = false;
    if let Some((step, errno)) = watched.failed {
        // Something of it ran before a bound file was replaced: it did not fail to start, it was ended.
        swapped_late = step == Step::Bound && errno == nix::libc::EBUSY;
        if !swapped_late {
            return Err(failed_step(step, errno, Some(&scene.plan.command)));
        }
    }
    let mut exit = exit(watched, gone, wall_ms);
    if leaf.as_ref().is_some_and(Leaf::ran_out_of_memory) {
        exit.limit = Some("memory_bytes".into());
    }
    drop(leaf);
    if swapped_late {
        exit.limit = Some("stale-operand".into());
    }
    let looked = tokio::task::spawn_blocking(move || match (walling, guarded) {
        (Walling::Full { writable: false, .. }, _) => {
            let guard = Guard { complete: true, ..Guard::default() };
            Settled { changed: Changed { complete: true, guard, ..Changed::default() }, quarantined: Vec::new() }
        }
        (Walling::Full { writable: true, .. }, Some(guarded)) => present.settle(&guarded, since),
        (Walling::Full { writable: true, .. } | Walling::Bare, _) => {
            Settled { changed: present.changed(since), quarantined: Vec::new() }
        }
    });
    // A look that died says nothing, and says so.
    Settled { changed: exit.changed, quarantined: exit.quarantined } = looked.await.unwrap_or_default();
    Ok(exit)
}

/// What is kept of its output is sent; all of it where somebody reads along.
const fn wanted(plan: &RunPlan) -> Wanted {
    if plan.whole_output { Wanted::Whole } else { Wanted::Kept(Kept::of(plan.limits.output_bytes)) }
}

async fn stand(
    kit: &Kit,
    spawner: &Spawner,
    scene: &Scene<'_>,
    walling: Walling,
    present: &Present,
) -> Result<Standing, Refusal> {
    let behind_walls = |writable| -> Result<Staged, Refusal> {
        // Paths are looked up and, before the first command, a whole workspace: not on a thread that others wait for.
        aside(|| {
            let staged = stage::full(kit, scene, writable)?;
            if let Some(guarded) = &staged.guarded {
                present.survey(guarded);
            }
            Ok(staged)
        })
    };
    match walling {
        Walling::Bare => bare(kit, spawner, scene).await,
        Walling::Full { writable, or_bare } => {
            let walled = async { begin(kit, spawner, behind_walls(writable)?, true).await };
            match walled.await {
                Err(Refusal::NoSandbox(_)) if or_bare => bare(kit, spawner, scene).await,
                // The operator's choice, for a host where the walls do not come up; never for a failure of
                // the command itself.
                Err(Refusal::Sandbox(diagnosis)) if or_bare && diagnosis.id.starts_with("sandbox-") => {
                    bare(kit, spawner, scene).await
                }
                other => other,
            }
        }
    }
}

/// Without walls: in a pid namespace, or, where none can be had, kept together by launch. Either way it reaches
/// nothing of the executor and leaves nothing behind; where neither can be had, it does not run.
async fn bare(kit: &Kit, spawner: &Spawner, scene: &Scene<'_>) -> Result<Standing, Refusal> {
    if kit.bwrap.is_ok() {
        match begin(kit, spawner, stage::without_walls(kit, scene)?, false).await {
            Err(Refusal::Sandbox(diagnosis)) if NO_NAMESPACE.contains(&diagnosis.id) => {}
            other => return other,
        }
    }
    begin(kit, spawner, stage::alone(kit, scene)?, false).await
}

/// What bwrap fails with where the host gives no namespaces.
const NO_NAMESPACE: &[&str] = &["sandbox-userns", "sandbox-mount"];

async fn begin(kit: &Kit, spawner: &Spawner, staged: Staged, walled: bool) -> Result<Standing, Refusal> {
    let Staged { start, stdout, stderr, guarded, leaf } = staged;
    let since = salaam_sys::file::change_clock();
    let began = Instant::now();
    let (tree, layers) = come_up(spawner, start, stderr.as_fd(), walled).await.map_err(|refusal| match refusal {
        // The path on which bound content was to be put was moved away at that very moment.
        Refusal::Sandbox(diagnosis) if diagnosis.evidence.contains("/bindfile") => {
            Refusal::Stale("a file that it runs".into())
        }
        other => other,
    })?;
    let mut sandbox = measured(kit, &tree, layers, walled);
    let controllers = leaf.iter().flat_map(|leaf| leaf.controllers());
    sandbox.cgroup = controllers.map(|name| (*name).to_owned()).collect();
    Ok(Standing { tree, stdout, stderr, sandbox, guarded, leaf, since, began })
}

/// Starts a sandbox and waits for launch to report its layers.
pub(super) async fn come_up(
    spawner: &Spawner,
    start: crate::supervise::Start,
    stderr: std::os::fd::BorrowedFd<'_>,
    walled: bool,
) -> Result<(Tree, Layers), Refusal> {
    let gave_up = || match stderr.try_clone_to_owned() {
        Ok(stderr) => Refusal::Sandbox(diagnose(&stage::said(stderr), Host::read())),
        Err(source) => Refusal::Kernel { attempted: "reading why bwrap gave up", source },
    };
    let mut tree = match Tree::start(spawner, start).await {
        Ok(tree) => tree,
        Err(StartError::Setup) => return Err(gave_up()),
        Err(StartError::Spawn(source)) => return Err(Refusal::Kernel { attempted: "starting bwrap", source }),
        Err(StartError::Watch(source)) => return Err(Refusal::Kernel { attempted: "watching bwrap", source }),
    };
    match timeout(COMES_UP_WITHIN, tree.record()).await {
        Ok(Some(Record::Layers(layers))) if layers.seccomp || !walled => Ok((tree, layers)),
        Ok(Some(Record::Failed(step, errno))) => {
            tree.gone().await;
            Err(failed_step(step, errno, None))
        }
        Ok(Some(Record::Layers(_) | Record::Attacked(..) | Record::Ended(_)) | None) | Err(_) => {
            tree.kill();
            tree.gone().await;
            Err(gave_up())
        }
    }
}

/// The layers as they were reported for this very command.
pub(super) fn measured(kit: &Kit, tree: &Tree, layers: Layers, walled: bool) -> Sandbox {
    let landlock = match layers.landlock {
        Enforcement::Fully => "fully-enforced",
        Enforcement::Partially => "partially-enforced",
        Enforcement::Not => "not-enforced",
    };
    Sandbox {
        backend: if walled { "bubblewrap" } else { "none" }.into(),
        version: kit.bwrap.as_ref().ok().filter(|_| walled).map(|bwrap| bwrap.version.clone()).unwrap_or_default(),
        landlock_abi: layers.landlock_abi,
        landlock: landlock.into(),
        seccomp: layers.seccomp,
        namespaces: tree.namespaces.clone(),
        warm: false,
        cgroup: Vec::new(),
    }
}

/// What was seen of the command's end.
#[derive(Debug, Default)]
struct Watched {
    ended: Option<Ended>,
    failed: Option<(Step, i32)>,
    timed_out: bool,
    cancelled: bool,
    limit: Option<&'static str>,
}

async fn watch_over(
    tree: &mut Tree,
    scene: &Scene<'_>,
    since: scan::Moment,
    began: Instant,
    events: &mpsc::Sender<RunEvent>,
    ends: &mut Ends,
    asked: Option<Asked>,
) -> Watched {
    let mut watched = Watched { cancelled: asked.is_some(), ..Watched::default() };
    let time_limit = sleep(Duration::from_secs(scene.plan.limits.command_seconds).saturating_sub(began.elapsed()));
    tokio::pin!(time_limit);
    let mut growth = Growth::new(scene, tree, since);
    let mut ticks = interval_at(tokio::time::Instant::now() + GROWTH_INTERVAL, GROWTH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ending = asked.map(|asked| Ending::begin(tree, asked));
    let mut stop = ends.stop.clone();
    loop {
        let is_ending = ending.is_some();
        tokio::select! {
            biased;
            record = tree.record() => match record {
                Some(Record::Ended(ended)) => {
                    watched.ended = Some(ended);
                    return watched;
                }
                Some(Record::Failed(step, errno)) => watched.failed = Some((step, errno)),
                // launch is gone, and with it its namespace; or it says what it never says.
                None => return watched,
                Some(Record::Layers(_) | Record::Attacked(..)) => {
                    tree.kill();
                    return watched;
                }
            },
            asked = ends.asked(), if !is_ending => {
                watched.cancelled = true;
                ending = Some(Ending::begin(tree, asked));
            }
            () = events.closed(), if !is_ending => {
                watched.cancelled = true;
                ending = Some(Ending::begin(tree, Asked::Stop));
            }
            () = &mut time_limit, if !is_ending => {
                watched.timed_out = true;
                ending = Some(Ending::begin(tree, Asked::Cancel));
            }
            () = Ending::next(&mut ending) => match ending.take().and_then(|ending| ending.go_on(tree)) {
                Some(next) => ending = Some(next),
                // Not even that has ended it; nobody is waited for without end.
                None => return watched,
            },
            // While it is being ended, only the end of everything hastens it.
            () = raised(&mut stop), if ending.as_ref().is_some_and(|ending| ending.was_only_asked()) => {
                ending = Some(Ending::begin(tree, Asked::Stop));
            }
            _ = ticks.tick(), if !is_ending => {
                if let Some(over) = growth.over().await {
                    watched.limit = Some(over.limit());
                    ending = Some(Ending::begin(tree, over.asked()));
                }
            }
        }
    }
}

fn exit(watched: Watched, gone: Gone, wall_ms: u64) -> Exit {
    let (exit_code, signal) = match watched.ended {
        Some(ended) if ended.signal != 0 => (None, Some(ended.signal)),
        Some(ended) => (Some(ended.code), None),
        // Killed together with launch, which then could not tell.
        None => (None, Some(nix::libc::SIGKILL)),
    };
    let (cpu_us, peak_kib) = match watched.ended {
        Some(ended) => (ended.cpu_us, ended.peak_kib),
        None => (gone.cpu_us, gone.peak_kib),
    };
    Exit {
        exit_code,
        signal,
        timed_out: watched.timed_out,
        cancelled: watched.cancelled,
        limit: watched.limit.map(str::to_owned),
        proven_gone: gone.proven,
        left_processes: watched.ended.map_or(0, |ended| u64::from(ended.left)),
        usage: Usage { cpu_ms: cpu_us / 1000, peak_memory_bytes: peak_kib * 1024, wall_ms },
        ..Exit::default()
    }
}

fn failed_step(step: Step, errno: i32, command: Option<&Command>) -> Refusal {
    let errno = Errno::from_raw(errno);
    match (step, errno) {
        (Step::Exec, errno) => {
            let program = match command {
                Some(Command::Argv(argv)) => argv.first().map(|word| String::from_utf8_lossy(word).into_owned()),
                Some(Command::Shell(_)) | None => Some("/bin/sh".into()),
            };
            Refusal::Exec { program: program.unwrap_or_default(), errno }
        }
        (Step::Bound, Errno::ESTALE | Errno::ENOENT | Errno::ENOTDIR) => Refusal::Stale("a file that it runs".into()),
        (step, errno) => {
            let (id, fix) = knobs(step);
            Refusal::Sandbox(Diagnosis { id, evidence: format!("{step:?}: {}", errno.desc()).to_lowercase(), fix })
        }
    }
}
