//! Edits of real files: all or none, whatever fails, dies or races; nothing outside, nothing of others lost.
//!
//! Tests that need another account, a small file system or a killed process run this program again (`child`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

#[path = "edits/bench.rs"]
mod bench;
#[path = "edits/crash.rs"]
mod crash;
#[path = "edits/editor.rs"]
mod editor;
#[path = "edits/refuse.rs"]
mod refuse;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
};

use bench::{Bench, Job, create, delete, mode, operation, rename, replace, tree};
use salaam_core::edit::Change;
use salaam_toolsd::edit::{Refusal, Settled};

#[test]
fn one_edit_changes_many_files_and_leaves_nothing_else() {
    let bench = Bench::new("many");
    bench.write("a.txt", "one\r\ntwo\r\n", 0o640);
    bench.write("gone.txt", "x", 0o644);
    bench.write("from.sh", "#!/bin/sh\n", 0o755);
    bench.write("tool", "t", 0o644);
    bench.write("bystander", "b", 0o600);
    let changes = [
        replace("a.txt", "two", "2"),
        delete("gone.txt"),
        rename("from.sh", "bin/to.sh"),
        create("deep/er/new.txt", "new\n"),
        create("deep/other.txt", "other\n"),
        mode("tool", 0o755),
    ];
    let work = bench.work(1, &changes, &[]);
    let made = bench.apply(&work).unwrap();
    assert_eq!(made, ["bin", "deep", "deep/er"].map(std::path::PathBuf::from));
    let expected = [
        ("a.txt", "one\r\n2\r\n", 0o640),
        ("bin/to.sh", "#!/bin/sh\n", 0o755),
        ("bystander", "b", 0o600),
        ("deep/er/new.txt", "new\n", 0o664),
        ("deep/other.txt", "other\n", 0o664),
        ("tool", "t", 0o755),
    ];
    assert_eq!(tree(&bench.root), expected.map(|(path, text, mode)| (path.to_owned(), text.as_bytes().to_vec(), mode)));
    assert_eq!(bench.settle_work(&work).unwrap(), Settled::Finished { made: Vec::new() });
}

#[test]
fn an_undo_gives_everything_back_and_can_be_undone() {
    let bench = Bench::new("undo");
    bench.write("a.txt", "one", 0o604);
    bench.write("gone.txt", "x", 0o640);
    let before = bench.whole();
    let changes =
        [replace("a.txt", "one", "two"), delete("gone.txt"), create("d/e/new", "n"), rename("a.txt", "b.txt")];
    let files = bench.files(&changes);
    let made = bench.edit(1, &changes).unwrap();
    let after = bench.whole();
    let undo = salaam_core::edit::reverse(&files);
    let undone = bench.files(&undo);
    bench.edit_with(2, &undo, &made).unwrap();
    assert_eq!(bench.whole(), before);
    let made_again = bench.edit(3, &salaam_core::edit::reverse(&undone)).unwrap();
    assert_eq!((bench.whole(), made_again), (after, made));
}

#[test]
fn an_undo_leaves_directories_that_others_use() {
    let bench = Bench::new("undo-used");
    let changes = [create("d/e/new", "n")];
    let undo = salaam_core::edit::reverse(&bench.files(&changes));
    let made = bench.edit(1, &changes).unwrap();
    bench.write("d/theirs", "t", 0o644);
    bench.edit_with(2, &undo, &made).unwrap();
    assert_eq!(bench.names(), ["d/theirs"]);
}

#[test]
fn group_acl_and_mode_stay_and_the_file_becomes_the_editors() {
    let Some(bench) = Bench::shared("attributes") else { return };
    let path = bench.root.join("run.sh");
    bench.write("run.sh", "#!/bin/sh\nexit 1\n", 0o750);
    bench.write("plain", "p", 0o640);
    for (name, uid) in [("run.sh", bench::OTHER), ("plain", bench::TOOLS)] {
        std::os::unix::fs::chown(bench.root.join(name), Some(uid), Some(bench::GROUP)).unwrap();
    }
    let acl = |path: &Path| {
        let said = Command::new("getfacl").args(["-n", "-c", "-p"]).arg(path).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    assert!(Command::new("setfacl").args(["-m", "u:4242:r-x,m::rwx"]).arg(&path).status().unwrap().success());
    // What the directory would give to every new file, and `plain` does not have.
    assert!(Command::new("setfacl").args(["-d", "-m", "u:4243:rwx"]).arg(&bench.root).status().unwrap().success());
    let before = [acl(&path), acl(&bench.root.join("plain"))];
    assert!(before[0].contains("user:4242:r-x") && !before[1].contains("4243"), "{before:?}");
    assert_eq!(bench.as_tools(Job::Attributes), "done");
    let after = [acl(&path), acl(&bench.root.join("plain"))];
    assert_eq!(after, before);
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (bench::TOOLS, bench::GROUP, 0o770));
    assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\nexit 0\n");
    // Through an undo, and through a rename and back.
    assert_eq!(bench.as_tools(Job::AttributesBack), "done");
    assert_eq!([acl(&path), acl(&bench.root.join("plain"))], before);
    assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\nexit 1\n");
}

#[test]
fn what_programs_noted_on_a_file_stays_on_it() {
    let bench = Bench::new("notes");
    bench.write("a", "1", 0o644);
    let file = |path: &str| fs::File::open(bench.root.join(path)).unwrap();
    let note = |path: &str| salaam_sys::xattr::get(file(path), c"user.salaam-test", 64).unwrap();
    if salaam_sys::xattr::set(file("a"), c"user.salaam-test", b"noted").is_err() {
        return;
    }
    bench.edit(1, &[replace("a", "1", "2"), rename("a", "b")]).unwrap();
    assert_eq!(note("b").as_deref(), Some(&b"noted"[..]));
    bench.edit(2, &[mode("b", 0o600)]).unwrap();
    assert_eq!(note("b").as_deref(), Some(&b"noted"[..]));
}

