//! The waiting parent: reaps everything inside, relays TERM, and sees that nothing is left.

use std::os::fd::{AsFd, BorrowedFd};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        resource::{UsageWho, getrusage},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        time::TimeValLike,
    },
    unistd::Pid,
};
use salaam_launch::{
    control, descriptor,
    plan::Keeper,
    report::{Ended, Record, Step},
};

use crate::{
    hold::{Hold, Swapped},
    keep, kernel, report,
};

/// Waits for the word to go; false if toolsd went away or asked for an end first.
pub(crate) fn wait_for_go() -> bool {
    kernel::read_byte(descriptor::CONTROL) == Some(control::GO)
}

/// Reaps until `command` and every process that came of it is gone.
pub(crate) fn until_the_end(command: Pid, hold: Option<Hold>, keeper: Keeper) -> Ended {
    // The command's streams must end when the command's processes do, not when this one does.
    for stream in 0..=2 {
        kernel::close(stream);
    }
    kernel::close(descriptor::SCRIPT);
    let (status, killed) = wait_for(command, hold, keeper);
    // Killed together with the command, some of them may still be there as what it left behind.
    let left = end_the_rest(keeper).max(killed);
    let signal = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 };
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 0 };
    let (cpu_us, peak_kib) = used();
    Ended { code, signal, left, cpu_us, peak_kib }
}

/// The raw status with which the command ended, and how many others were killed before it had.
fn wait_for(command: Pid, mut hold: Option<Hold>, keeper: Keeper) -> (i32, u32) {
    let mut child_signal = SigSet::empty();
    child_signal.add(Signal::SIGCHLD);
    let Ok(ends) = SignalFd::with_flags(&child_signal, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK) else {
        // Neither TERM nor the hold would work; nothing has run yet.
        keep::end(keeper, Signal::SIGKILL);
        return (libc::SIGKILL, 0);
    };
    // A kernel that has none waits, in the case below, for the time limit.
    let over = kernel::watch(command.as_raw());
    // SAFETY: the number is the contract's, open since the start and closed by nobody.
    let control = unsafe { BorrowedFd::borrow_raw(descriptor::CONTROL) };
    let (mut killed, mut over_before) = (None, false);
    loop {
        while let Ok(Some(_)) = ends.read_signal() {}
        if let Some(status) = reap(command, &mut hold, keeper) {
            return (status, killed.unwrap_or(0));
        }
        let mut ready = vec![PollFd::new(ends.as_fd(), PollFlags::POLLIN), PollFd::new(control, PollFlags::POLLIN)];
        // Once everything is being killed there is nothing more to be learnt from it.
        ready.extend(over.iter().filter(|_| killed.is_none()).map(|over| PollFd::new(over.as_fd(), PollFlags::POLLIN)));
        // What forks on while it is searched for is searched for again.
        let wait = if killed.is_some() { keep::again() } else { PollTimeout::NONE };
        if poll(&mut ready, wait).is_err() {
            continue;
        }
        let said = |number: usize| ready.get(number).is_some_and(|one| one.any().unwrap_or(false));
        let mut kill = killed.is_some();
        if said(1) {
            match kernel::read_byte(descriptor::CONTROL) {
                Some(control::TERM) => keep::ask(keeper),
                Some(control::KILL) | None => kill = true,
                Some(_) => {}
            }
        }
        // It has ended, and the look above did not find it: whoever traces it is told first (ptrace(2)) and does not
        // listen. What is left behind, the tracer too, is ended anyway.
        kill |= said(2) && over_before;
        over_before = said(2);
        if kill {
            // The command itself is among them: nobody has reaped it.
            killed.get_or_insert_with(|| keep::count(keeper).saturating_sub(1));
            keep::end(keeper, Signal::SIGKILL);
        }
    }
}

/// Takes what waitpid(2) has: reaps what has ended, lets what has stopped go on; the status of `command` if it
/// was among them. A zombie counts against RLIMIT_NPROC, so this happens at once.
fn reap(command: Pid, hold: &mut Option<Hold>, keeper: Keeper) -> Option<i32> {
    while let Ok(Some((thread, status))) = kernel::wait(libc::WNOHANG) {
        if libc::WIFSTOPPED(status) {
            if let Some(held) = hold
                && let Err(Swapped { after_something_ran }) = held.stopped(thread, status)
            {
                let errno = if after_something_ran { Errno::EBUSY } else { Errno::ESTALE };
                report(Record::Failed(Step::Bound, errno as i32));
                keep::end(keeper, Signal::SIGKILL);
                *hold = None;
            }
            continue;
        }
        if let Some(held) = hold {
            held.gone(thread);
        }
        if thread == command.as_raw() {
            return Some(status);
        }
    }
    None
}

/// Ends what the command left behind and reaps it; returns how many there were.
fn end_the_rest(keeper: Keeper) -> u32 {
    // What ended together with the command is not left behind.
    while let Ok(Some(_)) = kernel::wait(libc::WNOHANG) {}
    let left = keep::count(keeper);
    if left > 0 {
        keep::end_all(keeper);
    }
    left
}

fn used() -> (u64, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (0, 0) };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    (u64::try_from(micros).unwrap_or(0), u64::try_from(usage.max_rss()).unwrap_or(0))
}
