//! Tables for every rule of an edit, and seeded properties: an edit undone is as if it had not been, and a diff
//! applied by another program gives the file that we computed.

use std::collections::BTreeMap;

use super::*;

/// SplitMix64: the same numbers for the same seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    fn text(&mut self, most: usize) -> Vec<u8> {
        let pieces: [&[u8]; 9] =
            [b"a", b"b", b"\n", b"\r\n", b"\r", b"ab\n", b"\xff", "\u{e9}\u{202e}".as_bytes(), b"line\n"];
        (0..self.below(most)).flat_map(|_| pieces[self.below(pieces.len())].to_vec()).collect()
    }
}

type Files = BTreeMap<Vec<u8>, Option<Image>>;

fn image(content: &[u8]) -> Option<Image> {
    Some(Image { content: content.to_vec(), mode: 0o644 })
}

fn files(files: &[(&str, Option<&[u8]>)]) -> Files {
    files.iter().map(|(path, content)| (path.as_bytes().to_vec(), content.and_then(image))).collect()
}

fn replace(path: &str, old: &str, new: &str) -> Change {
    Change::Replace { path: path.into(), old: old.into(), new: new.into(), all: false }
}

fn replace_all(path: &str, old: &str, new: &str) -> Change {
    Change::Replace { path: path.into(), old: old.into(), new: new.into(), all: true }
}

fn create(path: &str, content: &str) -> Change {
    Change::Create { path: path.into(), content: content.into() }
}

fn delete(path: &str) -> Change {
    Change::Delete { path: path.into() }
}

fn rename(path: &str, to: &str) -> Change {
    Change::Rename { path: path.into(), to: to.into() }
}

fn mode(path: &str, mode: u32) -> Change {
    Change::Mode { path: path.into(), mode }
}

/// What one file becomes, or why not.
fn one(before: &[u8], change: Change) -> Result<Vec<u8>, String> {
    let changed = apply(&[change], &files(&[("f", Some(before))])).map_err(|e| e.to_string())?;
    Ok(changed[0].post.clone().unwrap().content)
}

#[test]
fn only_the_matched_bytes_change() {
    let cases: &[(&[u8], &str, &str, &[u8])] = &[
        (b"one two three", "two", "2", b"one 2 three"),
        (b"\xef\xbb\xbfone\r\ntwo\r\nthree", "two", "2", b"\xef\xbb\xbfone\r\n2\r\nthree"),
        (b"old \x99 byte\nkeep \x99\n", "old", "new", b"new \x99 byte\nkeep \x99\n"),
        (b"a\0b\0c", "b", "B", b"a\0B\0c"),
        (b"no newline", "newline", "end", b"no end"),
        (b"gone\nstays\n", "gone\n", "", b"stays\n"),
        ("caf\u{e9}".as_bytes(), "\u{e9}", "e", b"cafe"),
        (b"aab", "ab", "c", b"ac"),
        (b"aaab", "aab", "-", b"a-"),
        (b"abacabadabac", "abad", "-", b"abac-abac"),
    ];
    for (before, old, new, after) in cases {
        assert_eq!(one(before, replace("f", old, new)).unwrap(), *after, "{old} in {before:?}");
    }
}

#[test]
fn text_quoted_with_lf_matches_any_ending_and_each_line_keeps_its_own() {
    let cases: &[(&[u8], &str, &str, &[u8])] = &[
        (b"a\r\nb\r\nc", "a\nb\n", "x\ny\n", b"x\r\ny\r\nc"),
        (b"a\r\nb\nc\r\n", "a\nb\nc", "1\n2\n3", b"1\r\n2\n3\r\n"),
        (b"a\r\nb\nc\r\n", "b\nc\n", "b\nx\ny\nc\n", b"a\r\nb\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\nb\r\nc", "c", "c\nd", b"a\nb\r\nc\r\nd"),
        (b"only", "only", "one\ntwo", b"one\ntwo"),
        (b"a\r\nb", "\n", "", b"ab"),
        (b"a\r\r\nb", "\n", " ", b"a\r b"),
        (b"a\r\nb", "a\r\n", "a\n", b"a\nb"),
        (b"a\nb", "a\n", "a\r\n", b"a\r\nb"),
    ];
    for (before, old, new, after) in cases {
        assert_eq!(one(before, replace("f", old, new)).unwrap(), *after, "{old:?} in {before:?}");
    }
    let bom = b"\xef\xbb\xbfone\r\ntwo\r\nlone\nthree\r\nlast";
    let after = one(bom, replace("f", "two\nlone\n", "zwei\nallein\n")).unwrap();
    assert_eq!(after, b"\xef\xbb\xbfone\r\nzwei\r\nallein\nthree\r\nlast");
    let after = one(b"a\r\na\na", replace_all("f", "a", "b\nc")).unwrap();
    assert_eq!(after, b"b\r\nc\r\nb\nc\nb\nc");
}

