//! Paths that a command never gets, whoever asks: checked again here as if the service were hostile.

use std::{
    ffi::OsStr,
    io::Read,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2},
    libc,
    sys::stat::{Mode, fstat},
    unistd::{AccessFlags, access, geteuid},
};
use salaam_core::credential;

/// Why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathRefusal {
    /// Not absolute, or with `.`, `..`, an empty part or a NUL byte; the kernel's PATH_MAX is 4096.
    #[error("{} is not an absolute path in its plain form (no `.`, `..`, `//`; at most 4095 bytes)", .0.display())]
    NotPlain(PathBuf),
    /// The system's own.
    #[error("{} belongs to the system; use a directory of its own below /srv or a home", .0.display())]
    System(PathBuf),
    /// A home itself.
    #[error("{} is a home; use a directory below it", .0.display())]
    Home(PathBuf),
    /// A place of credentials, or above one.
    #[error("{path} would show the credentials in {credential}; name a narrower path", path = .path.display(), credential = .credential.display())]
    Credential {
        /// What was asked for.
        path: PathBuf,
        /// What it would show.
        credential: PathBuf,
    },
    /// It, or what lies above it, can be changed by the commands that it is shown to.
    #[error("{path} is not fixed: this account can write {writable}; make it root's or another account's", path = .path.display(), writable = .writable.display())]
    Writable {
        /// What was asked for.
        path: PathBuf,
        /// What is writable.
        writable: PathBuf,
    },
    /// Neither a file nor a directory.
    #[error("{} is neither a file nor a directory; a socket, say, would be a way out", .0.display())]
    Kind(PathBuf),
    /// Not what was pinned.
    #[error("{} is not what it was when the plan was pinned; look at it, then `salaam host plan --pin`", .0.display())]
    Replaced(PathBuf),
    /// A configuration of git with a secret in it.
    #[error("{path} holds a secret ({setting}); keep it in a file of its own, or leave the path out", path = .path.display())]
    Secret {
        /// What was asked for.
        path: PathBuf,
        /// Where in it.
        setting: String,
    },
    /// A symbolic link on the way.
    #[error("{} goes through a symbolic link; name the real path", .0.display())]
    Link(PathBuf),
    /// It could not be opened.
    #[error("{path} cannot be opened by this account: {errno}", path = .path.display())]
    Open {
        /// What was asked for.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
}

/// A path that is shown read-only, held by descriptor.
#[derive(Debug)]
pub struct ReadPath {
    /// Where it is, inside as outside.
    pub path: PathBuf,
    /// What is bound there.
    pub descriptor: Arc<OwnedFd>,
    /// The very bytes that are shown instead, where these were judged.
    pub content: Option<Vec<u8>>,
}

/// Takes bytes for an absolute path in plain form.
pub fn absolute(bytes: &[u8]) -> Result<PathBuf, PathRefusal> {
    let path = PathBuf::from(OsStr::from_bytes(bytes));
    let parts_are_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    // components() swallows `.` and `//`, so the parts put together again must give the same bytes.
    let rebuilt: PathBuf = path.components().collect();
    let plain = path.is_absolute() && parts_are_plain && rebuilt.as_os_str() == path.as_os_str();
    if plain && bytes.len() < 4096 && !bytes.contains(&0) { Ok(path) } else { Err(PathRefusal::NotPlain(path)) }
}

/// Directories that are refused with all that lies beneath.
const SYSTEM: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/proc", "/sys", "/boot", "/run",
    "/.salaam",
];

/// Directories that are refused themselves; what lies beneath may be somebody's work.
const TOPS: &[&str] =
    &["/", "/home", "/var", "/var/lib", "/var/tmp", "/tmp", "/tmp/home", "/srv", "/opt", "/mnt", "/media"];

/// Refuses a workspace that is the system's, a home, or everything.
pub fn refuse_workspace(path: &Path) -> Result<(), PathRefusal> {
    refuse_system(path)?;
    refuse_home(path)
}

fn refuse_system(path: &Path) -> Result<(), PathRefusal> {
    let inside = SYSTEM.iter().any(|system| path.starts_with(system));
    if inside || TOPS.iter().any(|top| path == Path::new(top)) {
        return Err(PathRefusal::System(path.to_owned()));
    }
    Ok(())
}

fn refuse_home(path: &Path) -> Result<(), PathRefusal> {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_home = accounts.lines().filter_map(|line| line.split(':').nth(5)).any(|home| path == Path::new(home));
    if is_home || path == Path::new("/root") || path.parent() == Some(Path::new("/home")) {
        return Err(PathRefusal::Home(path.to_owned()));
    }
    Ok(())
}

