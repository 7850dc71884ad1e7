//! One sandbox as a tree of processes: bwrap outside, the namespace's init inside, salaam-launch and the
//! command below it.
//!
//! Proof of end is the init's descriptor: when the init of a pid namespace is gone, the kernel has ended all
//! that lived in it (pid_namespaces(7)). Where there is no namespace, salaam-launch is the tree's root and the
//! subreaper of all in it: proof is its word that it has no child any more. Killed before it could give it, its
//! children fall to this process, which ends whatever it did not start itself (`orphans`).

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::unistd::Pid;
use salaam_launch::{
    control,
    plan::Keeper,
    report::{self, Record},
};
use salaam_sys::reap;
use tokio::{
    io::{AsyncReadExt, unix::AsyncFd},
    net::unix::pipe,
    time::timeout,
};

use super::{
    Census, Child, Order, Spawner,
    child::watch,
    orphans::{Family, Own},
};

/// bwrap's status is a few hundred bytes; more is not bwrap's.
const MAX_STATUS_BYTES: usize = 4096;
/// A killed tree is gone in milliseconds; a process in uninterruptible sleep may take long.
pub(crate) const PROOF: Duration = Duration::from_secs(5);
/// How long launch may take to end everything, before its namespace is ended from outside.
const BY_LAUNCH: Duration = Duration::from_secs(1);

/// This process's ends of the pipes into a sandbox.
#[derive(Debug)]
pub struct Start {
    /// What to start.
    pub order: Order,
    /// bwrap's status comes here.
    pub status: OwnedFd,
    /// launch's report comes here.
    pub report: OwnedFd,
    /// launch listens here.
    pub control: Arc<OwnedFd>,
    /// What keeps the command's processes together.
    pub keeper: Keeper,
}

/// Why a sandbox did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// bwrap could not be started at all.
    #[error("bwrap could not be started")]
    Spawn(#[source] io::Error),
    /// bwrap gave up; the reason is on its standard error.
    #[error("bwrap ended before the sandbox stood")]
    Setup,
    /// A pipe or a process descriptor failed.
    #[error("the sandbox cannot be watched")]
    Watch(#[source] io::Error),
}

/// A sandbox whose init is held. Dropped, it is killed.
#[derive(Debug)]
pub struct Tree {
    outer: Child,
    root: Root,
    report: pipe::Receiver,
    control: Arc<OwnedFd>,
    family: Family,
    /// The namespaces that bwrap says are new.
    pub namespaces: Vec<String>,
}

/// What all in a tree hangs on.
#[derive(Debug)]
enum Root {
    /// The init of a pid namespace.
    Init { descriptor: AsyncFd<OwnedFd>, own: Own },
    /// launch, which is the outer child itself; whether it has said that all is gone.
    Launch { all_is_gone: bool },
}

/// What is known when a tree has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gone {
    /// The namespace's init is gone, and so is all in it.
    pub proven: bool,
    /// What was reaped here used, in microseconds; the command's share is in it where launch could not report.
    pub cpu_us: u64,
    /// The largest resident set in KiB.
    pub peak_kib: u64,
}

