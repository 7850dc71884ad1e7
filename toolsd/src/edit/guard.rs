//! Paths that no edit and no undo touches, whoever granted it: what a later git, editor or shell would run or
//! follow, Salaam's own names, and what the operator protects.
//!
//! A path is refused if it is protected, lies below such a path, or is one above it. Stricter than the mounts
//! of a command in two ways: absent ones cannot be made either, and the names count in every directory.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag};

use salaam_core::protect;

use super::{
    Refusal,
    place::{beneath, depth},
    slot::RESERVED,
};
use crate::sandbox;

/// What is protected in one workspace, for one edit.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    root: BorrowedFd<'a>,
    operator: Vec<PathBuf>,
    /// All paths of the edit.
    touched: Vec<PathBuf>,
    /// Directories whose repository was asked already, and what it names.
    asked: BTreeSet<PathBuf>,
    named: Vec<PathBuf>,
}

impl<'a> Guard<'a> {
    /// The guard of a workspace for an edit of these paths, with the operator's protected paths beside the
    /// built-in ones.
    pub(super) fn new(root: BorrowedFd<'a>, operator: &[Vec<u8>], touched: Vec<PathBuf>) -> Self {
        let operator = operator.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
        Self { root, operator, touched, asked: BTreeSet::new(), named: Vec::new() }
    }

    /// Refuses the edit if one of its paths is protected.
    pub(super) fn permit(&mut self) -> Result<(), Refusal> {
        for path in self.touched.clone() {
            self.permit_one(&path, overlap)?;
        }
        Ok(())
    }

    /// Refuses to remove a directory that is protected. One above a protected path is not empty while that is
    /// there, and is only removed if it is.
    pub(super) fn permit_removal(&mut self, directory: &Path) -> Result<(), Refusal> {
        self.permit_one(directory, |path, protected| path.starts_with(protected))
    }

    fn permit_one(&mut self, path: &Path, meets: fn(&Path, &Path) -> bool) -> Result<(), Refusal> {
        names(path)?;
        let refuse = |why| Err(Refusal::Protected { path: path.to_owned(), why });
        if self.operator.iter().any(|protected| meets(path, protected)) {
            return refuse("the operator protects it");
        }
        for above in path.ancestors().skip(1) {
            if self.asked.insert(above.to_owned()) {
                let failed = Refusal::kernel("reading what git names in", above);
                let named = self.repository(above).map_err(failed)?;
                self.named.extend(named.into_iter().map(|named| above.join(named)));
            }
        }
        if self.named.iter().any(|protected| meets(path, protected)) {
            return refuse("it is a repository's, or one's configuration names it as hooks or as configuration");
        }
        Ok(())
    }

    /// What a repository in the directory `at` names: hooks and included files of its configuration, and where
    /// `.git` as a file says that it is; of one without a work tree its own. Relative to `at`, inside it.
    fn repository(&self, at: &Path) -> Result<Vec<PathBuf>, Errno> {
        let here = match beneath(self.root, at, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Ok(here) => Some(here),
            // There is nothing yet, or the way leads elsewhere: the walk that follows says so.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EACCES | Errno::ENAMETOOLONG) => {
                None
            }
            Err(errno) => return Err(errno),
        };
        let mut named = match &here {
            Some(here) => sandbox::named_in(here.as_fd(), &path_of(here.as_fd())?)?,
            None => Vec::new(),
        };
        let stands = |part: &str| {
            here.as_ref().is_some_and(|here| beneath(here, Path::new(part), OFlag::O_PATH | OFlag::O_NOFOLLOW).is_ok())
        };
        let comes = |part: &str| self.touched.iter().any(|path| path.starts_with(at.join(part)));
        // git takes a directory for a repository that has these, also one that an edit only completes.
        let has = |part: &str| stands(part) || comes(part);
        if has("HEAD") && (has("objects") && has("refs") || has("commondir")) {
            let completed = ["HEAD", "objects", "refs", "commondir"].into_iter().filter(|part| !stands(part));
            named.extend(protect::GIT_PARTS.iter().copied().chain(completed).map(PathBuf::from));
        }
        Ok(named)
    }
}

