//! What a workspace holds does not make a command start slower: mounts and arguments have a bound.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::{Bench, unprivileged};
use salaam_core::bridge::RunPlan;

/// The middle of what a plain `true` takes, with the mounts that it had.
async fn takes(bench: &Bench, plan: impl Fn() -> RunPlan) -> (Duration, u64, u64) {
    // The clock of changes goes in ticks; what was made in this one would count as the command's.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut all = Vec::new();
    let mut guard = salaam_core::result::Guard::default();
    for _ in 0..15 {
        let start = Instant::now();
        let outcome = bench.run(plan()).await;
        all.push(start.elapsed());
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        guard = outcome.exit.unwrap().changed.guard;
        assert!(guard.complete);
    }
    all.sort();
    (all[7], guard.mounts, guard.scanned)
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn mounts_do_not_grow_with_the_workspace() {
    unprivileged("mounts_do_not_grow_with_the_workspace", async || {
        let plain = Bench::new("bounds-plain");
        let (bare, mounts, scanned) = takes(&plain, || plain.shell("true")).await;
        println!("nothing: {bare:?}");
        assert_eq!((mounts, scanned), (0, 0));

        let root = Bench::new("bounds-root");
        write(&root.path.join(".git/config"), "[core]\n\tbare = false\n");
        write(&root.path.join(".git/HEAD"), "ref: refs/heads/main\n");
        write(&root.path.join(".git/hooks/pre-commit"), "");
        let (took, mounts, scanned) = takes(&root, || root.shell("true")).await;
        println!("a repository: {took:?}, {mounts} mounts");
        assert_eq!((mounts, scanned), (3, 0));

        let many = Bench::new("bounds-pattern");
        for number in 0..5000 {
            write(&many.path.join(format!("d{}/{number}/.envrc", number % 50)), "");
        }
        let (took, mounts, scanned) = takes(&many, || many.shell("true")).await;
        println!("5,000 of a protected name: {took:?}, {mounts} mounts");
        assert_eq!((mounts, scanned), (0, 0), "found by the look afterwards, wherever they are");

        let protected = Bench::new("bounds-protected");
        for number in 0..1000 {
            write(&protected.path.join(format!("p/{number}")), "");
        }
        let list: Vec<Vec<u8>> = (0..1000).map(|number| format!("p/{number}").into_bytes()).collect();
        let with = || RunPlan { protected_paths: list.clone(), ..protected.shell("true") };
        let (took, mounts, scanned) = takes(&protected, with).await;
        println!("1,000 protected paths: {took:?}, {mounts} mounts, {scanned} scanned");
        assert_eq!((mounts, scanned), (64, 1000 - 63));
        let outcome = protected.run(RunPlan { command: protected.shell("echo x >p/999").command, ..with() }).await;
        assert_eq!(outcome.exit.unwrap().quarantined, [b"p/999".to_vec()], "beyond the mounts it is looked at");

        let linked = Bench::new("bounds-worktrees");
        write(&linked.path.join(".git/config"), "");
        write(&linked.path.join(".git/HEAD"), "ref: refs/heads/main\n");
        for number in 0..300 {
            write(&linked.path.join(format!(".git/worktrees/{number}/commondir")), "../..\n");
            write(&linked.path.join(format!(".git/worktrees/{number}/HEAD")), "ref: refs/heads/main\n");
        }
        let (took, mounts, scanned) = takes(&linked, || linked.shell("true")).await;
        println!("300 linked worktrees: {took:?}, {mounts} mounts, {scanned} scanned");
        assert_eq!((mounts, scanned), (2, 300), "so many that all are left to the look");

        let reads = Bench::new("bounds-reads");
        // Root's, and not shown anyway.
        let elsewhere = fs::read_dir("/var/lib/dpkg/info").into_iter().flatten().flatten();
        let files = elsewhere.filter(|e| e.file_type().is_ok_and(|kind| kind.is_file()));
        let list: Vec<_> = files.take(40).map(|e| e.path()).collect();
        let (took, _, _) = takes(&reads, || reads.reading(list.iter().map(|path| path.as_path()), "true")).await;
        println!("{} read paths: {took:?}", list.len());
    });
}
