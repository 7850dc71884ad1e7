//! The system calls that are left, a line each with who needs it. Everything else is EPERM.
//!
//! An allow list: a call that a later kernel adds is denied without anyone's doing. The numbers of another
//! architecture (int 0x80) kill the process; those of x32 are on no list. The filter is the same in every
//! build. Nothing on it makes, connects or names a socket, opens a file by name (the reader: openat2, which
//! landlock bounds), makes a process or touches another one.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::error::ConfineError;

/// Which process is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The agent loop of one session.
    Worker,
    /// The reader of one workspace.
    Reader,
}

/// When a call is let through.
enum When {
    /// Always.
    Any,
    /// One argument has one of these values; the kernel reads it as an int.
    One(u8, &'static [u64]),
    /// One argument has none of the bits and another has all of them.
    Bits { none: (u8, u64), all: (u8, u64) },
}
use When::{Any, Bits, One};

const EXECUTABLE: (u8, u64) = (2, libc::PROT_EXEC as u64);
const ANONYMOUS: (u8, u64) = (3, libc::MAP_ANONYMOUS as u64);
const NOTHING: (u8, u64) = (2, 0);

/// Call, when it is let through, who needs it.
#[rustfmt::skip]
const BOTH: &[(c_long, When, &str)] = &[
    (libc::SYS_read, Any, "messages of the service"),
    (libc::SYS_write, Any, "messages to the service, lines for its log"),
    (libc::SYS_writev, Any, "the standard library, where it writes two parts at once"),
    (libc::SYS_pread64, Any, "the script; file contents: never through a mapping, which a truncation turns into SIGBUS"),
    (libc::SYS_lseek, Any, "how long a sealed script is"),
    (libc::SYS_close, Any, "descriptors that are done with"),
    (libc::SYS_fcntl, One(1, &[libc::F_GETFD as u64, libc::F_SETFD as u64, libc::F_GETFL as u64, libc::F_GET_SEALS as u64]), "the seals of a script; the C library, when it reads a directory; the standard library's check in debug builds"),
    (libc::SYS_mmap, Bits { none: EXECUTABLE, all: ANONYMOUS }, "the allocator, for memory of no file in which no code can be"),
    (libc::SYS_mprotect, Bits { none: EXECUTABLE, all: NOTHING }, "the allocator, when the heap grows"),
    (libc::SYS_mremap, Any, "the allocator, when a buffer grows"),
    (libc::SYS_munmap, Any, "the allocator"),
    (libc::SYS_madvise, Any, "the allocator, when it gives memory back"),
    (libc::SYS_brk, Any, "the allocator"),
    (libc::SYS_futex, Any, "locks of the standard library (its output)"),
    (libc::SYS_getrandom, Any, "seeds of hash maps"),
    (libc::SYS_clock_gettime, Any, "time, where there is no vDSO"),
    (libc::SYS_rt_sigprocmask, Any, "the C library, when it ends the process"),
    (libc::SYS_sigaltstack, Any, "the standard library, when main returns"),
    (libc::SYS_rt_sigreturn, Any, "the way back from a signal handler"),
    (libc::SYS_restart_syscall, Any, "a call that a stop interrupted"),
    (libc::SYS_exit, Any, "the end"),
    (libc::SYS_exit_group, Any, "the end"),
];

#[rustfmt::skip]
const WORKER: &[(c_long, When, &str)] = &[
    (libc::SYS_recvmsg, Any, "descriptors that the service hands over"),
];

#[rustfmt::skip]
const READER: &[(c_long, When, &str)] = &[
    (libc::SYS_openat2, Any, "files beneath the root; landlock knows no other place"),
    (libc::SYS_getdents64, Any, "directories"),
    (libc::SYS_fstat, Any, "what was opened: a regular file, who may read it"),
    (libc::SYS_newfstatat, Bits { none: NOTHING, all: (3, libc::AT_EMPTY_PATH as u64) }, "fstat of the C library"),
    (libc::SYS_statx, Bits { none: NOTHING, all: (2, libc::AT_EMPTY_PATH as u64) }, "the same of the standard library"),
    (libc::SYS_fgetxattr, Any, "the access list of what was opened"),
    (libc::SYS_readlinkat, Any, "where a link in the workspace leads; it is followed by openat2, step by step"),
];

/// Loads the filter of that role into this process and returns how many instructions it has.
///
/// # Errors
/// An architecture without a filter, or a kernel that refuses it.
pub fn load(role: Role) -> Result<usize, ConfineError> {
    let program = program(role)?;
    seccompiler::apply_filter(&program).map_err(ConfineError::Filter)?;
    Ok(program.len())
}

fn program(role: Role) -> Result<BpfProgram, ConfineError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(ConfineError::Architecture)?;
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    for (call, when, _) in table(role) {
        rules.entry(*call).or_default().extend(compile(when).map_err(ConfineError::Rules)?);
    }
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, deny, SeccompAction::Allow, architecture).map_err(ConfineError::Rules)?;
    BpfProgram::try_from(filter).map_err(ConfineError::Rules)
}

fn table(role: Role) -> impl Iterator<Item = &'static (c_long, When, &'static str)> {
    let own = match role {
        Role::Worker => WORKER,
        Role::Reader => READER,
    };
    BOTH.iter().chain(own)
}

fn compile(when: &When) -> Result<Vec<SeccompRule>, BackendError> {
    let masked = |argument, mask, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
    };
    match when {
        Any => Ok(Vec::new()),
        One(argument, values) => {
            let equal =
                |value: &u64| SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value);
            values.iter().map(|value| SeccompRule::new(vec![equal(value)?])).collect()
        }
        Bits { none, all } => {
            Ok(vec![SeccompRule::new(vec![masked(none.0, none.1, 0)?, masked(all.0, all.1, all.1)?])?])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_filter_that_fits_the_kernel() {
        for role in [Role::Worker, Role::Reader] {
            let instructions = program(role).unwrap().len();
            assert!((20..4096).contains(&instructions), "{role:?}: {instructions}, BPF_MAXINSNS is 4096");
        }
    }

    #[test]
    fn a_call_has_one_line_with_its_reason() {
        for role in [Role::Worker, Role::Reader] {
            let calls: Vec<_> = table(role).map(|(call, ..)| *call).collect();
            let mut once = calls.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), calls.len(), "a line without condition makes another one of the call void");
            assert!(table(role).all(|(.., why)| !why.is_empty()));
        }
    }

    #[test]
    fn nothing_that_makes_a_socket_a_process_or_reaches_one_is_on_a_list() {
        let never = [
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_sendmmsg,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_pidfd_send_signal,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_tgkill,
            libc::SYS_prlimit64,
            libc::SYS_openat,
            libc::SYS_io_uring_setup,
            libc::SYS_bpf,
            libc::SYS_prctl,
            libc::SYS_seccomp,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_ioctl,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_sched_setaffinity,
            libc::SYS_setpriority,
            libc::SYS_keyctl,
            libc::SYS_userfaultfd,
        ];
        for role in [Role::Worker, Role::Reader] {
            for call in never {
                assert!(table(role).all(|(listed, ..)| *listed != call), "{role:?}: {call}");
            }
        }
        assert!(table(Role::Worker).all(|(listed, ..)| *listed != libc::SYS_openat2));
    }
}
