//! What a command may not change although it lies in its workspace: files that make a later git, editor or
//! shell run something. Each that exists becomes a read-only mount, and every directory above it, below the
//! root, a mount of its own, so that neither can be moved aside. What does not exist is left alone: a
//! placeholder would show in the real workspace. What is left alone, or is beyond the most mounts, is looked at
//! after the command (`scan`), before anybody is told of its end.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{dir::Dir, errno::Errno, fcntl::OFlag, libc, sys::stat::fstat};
use salaam_core::{git_config, protect};

use crate::beneath;

/// Mounts for protected paths in one sandbox. Each costs about 0.15 ms, and the hundredth more than the first: bwrap
/// reads the whole mount table for every one.
pub const MAX_MOUNTS: usize = 64;
/// Of these, for submodules and linked worktrees, of which a repository may have hundreds: a start must not take
/// longer for it. Where there are more than this, none has a mount: those of a few would keep none of the others.
const MAX_NESTED_MOUNTS: usize = 8;

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

/// What is protected in one workspace, and how.
#[derive(Debug, Default)]
pub struct Protection {
    /// The mounts, parents first.
    pub mounts: Vec<Protected>,
    /// Paths that are protected and have no mount: not there now, or beyond the most mounts, or a link.
    pub unmounted: Vec<Unmounted>,
    /// How many of these are there and are kept by the look after the command only.
    pub scanned: usize,
}

/// A protected path without a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmounted {
    /// Relative to the root.
    pub path: PathBuf,
    /// Whether something is there.
    pub exists: bool,
}

/// Finds what exists beneath `root`, the workspace at `workspace`, of the list and of `more`; at most [`MAX_MOUNTS`]
/// mounts: the root repository's first, submodules and linked worktrees last. `immovable` become mount points too,
/// before all others, but stay writable.
///
/// An error of the kernel other than "not there" is one here: a protection that cannot be built is not left out.
pub fn protected(
    root: BorrowedFd<'_>,
    workspace: &Path,
    more: &[Vec<u8>],
    immovable: &[PathBuf],
) -> Result<Protection, Errno> {
    let place = Place { root, workspace: workspace.as_os_str().as_bytes() };
    let mut mounts = Mounts { place: &place, found: BTreeMap::new(), rest: Protection::default() };
    for path in immovable {
        // Bound content of another command that could be moved away is worse than a command that waits.
        if !mounts.add(path, false, MAX_MOUNTS)? {
            return Err(Errno::E2BIG);
        }
    }
    let repository = place.repository()?;
    let named = place.named_by(&repository)?;
    let mut wanted = repository.paths();
    wanted.push(protect::OWN.into());
    wanted.extend(protect::AUTO_RUN.iter().map(PathBuf::from));
    wanted.extend(place.by_their_end()?);
    if place.has_hooks(&repository, &named)? {
        let there = protect::RUN_BY_HOOKS.iter().map(PathBuf::from).filter(|path| place.is_there(path));
        wanted.extend(there);
    }
    wanted.extend(more.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))));
    // After what is fixed: a command that made the repository chose how many paths its config names.
    wanted.extend(named);
    for path in wanted.iter().filter(|path| is_inside(path)) {
        // Most of the list is in no workspace, and every command waits for this look: one call is enough for those.
        if place.is_absent(path) {
            mounts.rest.unmounted.push(Unmounted { path: path.to_owned(), exists: false });
            continue;
        }
        mounts.add(path, true, MAX_MOUNTS)?;
        // No mount can be put on a link itself; what it leads to is protected, and the link looked at afterwards.
        if let Some(target) = place.link(path)? {
            mounts.add(&target, true, MAX_MOUNTS)?;
        }
    }
    let most = MAX_MOUNTS.min(mounts.found.len() + MAX_NESTED_MOUNTS);
    let nested = place.nested(&repository)?;
    let few = nested.len() <= MAX_NESTED_MOUNTS;
    for nested in nested {
        if !few || mounts.found.len() >= most {
            mounts.rest.scanned += 1;
            continue;
        }
        for part in protect::GIT_PARTS {
            mounts.add(&nested.join(part), true, most)?;
        }
    }
    let Mounts { found, mut rest, .. } = mounts;
    // A BTreeMap of paths goes by components: parents come before what lies in them.
    rest.mounts = found.into_values().collect();
    Ok(rest)
}

fn is_inside(path: &Path) -> bool {
    !path.as_os_str().is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// The mounts, in the making.
struct Mounts<'a> {
    place: &'a Place<'a>,
    found: BTreeMap<PathBuf, Protected>,
    rest: Protection,
}

