//! The edit engine: matching, undo, and the diff that a person reviews.

use std::collections::BTreeMap;

use salaam_core::{
    edit::{Change, FileChange, Image, MAX_MODE, apply, diff, paths, reverse},
    show,
};

use super::{
    Target,
    text::{short_and_visible, visible},
};

/// Stands in files and never in paths: an error must not repeat it.
const SECRET: &str = "hunter2-hunter2";
/// Between the parts of an input, and between the fields of a change.
const PART: u8 = 0x1e;
const FIELD: u8 = 0x1f;

type Files = BTreeMap<Vec<u8>, Option<Image>>;

pub(super) const EDIT: Target = Target {
    name: "edit",
    about: "changes applied to files, undone and redone: only named files change, and undo gives every byte back",
    samples: || {
        let samples = [
            "one\ntwo\nthree\n\u{1e}!\u{1e}a\r\nb\r\n\u{1e}r\u{1f}a\u{1f}two\u{1f}2\u{1f}",
            "\u{feff}one\r\ntwo\nlast\u{1e}x\u{1e}y\u{1e}r\u{1f}a\u{1f}one\ntwo\u{1f}1\n2\u{1f}all\u{1e}m\u{1f}b\u{1f}755\u{1e}d\u{1f}d/c",
            "hunter2-hunter2\u{1e}aaaa\u{1e}!\u{1e}r\u{1f}b\u{1f}aa\u{1f}b\u{1f}all\u{1e}n\u{1f}a\u{1f}d/c\u{1e}c\u{1f}a\u{1f}new",
            "a\u{1e}b\u{1e}c\u{1e}w\u{1f}a\u{1f}b\u{1f}600\u{1e}d\u{1f}b\u{1e}c\u{1f}b\u{1f}x\u{1e}s\u{1f}d/c\u{1f}0\u{1f}1\u{1f}z",
        ];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "\u{1e}r\u{1f}a\u{1f}",
        "\u{1e}s\u{1f}a\u{1f}3\u{1f}4\u{1f}x",
        "\u{1e}c\u{1f}b\u{1f}",
        "\u{1e}d\u{1f}a",
        "\u{1e}n\u{1f}a\u{1f}b",
        "\u{1e}m\u{1f}a\u{1f}777",
        "\u{1e}w\u{1f}a\u{1f}",
        "\u{1f}all",
        "\r\n",
        "\n",
        "\r",
        "hunter2-hunter2",
        "\u{1e}!",
        "../",
        "a/b",
    ],
    read: |input| {
        let (before, changes) = read(input);
        match apply(&changes, &before) {
            Ok(done) => {
                assert_eq!(apply(&changes, &before).as_ref(), Ok(&done), "the same edit twice");
                hold(&changes, &before, &done);
                format!("{} {} {:?}", done.len(), changes.len(), kinds(&changes))
            }
            Err(error) => {
                let named =
                    changes.iter().any(|change| contains(change.path(), SECRET) || contains(new_name(change), SECRET));
                let said = short_and_visible(&error.to_string());
                assert!(named || !said.contains(SECRET), "text of a file in {said}");
                said
            }
        }
    },
};

pub(super) const DIFF: Target = Target {
    name: "diff",
    about: "two texts shown as a unified diff, which read back gives the second",
    samples: || {
        let lines: String = (0..200).map(|n| format!("line {n}\n")).collect();
        let other = lines.replace("line 7\n", "line seven\n").replace("line 150\n", "");
        vec![
            format!("{lines}\u{1e}{other}").into_bytes(),
            b"a\nb\nc\x1ea\nc\nb".to_vec(),
            b"\x1enew\n".to_vec(),
            b"same\x1esame\n".to_vec(),
            ["x\n".repeat(300), "y\nx\n".repeat(150)].join("\u{1e}").into_bytes(),
        ]
    },
    words: &[
        "\n",
        "\n\n\n",
        "x\n",
        "\u{1e}",
        "\\ No newline at end of file\n",
        "@@ -1,1 +1,1 @@\n",
        "+++ b/x\n",
        "--- a/x\n",
        "\\u{202e}",
    ],
    read: |input| {
        let (old, new) = split_at(input, PART);
        if old == new {
            return "same".into();
        }
        let file = FileChange { path: b"f".to_vec(), pre: image(old), post: image(new) };
        let shown = diff(std::slice::from_ref(&file)).expect("inputs are small");
        visible(&shown);
        // Escapes cannot be read back, and files with NUL are only named.
        let plain = [old, new].iter().all(|text| show::is_plain(text) && !text.contains(&b'\\'));
        if plain {
            assert_eq!(patched(old, &shown), new, "{shown}");
        }
        format!("{} {}", plain, shown.matches("\n@@").count().min(5))
    },
};