/// For whom a read path is opened.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Workspaces that are open: none of them is shown to commands of another.
    pub workspaces: &'a [PathBuf],
    /// This account is the service user itself (service-user mode): it owns its toolchain, and only commands without walls
    /// could exchange it.
    pub as_service_user: bool,
}

/// Opens a path that the operator wants readable, after every refusal. What is bound later is what was
/// checked here, and what `identity` said when the manifest was pinned.
pub fn open_read_path(bytes: &[u8], identity: &str, reading: Reading<'_>) -> Result<ReadPath, PathRefusal> {
    let path = absolute(bytes)?;
    refuse_workspace(&path)?;
    let overlaps = |workspace: &&PathBuf| path.starts_with(workspace) || workspace.starts_with(&path);
    if let Some(workspace) = reading.workspaces.iter().find(overlaps) {
        return Err(PathRefusal::Writable { path, writable: workspace.clone() });
    }
    refuse_credentials(&path)?;
    if !reading.as_service_user {
        refuse_writable(&path)?;
    }
    let descriptor = open_plain(&path)?;
    let kernel = |errno| PathRefusal::Open { path: path.clone(), errno };
    let stat = fstat(&descriptor).map_err(kernel)?;
    let is = salaam_sys::file::identity(&descriptor);
    if is.map_err(|e| kernel(Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO))))? != identity {
        return Err(PathRefusal::Replaced(path));
    }
    // Read-only says nothing about a socket, a pipe or a device: who may open one may talk to what is behind it.
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Ok(ReadPath { path, descriptor: Arc::new(descriptor), content: None }),
        libc::S_IFREG if is_git_config(&path) => git_config(path, &descriptor),
        libc::S_IFREG => Ok(ReadPath { path, descriptor: Arc::new(descriptor), content: None }),
        _ => Err(PathRefusal::Kind(path)),
    }
}

fn is_git_config(path: &Path) -> bool {
    path.ends_with(".gitconfig") || path.ends_with(".config/git/config")
}

/// The very bytes in which no secret was found: the file may get one at any time.
fn git_config(path: PathBuf, place: &OwnedFd) -> Result<ReadPath, PathRefusal> {
    let failed = |errno| PathRefusal::Open { path: path.clone(), errno };
    let file = open(
        format!("/proc/self/fd/{}", place.as_raw_fd()).as_str(),
        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    );
    let mut bytes = Vec::new();
    let read = std::fs::File::from(file.map_err(failed)?).take(MAX_GIT_CONFIG + 1).read_to_end(&mut bytes);
    read.map_err(|e| failed(Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO))))?;
    if bytes.len() as u64 > MAX_GIT_CONFIG {
        return Err(PathRefusal::Secret { path, setting: "more than 256 KiB".into() });
    }
    if let Some(setting) = credential::secret_in(&bytes) {
        return Err(PathRefusal::Secret { path, setting });
    }
    let descriptor = place.try_clone().map_err(|e| failed(Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO))))?;
    Ok(ReadPath { path, descriptor: Arc::new(descriptor), content: Some(bytes) })
}

/// As large as a config of a repository may be.
const MAX_GIT_CONFIG: u64 = salaam_core::git_config::MAX_BYTES;

/// Opens an absolute path of which no part is a link, as a place only.
pub(crate) fn open_plain(path: &Path) -> Result<OwnedFd, PathRefusal> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(AT_FDCWD, path, how) {
        Ok(descriptor) => Ok(descriptor),
        Err(Errno::ELOOP) => Err(PathRefusal::Link(path.to_owned())),
        Err(errno) => Err(PathRefusal::Open { path: path.to_owned(), errno }),
    }
}

fn refuse_credentials(path: &Path) -> Result<(), PathRefusal> {
    let refuse = |credential: PathBuf| Err(PathRefusal::Credential { path: path.to_owned(), credential });
    // At or in one: its words stand anywhere in the path, in any case of letters.
    if let Some(place) = credential::place_of(path.as_os_str().as_bytes()) {
        return refuse(PathBuf::from(OsStr::from_bytes(place)));
    }
    for credential in credential::PLACES.iter().map(Path::new) {
        // Above one: with the path as the home, or as any directory between home and credential.
        let parts: Vec<_> = credential.components().collect();
        for split in 0..parts.len() {
            let (above, below) = parts.split_at(split);
            if !path.ends_with(above.iter().collect::<PathBuf>()) && split > 0 {
                continue;
            }
            let shown = path.join(below.iter().collect::<PathBuf>());
            // Anything but a clear "not there" counts as there.
            if !matches!(shown.symlink_metadata(), Err(error) if is_absence(&error)) {
                return refuse(shown);
            }
        }
    }
    Ok(())
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ENOTDIR))
}

