//! Edits that fail, that are killed, whose disk is full, and whose files somebody else changes meanwhile.

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Duration};

use salaam_toolsd::edit::{Settled, Step};

use super::bench::{Bench, Fail, Job, create, delete, replace, sample};

/// The sample tree before and after its edit.
fn both() -> (Vec<String>, Vec<String>) {
    let bench = Bench::new(&format!("both-{:?}", std::thread::current().id()));
    bench.put_sample();
    let before = bench.whole();
    bench.apply(&sample()).unwrap();
    (before, bench.whole())
}

#[test]
fn a_failure_at_any_step_leaves_the_tree_as_it_was() {
    let (before, after) = both();
    let mut undecided = 0;
    for number in 0.. {
        let bench = Bench::new("fails");
        bench.put_sample();
        match bench.apply_failing(&sample(), Fail::Nth(number)) {
            Ok(_) => {
                assert!(number > 15, "{number}");
                break;
            }
            Err(refusal) if refusal.id() == "io" => {
                assert_eq!(bench.whole(), before, "step {number}");
                // What a service that missed the answer is told.
                assert_eq!(bench.settle_work(&sample()).unwrap(), Settled::RolledBack);
                assert_eq!(bench.whole(), before);
            }
            Err(refusal) => {
                // In force, but not tidy yet.
                assert_eq!(refusal.id(), "edit-undecided", "step {number}");
                undecided += 1;
                assert!(matches!(bench.settle_work(&sample()), Ok(Settled::Finished { .. })), "step {number}");
                assert_eq!(bench.whole(), after, "step {number}");
            }
        }
    }
    assert_eq!(undecided, 2);
}

#[test]
fn killed_before_any_step_an_edit_settles_to_all_or_nothing() {
    let (before, after) = both();
    let mut ends = [0, 0];
    for number in 0.. {
        let bench = Bench::new("killed");
        bench.put_sample();
        let killed = !bench.start(Job::Apply(number)).wait().unwrap().success();
        match bench.settle_work(&sample()).unwrap() {
            Settled::RolledBack => {
                assert_eq!(bench.whole(), before, "step {number}");
                ends[0] += 1;
            }
            Settled::Finished { made } => {
                assert_eq!(bench.whole(), after, "step {number}");
                if killed {
                    assert_eq!(made, ["d", "d/e", "d/f"].map(std::path::PathBuf::from), "step {number}");
                }
                ends[1] += 1;
            }
            Settled::Undecided { evidence } => panic!("step {number}: {evidence}"),
        }
        if !killed {
            break;
        }
    }
    assert!(ends[0] > 10 && ends[1] > 2, "{ends:?}");
}

