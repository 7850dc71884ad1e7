//! What nobody's work may change although it lies in a workspace: names that make a later git, editor or shell
//! run something.

use std::borrow::Cow;

/// What a program acts on *unasked*, merely since somebody opened the directory in an editor, entered it with a shell,
/// committed in it, or started an agent there: it runs a program that the file names, or reads settings that do. What a
/// person runs on purpose (a build, a test, a package manager, a debugger, a language's own prompt) is not of this kind.
///
/// One with a slash counts with that directory right above it. SECURITY.md says what is left out, and why.
pub const AUTO_RUN: &[&str] = &[
    // Editors: tasks, language servers, start-up files.
    ".vscode",
    ".idea",
    ".zed",
    ".fleet",
    ".theia",
    ".helix",
    ".nova",
    ".lapce",
    ".vim",
    ".vimrc",
    ".gvimrc",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".Rprofile",
    ".devcontainer",
    ".devcontainer.json",
    // Shells, on entering: also where the person has trusted the path, and not the content.
    ".envrc",
    ".direnv",
    ".autoenv",
    ".autoenv.zsh",
    ".autoenv_leave.zsh",
    ".shadowenv.d",
    ".mise",
    ".mise.toml",
    ".mise.local.toml",
    "mise.toml",
    "mise.local.toml",
    ".config/mise",
    ".config/mise.toml",
    // Hooks, and version control other than git, which takes settings from the tree.
    ".husky",
    ".jj/repo/config.toml",
    ".jj/workspace-config.toml",
    ".hg/hgrc",
    // Agents: servers that they start, hooks that they run.
    ".mcp.json",
    ".cursor",
    ".claude",
    ".codex",
    ".gemini",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".continue",
    ".windsurf",
    ".roo",
    ".kiro",
    ".amazonq",
    ".qwen",
    ".junie",
    ".crush.json",
    "crush.json",
    ".aider.conf.yml",
];

/// The same, by the end of the name.
pub const AUTO_RUN_ENDS: &[&str] = &[".code-workspace", ".sublime-project"];

/// What an installed hook of git runs: protected where the root repository has hooks, and harmless where it has none.
pub const RUN_BY_HOOKS: &[&str] = &[
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook.yaml",
    "lefthook-local.yml",
    ".lefthook.yml",
    ".lefthook.yaml",
    ".lefthook-local.yml",
    ".overcommit.yml",
];

/// Salaam's own directory in a workspace; what was taken out of the way lies in it.
pub const OWN: &str = ".salaam";

/// Of a git directory: what git runs, follows, or takes settings from.
pub const GIT_PARTS: &[&str] = &["hooks", "config", "config.worktree", "commondir", "info/attributes"];

/// A name as file systems see it that tell neither case nor invisible characters apart (ext4's and tmpfs's casefold, HFS+,
/// FAT, NTFS, where blanks and dots at the end do not count either).
pub fn folded(name: &[u8]) -> Cow<'_, [u8]> {
    let plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if name.iter().all(plain) && !name.ends_with(b".") && !name.ends_with(b" ") {
        return Cow::Borrowed(name);
    }
    let Ok(text) = std::str::from_utf8(name) else { return Cow::Owned(name.to_ascii_lowercase()) };
    let seen = text.chars().filter(|c| !is_invisible(*c)).flat_map(|c| match c {
        // Letters that become an ASCII one when case is folded.
        '\u{17f}' => 's'.to_lowercase(),
        '\u{212a}' => 'k'.to_lowercase(),
        c => c.to_lowercase(),
    });
    let seen: String = seen.collect();
    Cow::Owned(seen.trim_end_matches(['.', ' ']).as_bytes().to_vec())
}

/// What Unicode lets a comparison leave out.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Whether a name is that of a git directory, or of what leads to one.
pub fn is_git(name: &[u8]) -> bool {
    name == b".git" || folded(name).as_ref() == b".git"
}

/// Whether `name`, in the directory at `directory` (a relative path; its end is looked at), is of [`AUTO_RUN`].
pub fn runs_by_itself(directory: &[u8], name: &[u8]) -> bool {
    let name = folded(name);
    if AUTO_RUN_ENDS.iter().any(|end| name.ends_with(end.as_bytes())) {
        return true;
    }
    let mut found = AUTO_RUN.iter().map(|auto| match auto.rsplit_once('/') {
        Some((below, last)) => (below, last),
        None => ("", *auto),
    });
    found.any(|(below, last)| name.eq_ignore_ascii_case(last.as_bytes()) && lies_in(directory, below))
}

/// Whether a name could be one that matters, wherever it lies.
pub fn may_matter(name: &[u8]) -> bool {
    let folded = folded(name);
    let last = |auto: &&str| folded.eq_ignore_ascii_case(auto.rsplit('/').next().unwrap_or(auto).as_bytes());
    is_git(name) || AUTO_RUN.iter().any(last) || AUTO_RUN_ENDS.iter().any(|end| folded.ends_with(end.as_bytes()))
}

/// Whether a directory's path ends with these names; no names are the end of every path.
pub(crate) fn lies_in(directory: &[u8], below: &str) -> bool {
    if below.is_empty() {
        return true;
    }
    let mut parts = directory.rsplit(|byte| *byte == b'/');
    below
        .rsplit('/')
        .all(|wanted| parts.next().is_some_and(|part| folded(part).eq_ignore_ascii_case(wanted.as_bytes())))
}

/// Whether a relative path, as bytes, names something protected or something below it, wherever it lies. A
/// linked worktree's and a submodule's `.git` is a file that leads elsewhere: it is protected itself.
pub fn is_protected(path: &[u8]) -> bool {
    let mut at = 0;
    for (number, part) in path.split(|byte| *byte == b'/').enumerate() {
        let above = path.get(..at.max(1) - 1).unwrap_or_default();
        at += part.len() + 1;
        // Nobody edits inside a git directory by hand: all of it counts.
        if number == 0 && part == OWN.as_bytes() || is_git(part) || runs_by_itself(above, part) {
            return true;
        }
    }
    false
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
    fn a_name_is_seen_as_the_most_forgiving_file_system_sees_it() {
        for name in [".git", ".GIT", ".Git. ", ".g\u{200c}it", ".\u{feff}git", ".gi\u{fe0f}T.."] {
            assert!(is_git(name.as_bytes()), "{name:?}");
        }
        for name in [".gita", "git", ".g it", ".gi\u{142}", "..git"] {
            assert!(!is_git(name.as_bytes()), "{name:?}");
        }
        assert!(may_matter(".hu\u{17f}\u{212a}y".as_bytes()) && may_matter(b"hgrc") && !may_matter(b"main.rs"));
        assert!(!is_git(b".git\xff"));
    }

    #[test]
    fn protected_names_count_at_every_depth() {
        for path in [
            ".git",
            ".git/hooks/x",
            "a/.git/config",
            ".vscode/tasks.json",
            "a/b/.envrc",
            ".salaam/x",
            "a/.jj/repo/config.toml",
            ".config/mise/config.toml",
            "x/y.code-workspace",
            ".Rprofile",
            "a/.GIT/x",
            ".V\u{17f}code/x",
        ] {
            assert!(is_protected(path.as_bytes()), "{path}");
        }
        for path in [
            "a",
            ".github/workflows/x",
            ".gitignore",
            "a/.salaam",
            "x.envrc",
            "git/hooks",
            "repo/config.toml",
            ".jj/repo/store",
            "mise/config.toml",
            "code-workspace",
        ] {
            assert!(!is_protected(path.as_bytes()), "{path}");
        }
    }
}
