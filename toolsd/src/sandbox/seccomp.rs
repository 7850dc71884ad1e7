//! The system calls that no command gets, each with its reason and with who would miss it.
//!
//! A deny list on purpose: commands are compilers, test suites and interpreters, and what they need cannot be
//! listed. What a later kernel adds is absent until somebody has read what it does. Files, network and other processes are the business of namespaces and landlock; this filter takes
//! away the parts of the kernel that widen those, or that only an attack asks for. It is the same in every
//! build. ptrace stays: debuggers work, and it reaches nothing outside the command's pid namespace and
//! landlock domain (salaam-launch is not dumpable).

use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// seccompiler knows x86_64, aarch64 and riscv64.
    #[error("there is no seccomp program for {}", std::env::consts::ARCH)]
    Architecture(#[source] seccompiler::BackendError),
    /// A rule does not compile.
    #[error("the seccomp rules do not compile")]
    Rules(#[source] seccompiler::BackendError),
}

/// When a call is denied.
enum When {
    /// Always.
    Always,
    /// An argument has any of these bits.
    AnyBit(u8, u64),
    /// All bits of one argument and any of another (an open that creates, with a mode).
    Bits((u8, u64), (u8, u64)),
    /// An argument, under a mask, has one of these values.
    Masked(u8, u64, &'static [u64]),
    /// An argument is none of these values.
    NoneOf(u8, &'static [u64]),
    /// The first argument is this, and the third none of these.
    Protocol(u64, &'static [u64]),
}
use When::{Always, AnyBit, Bits, Masked, NoneOf, Protocol};

/// What makes a namespace. CLONE_NEWTIME shares its bit with the exit signal of clone(2) and only counts for
/// unshare(2).
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;
const NEW_TIME: u64 = 0x80;
const SETUID: u64 = 0o4000;
const CREATES: u64 = libc::O_CREAT as u64;
const NAMELESS: u64 = 0o20000000;
const DEVICES: &[u64] = &[0o020000, 0o060000];
const FORMAT: u64 = 0o170000;
const FAMILIES: &[u64] = &[libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];
/// What the kernel reads of an argument that is an int.
const INT: u64 = 0xffff_ffff;
/// bwrap's and salaam-launch's numbers in the command's pid namespace.
const WATCHERS: &[u64] = &[1, 2];
const NETLINK: u64 = libc::AF_NETLINK as u64;
/// NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_KOBJECT_UEVENT.
const NETLINK_PROTOCOLS: &[u64] = &[0, 4, 15];
const INET: u64 = libc::AF_INET as u64;
const INET6: u64 = libc::AF_INET6 as u64;
/// The family's own, ICMP, TCP, UDP, ICMPv6, MPTCP.
const INET_PROTOCOLS: &[u64] = &[0, 1, 6, 17, 58, 262];
const TERMINAL: &[u64] = &[0x5412, 0x541c, 0x5423];

/// Call, when it is denied with EPERM, why, and who would need it.
#[rustfmt::skip]
const DENIED: &[Denied] = &[
    (libc::SYS_clone, AnyBit(0, NAMESPACES), "a namespace of one's own opens kernel code that expects an administrator", "nested containers, Chromium's own sandbox"),
    (libc::SYS_unshare, AnyBit(0, NAMESPACES | NEW_TIME), "as clone", "nested containers, unshare(1)"),
    (libc::SYS_setns, Always, "enters namespaces", "nsenter"),
    (libc::SYS_mount, Always, "changes what paths mean", "nobody without a user namespace"),
    (libc::SYS_umount2, Always, "uncovers what is protected by a mount", "nobody without a user namespace"),
    (libc::SYS_move_mount, Always, "as mount", "as mount"),
    (libc::SYS_open_tree, Always, "as mount", "as mount"),
    (OPEN_TREE_ATTR, Always, "as mount", "as mount"),
    (libc::SYS_fsopen, Always, "as mount", "as mount"),
    (libc::SYS_fsconfig, Always, "as mount", "as mount"),
    (libc::SYS_fsmount, Always, "as mount", "as mount"),
    (libc::SYS_fspick, Always, "as mount", "as mount"),
    (libc::SYS_mount_setattr, Always, "makes a read-only mount writable", "as mount"),
    (libc::SYS_pivot_root, Always, "as mount", "as mount"),
    (libc::SYS_socket, NoneOf(0, FAMILIES), "AF_VSOCK is not per network namespace, AF_PACKET and AF_ALG are attack surface", "virtual machine agents, packet capture"),
    (libc::SYS_socket, Protocol(NETLINK, NETLINK_PROTOCOLS), "each is an interface of another part of the kernel (netfilter, xfrm, audit, crypto)", "nft, ip xfrm, auditctl: as administrators"),
    (libc::SYS_socket, Protocol(INET, INET_PROTOCOLS), "SCTP, L2TP, SMC and others load modules of their own", "telephony stacks"),
    (libc::SYS_socket, Protocol(INET6, INET_PROTOCOLS), "as with AF_INET", "as with AF_INET"),
    (libc::SYS_socketpair, NoneOf(0, FAMILIES), "as socket", "as socket"),
    (libc::SYS_ioctl, Masked(1, INT, TERMINAL), "TIOCSTI and TIOCLINUX type into a terminal, TIOCSETD loads line disciplines", "slattach"),
    (libc::SYS_prlimit64, NoneOf(0, &[0]), "limits of another process of the account can be lowered until it fails, salaam-launch's too: the landlock domain does not stop that", "prlimit --pid"),
    (libc::SYS_setpriority, NoneOf(0, &[libc::PRIO_PROCESS as u64]), "reaches those who watch the command, who are of the same account", "renice --user, renice --pgrp"),
    (libc::SYS_setpriority, Masked(1, INT, WATCHERS), "slows down salaam-launch, which ends the command and says how it ended", "nobody"),
    (libc::SYS_ioprio_set, NoneOf(0, &[IOPRIO_WHO_PROCESS]), "as setpriority", "ionice --uid, ionice --pgid"),
    (libc::SYS_ioprio_set, Masked(1, INT, WATCHERS), "as setpriority", "nobody"),
    (libc::SYS_ioprio_set, Masked(2, IOPRIO_LEVEL, IOPRIO_RAISED), "goes before the disk accesses of other commands and of the service: any account may raise itself", "ionice -n 0 to -n 3"),
    (libc::SYS_sched_setaffinity, Masked(0, INT, WATCHERS), "as setpriority", "nobody"),
    (libc::SYS_sched_setscheduler, Masked(0, INT, WATCHERS), "as setpriority", "nobody"),
    (libc::SYS_sched_setparam, Masked(0, INT, WATCHERS), "as setpriority", "nobody"),
    (libc::SYS_sched_setattr, Masked(0, INT, WATCHERS), "as setpriority", "nobody"),
    (libc::SYS_bpf, Always, "loads programs into the kernel", "tracing tools"),
    (libc::SYS_perf_event_open, Always, "large attack surface, reads other processes' counters", "perf"),
    (libc::SYS_userfaultfd, Always, "holds the kernel at a page fault, the usual help of an exploit", "live migration, some garbage collectors (they fall back)"),
    (libc::SYS_keyctl, Always, "kernel keyrings are not per namespace and may hold credentials", "kinit with KEYRING caches"),
    (libc::SYS_add_key, Always, "as keyctl", "as keyctl"),
    (libc::SYS_request_key, Always, "as keyctl", "as keyctl"),
    (libc::SYS_open_by_handle_at, Always, "opens a file by number, past every directory", "backup tools, as root"),
    (libc::SYS_kexec_load, Always, "replaces the kernel", "administrators"),
    (libc::SYS_init_module, Always, "loads code into the kernel", "administrators"),
    (libc::SYS_finit_module, Always, "as init_module", "administrators"),
    (libc::SYS_delete_module, Always, "as init_module", "administrators"),
    (libc::SYS_reboot, Always, "stops the machine", "administrators"),
    (libc::SYS_swapon, Always, "changes the machine's memory", "administrators"),
    (libc::SYS_swapoff, Always, "as swapon", "administrators"),
    (libc::SYS_acct, Always, "writes to a file of the kernel's choice", "administrators"),
    (libc::SYS_quotactl, Always, "changes quotas", "administrators"),
    (QUOTACTL_FD, Always, "as quotactl", "administrators"),
    (libc::SYS_adjtimex, Always, "sets the clock's rate", "time services"),
    (libc::SYS_clock_adjtime, Always, "as adjtimex", "time services"),
    (libc::SYS_fanotify_init, Always, "watches what everybody opens where it is allowed; attack surface where it is not", "virus scanners"),
    (libc::SYS_syslog, Always, "reads the kernel's log, with addresses", "dmesg"),
    (libc::SYS_settimeofday, Always, "sets the clock", "administrators"),
    (libc::SYS_clock_settime, Always, "sets the clock", "administrators"),
    (libc::SYS_fchmod, AnyBit(1, SETUID), "a setuid file lends this account to whoever runs it", "package builds (fakeroot)"),
    (libc::SYS_fchmodat, AnyBit(2, SETUID), "as fchmod", "as fchmod"),
    (FCHMODAT2, AnyBit(2, SETUID), "as fchmod", "as fchmod"),
    (libc::SYS_openat, Bits((2, CREATES), (3, SETUID)), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_openat, Bits((2, NAMELESS), (3, SETUID)), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_mknodat, AnyBit(2, SETUID), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_mknodat, Masked(2, FORMAT, DEVICES), "a device node is a way around every path", "image builds (fakeroot)"),
];

/// fchmodat2(2), Linux 6.6, the same number on every architecture.
const FCHMODAT2: c_long = 452;
/// quotactl_fd(2), Linux 5.14, likewise.
const QUOTACTL_FD: c_long = 443;
/// open_tree_attr(2), Linux 6.15, likewise.
const OPEN_TREE_ATTR: c_long = 467;

/// Calls that exist on x86_64 only.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[Denied] = &[
    (libc::SYS_chmod, AnyBit(1, SETUID), "as fchmod", "as fchmod"),
    (libc::SYS_creat, AnyBit(1, SETUID), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_open, Bits((1, CREATES), (2, SETUID)), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_open, Bits((1, NAMELESS), (2, SETUID)), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_mknod, AnyBit(1, SETUID), "as fchmod, from birth", "as fchmod"),
    (libc::SYS_mknod, Masked(1, FORMAT, DEVICES), "a device node is a way around every path", "image builds (fakeroot)"),
    (libc::SYS_kexec_file_load, Always, "replaces the kernel", "administrators"),
    (libc::SYS_iopl, Always, "gives access to hardware ports", "administrators"),
    (libc::SYS_ioperm, Always, "gives access to hardware ports", "administrators"),
    (libc::SYS_modify_ldt, Always, "segment tables, attack surface", "Wine with 16-bit programs"),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[Denied] = &[];

/// Calls that are said not to exist, so that callers fall back.
#[rustfmt::skip]
const ABSENT: &[Absent] = &[
    (libc::SYS_clone3, "its flags lie in memory, where a filter cannot see them", "nobody: glibc falls back to clone"),
    (libc::SYS_openat2, "as clone3: it makes setuid files by a mode that lies in memory", "nobody: callers fall back to openat where there is no Linux 5.6"),
    (libc::SYS_io_uring_setup, "does file and network calls past this filter", "databases and runtimes; they fall back to epoll"),
    (libc::SYS_io_uring_enter, "as io_uring_setup", "as io_uring_setup"),
    (libc::SYS_io_uring_register, "as io_uring_setup", "as io_uring_setup"),
];

/// The last call that was read about for this list: file_setattr(2), Linux 6.17, the same number on every architecture
/// that has a program here. Of those since Linux 5.12 that are not named above: landlock and mseal only restrict,
/// memfd_secret counts as locked memory, process_madvise and process_mrelease need the right to trace, statmount and
/// listmount tell of this mount namespace only, setxattrat, file_setattr and lsm_set_self_attr do what older calls do.
const LAST_READ: u32 = 469;

/// The x32 calls of x86_64 carry this bit; a filter that compares plain numbers misses them all.
const X32: u32 = 0x4000_0000;

/// Calls on other processes of the account that neither its own pid namespace nor its landlock domain denies: what a
/// bare command does not get where there is no such namespace.
#[rustfmt::skip]
const BARE: &[Denied] = &[
    (libc::SYS_prlimit64, NoneOf(0, &[0]), "limits of the executor can be lowered until it fails", "prlimit --pid"),
    (libc::SYS_setpriority, NoneOf(0, &[libc::PRIO_PROCESS as u64]), "slows down all processes of the account", "renice --user"),
    (libc::SYS_setpriority, NoneOf(1, &[0]), "slows down the executor", "renice of another process"),
    (libc::SYS_ioprio_set, NoneOf(0, &[IOPRIO_WHO_PROCESS]), "as setpriority", "ionice --uid"),
    (libc::SYS_ioprio_set, NoneOf(1, &[0]), "as setpriority", "ionice --pid"),
    (libc::SYS_sched_setaffinity, NoneOf(0, &[0]), "binds the executor to one busy processor", "taskset --pid"),
    (libc::SYS_sched_setscheduler, NoneOf(0, &[0]), "makes the executor run only when nothing else does", "chrt --pid"),
    (libc::SYS_sched_setparam, NoneOf(0, &[0]), "as sched_setscheduler", "chrt --pid"),
    (libc::SYS_sched_setattr, NoneOf(0, &[0]), "as sched_setscheduler", "chrt --pid"),
];

/// Of linux/ioprio.h.
const IOPRIO_WHO_PROCESS: u64 = 1;
/// Class and level of an I/O priority, without the hints between them.
const IOPRIO_LEVEL: u64 = 0xe007;
/// Best effort (class 2) above level 4, which is the usual one.
const IOPRIO_RAISED: &[u64] = &[2 << 13, (2 << 13) | 1, (2 << 13) | 2, (2 << 13) | 3];

/// Compiles the program of a sandboxed command, as the kernel's `sock_filter` records.
pub fn program() -> Result<Vec<u8>, FilterError> {
    compiled(DENIED.iter().chain(OLDER), ABSENT, Some(LAST_READ))
}

/// The program of a bare command without a pid namespace.
pub fn bare_program() -> Result<Vec<u8>, FilterError> {
    compiled(BARE.iter(), &[], None)
}

type Denied = (c_long, When, &'static str, &'static str);
type Absent = (c_long, &'static str, &'static str);

fn compiled<'a>(
    list: impl Iterator<Item = &'a Denied>,
    absent: &[Absent],
    last: Option<u32>,
) -> Result<Vec<u8>, FilterError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(FilterError::Architecture)?;
    let mut rules = std::collections::BTreeMap::<i64, Vec<SeccompRule>>::new();
    for (call, when, _, _) in list {
        rules.entry(*call).or_default().extend(compile(when).map_err(FilterError::Rules)?);
    }
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, architecture).map_err(FilterError::Rules)?;
    let denied = BpfProgram::try_from(filter).map_err(FilterError::Rules)?;
    let mut program = Vec::new();
    prelude(&mut program, absent, last);
    for record in denied {
        instruction(&mut program, record.code, record.jt, record.jf, record.k);
    }
    Ok(program)
}

fn compile(when: &When) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let masked = |argument, mask: u64, value| {
        // Bits of the lower half are compared there alone: the upper one, of which the mask takes nothing, always fits,
        // and would be half of a program that the kernel checks, compiles and tries for each command.
        let length = if mask <= INT { SeccompCmpArgLen::Dword } else { SeccompCmpArgLen::Qword };
        SeccompCondition::new(argument, length, SeccompCmpOp::MaskedEq(mask), value)
    };
    match when {
        Always => Ok(Vec::new()),
        AnyBit(argument, bits) => {
            each_bit(*bits).map(|bit| SeccompRule::new(vec![masked(*argument, bit, bit)?])).collect()
        }
        Bits((first, all), (second, any)) => each_bit(*any)
            .map(|bit| SeccompRule::new(vec![masked(*first, *all, *all)?, masked(*second, bit, bit)?]))
            .collect(),
        Masked(argument, mask, values) => {
            values.iter().map(|value| SeccompRule::new(vec![masked(*argument, *mask, *value)?])).collect()
        }
        Protocol(family, protocols) => {
            let is = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *family);
            let other = |value: &u64| SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *value);
            Ok(vec![SeccompRule::new([is].into_iter().chain(protocols.iter().map(other)).collect::<Result<_, _>>()?)?])
        }
        // The kernel reads the family or the pid as an int, so the upper half must not make it look like another one.
        NoneOf(argument, values) => {
            let unequal =
                |value: &u64| SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *value);
            Ok(vec![SeccompRule::new(values.iter().map(unequal).collect::<Result<_, _>>()?)?])
        }
    }
}

