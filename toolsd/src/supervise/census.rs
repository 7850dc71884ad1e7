//! The processes of one tree as they are now, and what they hold that has no name: files that were taken out of their
//! directory while open, and memory that belongs to no process.
//!
//! A process that has closed itself to others of its account (PR_SET_DUMPABLE) is closed to this one too; that it is there
//! is said.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io,
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
};

use nix::{sys::stat::fstat, unistd::Pid};

use super::orphans::{field, parent, processes};

/// Where proc(5) has the number of threads, counted from behind the name.
const THREADS: usize = 17;

/// Who belongs to a tree.
#[derive(Debug, Clone)]
pub struct Census {
    root: Pid,
    /// How many generations from the root on are not the command's: init and launch, or launch alone.
    above: usize,
}

/// What is held open and has no name, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nameless {
    /// On the disk of the workspace.
    pub disk: u64,
    /// In memory (memfd_create(2)).
    pub memory: u64,
    /// Some of the processes do not let themselves be looked into.
    pub hidden: bool,
}

impl Census {
    pub(super) fn of(root: Pid, above: usize) -> Self {
        Self { root, above }
    }

    /// A place by its path from the tree's own root.
    pub fn place(&self, path: &str) -> io::Result<File> {
        File::open(format!("/proc/{}/root/{path}", self.root))
    }

    /// How many there are, each thread of theirs counted.
    pub fn tasks(&self) -> u64 {
        let of = |process: i32| field::<u64>(process, THREADS);
        self.all().into_iter().filter_map(of).sum()
    }

    /// What all of them hold open that has no name; each file counts once. What lies in a socket on its way, or is
    /// only mapped, is not seen.
    pub fn nameless(&self, workspace: BorrowedFd<'_>) -> Nameless {
        let disk = fstat(workspace).map(|stat| stat.st_dev);
        let mut found: HashMap<(u64, u64), (bool, u64)> = HashMap::new();
        let mut hidden = false;
        for process in self.all() {
            let listed = fs::read_dir(format!("/proc/{process}/fd"));
            hidden |=
                listed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) && runs(process);
            for held in listed.into_iter().flatten().flatten() {
                let Ok(name) = fs::read_link(held.path()) else { continue };
                let name = name.as_os_str().as_encoded_bytes();
                if !name.ends_with(b" (deleted)") {
                    continue;
                }
                let Ok(stat) = fs::metadata(held.path()) else { continue };
                let in_memory = name.starts_with(b"/memfd:");
                if stat.is_file() && stat.nlink() == 0 && (in_memory || Ok(stat.dev()) == disk) {
                    found.insert((stat.dev(), stat.ino()), (in_memory, stat.blocks() * 512));
                }
            }
        }
        let sum = |wanted: bool| found.values().filter(|(kind, _)| *kind == wanted).map(|(_, bytes)| bytes).sum();
        Nameless { disk: sum(false), memory: sum(true), hidden }
    }

    /// Shared memory that they have mapped, each page divided by those who have it.
    pub fn mapped_shared(&self) -> u64 {
        let of = |process: i32| {
            let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss_Shmem:"))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
        };
        self.all().into_iter().filter_map(of).sum()
    }

    /// The command's own processes: everything below the root but for what is not its.
    fn all(&self) -> Vec<i32> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for process in processes() {
            if let Some(parent) = parent(process) {
                children.entry(parent).or_default().push(process);
            }
        }
        let (mut found, mut waiting) = (Vec::new(), vec![(self.root.as_raw(), 0)]);
        while let Some((process, generation)) = waiting.pop() {
            if generation >= self.above {
                found.push(process);
            }
            let below = children.remove(&process).unwrap_or_default();
            waiting.extend(below.into_iter().map(|child| (child, generation + 1)));
        }
        found
    }
}

/// Whether it has not ended: of what waits to be reaped nothing is shown either.
fn runs(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
