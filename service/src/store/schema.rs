//! Opening the one database: files 0600, settings, tables; a file that is not ours is never touched.
//!
//! A new database is made whole under another name and then renamed, so that a crash or a full disk half-way
//! never leaves an empty `salaam.db` that would have to be told apart from a journal that was cut to nothing.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::libc::O_NOFOLLOW;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use salaam_core::event::Head;

use super::error::StoreError;

/// "Slm1": marks the file as ours in its header (PRAGMA application_id).
const APPLICATION_ID: i64 = 0x536c_6d31;
/// The form of the tables (PRAGMA user_version).
const FORM: i64 = 3;
/// The oldest form that is brought to [`FORM`].
const OLDEST: i64 = 1;
/// How long to wait for another process that reads offline and recovers the log.
const BUSY: Duration = Duration::from_secs(5);

/// Where things lie in a state directory, links resolved.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The state directory.
    pub(super) state: PathBuf,
    /// The database.
    pub(super) database: PathBuf,
    /// The directory of output blobs.
    pub(super) blobs: PathBuf,
}

impl Places {
    /// Resolves `state`, which must exist.
    pub(super) fn of(state: &Path) -> Result<Self, StoreError> {
        let state = fs::canonicalize(state).map_err(|source| file("find", state, source))?;
        Ok(Self { database: state.join("salaam.db"), blobs: state.join("blobs"), state })
    }
}

/// Opens the database for the writer; makes it if nothing says that there ever was one.
pub(super) fn open_writer(places: &Places) -> Result<Connection, StoreError> {
    prepare_blobs(places)?;
    match fs::symlink_metadata(&places.database) {
        Ok(_) => refuse_unsafe_file(&places.database)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => create(places)?,
        Err(source) => return Err(file("look at", &places.database, source)),
    }
    let connection = connect(&places.database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    check_form(&connection, &places.database)?;
    log_ahead(&connection, &places.database)?;
    Ok(connection)
}

/// Removes a journal that was made a moment ago and holds nothing, with its lock; for a start that is refused.
pub(crate) fn discard(state: &Path) {
    let database = state.join("salaam.db");
    let log = [beside(&database, "-wal"), beside(&database, "-shm")];
    for path in [database].into_iter().chain(log).chain([state.join("lock")]) {
        // What is not there needs no removing; what stays keeps its directory, which is then seen.
        drop(fs::remove_file(path));
    }
    drop(fs::remove_dir(state.join("blobs")));
}

/// Opens one more connection, which cannot write. The database must be there.
pub(super) fn open_reader(database: &Path) -> Result<Connection, StoreError> {
    match fs::symlink_metadata(database) {
        Ok(_) => refuse_unsafe_file(database)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StoreError::Absent { path: database.into() }),
        Err(source) => return Err(file("look at", database, source)),
    }
    let connection = connect(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    check_form(&connection, database)?;
    Ok(connection)
}

fn connect(database: &Path, access: OpenFlags) -> Result<Connection, StoreError> {
    let fail = |source| StoreError::database("open the database", database, source);
    // NO_MUTEX: each connection is used by one thread at a time. NOFOLLOW: no link in the last component.
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(database, flags).map_err(fail)?;
    connection.busy_timeout(BUSY).map_err(fail)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(fail)?;
    // Triggers, views and defaults of a file that someone else wrote must not call functions.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(fail)?;
    connection.pragma_update(None, "foreign_keys", true).map_err(fail)?;
    connection.pragma_update(None, "cell_size_check", true).map_err(fail)?;
    connection.pragma_update(None, "temp_store", "memory").map_err(fail)?;
    // A mapped file that another process cuts short kills the mapper.
    connection.pragma_update(None, "mmap_size", 0).map_err(fail)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Write-ahead log, flushed at every commit.
fn log_ahead(connection: &Connection, database: &Path) -> Result<(), StoreError> {
    let fail = |source| StoreError::database("set up the write-ahead log", database, source);
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(fail)?;
    if mode != "wal" {
        return Err(StoreError::Foreign {
            path: database.into(),
            why: format!("its file system allows journal mode `{mode}` only; put the state directory on a local disk"),
        });
    }
    connection.pragma_update(None, "synchronous", "full").map_err(fail)?;
    // The writer moves the log after it has answered; this is only the bound should that fail.
    connection.pragma_update(None, "wal_autocheckpoint", 8_000).map_err(fail)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20).map_err(fail)
}

/// The form of the tables, if this program knows it.
fn check_form(connection: &Connection, database: &Path) -> Result<i64, StoreError> {
    let ask = |pragma| {
        connection
            .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
            .map_err(|source| StoreError::database("read the header", database, source))
    };
    let (application, form) = (ask("application_id")?, ask("user_version")?);
    if application != APPLICATION_ID {
        return Err(StoreError::Foreign {
            path: database.into(),
            why: format!("its application id is {application:#x}, not {APPLICATION_ID:#x}"),
        });
    }
    if form > FORM {
        return Err(StoreError::Newer { path: database.into(), found: form, known: FORM });
    }
    if form < OLDEST {
        return Err(StoreError::Damaged {
            path: database.into(),
            why: format!("its form is {form}; there is none below {OLDEST}"),
        });
    }
    Ok(form)
}

/// Brings an older form to this one, whole or not at all. To be called once the journal's end is verified: what is
/// damaged is left as it is.
pub(super) fn migrate(connection: &Connection, database: &Path) -> Result<(), StoreError> {
    let steps = match check_form(connection, database)? {
        FORM => return Ok(()),
        2 => FORM_3.to_owned(),
        // `OLDEST`: there is none between.
        _ => format!("{FORM_2} {FORM_3}"),
    };
    let migrated = connection.execute_batch(&format!("BEGIN IMMEDIATE; {steps} PRAGMA user_version = {FORM}; COMMIT"));
    migrated.map_err(|source| {
        if !connection.is_autocommit()
            && let Err(error) = connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "a change of form could not be rolled back");
        }
        StoreError::database("bring the tables to the form of this version", database, source)
    })
}

