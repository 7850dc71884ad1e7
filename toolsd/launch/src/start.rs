//! What a process inherits beside descriptors and limits, made ordinary: a command starts the same whoever started the
//! service, and with nothing by which it could take more than its turn.

use nix::{errno::Errno, libc};
use salaam_launch::COMMAND_NICENESS;

/// What the kernel gives a process that never asked (prctl(2), PR_SET_TIMERSLACK).
const TIMER_SLACK_NS: libc::c_ulong = 50_000;
/// No randomised addresses switched off, no executable data: personality(2).
const PLAIN: libc::c_ulong = 0;

/// Gives up a real-time class, personality and timer slack, and lowers the priority.
pub(crate) fn ordinary() -> Result<(), Errno> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: takes an integer.
    match unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => {}
        // A real-time process that never waits is the end of a small machine.
        // SAFETY: the pointer is to a structure of this frame.
        _ => done(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const none) })?,
    }
    // SAFETY: takes an integer.
    done(unsafe { libc::personality(PLAIN) })?;
    // SAFETY: takes integers.
    done(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) })?;
    // A command that takes every processor leaves the executor and others their turn. Less than this account has can
    // always be asked for; where it is had already, so be it.
    // SAFETY: takes integers.
    let lower = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }.max(COMMAND_NICENESS);
    // SAFETY: as above.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, lower) };
    Ok(())
}

/// Ignoring a signal is inherited through exec, and Rust's start-up ignores SIGPIPE: `yes | head` would not end as it
/// does in every shell. posix_spawn(3) of the C library leaves its own two ignored; the kernel is asked, since the
/// library refuses to touch those.
pub(crate) fn default_signals() {
    // The kernel's structure on every architecture is smaller, and all zeroes is the default.
    let default = [0u64; 8];
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: the pointer is to memory of this frame that is larger than what is read; no handler of this program
        // is replaced, it has none. KILL and STOP are refused, and need no default.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u8>(), SIGSET_BYTES)
        };
    }
}

/// _NSIG of the kernel.
const LAST_SIGNAL: libc::c_int = 64;
/// sizeof(sigset_t) of the kernel.
const SIGSET_BYTES: usize = 8;

fn done(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}
