//! A journal that an earlier form wrote is brought to this one, whole or not at all.

use std::os::unix::fs::OpenOptionsExt as _;

use rusqlite::Connection;
use salaam_core::event::{Event, Head};

use super::{
    super::{SessionQuery, StoreError, offline},
    *,
};

/// The tables as the first form had them; a copy, so that a change of the first form is noticed.
const FIRST: &str = "
PRAGMA application_id = 0x536c6d31; PRAGMA user_version = 1; PRAGMA journal_mode = wal;
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, session TEXT, operation TEXT, line TEXT NOT NULL) STRICT;
CREATE INDEX events_by_kind ON events (kind, seq);
CREATE INDEX events_by_session ON events (session, seq) WHERE session IS NOT NULL;
CREATE INDEX events_by_operation ON events (operation, seq) WHERE operation IS NOT NULL;
CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events stay'); END;
CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events stay'); END;
CREATE TABLE workspaces (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, path BLOB NOT NULL UNIQUE, device INTEGER NOT NULL,
    inode INTEGER NOT NULL, handle TEXT NOT NULL, added INTEGER NOT NULL) STRICT;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, workspace TEXT NOT NULL, document TEXT NOT NULL,
    created INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX one_operator_session ON sessions (workspace) WHERE kind = 'operator';
CREATE TABLE operations (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, approval TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL REFERENCES sessions (id), workspace TEXT NOT NULL, kind TEXT NOT NULL,
    state TEXT NOT NULL, binding TEXT NOT NULL, bound TEXT NOT NULL, display TEXT NOT NULL, flags TEXT NOT NULL,
    requested INTEGER NOT NULL, expires INTEGER NOT NULL, decided_by TEXT, comment TEXT, result TEXT) STRICT;
CREATE INDEX operations_by_state ON operations (state, number);
CREATE INDEX operations_by_session ON operations (session, number);
CREATE TABLE requests (request_id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, subject TEXT NOT NULL) STRICT;
";

/// What the second form added, likewise.
const SECOND: &str = "
ALTER TABLE sessions ADD COLUMN state TEXT NOT NULL DEFAULT 'running';
UPDATE sessions SET state = coalesce(json_extract(document, '$.state'), 'running');
CREATE INDEX sessions_by_state ON sessions (state, kind);
ALTER TABLE operations ADD COLUMN turn INTEGER;
ALTER TABLE operations ADD COLUMN call INTEGER;
ALTER TABLE operations ADD COLUMN reconciled TEXT;
ALTER TABLE operations ADD COLUMN again TEXT;
CREATE UNIQUE INDEX one_operation_a_call ON operations (session, turn, call) WHERE turn IS NOT NULL;
CREATE TABLE briefs (session TEXT PRIMARY KEY REFERENCES sessions (id), task TEXT NOT NULL, script BLOB) STRICT;
CREATE TABLE turns (
    session TEXT NOT NULL REFERENCES sessions (id), number INTEGER NOT NULL, epoch INTEGER NOT NULL,
    text TEXT NOT NULL, awaits INTEGER NOT NULL, PRIMARY KEY (session, number)) STRICT;
CREATE TABLE calls (
    session TEXT NOT NULL, turn INTEGER NOT NULL, number INTEGER NOT NULL, tool TEXT NOT NULL,
    arguments TEXT NOT NULL, answer TEXT, PRIMARY KEY (session, turn, number),
    FOREIGN KEY (session, turn) REFERENCES turns (session, number)) STRICT;
CREATE TABLE messages (
    session TEXT NOT NULL REFERENCES sessions (id), number INTEGER NOT NULL, turn INTEGER, text TEXT NOT NULL,
    PRIMARY KEY (session, number)) STRICT;
PRAGMA user_version = 2;
";

/// A form-1 journal with three events, a live and an ended session, and two operations.
fn first_form(directory: &Directory) -> (SessionRow, OperationRow) {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.database()).unwrap();
    let connection = Connection::open(directory.database()).unwrap();
    connection.execute_batch(FIRST).unwrap();
    let mut head = Head::START;
    for n in 1..=3 {
        let event = Event::seal(note(n), head, Timestamp::from_micros(5)).unwrap();
        head = Head { seq: event.seq, hash: event.hash };
        let line = String::from_utf8(event.to_line().unwrap()).unwrap();
        connection
            .execute(
                "INSERT INTO events VALUES (?1, ?2, NULL, NULL, ?3)",
                (event.seq.cast_signed(), event.kind.as_str(), line),
            )
            .unwrap();
    }
    connection.execute("INSERT INTO head VALUES (1, ?1, ?2)", (head.seq.cast_signed(), head.hash.to_string())).unwrap();
    let session = SessionRow { document: json!({"state": "running", "kind": "operator"}), ..session_row() };
    let over = SessionRow {
        id: SessionId::new(2, [2; 10]),
        workspace: WorkspaceId::new(2, [2; 10]),
        document: json!({"state": "ended"}),
        ..session.clone()
    };
    for row in [&session, &over] {
        let values = (row.id.to_string(), row.workspace.to_string(), row.document.to_string(), row.created.as_micros());
        connection.execute("INSERT INTO sessions VALUES (?1, 'operator', ?2, ?3, ?4)", values).unwrap();
    }
    let operation = operation_row(1, State::Unknown);
    for row in [&operation, &operation_row(2, State::Pending)] {
        connection
            .execute(
                "INSERT INTO operations VALUES (NULL, ?1, ?2, ?3, ?4, 'command', ?5, ?6, ?7, 'ls \\e',
                 '[\"operand-unpinned\"]', 10, 20, NULL, NULL, NULL)",
                (
                    row.id.to_string(),
                    row.approval.to_string(),
                    row.session.to_string(),
                    row.workspace.to_string(),
                    row.state.as_str(),
                    row.binding.to_string(),
                    row.bound.to_string(),
                ),
            )
            .unwrap();
    }
    (session, operation)
}