/// Refuses a database that is a link, no regular file, empty, or open to others.
fn refuse_unsafe_file(database: &Path) -> Result<(), StoreError> {
    let found = fs::symlink_metadata(database).map_err(|source| file("look at", database, source))?;
    let foreign = |why: String| Err(StoreError::Foreign { path: database.into(), why });
    if !found.is_file() {
        return foreign("it is not a regular file".into());
    }
    if found.mode() & 0o077 != 0 {
        return foreign(format!(
            "its mode is {:04o}: others than the service user may open it; chmod 0600",
            found.mode() & 0o7777
        ));
    }
    if found.nlink() != 1 {
        return foreign(format!("it has {} names: someone else holds a link to it", found.nlink()));
    }
    if found.len() == 0 {
        return Err(StoreError::Damaged {
            path: database.into(),
            why: "it is empty, and it is never written empty".into(),
        });
    }
    Ok(())
}

/// Makes a whole empty journal, then gives it its name.
fn create(places: &Places) -> Result<(), StoreError> {
    refuse_remains(places)?;
    let new = places.state.join("salaam.db.new");
    for leftover in [new.clone(), beside(&new, "-wal"), beside(&new, "-shm"), beside(&new, "-journal")] {
        match fs::remove_file(&leftover) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(file("remove", &leftover, source)),
        }
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW)
        .open(&new)
        .map_err(|source| file("create", &new, source))?;
    let fail = |source| StoreError::database("make the tables", &new, source);
    let connection = connect(&new, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "synchronous", "full").map_err(fail)?;
    connection
        .execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORM}; {FORM_1} {FORM_2} {FORM_3}"
        ))
        .map_err(fail)?;
    connection
        .execute("INSERT INTO head (id, seq, hash) VALUES (1, 0, ?1)", [Head::START.hash.to_string()])
        .map_err(fail)?;
    connection.execute_batch("COMMIT").map_err(fail)?;
    connection.close().map_err(|(_, source)| fail(source))?;
    fs::rename(&new, &places.database).map_err(|source| file("rename", &new, source))?;
    flush_directory(&places.state)
}

/// A log or blobs without a database: there was a journal, and it is gone.
fn refuse_remains(places: &Places) -> Result<(), StoreError> {
    let log = beside(&places.database, "-wal");
    let blob = fs::read_dir(&places.blobs).map_err(|source| file("list", &places.blobs, source))?.next();
    let remains = match (log.symlink_metadata().is_ok(), blob) {
        (true, _) => log,
        (false, Some(_)) => places.blobs.clone(),
        (false, None) => return Ok(()),
    };
    Err(StoreError::Damaged {
        path: places.database.clone(),
        why: format!("it is missing although {} has something of it", remains.display()),
    })
}

fn prepare_blobs(places: &Places) -> Result<(), StoreError> {
    match fs::DirBuilder::new().mode(0o700).create(&places.blobs) {
        Ok(()) => return flush_directory(&places.state),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(file("create", &places.blobs, source)),
    }
    let found = fs::symlink_metadata(&places.blobs).map_err(|source| file("look at", &places.blobs, source))?;
    if !found.is_dir() || found.mode() & 0o077 != 0 {
        return Err(StoreError::Foreign {
            path: places.blobs.clone(),
            why: "it must be a directory, not a link, with mode 0700".into(),
        });
    }
    Ok(())
}

/// fsync of a directory: then the names in it are durable.
pub(super) fn flush_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|d| d.sync_all()).map_err(|source| file("flush", directory, source))
}

/// `path` with `suffix` glued to its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

pub(super) fn file(attempted: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::File { attempted, path: path.into(), source }
}

/// Events are only ever added: the triggers guard against our own mistakes, the chain against everybody's.
/// `head` stands apart from `events` so that a tail that was cut off is missed. Times are microseconds since
/// 1970; device and inode are the bits of a u64.
const FORM_1: &str = "
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

/// Agents' sessions. `sessions.state` is the `state` of the document, for counting. A call has one operation at the
/// most: what was proposed is never proposed again, whatever becomes of whoever asks. The call of an operation is
/// recorded with the operation itself, so nothing is left between the two by a crash.
const FORM_2: &str = "
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
";

/// What was asked stands apart from where it stands now: a step writes the row that changes, and the text of an edit,
/// which may be megabytes, is written once. So a grant needs little room on the disk, however long the question was.
const FORM_3: &str = "
CREATE TABLE asked (
    number INTEGER PRIMARY KEY REFERENCES operations (number), bound TEXT NOT NULL, display TEXT NOT NULL,
    again TEXT) STRICT;
INSERT INTO asked SELECT number, bound, display, again FROM operations;
ALTER TABLE operations DROP COLUMN bound;
ALTER TABLE operations DROP COLUMN display;
ALTER TABLE operations DROP COLUMN again;
";
