//! What bwrap is told. Order is meaning here: a later mount covers an earlier one.

use std::{
    ffi::CString,
    os::{
        fd::{OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::Arc,
};

use salaam_core::limits::Limits;

use super::{
    environment::{CARGO_HOME, cargo_links},
    mask::Hidden,
    paths::ReadPath,
    protect::Protected,
    system::{Shown, shown},
};

/// Where salaam-launch is inside.
pub const LAUNCH_INSIDE: &str = "/.salaam/launch";

/// The descriptors that bwrap inherits, each with the number that the arguments name.
#[derive(Debug, Default)]
pub struct Descriptors {
    list: Vec<(Arc<OwnedFd>, RawFd)>,
    next: RawFd,
}

impl Descriptors {
    /// Numbers from `first` on are free.
    pub fn from(first: RawFd) -> Self {
        Self { list: Vec::new(), next: first }
    }

    /// Passes `descriptor` at the next number and returns that.
    pub fn add(&mut self, descriptor: Arc<OwnedFd>) -> RawFd {
        let number = self.next;
        self.next += 1;
        self.put(descriptor, number);
        number
    }

    /// Passes `descriptor` at `number`.
    pub fn put(&mut self, descriptor: Arc<OwnedFd>, number: RawFd) {
        self.list.push((descriptor, number));
    }

    /// All of them.
    pub fn into_list(self) -> Vec<(Arc<OwnedFd>, RawFd)> {
        self.list
    }
}

/// The argument vector, in the making.
#[derive(Debug, Default)]
pub struct Arguments(Vec<CString>);

impl Arguments {
    fn add<const N: usize>(&mut self, words: [&[u8]; N]) {
        // No word holds a NUL: paths were checked, the rest is text of ours. One that did would be dropped,
        // and bwrap refuses what is left.
        self.0.extend(words.into_iter().filter_map(|word| CString::new(word).ok()));
    }

    fn flags(&mut self, words: &[&str]) {
        for word in words {
            self.add([word.as_bytes()]);
        }
    }

    fn with_descriptor(&mut self, option: &str, number: RawFd, destination: &Path) {
        self.add([option.as_bytes(), number.to_string().as_bytes(), destination.as_os_str().as_bytes()]);
    }

    /// The finished vector.
    pub fn into_vec(self) -> Vec<CString> {
        self.0
    }
}

/// Everything that the walls of one command are made of.
#[derive(Debug)]
pub struct Walls<'a> {
    /// The workspace's absolute path, the same inside.
    pub workspace: &'a Path,
    /// Its root, held since it was opened.
    pub root: Arc<OwnedFd>,
    /// Whether the command may write it.
    pub writable: bool,
    /// Mounts over protected paths, parents first.
    pub protected: Vec<Protected>,
    /// Paths shown beside the system's.
    pub read_paths: &'a [ReadPath],
    /// What of them is covered.
    pub hidden: &'a [Hidden],
    /// An empty file, to cover others.
    pub nothing: Option<Arc<OwnedFd>>,
    /// Content that was bound: where, mode, bytes.
    pub bound: Vec<(&'a Path, u32, Arc<OwnedFd>)>,
    /// Our own files, copied into the root. That is read-only in the end, so they need no mount, which costs as much
    /// as ten copies.
    pub files: Vec<(&'a Path, Arc<OwnedFd>)>,
    /// salaam-launch: a place for a bind, or its content where the file is gone.
    pub launch: Launch,
    /// The size of /tmp and of /dev/shm.
    pub limits: &'a Limits,
}

/// How salaam-launch gets inside.
#[derive(Debug, Clone)]
pub enum Launch {
    /// Bound from this place.
    Place(Arc<OwnedFd>),
    /// Copied from this content: an upgrade has unlinked the file, and an unlinked file cannot be bound.
    Content(Arc<OwnedFd>),
}

/// The full walls: every namespace, an empty root, nothing of the host but what is listed.
pub fn walled(walls: Walls<'_>, status: RawFd, descriptors: &mut Descriptors) -> Arguments {
    let mut arguments = Arguments::default();
    arguments.flags(&[
        "bwrap",
        // By name: --unshare-all goes on without a user or cgroup namespace where there is none.
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "salaam",
        "--json-status-fd",
        &status.to_string(),
    ]);
    system(&mut arguments, descriptors);
    let tmp_bytes = walls.limits.tmp_bytes.to_string();
    arguments.flags(&["--dev", "/dev", "--size", &tmp_bytes, "--perms", "1777", "--tmpfs", "/dev/shm"]);
    // bwrap's /dev is a tmpfs without a size; only /dev/shm is for writing.
    arguments.flags(&["--remount-ro", "/dev", "--proc", "/proc"]);
    arguments.flags(&[
        "--size",
        &tmp_bytes,
        "--perms",
        "1777",
        "--tmpfs",
        "/tmp",
        "--perms",
        "0700",
        "--dir",
        "/tmp/home",
    ]);
    arguments.flags(&["--symlink", "../tmp", "/var/tmp"]);
    for read in walls.read_paths.iter().filter(|read| read.content.is_none()) {
        let number = descriptors.add(Arc::clone(&read.descriptor));
        arguments.with_descriptor("--ro-bind-fd", number, &read.path);
    }
    for hidden in walls.hidden {
        arguments.flags(&["--perms", "0000"]);
        let path = hidden.path.as_os_str().as_bytes();
        match (&walls.nothing, hidden.is_directory) {
            // As a file it cannot be covered then, and bwrap refuses to cover it as a directory.
            (None, _) | (Some(_), true) => {
                arguments.add([b"--tmpfs", path]);
                arguments.add([b"--remount-ro", path]);
            }
            (Some(nothing), false) => {
                let number = descriptors.add(Arc::clone(nothing));
                arguments.with_descriptor("--ro-bind-data", number, &hidden.path);
            }
        }
    }
    let links = cargo_links(walls.read_paths);
    if !links.is_empty() {
        arguments.flags(&["--dir", CARGO_HOME]);
    }
    for (bound, link) in links {
        arguments.add([b"--symlink", bound.as_os_str().as_bytes(), link.as_bytes()]);
    }
    workspace(&mut arguments, &walls, descriptors);
    for (path, content) in &walls.files {
        let number = descriptors.add(Arc::clone(content));
        arguments.flags(&["--perms", "0444"]);
        arguments.with_descriptor("--file", number, path);
    }
    match &walls.launch {
        Launch::Place(place) => {
            let number = descriptors.add(Arc::clone(place));
            arguments.with_descriptor("--ro-bind-fd", number, Path::new(LAUNCH_INSIDE));
        }
        Launch::Content(content) => {
            let number = descriptors.add(Arc::clone(content));
            arguments.flags(&["--perms", "0555"]);
            arguments.with_descriptor("--ro-bind-data", number, Path::new(LAUNCH_INSIDE));
        }
    }
    // Last: what bwrap still creates in the root, it must be able to create.
    arguments.flags(&["--remount-ro", "/", "--", LAUNCH_INSIDE]);
    arguments
}

fn system(arguments: &mut Arguments, descriptors: &mut Descriptors) {
    for part in shown() {
        match part {
            Shown::Link(target, path) => arguments.add([b"--symlink", &target, path.as_bytes()]),
            Shown::Bound(path) => arguments.add([b"--ro-bind", path.as_bytes(), path.as_bytes()]),
            Shown::Copied(file, path) => {
                let number = descriptors.add(Arc::new(file.into()));
                arguments.flags(&["--perms", "0444"]);
                arguments.with_descriptor("--file", number, Path::new(path));
            }
        }
    }
}

fn workspace(arguments: &mut Arguments, walls: &Walls<'_>, descriptors: &mut Descriptors) {
    let option = if walls.writable { "--bind-fd" } else { "--ro-bind-fd" };
    let number = descriptors.add(Arc::clone(&walls.root));
    arguments.with_descriptor(option, number, walls.workspace);
    for mount in &walls.protected {
        let option = if mount.read_only { "--ro-bind-fd" } else { "--bind-fd" };
        let number = descriptors.add(Arc::clone(&mount.descriptor));
        arguments.with_descriptor(option, number, &walls.workspace.join(&mount.path));
    }
    for (path, mode, content) in &walls.bound {
        let number = descriptors.add(Arc::clone(content));
        arguments.add([b"--perms", format!("{:04o}", mode & 0o777).as_bytes()]);
        arguments.with_descriptor("--ro-bind-data", number, path);
    }
}

/// No walls but a pid namespace, so that nothing reaches toolsd and nothing outlives its limit.
pub fn bare(
    launch: &Path,
    workspace: &Path,
    root: Arc<OwnedFd>,
    status: RawFd,
    descriptors: &mut Descriptors,
) -> Arguments {
    let mut arguments = Arguments::default();
    arguments.flags(&[
        "bwrap",
        "--unshare-user",
        "--unshare-pid",
        "--die-with-parent",
        "--new-session",
        "--json-status-fd",
        &status.to_string(),
        "--bind",
        "/",
        "/",
        "--dev-bind",
        "/dev",
        "/dev",
        "--proc",
        "/proc",
    ]);
    // Over itself: the working directory is the workspace that was opened, whatever its name leads to now.
    let number = descriptors.add(root);
    arguments.with_descriptor("--bind-fd", number, workspace);
    arguments.add([b"--", launch.as_os_str().as_bytes()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(writable: bool) -> Vec<String> {
        let open = || Arc::new(OwnedFd::from(std::fs::File::open("/").unwrap()));
        let limits = Limits::default();
        let walls = Walls {
            workspace: Path::new("/srv/x"),
            root: open(),
            writable,
            protected: Vec::new(),
            read_paths: &[],
            hidden: &[],
            nothing: None,
            bound: vec![(Path::new("/srv/x/run.sh"), 0o4755, open())],
            files: vec![(Path::new("/.salaam/gitconfig"), open())],
            launch: Launch::Place(open()),
            limits: &limits,
        };
        let arguments = walled(walls, 7, &mut Descriptors::from(8));
        arguments.into_vec().into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn every_namespace_is_demanded_by_name() {
        let words = words(true);
        for option in ["user", "pid", "net", "ipc", "uts", "cgroup"] {
            assert!(words.contains(&format!("--unshare-{option}")));
        }
        assert!(!words.iter().any(|word| word.ends_with("-try") || word == "--unshare-all" || word == "--as-pid-1"));
    }

    #[test]
    fn the_root_is_made_read_only_last_and_modes_carry_no_setuid() {
        let words = words(true);
        assert_eq!(words[words.len() - 4..], ["--remount-ro", "/", "--", LAUNCH_INSIDE]);
        assert!(words.windows(2).any(|pair| pair == ["--perms", "0755"]));
    }

    #[test]
    fn a_read_only_profile_binds_the_workspace_read_only() {
        let of = |words: Vec<String>| words.windows(3).find(|w| w[2] == "/srv/x").map(|w| w[0].clone());
        assert_eq!(of(words(true)).as_deref(), Some("--bind-fd"));
        assert_eq!(of(words(false)).as_deref(), Some("--ro-bind-fd"));
    }
}
