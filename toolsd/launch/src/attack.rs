//! The attacks that prove a sandbox on its host: what each tries, and with which errors it may be denied.
//!
//! Each is one small function of salaam-launch (its `try` module), run twice: outside, where it must succeed, and
//! where a command would be. What is denied with another error than these may be a broken attack, and is no proof.

use nix::libc;

/// One attack. The numbers go over the report pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[expect(missing_docs, reason = "`ATTACKS` says of each what it tries")]
pub enum Attack {
    ReadOutside,
    WriteOutside,
    ReadThroughProc,
    ReadThroughLink,
    HardLink,
    Tcp,
    Tcp6,
    Udp,
    AbstractSocket,
    PathSocket,
    SharedMemory,
    SharedSegment,
    Signal,
    Trace,
    Environment,
    CommandLine,
    RootOfProcess,
    Memory,
    ReadMemory,
    Descriptor,
    Priority,
    SignalLaunch,
    Limits,
    UserNamespace,
    UserNamespaceByClone,
    IoUring,
    Userfaultfd,
    Keyring,
    Vsock,
    Alg,
    Clone3,
    Calls32,
    CallsX32,
    Perf,
    Fanotify,
    TerminalInput,
    SegmentTables,
    SetUid,
    SetUidCreated,
    SetUidOpenat2,
    SetUidNode,
    FileSize,
    MemorySize,
    Descriptors,
    Hook,
    Config,
    Editor,
    MoveHooks,
    SwapGit,
    MoveGit,
}

/// What is known of an attack.
#[derive(Debug)]
pub struct Described {
    /// Which.
    pub attack: Attack,
    /// Its name in a check's id.
    pub name: &'static str,
    /// Whether every probe tries it, not only a full proof.
    pub always: bool,
    /// What denies it.
    pub layer: &'static str,
    /// The errors that are a denial.
    pub denied: &'static [i32],
}

/// All of them, in order of their numbers. Those on a repository come last: what moves it aside ends the others.
#[rustfmt::skip]
pub const ATTACKS: &[Described] = &[
    attack(Attack::ReadOutside, "read-outside", true, MOUNTS, ABSENT),
    attack(Attack::WriteOutside, "write-outside", true, MOUNTS, &[libc::ENOENT, libc::ENOTDIR, libc::EROFS]),
    attack(Attack::ReadThroughProc, "read-through-proc", false, MOUNTS, ABSENT),
    attack(Attack::ReadThroughLink, "read-through-link", false, MOUNTS, ABSENT),
    attack(Attack::HardLink, "hard-link-outside", false, MOUNTS, ABSENT),
    attack(Attack::Tcp, "tcp-outside", true, NETWORK, UNREACHED),
    attack(Attack::Tcp6, "tcp6-outside", false, NETWORK, UNREACHED),
    attack(Attack::Udp, "udp-outside", false, NETWORK, UNREACHED),
    attack(Attack::AbstractSocket, "abstract-socket", true, NETWORK, &[libc::ECONNREFUSED, libc::EPERM]),
    attack(Attack::PathSocket, "path-socket", false, MOUNTS, ABSENT),
    attack(Attack::SharedMemory, "shared-memory", false, MOUNTS, ABSENT),
    attack(Attack::SharedSegment, "shared-segment", true, "IPC namespace", &[libc::EINVAL]),
    attack(Attack::Signal, "signal", true, PROCESSES, HIDDEN),
    attack(Attack::Trace, "trace", false, PROCESSES, HIDDEN),
    attack(Attack::Environment, "environment", false, PROCESSES, ABSENT),
    attack(Attack::CommandLine, "command-line", false, PROCESSES, ABSENT),
    attack(Attack::RootOfProcess, "root-of-process", false, PROCESSES, ABSENT),
    attack(Attack::Memory, "memory", false, PROCESSES, ABSENT),
    attack(Attack::ReadMemory, "read-memory", false, PROCESSES, HIDDEN),
    attack(Attack::Descriptor, "descriptor", false, PROCESSES, HIDDEN),
    attack(Attack::Priority, "priority", false, PROCESSES, HIDDEN),
    attack(Attack::SignalLaunch, "signal-launch", true, SCOPES, &[libc::EPERM]),
    attack(Attack::Limits, "limits-of-launch", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::UserNamespace, "user-namespace", true, SECCOMP, &[libc::EPERM]),
    attack(Attack::UserNamespaceByClone, "user-namespace-by-clone", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::IoUring, "io-uring", false, SECCOMP, &[libc::ENOSYS]),
    attack(Attack::Userfaultfd, "userfaultfd", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::Keyring, "keyring", true, SECCOMP, &[libc::EPERM]),
    attack(Attack::Vsock, "vsock", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::Alg, "alg-socket", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::Clone3, "clone3", false, SECCOMP, &[libc::ENOSYS]),
    attack(Attack::Calls32, "calls-32-bit", false, SECCOMP, &[ENDED_BY_FILTER]),
    attack(Attack::CallsX32, "calls-x32", false, SECCOMP, &[libc::ENOSYS]),
    attack(Attack::Perf, "performance-events", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::Fanotify, "fanotify", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::TerminalInput, "terminal-input", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::SegmentTables, "segment-tables", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::SetUid, "setuid-file", true, SECCOMP, &[libc::EPERM]),
    attack(Attack::SetUidCreated, "setuid-file-created", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::SetUidOpenat2, "setuid-file-by-openat2", false, SECCOMP, &[libc::ENOSYS]),
    attack(Attack::SetUidNode, "setuid-file-by-mknod", false, SECCOMP, &[libc::EPERM]),
    attack(Attack::FileSize, "file-size", true, LIMITS, &[libc::EFBIG]),
    attack(Attack::MemorySize, "memory-size", false, LIMITS, &[libc::ENOMEM]),
    attack(Attack::Descriptors, "descriptors", false, LIMITS, &[libc::EBADF]),
    attack(Attack::Hook, "git-hook", true, PROTECTED, &[libc::EROFS]),
    attack(Attack::Config, "git-config", false, PROTECTED, &[libc::EROFS]),
    attack(Attack::Editor, "editor-tasks", false, PROTECTED, &[libc::EROFS]),
    attack(Attack::MoveHooks, "git-hooks-moved-aside", false, PROTECTED, &[libc::EBUSY]),
    attack(Attack::SwapGit, "git-swapped", false, PROTECTED, &[libc::EBUSY]),
    attack(Attack::MoveGit, "git-moved-aside", true, PROTECTED, &[libc::EBUSY]),
];

