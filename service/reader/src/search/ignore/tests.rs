//! The rules beside what git itself says about the same paths.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use super::*;

fn names(path: &str) -> Vec<&[u8]> {
    path.trim_end_matches('/').split('/').map(str::as_bytes).collect()
}

/// Whether a walk would leave it out: a directory above it is ignored, or it is itself.
fn ignored(rules: &Rules, path: &str) -> bool {
    let all = names(path);
    (1..=all.len()).any(|count| {
        let directory = count < all.len() || path.ends_with('/');
        rules.say(&all[..count], directory) == Said::Ignore
    })
}

#[test]
fn the_common_rules_hold() {
    let mut rules = Rules::default();
    rules.add(b"\xef\xbb\xbf# words\n\n*.o\n!keep.o\n/only-top\nbuild/\ndoc/*.txt\nspace\\ \nend   \n\\#x\n\\!y\n");
    let left = ["a.o", "d/a.o", "only-top", "build/x", "a/build/x", "doc/a.txt", "space ", "end", "#x", "!y"];
    let kept = ["keep.o", "a/only-top", "build", "doc/a/b.txt", "a/doc/b.txt", "space", "x", "y", "words"];
    assert_eq!(left.map(|path| ignored(&rules, path)), [true; 10]);
    assert_eq!(kept.map(|path| ignored(&rules, path)), [false; 9]);
}

#[test]
fn what_is_no_rule_matches_nothing_and_is_not_quoted() {
    let mut rules = Rules::default();
    rules.add(b"-----BEGIN OPENSSH PRIVATE KEY-----\n[\nx\\\n/\n!\n");
    assert!(!ignored(&rules, "x") && !ignored(&rules, "["));
    rules.add(&b"a\n".repeat(MAX_IGNORE_RULES + 1));
    assert!(rules.0.len() <= MAX_IGNORE_RULES + 6);
    rules.add(&vec![b'*'; MAX_RULE_BYTES + 1]);
    assert!(!ignored(&rules, "anything"));
}

/// A thousand rule files of random lines, each asked about the same paths.
#[test]
fn git_agrees() {
    let directory = std::env::temp_dir().join(format!("salaam-ignore-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "core.excludesFile=/dev/null"]).args(words).current_dir(&directory);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command
    };
    assert!(git(&["init", "-q"]).status().unwrap().success());
    // Directories end with a slash; git looks at the tree itself.
    let paths = [
        "a/", "b", "a.o", "ab/", "a/b/", "a/b/a", "a/b/a.o", "a/a.o", "a/a/", "a/a/a/", "a/a/a/b", "ab/ab", "ab/b/",
        "a b", "#a", "[a]", "a*", "a-b", "!", "-",
    ];
    for path in paths {
        match path.strip_suffix('/') {
            Some(path) => fs::create_dir_all(directory.join(path)).unwrap(),
            None => fs::write(directory.join(path), "").unwrap(),
        }
    }
    let parts = [
        "a",
        "b",
        "*",
        "**",
        "?",
        ".o",
        "/",
        "/",
        "[a]",
        "[!a]",
        "[a-b]",
        "[",
        "]",
        "\\",
        " ",
        "!",
        "#",
        "-",
        "**/",
        "/**",
        "[[:alpha:]]",
    ];
    let mut state = 7u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut differ = Vec::new();
    for _ in 0..200 {
        let lines: Vec<String> =
            (0..1 + random(3)).map(|_| (0..1 + random(4)).map(|_| parts[random(parts.len())]).collect()).collect();
        // Where `**` is not a component of its own, git 2.39 compares pointers into two strings, and a slash behind
        // a backslash is another special case; neither is meant by anyone.
        let odd = |line: &String| {
            line.contains("\\/")
                || line.split('/').any(|part| {
                    part.contains("**") && !part.trim_start_matches('!').trim_matches([' ', '*']).is_empty()
                })
        };
        let lines: Vec<String> = lines.into_iter().filter(|line| !odd(line)).collect();
        let text = lines.join("\n") + "\n";
        fs::write(directory.join(".gitignore"), &text).unwrap();
        let mut rules = Rules::default();
        rules.add(text.as_bytes());
        let mut child = git(&["check-ignore", "--stdin", "-z", "--no-index"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all((paths.map(|path| path.trim_end_matches('/')).join("\0") + "\0").as_bytes())
            .unwrap();
        let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let theirs: Vec<&str> = out.split('\0').filter(|path| !path.is_empty()).collect();
        let ours: Vec<&str> = paths.into_iter().filter(|path| ignored(&rules, path)).collect();
        let ours: Vec<&str> = ours.into_iter().map(|path| path.trim_end_matches('/')).collect();
        if ours != theirs {
            differ.push(format!("{text:?}\n  ours   {ours:?}\n  theirs {theirs:?}"));
        }
    }
    fs::remove_dir_all(&directory).unwrap();
    assert!(differ.is_empty(), "{}\n{} differ", differ.join("\n"), differ.len());
}