fn each_bit(bits: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|shift| 1u64 << shift).filter(move |bit| bits & bit != 0)
}

/// What seccompiler cannot say: absent calls and the x32 range. Its own program follows and checks the
/// architecture first; so does this one, since numbers mean nothing before that.
fn prelude(program: &mut Vec<u8>, calls: &[Absent], last: Option<u32>) {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER_EQUAL: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const NUMBER: u32 = 0;
    let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    instruction(program, LOAD, 0, 0, ARCHITECTURE_OFFSET);
    instruction(program, JUMP_EQUAL, 1, 0, ARCHITECTURE);
    instruction(program, RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS);
    instruction(program, LOAD, 0, 0, NUMBER);
    if cfg!(target_arch = "x86_64") {
        instruction(program, JUMP_GREATER_EQUAL, 0, 1, X32);
        instruction(program, RETURN, 0, 0, absent);
    }
    if let Some(last) = last {
        instruction(program, JUMP_GREATER_EQUAL, 0, 1, last + 1);
        instruction(program, RETURN, 0, 0, absent);
    }
    for (call, _, _) in calls {
        instruction(program, JUMP_EQUAL, 0, 1, u32::try_from(*call).unwrap_or(u32::MAX));
        instruction(program, RETURN, 0, 0, absent);
    }
}

