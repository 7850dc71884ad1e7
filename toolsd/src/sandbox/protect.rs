//! What a command may not change although it lies in its workspace: files that make a later git, editor or
//! shell run something. Each that exists becomes a read-only mount, and every directory above it, below the
//! root, a mount of its own, so that neither can be moved aside. What does not exist is left alone: a
//! placeholder would show in the real workspace.

use std::{
    collections::BTreeMap,
    io::Read,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
};

/// Mounts for protected paths in one sandbox; each costs tens of microseconds.
pub const MAX_MOUNTS: usize = 64;

/// One mount over a path of the workspace, parents first.
#[derive(Debug)]
pub struct Protected {
    /// Relative to the root.
    pub path: PathBuf,
    /// What is bound there.
    pub descriptor: Arc<OwnedFd>,
    /// Read-only, or only a mount point that cannot be moved.
    pub read_only: bool,
}

/// Of the root repository: what git runs or follows.
const GIT: &[&str] = &[".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir", ".git/info/attributes"];

/// Directories of git whose entries are repositories themselves.
const GIT_EACH: &[&str] = &[".git/modules", ".git/worktrees"];

/// Run by editors and shells on their own, and Salaam's.
const OTHERS: &[&str] = &[".salaam", ".vscode", ".idea", ".envrc", ".husky", ".devcontainer"];

/// How much of .git/config is read for the paths that it names.
const MAX_CONFIG_BYTES: u64 = 256 << 10;

/// Finds what exists of the list and of `more` beneath `root`; at most [`MAX_MOUNTS`] mounts, the root
/// repository's first, what its config names last. `immovable` become mount points too, before all others, but stay writable.
///
/// An error of the kernel other than "not there" is one here: a protection that cannot be built is not left out.
pub fn protected(root: BorrowedFd<'_>, more: &[Vec<u8>], immovable: &[PathBuf]) -> Result<Vec<Protected>, Errno> {
    let mut wanted: Vec<PathBuf> = immovable.iter().cloned().chain(GIT.iter().map(PathBuf::from)).collect();
    // `.git` as a file says where the repository is: a redirection.
    if place(root, Path::new(".git"))?.is_some_and(|(_, is_directory)| !is_directory) {
        wanted.push(".git".into());
    }
    wanted.extend(OTHERS.iter().map(PathBuf::from));
    wanted.extend(more.iter().map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))));
    // After what is fixed: a command that made the repository chose how many paths its config names.
    wanted.extend(named_by_config(root)?);
    for parent in GIT_EACH {
        wanted.extend(entries(root, Path::new(parent))?);
    }

    let mut mounts: BTreeMap<PathBuf, Protected> = BTreeMap::new();
    for path in wanted.into_iter().filter(|path| is_inside(path)) {
        let read_only = !immovable.contains(&path);
        let Some((descriptor, _)) = place(root, &path)? else { continue };
        let above: Vec<PathBuf> =
            path.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()).map(Path::to_owned).collect();
        let new = above.iter().chain([&path]).filter(|mount| !mounts.contains_key(*mount)).count();
        if mounts.len() + new > MAX_MOUNTS {
            // Bound content of another command that could be moved away is worse than a command that waits.
            if !read_only {
                return Err(Errno::E2BIG);
            }
            continue;
        }
        for ancestor in above {
            if let Some((descriptor, _)) = place(root, &ancestor)? {
                let mount = Protected { path: ancestor.clone(), descriptor, read_only: false };
                mounts.entry(ancestor).or_insert(mount);
            }
        }
        // Named twice, it keeps the stronger of both.
        let read_only = read_only || mounts.get(&path).is_some_and(|mount| mount.read_only);
        mounts.insert(path.clone(), Protected { path, descriptor, read_only });
    }
    // A BTreeMap of paths goes by components: parents come before what lies in them.
    Ok(mounts.into_values().collect())
}

