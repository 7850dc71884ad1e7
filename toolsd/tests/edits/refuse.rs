//! What no edit touches, and what a racing process cannot make it touch.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use salaam_core::edit::{Change, MAX_FILE_BYTES};

use super::bench::{Bench, Job, create, delete, mode, operation, rename, replace};

/// The id with which an edit of `path` is refused, by a change that needs no look at it, for a name that stands.
fn refused(bench: &Bench, changes: &[Change]) -> String {
    let work = salaam_toolsd::edit::Work {
        operation: operation(1),
        changes: changes.to_vec(),
        expected: Vec::new(),
        protected: vec![b"deploy".to_vec()],
        directories: Vec::new(),
    };
    match bench.apply(&work) {
        Err(refusal) => refusal.id().to_owned(),
        Ok(_) => "done".into(),
    }
}

#[test]
fn what_is_no_plain_file_with_one_name_is_refused_by_name() {
    let bench = Bench::new("kinds");
    let at = |name: &str| bench.root.join(name);
    bench.write("real", "r", 0o644);
    fs::write(bench.outside.join("secret"), "s").unwrap();
    symlink("real", at("link")).unwrap();
    symlink("../secret", at("out")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("..", at("up")).unwrap();
    fs::create_dir(at("dir")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    bench.write("first", "f", 0o644);
    bench.write("other", "o", 0o644);
    fs::hard_link(at("first"), at("second")).unwrap();
    bench.write("setuid", "s", 0o4755);
    bench.write("setgid", "s", 0o2755);
    let large = fs::File::create(at("large")).unwrap();
    large.set_len(MAX_FILE_BYTES as u64 + 1).unwrap();
    let deep = "d/".repeat(200) + "f";
    let mut cases = vec![
        ("link", "link"),
        ("out", "link"),
        ("dangling", "link"),
        ("loop", "link"),
        ("up/secret", "link"),
        ("dir", "not-regular"),
        ("fifo", "not-regular"),
        ("socket", "not-regular"),
        ("first", "linked"),
        ("second", "linked"),
        (deep.as_str(), "unreachable"),
        ("setuid", "special-mode"),
        ("setgid", "special-mode"),
        ("large", "too-large"),
        ("real/below", "unreachable"),
        ("../secret", "edit-refused"),
        ("/etc/passwd", "edit-refused"),
    ];
    if nix::unistd::geteuid().is_root() {
        let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU);
        // Opening a tape device would wind it; here it is the one that never ends.
        nix::sys::stat::mknod(&at("device"), kind, mode, nix::sys::stat::makedev(1, 5)).unwrap();
        cases.push(("device", "not-regular"));
    }
    let before = bench.whole();
    for (path, id) in cases {
        for change in
            [delete(path), mode(path, 0o600), rename(path, "elsewhere"), rename("other", path), create(path, "x")]
        {
            assert_eq!(refused(&bench, std::slice::from_ref(&change)), id, "{change:?}");
        }
    }
    assert_eq!(bench.whole(), before);
    let work = bench.work(1, &[create("x", "y")], &[]);
    let link = salaam_toolsd::edit::Work { changes: vec![delete("out")], ..work };
    let said = bench.apply(&link).unwrap_err().to_string();
    assert!(said.contains("../secret"), "{said}");
}

#[test]
fn protected_paths_and_their_parents_refuse_every_change() {
    let bench = Bench::new("protected");
    for path in [".git/hooks/pre-commit", ".git/config", "deploy/key", ".vscode/tasks.json"] {
        bench.write(path, "x", 0o644);
    }
    bench.write("plain", "x", 0o644);
    let before = bench.whole();
    let absent =
        [".envrc", ".idea/x", "sub/.git", ".salaam/policy", ".git/modules/m/config", ".git/worktrees/w/gitdir"];
    for path in [".git/hooks/pre-commit", ".git/config", "deploy/key", ".vscode/tasks.json"].iter().chain(&absent) {
        let changes =
            [create(path, "y"), delete(path), mode(path, 0o755), rename(path, "plain2"), rename("plain", path)];
        for change in changes {
            assert_eq!(refused(&bench, std::slice::from_ref(&change)), "protected-path", "{change:?}");
        }
    }
    // An undo is an edit like another, and what it removes is held to the same.
    let write = Change::Write { path: b".git/config".to_vec(), content: b"y".to_vec(), mode: 0o644 };
    assert_eq!(refused(&bench, &[write]), "protected-path");
    let removes = bench.edit_with(1, &[delete("plain")], &[PathBuf::from(".git/hooks")]);
    assert_eq!(removes.unwrap_err().id(), "protected-path");
    assert_eq!(refused(&bench, &[create("a/.salaam-op_1-0", "y")]), "reserved-name");
    assert_eq!(bench.whole(), before);
}

#[test]
fn a_name_of_the_edit_that_is_taken_is_refused_and_left() {
    let bench = Bench::new("taken");
    for (path, change) in [
        (format!(".salaam-{}-0", operation(1)), replace("a", "1", "2")),
        (format!(".salaam-{}-0", operation(1)), delete("a")),
        (format!(".salaam-{}-d", operation(1)), create("d/new", "n")),
    ] {
        bench.write("a", "1", 0o644);
        bench.write(&path, "theirs", 0o600);
        let work = bench.work(1, &[change], &[]);
        let before = bench.whole();
        let refusal = bench.apply(&work).unwrap_err();
        assert_eq!((refusal.id(), refusal.to_string().contains(&path)), ("name-taken", true), "{refusal}");
        assert_eq!(bench.whole(), before);
        fs::remove_file(bench.root.join(path)).unwrap();
    }
}

#[test]
fn where_the_tools_account_may_not_nothing_changes() {
    let Some(bench) = Bench::shared("denied") else { return };
    let prepare = |directory: u32, file: u32| {
        for name in ["run.sh", "plain"] {
            bench.write(name, if name == "plain" { "p" } else { "exit 1" }, file);
            std::os::unix::fs::chown(bench.root.join(name), Some(super::bench::OTHER), Some(super::bench::GROUP))
                .unwrap();
            fs::set_permissions(bench.root.join(name), fs::Permissions::from_mode(file)).unwrap();
        }
        fs::set_permissions(&bench.root, fs::Permissions::from_mode(directory)).unwrap();
        bench.whole()
    };
    // A file that it cannot read, a directory that it cannot write, one where only owners may rename.
    for (directory, file) in [(0o2775, 0o600), (0o2755, 0o664), (0o3775, 0o664)] {
        let before = prepare(directory, file);
        assert_eq!(bench.as_tools(Job::Attributes), "denied", "{directory:o} {file:o}");
        assert_eq!(bench.whole(), before);
    }
    // One that it can only read is replaced: the right to do so is the directory's.
    prepare(0o2775, 0o644);
    assert_eq!(bench.as_tools(Job::Attributes), "done");
}

#[test]
fn a_mount_inside_is_not_crossed() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let bench = Bench::new("mount");
    fs::create_dir(bench.root.join("m")).unwrap();
    let mount =
        |how: &[&str]| std::process::Command::new(how[0]).args(&how[1..]).arg(bench.root.join("m")).status().unwrap();
    assert!(mount(&["mount", "-t", "tmpfs", "tmpfs"]).success());
    let said = [refused(&bench, &[create("m/new", "n")]), refused(&bench, &[create("m", "n")])];
    assert!(mount(&["umount"]).success());
    assert_eq!(said, ["unreachable", "not-regular"]);
}

