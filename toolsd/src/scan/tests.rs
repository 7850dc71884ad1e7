//! Looks at real directories.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::PathBuf,
};

use super::{
    walk::{Closed, Reach, walk},
    *,
};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("salaam-scan-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn open(&self) -> fs::File {
        fs::File::open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn later() -> Moment {
    // Two ticks of the coarse clock, so that what was made before is before.
    std::thread::sleep(std::time::Duration::from_millis(20));
    salaam_sys::file::change_clock()
}

#[test]
fn what_changed_is_named_and_what_did_not_is_not() {
    let scratch = Scratch::new("names");
    for name in ["old", "gone/x", "deep/er/file", "touched"] {
        let path = scratch.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "1").unwrap();
    }
    let since = later();
    fs::remove_file(scratch.0.join("gone/x")).unwrap();
    fs::write(scratch.0.join("deep/er/new"), "2").unwrap();
    fs::write(scratch.0.join("touched"), "2").unwrap();
    fs::create_dir(scratch.0.join("empty")).unwrap();
    std::os::unix::fs::symlink("/etc", scratch.0.join("link")).unwrap();
    let mut found = changed(scratch.open().as_fd(), since);
    found.paths.sort();
    let names = ["deep/er/new", "empty", "gone", "link", "touched"];
    assert_eq!(found.paths, names.map(|name| name.as_bytes().to_vec()));
    assert_eq!((found.count, found.complete), (5, true));
}

#[test]
fn setgid_stays_on_directories_and_comes_off_files() {
    let scratch = Scratch::new("setgid");
    let since = later();
    for (name, mode) in [("file", 0o6755), ("unreadable", 0o2200)] {
        fs::write(scratch.0.join(name), "x").unwrap();
        fs::set_permissions(scratch.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(scratch.0.join("directory")).unwrap();
    fs::set_permissions(scratch.0.join("directory"), fs::Permissions::from_mode(0o2775)).unwrap();
    changed(scratch.open().as_fd(), since);
    let mode = |name| fs::metadata(scratch.0.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("file"), mode("unreadable"), mode("directory")), (0o755, 0o200, 0o2775));
}

#[test]
fn a_walk_over_the_limit_says_that_it_is_not_complete() {
    let scratch = Scratch::new("limit");
    for number in 0..10 {
        fs::write(scratch.0.join(number.to_string()), "").unwrap();
    }
    let reached = |entries, looked_at| {
        let reach = Reach { entries, looked_at, closed: Closed::Left, always: |_| false };
        let reached = walk(scratch.open().as_fd(), reach, |_, _, _| true);
        (reached.all, reached.looked_at_all)
    };
    assert_eq!([reached(9, 9), reached(11, 9), reached(11, 10)], [(false, false), (true, false), (true, true)]);
}

#[test]
fn growth_counts_what_is_on_disk_since_then() {
    let scratch = Scratch::new("growth");
    fs::write(scratch.0.join("before"), vec![1; 1 << 20]).unwrap();
    let since = later();
    fs::write(scratch.0.join("after"), vec![1; 256 << 10]).unwrap();
    let file = fs::File::open(scratch.0.join("after")).unwrap();
    file.sync_all().unwrap();
    let grown = grown(scratch.open().as_fd(), since);
    assert!((256 << 10..512 << 10).contains(&grown.bytes), "{grown:?}");
}

#[test]
fn what_lies_near_the_top_is_found_before_what_is_deep() {
    let scratch = Scratch::new("breadth");
    fs::create_dir_all(scratch.0.join("a/b/c")).unwrap();
    for number in 0..100 {
        fs::write(scratch.0.join(format!("a/b/c/{number}")), "").unwrap();
    }
    fs::create_dir_all(scratch.0.join("z/y")).unwrap();
    let reach = Reach { entries: 50, looked_at: 50, closed: Closed::Left, always: |_| false };
    let mut seen = Vec::new();
    let reached = walk(scratch.open().as_fd(), reach, |path, _, _| {
        seen.push(path.to_owned());
        true
    });
    assert!(!reached.all && seen.contains(&PathBuf::from("z/y")), "{seen:?}");
}