impl Tree {
    /// Starts a sandbox, takes hold of its init, and lets launch go on.
    ///
    /// The init is opened by its number while launch waits: it cannot have ended by itself, so when launch
    /// answers afterwards, the descriptor was the init's and not that of a later process of the same number.
    pub async fn start(spawner: &Spawner, start: Start) -> Result<Self, StartError> {
        let family = spawner.family();
        if start.keeper == Keeper::Launch {
            let report = pipe::Receiver::from_owned_fd(start.report).map_err(StartError::Watch)?;
            let outer = spawner.spawn_keeper(start.order).await.map_err(StartError::Spawn)?;
            let root = Root::Launch { all_is_gone: false };
            let tree = Self { outer, root, report, control: start.control, family, namespaces: Vec::new() };
            tree.tell(control::GO);
            return Ok(tree);
        }
        let mut status = pipe::Receiver::from_owned_fd(start.status).map_err(StartError::Watch)?;
        let report = pipe::Receiver::from_owned_fd(start.report).map_err(StartError::Watch)?;
        let mut outer = spawner.spawn(start.order).await.map_err(StartError::Spawn)?;
        let Some((pid, namespaces)) = read_status(&mut status).await.map_err(StartError::Watch)? else {
            outer.kill();
            drop(outer.ended().await);
            return Err(StartError::Setup);
        };
        let init = match reap::open(pid) {
            Ok(init) => init,
            // Gone already: it failed while it built the sandbox.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
                drop(outer.ended().await);
                return Err(StartError::Setup);
            }
            Err(error) => return Err(StartError::Watch(error)),
        };
        let descriptor = watch(init).map_err(StartError::Watch)?;
        let root = Root::Init { descriptor, own: family.adopt(pid) };
        let tree = Self { outer, root, report, control: start.control, family, namespaces };
        tree.tell(control::GO);
        Ok(tree)
    }

    /// The next record of launch; `None` when it is gone or says what no launch says. May be dropped while it
    /// waits: a record is one write and one read.
    pub async fn record(&mut self) -> Option<Record> {
        let mut bytes = [0; report::BYTES];
        self.report.read_exact(&mut bytes).await.ok()?;
        let record = Record::decode(&bytes);
        if let (Some(Record::Ended(_) | Record::Failed(..)), Root::Launch { all_is_gone }) = (&record, &mut self.root) {
            *all_is_gone = matches!(record, Some(Record::Ended(_)));
        }
        record
    }

    /// Its processes.
    pub fn census(&self) -> Census {
        match &self.root {
            Root::Init { own: init, .. } => Census::of(init.pid(), 2),
            Root::Launch { .. } => Census::of(self.outer.pid(), 1),
        }
    }

    /// Sends TERM to everything inside.
    pub fn term(&self) {
        self.tell(control::TERM);
    }

    /// Has launch kill everything inside, count it, and tell how the command ended. After the time that is returned it
    /// will not do so any more, and [`Tree::kill`] comes next.
    pub fn end(&self) -> Duration {
        self.tell(control::KILL);
        match &self.root {
            Root::Init { .. } => BY_LAUNCH,
            // Killed itself, it would leave the others; it searches them one by one.
            Root::Launch { .. } => PROOF,
        }
    }

    /// Whether [`Tree::kill`] leaves nothing, so that nobody needs to be asked first.
    pub fn is_ended_from_outside(&self) -> bool {
        matches!(self.root, Root::Init { .. })
    }

    /// Kills everything inside at once, without a word from launch. Where that is all that keeps the others together,
    /// they fall to this process, and [`Tree::gone`] ends them.
    pub fn kill(&self) {
        match &self.root {
            Root::Init { descriptor, .. } => {
                if reap::kill(descriptor).is_err() {
                    self.outer.kill();
                }
            }
            Root::Launch { .. } => self.outer.kill(),
        }
    }

    /// Waits until bwrap and the namespace are gone and reaps both.
    pub async fn gone(&mut self) -> Gone {
        let mut gone = Gone::default();
        let mut add = |ended: reap::Ended| {
            gone.cpu_us += ended.cpu_us;
            gone.peak_kib = gone.peak_kib.max(ended.peak_kib);
        };
        let mut outer = timeout(PROOF, self.outer.ended()).await;
        if outer.is_err() {
            // Somebody has stopped it, or it hangs.
            self.outer.kill();
            outer = timeout(PROOF, self.outer.ended()).await;
        }
        let outer_is_gone = outer.is_ok();
        if let Ok(Ok(ended)) = outer {
            add(ended);
        }
        let proven = match &self.root {
            Root::Init { descriptor, own: init } => {
                let proven = matches!(timeout(PROOF, descriptor.readable()).await, Ok(Ok(_)));
                // bwrap is its parent; when that ended first, this process is, as a subreaper.
                if let Ok(Some(ended)) = reap::reap(init.pid()) {
                    add(ended);
                }
                proven
            }
            Root::Launch { all_is_gone: true } => true,
            // As long as it is there, so may be the others.
            Root::Launch { all_is_gone: false } if !outer_is_gone => false,
            Root::Launch { all_is_gone: false } => {
                let family = self.family.clone();
                tokio::task::spawn_blocking(move || family.end_orphans(PROOF)).await.unwrap_or(false)
            }
        };
        Gone { proven, ..gone }
    }

    fn tell(&self, byte: u8) {
        // A pipe that nobody reads any more means that the end is near; it is seen on the report pipe.
        let _ = nix::unistd::write(self.control.as_fd(), &[byte]);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        match &self.root {
            // ESRCH where it has ended. The child kills and reaps bwrap itself.
            Root::Init { descriptor, .. } => drop(reap::kill(descriptor)),
            // It ends all that is below it, and then itself.
            Root::Launch { .. } => self.tell(control::KILL),
        }
    }
}

/// Reads `{ "child-pid": N, "mnt-namespace": …, … }`; `None` if bwrap ended first.
async fn read_status(status: &mut pipe::Receiver) -> io::Result<Option<(Pid, Vec<String>)>> {
    let mut text = Vec::new();
    while !text.contains(&b'\n') {
        if text.len() > MAX_STATUS_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if status.read_buf(&mut text).await? == 0 {
            return Ok(None);
        }
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(line)?;
    let pid = value.get("child-pid").and_then(serde_json::Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
    let Some(pid) = pid.filter(|pid| *pid > 1) else { return Err(io::ErrorKind::InvalidData.into()) };
    let names = value.as_object().into_iter().flatten().filter_map(|(key, _)| key.strip_suffix("-namespace"));
    // bwrap lists all but the user namespace, which is demanded by name and without which the rest cannot be.
    let namespaces = std::iter::once("user").chain(names).map(str::to_owned).collect();
    Ok(Some((Pid::from_raw(pid), namespaces)))
}

/// A pipe: what is read here, and what goes to the other side.
pub(crate) fn pipe() -> io::Result<(OwnedFd, Arc<OwnedFd>)> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    Ok((read, Arc::new(write)))
}