impl Mounts<'_> {
    /// Adds one and what lies above it, or notes that it has none; false where it is there and does not fit.
    fn add(&mut self, path: &Path, read_only: bool, most: usize) -> Result<bool, Errno> {
        let Some(descriptor) = self.place.mountable(path)? else {
            // On a file system of its own: what cannot be protected by its parts is protected whole.
            if let Some((above, descriptor)) = self.place.mounted_above(path)? {
                if self.found.len() >= most && !self.found.contains_key(&above) {
                    return Err(Errno::E2BIG);
                }
                self.found.insert(above.clone(), Protected { path: above, descriptor, read_only: true });
                return Ok(true);
            }
            let exists = beneath::stat(self.place.root, path).unwrap_or_default().is_some();
            self.rest.unmounted.push(Unmounted { path: path.to_owned(), exists });
            return Ok(true);
        };
        let above: Vec<PathBuf> =
            path.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()).map(Path::to_owned).collect();
        let new = above.iter().map(PathBuf::as_path).chain([path]).filter(|p| !self.found.contains_key(*p)).count();
        if self.found.len() + new > most {
            self.rest.unmounted.push(Unmounted { path: path.to_owned(), exists: true });
            self.rest.scanned += 1;
            return Ok(false);
        }
        for ancestor in above {
            if let Some(descriptor) = self.place.mountable(&ancestor)? {
                let mount = Protected { path: ancestor.clone(), descriptor, read_only: false };
                self.found.entry(ancestor).or_insert(mount);
            }
        }
        // Named twice, it keeps the stronger of both.
        let read_only = read_only || self.found.get(path).is_some_and(|mount| mount.read_only);
        self.found.insert(path.to_owned(), Protected { path: path.to_owned(), descriptor, read_only });
        Ok(true)
    }
}

/// A workspace, to be looked at.
struct Place<'a> {
    root: BorrowedFd<'a>,
    workspace: &'a [u8],
}

/// The root repository, wherever its parts are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Repository {
    /// `.git` where it is no directory: it says where the repository is.
    redirection: Option<PathBuf>,
    /// The git directory, if it lies in the workspace.
    own: Option<PathBuf>,
    /// Where hooks and config are, if they lie in the workspace: the git directory, or what its `commondir` names.
    common: Option<PathBuf>,
}

impl Repository {
    fn paths(&self) -> Vec<PathBuf> {
        let directories = self.own.iter().chain(self.common.iter().filter(|common| Some(*common) != self.own.as_ref()));
        let parts = directories.flat_map(|directory| protect::GIT_PARTS.iter().map(|part| directory.join(part)));
        self.redirection.iter().cloned().chain(parts).collect()
    }
}

/// What the repository in the directory `here`, which lies at `at`, names: hooks and settings of its configuration, and
/// where a redirection leads, with the git directories whole. Relative to `here`, inside it.
///
/// An error of the kernel other than "not there" is one here.
pub(crate) fn named_in(here: BorrowedFd<'_>, at: &Path) -> Result<Vec<PathBuf>, Errno> {
    let place = Place { root: here, workspace: at.as_os_str().as_bytes() };
    let repository = place.repository()?;
    let mut found = place.named_by(&repository)?;
    found.extend([repository.redirection, repository.own, repository.common].into_iter().flatten());
    // The directory itself, as in `hooksPath = .`: that would be every file in it.
    found.retain(|path| is_inside(path));
    Ok(found)
}

