//! salaam-launch: the last program before a command, inside bwrap, static, with one thread.
//!
//! It reads the plan, waits for the word to go, and forks. The child takes on every layer and becomes the
//! command. The parent stays outside the child's landlock domain, holds it back until it has opened its bound
//! content, reaps, relays TERM, and reports the end.

#![allow(unsafe_code, reason = "fork, prctl and close_range have no safe wrapper; each block says why it holds")]

mod confine;
mod hold;
mod keep;
mod kernel;
mod start;
mod tries;
mod tries_kernel;
mod watch;

use std::process::ExitCode;

use hold::Hold;
use nix::{
    errno::Errno,
    sys::signal,
    unistd::{ForkResult, Pid},
};
use salaam_launch::{
    descriptor,
    plan::{self, Bound, Keeper, Plan},
    report::{Record, Step},
};

/// Left with when nothing was exec'd; the reason is in the report.
const NOTHING_RAN: u8 = 125;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err((step, errno)) => {
            report(Record::Failed(step, errno as i32));
            ExitCode::from(NOTHING_RAN)
        }
    }
}

fn run() -> Result<ExitCode, (Step, Errno)> {
    let plan = read_plan().map_err(|errno| (Step::Plan, errno))?;
    let keeper = plan.keeper;
    // In a namespace it ends every process that it can signal: right for the second process of a namespace of its
    // own, and nowhere else.
    if keeper == Keeper::Namespace && (nix::unistd::getpid().as_raw(), nix::unistd::getppid().as_raw()) != (2, 1) {
        return Err((Step::Plan, Errno::EPERM));
    }
    if plan.cgroup {
        // 0 is whoever writes it; what it forks is in it too.
        kernel::write_all(descriptor::CGROUP, b"0").map_err(|errno| (Step::Limits, errno))?;
    }
    kernel::close_from(if plan.script { descriptor::SCRIPT + 1 } else { descriptor::SCRIPT })
        .map_err(|errno| (Step::Plan, errno))?;
    nix::sys::prctl::set_no_new_privs().map_err(|errno| (Step::NoNewPrivileges, errno))?;
    nix::sys::prctl::set_child_subreaper(true).map_err(|errno| (Step::Fork, errno))?;
    // Blocked before the fork, so that no end of a child is missed; the command gets an empty mask.
    signal::SigSet::all().thread_block().map_err(|errno| (Step::Fork, errno))?;
    if !watch::wait_for_go() {
        return Ok(ExitCode::from(NOTHING_RAN));
    }
    nix::unistd::chdir(plan.directory.as_c_str()).map_err(|errno| (Step::Directory, errno))?;
    let (held_back, let_go) = nix::unistd::pipe().map_err(|errno| (Step::Fork, errno))?;
    let (bound, to_the_end) = (plan.bound.clone(), plan.guard_to_the_end);
    // Installed, this program is readable by nobody, and such a process can neither be traced, not even by its own
    // parent (ptrace(2)), nor write its files in /proc (proc(5)). The child must do both; nothing but these two runs
    // in here yet.
    nix::sys::prctl::set_dumpable(true).map_err(|errno| (Step::Fork, errno))?;
    // SAFETY: this program has one thread, so the child may do anything that the parent may.
    match unsafe { nix::unistd::fork() }.map_err(|errno| (Step::Fork, errno))? {
        ForkResult::Child => {
            drop(let_go);
            // Ends when the parent has let go.
            let _ = nix::unistd::read(&held_back, &mut [0]);
            drop(held_back);
            let (step, errno) = match confine::become_command(plan) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            report(Record::Failed(step, errno as i32));
            Ok(ExitCode::from(NOTHING_RAN))
        }
        ForkResult::Parent { child } => {
            drop((plan, held_back));
            let hold = match hold_back(child, bound, to_the_end) {
                Ok(hold) => hold,
                Err((step, errno)) => {
                    let _ = signal::kill(child, signal::Signal::SIGKILL);
                    report(Record::Failed(step, errno as i32));
                    None
                }
            };
            drop(let_go);
            let ended = watch::until_the_end(child, hold, keeper);
            report(Record::Ended(ended));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Makes this process one that the command cannot look into, and takes the command under its hold where it has
/// bound content.
fn hold_back(child: Pid, bound: Vec<Bound>, to_the_end: bool) -> Result<Option<Hold>, (Step, Errno)> {
    let hold = if bound.is_empty() {
        None
    } else {
        Some(Hold::seize(child, bound, to_the_end).map_err(|errno| (Step::Bound, errno))?)
    };
    // The command has the same uid: without this it could take over the report pipe by ptrace. Not before the
    // fork: the child would have it too, and could not be held.
    nix::sys::prctl::set_dumpable(false).map_err(|errno| (Step::NoNewPrivileges, errno))?;
    Ok(hold)
}

fn read_plan() -> Result<Plan, Errno> {
    let bytes = kernel::read_whole(descriptor::PLAN, plan::MAX_BYTES)?;
    kernel::close(descriptor::PLAN);
    Plan::decode(&bytes).map_err(|plan::NotAPlan| Errno::EBADMSG)
}

/// Reports; if nobody listens any more there is nobody to tell.
fn report(record: Record) {
    let _ = kernel::write_all(descriptor::REPORT, &record.encode());
}
