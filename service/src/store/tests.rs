//! What the store promises, tried on real files.

mod blobs;
mod crash;
mod damage;
mod disk;
mod journal;
mod locking;
mod migrate;
mod state;
mod transcript;

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use salaam_core::{
    canon,
    event::{Draft, Kind},
    id::{ApprovalId, OperationId, SessionId, WorkspaceId},
    operation::{self, State},
    session,
    time::Timestamp,
};
use serde_json::{Value, json};

use super::{Change, EventQuery, OperationRow, SessionRow, Store, Transaction};
use crate::clock::Clock;

/// A state directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("salaam-store-{}-{number}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn open(&self) -> Store {
        Store::open(&self.0, Clock).unwrap()
    }

    fn database(&self) -> PathBuf {
        self.0.join("salaam.db")
    }

    /// Closes nothing and asks nobody: a connection that may write whatever it likes.
    fn tamper(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.database()).unwrap();
        connection
            .execute_batch(&format!("DROP TRIGGER events_are_not_removed; DROP TRIGGER events_are_not_changed; {sql}"))
            .unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn number(n: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[2..].copy_from_slice(&n.to_be_bytes());
    bytes
}

fn operation_id(n: u64) -> OperationId {
    OperationId::new(n, number(n))
}

fn session_row() -> SessionRow {
    SessionRow {
        id: SessionId::new(1, [1; 10]),
        kind: session::Kind::Operator,
        workspace: WorkspaceId::new(1, [1; 10]),
        document: json!({"kind": "operator", "note": "\u{1f600}\u{2028}"}),
        created: Timestamp::from_micros(7),
    }
}

fn operation_row(n: u64, state: State) -> OperationRow {
    let bound = json!({"operation": operation_id(n), "n": n, "inode": canon::wide(u64::MAX)});
    OperationRow {
        id: operation_id(n),
        approval: ApprovalId::new(n, number(n)),
        session: session_row().id,
        workspace: session_row().workspace,
        kind: operation::Kind::Command,
        state,
        binding: canon::digest(&bound).unwrap(),
        bound,
        display: "ls \\e".into(),
        flags: vec!["operand-unpinned".into()],
        requested: Timestamp::from_micros(10),
        expires: Timestamp::from_micros(20),
        decided_by: None,
        comment: None,
        result: None,
        call: None,
        reconciled: None,
        again: None,
    }
}

fn step(n: u64, from: State, to: State) -> Change {
    Change::StepOperation { id: operation_id(n), from, to, decided_by: None, comment: None, result: None }
}

fn event(kind: Kind, data: Value) -> Draft {
    let mut full: serde_json::Map<_, _> = kind.least().iter().map(|key| ((*key).to_owned(), json!(null))).collect();
    full.extend(data.as_object().unwrap().clone());
    Draft::new(kind, None, Value::Object(full)).unwrap()
}

fn note(n: u64) -> Draft {
    event(Kind::CancelRequested, json!({"cause": "operator", "n": n}))
}

fn notes(n: u64) -> Transaction {
    Transaction { changes: Vec::new(), events: vec![note(n)] }
}

fn changes(changes: Vec<Change>) -> Transaction {
    Transaction { changes, events: Vec::new() }
}

async fn all_events(store: &Store) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let some = store.events(EventQuery { after, ..EventQuery::default() }).await.unwrap();
        let Some((last, _)) = some.last() else { return all };
        after = *last;
        all.extend(some);
    }
}

/// The whole journal of `state` holds, and has so many events.
fn verified(state: &Path) -> u64 {
    let verified = super::offline::verify(state).unwrap();
    let mut export = Vec::new();
    assert_eq!(super::offline::export(state, &mut export).unwrap(), verified);
    assert_eq!(super::offline::verify_export(export.as_slice()).unwrap(), verified);
    verified.events
}
