//! A journal that is not what was written stops the start, is named with its first bad event, and stays as it is.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt as _, PermissionsExt as _, symlink},
};

use super::{
    super::{Store, StoreError, offline},
    Directory, notes,
};
use crate::clock::Clock;

async fn journal(events: u64) -> Directory {
    let directory = Directory::new();
    let store = directory.open();
    for n in 1..=events {
        store.commit(notes(n)).await.unwrap();
    }
    store.close().await;
    directory
}

/// The start is refused with the check `journal-damaged` and not a byte is changed.
fn refused(directory: &Directory) -> (StoreError, String) {
    let list = || {
        let mut names: Vec<_> = fs::read_dir(&directory.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = (fs::read(directory.database()).ok(), list());
    let error = Store::open(&directory.0, Clock).unwrap_err();
    let after = (fs::read(directory.database()).ok(), list());
    assert!(before == after, "the refused start changed the directory: {:?} {:?}", before.1, after.1);
    let check = error.to_check();
    assert_eq!((check.id.as_str(), check.refuses()), ("journal-damaged", true));
    assert!(!check.fix.is_empty());
    (error, check.evidence)
}

#[tokio::test]
async fn every_kind_of_damage_stops_the_start_and_is_placed() {
    for (damage, evidence) in [
        (
            "UPDATE events SET line = replace(line, '\"n\":7', '\"n\":8') WHERE seq = 7",
            "event 7 is not what was recorded",
        ),
        ("UPDATE events SET line = substr(line, 1, 40) WHERE seq = 7", "event 7 is not readable"),
        ("DELETE FROM events WHERE seq = 7", "event 7 is missing"),
        ("DELETE FROM events WHERE seq > 7", "event 10 was recorded as the last and event 7 is the last"),
        ("DELETE FROM events", "event 10 was recorded as the last and event 0 is the last"),
        ("DELETE FROM events WHERE seq < 4", "event 1 is missing"),
        ("UPDATE head SET hash = replace(hash, substr(hash, 1, 1), 'z')", "head"),
        ("DELETE FROM head", "head"),
        (
            "UPDATE events SET seq = 100 WHERE seq = 3; UPDATE events SET seq = 3 WHERE seq = 4;
             UPDATE events SET seq = 4 WHERE seq = 100",
            "event 3 is missing: 4 stands in its place",
        ),
        (
            "INSERT INTO events SELECT 11, kind, session, operation, line FROM events WHERE seq = 10",
            "event 11 is the last",
        ),
        ("UPDATE events SET kind = 'operation.result' WHERE seq = 8", "event 8 is not stored under its own"),
        ("UPDATE events SET session = 'x' WHERE seq = 8", "event 8 is not stored under its own"),
        ("PRAGMA application_id = 1", "application id is 0x1"),
        ("PRAGMA user_version = 0", "its form is 0"),
    ] {
        let directory = journal(10).await;
        directory.tamper(damage);
        // The log that the tampering left is moved in, so that a byte-for-byte comparison sees all.
        directory_checkpoint(&directory);
        let (error, text) = refused(&directory);
        if evidence != "head" {
            assert!(text.contains(evidence), "{damage}: {error}");
        }
    }
}

fn directory_checkpoint(directory: &Directory) {
    let connection = rusqlite::Connection::open(directory.database()).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

#[tokio::test]
async fn damage_before_the_tail_is_found_by_verify() {
    let directory = journal(300).await;
    directory.tamper("UPDATE events SET line = replace(line, '\"n\":7', '\"n\":8') WHERE seq = 7");
    directory.open().close().await;
    let error = offline::verify(&directory.0).unwrap_err();
    assert!(error.to_string().contains("event 7 is not what was recorded"), "{error}");
    let mut export = Vec::new();
    assert!(offline::export(&directory.0, &mut export).is_err());
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_the_tail_is_found() {
    let directory = journal(3).await;
    let whole = fs::read(directory.database()).unwrap();
    let at = |needle: &[u8]| whole.windows(needle.len()).position(|w| w == needle).unwrap();
    let place = at(b"\"cause\":\"operator\"") + 10;
    OpenOptions::new()
        .write(true)
        .open(directory.database())
        .unwrap()
        .write_all_at(&[whole[place] ^ 1], place as u64)
        .unwrap();
    refused(&directory);
}

#[tokio::test]
async fn a_file_that_is_no_journal_is_left_alone() {
    for content in [&b""[..], b"hello", &[0; 8192], &b"SQLite format 3\0garbage".repeat(400)] {
        let directory = Directory::new();
        fs::write(directory.database(), content).unwrap();
        fs::set_permissions(directory.database(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(directory.0.join("blobs")).unwrap();
        fs::set_permissions(directory.0.join("blobs"), fs::Permissions::from_mode(0o700)).unwrap();
        refused(&directory);
    }
}

#[tokio::test]
async fn a_journal_of_a_later_version_is_left_alone() {
    let directory = journal(1).await;
    directory.tamper("PRAGMA user_version = 4");
    directory_checkpoint(&directory);
    let (error, _) = refused(&directory);
    assert!(matches!(error, StoreError::Newer { found: 4, known: 3, .. }), "{error}");
}

#[tokio::test]
async fn no_new_journal_is_begun_where_one_has_been() {
    let directory = journal(1).await;
    fs::write(directory.0.join("blobs").join(format!("{}.stdout", super::operation_id(1))), "x").unwrap();
    fs::remove_file(directory.database()).unwrap();
    let (error, _) = refused(&directory);
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    let directory = Directory::new();
    directory.open().close().await;
    fs::rename(directory.database(), directory.0.join("salaam.db-wal")).unwrap();
    refused(&directory);
}

#[tokio::test]
async fn links_and_open_modes_are_refused() {
    let directory = journal(1).await;
    fs::set_permissions(directory.database(), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(refused(&directory).1.contains("0640"));
    fs::set_permissions(directory.database(), fs::Permissions::from_mode(0o600)).unwrap();
    let elsewhere = directory.0.join("elsewhere");
    fs::hard_link(directory.database(), &elsewhere).unwrap();
    assert!(refused(&directory).1.contains("2 names"));
    fs::remove_file(directory.database()).unwrap();
    symlink(&elsewhere, directory.database()).unwrap();
    assert!(refused(&directory).1.contains("not a regular file"));
    fs::remove_file(directory.database()).unwrap();
    fs::rename(&elsewhere, directory.database()).unwrap();
    directory.open().close().await;
}

#[tokio::test]
async fn files_are_for_the_service_user_only() {
    let directory = Directory::new();
    let store = directory.open();
    store.commit(notes(1)).await.unwrap();
    for (name, mode) in [("salaam.db", 0o600), ("salaam.db-wal", 0o600), ("salaam.db-shm", 0o600), ("blobs", 0o700)] {
        let found = fs::symlink_metadata(directory.0.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{name}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_begun_again() {
    let directory = Directory::new();
    fs::write(directory.0.join("salaam.db.new"), "").unwrap();
    fs::write(directory.0.join("salaam.db.new-journal"), "half").unwrap();
    directory.open().close().await;
    assert_eq!(super::verified(&directory.0), 0);
    assert!(!directory.0.join("salaam.db.new").exists());
}

#[test]
fn an_export_that_was_touched_does_not_verify() {
    let directory = Directory::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = directory.open();
        for n in 1..=3 {
            store.commit(notes(n)).await.unwrap();
        }
        store.close().await;
    });
    let mut export = Vec::new();
    offline::export(&directory.0, &mut export).unwrap();
    let bad = |bytes: &[u8]| offline::verify_export(bytes).unwrap_err().to_string();
    let text = String::from_utf8(export.clone()).unwrap();
    assert!(bad(text.replace("\"n\":2", "\"n\":3").as_bytes()).contains("event 2"));
    assert!(bad(text.replace("\"n\":2", "\"n\": 2").as_bytes()).contains("event 2"));
    assert!(bad(text.split_once('\n').unwrap().1.as_bytes()).contains("event 1"));
    assert!(bad(&export[..export.len() - 20]).contains("event 3"));
    assert!(bad(format!("{text}\n").as_bytes()).contains("event 4"));
    assert!(bad(text.replace('\n', "\r\n").as_bytes()).contains("event 1"));
    let long = vec![b' '; super::super::MAX_EVENT_BYTES + 10];
    assert!(matches!(offline::verify_export(long.as_slice()), Err(offline::ExportError::TooLong { at: 1 })));
    assert_eq!(offline::verify_export(&b""[..]).unwrap().events, 0);
}

#[test]
fn where_there_is_no_journal_offline_makes_none() {
    let directory = Directory::new();
    assert!(matches!(offline::verify(&directory.0), Err(StoreError::Absent { .. })));
    assert!(matches!(offline::verify(&directory.0.join("none")), Err(StoreError::File { .. })));
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}