#[test]
fn a_link_swapped_in_before_any_step_leads_nowhere() {
    let swap = |bench: &Bench| {
        let root = fs::File::open(&bench.root).unwrap();
        nix::fcntl::renameat2(&root, "d", &root, "l", nix::fcntl::RenameFlags::RENAME_EXCHANGE).unwrap();
    };
    let mut ends = std::collections::BTreeMap::<&str, u32>::new();
    for number in 0.. {
        let bench = Bench::new("swapped");
        let target = bench.outside.join("target");
        for at in [&target, &bench.root.join("d")] {
            fs::create_dir_all(at).unwrap();
            fs::write(at.join("f"), "1").unwrap();
        }
        symlink(&target, bench.root.join("l")).unwrap();
        let work = bench.work(1, &[replace("d/f", "1", "2"), create("d/n/new", "n")], &[]);
        let mut taken = 0;
        let done = bench.apply_with(&work, &mut |_| {
            if taken == number {
                swap(&bench);
            }
            taken += 1;
            Ok(())
        });
        assert_eq!(super::bench::tree(&target).len(), 1, "step {number}");
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "1", "step {number}");
        let inside = super::bench::tree(&bench.root.join(if taken > number { "l" } else { "d" }));
        if done.is_err() {
            assert_eq!(inside, [("f".to_owned(), b"1".to_vec(), 0o644)], "step {number}");
        } else {
            assert_eq!(inside.len(), 2, "step {number}");
        }
        *ends.entry(done.map_or_else(|refusal| refusal.id(), |_| "done")).or_default() += 1;
        if taken <= number {
            break;
        }
    }
    // Before it is read, after that, and when it is in force already.
    assert_eq!(ends.keys().copied().collect::<Vec<_>>(), ["done", "link", "stale"], "{ends:?}");
}