/// Refuses what a name alone protects; needs no look at the disk.
pub(super) fn names(path: &Path) -> Result<(), Refusal> {
    depth(path)?;
    for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        let name = part.file_name().unwrap_or_default().as_bytes();
        let above = part.parent().unwrap_or(Path::new("")).as_os_str().as_bytes();
        // A file system may not tell upper from lower case, and git does not rely on that it does.
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let refuse = |why| Err(Refusal::Protected { path: path.to_owned(), why });
        if name.get(..RESERVED.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(RESERVED)) {
            return Err(Refusal::Reserved(path.to_owned()));
        }
        if protect::is_git(name) {
            return refuse("git runs or follows what lies there");
        }
        if is(protect::OWN) || protect::runs_by_itself(above, name) {
            return refuse("editors, shells or Salaam itself act on what lies there");
        }
    }
    Ok(())
}

fn overlap(path: &Path, protected: &Path) -> bool {
    path.starts_with(protected) || protected.starts_with(path)
}

/// Where a directory lies, by the kernel's word: configuration names paths from the root, too.
fn path_of(directory: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    nix::fcntl::readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()).as_str()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(root: &Path, operator: &[Vec<u8>], paths: &[&str]) -> Option<&'static str> {
        let root = std::fs::File::open(root).unwrap();
        let paths = paths.iter().map(PathBuf::from).collect();
        Guard::new(root.as_fd(), operator, paths).permit().err().map(|refusal| refusal.id())
    }

    #[test]
    fn names_that_something_acts_on_are_refused_in_every_directory_and_case() {
        let root = std::env::temp_dir().join(format!("salaam-guard-{}", std::process::id()));
        std::fs::create_dir_all(root.join("sub/.git")).unwrap();
        std::fs::create_dir_all(root.join("tree")).unwrap();
        std::fs::write(root.join("sub/.git/config"), "[core]\nhooksPath = tools/hooks\n[include]\npath = ../extra\n")
            .unwrap();
        std::fs::write(root.join("tree/.git"), "gitdir: store/repo\n").unwrap();
        let operator = [b"deploy/keys".to_vec()];
        let ids = |paths: &[&str]| paths.iter().map(|path| refused(&root, &operator, &[path])).collect::<Vec<_>>();
        let protected = [
            ".git",
            ".git/hooks/pre-commit",
            ".git/config",
            ".GIT/config",
            "a/b/.git/modules/x/config",
            ".salaam",
            ".vscode/tasks.json",
            "x/.idea/workspace.xml",
            ".envrc",
            "a/.envrc",
            ".husky/pre-push",
            "a/.jj/repo/config.toml",
            ".config/mise/config.toml",
            "all.code-workspace",
            ".devcontainer/d.json",
            "deploy/keys",
            "deploy/keys/a",
            "deploy",
            "sub/tools/hooks/pre-commit",
            "sub/tools",
            "sub/extra",
            "tree/store/repo/hooks/post-checkout",
        ];
        let reserved = [".salaam-op_1-0", "a/.salaam-x/b", ".SALAAM-x"];
        let free = [
            "src/a.rs",
            ".gitignore",
            ".gitattributes",
            "deploys",
            "envrc",
            "tools/hooks/a",
            "sub/tool",
            ".salaamander",
        ];
        let found = [ids(&protected), ids(&reserved), ids(&free)];
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found[0], vec![Some("protected-path"); protected.len()]);
        assert_eq!(found[1], vec![Some("reserved-name"); reserved.len()]);
        assert_eq!(found[2], vec![None; free.len()]);
    }

    #[test]
    fn a_repository_without_a_work_tree_is_neither_changed_nor_made() {
        let root = std::env::temp_dir().join(format!("salaam-guard-bare-{}", std::process::id()));
        for path in ["bare/objects", "bare/refs", "half/objects", "half/refs"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::fs::write(root.join("bare/HEAD"), "ref: refs/heads/x\n").unwrap();
        let of = |paths: &[&str]| refused(&root, &[], paths);
        let found = [
            of(&["bare/hooks/pre-receive"]),
            of(&["bare/config"]),
            of(&["half/HEAD"]),
            of(&["new/HEAD", "new/config", "new/objects/x", "new/refs/x"]),
            of(&["new/HEAD", "new/commondir"]),
        ];
        let free = [of(&["half/hooks/x", "half/config"]), of(&["new/HEAD", "new/config"]), of(&["bare/description"])];
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [Some("protected-path"); 5]);
        assert_eq!(free, [None; 3]);
    }
}
