//! What is looked at before anything is started: each failure with its evidence and its exact fix.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use salaam_core::{check::Check, policy::Mode, show};

use super::spawn::Spawn;

/// Every check that fails before sudo is tried.
pub(super) fn before_start(spawn: &Spawn) -> Vec<Check> {
    let mut failed = Vec::new();
    if spawn.mode == Mode::ToolsUser {
        failed.extend(no_new_privs(nix::sys::prctl::get_no_new_privs().map_err(io::Error::from)));
        failed.extend(sudo_missing(&spawn.sudo));
    }
    failed.extend(executor(spawn));
    failed
}

/// The kernel's word, before sudo is tried: sudo's own message does not name the cause.
pub(super) fn no_new_privs(set: io::Result<bool>) -> Option<Check> {
    let evidence = match set {
        Ok(false) => return None,
        Ok(true) => "NoNewPrivs: 1 in /proc/self/status".into(),
        Err(error) => format!("PR_GET_NO_NEW_PRIVS: {error}"),
    };
    Some(Check::fail(
        "no-new-privs",
        evidence,
        "sudo cannot work under it. In the service's unit set NoNewPrivileges=no and remove what implies it \
         (DynamicUser, SystemCallFilter, RestrictNamespaces, PrivateDevices, Protect{Clock,Hostname,Kernel*}, \
         MemoryDenyWriteExecute, LockPersonality, RestrictSUIDSGID); in a container drop \
         --security-opt=no-new-privileges (\"no-new-privileges\" in daemon.json)",
    ))
}

fn sudo_missing(sudo: &Path) -> Option<Check> {
    let evidence = match fs::metadata(sudo) {
        Ok(found) if found.is_file() && found.mode() & 0o111 != 0 => return None,
        Ok(_) => "it is no program".into(),
        Err(error) => error.to_string(),
    };
    Some(Check::fail("sudo-missing", format!("{}: {evidence}", shown(sudo)), "install sudo: apt-get install sudo"))
}

fn executor(spawn: &Spawn) -> Option<Check> {
    let missing = |evidence: String| {
        Some(Check::fail(
            "executor-missing",
            format!("{}: {evidence}", shown(&spawn.toolsd)),
            format!("{}, or name its directory with SALAAM_LIBEXEC_DIR", spawn.reinstall()),
        ))
    };
    match fs::metadata(&spawn.toolsd) {
        Ok(found) if found.is_file() && found.mode() & 0o111 != 0 => {}
        Ok(_) => return missing("it is no program".into()),
        Err(error) => return missing(error.to_string()),
    }
    let real = match fs::canonicalize(&spawn.toolsd) {
        Ok(real) => real,
        Err(error) => return missing(error.to_string()),
    };
    let owners: &[u32] = match spawn.mode {
        Mode::ToolsUser => &[0],
        Mode::ServiceUser => &[0, spawn.service_uid],
    };
    writable(&spawn.toolsd, owners).or_else(|| writable(&real, owners))
}

/// Whether anybody but `owners` could put another program at `path`: the file, its directory, or a directory
/// above it.
fn writable(path: &Path, owners: &[u32]) -> Option<Check> {
    path.ancestors().filter(|part| !part.as_os_str().is_empty()).enumerate().find_map(|(depth, part)| {
        let found = match fs::metadata(part) {
            Ok(found) => found,
            Err(error) => return Some(open(part, error.to_string(), owners)),
        };
        let (mode, uid) = (found.mode(), found.uid());
        // In a sticky directory others cannot move what is not theirs; what is below it was looked at already.
        let sticky = depth > 1 && mode & 0o1000 != 0;
        if !owners.contains(&uid) {
            Some(open(part, format!("belongs to uid {uid}"), owners))
        } else if mode & 0o022 != 0 && !sticky {
            Some(open(part, format!("has mode {:04o}", mode & 0o7777), owners))
        } else {
            None
        }
    })
}

fn open(part: &Path, evidence: String, owners: &[u32]) -> Check {
    let path = shown(part);
    let fix = match owners {
        [0] => format!("sudo chown root:root {path} && sudo chmod go-w {path}"),
        _ => format!("chmod go-w {path}"),
    };
    Check::fail("executor-writable", format!("{path} {evidence}"), fix)
}

