//! Killed at any moment: the chain holds, and everything that was acknowledged is there.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use salaam_core::{bridge::Stream, event::Event, operation::State};

use super::{
    super::{Change, EventQuery, Store, Transaction},
    Directory, all_events, note, operation_id, operation_row, session_row, step, verified,
};
use crate::clock::Clock;

const DIRECTORY: &str = "SALAAM_TEST_CRASH_DIRECTORY";
const FIRST: &str = "SALAAM_TEST_CRASH_FIRST";
/// More rounds for a campaign.
const ROUNDS: &str = "SALAAM_TEST_CRASH_ROUNDS";
const SEED: &str = "SALAAM_TEST_CRASH_SEED";

/// Not a test of its own: the process that is killed. Says what was acknowledged, after it was.
#[test]
fn commit_until_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&directory), Clock).unwrap();
        store.commit(super::changes(vec![Change::PutSession(session_row())])).await.unwrap();
        let next: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(first)));
        let committers: Vec<_> = (0..8).map(|_| tokio::spawn(commit_for_ever(store.clone(), next))).collect();
        for committer in committers {
            committer.await.unwrap();
        }
    });
}

async fn commit_for_ever(store: Store, next: &AtomicU64) {
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let insert = Change::InsertOperation(Box::new(operation_row(n, State::Granted)));
        acknowledged_commit(&store, n, insert, State::Granted).await;
        acknowledged_commit(&store, n, step(n, State::Granted, State::Dispatched), State::Dispatched).await;
        if n.is_multiple_of(8) {
            let mut spool = store.spool(operation_id(n), Stream::Stdout, 4096);
            spool.write(b"output").unwrap();
            spool.finish().unwrap();
        }
    }
}

async fn acknowledged_commit(store: &Store, n: u64, change: Change, state: State) {
    let head = store.commit(Transaction { changes: vec![change], events: vec![note(n)] }).await.unwrap();
    let line = format!("ack {} {} {n} {state}\n", head.seq, head.hash);
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// xorshift64: the same seed kills at the same moments.
fn draw(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn whatever_was_acknowledged_survives_a_kill_at_any_moment() {
    let number = |name, default| std::env::var(name).map_or(default, |text: String| text.parse().unwrap());
    let (rounds, mut seed) = (number(ROUNDS, 20), number(SEED, 0x5a1a_a317_2026_1129));
    let directory = Directory::new();
    let mut acknowledged = 0;
    for round in 0..rounds {
        let acks = killed_run(&directory.0, round << 32, Duration::from_micros(draw(&mut seed) % 60_000));
        acknowledged += acks.len();
        let events = verified(&directory.0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = directory.open();
            assert_eq!(store.head().seq, events);
            for (seq, (hash, n, state)) in acks {
                let query = EventQuery { after: seq - 1, limit: 1, ..EventQuery::default() };
                let (found, line) = store.events(query).await.unwrap().pop().unwrap();
                let event: Event = serde_json::from_slice(&line).unwrap();
                assert_eq!((found, event.hash.to_string()), (seq, hash), "round {round}");
                let row = store.operation(operation_id(n)).await.unwrap().unwrap();
                assert!(row.state == state || row.state == State::Dispatched, "round {round}: {n} is {}", row.state);
            }
            let blobs = fs::read_dir(directory.0.join("blobs")).unwrap().count();
            assert_eq!(blobs, 0, "no operation had a receipt");
            store.close().await;
        });
    }
    println!("{rounds} kills, {acknowledged} acknowledged commits, all there");
}

type Acks = BTreeMap<u64, (String, u64, State)>;

/// Starts a committer, kills it `after` its first acknowledgement, and returns all that it acknowledged.
fn killed_run(state: &Path, first: u64, after: Duration) -> Acks {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "store::tests::crash::commit_until_killed"])
        .env(DIRECTORY, state)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // Read all the while, so that the pipe never fills; and told of the first, so that every run has one.
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut acks = Acks::new();
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some((seq, ack)) = parse(&line) {
                acks.insert(seq, ack);
                tell.send(()).unwrap();
            }
            line.clear();
        }
        acks
    });
    told.recv().unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    // The receiver lives until the reader is done.
    let acks = reader.join().unwrap();
    drop(told);
    acks
}

/// A line that was cut by the kill is no acknowledgement.
fn parse(line: &str) -> Option<(u64, (String, u64, State))> {
    let mut words = line.strip_suffix('\n')?.strip_prefix("ack ")?.split(' ');
    let (seq, hash, n, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some((seq.parse().unwrap(), (hash.to_owned(), n.parse().unwrap(), state.parse().unwrap())))
}

#[tokio::test]
async fn a_log_that_is_cut_anywhere_leaves_a_whole_journal() {
    let directory = Directory::new();
    let store = directory.open();
    for n in 0..40 {
        store.commit(Transaction { changes: Vec::new(), events: vec![note(n)] }).await.unwrap();
    }
    // What a disk may hold after a power cut: the log up to some byte, or with a byte that was never written.
    // Copied by another process: closing a second descriptor here would drop the locks of SQLite.
    let image = Directory::new();
    let copy = Command::new("cp").arg("-a").arg(directory.0.join(".")).arg(&image.0).status().unwrap();
    assert!(copy.success());
    let log = fs::read(image.0.join("salaam.db-wal")).unwrap();
    let database = fs::read(image.database()).unwrap();
    let mut seed = 7;
    for round in 0..40 {
        fs::write(image.database(), &database).unwrap();
        let _gone = fs::remove_file(image.0.join("salaam.db-shm"));
        let at = usize::try_from(draw(&mut seed)).unwrap() % log.len();
        let mut torn = log.clone();
        if round % 2 == 0 {
            torn.truncate(at)
        } else {
            torn[at] ^= 0x40
        }
        fs::write(image.0.join("salaam.db-wal"), &torn).unwrap();
        let opened = image.open();
        let whole = all_events(&opened).await.len() as u64;
        assert_eq!(whole, opened.head().seq);
        assert_eq!(
            opened.commit(Transaction { changes: Vec::new(), events: vec![note(99)] }).await.unwrap().seq,
            whole + 1
        );
        opened.close().await;
        assert_eq!(verified(&image.0), whole + 1, "round {round}, byte {at}");
    }
    store.close().await;
}
