//! The checks that need no executor and ask no other program, in the order in which an operator would mend them.

use std::{
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use salaam_core::{
    check::Check,
    policy::{Isolation, Mode},
};

use super::{Process, account, fix};
use crate::{
    executor::reinstall,
    host::{self, Host, Trust, Verdict, untrusted, verdict},
};

/// Where sudo is looked for, in this order; the first one found is used, and PATH is not asked.
pub const SUDO: [&str; 3] = ["/usr/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo"];

const PROGRAMS: [&str; 4] = ["salaam-toolsd", "salaam-launch", "salaam-worker", "salaam-reader"];

/// Every check that needs no executor and asks nobody.
pub(super) fn checks(host: &Host, process: &Process) -> Vec<Check> {
    let mut checks = vec![service_is_root(process), capabilities(process)];
    if host.mode == Mode::ToolsUser {
        checks.extend(account::tools_user(host));
        checks.push(no_new_privs(process));
        checks.push(sudo_present(&SUDO.map(PathBuf::from)));
        checks.extend(account::work_group(host, process));
        checks.push(instance(host));
    }
    checks.extend(executor(host));
    checks.extend(host.dirs.checks(host.service_uid, host.operators_gid));
    checks
}

/// Where root wrote nothing down the executor has only its built-in floor.
fn instance(host: &Host) -> Check {
    let id = "instance-missing";
    match &host.instance {
        Some(instance) => Check::pass(id, format!("{}/{}.toml pairs the accounts", host::ETC, instance.service_user)),
        None => {
            let tools = host.config.tools_user.as_deref().unwrap_or_default();
            let evidence = format!(
                "no file in {} names {}: the executor stands on its built-in floor",
                host::ETC,
                host.service_user
            );
            Check::warn(id, evidence, fix::setup(&host.service_user, tools))
        }
    }
}

/// `service-capabilities`: with one of them, what the account may not do proves nothing about the process.
fn capabilities(process: &Process) -> Check {
    let id = "service-capabilities";
    if process.uid == 0 || process.capabilities.is_empty() {
        return Check::pass(id, "no capability is permitted, effective, inheritable or ambient");
    }
    let fix = "start it without capabilities: in a unit remove AmbientCapabilities=, else take the account out of \
               /etc/security/capability.conf, or start through: setpriv --ambient-caps -all --inh-caps -all -- salaam service start";
    Check::fail(id, process.capabilities.join(", "), fix)
}

/// `required-isolation`: whether what was measured is at least what the operator demands.
pub fn required_isolation(required: Option<Isolation>, measured: Isolation) -> Check {
    let id = "required-isolation";
    match required {
        None => Check::pass(id, format!("{measured}; none is required")),
        Some(required) if measured.meets(required) => Check::pass(id, format!("{measured} meets {required}")),
        Some(required) => Check::fail(
            id,
            format!("{measured} is less than {required}"),
            "mend the failed sandbox checks (salaam doctor), or lower required_isolation in host.toml and run salaam host plan --pin",
        ),
    }
}

fn service_is_root(process: &Process) -> Check {
    if process.uid == 0 {
        let fix = "sudo salaam host setup --service-user salaam, then sudo -u salaam salaam service start";
        return Check::fail("service-is-root", "the service runs as uid 0", fix);
    }
    Check::pass("service-is-root", format!("uid {}", process.uid))
}

fn no_new_privs(process: &Process) -> Check {
    let id = "no-new-privs";
    match process.no_new_privs {
        Some(false) => Check::pass(id, "NoNewPrivs: 0 in /proc/self/status"),
        Some(true) => Check::fail(
            id,
            "NoNewPrivs: 1 in /proc/self/status: sudo cannot change the account in this process",
            "in a unit, remove NoNewPrivileges= and every directive that implies it (systemd/salaam.service lists them); in a container, start it without --security-opt no-new-privileges",
        ),
        None => Check::unproven(id, "/proc/self/status has no NoNewPrivs line", "use Linux 4.10 or later"),
    }
}

/// `sudo-missing`: there, set-uid, and root's. Whether the rule lets us is only known by trying.
fn sudo_present(places: &[PathBuf]) -> Check {
    const SETUID: u32 = 0o4000;
    let id = "sudo-missing";
    let Some((path, meta)) = places.iter().find_map(|path| path.metadata().ok().map(|meta| (path, meta))) else {
        let listed: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let fix = "apt-get install sudo (or the package of your system)";
        return Check::fail(id, format!("there is none of {}", listed.join(", ")), fix);
    };
    let seen = format!("{} has mode {:04o}, uid {}", path.display(), meta.mode() & 0o7777, meta.uid());
    if meta.uid() == 0 && meta.permissions().mode() & SETUID != 0 {
        Check::pass(id, seen)
    } else {
        Check::fail(id, format!("{seen}; it is not set-uid root"), "apt-get install --reinstall sudo")
    }
}

/// `executor-missing` and `executor-writable`, of everything in LIBEXEC: worker and reader run as the service user,
/// so whoever can write them has its rights. In service-user mode LIBEXEC may be the service user's own.
fn executor(host: &Host) -> Vec<Check> {
    let trust = match host.mode {
        Mode::ToolsUser => Trust::ROOT,
        Mode::ServiceUser => Trust { uid: host.service_uid },
    };
    let paths = PROGRAMS.map(|name| host.dirs.libexec.join(name));
    let absent: Vec<_> = paths.iter().filter_map(|path| missing(path)).collect();
    if !absent.is_empty() {
        let fix = format!("{}, or set SALAAM_LIBEXEC_DIR to where they are", reinstall(&host.dirs.libexec));
        return vec![Check::fail("executor-missing", absent.join("; "), fix)];
    }
    let shown = host.dirs.libexec.display();
    vec![Check::pass("executor-missing", format!("{} in {shown}", PROGRAMS.join(", "))), writable(&paths, trust)]
}

fn missing(path: &Path) -> Option<String> {
    match path.metadata() {
        Err(e) => Some(format!("{}: {e}", path.display())),
        Ok(meta) if !meta.is_file() => Some(format!("{} is no regular file", path.display())),
        Ok(meta) if meta.mode() & 0o111 == 0 => Some(format!("{} is not executable", path.display())),
        Ok(_) => None,
    }
}

fn writable(paths: &[PathBuf], trust: Trust) -> Check {
    let id = "executor-writable";
    for path in paths {
        match untrusted(path, trust) {
            Ok(None) => {}
            Ok(Some((place, why))) => {
                let shown = place.display();
                let fix = format!("sudo chown root:root {shown} && sudo chmod go-w {shown}");
                return Check::fail(id, format!("{shown}: {why}"), fix);
            }
            Err(e) => return Check::unproven(id, format!("{}: {e}", path.display()), "sudo packaging/install"),
        }
    }
    Check::pass(id, "they and every directory above them can be written by nobody else")
}

pub(super) fn plan_unchanged(host: &Host) -> Check {
    let id = "plan-changed";
    let fix = "look at `salaam host plan`; if it is what you want, salaam host plan --pin";
    let judged = host.plan().and_then(|resolved| {
        let pinned = host.pinned()?;
        Ok((verdict(pinned.as_ref(), &resolved, &host.flags), resolved.digest()?))
    });
    match judged {
        Ok((Verdict::Keep, digest)) => Check::pass(id, format!("as pinned, {digest}")),
        Ok((Verdict::Pin { .. }, digest)) => Check::pass(id, format!("this start pins {digest}")),
        Ok((Verdict::Changed { keys }, _)) => {
            Check::fail(id, format!("changed since it was pinned: {}", keys.join(", ")), fix)
        }
        Err(e) => Check::unproven(id, format!("the plan cannot be resolved: {e}"), "mend that first"),
    }
}

/// The sudo that a start uses.
pub fn sudo() -> io::Result<PathBuf> {
    SUDO.iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no sudo in the system's directories"))
}
