//! The door to commands: what the rpc layer calls.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use salaam_core::{
    bridge::{OpenedWorkspace, Prepare, Prepared, RunEvent, RunPlan, SandboxStatus},
    id::{OperationId, WorkspaceId},
    policy::{Landlock, Unsandboxed},
    result::Failure,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Refusal,
    aside::aside,
    check::{Walling, check},
    hold::Held,
    job::{self, Ends},
    prepare,
    probe::Proof,
    slots::Slots,
    stage::{Kit, LaunchFile, Scene},
    traffic::Pass,
    workspace::Workspaces,
};
use crate::{
    sandbox::{self, LAUNCH_INSIDE},
    supervise::{Cgroups, Spawner, end_leftovers},
};

/// Operations that are remembered as run. They come in order of time, so the oldest are forgotten.
const MOST_REMEMBERED: usize = 65_536;

/// Where things are and what is allowed at the most.
#[derive(Debug, Clone)]
pub struct RunnerConfig {
    /// salaam-launch; `None` = beside this executable.
    pub launch: Option<PathBuf>,
    /// bubblewrap; `None` = where distributions put it.
    pub bwrap: Option<PathBuf>,
    /// The control groups that commands are put into; `None` = none were handed over.
    pub cgroups: Option<Cgroups>,
    /// What this host's owner lets the service ask for.
    pub unsandboxed: Unsandboxed,
}

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// salaam-launch is not where it must be.
    #[error("cannot open {}; run packaging/install again", path.display())]
    Launch {
        /// Where it was looked for.
        path: PathBuf,
        /// Why it cannot be opened.
        #[source]
        source: io::Error,
    },
    /// The seccomp program does not compile.
    #[error("no seccomp program, so no command can be confined")]
    Filter(#[from] sandbox::FilterError),
    /// The spawner thread or the subreaper setting.
    #[error("cannot prepare to supervise commands")]
    Supervise(#[source] io::Error),
}

/// Runs commands; one for the whole process.
#[derive(Debug)]
pub struct Runner {
    shared: Arc<Shared>,
}

/// A workspace in which an edit is at work. The edit leaves when this is dropped.
#[derive(Debug)]
pub struct Editing {
    /// The root of the workspace.
    pub root: Arc<OwnedFd>,
    pass: Pass,
}

impl Editing {
    /// What running commands have bound, relative to the root.
    pub fn bound(&self) -> &[PathBuf] {
        &self.pass.immovable
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) kit: Kit,
    pub(super) spawner: Spawner,
    unsandboxed: Unsandboxed,
    workspaces: Workspaces,
    held: Held,
    slots: Arc<Slots>,
    remembered: Mutex<Remembered>,
    stop: watch::Sender<bool>,
    under_way: watch::Sender<usize>,
}

impl Runner {
    /// Finds bwrap and salaam-launch and starts the spawner thread. No bwrap is no error: commands are then
    /// refused as `sandbox-missing`.
    ///
    /// Makes this process a subreaper, so that the init of a namespace whose bwrap ended first is reaped here.
    pub fn new(config: RunnerConfig) -> Result<Self, RunnerError> {
        let path = match config.launch {
            Some(path) => path,
            None => beside_this_program().map_err(RunnerError::Supervise)?,
        };
        let left = end_leftovers(&[Path::new(LAUNCH_INSIDE), &path]);
        if left > 0 {
            tracing::warn!(left, "ended what an executor before this one had left");
        }
        let launch = LaunchFile::open(&path).map_err(|source| RunnerError::Launch { path, source })?;
        let (seccomp, bare_seccomp) = (sandbox::program()?, sandbox::bare_program()?);
        nix::sys::prctl::set_child_subreaper(true).map_err(|e| RunnerError::Supervise(e.into()))?;
        let spawner = Spawner::start().map_err(RunnerError::Supervise)?;
        let bwrap = sandbox::find(config.bwrap.as_deref());
        let (masks, as_service_user) = (sandbox::Masks::default(), false);
        let kit = Kit { bwrap, launch, seccomp, bare_seccomp, cgroups: config.cgroups, masks, as_service_user };
        Ok(Self {
            shared: Arc::new(Shared {
                kit,
                spawner,
                unsandboxed: config.unsandboxed,
                workspaces: Workspaces::default(),
                held: Held::default(),
                slots: Arc::default(),
                remembered: Mutex::default(),
                stop: watch::Sender::new(false),
                under_way: watch::Sender::new(0),
            }),
        })
    }

    /// The same runner, as the service user's own account: no other exchanges what that may read.
    #[must_use]
    pub fn in_service_user_mode(self) -> Self {
        match Arc::try_unwrap(self.shared) {
            Ok(mut shared) => {
                shared.kit.as_service_user = true;
                Self { shared: Arc::new(shared) }
            }
            // It runs something already: what it was made as, it stays.
            Err(shared) => Self { shared },
        }
    }

    /// Builds the sandbox and lets a canary try what must be denied in it; names the step, or with a whole proof
    /// every attack, that fails.
    ///
    /// Goes on to its end when this future is dropped: a sandbox half up is never let go of.
    pub async fn probe_sandbox(&self, landlock: Landlock, proof: Proof) -> SandboxStatus {
        let shared = Arc::clone(&self.shared);
        let probe = tokio::spawn(async move { super::probe::probe(&shared, landlock, proof).await });
        probe.await.unwrap_or_else(|error| super::probe::broken(error.to_string()))
    }

    /// Opens the directory at `path`, which must be absolute, without links, and nothing of the system's, and
    /// holds it under `id`.
    pub fn open_workspace(&self, id: WorkspaceId, path: &[u8]) -> Result<OpenedWorkspace, Failure> {
        aside(|| self.shared.workspaces.open(id, path)).map_err(Refusal::into_failure)
    }

    /// Forgets a workspace.
    pub fn close_workspace(&self, id: WorkspaceId) {
        self.shared.workspaces.close(id);
    }

    /// The root of an open workspace.
    pub fn root(&self, workspace: WorkspaceId) -> Result<Arc<OwnedFd>, Failure> {
        let workspace = self.shared.workspaces.find(workspace).map_err(Refusal::into_failure)?;
        Ok(Arc::clone(&workspace.root))
    }

    /// Lets an edit into a workspace: commands with bound content that begin while it is there wait for it a
    /// little, or are guarded against it.
    pub fn enter_to_edit(&self, workspace: WorkspaceId, operation: OperationId) -> Result<Editing, Failure> {
        let workspace = self.shared.workspaces.find(workspace).map_err(Refusal::into_failure)?;
        Ok(Editing { root: Arc::clone(&workspace.root), pass: workspace.traffic.enter_to_edit(operation) })
    }

    /// Finds the content that a command would run from its workspace; keeps it for [`Runner::run`] if asked.
    pub async fn prepare(&self, asked: Prepare) -> Result<Prepared, Failure> {
        let found = self.find(asked.workspace, asked.command).await.map_err(Refusal::into_failure)?;
        let files = found.files.iter().map(super::hold::HeldFile::bound).collect();
        if asked.hold {
            self.shared.held.keep(asked.operation, found.files).map_err(Refusal::into_failure)?;
        }
        Ok(Prepared { files, unpinned: found.unpinned, git_outside: found.git_outside })
    }

    async fn find(
        &self,
        workspace: WorkspaceId,
        command: salaam_core::command::Command,
    ) -> Result<prepare::Found, Refusal> {
        let workspace = self.shared.workspaces.find(workspace)?;
        let search = tokio::task::spawn_blocking(move || prepare::find(&workspace, &command));
        search.await.map_err(|e| Refusal::kernel("searching for what the command runs")(io::Error::other(e)))?
    }

    /// Drops what is kept for an operation that will not run.
    pub fn release(&self, operation: OperationId) {
        self.shared.held.release(operation);
    }

    /// Runs one command; `Failed` or `Exited` is its last event, after which nothing of it is left.
    ///
    /// `cancel` asks for TERM, grace, KILL, also by being dropped. A full channel holds the command up. When
    /// this future or the receiver of the events is dropped, the command is killed, and still reaped.
    pub async fn run(
        &self,
        plan: RunPlan,
        stdin: Vec<u8>,
        events: mpsc::Sender<RunEvent>,
        cancel: oneshot::Receiver<()>,
    ) {
        // A task of its own ends the command in order whatever becomes of this future.
        let (_waiting, abandoned) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let ends = Ends { cancel, abandoned, stop: shared.stop.subscribe() };
        let present = UnderWay::enter(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            let _present = present;
            let last = match shared.run(&plan, &stdin, &events, ends).await {
                Ok(exit) => RunEvent::Exited(Box::new(exit)),
                Err(refusal) => RunEvent::Failed(refusal.into_failure()),
            };
            // Whoever holds the events and takes none does not hold up the end of the process.
            let mut stop = shared.stop.subscribe();
            tokio::select! {
                biased;
                _ = events.send(last) => {}
                () = job::raised(&mut stop) => {}
            }
        });
        drop(task.await);
    }

    /// Waits until no command is under way.
    pub async fn idle(&self) {
        drop(self.shared.under_way.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Kills every command and returns when all are gone. Later ones are refused.
    pub async fn shutdown(&self) {
        self.shared.stop.send_replace(true);
        self.idle().await;
    }
}

impl Shared {
    async fn run(
        &self,
        plan: &RunPlan,
        stdin: &[u8],
        events: &mpsc::Sender<RunEvent>,
        mut ends: Ends,
    ) -> Result<salaam_core::bridge::Exit, Refusal> {
        let walling = check(plan, stdin, self.unsandboxed)?;
        let workspace = self.workspaces.find(plan.workspace)?;
        self.remember(plan.operation)?;
        let held = self.held.take(plan.operation, &plan.files)?;
        let writes = !matches!(walling, Walling::Full { writable: false, .. });
        let bound = held.iter().filter_map(|file| file.path.strip_prefix(&workspace.path).ok().map(Path::to_owned));
        let waits = async {
            let slot = self.slots.take(plan.workspace, plan.limits.concurrent_commands).await;
            let pass = workspace.traffic.enter(plan.operation, writes, bound.collect()).await;
            (slot, pass)
        };
        let (_slot, pass) = tokio::select! {
            biased;
            _ = ends.asked() => return Err(Refusal::Cancelled),
            admitted = waits => admitted,
        };
        let workspaces = self.workspaces.paths();
        let scene = Scene {
            plan,
            workspaces: &workspaces,
            stdin,
            workspace: &workspace,
            held: &held,
            immovable: &pass.immovable,
            guard_to_the_end: pass.beside_a_writer,
        };
        job::run(&self.kit, &self.spawner, &scene, walling, events, &mut ends).await
    }

    /// A repeated request must not run a command twice.
    fn remember(&self, operation: OperationId) -> Result<(), Refusal> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if !remembered.known.insert(operation) {
            return Err(Refusal::Repeated(operation));
        }
        remembered.order.push_back(operation);
        if remembered.order.len() > MOST_REMEMBERED
            && let Some(oldest) = remembered.order.pop_front()
        {
            remembered.known.remove(&oldest);
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Remembered {
    known: HashSet<OperationId>,
    order: VecDeque<OperationId>,
}

/// Counts a command as long as its task lives.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn enter(shared: Arc<Shared>) -> Self {
        shared.under_way.send_modify(|count| *count += 1);
        Self(shared)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

fn beside_this_program() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().unwrap_or(Path::new("/")).join("salaam-launch"))
}
