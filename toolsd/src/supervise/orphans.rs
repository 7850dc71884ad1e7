//! Which children are this process's own. It is a subreaper, so what loses its parent falls to it: a command's
//! processes whose keeper was killed from outside. Those are known by not being known, and ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, getpid},
};
use salaam_sys::pidfd;

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(5);

/// The children that were started here, or adopted on purpose.
#[derive(Debug, Clone, Default)]
pub(super) struct Family(Arc<Mutex<BTreeSet<i32>>>);

/// A member of the family, until this is dropped: after it was reaped.
#[derive(Debug)]
pub(super) struct Own {
    family: Family,
    pid: Pid,
}

impl Own {
    /// Its number.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.family.lock().remove(&self.pid.as_raw());
    }
}

impl Family {
    /// What there is already, such as the prober, belongs to it.
    pub(super) fn of_this_process() -> Self {
        Self(Arc::new(Mutex::new(children().collect())))
    }

    /// Starts a child; no look at the family comes between its start and its entry.
    pub(super) fn born<E>(&self, start: impl FnOnce() -> Result<Pid, E>) -> Result<Own, E> {
        let mut members = self.lock();
        let pid = start()?;
        members.insert(pid.as_raw());
        drop(members);
        Ok(Own { family: self.clone(), pid })
    }

    /// Takes in a process that may fall to this one.
    pub(super) fn adopt(&self, pid: Pid) -> Own {
        self.lock().insert(pid.as_raw());
        Own { family: self.clone(), pid }
    }

    /// Ends every child that is none of the family, until there is none; false where that takes longer than `most`.
    pub(super) fn end_orphans(&self, most: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Held through the look: what is started meanwhile is not taken for an orphan.
            let members = self.lock();
            let (orphans, below) = orphans(&members);
            drop(members);
            if orphans.is_empty() {
                return true;
            }
            // What is stopped forks no more, so the next look finds what this one has missed. Only a child's number is
            // its own until it is reaped, which only this does; what lies below is held by descriptor and looked at again.
            let below: Vec<_> = below.into_iter().filter_map(held).collect();
            for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                for orphan in &orphans {
                    let _ = kill(*orphan, signal);
                }
                for process in &below {
                    drop(pidfd::signal(process, signal));
                }
            }
            for orphan in orphans {
                let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
            }
            if start.elapsed() > most {
                return false;
            }
            thread::sleep(AGAIN);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn children() -> impl Iterator<Item = i32> {
    let own = getpid().as_raw();
    processes().filter(move |process| parent(*process) == Some(own))
}

/// Children that are none of the family, and every process below one of these with its parent.
fn orphans(members: &BTreeSet<i32>) -> (Vec<Pid>, Vec<(i32, i32)>) {
    let mut by_parent: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in processes() {
        if let Some(parent) = parent(process) {
            by_parent.entry(parent).or_default().push(process);
        }
    }
    let own = by_parent.remove(&getpid().as_raw()).unwrap_or_default();
    let orphans: Vec<i32> = own.into_iter().filter(|child| !members.contains(child)).collect();
    let (mut below, mut waiting) = (Vec::new(), orphans.clone());
    while let Some(parent) = waiting.pop() {
        for child in by_parent.remove(&parent).unwrap_or_default() {
            below.push((child, parent));
            waiting.push(child);
        }
    }
    (orphans.into_iter().map(Pid::from_raw).collect(), below)
}

/// A descriptor of a process, if its number still is that of a child of `expected`.
fn held((process, expected): (i32, i32)) -> Option<OwnedFd> {
    let descriptor = pidfd::open(process).ok()?;
    (parent(process) == Some(expected)).then_some(descriptor)
}

pub(super) fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
}

pub(super) fn parent(process: i32) -> Option<i32> {
    field(process, 1)
}

/// A number of /proc/PID/stat, counted from behind the name: that may hold spaces and brackets.
pub(super) fn field<T: std::str::FromStr>(process: i32, number: usize) -> Option<T> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(number)?.parse().ok()
}