/// Exchanges a directory with a link that leads out, as fast as it can, until told to stop.
fn exchanging(bench: &Bench) -> (Arc<AtomicBool>, std::thread::JoinHandle<u64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, root) = (Arc::clone(&stop), fs::File::open(&bench.root).unwrap());
    let thread = std::thread::spawn(move || {
        let mut rounds = 0;
        while !seen.load(Ordering::Relaxed) {
            nix::fcntl::renameat2(&root, "d", &root, "l", nix::fcntl::RenameFlags::RENAME_EXCHANGE).unwrap();
            rounds += 1;
        }
        // The directory back to its name.
        if rounds % 2 == 1 {
            nix::fcntl::renameat2(&root, "d", &root, "l", nix::fcntl::RenameFlags::RENAME_EXCHANGE).unwrap();
        }
        rounds
    });
    (stop, thread)
}

#[test]
fn links_swapped_in_during_an_edit_lead_nowhere() {
    let bench = Bench::new("race");
    let target = bench.outside.join("target");
    fs::create_dir(&target).unwrap();
    for at in [&target, &bench.root.join("d")] {
        fs::create_dir_all(at).unwrap();
        fs::write(at.join("f"), "1").unwrap();
    }
    symlink(&target, bench.root.join("l")).unwrap();
    let works =
        [bench.work(1, &[replace("d/f", "1", "2")], &[]), bench.work(2, &[create("d/n/new", "n"), delete("d/f")], &[])];
    let outside = || super::bench::tree(&target);
    let before = outside();

    // The attack works: a program that goes by path writes outside.
    let (stop, thread) = exchanging(&bench);
    let mut hits = 0;
    for _ in 0..100_000 {
        if fs::write(bench.root.join("d/naive"), "x").is_ok() && target.join("naive").exists() {
            hits += 1;
            fs::remove_file(target.join("naive")).unwrap();
        }
        if hits == 10 {
            break;
        }
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    let _ = fs::remove_file(bench.root.join("d/naive"));
    assert!(hits > 0);
    assert_eq!(outside(), before);

    let (stop, thread) = exchanging(&bench);
    let mut ends = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..500 {
        let work = &works[round % 2];
        let end = match bench.apply(work) {
            Ok(_) => "done",
            Err(refusal) => refusal.id(),
        };
        *ends.entry(end.to_owned()).or_default() += 1;
        assert_eq!(outside(), before, "round {round}: {end}");
        if end == "done" {
            restore(&bench);
        }
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    eprintln!("{ends:?}");
    assert_eq!(outside(), before);
    let left = bench.names();
    assert!(left.iter().all(|name| !name.contains(".salaam-")), "{left:?}");
}

/// Gives the directory, under whichever name it is now, its first content again.
fn restore(bench: &Bench) {
    let directory = loop {
        let found = ["d", "l"].iter().find_map(|name| {
            let flags = nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_RDONLY;
            nix::fcntl::open(&bench.root.join(name), flags, nix::sys::stat::Mode::empty()).ok()
        });
        if let Some(found) = found {
            break found;
        }
    };
    let at = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory)));
    let _ = fs::remove_dir_all(at.join("n"));
    fs::write(at.join("f"), "1").unwrap();
}

#[test]
fn a_directory_that_is_moved_away_during_an_edit_takes_nothing_along() {
    let bench = Bench::new("moved");
    bench.write("d/f", "1", 0o644);
    let work = bench.work(1, &[replace("d/f", "1", "2"), create("d/n/new", "n")], &[]);
    let away = bench.outside.join("away");
    let refusal = bench
        .apply_with(&work, &mut |step| {
            if step == salaam_toolsd::edit::Step::Swap(0) {
                fs::rename(bench.root.join("d"), &away).unwrap();
            }
            Ok(())
        })
        .unwrap_err();
    assert_eq!(refusal.id(), "stale");
    assert_eq!(super::bench::tree(&away), [("f".to_owned(), b"1".to_vec(), 0o644)]);
    assert!(bench.names().is_empty());
}
