//! Which directories set-up refuses to hand to the work group, and where it makes new ones.

use std::path::{Path, PathBuf};

use salaam_core::instance::is_plain_absolute;

use super::SetupError;
use crate::host::{Trust, untrusted};

/// Directories of the system: they and what they contain are nobody's project, except as listed below.
const SYSTEM: [&str; 17] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib",
    "/var/log",
    "/var/spool",
];

/// Directories of the system in which projects do live; only they themselves are refused.
const SHARED: [&str; 10] =
    ["/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/usr/local/src", "/usr/src", "/var", "/var/tmp"];

/// Refuses what can be no workspace, whoever asks. `homes` are those of people; `own` are Salaam's directories.
pub(crate) fn check(path: &Path, homes: &[PathBuf], own: &[&Path]) -> Result<(), SetupError> {
    let refuse = |why: String| {
        let fix = "name a project directory of its own".to_owned();
        Err(SetupError::Path { path: path.to_owned(), why, fix })
    };
    if !is_plain_absolute(path) {
        return refuse("a workspace is an absolute path without `.` and `..`, and more than `/`".into());
    }
    let exempt = SHARED.iter().any(|shared| path != Path::new(shared) && path.starts_with(shared) && shared.len() > 4);
    if SHARED.iter().any(|shared| path == Path::new(shared)) {
        return refuse("it is a directory of the system".into());
    }
    if !exempt && SYSTEM.iter().any(|system| path.starts_with(system)) {
        return refuse("it lies in a directory of the system".into());
    }
    if SYSTEM.iter().chain(&SHARED).any(|system| Path::new(system).starts_with(path)) {
        return refuse("it contains a directory of the system".into());
    }
    if let Some(home) = homes.iter().find(|home| home.starts_with(path)) {
        return refuse(format!("it is a home or contains one ({})", home.display()));
    }
    match own.iter().find(|own| own.starts_with(path) || path.starts_with(own)) {
        Some(own) => refuse(format!("it overlaps {}, a directory of Salaam's own", own.display())),
        None => Ok(()),
    }
}

/// The directories that must be made for `path` to have a parent, topmost first. Root makes them only where
/// nobody but root and the service user could exchange one in the meantime.
pub(crate) fn missing_parents(path: &Path, service_uid: u32) -> Result<Vec<PathBuf>, SetupError> {
    let mut missing: Vec<PathBuf> = Vec::new();
    for above in path.ancestors().skip(1) {
        if above.symlink_metadata().is_err() {
            missing.push(above.to_owned());
            continue;
        }
        let fault = untrusted(above, Trust { uid: service_uid }).map_err(SetupError::io("cannot examine", above))?;
        if let Some((place, why)) = fault {
            let why = format!("it does not exist, and {} above it is not safe to work in: {why}", place.display());
            let fix = format!("make it yourself as the service user (mkdir {})", path.display());
            return Err(SetupError::Path { path: path.to_owned(), why, fix });
        }
        break;
    }
    missing.reverse();
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_homes_and_our_own_are_no_workspaces() {
        let homes = [PathBuf::from("/home/alice"), PathBuf::from("/srv/people/bob")];
        let own = [Path::new("/var/lib/salaam/state")];
        for path in [
            "/",
            "relative",
            "/srv/../etc",
            "/etc",
            "/etc/x",
            "/usr/bin",
            "/usr",
            "/home",
            "/home/alice",
            "/srv",
            "/srv/people",
            "/srv/people/bob",
            "/var",
            "/var/lib",
            "/var/lib/salaam/state",
            "/var/lib/salaam",
            "/var/lib/salaam/state/x",
            "/root/x",
            "/tmp",
            "/proc/1",
            "/run/x",
        ] {
            assert!(check(Path::new(path), &homes, &own).is_err(), "{path}");
        }
        for path in ["/srv/x", "/home/alice/x", "/opt/project/y", "/tmp/x", "/data", "/usr/local/src/x", "/var/tmp/x"] {
            assert!(check(Path::new(path), &homes, &own).is_ok(), "{path}: {:?}", check(Path::new(path), &homes, &own));
        }
    }
}