/// The one line that the sudoers drop-in needs, and where it goes.
pub(super) fn sudoers_fix(spawn: &Spawn, service_user: &str) -> String {
    format!(
        "as root, in /etc/sudoers.d/salaam-{} (visudo -f): {}",
        spawn.service_uid,
        sudoers_line(spawn, service_user)
    )
}

/// The rule: exactly that binary, no arguments, exactly that account.
pub(super) fn sudoers_line(spawn: &Spawn, service_user: &str) -> String {
    format!(
        "{} ALL=({}) NOPASSWD: {} \"\"",
        escaped(service_user),
        escaped(&spawn.tools_user),
        escaped(&spawn.toolsd.to_string_lossy())
    )
}

/// sudoers(5): these are escaped with a backslash in words.
fn escaped(word: &str) -> String {
    word.chars()
        .flat_map(|c| {
            let special =
                matches!(c, ',' | ':' | '=' | '\\' | ' ' | '"' | '#' | '*' | '?' | '[' | ']' | '!' | '(' | ')');
            special.then_some('\\').into_iter().chain([c])
        })
        .collect()
}

pub(super) fn service_user(uid: u32) -> String {
    users::get_user_by_uid(uid).map_or_else(|| format!("#{uid}"), |user| user.name().to_string_lossy().into_owned())
}

/// Puts the binaries of one build in place again, in the prefix where `libexec` lies.
pub fn reinstall(libexec: &Path) -> String {
    let prefix = libexec.ends_with("libexec/salaam").then(|| libexec.parent().and_then(Path::parent)).flatten();
    match prefix.filter(|prefix| *prefix != Path::new("/usr/local")) {
        Some(prefix) => format!("sudo packaging/install --prefix {}", shown(prefix)),
        None => "sudo packaging/install".into(),
    }
}

fn shown(path: &Path) -> String {
    show::line(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::executor::spawn::sample;

    #[test]
    fn the_sudoers_line_is_exact() {
        assert_eq!(
            sudoers_line(&sample(Mode::ToolsUser), "salaam"),
            "salaam ALL=(salaam-tools) NOPASSWD: /usr/local/libexec/salaam/salaam-toolsd \"\""
        );
        let spaced = Spawn { toolsd: "/opt/my tools/salaam-toolsd".into(), ..sample(Mode::ToolsUser) };
        assert!(sudoers_line(&spaced, "salaam").contains("/opt/my\\ tools/salaam-toolsd"));
    }

    #[test]
    fn an_installation_is_mended_in_its_own_prefix() {
        assert_eq!(reinstall(Path::new("/usr/local/libexec/salaam")), "sudo packaging/install");
        assert_eq!(reinstall(Path::new("/opt/s/libexec/salaam")), "sudo packaging/install --prefix /opt/s");
        assert_eq!(reinstall(Path::new("/src/target/release")), "sudo packaging/install");
    }

    #[test]
    fn the_flag_is_named_before_sudo_is_tried() {
        assert_eq!(no_new_privs(Ok(false)), None);
        let check = no_new_privs(Ok(true)).unwrap();
        assert!(check.refuses() && check.id == "no-new-privs" && check.fix.contains("NoNewPrivileges=no"));
        assert!(no_new_privs(Err(io::ErrorKind::Other.into())).is_some());
    }

    #[test]
    fn a_binary_that_others_could_replace_is_not_started() {
        let directory = std::env::temp_dir().join(format!("salaam-checks-{}", std::process::id()));
        let toolsd = directory.join("salaam-toolsd");
        fs::create_dir(&directory).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&directory, 0o755);
        let spawn =
            Spawn { toolsd: toolsd.clone(), service_uid: nix::unistd::geteuid().as_raw(), ..sample(Mode::ServiceUser) };
        let id = || executor(&spawn).map(|check| check.id);
        assert_eq!(id().as_deref(), Some("executor-missing"));
        fs::write(&toolsd, "").unwrap();
        mode(&toolsd, 0o644);
        assert_eq!(id().as_deref(), Some("executor-missing"), "no program");
        mode(&toolsd, 0o755);
        assert_eq!(id(), None);
        mode(&toolsd, 0o775);
        assert_eq!(id().as_deref(), Some("executor-writable"));
        mode(&toolsd, 0o755);
        mode(&directory, 0o777);
        assert_eq!(id().as_deref(), Some("executor-writable"));
        mode(&directory, 0o1777);
        assert_eq!(id().as_deref(), Some("executor-writable"), "its own directory may not be sticky either");
        fs::remove_dir_all(&directory).unwrap();
    }
}