/// A path whose ancestors this account can write is whatever a command makes of it.
fn refuse_writable(path: &Path) -> Result<(), PathRefusal> {
    let me = geteuid();
    let mut child: Option<&Path> = None;
    for part in path.ancestors() {
        let writable = access(part, AccessFlags::W_OK).is_ok();
        let metadata = part.symlink_metadata();
        // In a sticky directory nobody moves what is another's.
        let sticky = metadata.as_ref().is_ok_and(|meta| meta.mode() & 0o1000 != 0)
            && child.is_some_and(|child| child.symlink_metadata().is_ok_and(|meta| meta.uid() != me.as_raw()));
        // Root can write everything, so for root this says nothing; toolsd never is root outside tests.
        if writable && !sticky && !me.is_root() {
            return Err(PathRefusal::Writable { path: path.to_owned(), writable: part.to_owned() });
        }
        child = Some(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_taken() {
        assert_eq!(absolute(b"/srv/x").unwrap(), Path::new("/srv/x"));
        for bad in [&b""[..], b"srv/x", b"/srv/../x", b"/srv/./x", b"/srv//x", b"/srv/x/", b"/a\0b", &[b'/'; 5000]] {
            assert!(absolute(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_system_a_home_and_everything_are_no_workspace() {
        for bad in ["/", "/usr", "/usr/src/x", "/etc", "/proc/1", "/home", "/home/u", "/root", "/tmp", "/run/x", "/srv"]
        {
            assert!(refuse_workspace(Path::new(bad)).is_err(), "{bad}");
        }
        for good in ["/srv/x", "/home/u/x", "/tmp/x", "/var/lib/u/x", "/usrx"] {
            assert_eq!(refuse_workspace(Path::new(good)), Ok(()), "{good}");
        }
    }

    #[test]
    fn credentials_are_refused_from_below_from_above_and_themselves() {
        let home = std::env::temp_dir().join(format!("salaam-paths-{}", std::process::id()));
        for place in [".aws", ".cargo/bin", ".config/gcloud", "work"] {
            std::fs::create_dir_all(home.join(place)).unwrap();
        }
        std::fs::write(home.join(".cargo/credentials.toml"), "x").unwrap();
        let refused = |path: &str| refuse_credentials(&home.join(path)).is_err();
        let verdicts =
            [".aws", ".aws/deep/er", ".config", ".config/gcloud/x", ".cargo", "", "work", ".cargo/bin"].map(refused);
        std::fs::remove_dir_all(&home).unwrap();
        assert_eq!(verdicts, [true, true, true, true, true, true, false, false]);
    }

    #[test]
    fn a_socket_or_a_fifo_is_no_read_path() {
        let directory = std::env::temp_dir().join(format!("salaam-kind-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(directory.join("socket")).unwrap();
        nix::unistd::mkfifo(&directory.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(directory.join("file"), "").unwrap();
        let reading = Reading { workspaces: &[], as_service_user: false };
        let open = |name: &str| {
            let path = directory.join(name);
            let identity = open_plain(&path).map(|place| salaam_sys::file::identity(place).unwrap()).unwrap();
            open_read_path(path.as_os_str().as_bytes(), &identity, reading)
        };
        let refused = ["socket", "fifo"].map(|name| open(name).unwrap_err());
        let file = open("file");
        std::fs::remove_dir_all(&directory).unwrap();
        // Whoever is not root can write what it has just made, which is refused first.
        let root = geteuid().is_root();
        assert!(refused.iter().all(|why| matches!(why, PathRefusal::Kind(_)) == root), "{refused:?}");
        assert_eq!(file.is_ok(), root);
    }

    #[test]
    fn a_link_on_the_way_is_refused() {
        let directory = std::env::temp_dir().join(format!("salaam-link-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("real")).unwrap();
        std::os::unix::fs::symlink("real", directory.join("link")).unwrap();
        let (through, itself) = (open_plain(&directory.join("link")), open_plain(&directory.join("real")));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(through, Err(PathRefusal::Link(_))));
        assert!(itself.is_ok());
    }
}