#[test]
fn exactly_one_match_or_all_and_errors_count_but_never_quote() {
    let matches = |before: &[u8], change| one(before, change).unwrap_err();
    assert_eq!(
        matches(b"secret", replace("f", "token", "x")),
        "`f`: the text to replace has 0 matches; read the file again and quote it exactly"
    );
    let two = matches(b"secret secret", replace("f", "secret", "x"));
    assert_eq!(two, "`f`: the text to replace has 2 matches; quote more of the lines around it, or set `all`");
    assert!(matches(b"aaa", replace("f", "aa", "x")).contains("2 matches"), "places may overlap");
    assert!(matches(b"a", replace_all("f", "b", "x")).contains("0 matches"));
    assert!(matches(b"", replace("f", "b", "x")).contains("0 matches"));
    assert_eq!(one(b"aaa", replace_all("f", "aa", "x")).unwrap(), b"xa");
    assert_eq!(one(b"a a a", replace_all("f", "a", "aa")).unwrap(), b"aa aa aa");
    assert!(matches(b"x", replace("f", "", "y")).contains("is empty"));
}

#[test]
fn changes_are_applied_in_order_and_a_later_one_sees_the_earlier() {
    let before = files(&[("f", Some(b"one")), ("g", None), ("h", None)]);
    let chained = [replace("f", "one", "two"), replace("f", "two", "three"), rename("f", "g"), mode("g", 0o755)];
    let changed = apply(&chained, &before).unwrap();
    let after: Vec<_> = changed.iter().map(|f| (f.path.clone(), f.pre.clone(), f.post.clone())).collect();
    let three = Some(Image { content: b"three".to_vec(), mode: 0o755 });
    assert_eq!(after, [(b"f".to_vec(), image(b"one"), None), (b"g".to_vec(), None, three)]);
    let overlapping = [replace("f", "on", "un"), replace("f", "ne", "no")];
    assert_eq!(apply(&overlapping, &before).unwrap()[0].post, image(b"uno"));
    assert!(apply(&[replace("f", "two", "three"), replace("f", "one", "two")], &before).is_err());
    let again = [delete("f"), create("f", "new")];
    assert_eq!(apply(&again, &before).unwrap()[0].post.as_ref().unwrap().mode, CREATED_MODE);
    let through = [create("h", "x"), replace("h", "x", "y"), delete("h"), replace("f", "one", "1")];
    assert_eq!(apply(&through, &before).unwrap().len(), 1, "what nets to nothing is no change");
}

#[test]
fn what_would_lose_something_unseen_is_refused() {
    let before = files(&[("f", Some(b"one")), ("g", Some(b"two")), ("n", None), ("d/e", None)]);
    let cases: &[(&[Change], &str)] = &[
        (&[create("f", "x")], "`f` cannot be created: it exists; edit or delete it first"),
        (&[rename("f", "g")], "`g` cannot be the new name of a file: it exists; edit or delete it first"),
        (&[delete("n")], "`n` cannot be deleted: there is no such file"),
        (&[replace("n", "a", "b")], "`n` cannot be changed: there is no such file"),
        (&[rename("n", "d/e")], "`n` cannot be renamed: there is no such file"),
        (&[mode("n", 0o644)], "`n` cannot be given another mode: there is no such file"),
        (&[mode("f", 0o4755)], "`f`: the mode 4755 is refused; it must be from 0000 to 0777 and let the owner read"),
        (&[mode("f", 0o066)], "`f`: the mode 66 is refused; it must be from 0000 to 0777 and let the owner read"),
        (&[mode("f", 0o644)], "`f`: no change"),
        (&[replace("f", "one", "one")], "`f`: no change"),
        (&[rename("f", "f")], "`f`: no change"),
        (&[replace("f", "one", "two"), replace("f", "two", "one")], "`f`: no change"),
        (&[create("n", "x"), delete("n")], "`n`: no change"),
        (&[Change::Write { path: b"f".to_vec(), content: b"one".to_vec(), mode: 0o644 }], "`f`: no change"),
        (
            &[create("d", "x"), create("d/e", "y")],
            "`d/e` lies below `d`, which the edit takes for a file; send two edits",
        ),
        (&[create("unread", "x")], "`unread` was not read before the edit was computed"),
        (&[], "the edit has no changes"),
    ];
    for (changes, said) in cases {
        assert_eq!(apply(changes, &before).unwrap_err().to_string(), *said);
    }
}

