//! Many edits at once: those of one workspace come one after the other, and none is left in the middle.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
};

use salaam_core::{
    bridge::{EditPlan, ReadFiles, Settle, Settled},
    edit::{Change, Method},
    id::WorkspaceId,
};
use salaam_toolsd::edit::{Editor, Site};

use super::bench::{Bench, create, replace};

fn workspace() -> WorkspaceId {
    WorkspaceId::new(1, [1; 10])
}

fn site(bench: &Bench) -> Site<()> {
    Site { root: root(bench), bound: Vec::new(), held: () }
}

fn root(bench: &Bench) -> Arc<OwnedFd> {
    Arc::new(fs::File::open(&bench.root).unwrap().into())
}

fn plan(bench: &Bench, number: u8, changes: &[Change]) -> EditPlan {
    let work = bench.work(number, changes, &[]);
    EditPlan {
        operation: work.operation,
        epoch: 1,
        workspace: workspace(),
        changes: work.changes,
        expected: work.expected,
        protected_paths: Vec::new(),
        directories: Vec::new(),
    }
}

fn settle_of(plan: &EditPlan) -> Settle {
    Settle {
        operation: plan.operation,
        epoch: 1,
        workspace: workspace(),
        expected: plan.expected.clone(),
        directories: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_edits_that_bind_the_same_file_one_is_applied() {
    let bench = Bench::new("serial");
    bench.write("a", "0", 0o644);
    bench.write("b", "0", 0o644);
    let editor = Editor::new();
    let plans = (1..=20).map(|number| {
        let text = number.to_string();
        // Each two files: were two edits interleaved, they would end up with different texts.
        plan(&bench, number, &[replace("a", "0", &text), replace("b", "0", &text)])
    });
    let plans: Vec<_> = plans.collect();
    let edits = plans.into_iter().map(|plan| {
        let (editor, site) = (editor.clone(), site(&bench));
        tokio::spawn(async move { editor.edit(site, plan).await })
    });
    let mut applied = 0;
    for edit in edits.collect::<Vec<_>>() {
        match edit.await.unwrap() {
            Ok(_) => applied += 1,
            Err(failure) => assert_eq!(failure.id, "stale", "{failure:?}"),
        }
    }
    assert_eq!((applied, bench.text("a")), (1, bench.text("b")));
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_two_workspaces_do_not_wait_for_each_other() {
    let (one, other) = (Bench::new("first"), Bench::new("second"));
    let editor = Editor::new();
    let edits = [(&one, 1), (&other, 2)].map(|(bench, number)| {
        let plan = plan(bench, number, &[create("d/new", "n")]);
        editor.edit(site(bench), plan)
    });
    let [first, second] = edits;
    let (first, second) = tokio::join!(first, second);
    let first = first.unwrap();
    assert_eq!((first.made, first.files[0].method), (vec![b"d".to_vec()], Method::Create));
    assert!(second.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_whose_caller_went_away_is_still_whole() {
    let bench = Bench::new("dropped");
    for name in ["a", "b", "c"] {
        bench.write(name, "1", 0o644);
    }
    let editor = Editor::new();
    let plan = plan(&bench, 1, &["a", "b", "c"].map(|name| replace(name, "1", "2")));
    let settle = settle_of(&plan);
    let task = tokio::spawn({
        let (editor, site) = (editor.clone(), site(&bench));
        async move { editor.edit(site, plan).await }
    });
    tokio::task::yield_now().await;
    task.abort();
    let _ = task.await;
    // Comes after the edit, if that had begun.
    let settled = editor.settle(site(&bench), settle.clone()).await.unwrap();
    let texts = ["a", "b", "c"].map(|name| bench.text(name));
    match settled {
        Settled::Finished(edited) => {
            assert_eq!((texts, edited.files.len()), (["2", "2", "2"].map(str::to_owned), 3));
        }
        Settled::RolledBack => assert_eq!(texts, ["1", "1", "1"].map(str::to_owned)),
        Settled::Undecided { evidence } => panic!("{evidence}"),
    }
    assert_eq!(bench.names(), ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_settling_an_edit_does_not_come_any_more() {
    let bench = Bench::new("late");
    bench.write("a", "1", 0o644);
    let editor = Editor::new();
    let plan = plan(&bench, 1, &[replace("a", "1", "2")]);
    let settled = editor.settle(site(&bench), settle_of(&plan)).await.unwrap();
    assert_eq!(settled, Settled::RolledBack);
    assert_eq!(editor.edit(site(&bench), plan).await.unwrap_err().id, "operation-repeated");
    assert_eq!(bench.text("a"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_running_command_has_bound_is_not_changed_under_it() {
    let bench = Bench::new("bound");
    bench.write("run.sh", "1", 0o755);
    let editor = Editor::new();
    let bound = Site { bound: vec!["run.sh".into()], ..site(&bench) };
    let plan = plan(&bench, 1, &[replace("run.sh", "1", "2"), create("new", "n")]);
    assert_eq!(editor.edit(bound, plan.clone()).await.unwrap_err().id, "bound-by-command");
    assert_eq!(bench.names(), ["run.sh"]);
    // It may be sent again: it was not begun.
    editor.edit(site(&bench), plan).await.unwrap();
    assert_eq!(bench.text("run.sh"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_that_ends_lets_nothing_begin_and_leaves_nothing_half() {
    let bench = Bench::new("ending");
    for name in ["a", "b"] {
        bench.write(name, "0", 0o644);
    }
    let editor = Editor::new();
    let plans = (1..=8).map(|number| plan(&bench, number, &[replace("a", "0", "1"), replace("b", "0", "1")]));
    let plans: Vec<_> = plans.collect();
    let edits: Vec<_> = plans
        .into_iter()
        .map(|plan| {
            let (editor, site) = (editor.clone(), site(&bench));
            tokio::spawn(async move { editor.edit(site, plan).await })
        })
        .collect();
    editor.shutdown().await;
    assert!(editor.admit().await.is_err());
    for edit in edits {
        let _ = edit.await.unwrap();
    }
    assert_eq!(bench.text("a"), bench.text("b"));
    assert_eq!(bench.names(), ["a", "b"]);
    let late = plan(&bench, 9, &[create("late", "l")]);
    assert_eq!(editor.edit(site(&bench), late).await.unwrap_err().id, "executor-ending");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_beside_a_program_that_writes_all_the_time_is_whole_or_stale() {
    let bench = Bench::new("beside");
    for name in ["a", "b"] {
        bench.write(name, "0", 0o644);
    }
    let editor = Editor::new();
    let (mut done, mut stale) = (0, 0);
    for number in 1..=60u8 {
        let before = bench.text("a");
        let plan = plan(&bench, number, &[replace("a", &before, &format!("edit {number}")), replace("b", "0", "1")]);
        let stop = Arc::new(AtomicBool::new(false));
        let program = std::thread::spawn({
            let (stop, path) = (Arc::clone(&stop), bench.root.join("a"));
            move || {
                let mut count = 0u64;
                while !stop.load(Ordering::Relaxed) && count < 1_000_000 {
                    // As a program does that replaces its file: what it writes last is what must stand.
                    if number % 2 == 0 {
                        count += 1;
                        let new = path.with_extension("new");
                        fs::write(&new, format!("program {number} {count}")).unwrap();
                        fs::rename(&new, &path).unwrap();
                    }
                    std::thread::yield_now();
                }
                count
            }
        });
        let end = editor.edit(site(&bench), plan).await;
        stop.store(true, Ordering::Relaxed);
        let written = program.join().unwrap();
        let now = bench.text("a");
        match end {
            Ok(_) => {
                done += 1;
                assert!(now == format!("edit {number}") || now == format!("program {number} {written}"), "{now}");
                assert_eq!(bench.text("b"), "1");
            }
            Err(failure) => {
                stale += 1;
                assert_eq!(failure.id, "stale", "{failure:?}");
                assert_eq!(bench.text("b"), "0");
                assert_eq!(now, format!("program {number} {written}"), "{failure:?}");
            }
        }
        assert_eq!(bench.names(), ["a", "b"]);
        bench.write("b", "0", 0o644);
    }
    // Where nobody wrote, none is stale.
    assert!(done >= 30, "{done} {stale}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_whole_in_order_or_not_at_all() {
    let bench = Bench::new("read");
    bench.write("a", "1", 0o640);
    std::os::unix::fs::symlink("a", bench.root.join("link")).unwrap();
    let editor = Editor::new();
    let read = |paths: &[&str]| {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        editor.read(root(&bench), ReadFiles { workspace: workspace(), paths, protected_paths: vec![b"keys".to_vec()] })
    };
    let files = read(&["a", "none", "no/where"]).await.unwrap().files;
    let found: Vec<_> = files.iter().map(|(_, image)| image.as_ref().map(|image| image.mode)).collect();
    assert_eq!(found, [Some(0o640), None, None]);
    assert_eq!(read(&["a", "link"]).await.unwrap_err().id, "link");
    for protected in [".git/config", "keys/one", "a/.envrc"] {
        assert_eq!(read(&["a", protected]).await.unwrap_err().id, "protected-path");
    }
}
