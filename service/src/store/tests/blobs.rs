//! Output: counted and hashed whole, kept as head and tail, gone where no receipt names it.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use salaam_core::{bridge::Stream, digest::Digest, operation::State, result::Output};
use serde_json::json;

use super::{
    super::{Change, Store},
    Directory, changes, operation_id, operation_row, session_row, step,
};

fn spooled(store: &Store, n: u64, cap: u64, stream: &[u8], chunk: usize) -> Output {
    let mut spool = store.spool(operation_id(n), Stream::Stdout, cap);
    for part in stream.chunks(chunk) {
        spool.write(part).unwrap();
    }
    spool.finish().unwrap()
}

fn kept(store: &Store, n: u64) -> Option<Vec<u8>> {
    let mut file = store.blob(operation_id(n), Stream::Stdout).unwrap()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

fn stream(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn head_and_tail_are_kept_and_all_is_counted_and_hashed() {
    let directory = Directory::new();
    let store = directory.open();
    let mut n = 0;
    for cap in [0, 1, 2, 3, 16, 17, 4096] {
        for bytes in [0, 1, 2, 3, 15, 16, 17, 18, 31, 100, 5000] {
            for chunk in [1, 3, 7, 64, 10_000] {
                n += 1;
                let whole = stream(bytes);
                let output = spooled(&store, n, cap as u64, &whole, chunk);
                let tail = cap / 2;
                let expected =
                    if bytes <= cap { whole.clone() } else { [&whole[..cap - tail], &whole[bytes - tail..]].concat() };
                let case = format!("cap {cap}, {bytes} bytes by {chunk}");
                assert_eq!(
                    output,
                    Output {
                        bytes: bytes as u64,
                        sha256: Digest::of(&whole),
                        kept: expected.len() as u64,
                        truncated: bytes > cap
                    },
                    "{case}"
                );
                assert_eq!(kept(&store, n).unwrap_or_default(), expected, "{case}");
            }
        }
    }
    store.close().await;
}

#[tokio::test]
async fn an_empty_stream_makes_no_file() {
    let directory = Directory::new();
    let store = directory.open();
    assert_eq!(spooled(&store, 1, 4096, b"", 1), Output::empty());
    assert!(kept(&store, 1).is_none());
    assert_eq!(fs::read_dir(directory.0.join("blobs")).unwrap().count(), 0);
    store.close().await;
}

#[tokio::test]
async fn the_memory_for_a_tail_is_bounded_whatever_the_cap() {
    let directory = Directory::new();
    let store = directory.open();
    let whole = stream(6 << 20);
    let output = spooled(&store, 1, 4 << 20, &whole, 64 << 10);
    assert_eq!((output.kept, output.truncated), (4 << 20, true));
    assert_eq!(kept(&store, 1).unwrap(), [&whole[..3 << 20], &whole[5 << 20..]].concat());
    store.close().await;
}

#[tokio::test]
async fn blobs_are_private_and_never_follow_or_replace_what_is_there() {
    let directory = Directory::new();
    let store = directory.open();
    spooled(&store, 1, 4096, b"x", 1);
    let blob = directory.0.join("blobs").join(format!("{}.stdout", operation_id(1)));
    assert_eq!(fs::symlink_metadata(&blob).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(store.spool(operation_id(1), Stream::Stdout, 4096).write(b"again").is_err());
    assert_eq!(fs::read(&blob).unwrap(), b"x");
    let target = directory.0.join("target");
    symlink(&target, directory.0.join("blobs").join(format!("{}.stdout", operation_id(2)))).unwrap();
    assert!(store.spool(operation_id(2), Stream::Stdout, 4096).write(b"through").is_err());
    assert!(!target.exists());
    assert!(store.blob(operation_id(2), Stream::Stdout).is_err());
    store.close().await;
}

#[tokio::test]
async fn output_without_a_receipt_is_removed_at_the_next_start() {
    let directory = Directory::new();
    let store = directory.open();
    let insert = |n| Change::InsertOperation(Box::new(operation_row(n, State::Dispatched)));
    store.commit(changes(vec![Change::PutSession(session_row()), insert(1), insert(2)])).await.unwrap();
    for n in 1..=3 {
        spooled(&store, n, 4096, b"x", 1);
    }
    let receipt = Change::StepOperation {
        id: operation_id(1),
        from: State::Dispatched,
        to: State::Completed,
        decided_by: None,
        comment: None,
        result: Some(json!({"exit_code": 0})),
    };
    store.commit(changes(vec![receipt, step(2, State::Dispatched, State::Unknown)])).await.unwrap();
    let stranger = directory.0.join("blobs").join("notes.txt");
    fs::write(&stranger, "not ours").unwrap();
    store.close().await;
    let store = directory.open();
    assert_eq!([1, 2, 3].map(|n| kept(&store, n).is_some()), [true, false, false]);
    assert!(stranger.exists());
    store.close().await;
}

#[tokio::test]
async fn a_spool_that_is_dropped_leaves_nothing() {
    let directory = Directory::new();
    let store = directory.open();
    let mut spool = store.spool(operation_id(1), Stream::Stderr, 4096);
    spool.write(b"half").unwrap();
    let name = directory.0.join("blobs").join(format!("{}.stderr", operation_id(1)));
    assert!(name.exists());
    drop(spool);
    assert!(!name.exists());
    store.close().await;
}

#[tokio::test]
async fn disk_use_counts_database_and_blobs() {
    let directory = Directory::new();
    let store = directory.open();
    let before = store.disk_use().await.unwrap();
    spooled(&store, 1, 8 << 20, &stream(1 << 20), 64 << 10);
    let after = store.disk_use().await.unwrap();
    assert!(after.blobs - before.blobs >= 1 << 20);
    assert!(before.database > 0 && before.free > 0);
    store.close().await;
}

#[tokio::test]
async fn of_a_stream_that_was_not_sent_whole_the_executors_word_stands_beside_what_was_kept() {
    let directory = Directory::new();
    let store = directory.open();
    let whole = stream(5000);
    let mut spool = store.spool(operation_id(1), Stream::Stdout, 16);
    spool.write(&whole[..8]).unwrap();
    spool.beyond(3000, None);
    spool.beyond(5000, Some(Digest::of(&whole)));
    spool.write(&whole[4992..4995]).unwrap();
    spool.write(&whole[4995..]).unwrap();
    let output = Output { bytes: 5000, sha256: Digest::of(&whole), kept: 16, truncated: true };
    assert_eq!(spool.finish().unwrap(), output);
    assert_eq!(kept(&store, 1).unwrap(), [&whole[..8], &whole[4992..]].concat());

    // The executor was lost in between: there is more than was received, and the digest is of that.
    let mut spool = store.spool(operation_id(2), Stream::Stdout, 16);
    spool.write(&whole[..8]).unwrap();
    spool.beyond(3000, None);
    let output = Output { bytes: 3000, sha256: Digest::of(&whole[..8]), kept: 8, truncated: true };
    assert_eq!(spool.finish().unwrap(), output);
    store.close().await;
}