impl Place<'_> {
    fn repository(&self) -> Result<Repository, Errno> {
        let git = Path::new(".git");
        let kind = match beneath::stat(self.root, git) {
            Ok(stat) => stat.as_ref().map(beneath::kind),
            Err(Errno::EACCES) => None,
            Err(other) => return Err(other),
        };
        let (redirection, own) = match kind {
            // git takes a directory with these in it for a repository without a work tree.
            None => {
                let bare = ["HEAD", "objects", "refs"].iter().all(|part| self.is_there(Path::new(part)));
                return Ok(if bare {
                    Repository { redirection: None, own: Some(PathBuf::new()), common: None }
                } else {
                    // Absent, and protected should a command make it.
                    Repository { own: Some(git.into()), ..Repository::default() }
                });
            }
            Some(libc::S_IFDIR) => (None, Some(git.to_owned())),
            Some(libc::S_IFLNK) => (Some(git.to_owned()), self.link(git)?),
            Some(_) => {
                let text = self.content(git)?.unwrap_or_default();
                (Some(git.to_owned()), self.inside(Path::new(""), protect::redirection(&text)))
            }
        };
        let common = match &own {
            None => None,
            Some(own) => match self.content(&own.join("commondir"))? {
                None => Some(own.clone()),
                Some(text) => self.inside(own, protect::redirection(&text)),
            },
        };
        Ok(Repository { redirection, own, common })
    }

    /// Hook directories, programs and included files that the repository's config names, where they lie inside.
    fn named_by(&self, repository: &Repository) -> Result<Vec<PathBuf>, Errno> {
        let mut found = Vec::new();
        for directory in repository.own.iter().chain(&repository.common) {
            for name in ["config", "config.worktree"] {
                let Some(text) = self.content(&directory.join(name))? else { continue };
                let named = named(&git_config::glean(&text), self.workspace, directory);
                found.extend(named.into_iter().filter(|named| self.is_meant(named)).map(|named| named.path));
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Of the words of a command only those that are files, or that look like a path to one.
    fn is_meant(&self, named: &NamedPath) -> bool {
        if !named.is_word_of_a_command {
            return true;
        }
        match beneath::stat(self.root, &named.path) {
            Ok(Some(stat)) => beneath::kind(&stat) != libc::S_IFDIR,
            Ok(None) => named.path.components().count() > 1,
            Err(_) => true,
        }
    }

    /// What runs by itself, by the end of its name, at the top.
    fn by_their_end(&self) -> Result<Vec<PathBuf>, Errno> {
        let ends = |path: &PathBuf| {
            let name = protect::folded(path.as_os_str().as_bytes()).into_owned();
            protect::AUTO_RUN_ENDS.iter().any(|end| name.ends_with(end.as_bytes()))
        };
        Ok(self.entries(Path::new(""))?.into_iter().filter(ends).collect())
    }

    /// Whether git runs a hook in the root repository.
    fn has_hooks(&self, repository: &Repository, named: &[PathBuf]) -> Result<bool, Errno> {
        let own = repository.common.iter().map(|common| common.join("hooks"));
        for hooks in own.chain(named.iter().cloned()) {
            let runs = |path: &PathBuf| !path.as_os_str().as_bytes().ends_with(b".sample");
            if self.entries(&hooks)?.iter().any(runs) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The git directories of submodules and linked worktrees.
    fn nested(&self, repository: &Repository) -> Result<Vec<PathBuf>, Errno> {
        let Some(common) = &repository.common else { return Ok(Vec::new()) };
        let mut found = self.entries(&common.join("worktrees"))?;
        for module in self.entries(&common.join("modules"))? {
            // `path/of/module` is its name, slashes and all.
            if self.is_there(&module.join("HEAD")) {
                found.push(module);
            } else if found.len() < MAX_NESTED_MOUNTS {
                found.extend(self.entries(&module)?);
            } else {
                found.push(module);
            }
        }
        Ok(found)
    }

    fn entries(&self, path: &Path) -> Result<Vec<PathBuf>, Errno> {
        let Some(directory) = absent(beneath::open(self.root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY))? else {
            return Ok(Vec::new());
        };
        let mut directory = Dir::from_fd(directory)?;
        // Not past an error: a file system that has one may have it for ever.
        let names = directory.iter().map_while(Result::ok).map(|entry| entry.file_name().to_bytes().to_vec());
        let names = names.filter(|name| name != b"." && name != b"..").take(MAX_NESTED_NAMES);
        Ok(names.map(|name| path.join(OsStr::from_bytes(&name))).collect())
    }

    /// Opens a file or directory as a place for a mount.
    fn mountable(&self, path: &Path) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let Some(descriptor) = absent(beneath::open(self.root, path, OFlag::O_PATH))? else { return Ok(None) };
        Ok(match beneath::kind(&fstat(&descriptor)?) {
            libc::S_IFDIR | libc::S_IFREG => Some(Arc::new(descriptor)),
            _ => None,
        })
    }

    /// Whether nothing at all is there. That says the kernel only where neither the path nor a part of it is a link
    /// (ELOOP) or another mount (EXDEV), so there is nothing to follow or to mount either.
    fn is_absent(&self, path: &Path) -> bool {
        matches!(beneath::open(self.root, path, OFlag::O_PATH), Err(Errno::ENOENT))
    }

    /// The mount on which `path` lies, if that is not the root's own.
    fn mounted_above(&self, path: &Path) -> Result<Option<(PathBuf, Arc<OwnedFd>)>, Errno> {
        let mut ways: Vec<&Path> = path.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
        ways.reverse();
        for above in ways {
            match beneath::open(self.root, above, OFlag::O_PATH) {
                Ok(_) => {}
                Err(Errno::EXDEV) => {
                    let opened = absent(beneath::open_over_mounts(self.root, above, OFlag::O_PATH))?;
                    return Ok(opened.map(|opened| (above.to_owned(), Arc::new(opened))));
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// What a link leads to, where that lies inside.
    fn link(&self, path: &Path) -> Result<Option<PathBuf>, Errno> {
        let target = absent(beneath::link(self.root, path))?.flatten();
        Ok(target.and_then(|target| self.inside(path.parent().unwrap_or(Path::new("")), &target)))
    }

    fn content(&self, path: &Path) -> Result<Option<Vec<u8>>, Errno> {
        Ok(absent(beneath::content(self.root, path, git_config::MAX_BYTES))?.flatten())
    }

    fn inside(&self, base: &Path, path: &[u8]) -> Option<PathBuf> {
        let found = protect::inside(self.workspace, base.as_os_str().as_bytes(), path)?;
        Some(PathBuf::from(OsStr::from_bytes(&found)))
    }

    fn is_there(&self, path: &Path) -> bool {
        beneath::stat(self.root, path).is_ok_and(|stat| stat.is_some())
    }
}

/// Names of submodules or linked worktrees that are counted.
const MAX_NESTED_NAMES: usize = 1024;

/// Where this account may not go, its commands change nothing either.
fn absent<T>(result: nix::Result<T>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EACCES | Errno::ENAMETOOLONG) => {
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

/// A path that a setting names, relative to the root.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NamedPath {
    path: PathBuf,
    is_word_of_a_command: bool,
}

/// What settings name in `workspace`; the config lies in the git directory `own`.
fn named(settings: &[git_config::Setting], workspace: &[u8], own: &Path) -> Vec<NamedPath> {
    let own = own.as_os_str().as_bytes();
    let mut found = Vec::new();
    for named in settings.iter().filter_map(git_config::Setting::names) {
        let base = if named.beside_config { own } else { b"" };
        for word in named.words {
            let path = protect::inside(workspace, base, word.trim_start_matches('!').as_bytes());
            let path = path.map(|path| PathBuf::from(OsStr::from_bytes(&path)));
            found.extend(path.map(|path| NamedPath { path, is_word_of_a_command: named.is_command }));
        }
    }
    found
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
        let found = protected(root.as_fd(), Path::new("/srv/x"), more, &[]).unwrap();
        found.mounts.into_iter().map(|m| (m.path.to_str().unwrap().to_owned(), m.read_only)).collect()
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
        let make = |number: usize| {
            let module = root.join(format!(".git/modules/{number}"));
            std::fs::create_dir_all(module.join("hooks")).unwrap();
            std::fs::write(module.join("HEAD"), "").unwrap();
            std::fs::create_dir_all(root.join(format!(".git/worktrees/{number}"))).unwrap();
            std::fs::write(root.join(format!(".git/worktrees/{number}/commondir")), "../..\n").unwrap();
        };
        (0..4).for_each(make);
        std::fs::create_dir_all(root.join(".git/hooks")).unwrap();
        let opened = open(&root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let few = protected(opened.as_fd(), Path::new("/srv/x"), &[], &[]).unwrap();
        (4..200).for_each(make);
        let many = protected(opened.as_fd(), Path::new("/srv/x"), &[], &[]).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        for found in [&few, &many] {
            let hooks = |mount: &&Protected| mount.path == Path::new(".git/hooks") && mount.read_only;
            assert_eq!(found.mounts.iter().filter(hooks).count(), 1);
        }
        assert!((6..=2 + MAX_NESTED_MOUNTS).contains(&few.mounts.len()), "{}", few.mounts.len());
        assert_eq!((many.mounts.len(), many.scanned), (2, 400), "so many that all are left to the look");
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
        let protected =
            |bound| super::protected(opened.as_fd(), Path::new("/srv/x"), &[], bound).map(|f| f.mounts.len());
        let all = protected(bound.get(..MAX_MOUNTS).unwrap());
        std::fs::write(root.join("one-more"), "").unwrap();
        let many = [bound.clone(), vec!["one-more".into()]].concat();
        let too_many = protected(&many);
        std::fs::remove_dir_all(&root).unwrap();
        for path in [".git/config", ".vscode", "Makefile"] {
            assert!(found.contains(&(path.to_owned(), true)), "{path}");
        }
        assert_eq!(found.len(), MAX_MOUNTS);
        assert_eq!((all, too_many), (Ok(MAX_MOUNTS), Err(Errno::E2BIG)));
    }

    #[test]
    fn paths_named_by_a_config_are_folded() {
        let text = "[include]\npath = ../shared.cfg\n[includeIf \"gitdir:x\"]\npath=more\n[core]\nhooksPath=/etc\n\
                    [filter \"f\"]\nclean = ./tools/clean %f\n";
        let settings = git_config::parse(text.as_bytes()).unwrap();
        let found = named(&settings, b"/srv/x", Path::new(".git"));
        let found: Vec<_> = found.iter().map(|named| named.path.to_str().unwrap()).collect();
        assert_eq!(found, ["shared.cfg", ".git/more", "tools/clean %f", "tools/clean", "%f"]);
    }
}
