//! Where an instance lives, and whether those directories are as private as they must be.

use std::{
    fs::DirBuilder,
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use salaam_core::{
    check::Check,
    instance::{Instance, is_plain_absolute},
};

use super::{Account, HostError, Trust, Variables, trust::untrusted_above};

/// The operator socket's name in the runtime directory.
pub const SOCKET_NAME: &str = "operator.sock";

/// Bytes of a socket path that fit: `sun_path` has 108 on Linux and 104 on macOS, one of them for the NUL.
pub const SOCKET_PATH_MAX: usize = if cfg!(target_os = "macos") { 103 } else { 107 };

const PRIVATE: u32 = 0o700;
const PASSABLE_FOR_GROUP: u32 = 0o710;

/// The directories of one instance; absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// `host.toml`, `manifest.json`.
    pub config: PathBuf,
    /// Journal, blobs, lock, log.
    pub state: PathBuf,
    /// The operator socket.
    pub runtime: PathBuf,
    /// The executor's binaries.
    pub libexec: PathBuf,
}

impl Dirs {
    /// Chooses each directory: `SALAAM_*_DIR`, else systemd's, else the instance file's, else XDG's (LIBEXEC:
    /// relative to `executable`, the running `salaam`).
    ///
    /// systemd's variables count only where their directory is named `salaam…`: they are inherited by what a
    /// unit starts, and another unit's state is not ours.
    pub fn choose(
        variables: &Variables,
        instance: Option<&Instance>,
        service: &Account,
        executable: &Path,
    ) -> Result<Self, HostError> {
        let listed = instance.map(|instance| &instance.directories);
        let home = variables.path("HOME").filter(|home| home.is_absolute()).unwrap_or_else(|| service.home.clone());
        let xdg = |name: &str, beneath_home: &str| {
            let base = variables.path(name).filter(|path| path.is_absolute());
            base.unwrap_or_else(|| home.join(beneath_home)).join("salaam")
        };
        let pick = |own: &str, unit: &str, listed: Option<&PathBuf>, otherwise: PathBuf| {
            if let Some(path) = variables.path(own) {
                return if is_plain_absolute(&path) {
                    Ok(path)
                } else {
                    let why = "it must be an absolute path without `.` and `..`".into();
                    Err(HostError::Value { key: own.into(), place: "the environment".into(), why })
                };
            }
            Ok(variables.unit_path(unit).or_else(|| listed.cloned()).unwrap_or(otherwise))
        };
        let state = pick(
            "SALAAM_STATE_DIR",
            "STATE_DIRECTORY",
            listed.map(|d| &d.state),
            xdg("XDG_STATE_HOME", ".local/state"),
        )?;
        let run = variables.path("XDG_RUNTIME_DIR").filter(|path| path.is_absolute());
        let run = run.map_or_else(|| state.join("run"), |path| path.join("salaam"));
        Ok(Self {
            config: pick(
                "SALAAM_CONFIG_DIR",
                "CONFIGURATION_DIRECTORY",
                listed.map(|d| &d.config),
                xdg("XDG_CONFIG_HOME", ".config"),
            )?,
            runtime: pick("SALAAM_RUNTIME_DIR", "RUNTIME_DIRECTORY", listed.map(|d| &d.runtime), run)?,
            // No unit directive names LIBEXEC, so no variable of systemd's is asked.
            libexec: pick("SALAAM_LIBEXEC_DIR", "", listed.map(|d| &d.libexec), libexec_of(executable))?,
            state,
        })
    }

    /// The operator socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join(SOCKET_NAME)
    }

    /// Makes the directories that are missing, 0700, and gives the runtime directory that it made to the
    /// operators group (0710). What exists is left as it is: the checks judge it. Returns what it made, parents
    /// first.
    pub fn create_missing(&self, operators_gid: Option<u32>) -> Result<Vec<PathBuf>, HostError> {
        let mut made = Vec::new();
        for path in [&self.config, &self.state] {
            made.extend(make(path)?);
        }
        let runtime = make(&self.runtime)?;
        let new = !runtime.is_empty();
        made.extend(runtime);
        if new && let Some(gid) = operators_gid {
            let doing = HostError::io("cannot give to the operators group", &self.runtime);
            std::os::unix::fs::chown(&self.runtime, None, Some(gid)).map_err(doing)?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(PASSABLE_FOR_GROUP);
            let doing = HostError::io("cannot set the mode of", &self.runtime);
            std::fs::set_permissions(&self.runtime, mode).map_err(doing)?;
        }
        Ok(made)
    }

    /// `{state,config,runtime}-dir-mode` and `socket-path-long`.
    pub fn checks(&self, service_uid: u32, operators_gid: Option<u32>) -> Vec<Check> {
        vec![
            private("state-dir-mode", &self.state, service_uid, None),
            private("config-dir-mode", &self.config, service_uid, None),
            private("runtime-dir-mode", &self.runtime, service_uid, operators_gid),
            socket_path(&self.socket()),
        ]
    }
}

