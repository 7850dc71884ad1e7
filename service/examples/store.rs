//! What durability costs: commits a second, alone and with 64 at once, as ratios to a bare write and fsync on the
//! same disk; and what a spool takes of a stream. `cargo run --release --example store [DIRECTORY]`.

use std::{
    error::Error,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use salaam_core::{
    bridge::Stream,
    event::{Draft, Kind},
    id::OperationId,
};
use salaam_service::{
    clock::Clock,
    store::{Store, Transaction, offline},
};
use serde_json::json;
use sha2::Digest as _;

const ROUNDS: u32 = 1000;
const AT_ONCE: u32 = 64;
const STREAM_BYTES: u64 = 2 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let state = parent.join(format!("salaam-store-bench-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&state)?;
    let outcome = tokio::runtime::Builder::new_multi_thread().build()?.block_on(measure(&state));
    fs::remove_dir_all(&state)?;
    outcome
}

async fn measure(state: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open(state, Clock)?;
    // Once unmeasured: caches, the log's first growth.
    alone(&store, 100).await?;
    let bare = fsync_loop(state)?;
    println!("bare append of 4 KiB and fdatasync: {bare:?}");
    let one = alone(&store, ROUNDS).await?;
    println!("one committer: {one:?} a commit, {:.2} x bare, {:.0} commits/s", ratio(one, bare), rate(one));
    let shared = together(&store).await?;
    println!(
        "{AT_ONCE} committers: {shared:?} a commit, {:.2} x bare, {:.0} commits/s",
        ratio(shared, bare),
        rate(shared)
    );
    let hash = hash_only();
    println!("SHA-256 alone: {:.2} GiB/s", gib(hash));
    for (name, cap) in [("64 MiB kept", 64 << 20), ("all kept", STREAM_BYTES)] {
        let spent = spool(&store, cap)?;
        println!(
            "spool of {} GiB, {name}: {:.2} GiB/s, {:.2} GiB/s without the hash",
            STREAM_BYTES >> 30,
            gib(spent),
            gib(spent.saturating_sub(hash))
        );
    }
    store.close().await;
    let started = Instant::now();
    let verified = offline::verify(state)?;
    println!("verify of {} events: {:?}", verified.events, started.elapsed());
    // The first start removes the streams above, which have no receipt.
    Store::open(state, Clock)?.close().await;
    let started = Instant::now();
    Store::open(state, Clock)?.close().await;
    println!("open and close: {:?}", started.elapsed());
    Ok(())
}

fn fsync_loop(state: &Path) -> Result<Duration, Box<dyn Error>> {
    let mut file = File::create(state.join("bare"))?;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
    }
    Ok(started.elapsed() / ROUNDS)
}

/// An event of the size of a receipt.
fn transaction() -> Result<Transaction, Box<dyn Error + Send + Sync>> {
    let data = json!({"cause": "operator", "text": "x".repeat(1500)});
    Ok(Transaction { changes: Vec::new(), events: vec![Draft::new(Kind::CancelRequested, None, data)?] })
}

async fn alone(store: &Store, rounds: u32) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    for _ in 0..rounds {
        store.commit(transaction().map_err(|e| e.to_string())?).await?;
    }
    Ok(started.elapsed() / rounds)
}

async fn together(store: &Store) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let committers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS / 10 {
                    store.commit(transaction()?).await?;
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            })
        })
        .collect();
    for committer in committers {
        committer.await?.map_err(|e| e.to_string())?;
    }
    Ok(started.elapsed() / (AT_ONCE * (ROUNDS / 10)))
}

fn hash_only() -> Duration {
    let chunk = vec![7; 64 << 10];
    let started = Instant::now();
    let mut hash = sha2::Sha256::new();
    for _ in 0..STREAM_BYTES / (64 << 10) {
        hash.update(&chunk);
    }
    std::hint::black_box(hash.finalize());
    started.elapsed()
}

fn spool(store: &Store, cap: u64) -> Result<Duration, Box<dyn Error>> {
    let chunk = vec![7; 64 << 10];
    let operation = OperationId::new(cap, [0; 10]);
    let started = Instant::now();
    let mut spool = store.spool(operation, Stream::Stdout, cap);
    for _ in 0..STREAM_BYTES / (64 << 10) {
        spool.write(&chunk)?;
    }
    spool.finish()?;
    Ok(started.elapsed())
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn rate(each: Duration) -> f64 {
    1.0 / each.as_secs_f64()
}

fn gib(spent: Duration) -> f64 {
    2.0 / spent.as_secs_f64()
}
