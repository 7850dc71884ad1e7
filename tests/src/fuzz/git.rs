//! What a repository says: its config, read as git reads it, and where its paths lead.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use salaam_core::{
    edit::check_path,
    git_config::{Setting, parse, write},
    protect::inside,
};

use super::Target;

/// Every so many configs one is given to git itself: a process costs as much as thousands of inputs.
const ASKED: usize = 32;

pub(super) const CONFIG: Target = Target {
    name: "git config",
    about: "a repository's config; what is accepted is written and read back the same, and git reads both the same",
    samples: || {
        let samples = [
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n[remote \"origin\"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
            "[core] hooksPath = .husky ; comment\n[alias]\n\tx = !sh -c 'id' # no\n[filter \"a.b\"]\n\tclean = \"a \\\"b\\\" \\\\ \\t\"\n\trequired\n",
            "[include]\npath = ../x\n[branch \"a\\\"b\\\\c\"]\n\tmerge = a \\\n  b\n[http \"https://x\"]\n\tproxy =\n",
            "[a \"\"]\nb = \"#;\"c\"d\"\n[A.B]\nc\n",
        ];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "[core]",
        "[a \"b\"]",
        "[a.b]",
        "\\\n",
        "\\\"",
        "\\n",
        "\\b",
        "\"",
        "#",
        ";",
        " = ",
        "\t",
        "key",
        "  ",
        "]",
        "=\n",
        "\u{a0}",
        "\u{e9}",
    ],
    read: |input| match parse(input) {
        Ok(settings) => {
            let written = write(&settings);
            assert_eq!(parse(written.as_bytes()).as_ref(), Ok(&settings), "{written:?}");
            if input.iter().map(|byte| usize::from(*byte)).sum::<usize>() % ASKED == 0 {
                for text in [input, written.as_bytes()] {
                    if let Some(read) = asked(text) {
                        assert_eq!(
                            read,
                            listed(&settings),
                            "git reads another config in {:?}",
                            String::from_utf8_lossy(text)
                        );
                    }
                }
            }
            let harmless = settings.iter().filter(|setting| setting.is_harmless()).count();
            format!(
                "{} of {}",
                ["none", "some"][usize::from(harmless > 0)],
                ["none", "some"][usize::from(!settings.is_empty())]
            )
        }
        Err(error) => error.to_string(),
    },
};

pub(super) const PATHS: Target = Target {
    name: "paths",
    about: "paths of an edit, and where a path in a repository leads",
    samples: || {
        let samples = [".git/worktrees/a\u{1e}../..", "a\u{1e}/srv/x/.real", "\u{1e}./a//b/./c", "a/b\u{1e}../../.."];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &["/", "..", "../", "./", "/srv/x", "/srv/x/", "/srv/xy/", "//", "\u{1e}"],
    read: |input| {
        let border = input.iter().position(|byte| *byte == 0x1e).unwrap_or(input.len());
        let (base, path) = (&input[..border], input.get(border + 1..).unwrap_or_default());
        let checked = check_path(path);
        if checked.is_ok() {
            assert!(
                !path.starts_with(b"/") && path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
            );
        }
        let led = inside(b"/srv/x", base, path);
        if let Some(led) = &led {
            assert!(led.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b"..")), "{led:?}");
        }
        format!("{} {}", checked.map_or_else(|e| e.to_string(), |()| "plain".into()), led.is_some())
    },
};

/// As `git config --list -z` writes settings.
fn listed(settings: &[Setting]) -> Vec<u8> {
    let mut out = Vec::new();
    for Setting { section, subsection, key, value } in settings {
        let subsection = subsection.as_ref().map(|name| format!(".{name}")).unwrap_or_default();
        let value = value.as_ref().map(|value| format!("\n{value}")).unwrap_or_default();
        out.extend_from_slice(format!("{section}{subsection}.{key}{value}\0").as_bytes());
    }
    out
}

/// What git reads; absent = it refuses the text, or is not there.
fn asked(text: &[u8]) -> Option<Vec<u8>> {
    let mut git = Command::new("git")
        .args(["config", "--file", "-", "--no-includes", "--list", "-z"])
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // git may refuse, and close, before it has read all; its input ends when the pipe is dropped.
    git.stdin.take().map(|mut pipe| pipe.write_all(text));
    let output = git.wait_with_output().ok()?;
    output.status.success().then_some(output.stdout)
}
