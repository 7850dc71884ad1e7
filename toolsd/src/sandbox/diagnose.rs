//! What a failed sandbox means: which step, and the one knob. bwrap says it in one raw line; people need the
//! name of the setting.

use std::fs;

use salaam_launch::report::Step;

/// What the kernel says about user namespaces on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// user.max_user_namespaces is 0.
    pub no_user_namespaces: bool,
    /// user.max_net_namespaces is 0.
    pub no_network_namespaces: bool,
    /// kernel.unprivileged_userns_clone is 0 (Debian's older switch).
    pub clone_is_off: bool,
    /// kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu 24.04 and later).
    pub apparmor_restricts: bool,
}

impl Host {
    /// Reads the settings; one that is absent does not restrict.
    pub fn read() -> Self {
        let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
        Self {
            no_user_namespaces: is("/proc/sys/user/max_user_namespaces", "0"),
            no_network_namespaces: is("/proc/sys/user/max_net_namespaces", "0"),
            clone_is_off: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
        }
    }
}

/// A failed step and what mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// A stable id, `sandbox-…`.
    pub id: &'static str,
    /// What was seen.
    pub evidence: String,
    /// The one knob.
    pub fix: &'static str,
}

const APPARMOR: &str = "AppArmor forbids unprivileged user namespaces: load the distribution's profile for bwrap \
(Ubuntu: copy /usr/share/apparmor/extra-profiles/bwrap-userns-restrict to /etc/apparmor.d and run \
`apparmor_parser -r` on it); leave the host-wide setting on";
// One file, and only that file is loaded: whatever else the host has in sysctl.d stays as it is.
const MAX: &str = "echo user.max_user_namespaces=10000 | sudo tee -a /etc/sysctl.d/60-salaam.conf && \
sudo sysctl -p /etc/sysctl.d/60-salaam.conf";
const MAX_NET: &str = "echo user.max_net_namespaces=10000 | sudo tee -a /etc/sysctl.d/60-salaam.conf && \
sudo sysctl -p /etc/sysctl.d/60-salaam.conf";
const CLONE: &str = "echo kernel.unprivileged_userns_clone=1 | sudo tee -a /etc/sysctl.d/60-salaam.conf && \
sudo sysctl -p /etc/sysctl.d/60-salaam.conf";
const CONTAINER: &str = "this looks like a container whose seccomp profile refuses unshare(2): run it with a profile \
that allows it (Docker: --security-opt seccomp=unconfined or a profile with clone and unshare)";
const PROC: &str = "a container masks parts of /proc, so no new one may be mounted: run it with an unmasked /proc \
(Docker: --security-opt systempaths=unconfined; Kubernetes: procMount: Unmasked)";
const MOUNT: &str = "let this account mount inside its own user namespace: a container needs a seccomp profile with \
mount(2), an AppArmor host the distribution's profile for bwrap";
const NET: &str = "allow network namespaces: a kernel with CONFIG_NET_NS, and in a container a seccomp profile that \
allows clone(CLONE_NEWNET) and netlink sockets";
const LANDLOCK: &str = "add landlock to the kernel's list of security modules (boot parameter lsm=landlock,…), or set \
landlock = \"if-available\" and re-pin, which every approval then shows";
const SECCOMP: &str = "use a kernel with CONFIG_SECCOMP_FILTER, and in a container a seccomp profile that allows \
prctl(PR_SET_SECCOMP)";
const LIMITS: &str = "raise limits.processes, or the limits of this account; a container must let a process write its \
own /proc/self/oom_score_adj";
const INSTALL: &str = "run packaging/install again, so that salaam-launch and salaam-toolsd are of one build";

/// Reads what bwrap wrote on standard error before it gave up.
pub fn diagnose(said: &str, host: Host) -> Diagnosis {
    let evidence = said.trim().lines().last().unwrap_or("bwrap ended without a word").to_owned();
    let has = |needle: &str| said.contains(needle);
    let (id, fix) = if has("Failed RTM_NEWADDR") || has("loopback") {
        // The namespace exists but gives no rights in it: on an AppArmor host that is the profile's doing.
        if host.apparmor_restricts { ("sandbox-userns", APPARMOR) } else { ("sandbox-net", NET) }
    } else if has("ENOSPC") && host.no_network_namespaces && !host.no_user_namespaces {
        ("sandbox-net", MAX_NET)
    } else if has("namespace") || has("uid map") || has("gid map") || has("setting up uid") || has("clone") {
        ("sandbox-userns", userns(said, host))
    } else if has("mount proc") || has("on /newroot/proc") {
        ("sandbox-mount", PROC)
    } else if has("salaam") && has("exec") {
        ("sandbox-missing", INSTALL)
    } else {
        ("sandbox-mount", MOUNT)
    };
    Diagnosis { id, evidence, fix }
}

fn userns(said: &str, host: Host) -> &'static str {
    if host.no_user_namespaces || said.contains("ENOSPC") || said.contains("No space left") {
        MAX
    } else if host.clone_is_off {
        CLONE
    } else if host.apparmor_restricts {
        APPARMOR
    } else {
        CONTAINER
    }
}

/// The knob for a step of launch that failed.
pub fn knobs(step: Step) -> (&'static str, &'static str) {
    match step {
        Step::Landlock => ("sandbox-landlock", LANDLOCK),
        Step::Seccomp | Step::NoNewPrivileges => ("sandbox-seccomp", SECCOMP),
        Step::Plan => ("sandbox-missing", INSTALL),
        Step::Fork | Step::Limits => ("sandbox-limits", LIMITS),
        Step::Directory => ("workspace-unusable", "let this account enter the workspace"),
        Step::Bound => (
            "sandbox-trace",
            "allow ptrace(2) of own children: kernel.yama.ptrace_scope below 3, and in a container a seccomp profile \
             with ptrace; without it a replaced script could not be told from the approved one",
        ),
        Step::Exec => ("exec-failed", "name a program that exists inside and may be executed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_host_gets_its_own_knob() {
        let off = Host { no_user_namespaces: true, ..Host::default() };
        let debian = Host { clone_is_off: true, ..Host::default() };
        let ubuntu = Host { apparmor_restricts: true, ..Host::default() };
        let no_net = Host { no_network_namespaces: true, ..Host::default() };
        let none = Host::default();
        let no_more =
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)";
        let denied = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it.";
        let map = "bwrap: setting up uid map: Permission denied";
        let loopback = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted";
        let proc = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted";
        for (said, host, id, fix) in [
            (no_more, off, "sandbox-userns", MAX),
            (no_more, none, "sandbox-userns", MAX),
            (no_more, no_net, "sandbox-net", MAX_NET),
            (denied, debian, "sandbox-userns", CLONE),
            (denied, none, "sandbox-userns", CONTAINER),
            (map, ubuntu, "sandbox-userns", APPARMOR),
            (loopback, ubuntu, "sandbox-userns", APPARMOR),
            (loopback, none, "sandbox-net", NET),
            (proc, none, "sandbox-mount", PROC),
            ("bwrap: Failed to make / slave: Permission denied", none, "sandbox-mount", MOUNT),
            ("bwrap: execvp /.salaam/launch: No such file or directory", none, "sandbox-missing", INSTALL),
        ] {
            let found = diagnose(said, host);
            assert_eq!((found.id, found.fix), (id, fix), "{said} {host:?}");
            assert_eq!(found.evidence, said);
        }
    }

    #[test]
    fn nobody_is_told_to_turn_apparmor_off() {
        assert!(!APPARMOR.contains("restrict_unprivileged_userns=0"));
    }
}