/// What denies by showing nothing of the host but what a command is given.
pub const MOUNTS: &str = "mount namespace";
/// What denies by a network of one's own.
pub const NETWORK: &str = "network namespace";
/// What denies by showing no process of others.
pub const PROCESSES: &str = "pid namespace";
/// What denies calls of the kernel.
pub const SECCOMP: &str = "seccomp";
/// What denies changes of protected paths.
pub const PROTECTED: &str = "mount";
/// What denies signals to processes outside of the command, where landlock has scopes ([`SCOPES_SINCE`]).
pub const SCOPES: &str = "landlock scope";
/// The ABI of landlock that has them first.
pub const SCOPES_SINCE: u32 = 6;
const LIMITS: &str = "limit";

/// In place of an errno: the filter ended the attack by SIGSYS.
pub const ENDED_BY_FILTER: i32 = 255;

/// What is not shown inside is not there.
const ABSENT: &[i32] = &[libc::ENOENT, libc::ENOTDIR];
/// A process that is not seen, or may not be touched.
const HIDDEN: &[i32] = &[libc::ESRCH, libc::EPERM];
/// Nobody listens in a network of one's own, or there is none.
const UNREACHED: &[i32] = &[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT];

const fn attack(
    attack: Attack,
    name: &'static str,
    always: bool,
    layer: &'static str,
    denied: &'static [i32],
) -> Described {
    Described { attack, name, always, layer, denied }
}

impl Attack {
    /// The attack of this number.
    pub fn numbered(number: u32) -> Option<Self> {
        ATTACKS.get(usize::try_from(number).ok()?).map(|described| described.attack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_are_numbered_in_order_and_named_once() {
        for (number, described) in ATTACKS.iter().enumerate() {
            assert_eq!(described.attack as usize, number, "{}", described.name);
            assert_eq!(ATTACKS.iter().filter(|other| other.name == described.name).count(), 1);
            assert!(!described.denied.is_empty());
        }
    }
}
