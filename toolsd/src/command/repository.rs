//! Where the repository of a workspace is, if it is not in it: a linked worktree's `.git` is a file that names a
//! directory of another repository, which no sandboxed command sees.

use std::{
    fs::File,
    io::Read as _,
    os::{fd::AsFd, unix::ffi::OsStrExt as _},
    path::Path,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    libc,
    sys::stat::fstat,
};
use salaam_core::protect::{inside, redirection};

/// A longer one names no path that the kernel takes.
const MOST_BYTES: u64 = 8192;

/// Where the root's `.git` leads, if it is a file and that is outside; as far as it can be shown.
pub(super) fn outside(root: impl AsFd, workspace: &Path) -> Option<String> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    // What cannot be read leads nowhere that could be named; git will say the same.
    let file = openat2(root, ".git", how).ok()?;
    if fstat(&file).ok()?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let mut text = Vec::new();
    File::from(file).take(MOST_BYTES).read_to_end(&mut text).ok()?;
    let to = text.starts_with(b"gitdir:").then(|| redirection(&text))?;
    if to.is_empty() || inside(workspace.as_os_str().as_bytes(), b"", to).is_some() {
        return None;
    }
    Some(String::from_utf8_lossy(to).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_leads_out_is_named() {
        let base = std::env::temp_dir().join(format!("salaam-repository-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let place = base.join(".git");
        let found = || outside(File::open(&base).unwrap(), &base);
        assert_eq!(found(), None, "none");
        let within = format!("gitdir: {}/.bare/worktrees/x\n", base.display());
        for (text, expected) in [
            ("gitdir: /srv/main/.git/worktrees/x\n", Some("/srv/main/.git/worktrees/x")),
            ("gitdir: ../main/.git/worktrees/x\n", Some("../main/.git/worktrees/x")),
            ("gitdir: .bare/worktrees/x\n", None),
            (&within, None),
            ("gitdir:\n", None),
            ("something else", None),
        ] {
            std::fs::write(&place, text).unwrap();
            assert_eq!(found().as_deref(), expected, "{text}");
        }
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert_eq!(found(), None, "a directory");
        std::fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &place).unwrap();
        assert_eq!(found(), None, "a link is not followed");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