fn is_inside(path: &Path) -> bool {
    !path.as_os_str().is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Opens a path as a place, beneath the root and through no link; with whether it is a directory. A link at a
/// protected path is left as it is: no mount can be put on a link itself.
fn place(root: BorrowedFd<'_>, path: &Path) -> Result<Option<(Arc<OwnedFd>, bool)>, Errno> {
    let Some(descriptor) = beneath(root, path, OFlag::O_PATH)? else { return Ok(None) };
    let kind = nix::sys::stat::fstat(&descriptor)?.st_mode & nix::libc::S_IFMT;
    Ok(match kind {
        nix::libc::S_IFDIR => Some((Arc::new(descriptor), true)),
        nix::libc::S_IFREG => Some((Arc::new(descriptor), false)),
        _ => None,
    })
}

fn beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> Result<Option<OwnedFd>, Errno> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    match openat2(root, path, how) {
        Ok(descriptor) => Ok(Some(descriptor)),
        // Where this account may not go, its commands change nothing either.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EACCES | Errno::ENAMETOOLONG) => {
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

fn entries(root: BorrowedFd<'_>, path: &Path) -> Result<Vec<PathBuf>, Errno> {
    let Some(directory) = beneath(root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)? else { return Ok(Vec::new()) };
    let mut directory = Dir::from_fd(directory)?;
    // Not past an error: a file system that has one may have it for ever.
    let names = directory.iter().map_while(Result::ok).map(|entry| entry.file_name().to_bytes().to_vec());
    let names = names.filter(|name| name != b"." && name != b"..").take(MAX_MOUNTS + 1);
    Ok(names.map(|name| path.join(std::ffi::OsStr::from_bytes(&name))).collect())
}

/// Hook directories and included files that .git/config names, where they lie inside.
fn named_by_config(root: BorrowedFd<'_>) -> Result<Vec<PathBuf>, Errno> {
    let Some(config) = beneath(root, Path::new(".git/config"), OFlag::O_RDONLY | OFlag::O_NONBLOCK)? else {
        return Ok(Vec::new());
    };
    let mut text = Vec::new();
    if std::fs::File::from(config).take(MAX_CONFIG_BYTES).read_to_end(&mut text).is_err() {
        // A directory of that name, say: it names nothing, and is protected as it is.
        return Ok(Vec::new());
    }
    Ok(named(&String::from_utf8_lossy(&text)))
}

/// hooksPath is relative to the root of the work tree, include.path to the file that names it.
fn named(config: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut section = String::new();
    for line in config.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.split([']', ' ', '"', '.']).next().unwrap_or_default().to_lowercase();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.rsplit(']').next().unwrap_or(key).trim().to_lowercase();
        let value = value.trim().trim_matches('"').trim_end_matches('/');
        let base = match (section.as_str(), key.as_str()) {
            ("core", "hookspath" | "attributesfile" | "fsmonitor" | "sshcommand" | "editor" | "pager") => "",
            ("include" | "includeif", "path") => ".git",
            _ => continue,
        };
        found.extend(folded(&Path::new(base).join(value.strip_prefix("./").unwrap_or(value))));
    }
    found
}

/// `.git/../x` is x; what leaves the root is nothing of the workspace.
fn folded(path: &Path) -> Option<PathBuf> {
    let mut folded = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => folded.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !folded.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(folded)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::{fcntl::open, sys::stat::Mode};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("salaam-protect-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn listed(root: &Path, more: &[Vec<u8>]) -> Vec<(String, bool)> {
        let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let mounts = protected(root.as_fd(), more, &[]).unwrap();
        mounts.into_iter().map(|m| (m.path.to_str().unwrap().to_owned(), m.read_only)).collect()
    }

    #[test]
    fn what_exists_is_read_only_and_its_parents_cannot_be_moved() {
        let root = scratch("git");
        std::fs::create_dir_all(root.join(".git/hooks")).unwrap();
        std::fs::create_dir_all(root.join("tools/hooks")).unwrap();
        std::fs::write(root.join(".git/config"), "[core]\n\thooksPath = tools/hooks\n").unwrap();
        let found = listed(&root, &[b"Makefile".to_vec(), b"../out".to_vec()]);
        std::fs::remove_dir_all(&root).unwrap();
        let expected =
            [(".git", false), (".git/config", true), (".git/hooks", true), ("tools", false), ("tools/hooks", true)];
        assert_eq!(found, expected.map(|(path, read_only)| (path.to_owned(), read_only)));
    }

    #[test]
    fn git_as_a_file_is_protected_itself_and_a_link_is_not_followed() {
        let root = scratch("file");
        std::fs::write(root.join(".git"), "gitdir: /elsewhere\n").unwrap();
        std::os::unix::fs::symlink("/etc", root.join(".vscode")).unwrap();
        let found = listed(&root, &[]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [(".git".to_owned(), true)]);
    }

    #[test]
    fn there_are_never_more_mounts_than_the_limit() {
        let root = scratch("many");
        for number in 0..200 {
            std::fs::create_dir_all(root.join(format!(".git/modules/{number}"))).unwrap();
        }
        std::fs::create_dir_all(root.join(".git/hooks")).unwrap();
        let found = listed(&root, &[]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.len(), MAX_MOUNTS);
        assert!(found.contains(&(".git/hooks".to_owned(), true)));
    }

    #[test]
    fn a_config_that_names_many_paths_takes_no_protection_from_others() {
        let root = scratch("crowd");
        std::fs::create_dir_all(root.join(".git")).unwrap();
        std::fs::create_dir_all(root.join(".vscode")).unwrap();
        std::fs::write(root.join("Makefile"), "").unwrap();
        let mut config = String::from("[include]\n");
        for number in 0..MAX_MOUNTS {
            std::fs::write(root.join(format!("inc{number}")), "").unwrap();
            config += &format!("\tpath = ../inc{number}\n");
        }
        std::fs::write(root.join(".git/config"), config).unwrap();
        let found = listed(&root, &[b"Makefile".to_vec()]);
        let opened = open(&root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let bound: Vec<PathBuf> = (0..=MAX_MOUNTS).map(|number| format!("inc{}", number % MAX_MOUNTS).into()).collect();
        let all = protected(opened.as_fd(), &[], bound.get(..MAX_MOUNTS).unwrap());
        std::fs::write(root.join("one-more"), "").unwrap();
        let many = [bound, vec!["one-more".into()]].concat();
        let too_many = protected(opened.as_fd(), &[], &many);
        std::fs::remove_dir_all(&root).unwrap();
        for path in [".git/config", ".vscode", "Makefile"] {
            assert!(found.contains(&(path.to_owned(), true)), "{path}");
        }
        assert_eq!(found.len(), MAX_MOUNTS);
        assert_eq!(all.map(|mounts| mounts.len()), Ok(MAX_MOUNTS));
        assert_eq!(too_many.map(|mounts| mounts.len()), Err(Errno::E2BIG));
    }

    #[test]
    fn paths_named_by_a_config_are_folded() {
        let text = "[include] path = ../shared.cfg\n[includeIf \"gitdir:x\"]\npath=more\n[core]\nhooksPath=/etc\n";
        assert_eq!(named(text), [PathBuf::from("shared.cfg"), PathBuf::from(".git/more")]);
    }
}