/// LIBEXEC of the running program: `SALAAM_LIBEXEC_DIR`, else relative to it. Set-up asks, which belongs to no
/// instance yet.
pub fn libexec() -> Result<PathBuf, HostError> {
    let executable = std::env::current_exe().map_err(HostError::io("cannot find", "/proc/self/exe"))?;
    let given = Variables::of_process().path("SALAAM_LIBEXEC_DIR").filter(|path| is_plain_absolute(path));
    Ok(given.unwrap_or_else(|| libexec_of(&executable)))
}

/// `PREFIX/bin/salaam` has `PREFIX/libexec/salaam`; run from anywhere else (a build directory), the executor
/// lies beside it.
fn libexec_of(executable: &Path) -> PathBuf {
    let directory = executable.parent().unwrap_or(Path::new("/"));
    match (directory.file_name(), directory.parent()) {
        (Some(name), Some(prefix)) if name == "bin" => prefix.join("libexec/salaam"),
        (Some(_) | None, _) => directory.to_owned(),
    }
}

/// The directories that were made for `path` now, parents first.
fn make(path: &Path) -> Result<Vec<PathBuf>, HostError> {
    if path.is_dir() {
        return Ok(Vec::new());
    }
    let mut made: Vec<_> = path
        .ancestors()
        .take_while(|above| above.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound))
        .map(Path::to_owned)
        .collect();
    made.reverse();
    let doing = HostError::io("cannot make the directory", path);
    DirBuilder::new().recursive(true).mode(PRIVATE).create(path).map_err(doing)?;
    Ok(made)
}

fn private(id: &str, path: &Path, service_uid: u32, group: Option<u32>) -> Check {
    let shown = path.display();
    let unproven = |e: &io::Error| Check {
        id: id.into(),
        status: salaam_core::check::Status::Unproven,
        evidence: format!("{shown}: {e}"),
        fix: format!("make {shown} a directory that uid {service_uid} can reach, or name another one"),
    };
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Check::pass(id, format!("{shown} does not exist; start makes it, mode 0700"));
        }
        Err(e) => return unproven(&e),
    };
    let mode = meta.mode() & 0o7777;
    let evidence = format!("{shown} has mode {mode:04o}, uid {}, gid {}", meta.uid(), meta.gid());
    if !meta.is_dir() {
        return Check::fail(id, format!("{shown} is no directory"), format!("mv {shown} {shown}.away"));
    }
    if meta.uid() != service_uid {
        return Check::fail(id, evidence, format!("sudo chown {service_uid} {shown}"));
    }
    let shared = group.is_some_and(|gid| mode == PASSABLE_FOR_GROUP && meta.gid() == gid);
    if mode != PRIVATE && !shared {
        let fix = match group {
            Some(gid) => format!("chgrp {gid} {shown} && chmod 0710 {shown}"),
            None => format!("chmod 0700 {shown}"),
        };
        return Check::fail(id, evidence, fix);
    }
    let above = path.canonicalize().and_then(|real| untrusted_above(&real, Trust { uid: service_uid }));
    match above {
        Ok(None) => Check::pass(id, evidence),
        Ok(Some((above, why))) => Check::fail(
            id,
            format!("{evidence}, but {} above it could be exchanged: {why}", above.display()),
            format!("sudo chmod go-w {}", above.display()),
        ),
        Err(e) => unproven(&e),
    }
}

fn socket_path(path: &Path) -> Check {
    let length = path.as_os_str().as_bytes().len();
    let evidence = format!("{} has {length} bytes of at most {SOCKET_PATH_MAX}", path.display());
    if length <= SOCKET_PATH_MAX {
        Check::pass("socket-path-long", evidence)
    } else {
        Check::fail("socket-path-long", evidence, "set SALAAM_RUNTIME_DIR to a shorter directory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_fits_to_the_byte() {
        let of = |n: usize| PathBuf::from(format!("/{}", "a".repeat(n - 1)));
        assert!(!socket_path(&of(SOCKET_PATH_MAX)).refuses());
        let long = socket_path(&of(SOCKET_PATH_MAX + 1));
        assert!(long.refuses());
        assert!(long.evidence.contains(&(SOCKET_PATH_MAX + 1).to_string()), "{}", long.evidence);
    }

    #[test]
    fn the_executor_is_found_relative_to_the_program() {
        assert_eq!(libexec_of(Path::new("/opt/s/bin/salaam")), Path::new("/opt/s/libexec/salaam"));
        assert_eq!(libexec_of(Path::new("/src/target/release/salaam")), Path::new("/src/target/release"));
    }
}
