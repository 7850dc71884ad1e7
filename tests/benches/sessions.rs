//! Speed and size of agents' sessions: a worker until it is ready, and a hundred sessions that are alive at once.
//!
//! `cargo bench -p salaam-tests --bench sessions` as root, after a release build.

use std::{
    thread,
    time::{Duration, Instant},
};

use salaam_core::time::Timestamp;
use salaam_tests::{Host, Pair, eventually, http, process::Process};
use serde_json::{Value, json};

const STARTS: usize = 50;
const ALIVE: usize = 100;
/// Turns of each session once it is told to go on, with one look into the workspace each.
const TURNS: usize = 20;
const LIMIT: Duration = Duration::from_secs(120);

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    println!("| what | measured | allowed |");
    println!("|---|---|---|");
    starts();
    alive();
}

/// Sessions that wait for a message, then look around and end.
fn script() -> Value {
    let look = json!({"calls": [{"tool": "salaam_workspace", "arguments": {"action": "list", "path": "."}}]});
    let mut turns = vec![json!({"text": "ready", "await": "message"})];
    turns.extend(std::iter::repeat_n(look, TURNS));
    json!({"turns": turns})
}

fn create(pair: &Pair, workspace: &str) -> String {
    let body =
        json!({"workspace": workspace, "task": "bench", "provider": "scripted", "script": script(), "in_place": true});
    let reply = http::send(&pair.socket(), "POST", "/v1/sessions", Some(&body));
    assert!(reply.status < 300, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()["session"].as_str().expect("a session has an id").to_owned()
}

fn waits(pair: &Pair, session: &str, what: &str) -> bool {
    let now = http::send(&pair.socket(), "GET", &format!("/v1/sessions/{session}"), None).json();
    now["waiting_for"] == what || now["state"] == what
}

fn workers(pair: &Pair) -> Vec<Process> {
    let program = pair.host.libexec().join("salaam-worker");
    let all = Process::of_uid(pair.host.service.uid).into_iter();
    all.filter(|process| process.program().as_ref() == Some(&program)).collect()
}

fn cancel(pair: &Pair, session: &str) {
    http::send(&pair.socket(), "POST", &format!("/v1/sessions/{session}/cancel"), Some(&json!({})));
}

fn starts() {
    let pair = Pair::started(Host::shared());
    let workspace = pair.workspace_id();
    let mut sizes = Vec::new();
    for _ in 0..STARTS {
        let session = create(&pair, &workspace);
        eventually("a session waits for its message", LIMIT, || waits(&pair, &session, "message").then_some(()));
        sizes.extend(workers(&pair).first().and_then(Process::memory).map(|(_, proportional)| proportional));
        cancel(&pair, &session);
    }
    let ready: Vec<i64> = spans(&pair);
    assert!(ready.len() >= STARTS, "{} of {STARTS} starts are in the journal", ready.len());
    println!(
        "| worker: session recorded to worker ready (confined, canary tried), median of {} (worst) | {:.1} ms ({:.1}) | 50 ms |",
        ready.len(),
        median(&ready) as f64 / 1000.0,
        ready.iter().max().copied().unwrap_or_default() as f64 / 1000.0,
    );
    let sizes: Vec<i64> = sizes.into_iter().filter_map(|size| i64::try_from(size).ok()).collect();
    println!("| worker: proportional memory, median (MiB) | {:.1} | 12 |", median(&sizes) as f64 / 1024.0);
}

/// From `session.created` to the session's first `worker.started`, in microseconds.
fn spans(pair: &Pair) -> Vec<i64> {
    let events = pair.events();
    let time = |event: &Value| serde_json::from_value::<Timestamp>(event["time"].clone()).expect("a time").as_micros();
    let of = |kind: &'static str| events.iter().filter(move |event| event["kind"] == kind);
    of("worker.started")
        .filter_map(|ready| {
            let created = of("session.created").find(|created| created["session"] == ready["session"])?;
            Some(time(ready) - time(created))
        })
        .collect()
}

fn alive() {
    let pair = Pair::started(Host::shared());
    let workspace = pair.workspace_id();
    let service = pair.service_process().expect("it runs");
    let before = service.memory().unwrap_or_default();
    let start = Instant::now();
    let sessions: Vec<String> = (0..ALIVE).map(|_| create(&pair, &workspace)).collect();
    for session in &sessions {
        eventually("all wait for their message", LIMIT, || waits(&pair, session, "message").then_some(()));
    }
    let created = start.elapsed();
    thread::sleep(Duration::from_secs(1));
    let all = workers(&pair);
    assert_eq!(all.len(), ALIVE, "each live session has its worker");
    let idle = service.memory().unwrap_or_default();
    let (resident, proportional): (Vec<u64>, Vec<u64>) = all.iter().filter_map(Process::memory).unzip();
    let start = Instant::now();
    for session in &sessions {
        let path = format!("/v1/sessions/{session}/message");
        http::send(&pair.socket(), "POST", &path, Some(&json!({"text": "go on"})));
    }
    let mut largest = idle;
    let mut left = sessions.clone();
    while !left.is_empty() {
        assert!(start.elapsed() < LIMIT, "{} sessions do not end", left.len());
        let now = service.memory().unwrap_or_default();
        largest = (largest.0.max(now.0), largest.1.max(now.1));
        left.retain(|session| !waits(&pair, session, "ended"));
    }
    let wall = start.elapsed();
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "| {ALIVE} live sessions: service before, waiting, at most at work (resident; MiB) | {:.1}, {:.1}, {:.1} | 60 |",
        mib(before.0),
        mib(idle.0),
        mib(largest.0)
    );
    println!(
        "| {ALIVE} live sessions: all workers together (resident, proportional; MiB) | {:.0}, {:.0} | - |",
        mib(resident.iter().sum()),
        mib(proportional.iter().sum())
    );
    println!("| {ALIVE} live sessions: until all were at work and waited | {:.2} s | - |", created.as_secs_f64());
    println!(
        "| {ALIVE} live sessions: {} turns with a look each, recorded | {:.0} turns/s | - |",
        ALIVE * TURNS,
        (ALIVE * TURNS) as f64 / wall.as_secs_f64()
    );
}

fn median(all: &[i64]) -> i64 {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}
