//! What a worker costs: `cargo run --release -p salaam --example workers -- LIBEXEC/salaam-worker [HOW MANY]`.
//! Prints start-to-ready and the memory of workers that wait for their session, together and one by one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark; it ends where something is missing"
)]

use std::{path::PathBuf, time::Instant};

use salaam_service::workers::{Options, Worker};

fn main() {
    let mut words = std::env::args_os().skip(1);
    let program = PathBuf::from(words.next().expect("the path of salaam-worker"));
    let number = words.next().map_or(100, |word| word.to_str().and_then(|word| word.parse().ok()).expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure(program, number));
}

async fn measure(program: PathBuf, number: usize) {
    let build = salaam_service::version::BUILD.clone();
    let script = Some(br#"{"turns":[{"text":"t"}]}"#.to_vec());
    let options = Options { program, build, state_directory: PathBuf::from("/var"), script };
    let (mut workers, mut times) = (Vec::new(), Vec::new());
    for _ in 0..number {
        let start = Instant::now();
        workers.push(Worker::start(&options).await.expect("it starts"));
        times.push(start.elapsed());
    }
    let mut pss: Vec<u64> = workers.iter().map(|worker| pss_kib(worker.pid())).collect();
    times.sort_unstable();
    pss.sort_unstable();
    let at = |share: usize| (number * share / 100).min(number - 1);
    println!("start to ready: median {:?}, p95 {:?}, most {:?}", times[at(50)], times[at(95)], times[number - 1]);
    println!(
        "PSS of each of {number}: median {} KiB, most {} KiB; together {} KiB",
        pss[at(50)],
        pss[number - 1],
        pss.iter().sum::<u64>()
    );
    let mut left = workers.into_iter();
    let alone = left.next().expect("one at least");
    for worker in left {
        let _ = worker.end().await;
    }
    println!("PSS of one alone: {} KiB", pss_kib(alone.pid()));
    let start = Instant::now();
    let gone = alone.end().await;
    println!("told to stop to proven gone: {:?} ({gone:?})", start.elapsed());
}

fn pss_kib(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("only root may read it");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).expect("it has a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