#[tokio::test]
async fn a_journal_of_the_first_form_keeps_everything_and_takes_what_is_new() {
    let directory = Directory::new();
    let (session, operation) = first_form(&directory);
    assert_eq!(offline::verify(&directory.0).unwrap().events, 3, "the form before is read as it is");
    for opened in 0..2 {
        let store = directory.open();
        assert_eq!(store.head().seq, 3 + opened);
        assert_eq!(store.live_sessions().await.unwrap(), 1);
        assert_eq!(store.sessions(SessionQuery::default()).await.unwrap().len(), 2);
        assert_eq!(store.session(session.id).await.unwrap().unwrap(), session);
        assert_eq!(store.operation(operation.id).await.unwrap().unwrap(), operation);
        store.commit(notes(9)).await.unwrap();
        store.close().await;
        assert_eq!(verified(&directory.0), 4 + opened);
    }
    let store = directory.open();
    let word = json!({"verdict": "no-effect"});
    store.commit(changes(vec![Change::Reconcile { id: operation.id, word: word.clone() }])).await.unwrap();
    assert_eq!(store.operation(operation.id).await.unwrap().unwrap().reconciled, Some(word));
    store.close().await;
}

#[tokio::test]
async fn a_journal_of_the_second_form_keeps_what_was_asked_and_a_row_without_it_is_damage() {
    let directory = Directory::new();
    let (_, operation) = first_form(&directory);
    let again = json!({"argv": ["ls"], "timeout_seconds": 5});
    let connection = Connection::open(directory.database()).unwrap();
    connection.execute_batch(SECOND).unwrap();
    connection
        .execute("UPDATE operations SET again = ?2 WHERE id = ?1", (operation.id.to_string(), again.to_string()))
        .unwrap();
    drop(connection);
    assert_eq!(offline::verify(&directory.0).unwrap().events, 3, "the form before is read as it is");
    for _ in 0..2 {
        let store = directory.open();
        let kept = OperationRow { again: Some(again.clone()), ..operation.clone() };
        assert_eq!(store.operation(operation.id).await.unwrap().unwrap(), kept);
        assert_eq!(store.operations(Default::default()).await.unwrap().len(), 2);
        store.close().await;
    }
    directory.tamper("DELETE FROM asked");
    let store = directory.open();
    assert!(matches!(store.operation(operation.id).await, Err(StoreError::Damaged { .. })));
    store.close().await;
}

#[tokio::test]
async fn a_damaged_journal_of_the_first_form_is_left_as_it_is() {
    let directory = Directory::new();
    first_form(&directory);
    directory.tamper("UPDATE events SET line = replace(line, 'operator', 'Operator') WHERE seq = 3");
    assert!(matches!(Store::open(&directory.0, Clock), Err(StoreError::Damaged { .. })));
    let connection = Connection::open(directory.database()).unwrap();
    let form: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(form, 1);
}

#[tokio::test]
async fn a_change_of_form_that_fails_half_way_leaves_the_form_before() {
    let directory = Directory::new();
    first_form(&directory);
    // The last of the new tables is taken.
    Connection::open(directory.database()).unwrap().execute_batch("CREATE TABLE messages (x INTEGER) STRICT").unwrap();
    assert!(Store::open(&directory.0, Clock).is_err());
    let connection = Connection::open(directory.database()).unwrap();
    let form: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let columns: i64 = connection
        .query_row("SELECT count(*) FROM pragma_table_info('operations') WHERE name = 'turn'", [], |row| row.get(0))
        .unwrap();
    assert_eq!((form, columns), (1, 0));
    connection.execute_batch("DROP TABLE messages; CREATE TABLE asked (x INTEGER) STRICT").unwrap();
    drop(connection);
    assert!(Store::open(&directory.0, Clock).is_err(), "nor does it stop between two forms");
    let connection = Connection::open(directory.database()).unwrap();
    assert_eq!(connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap(), 1);
    connection.execute_batch("DROP TABLE asked").unwrap();
    drop(connection);
    directory.open().close().await;
}
