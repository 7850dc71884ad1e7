//! Order, pages and limits of a search, over trees that are made for it.

use std::{fs, os::fd::AsFd, path::PathBuf};

use salaam_core::reader::{Found, MAX_MATCH_BYTES, Match, Place, Skipped};

use super::*;
use crate::{
    account::Account,
    limits::{MAX_DEPTH, MAX_SEARCHED_LINE},
    refusal::Refusal,
    root::Root,
};

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let top = std::env::temp_dir().join(format!("salaam-search-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&top));
        let tree = Self(top);
        fs::create_dir_all(&tree.0).unwrap();
        files.iter().for_each(|(path, text)| tree.write(path, text.as_bytes()));
        tree
    }

    fn write(&self, path: &str, text: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn page(&self, pattern: &str, path: &str, after: Option<&Place>, most: usize) -> Result<Found, Refusal> {
        let fd = fs::File::open(&self.0).unwrap();
        let account = Account { uid: 64_123, groups: Vec::new() };
        search(&Root::new(fd.as_fd(), account), pattern, path.as_bytes(), after, most)
    }

    fn all(&self, pattern: &str, path: &str) -> Found {
        self.page(pattern, path, None, 500).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn places(found: &Found) -> Vec<String> {
    let shown = |found: &Match| format!("{}:{}", String::from_utf8_lossy(&found.place.path), found.place.line);
    found.matches.iter().map(shown).collect()
}

fn sample() -> Tree {
    Tree::new(
        std::thread::current().name().unwrap_or_default().rsplit(':').next().unwrap_or_default(),
        &[
            ("b/z", "x\nhit\n"),
            ("b/a", "hit\nhit\n"),
            ("a", "hit"),
            ("b-", "hit\n"),
            ("skip.o", "hit\n"),
            ("b/skip.o", "hit\n"),
            ("b/keep.o", "hit\n"),
            (".git/config", "hit\n"),
            ("target/x", "hit\n"),
            (".gitignore", "*.o\n/target/\n# hit\n"),
            ("b/.ignore", "!keep.o\n"),
        ],
    )
}

#[test]
fn matches_come_in_order_without_what_is_ignored() {
    let tree = sample();
    let found = tree.all("^hit$", "");
    assert_eq!(places(&found), ["a:1", "b/a:1", "b/a:2", "b/keep.o:1", "b/z:2", "b-:1"]);
    assert_eq!((found.next, found.matches[4].column, found.skipped), (None, 1, Skipped::default()));
    assert_eq!(places(&tree.all("hit", "b")), ["b/a:1", "b/a:2", "b/keep.o:1", "b/z:2"], "rules above count");
    assert_eq!(places(&tree.all("hit", "target")), ["target/x:1"], "what is named itself is searched");
    assert_eq!(places(&tree.all("hit", "skip.o")), ["skip.o:1"]);
}

#[test]
fn pages_of_any_size_give_the_same_as_one() {
    let tree = sample();
    let all = tree.all("hit", "").matches;
    for most in 1..=all.len() {
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = tree.page("hit", "", after.as_ref(), most).unwrap();
            paged.extend(page.matches);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, all, "{most} at a time");
    }
}

#[test]
fn a_place_that_is_gone_is_gone_on_from() {
    let tree = sample();
    let after = Place { path: b"b/gone/further".to_vec(), line: 3 };
    assert_eq!(places(&tree.page("hit", "", Some(&after), 500).unwrap()), ["b/keep.o:1", "b/z:2", "b-:1"]);
    let outside = Place { path: b"c".to_vec(), line: 1 };
    assert_eq!(tree.page("hit", "b", Some(&outside), 5), Err(Refusal::Missing));
}

#[test]
fn binary_files_are_counted_and_long_lines_cut() {
    let tree = Tree::new("long", &[]);
    tree.write("binary", b"hit\n\0");
    tree.write("latin", b"caf\xe9 hit\n");
    let long = [vec![b'x'; 5000], b"hit".to_vec(), vec![b'y'; 5000]].concat();
    tree.write("long", &long);
    tree.write("too-long", &[vec![b'x'; MAX_SEARCHED_LINE], b"hit\nhit\n".to_vec()].concat());
    let found = tree.all("hit", "");
    assert_eq!(places(&found), ["latin:1", "long:1", "too-long:2"]);
    assert_eq!(found.skipped, Skipped { binary: 1, large: 1, ..Skipped::default() });
    let cut = &found.matches[1];
    assert_eq!(cut.column, 5001);
    assert_eq!((cut.text.len() as u64, cut.cut_before), (MAX_MATCH_BYTES as u64, 4900));
    assert_eq!(cut.cut_before + cut.text.len() as u64 + cut.cut_after, long.len() as u64);
}

#[test]
fn a_tree_without_end_has_one() {
    let tree = Tree::new("deep", &[]);
    let mut path = String::new();
    for _ in 0..MAX_DEPTH + 20 {
        path.push_str("d/");
    }
    fs::create_dir_all(tree.0.join(&path)).unwrap();
    tree.write("last", b"hit\n");
    tree.write(&format!("{path}x"), b"hit\n");
    let found = tree.all("hit", "");
    assert_eq!((places(&found), found.skipped.deep), (vec!["last:1".to_owned()], 1));
}

#[test]
fn an_ignore_file_that_leads_out_is_not_read() {
    let tree = Tree::new("key", &[("x", "hit\n")]);
    let key = tree.0.with_extension("key");
    fs::write(&key, "x\n").unwrap();
    std::os::unix::fs::symlink(&key, tree.0.join(".gitignore")).unwrap();
    assert_eq!(fs::read_to_string(tree.0.join(".gitignore")).unwrap(), "x\n", "by its path it is read");
    let found = tree.all("hit", "");
    fs::remove_file(key).unwrap();
    assert_eq!(places(&found), ["x:1"]);
}
