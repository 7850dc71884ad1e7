//! The start up to the point where nothing is open to operators yet: every check is carried out, and what was
//! opened for it is closed again where one refuses.

use std::{
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use salaam_core::{check::Check, manifest::Manifest, reader::Begin};
use tokio::sync::mpsc;

use crate::{
    clock::Clock,
    executor::{Executor, Notice, Spawn},
    group::{self, Claim, Ground},
    host::{self, Host, HostError, Verdict},
    operation::Tools,
    probe::{self, Depth, Engine},
    readers::{self, Readers},
    store::{LockError, StateLock, Store},
};

/// Notices of the bridge that may wait to be journaled.
const MOST_NOTICES: usize = 64;

/// Why the service did not start.
pub(super) enum Refused {
    Checks(Vec<Check>),
    Host(HostError),
    Other(String),
}

impl From<HostError> for Refused {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

pub(super) struct Start {
    pub(super) host: Host,
    pub(super) clock: Clock,
}

/// All that was opened and measured; nothing is open to operators yet.
pub(super) struct Prepared {
    pub(super) host: Host,
    pub(super) clock: Clock,
    pub(super) lock: StateLock,
    pub(super) store: Store,
    pub(super) executor: Executor,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) epoch: u64,
    pub(super) tools: Tools,
    pub(super) manifest: Manifest,
    pub(super) checks: Vec<Check>,
    pub(super) engine: Engine,
    pub(super) group: Claim,
}

impl Start {
    /// All of it, or nothing: what a refused start made, it takes away.
    pub(super) async fn prepare(self) -> Result<Prepared, Refused> {
        let (ground, refused) = match group::enter() {
            Ok(ground) => (ground, None),
            Err(error) => (Ground::None { evidence: error.to_string() }, Some(error.to_check())),
        };
        let engine = engine(&self.host);
        let mut checks = of_host(&engine).await;
        checks.extend(refused.clone());
        if hopeless(&checks) {
            return Err(self.give_up(self.and_lock(checks), None, None).await);
        }
        let dirs = self.host.dirs.clone();
        let made = self.host.create_directories()?;
        let mut checks = if made.is_empty() { checks } else { of_host(&engine).await };
        checks.extend(refused);
        let prepared = self.prepare_in(checks, engine, ground).await;
        if prepared.is_err() {
            take_away(&made, &dirs.state);
        }
        prepared
    }

    /// The lock's check where nothing may be made: whether somebody has it.
    fn and_lock(&self, mut checks: Vec<Check>) -> Vec<Check> {
        if let Ok(Some(holder)) = StateLock::holder(&self.host.dirs.state) {
            checks.push(LockError::Held { state: self.host.dirs.state.clone(), holder }.to_check());
        }
        checks
    }

    /// Carries out every check that can be carried out, and goes on only if none refuses.
    async fn prepare_in(self, mut checks: Vec<Check>, engine: Engine, ground: Ground) -> Result<Prepared, Refused> {
        // Nothing is written into a directory that others can enter; what else is wrong is still looked for.
        let private = !checks.iter().any(|check| check.id == "state-dir-mode" && check.refuses());
        let lock = match private.then(|| StateLock::acquire(&self.host.dirs.state)).transpose() {
            Ok(lock) => lock,
            Err(error) => {
                checks.push(error.to_check());
                return Err(Refused::Checks(refusing(checks)));
            }
        };
        let store = match private.then(|| Store::open(&self.host.dirs.state, self.clock)).transpose() {
            Ok(store) => store,
            Err(error) => {
                checks.push(error.to_check());
                None
            }
        };
        let workspaces = self.workspaces(store.as_ref()).await?;
        let manifest = self.host.plan_beside(&workspaces)?;
        let epoch = match &store {
            Some(store) => store.last_executor_epoch().await.map_err(|e| Refused::Other(e.to_string()))? + 1,
            None => 1,
        };
        let (notices_tx, notices) = mpsc::channel(MOST_NOTICES);
        let group = match ground.settle(&manifest.limits).await {
            Ok(claim) => claim,
            Err(error) => {
                checks.push(error.to_check());
                Claim::None { evidence: error.to_string() }
            }
        };
        let spawn = Spawn { group: group.group().cloned(), ..spawn(&self.host) };
        let executor = match Executor::start(spawn, epoch, notices_tx).await {
            Ok(executor) => Some(executor),
            Err(failed) => {
                checks.extend(failed);
                None
            }
        };
        let mut tools = Tools::default();
        if let Some(link) = executor.as_ref().and_then(|executor| executor.link().ok()) {
            let measured = engine.with_executor(&link, manifest.landlock, Depth::Whole).await;
            checks.extend(measured.checks);
            checks.push(group.to_check_with(link.is_grouped()));
            tools.sandbox = measured.sandbox;
        }
        checks.extend(EXECUTOR.map(|id| Check::pass(id, "the executor was started and proved itself")));
        checks.push(Check::pass("state-locked", "this process has the lock of the state directory"));
        checks.push(Check::pass("journal-damaged", "the end of the chain holds"));
        dedup(&mut checks);
        match (checks.iter().any(Check::blocks), lock, store, executor) {
            (false, Some(lock), Some(store), Some(executor)) => {
                self.pin(&manifest)?;
                Ok(Prepared {
                    host: self.host,
                    clock: self.clock,
                    lock,
                    store,
                    executor,
                    notices,
                    epoch,
                    tools,
                    manifest,
                    checks,
                    engine,
                    group,
                })
            }
            (_, _, store, executor) => Err(self.give_up(checks, store, executor).await),
        }
    }

    /// Leaves nothing behind.
    async fn give_up(&self, checks: Vec<Check>, store: Option<Store>, executor: Option<Executor>) -> Refused {
        if let Some(executor) = executor {
            executor.stop().await;
        }
        if let Some(store) = store {
            store.close().await;
        }
        Refused::Checks(refusing(checks))
    }

    async fn workspaces(&self, store: Option<&Store>) -> Result<Vec<PathBuf>, Refused> {
        let rows = match store {
            Some(store) => store.workspaces().await.map_err(|e| Refused::Other(e.to_string()))?,
            None => Vec::new(),
        };
        Ok(rows.into_iter().map(|row| PathBuf::from(std::ffi::OsString::from_vec(row.path))).collect())
    }

    /// Pins what is new. `plan-changed` refused before; it is not pinned by the way.
    fn pin(&self, manifest: &Manifest) -> Result<(), Refused> {
        match host::verdict(self.host.pinned()?.as_ref(), manifest, &self.host.flags) {
            Verdict::Keep | Verdict::Changed { .. } => Ok(()),
            Verdict::Pin { .. } => Ok(self.host.pin(manifest)?),
        }
    }
}

/// What needs no executor.
async fn of_host(engine: &Engine) -> Vec<Check> {
    let mut checks = engine.alone(Depth::Whole).await;
    checks.push(engine.plan());
    checks
}

/// Removes the directories that a start made, and the empty journal if the state directory is one of them.
/// Whatever else somebody put there meanwhile stays, with its directory.
fn take_away(made: &[PathBuf], state: &Path) {
    for path in made.iter().rev() {
        if path == state {
            crate::store::discard(path);
        }
        if let Err(error) = std::fs::remove_dir(path) {
            tracing::debug!(%error, path = %path.display(), "a directory of a refused start stays");
        }
    }
}

/// What a start that succeeded has shown about the executor.
const EXECUTOR: [&str; 3] = ["sudo-denied", "executor-identity", "executor-version"];

/// With no account to become there is neither a plan nor an executor; every other failure is seen beside it.
pub(super) fn hopeless(checks: &[Check]) -> bool {
    let ids = ["tools-user-missing", "tools-user-root", "tools-user-is-service", "service-is-root"];
    checks.iter().any(|check| check.refuses() && ids.contains(&check.id.as_str()))
}

/// The probes of this host.
pub(super) fn engine(host: &Host) -> Engine {
    let rule = spawn(host).sudoers_rule(&host.service_user);
    Engine::new(host.clone(), rule)
}

/// What is started, and as whom.
pub(super) fn spawn(host: &Host) -> Spawn {
    let (tools_user, tools_uid) = account(host);
    Spawn {
        mode: host.mode,
        tools_user,
        tools_uid,
        service_uid: host.service_uid,
        toolsd: host.dirs.libexec.join("salaam-toolsd"),
        sudo: probe::sudo().unwrap_or_else(|_| PathBuf::from(probe::SUDO[0])),
        build: crate::version::BUILD.clone(),
        group: None,
    }
}

/// What reads workspaces, and on whose behalf: what the account that runs commands cannot read is not read.
pub(super) fn readers(host: &Host) -> Readers {
    let account = match &host.tools {
        Some(tools) => Begin { uid: tools.uid, groups: host::groups_of(tools) },
        None => {
            let groups = nix::unistd::getgroups().unwrap_or_default().into_iter().map(nix::unistd::Gid::as_raw);
            Begin { uid: host.service_uid, groups: groups.chain([nix::unistd::getegid().as_raw()]).collect() }
        }
    };
    Readers::new(readers::Options {
        program: host.dirs.libexec.join("salaam-reader"),
        build: crate::version::BUILD.clone(),
        state_directory: host.dirs.state.clone(),
        account,
    })
}

/// The account that commands run as.
pub(super) fn account(host: &Host) -> (String, u32) {
    match &host.tools {
        Some(tools) => (tools.name.clone(), tools.uid),
        None => (host.service_user.clone(), host.service_uid),
    }
}

fn refusing(checks: Vec<Check>) -> Vec<Check> {
    let mut refusing: Vec<_> = checks.into_iter().filter(Check::blocks).collect();
    dedup(&mut refusing);
    refusing
}

/// One row an id: the first that refuses is the nearest to the cause, and outweighs one that does not.
pub(super) fn dedup(checks: &mut Vec<Check>) {
    let mut kept: Vec<Check> = Vec::new();
    for check in checks.drain(..) {
        match kept.iter_mut().find(|known| known.id == check.id) {
            Some(known) if check.refuses() && !known.refuses() => *known = check,
            Some(_) => {}
            None => kept.push(check),
        }
    }
    *checks = kept;
}