/// Where `arch` lies in struct seccomp_data.
const ARCHITECTURE_OFFSET: u32 = 4;
/// AUDIT_ARCH_* of linux/audit.h.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: u32 = 0xc000_00f3;

fn instruction(program: &mut Vec<u8>, code: u16, if_true: u8, if_false: u8, operand: u32) {
    program.extend_from_slice(&code.to_le_bytes());
    program.extend_from_slice(&[if_true, if_false]);
    program.extend_from_slice(&operand.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_compiles_and_fits_the_kernel() {
        for program in [program().unwrap(), bare_program().unwrap()] {
            assert_eq!(program.len() % 8, 0);
            assert!(program.len() / 8 < 4096, "BPF_MAXINSNS");
        }
    }

    /// What the beginning of a program makes of a call: it returns, or goes on to the rules.
    fn answer(program: &[u8], number: u32) -> Option<u32> {
        let mut at = 0;
        let mut loaded = 0;
        loop {
            let record = program.get(at * 8..at * 8 + 8)?;
            let code = u16::from_le_bytes([record[0], record[1]]);
            let operand = u32::from_le_bytes(record[4..].try_into().unwrap());
            let (yes, no) = (usize::from(record[2]), usize::from(record[3]));
            at += 1;
            match code {
                0x20 if operand == 4 => loaded = ARCHITECTURE,
                0x20 if operand == 0 => loaded = number,
                0x15 => at += if loaded == operand { yes } else { no },
                0x35 => at += if loaded >= operand { yes } else { no },
                0x06 => return Some(operand),
                _ => return None,
            }
        }
    }

    #[test]
    fn what_a_later_kernel_adds_is_absent() {
        let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let program = program().unwrap();
        for number in [LAST_READ + 1, 500, 1000, 0x3fff_ffff, X32, X32 | 39, u32::MAX] {
            assert_eq!(answer(&program, number), Some(absent), "{number}");
        }
        for number in [libc::SYS_getpid as u32, LAST_READ] {
            assert_ne!(answer(&program, number), Some(absent), "{number}");
        }
    }

    #[test]
    fn a_call_is_either_denied_always_or_under_conditions_never_both() {
        // A call that maps to no condition matches always; a second line with one would then be lost.
        for (call, when, why, needs) in DENIED.iter().chain(OLDER) {
            assert!(!why.is_empty() && !needs.is_empty());
            if matches!(when, Always) {
                assert_eq!(DENIED.iter().chain(OLDER).filter(|(other, ..)| other == call).count(), 1, "{call}");
            }
            assert!(ABSENT.iter().all(|(absent, ..)| absent != call));
        }
    }
}
