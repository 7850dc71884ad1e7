//! Which children are this process's own. It is a subreaper, so what loses its parent falls to it: a command's
//! processes whose keeper was killed from outside. Those are known by not being known, and ended.

use std::{
    collections::BTreeSet,
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
            let orphans: Vec<Pid> = children().filter(|child| !members.contains(child)).map(Pid::from_raw).collect();
            drop(members);
            if orphans.is_empty() {
                return true;
            }
            for orphan in orphans {
                // A child's number is its own until it is reaped, which only this does.
                let _ = kill(orphan, Signal::SIGKILL);
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
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    processes.filter(move |process| parent(*process) == Some(own))
}

fn parent(process: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // A name may hold spaces and brackets; after its last bracket come the state and the parent.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}