#[test]
fn a_path_that_is_not_plain_is_refused_and_shown_visibly() {
    for (path, fault) in [
        (&b""[..], "it is empty"),
        (b"/etc/passwd", "it must be relative"),
        (b"../x", "it must not hold `..`"),
        (b"a/../../x", "it must not hold `..`"),
        (b"./x", "it must not hold `.`"),
        (b"a//b", "it must not hold `.`"),
        (b"a/", "it must not hold `.`"),
        (b"a\0b", "it holds a NUL"),
        (&[b'a'; 256], "too long"),
        (&b"a/".repeat(2049), "too long"),
    ] {
        let said = check_path(path).unwrap_err().to_string();
        assert!(said.contains(fault), "{said}");
        assert!(said.len() < 800, "{said}");
        let change = Change::Rename { path: b"f".to_vec(), to: path.to_vec() };
        assert!(apply(&[change], &files(&[("f", Some(b"x"))])).is_err());
    }
    let said = check_path(b"/\x1b[2J").unwrap_err().to_string();
    assert_eq!(said, "the path `/\\e[2J` is refused: it must be relative to the root of the workspace");
    for good in [&b"a"[..], b"a/b.c", b"..a/...", b"\xff", &[b'a'; 255], b" "] {
        assert_eq!(check_path(good), Ok(()));
    }
}

#[test]
fn one_more_than_each_bound_is_refused() {
    let many: Vec<Change> = (0..=MAX_FILES).map(|n| create(&format!("f{n}"), "x")).collect();
    assert_eq!(paths(&many), Err(EditError::TooManyFiles(MAX_FILES + 1)));
    assert_eq!(paths(&many[1..]).unwrap().len(), MAX_FILES);
    let many = vec![replace("f", "a", "b"); MAX_CHANGES + 1];
    assert_eq!(paths(&many), Err(EditError::TooManyChanges(MAX_CHANGES + 1)));
    let large = Change::Create { path: b"n".to_vec(), content: vec![b'a'; MAX_FILE_BYTES + 1] };
    assert!(matches!(apply(&[large], &files(&[("n", None)])), Err(EditError::FileTooLarge { .. })));
    let large = vec![b'a'; MAX_FILE_BYTES + 1];
    assert!(matches!(one(&large, replace("f", "b", "c")), Err(said) if said.contains("16777216 is the most")));
    let grows = one(&vec![b'a'; 1 << 20], replace_all("f", "a", "0123456789abcdef0"));
    assert!(grows.unwrap_err().contains("16777216 is the most"));
    let whole = vec![b'a'; MAX_FILE_BYTES];
    let three = files(&[("a", Some(&whole)), ("b", Some(&whole)), ("c", Some(b"x"))]);
    let all = [delete("a"), delete("b"), delete("c")];
    assert_eq!(apply(&all, &three), Err(EditError::TooLarge));
    let mut content = whole;
    content[0] = b'b';
    let there_and_back = |n| if n % 2 == 0 { replace_all("f", "b", "c") } else { replace_all("f", "c", "b") };
    let back: Vec<Change> = (0..=MAX_SCANNED_BYTES / MAX_FILE_BYTES).map(there_and_back).collect();
    assert_eq!(apply(&back, &files(&[("f", Some(&content))])), Err(EditError::TooMuchToScan));
}

/// An edit that somebody might make, mostly one that applies.
fn random_changes(seeded: &mut Seeded, before: &Files) -> Vec<Change> {
    let names: Vec<Vec<u8>> = before.keys().cloned().collect();
    (0..=seeded.below(4))
        .map(|_| {
            let path = names[seeded.below(names.len())].clone();
            let content = before[&path].as_ref().map(|image| image.content.clone()).unwrap_or_default();
            match seeded.below(8) {
                0 => Change::Create { path, content: seeded.text(9) },
                1 => Change::Delete { path },
                2 => Change::Rename { path, to: names[seeded.below(names.len())].clone() },
                3 => Change::Mode { path, mode: 0o600 + seeded.below(0o200) as u32 },
                4 => Change::Write { path, content: seeded.text(9), mode: 0o640 },
                _ => {
                    let start = seeded.below(content.len() + 1);
                    let end = (start + seeded.below(6)).min(content.len());
                    let old = content[start..end].to_vec();
                    Change::Replace { path, old, new: seeded.text(5), all: seeded.below(3) == 0 }
                }
            }
        })
        .collect()
}

