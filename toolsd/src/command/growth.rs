//! Watches what no limit of a process stops: how much the workspace grows, how many files lie in /tmp, how much memory
//! is shared. Cheaply by the counts that the kernel keeps anyway, and by a look at each file and process only where
//! those are suspicious, for never more than a tenth of the time.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::statvfs::fstatvfs;
use salaam_core::limits::Limits;
use tokio::time::timeout;

use super::{aside::aside, job::Asked, stage::Scene};
use crate::{
    scan::{self, Used},
    supervise::{Census, Tree},
};

/// A file without content is counted as this much: a block of the disk, with its directory entry.
const FILE_BYTES: u64 = 4096;
/// The same for one in memory: the kernel's own record of it, twice over.
const FILE_IN_MEMORY_BYTES: u64 = 2048;
/// For a look at every file and process; what takes longer says nothing, and the next one comes.
const LOOK: Duration = Duration::from_secs(10);

/// What a command has too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Workspace,
    Temporary,
    Memory,
    Processes,
}

impl Over {
    /// How a command that has it is ended: what is still taking more while it is asked is not asked.
    pub(super) const fn asked(self) -> Asked {
        match self {
            Self::Workspace | Self::Temporary => Asked::Cancel,
            Self::Memory | Self::Processes => Asked::Stop,
        }
    }

    /// The limit, as a result names it.
    pub(super) const fn limit(self) -> &'static str {
        match self {
            Self::Workspace => "workspace_growth_bytes",
            Self::Temporary => "tmp_bytes",
            Self::Memory => "memory_bytes",
            Self::Processes => "processes",
        }
    }
}

/// The watch over one command.
pub(super) struct Growth {
    root: Arc<OwnedFd>,
    since: scan::Moment,
    limits: Limits,
    census: Census,
    workspace: Option<Used>,
    /// File systems in memory that are the command's own.
    temporary: Vec<File>,
    shared: Option<u64>,
    /// Without a user namespace its processes are counted with those of the whole account, so that no limit of the
    /// kernel's is its own.
    counts_processes: bool,
    not_before: Instant,
}

impl Growth {
    pub(super) fn new(scene: &Scene<'_>, tree: &Tree, since: scan::Moment) -> Self {
        let root = Arc::clone(&scene.workspace.root);
        let workspace = aside(|| scan::used(root.as_fd())).ok();
        let census = tree.census();
        // Without a mount namespace of its own these are the host's.
        let own = tree.namespaces.iter().any(|name| name == "ipc");
        let temporary = ["tmp", "dev/shm"].into_iter().filter(|_| own).filter_map(|path| census.place(path).ok());
        Self {
            root,
            since,
            limits: scene.plan.limits,
            workspace,
            temporary: temporary.collect(),
            shared: shared_memory(),
            census,
            counts_processes: !tree.is_ended_from_outside(),
            not_before: Instant::now(),
        }
    }

    /// What it has too much of now, if anything.
    pub(super) async fn over(&mut self) -> Option<Over> {
        let most = self.limits.tmp_bytes / FILE_IN_MEMORY_BYTES;
        let files = |system: &File| fstatvfs(system).map_or(0, |now| now.files().saturating_sub(now.files_free()));
        if self.temporary.iter().any(|system| files(system) > most) {
            return Some(Over::Temporary);
        }
        if self.counts_processes && aside(|| self.census.tasks()) > self.limits.processes {
            return Some(Over::Processes);
        }
        if Instant::now() < self.not_before {
            return None;
        }
        let (disk, memory) = (self.suspects_disk(), self.suspects_memory());
        if !disk && !memory {
            return None;
        }
        let (root, since, census, limits) = (Arc::clone(&self.root), self.since, self.census.clone(), self.limits);
        let began = Instant::now();
        let look = tokio::task::spawn_blocking(move || {
            let held = census.nameless(root.as_fd());
            // Where something hides, the count of the whole stands: of the host's memory, and of the file system.
            if memory && (held.hidden || held.memory.max(census.mapped_shared()) > most_shared(&limits)) {
                return Some(Over::Memory);
            }
            if !disk {
                return None;
            }
            let grown = scan::grown(root.as_fd(), since);
            let is_over = grown.hidden
                || held.hidden
                || grown.bytes.saturating_add(held.disk) > limits.workspace_growth_bytes
                || grown.files > limits.workspace_growth_bytes / FILE_BYTES;
            is_over.then_some(Over::Workspace)
        });
        let over = timeout(LOOK, look).await.ok().and_then(Result::ok).flatten();
        // Somebody else fills the disk: look on, but never more than a tenth of the time.
        self.not_before = Instant::now() + began.elapsed() * 10;
        over
    }

    fn suspects_disk(&self) -> bool {
        let now = aside(|| scan::used(self.root.as_fd())).ok();
        match (self.workspace, now) {
            (Some(before), Some(now)) => {
                let most = self.limits.workspace_growth_bytes;
                now.bytes.saturating_sub(before.bytes) > most
                    || now.files.saturating_sub(before.files) > most / FILE_BYTES
            }
            // A file system that does not count is walked.
            (None, _) | (_, None) => true,
        }
    }

    fn suspects_memory(&self) -> bool {
        match (self.shared, shared_memory()) {
            (Some(before), Some(now)) => now.saturating_sub(before) > most_shared(&self.limits),
            (None, _) | (_, None) => false,
        }
    }
}

/// Shared memory of all processes of a command together, what lies in /tmp and /dev/shm included; the same sum that a
/// control group is given.
fn most_shared(limits: &Limits) -> u64 {
    limits.memory_bytes.saturating_add(limits.tmp_bytes.saturating_mul(2))
}

/// Shared memory of the whole host in bytes.
fn shared_memory() -> Option<u64> {
    let information = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("Shmem:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}
