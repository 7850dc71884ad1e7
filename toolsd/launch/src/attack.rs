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
    AbstractSocket,
    PathSocket,
    SharedMemory,
    Signal,
    Trace,
    Environment,
    Memory,
    Descriptor,
    Limits,
    UserNamespace,
    UserNamespaceByClone,
    IoUring,
    Userfaultfd,
    Keyring,
    Vsock,
    Alg,
    Clone3,
    SetUid,
    Hook,
    Config,
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

/// All of them, in order of their numbers.
#[rustfmt::skip]
pub const ATTACKS: &[Described] = &[
    attack(Attack::ReadOutside, "read-outside", true, "mount namespace", ABSENT),
    attack(Attack::WriteOutside, "write-outside", true, "mount namespace", &[libc::ENOENT, libc::ENOTDIR, libc::EROFS]),
    attack(Attack::ReadThroughProc, "read-through-proc", false, "mount namespace", ABSENT),
    attack(Attack::ReadThroughLink, "read-through-link", false, "mount namespace", ABSENT),
    attack(Attack::HardLink, "hard-link-outside", false, "mount namespace", ABSENT),
    attack(Attack::Tcp, "tcp-outside", true, "network namespace", &[libc::ECONNREFUSED, libc::ENETUNREACH]),
    attack(Attack::AbstractSocket, "abstract-socket", true, "network namespace", &[libc::ECONNREFUSED, libc::EPERM]),
    attack(Attack::PathSocket, "path-socket", false, "mount namespace", ABSENT),
    attack(Attack::SharedMemory, "shared-memory", false, "mount namespace", ABSENT),
    attack(Attack::Signal, "signal", true, "pid namespace", HIDDEN),
    attack(Attack::Trace, "trace", false, "pid namespace", HIDDEN),
    attack(Attack::Environment, "environment", false, "pid namespace", ABSENT),
    attack(Attack::Memory, "memory", false, "pid namespace", ABSENT),
    attack(Attack::Descriptor, "descriptor", false, "pid namespace", HIDDEN),
    attack(Attack::Limits, "limits", false, "seccomp", HIDDEN),
    attack(Attack::UserNamespace, "user-namespace", true, "seccomp", &[libc::EPERM]),
    attack(Attack::UserNamespaceByClone, "user-namespace-by-clone", false, "seccomp", &[libc::EPERM]),
    attack(Attack::IoUring, "io-uring", false, "seccomp", &[libc::ENOSYS]),
    attack(Attack::Userfaultfd, "userfaultfd", false, "seccomp", &[libc::EPERM]),
    attack(Attack::Keyring, "keyring", false, "seccomp", &[libc::EPERM]),
    attack(Attack::Vsock, "vsock", false, "seccomp", &[libc::EPERM]),
    attack(Attack::Alg, "alg-socket", false, "seccomp", &[libc::EPERM]),
    attack(Attack::Clone3, "clone3", false, "seccomp", &[libc::ENOSYS]),
    attack(Attack::SetUid, "setuid-file", false, "seccomp", &[libc::EPERM]),
    attack(Attack::Hook, "git-hook", true, "mount", &[libc::EROFS]),
    attack(Attack::Config, "git-config", false, "mount", &[libc::EROFS]),
    attack(Attack::MoveGit, "git-moved-aside", true, "mount", &[libc::EBUSY]),
];

/// What is not shown inside is not there.
const ABSENT: &[i32] = &[libc::ENOENT, libc::ENOTDIR];
/// A process that is not seen, or may not be touched.
const HIDDEN: &[i32] = &[libc::ESRCH, libc::EPERM];

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
