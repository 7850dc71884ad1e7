//! What the tools user is to try, object by object.

use std::{
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::FileTypeExt as _,
    },
    path::{Path, PathBuf},
};

use salaam_core::bridge::{Action, Attempt};

use crate::host::{Account, Host};

/// Whose object it is, which says how the service shows that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The service's: it opens or connects to it itself.
    Service,
    /// The service's, and open in the library that holds its locks: closing another descriptor of it would drop
    /// them (fcntl(2)), so it is opened as a path only.
    Database,
    /// The kernel's word about the service's process; part of it is root's.
    Process,
    /// Somebody else's: it is seen, and need not be there.
    Other,
    /// A program that the executor knows.
    Program,
    /// Everybody's: whoever is denied that, is denied everything, and what else it is denied shows nothing.
    Everybody,
}

/// One attempt and the check that it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Try {
    pub(super) check: &'static str,
    pub(super) action: Action,
    pub(super) path: PathBuf,
    pub(super) owner: Owner,
}

impl Try {
    /// As it crosses the bridge, under its number.
    pub(super) fn attempt(&self, number: usize) -> Attempt {
        Attempt {
            id: format!("{}_{number}", self.check),
            action: self.action,
            path: self.path.as_os_str().as_bytes().to_vec(),
        }
    }
}

/// What is no check: every account can open and list these (the accounts of the host, and its root).
pub(super) const CONTROL: &str = "control";
const OPEN_TO_ALL: [(Action, &str); 2] = [(Action::Read, "/etc/passwd"), (Action::List, "/")];

/// The checks that attempts answer, in the order in which they are shown.
pub(super) const CHECKS: [&str; 12] = [
    "tools-user-can-sudo",
    "state-readable",
    "config-readable",
    "credential-readable",
    "environ-readable",
    "operator-socket-reachable",
    "docker-socket-reachable",
    "stk-socket-reachable",
    "session-bus-socket-reachable",
    "can-linger",
    "can-cron",
    "can-at",
];

/// At most so many entries of one directory: the attempts of one call are bounded.
const MOST_ENTRIES: usize = 32;

/// The checks among them that only a program answers.
pub(super) const BY_PROGRAM: [&str; 4] = ["tools-user-can-sudo", "can-linger", "can-cron", "can-at"];

/// Everything to try. `socket` is the operator socket, or what stands in for it before it exists; without `loud`
/// no program is run, since sudo and cron write a line into the system's log each time.
pub(super) fn all(host: &Host, tools: &Account, socket: Option<&Path>, loud: bool) -> Vec<Try> {
    let dirs = &host.dirs;
    // Not the lock file: it holds no secret, and closing it after a look would drop the POSIX lock by which
    // `service stop` finds this process (fcntl(2)).
    let mut tries = inside("state-readable", &dirs.state, &["blobs", "log", "log/service.log"]);
    let database = ["salaam.db", "salaam.db-wal", "salaam.db-shm"].map(|name| dirs.state.join(name));
    let database = database.into_iter().filter(|path| path.symlink_metadata().is_ok());
    tries.extend(database.map(|path| Try {
        check: "state-readable",
        action: Action::Read,
        path,
        owner: Owner::Database,
    }));
    tries.extend(inside("config-readable", &dirs.config, &["manifest.json", "host.toml"]));
    tries.extend(credentials(host));
    tries.extend(process());
    tries.extend(socket.map(|path| Try {
        check: "operator-socket-reachable",
        action: Action::Connect,
        path: path.to_owned(),
        owner: Owner::Service,
    }));
    tries.extend(sockets("docker-socket-reachable", containers(tools)));
    tries.extend(sockets("stk-socket-reachable", sandbox_kit()));
    tries.extend(sockets("session-bus-socket-reachable", buses(host, tools)));
    tries.extend(OPEN_TO_ALL.map(|(action, path)| Try {
        check: CONTROL,
        action,
        path: path.into(),
        owner: Owner::Everybody,
    }));
    if loud {
        tries.extend(programs(tools));
    }
    tries
}

/// A directory of the service and what of `names` is in it, as far as they are there now.
fn inside(check: &'static str, directory: &Path, names: &[&str]) -> Vec<Try> {
    let names = std::iter::once(directory.to_owned()).chain(names.iter().map(|name| directory.join(name)));
    let there = names.filter_map(|path| Some((path.symlink_metadata().ok()?.is_dir(), path)));
    there
        .map(|(is_dir, path)| {
            let action = if is_dir { Action::List } else { Action::Read };
            Try { check, action, path, owner: Owner::Service }
        })
        .collect()
}