#[test]
fn undo_gives_back_every_byte_and_undo_of_undo_the_edit() {
    let mut applied = 0;
    for seed in 0..3000 {
        let mut seeded = Seeded(seed);
        let before: Files = ["a", "b", "d/c", "e"]
            .iter()
            .map(|name| (name.as_bytes().to_vec(), if seeded.below(4) == 0 { None } else { image(&seeded.text(12)) }))
            .collect();
        let changes = random_changes(&mut seeded, &before);
        let Ok(done) = apply(&changes, &before) else { continue };
        applied += 1;
        let named = paths(&changes).unwrap();
        assert!(done.iter().all(|file| named.contains(&file.path) && file.pre == before[&file.path]));
        let after = |done: &[FileChange]| -> Files { done.iter().map(|f| (f.path.clone(), f.post.clone())).collect() };
        let undone = apply(&reverse(&done), &after(&done)).unwrap();
        for file in &undone {
            assert_eq!(file.post, before[&file.path], "seed {seed}");
        }
        let redone = apply(&reverse(&undone), &after(&undone)).unwrap();
        assert_eq!(redone, done, "seed {seed}");
        assert!(!diff(&done).unwrap().is_empty());
    }
    assert!(applied > 500, "{applied}");
}

/// Applies a unified diff of one text as shown, by its own reading of the format.
fn patched(old: &[u8], shown: &str) -> Vec<u8> {
    let old: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut at, mut out) = (0, Vec::new());
    let mut lines = shown.lines().skip_while(|line| !line.starts_with("@@")).peekable();
    while let Some(line) = lines.next() {
        if let Some(header) = line.strip_prefix("@@ -") {
            let (from, rest) = header.split_once(',').unwrap();
            let count: usize = rest.split_once(' ').unwrap().0.parse().unwrap();
            let from: usize = from.parse::<usize>().unwrap() - usize::from(count > 0);
            assert!(from >= at);
            old[at..from].iter().for_each(|line| out.extend_from_slice(line));
            at = from;
            continue;
        }
        let ended = lines.next_if(|next| next.starts_with('\\')).is_none();
        let text = [&line.as_bytes()[1..], if ended { b"\n" } else { b"" }].concat();
        match &line[..1] {
            " " => {
                assert_eq!(old[at], text);
                out.extend_from_slice(&text);
                at += 1;
            }
            "-" => {
                assert_eq!(old[at], text);
                at += 1;
            }
            "+" => out.extend_from_slice(&text),
            other => panic!("{other}"),
        }
    }
    old[at..].iter().for_each(|line| out.extend_from_slice(line));
    out
}

#[test]
fn a_diff_read_back_gives_the_new_file() {
    for seed in 0..4000 {
        let mut seeded = Seeded(seed);
        let words = ["a\n", "b\n", "c\n", "dd\n", "\n", "end"];
        let text = |seeded: &mut Seeded, most| -> Vec<&str> {
            (0..seeded.below(most)).map(|_| words[seeded.below(5)]).collect()
        };
        let mut old = text(&mut seeded, 60);
        let mut new = old.clone();
        for _ in 0..=seeded.below(6) {
            let at = seeded.below(new.len() + 1);
            let gone = seeded.below(4).min(new.len() - at);
            let come = text(&mut seeded, 4);
            new.splice(at..at + gone, come);
        }
        for side in [&mut old, &mut new] {
            if seeded.below(3) == 0 {
                side.push(words[5]);
            }
        }
        let (old, new) = (old.concat().into_bytes(), new.concat().into_bytes());
        if old == new {
            continue;
        }
        let shown = diff(&[FileChange { path: b"f".to_vec(), pre: image(&old), post: image(&new) }]).unwrap();
        assert_eq!(patched(&old, &shown), new, "seed {seed}\n{shown}");
    }
}