#[test]
fn killed_at_any_moment_edit_and_settling_come_to_all_or_nothing() {
    let (before, after) = both();
    let mut seed = 0x5a1a_a41d_u64;
    let mut random = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut ends = [0, 0];
    for round in 0..120 {
        let bench = Bench::new("random");
        bench.put_sample();
        for job in [Job::Apply(usize::MAX), Job::Settle, Job::Settle] {
            let mut child = bench.start(job);
            std::thread::sleep(Duration::from_micros(1_000 + random(12_000)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        match bench.settle_work(&sample()).unwrap() {
            Settled::RolledBack => {
                assert_eq!(bench.whole(), before, "round {round}");
                ends[0] += 1;
            }
            Settled::Finished { .. } => {
                assert_eq!(bench.whole(), after, "round {round}");
                ends[1] += 1;
            }
            Settled::Undecided { evidence } => panic!("round {round}: {evidence}"),
        }
    }
    eprintln!("taken back {}, finished {}", ends[0], ends[1]);
}

#[test]
fn what_somebody_writes_after_the_check_is_kept_and_the_edit_taken_back() {
    type Attack = fn(&Path);
    let attacks: [(&str, Attack, &[&str]); 7] = [
        ("in place", |root| fs::write(root.join("b"), "theirs").unwrap(), &["b 644 \"theirs\""]),
        (
            "by rename",
            |root| {
                fs::write(root.join("new"), "theirs").unwrap();
                fs::rename(root.join("new"), root.join("b")).unwrap();
            },
            &["b 644 \"theirs\""],
        ),
        (
            "by mode",
            |root| fs::set_permissions(root.join("b"), fs::Permissions::from_mode(0o600)).unwrap(),
            &["b 600 \"1\""],
        ),
        ("gone", |root| fs::remove_file(root.join("b")).unwrap(), &[]),
        (
            "by note",
            |root| {
                let file = fs::File::open(root.join("b")).unwrap();
                salaam_sys::xattr::set(&file, c"user.salaam-test", b"noted").unwrap();
            },
            &["b 644 \"1\""],
        ),
        (
            "by a second name",
            |root| fs::hard_link(root.join("b"), root.join("z")).unwrap(),
            &["b 644 \"1\"", "z 644 \"1\""],
        ),
        (
            "by a link",
            |root| {
                fs::remove_file(root.join("b")).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", root.join("b")).unwrap();
            },
            &["b link"],
        ),
    ];
    for (how, attack, left) in attacks {
        // Between the read and the first swap, and between its own swaps.
        for when in [Step::Swap(0), Step::Swap(1)] {
            let bench = Bench::new("moved-on");
            for name in ["a", "b", "c"] {
                bench.write(name, "1", 0o644);
            }
            let work = bench.work(1, &["a", "b", "c"].map(|name| replace(name, "1", "2")), &[]);
            let refusal = bench
                .apply_with(&work, &mut |step| {
                    if step == when {
                        attack(&bench.root);
                    }
                    Ok(())
                })
                .unwrap_err();
            assert_eq!(refusal.id(), "stale", "{how}: {refusal}");
            let mut expected = [&["a 644 \"1\"", "c 644 \"1\""], left].concat();
            expected.sort_unstable();
            assert_eq!(bench.brief(), expected, "{how}");
        }
    }
}

#[test]
fn what_an_open_descriptor_writes_in_the_moment_of_the_swap_is_kept() {
    let bench = Bench::new("descriptor");
    for name in ["a", "b"] {
        bench.write(name, "1", 0o644);
    }
    let mut open = fs::File::options().append(true).open(bench.root.join("b")).unwrap();
    let work = bench.work(1, &["a", "b"].map(|name| replace(name, "1", "2")), &[]);
    let refusal = bench
        .apply_with(&work, &mut |step| {
            // It is swapped already, and has not been hashed again.
            if step == Step::Check(1) {
                open.write_all(b" and more").unwrap();
            }
            Ok(())
        })
        .unwrap_err();
    assert_eq!(refusal.id(), "stale");
    assert_eq!(bench.brief(), ["a 644 \"1\"", "b 644 \"1 and more\""]);
}

#[test]
fn what_somebody_makes_where_a_file_is_to_come_is_kept() {
    let bench = Bench::new("came");
    bench.write("a", "1", 0o644);
    let work = bench.work(1, &[replace("a", "1", "2"), create("n", "new")], &[]);
    let mut put = |step| {
        if step == Step::Swap(1) {
            bench.write("n", "theirs", 0o644);
        }
        Ok(())
    };
    assert_eq!(bench.apply_with(&work, &mut put).unwrap_err().id(), "stale");
    assert_eq!(bench.brief(), ["a 644 \"1\"", "n 644 \"theirs\""]);
}

#[test]
fn what_a_watching_program_does_with_a_new_file_at_once_is_its_own_change() {
    for (left, watch) in [
        (Some("formatted"), (|root| fs::write(root.join("n"), "formatted").unwrap()) as fn(&Path)),
        (None, |root| fs::remove_file(root.join("n")).unwrap()),
    ] {
        let bench = Bench::new("watch");
        bench.write("a", "1", 0o644);
        let work = bench.work(1, &[replace("a", "1", "2"), create("n", "new")], &[]);
        let mut react = |step| {
            if step == Step::Check(1) {
                watch(&bench.root);
            }
            Ok(())
        };
        bench.apply_with(&work, &mut react).unwrap();
        assert_eq!(bench.text("a"), "2");
        assert_eq!(fs::read_to_string(bench.root.join("n")).ok().as_deref(), left);
    }
}

#[test]
fn what_somebody_changes_on_top_of_a_half_done_edit_is_said_and_kept() {
    let bench = Bench::new("on-top");
    for name in ["a", "b"] {
        bench.write(name, "1", 0o644);
    }
    let work = bench.work(1, &["a", "b"].map(|name| replace(name, "1", "2")), &[]);
    let refusal = bench
        .apply_with(&work, &mut |step| {
            if step == Step::Swap(1) {
                // The new `a`, and the old `b`.
                bench.write("a", "2 and theirs", 0o644);
                bench.write("b", "theirs", 0o644);
            }
            Ok(())
        })
        .unwrap_err();
    assert_eq!(refusal.id(), "edit-undecided");
    assert_eq!((bench.text("a"), bench.text("b")), ("2 and theirs".into(), "theirs".into()));
    // The old `a` is not lost either, and the person is told where it is.
    let said = refusal.to_string();
    let beside = bench.names().into_iter().find(|name| name.starts_with(".salaam-")).unwrap();
    assert_eq!(bench.text(&beside), "1");
    assert!(said.contains("a "), "{said}");
    let Settled::Undecided { evidence } = bench.settle_work(&work).unwrap() else { panic!("it was decided") };
    assert!(evidence.contains(&beside), "{evidence}");
}

#[test]
fn a_settling_of_what_never_began_touches_nothing() {
    let bench = Bench::new("never");
    bench.put_sample();
    let before = bench.whole();
    assert_eq!(bench.settle_work(&sample()).unwrap(), Settled::RolledBack);
    assert_eq!(bench.whole(), before);
    // Somebody changed one of the files before the executor ever saw the edit.
    bench.write("a.txt", "theirs", 0o644);
    let before = bench.whole();
    assert!(matches!(bench.settle_work(&sample()).unwrap(), Settled::Undecided { .. }));
    assert_eq!(bench.whole(), before);
}

/// A file system of its own, unmounted when dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(name: &str, options: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("needs root: not tried");
            return None;
        }
        let at = std::env::temp_dir().join(format!("salaam-edits-fs-{name}-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&at).output().unwrap();
        let kept = Self(at);
        mounted.status.success().then_some(kept)
    }

    fn ext4(name: &str) -> Option<Self> {
        let image = std::env::temp_dir().join(format!("salaam-edits-img-{name}-{}", std::process::id()));
        let made = Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", "64"]).arg(&image).arg("2M").output();
        if !nix::unistd::geteuid().is_root() || !made.is_ok_and(|made| made.status.success()) {
            eprintln!("needs root and mkfs.ext4: not tried");
            return None;
        }
        let at = std::env::temp_dir().join(format!("salaam-edits-fs-{name}-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).status().unwrap();
        // A loop mount keeps the image without its name.
        fs::remove_file(&image).unwrap();
        let kept = Self(at);
        mounted.success().then_some(kept)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = fs::remove_dir(&self.0);
    }
}

fn full(mounted: &Mounted, expected: &str) {
    let bench = Bench::below(&mounted.0, "full");
    bench.write("a", "1", 0o644);
    bench.write("b", "1", 0o644);
    let changes =
        [replace("a", "1", "2"), replace("b", "1", &"x".repeat(6 << 20)), create("d/e/new", "n"), delete("b2")];
    bench.write("b2", "1", 0o644);
    let before = bench.whole();
    assert_eq!(bench.edit(1, &changes).unwrap_err().id(), expected);
    assert_eq!(bench.whole(), before);
    // A smaller edit finds the room that the other one left.
    bench.edit(2, &changes[..1]).unwrap();
    assert_eq!(bench.text("a"), "2");
}

#[test]
fn on_a_full_disk_the_tree_stays_as_it_was() {
    if let Some(mounted) = Mounted::tmpfs("space", "size=2m") {
        full(&mounted, "no-space");
    }
    if let Some(mounted) = Mounted::ext4("space") {
        full(&mounted, "no-space");
    }
}

#[test]
fn without_inodes_the_tree_stays_as_it_was() {
    let Some(mounted) = Mounted::tmpfs("inodes", "size=16m,nr_inodes=12") else { return };
    let bench = Bench::below(&mounted.0, "inodes");
    bench.write("a", "1", 0o644);
    let before = bench.whole();
    let many: Vec<_> =
        (0..12).map(|number| create(&format!("d{number}/new"), "n")).chain([replace("a", "1", "2")]).collect();
    assert_eq!(bench.edit(1, &many).unwrap_err().id(), "no-space");
    assert_eq!(bench.whole(), before);
}

#[test]
fn over_its_quota_the_tree_stays_as_it_was() {
    // Where the kernel has no quota on tmpfs there is nothing to try.
    let Some(mounted) = Mounted::tmpfs("quota", "size=16m,usrquota,usrquota_block_hardlimit=1m") else { return };
    let bench = Bench::below(&mounted.0, "quota");
    bench.put_quota();
    assert_eq!(bench.as_tools(Job::Quota), "no-space");
    assert_eq!(bench.brief(), ["a 664 \"1\"", "b 664 \"1\""]);
}

#[test]
fn on_a_read_only_file_system_nothing_changes() {
    let Some(mounted) = Mounted::tmpfs("readonly", "size=2m") else { return };
    {
        let bench = std::mem::ManuallyDrop::new(Bench::below(&mounted.0, "readonly"));
        bench.write("a", "1", 0o644);
        let remount = |how| Command::new("mount").args(["-o", how]).arg(&mounted.0).status().unwrap().success();
        let work = bench.work(1, &[replace("a", "1", "2"), create("d/n", "n")], &[]);
        assert!(remount("remount,ro"));
        assert_eq!(bench.apply(&work).unwrap_err().id(), "read-only");
        assert_eq!(bench.settle_work(&work).unwrap(), Settled::RolledBack);
        assert_eq!(bench.brief(), ["a 644 \"1\""]);
    }
}