/// Files that hold credentials, in the home of the service user: where tools of its own kind leave them.
const CREDENTIALS: [&str; 16] = [
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/gcloud/application_default_credentials.json",
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".kube/config",
    ".docker/config.json",
    ".cargo/credentials.toml",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".vault-token",
];

fn credentials(host: &Host) -> Vec<Try> {
    let home = &host.home;
    let keys = entries(&home.join(".ssh")).into_iter().filter(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let public = name.ends_with(".pub") || name.starts_with("known_hosts") || name == "authorized_keys";
        !public && name != "config"
    });
    let own = host.dirs.config.join("credentials");
    let listed = CREDENTIALS.iter().map(|name| home.join(name)).chain(keys).chain(entries(&own));
    let readable = listed.filter(|path| path.is_file());
    readable
        .map(|path| Try { check: "credential-readable", action: Action::Read, path, owner: Owner::Service })
        .collect()
}

fn process() -> Vec<Try> {
    let base = PathBuf::from(format!("/proc/{}", std::process::id()));
    [("environ", Action::Read), ("mem", Action::Read), ("maps", Action::Read), ("fd", Action::List)]
        .into_iter()
        .map(|(name, action)| Try { check: "environ-readable", action, path: base.join(name), owner: Owner::Process })
        .collect()
}

fn sockets(check: &'static str, paths: Vec<PathBuf>) -> impl Iterator<Item = Try> {
    paths.into_iter().map(move |path| Try { check, action: Action::Connect, path, owner: Owner::Other })
}

/// Whoever speaks to a container daemon of root's is root.
fn containers(tools: &Account) -> Vec<PathBuf> {
    let own = PathBuf::from(format!("/run/user/{}", tools.uid));
    let fixed = [
        "/run/docker.sock",
        "/run/podman/podman.sock",
        "/run/containerd/containerd.sock",
        "/run/crio/crio.sock",
        "/run/incus/unix.socket",
        "/var/lib/incus/unix.socket",
        "/var/snap/lxd/common/lxd/unix.socket",
    ];
    let own = ["docker.sock", "podman/podman.sock"].map(|name| own.join(name));
    fixed.into_iter().map(PathBuf::from).chain(own).collect()
}

/// /run/stk is a socket, or a directory of them.
fn sandbox_kit() -> Vec<PathBuf> {
    let place = Path::new("/run/stk");
    if !place.is_dir() {
        return vec![place.to_owned()];
    }
    let is_socket = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    let found: Vec<PathBuf> = entries(place).into_iter().filter(is_socket).collect();
    if found.is_empty() { vec![place.join("stk.sock")] } else { found }
}

/// The message bus and the service manager of both accounts: whoever reaches one has processes started outside
/// of every sandbox.
fn buses(host: &Host, tools: &Account) -> Vec<PathBuf> {
    [tools.uid, host.service_uid]
        .into_iter()
        .flat_map(|uid| ["bus", "systemd/private"].map(|name| PathBuf::from(format!("/run/user/{uid}/{name}"))))
        .collect()
}

fn programs(tools: &Account) -> Vec<Try> {
    let mut programs = vec![
        ("tools-user-can-sudo", Action::SudoRoot),
        ("tools-user-can-sudo", Action::SudoList),
        ("session-bus-socket-reachable", Action::SystemdRun),
        ("can-cron", Action::Crontab),
        ("can-at", Action::At),
    ];
    // What lingers already is not tried: taking that back would change what somebody chose.
    if !lingers(tools) {
        programs.push(("can-linger", Action::Linger));
    }
    let of = |(check, action)| Try { check, action, path: PathBuf::from("/"), owner: Owner::Program };
    programs.into_iter().map(of).collect()
}

/// Whether systemd keeps the account's service manager without a session.
pub(super) fn lingers(tools: &Account) -> bool {
    Path::new("/var/lib/systemd/linger").join(&tools.name).exists()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| directory.join(std::ffi::OsString::from_vec(entry.file_name().into_vec())))
        .take(MOST_ENTRIES)
        .collect();
    names.sort_unstable();
    names
}
