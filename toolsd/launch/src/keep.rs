//! All processes of a command: found, counted and ended, in a pid namespace or without one.
//!
//! In a namespace they are whatever this process can signal. Without one they are its descendants: it is the
//! subreaper to which orphans fall (prctl(2)), so when it has no child any more, it has no descendant. The command
//! cannot end it first: it is outside of the command's landlock domain, which lets no signal out.

use std::collections::{HashMap, HashSet};

use nix::{
    errno::Errno,
    libc,
    poll::PollTimeout,
    sys::signal::{self, Signal},
    unistd::Pid,
};
use salaam_launch::plan::Keeper;

use crate::kernel;

/// How long what is being ended is left alone before it is searched for again.
pub(crate) fn again() -> PollTimeout {
    PollTimeout::from(5u8)
}

/// Every process of this pid namespace but its init and this one.
const EVERYTHING: Pid = Pid::from_raw(-1);

/// Asks everything to end. What is stopped is woken, or it would not hear.
pub(crate) fn ask(keeper: Keeper) {
    end(keeper, Signal::SIGTERM);
    end(keeper, Signal::SIGCONT);
}

/// Signals everything once; an error means that nothing is left to signal.
pub(crate) fn end(keeper: Keeper, signal: Signal) {
    match keeper {
        // kill(2) with -1 is one pass under the lock that fork(2) takes, and a fork with a signal pending does
        // not happen: nothing escapes by forking on.
        Keeper::Namespace => {
            let _ = signal::kill(EVERYTHING, signal);
        }
        Keeper::Launch => {
            for process in descendants() {
                let _ = signal::kill(Pid::from_raw(process), signal);
            }
        }
    }
}

/// How many there are beside init and this one; where there are some, at least one.
pub(crate) fn count(keeper: Keeper) -> u32 {
    let count = match keeper {
        Keeper::Namespace if signal::kill(EVERYTHING, None) == Err(Errno::ESRCH) => return 0,
        Keeper::Namespace => processes().count().saturating_sub(2),
        Keeper::Launch if no_child() => return 0,
        Keeper::Launch => descendants().len(),
    };
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Kills and reaps until there is no child any more.
pub(crate) fn end_all(keeper: Keeper) {
    match keeper {
        Keeper::Namespace => {
            end(keeper, Signal::SIGKILL);
            while kernel::wait(0).is_ok() {}
        }
        Keeper::Launch => {
            while !no_child() {
                // What is stopped forks no more, so the second look finds what the first has missed.
                end(keeper, Signal::SIGSTOP);
                end(keeper, Signal::SIGKILL);
                while let Ok(Some(_)) = kernel::wait(libc::WNOHANG) {}
                let _ = nix::poll::poll(&mut [], again());
            }
        }
    }
}

/// Asks without reaping.
fn no_child() -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: siginfo_t is plain data, for which all zeroes is a value.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure of this frame.
    let asked = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut information, flags) };
    asked != 0 && Errno::last() == Errno::ECHILD
}

/// This process's descendants, as far as one look at a list that changes can tell; the next look finds the rest.
fn descendants() -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in processes() {
        if let Some(parent) = parent(process) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = HashSet::new();
    let mut waiting = vec![nix::unistd::getpid().as_raw()];
    while let Some(process) = waiting.pop() {
        for child in children.remove(&process).unwrap_or_default() {
            found.insert(child);
            waiting.push(child);
        }
    }
    found
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(process: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // A name may hold spaces and brackets; after its last bracket come the state and the parent.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}
