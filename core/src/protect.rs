//! What nobody's work may change although it lies in a workspace: names that make a later git, editor or shell
//! run something.

/// Read or run by editors, shells and agents on their own when a directory is opened or entered; and Salaam's.
pub const AUTO_RUN: &[&str] = &[
    ".vscode",
    ".idea",
    ".zed",
    ".cursor",
    ".claude",
    ".mcp.json",
    ".envrc",
    ".autoenv",
    ".husky",
    ".devcontainer",
    ".devcontainer.json",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
];

/// Salaam's own directory in a workspace; what was taken out of the way lies in it.
pub const OWN: &str = ".salaam";

/// Of a git directory: what git runs, follows, or takes settings from.
pub const GIT_PARTS: &[&str] = &["hooks", "config", "config.worktree", "commondir", "info/attributes"];

/// Whether a relative path, as bytes, names something protected or something below it, wherever it lies. A
/// linked worktree's and a submodule's `.git` is a file that leads elsewhere: it is protected itself.
pub fn is_protected(path: &[u8]) -> bool {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let auto = |part: &&[u8]| AUTO_RUN.iter().any(|name| name.as_bytes() == *part);
    if parts.first().is_some_and(|first| *first == OWN.as_bytes()) || parts.iter().any(auto) {
        return true;
    }
    // Nobody edits inside a git directory by hand: all of it counts.
    parts.contains(&b".git".as_slice())
}

/// Where `path`, named from the directory `base`, lies in the workspace at `workspace`, by its text alone: relative
/// to the root. Absent: it leads out, or to the root itself.
pub fn inside(workspace: &[u8], base: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let (base, path) = match path.strip_prefix(b"/") {
        None => (base, path),
        Some(_) => (b"".as_slice(), path.strip_prefix(workspace)?.strip_prefix(b"/")?),
    };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in base.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    if parts.is_empty() { None } else { Some(parts.join(&b'/')) }
}

/// Where a `.git` file, or a `commondir` file, leads, as written.
pub fn redirection(text: &[u8]) -> &[u8] {
    let text = text.strip_prefix(b"gitdir:").unwrap_or(text);
    text.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_is_nowhere_and_the_rest_is_folded() {
        let of = |base: &str, path: &str| {
            inside(b"/srv/x", base.as_bytes(), path.as_bytes()).map(|found| String::from_utf8(found).unwrap())
        };
        assert_eq!(of(".git/worktrees/a", "../..").as_deref(), Some(".git"));
        assert_eq!(of("a", "/srv/x/.real").as_deref(), Some(".real"));
        assert_eq!(of("", "./a//b/./c").as_deref(), Some("a/b/c"));
        for out in [("a", "../../x"), ("", "/srv/xy"), ("", "/etc"), ("", "/srv/x"), ("a", ".."), ("", "/srv/x/../y")] {
            assert_eq!(of(out.0, out.1), None, "{out:?}");
        }
        assert_eq!(redirection(b"gitdir: ../r\n"), b"../r");
        assert_eq!(redirection(b"../..\n"), b"../..");
    }

    #[test]
    fn protected_names_count_at_every_depth() {
        for path in [".git", ".git/hooks/x", "a/.git/config", ".vscode/tasks.json", "a/b/.envrc", ".salaam/x"] {
            assert!(is_protected(path.as_bytes()), "{path}");
        }
        for path in ["a", ".github/workflows/x", ".gitignore", "a/.salaam", "x.envrc", "git/hooks"] {
            assert!(!is_protected(path.as_bytes()), "{path}");
        }
    }
}