#[test]
fn golden_diffs() {
    let before = files(&[
        ("a.txt", Some(b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\r\nend")),
        ("bin", Some(b"\0\x01")),
        ("empty", None),
        ("gone", Some(b"x\n")),
        ("new \x1b", None),
        ("old", Some(b"same\n")),
        ("to", None),
    ]);
    let changes = [
        replace("a.txt", "2\n3", "2\nx\n3"),
        replace("a.txt", "15", "\u{202e}15"),
        replace("a.txt", "end", "END"),
        Change::Replace { path: b"bin".to_vec(), old: vec![1], new: vec![2], all: false },
        create("empty", ""),
        delete("gone"),
        create("new \x1b", "hi"),
        rename("old", "to"),
    ];
    let shown = diff(&apply(&changes, &before).unwrap()).unwrap();
    assert_eq!(
        shown,
        "diff a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n\
         @@ -1,5 +1,6 @@\n 1\n 2\n+x\n 3\n 4\n 5\n\
         @@ -12,5 +13,5 @@\n 12\n 13\n 14\n-15\\r\n-end\n\\ No newline at end of file\n\
         +\\u{202e}15\\r\n+END\n\\ No newline at end of file\n\
         diff a/bin b/bin\nbinary: 2 bytes with SHA-256 b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2 \
         becomes 2 bytes with SHA-256 fcf0a6c700dd13e274b6fba8deea8dd9b26e4eedde3495717cac8408c9c5177f\n\
         diff a/empty b/empty\nnew file mode 0664\n\
         diff a/gone b/gone\ndeleted file mode 0644\n--- a/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n\
         diff a/new \\e b/new \\e\nnew file mode 0664\n--- /dev/null\n+++ b/new \\e\n@@ -0,0 +1,1 @@\n+hi\n\
         \\ No newline at end of file\n\
         diff a/old b/to\nrename from old\nrename to to\n"
    );
    let chmod = diff(&apply(&[mode("gone", 0o755)], &before).unwrap()).unwrap();
    assert_eq!(chmod, "diff a/gone b/gone\nold mode 0644\nnew mode 0755\n");
}

#[test]
fn hostile_files_are_shown_or_refused_in_bounded_work() {
    let show =
        |old: Vec<u8>, new: Vec<u8>| diff(&[FileChange { path: b"f".to_vec(), pre: image(&old), post: image(&new) }]);
    let newlines = vec![b'\n'; MAX_FILE_BYTES];
    let shown = show(newlines.clone(), newlines[1..].to_vec()).unwrap();
    assert_eq!(shown.lines().count(), 8, "one line less");
    let mut both = newlines.clone();
    both[0] = b'a';
    both[MAX_FILE_BYTES - 2] = b'b';
    assert_eq!(show(newlines.clone(), both), Err(EditError::TooLongToShow));
    assert_eq!(show(vec![b'a'; MAX_FILE_BYTES], vec![b'b'; MAX_FILE_BYTES]), Err(EditError::TooLongToShow));
    let alternating = |first: &[u8], second: &[u8]| [first, second].concat().repeat(60_000);
    // As many lines, all different from their neighbours: one by one.
    assert!(show(alternating(b"a\n", b"b\n"), alternating(b"b\n", b"c\n")).is_ok());
    // No common line at all, and another count: replaced whole.
    let mut other = alternating(b"x\n", b"y\n");
    other.extend_from_slice(b"z\n");
    let shown = show(alternating(b"a\n", b"b\n"), other).unwrap();
    assert_eq!(shown.lines().count(), 3 + 1 + 240_001);
    // Every second line changed, beyond the search: still only those are shown.
    let every: Vec<u8> = (0..9000).flat_map(|n| format!("{n}\nsame\n").into_bytes()).collect();
    let other: Vec<u8> = (0..9000).flat_map(|n| format!("{n}!\nsame\n").into_bytes()).collect();
    assert_eq!(show(every, other).unwrap().matches("\n same").count(), 9000);
    let needle = [vec![b'a'; 1 << 20], b"b".to_vec()].concat();
    let change = Change::Replace { path: b"f".to_vec(), old: needle, new: Vec::new(), all: true };
    assert!(one(&vec![b'a'; MAX_FILE_BYTES], change).unwrap_err().contains("0 matches"));
}

#[test]
fn a_log_never_shows_what_a_file_holds() {
    let change = replace("f", "secret", "token");
    let file = FileChange { path: b"f".to_vec(), pre: image(b"secret"), post: None };
    for shown in [format!("{change:?}"), format!("{file:?}")] {
        assert!(!shown.contains("secret") && !shown.contains("token") && !shown.contains("115"), "{shown}");
    }
}
