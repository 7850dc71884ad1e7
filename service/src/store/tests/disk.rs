//! A full disk: loud, nothing half-written, and over as soon as there is space again.
//!
//! The small disk is a tmpfs in a mount namespace of the test's own process, so that nothing of it is left on
//! the host.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::Path,
    process::Command,
};

use salaam_core::{bridge::Stream, event::Kind};
use serde_json::json;

use super::{
    super::{CommitError, Store, Transaction},
    Directory, all_events, event, notes, operation_id, verified,
};
use crate::clock::Clock;

const DISK: &str = "SALAAM_TEST_SMALL_DISK";

/// Runs the test of that name again, inside namespaces of its own, on a tmpfs of 1 MiB.
fn on_a_small_disk(name: &str) {
    let directory = Directory::new();
    let user = if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" };
    let output = Command::new("unshare")
        .args([user, "--propagation", "private", "sh", "-c"])
        .arg(r#"mount -t tmpfs -o size=1m,mode=0700 tmpfs "$SALAAM_TEST_SMALL_DISK" && exec "$0" "$@""#)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("store::tests::disk::{name}")])
        .env(DISK, &directory.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(work);
}

/// Takes all space but `left` bytes.
fn fill(disk: &Path, left: u64) {
    let mut file = File::create(disk.join("filler")).unwrap();
    loop {
        match file.write(&[1; 4096]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::StorageFull => break,
            Err(e) => panic!("{e}"),
        }
    }
    let full = file.metadata().unwrap().len();
    file.set_len(full - left).unwrap();
}

fn free(disk: &Path) {
    fs::remove_file(disk.join("filler")).unwrap();
}

fn of_12_kib(n: u64) -> Transaction {
    let draft = event(Kind::CancelRequested, json!({"n": n, "text": "x".repeat(12 << 10)}));
    Transaction { changes: Vec::new(), events: vec![draft] }
}

#[test]
fn an_append_on_a_full_disk_fails_loudly_and_the_next_one_is_whole() {
    let Some(disk) = std::env::var_os(DISK) else {
        return on_a_small_disk("an_append_on_a_full_disk_fails_loudly_and_the_next_one_is_whole");
    };
    let disk = Path::new(&disk);
    block_on(async {
        let store = Store::open(disk, Clock).unwrap();
        for n in 0..5 {
            store.commit(notes(n)).await.unwrap();
        }
        for round in 0..5 {
            fill(disk, 4096);
            let before = store.head();
            let text = loop {
                // Space that the log has kept from before may take a few.
                match store.commit(of_12_kib(round)).await {
                    Ok(head) => assert_eq!(head, store.head()),
                    Err(CommitError::NotDurable(text)) => break text,
                    Err(CommitError::Conflict { .. }) => panic!("no change was asked for"),
                }
            };
            let path = disk.join("salaam.db");
            assert!(text.contains(path.to_str().unwrap()) && text.contains("free space"), "{text}");
            let head = store.head();
            assert!(head.seq >= before.seq);
            assert_eq!(all_events(&store).await.len() as u64, head.seq);
            // Whoever shares a COMMIT shares its fate.
            let all: Vec<_> = (0..16)
                .map(|n| {
                    tokio::spawn({
                        let store = store.clone();
                        async move { store.commit(of_12_kib(n)).await }
                    })
                })
                .collect();
            for one in all {
                assert!(matches!(one.await.unwrap(), Err(CommitError::NotDurable(_))));
            }
            assert_eq!(store.head(), head);
            let mut spool = store.spool(operation_id(round), Stream::Stdout, 8 << 20);
            let failed = (0..64).find_map(|_| spool.write(&[0; 65536]).err()).unwrap();
            assert_eq!(failed.kind(), ErrorKind::StorageFull);
            // Space that comes back does not glue the rest to a torn write.
            assert_eq!(spool.write(&[0; 1]).unwrap_err().kind(), ErrorKind::StorageFull);
            assert_eq!(spool.finish().unwrap_err().kind(), ErrorKind::StorageFull);
            assert_eq!(fs::read_dir(disk.join("blobs")).unwrap().count(), 0);
            free(disk);
            assert_eq!(store.commit(of_12_kib(round)).await.unwrap().seq, head.seq + 1);
            assert_eq!(verified(disk), head.seq + 1);
        }
        let head = store.head();
        store.close().await;
        let store = Store::open(disk, Clock).unwrap();
        assert_eq!(store.head(), head);
        store.close().await;
        assert_eq!(verified(disk), head.seq);
    });
}

#[test]
fn a_restart_on_a_full_disk_harms_nothing() {
    let Some(disk) = std::env::var_os(DISK) else {
        return on_a_small_disk("a_restart_on_a_full_disk_harms_nothing");
    };
    let disk = Path::new(&disk);
    block_on(async {
        let store = Store::open(disk, Clock).unwrap();
        for n in 0..5 {
            store.commit(notes(n)).await.unwrap();
        }
        fill(disk, 0);
        while store.commit(of_12_kib(1)).await.is_ok() {}
        let head = store.head();
        store.close().await;
        match Store::open(disk, Clock) {
            Ok(store) => {
                assert_eq!(store.head(), head);
                store.close().await;
            }
            Err(e) => assert!(e.to_check().fix.contains("free space"), "{e}: {}", e.to_check().fix),
        }
        free(disk);
        let store = Store::open(disk, Clock).unwrap();
        assert_eq!(store.commit(notes(9)).await.unwrap().seq, head.seq + 1);
        store.close().await;
        assert_eq!(verified(disk), head.seq + 1);
    });
}

#[test]
fn a_first_start_on_a_full_disk_leaves_nothing_that_blocks_the_second() {
    let Some(disk) = std::env::var_os(DISK) else {
        return on_a_small_disk("a_first_start_on_a_full_disk_leaves_nothing_that_blocks_the_second");
    };
    let disk = Path::new(&disk);
    block_on(async {
        for left in [0, 4096, 8192, 16384, 65536] {
            fill(disk, left);
            match Store::open(disk, Clock) {
                Ok(store) => store.close().await,
                Err(e) => assert!(e.to_check().fix.contains("free space"), "{e}: {}", e.to_check().fix),
            }
            free(disk);
        }
        let store = Store::open(disk, Clock).unwrap();
        assert_eq!(store.commit(notes(1)).await.unwrap().seq, 1);
        store.close().await;
        assert_eq!(verified(disk), 1);
    });
}