#[test]
fn a_group_that_cannot_be_kept_is_no_reason_to_widen() {
    let Some(bench) = Bench::shared("group") else { return };
    bench.write("run.sh", "exit 1", 0o664);
    bench.write("plain", "p", 0o664);
    std::os::unix::fs::chown(bench.root.join("run.sh"), Some(bench::OTHER), Some(4242)).unwrap();
    let before = bench.whole();
    assert_eq!(bench.as_tools(Job::Attributes), "attributes-lost");
    assert_eq!(bench.whole(), before);
}

#[test]
fn an_edit_is_applied_once() {
    let bench = Bench::new("once");
    bench.write("a", "1", 0o644);
    let changes = [replace("a", "1", "2")];
    let work = bench.work(1, &changes, &[]);
    bench.apply(&work).unwrap();
    assert_eq!(bench.apply(&work).unwrap_err().id(), "stale");
    assert_eq!(bench.text("a"), "2");
}

#[test]
fn what_changed_since_the_approval_is_stale_and_untouched() {
    let bench = Bench::new("stale");
    for name in ["a", "b"] {
        bench.write(name, "1", 0o644);
    }
    let changes = [replace("a", "1", "2"), replace("b", "1", "2"), create("c", "new")];
    let work = bench.work(1, &changes, &[]);
    let stale = |change: &dyn Fn(), back: &dyn Fn()| {
        change();
        let before = bench.whole();
        assert_eq!(bench.apply(&work).unwrap_err().id(), "stale");
        assert_eq!(bench.whole(), before);
        back();
    };
    stale(&|| bench.write("b", "1 and more", 0o644), &|| bench.write("b", "1", 0o644));
    stale(&|| bench.write("b", "1", 0o600), &|| bench.write("b", "1", 0o644));
    stale(&|| fs::remove_file(bench.root.join("b")).unwrap(), &|| bench.write("b", "1", 0o644));
    stale(&|| bench.write("c", "theirs", 0o644), &|| fs::remove_file(bench.root.join("c")).unwrap());
    bench.apply(&work).unwrap();
}

#[test]
fn another_computation_than_the_services_is_refused() {
    let bench = Bench::new("differs");
    bench.write("a", "1", 0o644);
    bench.write("b", "1", 0o644);
    let mut work = bench.work(1, &[replace("a", "1", "2"), replace("b", "1", "2")], &[]);
    let whole = work.expected.clone();
    work.expected[1].post = work.expected[1].pre.map(|mut stamp| {
        stamp.mode = 0o777;
        stamp
    });
    assert_eq!(bench.apply(&work).unwrap_err().id(), "differs");
    work.expected = whole[..1].to_vec();
    assert_eq!(bench.apply(&work).unwrap_err().id(), "differs");
    assert_eq!(bench.text("a"), "1");
}

#[test]
fn a_directory_that_the_edit_makes_takes_after_its_parent() {
    let bench = Bench::new("setgid");
    fs::set_permissions(&bench.root, fs::Permissions::from_mode(0o2775)).unwrap();
    bench.edit(1, &[create("d/e/new", "n")]).unwrap();
    for path in ["d", "d/e"] {
        let mode = fs::metadata(bench.root.join(path)).unwrap().mode() & 0o7000;
        assert_eq!(mode, 0o2000, "{path}");
    }
}

#[test]
fn bytes_of_any_kind_and_size_are_kept() {
    let bench = Bench::new("bytes");
    let mut legacy: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
    legacy.extend_from_slice(b"needle");
    fs::write(bench.root.join("legacy"), &legacy).unwrap();
    bench.edit(1, &[replace("legacy", "needle", "thread")]).unwrap();
    let now = fs::read(bench.root.join("legacy")).unwrap();
    assert_eq!((&now[..300_000], &now[300_000..]), (&legacy[..300_000], b"thread" as &[u8]));
    let odd = bench::bytes_path(b"\xff\xfe name\n\x1b[31m");
    let made = Change::Create { path: odd.clone(), content: vec![0, 255] };
    bench.edit(2, &[made]).unwrap();
    bench.edit(3, &[Change::Delete { path: odd }]).unwrap();
    assert_eq!(bench.names(), ["legacy"]);
}

#[test]
fn an_empty_directory_beside_a_create_is_not_taken_for_its_own() {
    let bench = Bench::new("theirs");
    fs::create_dir(bench.root.join("d")).unwrap();
    let changes = [create("d/e/new", "n")];
    let work = bench.work(1, &changes, &[]);
    let failed = bench.apply_failing(&work, bench::Fail::Swap(0));
    assert_eq!(failed.unwrap_err().id(), "io");
    assert_eq!(bench.names(), ["d/"]);
    assert_eq!(bench.edit(2, &changes).unwrap(), [Path::new("d/e")]);
}

#[test]
fn a_refusal_names_what_stands_there_and_no_text_of_it() {
    let bench = Bench::new("quote");
    bench.write("a", "secret-word", 0o644);
    let work = bench.work(operation(1), &[replace("a", "secret-word", "b")], &[]);
    bench.write("a", "other-secret", 0o644);
    let refusal: Refusal = bench.apply(&work).unwrap_err();
    let said = refusal.into_failure().message;
    assert!(said.contains('a') && !said.contains("secret"), "{said}");
}