/// What must hold of every edit that applies.
fn hold(changes: &[Change], before: &Files, done: &[FileChange]) {
    let named = paths(changes).expect("it was applied");
    for file in done {
        assert!(named.contains(&file.path), "only named files change");
        assert_eq!(Some(&file.pre), before.get(&file.path));
        assert_ne!(file.pre, file.post);
        assert!(file.post.as_ref().is_none_or(|image| image.mode <= MAX_MODE));
    }
    let after: Files = done.iter().map(|file| (file.path.clone(), file.post.clone())).collect();
    let undone = apply(&reverse(done), &after).expect("an edit can be undone");
    assert!(undone.iter().all(|file| Some(&file.post) == before.get(&file.path)), "undo gives every byte back");
    assert_eq!(undone.len(), done.len());
    let back: Files = undone.iter().map(|file| (file.path.clone(), file.post.clone())).collect();
    assert_eq!(apply(&reverse(&undone), &back).as_deref(), Ok(done), "and undo of undo the edit");
    let shown = diff(done).expect("inputs are small");
    visible(&shown);
    assert!(!shown.is_empty());
}

/// Three files and the changes after them.
fn read(input: &[u8]) -> (Files, Vec<Change>) {
    let mut parts = input.split(|byte| *byte == PART);
    let names: [&[u8]; 3] = [b"a", b"b", b"d/c"];
    let mut files: Files = names.iter().map(|name| (name.to_vec(), parts.next().and_then(image))).collect();
    let changes: Vec<Change> = parts.filter_map(|part| change(part, &files)).collect();
    // What else is named is not there.
    for path in paths(&changes).into_iter().flatten() {
        files.entry(path).or_insert(None);
    }
    (files, changes)
}

fn image(content: &[u8]) -> Option<Image> {
    (content != b"!").then(|| Image { content: content.to_vec(), mode: 0o644 })
}

fn change(part: &[u8], files: &Files) -> Option<Change> {
    let mut fields = part.split(|byte| *byte == FIELD).map(<[u8]>::to_vec);
    let kind = fields.next()?;
    let path = fields.next()?;
    let mut text = || fields.next().unwrap_or_default();
    let mode = |text: Vec<u8>| u32::from_str_radix(&String::from_utf8_lossy(&text), 8).unwrap_or(0o600);
    Some(match kind.first()? {
        b'c' => Change::Create { path, content: text() },
        b'd' => Change::Delete { path },
        b'n' => Change::Rename { path, to: text() },
        b'm' => Change::Mode { path, mode: mode(text()) },
        b'w' => Change::Write { path, content: text(), mode: mode(text()) },
        // Something that is there.
        b's' => {
            let content = files.get(&path).cloned().flatten().map(|image| image.content).unwrap_or_default();
            let number = |text: Vec<u8>| String::from_utf8_lossy(&text).parse::<usize>().unwrap_or(0);
            let start = number(text()).min(content.len());
            let end = start.saturating_add(number(text())).min(content.len());
            Change::Replace { path, old: content[start..end].to_vec(), new: text(), all: text() == b"all" }
        }
        _ => Change::Replace { path, old: text(), new: text(), all: text() == b"all" },
    })
}

fn new_name(change: &Change) -> &[u8] {
    match change {
        Change::Rename { to, .. } => to,
        Change::Replace { .. }
        | Change::Create { .. }
        | Change::Delete { .. }
        | Change::Mode { .. }
        | Change::Write { .. } => b"",
    }
}

fn kinds(changes: &[Change]) -> Vec<&'static str> {
    let kind = |change: &Change| match change {
        Change::Replace { .. } => "replace",
        Change::Create { .. } => "create",
        Change::Delete { .. } => "delete",
        Change::Rename { .. } => "rename",
        Change::Mode { .. } => "mode",
        Change::Write { .. } => "write",
    };
    changes.iter().map(kind).take(4).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn split_at(input: &[u8], border: u8) -> (&[u8], &[u8]) {
    match input.iter().position(|byte| *byte == border) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, b""),
    }
}

/// Applies a unified diff of one text, by its own reading of the format: counts, not looks, say what a line is.
fn patched(old: &[u8], shown: &str) -> Vec<u8> {
    let old: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut at, mut out) = (0, Vec::new());
    let mut lines = shown.split_terminator('\n').skip(3).peekable();
    while let Some(header) = lines.next() {
        let numbers: Vec<usize> = header
            .trim_matches(|c: char| !c.is_ascii_digit())
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect();
        let [from, mut gone, _, mut come] = numbers[..] else { panic!("{header}") };
        let from = from - usize::from(gone > 0);
        old[at..from].iter().for_each(|line| out.extend_from_slice(line));
        at = from;
        while gone > 0 || come > 0 {
            let line = lines.next().expect("a hunk has as many lines as it says");
            let ended = lines.next_if(|next| next.starts_with("\\ ")).is_none();
            let text = [&line.as_bytes()[1..], if ended { b"\n" } else { b"" }].concat();
            let sign = line.as_bytes()[0];
            if sign != b'+' {
                assert_eq!(old[at], text);
                at += 1;
                gone -= 1;
            }
            if sign != b'-' {
                out.extend_from_slice(&text);
                come -= 1;
            }
        }
    }
    old[at..].iter().for_each(|line| out.extend_from_slice(line));
    out
}
