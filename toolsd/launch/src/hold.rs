//! Holds the command back until it has opened its bound content, and shows that it opened that and no other.
//!
//! Bound content is a mount over a path. A rename of that path in another mount namespace takes the mount away
//! for good (mount_namespaces(7)), at any moment up to the open. But it never comes back: a mount that is
//! still there *after* an open was there *at* the open. So the command is traced (ptrace(2)), and stopped after
//! every open and exec, before it can read one byte of what it opened; if the mount is gone by then, nothing
//! goes on. Once every bound file was opened, the trace ends; what is open stays what it is.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt};

use nix::{errno::Errno, libc, unistd::Pid};
use salaam_launch::plan::Bound;

/// Stops after which the trace ends although something was not opened: two per system call, ten microseconds
/// each. What is opened later than that is guarded against other commands only (toolsd, `traffic`).
const MOST_STOPS: u32 = 200_000;

/// The trace of one command.
#[derive(Debug)]
pub(crate) struct Hold {
    waiting: Vec<Waiting>,
    /// Every traced thread, and whether it is in an open.
    traced: HashMap<i32, bool>,
    stops: u32,
    /// What was opened stays under guard: it may be opened again.
    to_the_end: bool,
    /// Something ran beside the first process: what was done cannot be called nothing.
    forked: bool,
}

#[derive(Debug)]
struct Waiting {
    bound: Bound,
    device: u64,
    inode: u64,
}

/// The mount over a bound path is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swapped {
    /// More than the first process had run by then.
    pub(crate) after_something_ran: bool,
}

impl Hold {
    /// Traces `child`, which has not gone on yet, until everything was opened or `to_the_end`. Relative paths are taken from the working directory.
    pub(crate) fn seize(child: Pid, bound: Vec<Bound>, to_the_end: bool) -> Result<Self, Errno> {
        let waiting = bound.into_iter().map(Waiting::identify).collect::<Result<Vec<_>, _>>()?;
        const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_EXITKILL;
        request(libc::PTRACE_SEIZE, child.as_raw(), OPTIONS)?;
        request(libc::PTRACE_INTERRUPT, child.as_raw(), 0)?;
        Ok(Self { waiting, traced: HashMap::from([(child.as_raw(), false)]), stops: 0, to_the_end, forked: false })
    }

    /// A thread is gone.
    pub(crate) fn gone(&mut self, thread: i32) {
        self.traced.remove(&thread);
    }

    /// A thread has stopped, as waitpid(2) says: judges, and lets it go on.
    pub(crate) fn stopped(&mut self, thread: i32, status: i32) -> Result<(), Swapped> {
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        self.stops = self.stops.saturating_add(1);
        let (mut deliver, mut group_stop) = (0, false);
        match (signal, event) {
            (SYSCALL_STOP, 0) => self.system_call(thread)?,
            (_, libc::PTRACE_EVENT_EXEC) => {
                self.check()?;
                self.opened(thread, "exe");
            }
            (_, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => self.forked = true,
            (libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU, libc::PTRACE_EVENT_STOP) => {
                group_stop = true
            }
            // The first stop of a thread, or its group goes on.
            (_, libc::PTRACE_EVENT_STOP) => {}
            (signal, 0) => deliver = signal,
            (_, _) => {}
        }
        let over = !self.to_the_end && (self.waiting.is_empty() || self.stops > MOST_STOPS);
        if over {
            let _ = request(libc::PTRACE_DETACH, thread, deliver);
            self.traced.remove(&thread);
            // The others stop once more, and then go for good.
            for other in self.traced.keys() {
                let _ = request(libc::PTRACE_INTERRUPT, *other, 0);
            }
        } else {
            self.traced.entry(thread).or_default();
            // Stopped by job control it stays stopped until SIGCONT, which is one more stop here.
            let go_on = if group_stop { libc::PTRACE_LISTEN } else { libc::PTRACE_SYSCALL };
            let _ = request(go_on, thread, deliver);
        }
        Ok(())
    }

    fn system_call(&mut self, thread: i32) -> Result<(), Swapped> {
        // A thread that is gone has no information; it says so by itself.
        let Ok(information) = nix::sys::ptrace::syscall_info(Pid::from_raw(thread)) else { return Ok(()) };
        let in_open = self.traced.entry(thread).or_default();
        match information.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY | libc::PTRACE_SYSCALL_INFO_SECCOMP => {
                // SAFETY: the union holds `entry` when `op` says so.
                *in_open = is_open(unsafe { information.u.entry.nr });
            }
            libc::PTRACE_SYSCALL_INFO_EXIT if *in_open => {
                *in_open = false;
                // SAFETY: the union holds `exit` when `op` says so.
                let number = unsafe { information.u.exit.sval };
                if number >= 0 {
                    self.check()?;
                    self.opened(thread, &format!("fd/{number}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Every mount that matters is still there.
    fn check(&self) -> Result<(), Swapped> {
        let intact = self.waiting.iter().all(Waiting::is_there);
        if intact { Ok(()) } else { Err(Swapped { after_something_ran: self.forked }) }
    }

    /// Crosses off what `thread` has opened under that name in /proc.
    fn opened(&mut self, thread: i32, name: &str) {
        // The command's own thread cannot be looked into where it has made itself not dumpable: then it stays
        // under the hold.
        if self.to_the_end {
            return;
        }
        let Ok(opened) = fs::metadata(format!("/proc/{thread}/{name}")) else { return };
        self.waiting.retain(|waiting| (waiting.device, waiting.inode) != (opened.dev(), opened.ino()));
    }
}

impl Waiting {
    fn identify(bound: Bound) -> Result<Self, Errno> {
        let placed = crate::confine::stat(&bound.placed)?;
        let waiting = Self { bound, device: placed.dev(), inode: placed.ino() };
        // On the workspace's own device it is what lies below the mount.
        let workspace = crate::confine::stat(c".")?;
        if waiting.is_there() && waiting.device != workspace.dev() { Ok(waiting) } else { Err(Errno::ESTALE) }
    }

    fn is_there(&self) -> bool {
        [&self.bound.path, &self.bound.placed].into_iter().all(|path| {
            crate::confine::stat(path)
                .is_ok_and(|seen| (seen.dev(), seen.ino(), seen.len()) == (self.device, self.inode, self.bound.size))
        })
    }
}

/// SIGTRAP with the bit that PTRACE_O_TRACESYSGOOD sets.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

fn is_open(number: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_open as u64 {
        return true;
    }
    number == libc::SYS_openat as u64 || number == libc::SYS_openat2 as u64
}

fn request(request: libc::c_uint, thread: i32, data: i32) -> Result<(), Errno> {
    let (no_address, data) = (std::ptr::null_mut::<libc::c_void>(), data as usize as *mut libc::c_void);
    // SAFETY: these requests take the data as a number and write no memory of this process.
    match unsafe { libc::ptrace(request, thread, no_address, data) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}
