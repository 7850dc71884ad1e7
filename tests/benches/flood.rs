//! What ten commands that flood leave to everybody else: how long each kind of answer takes beside them, and idle.
//!
//! `cargo bench -p salaam-tests --bench flood` as root, after a release build.

use std::{
    io::Write as _,
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use salaam_core::time::Timestamp;
use salaam_tests::{Host, Pair, eventually, http};
use serde_json::{Value, json};

/// Answers of each kind; a session's steps are taken from one session of as many.
const ANSWERS: usize = 200;
/// Commands that run, of each kind that is measured whole.
const COMMANDS: usize = 40;
const FLOODS: usize = 10;
const LIMIT: Duration = Duration::from_secs(300);

/// Each in its own way: large pieces, single bytes, short lines on both streams, zeros.
const WAYS: [&str; 5] = [
    "yes",
    "exec dd if=/dev/zero bs=1 status=none",
    "while :; do echo out; echo err >&2; done",
    "yes a rather long line that is written again and again >&2",
    "cat /dev/zero & cat /dev/zero >&2",
];

/// What happens to a flood's output.
#[derive(Clone, Copy)]
enum Reader {
    /// It is only kept.
    None,
    /// A proposer takes it as it comes.
    Follows,
    /// A proposer asked for it and takes nothing.
    Deaf,
}

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    println!("| answers in ms: median, p99, worst | idle | {FLOODS} floods run | 4 run, 6 wait |");
    println!("|---|---|---|---|");
    let idle = measure(16, 0);
    let all = measure(16, FLOODS);
    let four = measure(4, FLOODS);
    for (at, (what, times)) in idle.iter().enumerate() {
        let cell = |measured: &[(&str, Vec<f64>)]| measured.get(at).map_or("-".into(), |(_, times)| shown(times));
        println!("| {what} | {} | {} | {} |", shown(times), cell(&all), cell(&four));
    }
}

fn measure(slots: u64, floods: usize) -> Vec<(&'static str, Vec<f64>)> {
    let pair = Pair::started_with(Host::shared(), &format!("[limits]\nconcurrent_commands = {slots}\n"));
    let flooded = pair.workspace_id();
    let other = other(&pair);
    let under_way: Vec<_> = (0..floods).map(|number| flood(&pair, &flooded, number)).collect();
    if floods > 0 {
        let running = usize::try_from(slots).unwrap_or(usize::MAX).min(floods);
        eventually("the floods run", LIMIT, || (dispatched(&pair) >= running).then_some(()));
        // Until everything between the commands and their readers is full.
        thread::sleep(Duration::from_secs(2));
    }
    let get = |path: &str| {
        let reply = http::send(&pair.socket(), "GET", path, None);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    };
    let mut measured = vec![
        ("health", timed(ANSWERS, || get("/v1/health"))),
        ("list of approvals", timed(ANSWERS, || get("/v1/approvals"))),
        ("grant, answered", grants(&pair, &other)),
        ("a session's step with a read", steps(&pair, &other)),
    ];
    // With all places taken a command waits for its turn, as long as those that run.
    if (floods as u64) < slots {
        let body = json!({ "workspace": other, "argv": ["true"], "grant": true });
        let run = || assert_eq!(post(&pair, &body)["state"], "completed");
        measured.push(("`true`, proposed to receipt", timed(COMMANDS, run)));
    }
    for flood in under_way {
        drop(flood);
    }
    pair.assert_sound();
    measured
}

/// A second workspace, for everybody else.
fn other(pair: &Pair) -> String {
    let path = pair.host.workspace(&format!("quiet-{}", pair.workspace.file_name().unwrap_or_default().display()));
    let path = path.display().to_string();
    let added = pair.salaam(&["workspace", "add", &path, "--json"]).ok().json();
    added["workspace"].as_str().expect("it has an id").to_owned()
}

/// Proposes a flood and goes on; it ends when what is given back is dropped.
fn flood(pair: &Pair, workspace: &str, number: usize) -> UnixStream {
    let reader = [Reader::Follows, Reader::Deaf, Reader::None].into_iter().cycle().nth(number).unwrap_or(Reader::None);
    let command = WAYS.iter().cycle().nth(number).expect("there are some");
    let follow = !matches!(reader, Reader::None);
    let body = json!({ "workspace": workspace, "command": command, "grant": true, "follow": follow });
    let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
    stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
    if matches!(reader, Reader::Follows) {
        let mut reading = stream.try_clone().expect("it is open");
        thread::spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
    }
    stream
}

fn dispatched(pair: &Pair) -> usize {
    let all = http::send(&pair.socket(), "GET", "/v1/operations", None).json();
    all["operations"].as_array().map_or(0, |all| all.iter().filter(|one| one["state"] == "dispatched").count())
}

/// From the grant of a question to its answer.
fn grants(pair: &Pair, workspace: &str) -> Vec<f64> {
    let mut times = Vec::new();
    for _ in 0..COMMANDS {
        let body = json!({ "workspace": workspace, "argv": ["true"], "detach": true });
        let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
        stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
        let pending = eventually("it is asked", LIMIT, || {
            let all = http::send(&pair.socket(), "GET", "/v1/approvals", None).json();
            let all = all["approvals"].as_array()?;
            all.iter().find(|one| one["state"] == "pending" && one["bound"]["workspace"]["id"] == *workspace).cloned()
        });
        let path = format!("/v1/approvals/{}/grant", pending["approval"].as_str().unwrap_or_default());
        let begun = Instant::now();
        let reply = http::send(&pair.socket(), "POST", &path, Some(&json!({ "binding": pending["binding"] })));
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    }
    times
}

/// From one turn of a session to its next, with a look into the workspace in between, by the journal.
fn steps(pair: &Pair, workspace: &str) -> Vec<f64> {
    let look = json!({"calls": [{"tool": "salaam_workspace", "arguments": {"action": "list", "path": "."}}]});
    let turns: Vec<_> = std::iter::repeat_n(look, ANSWERS).chain([json!({"text": "done"})]).collect();
    let body = json!({
        "workspace": workspace, "task": "bench", "provider": "scripted", "script": {"turns": turns}, "in_place": true,
    });
    let reply = http::send(&pair.socket(), "POST", "/v1/sessions", Some(&body)).json();
    let session = reply["session"].as_str().expect("a session has an id").to_owned();
    eventually("the session ends", LIMIT, || {
        thread::sleep(Duration::from_millis(200));
        let now = http::send(&pair.socket(), "GET", &format!("/v1/sessions/{session}"), None).json();
        (now["state"] == "ended").then_some(())
    });
    let events = pair.events().into_iter();
    let turns = events.filter(|event| event["kind"] == "provider.responded" && event["session"] == session);
    let times: Vec<i64> = turns
        .map(|event| serde_json::from_value::<Timestamp>(event["time"].clone()).expect("a time").as_micros())
        .collect();
    assert_eq!(times.len(), ANSWERS + 1, "the session took all its turns");
    times.windows(2).map(|two| (two[1] - two[0]) as f64 / 1000.0).collect()
}

fn post(pair: &Pair, body: &Value) -> Value {
    http::send(&pair.socket(), "POST", "/v1/operations", Some(body)).json()
}

fn timed(times: usize, mut what: impl FnMut()) -> Vec<f64> {
    (0..times)
        .map(|_| {
            let begun = Instant::now();
            what();
            begun.elapsed().as_secs_f64() * 1000.0
        })
        .collect()
}

fn shown(times: &[f64]) -> String {
    let mut all = times.to_vec();
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all.get((all.len() * share / 100).min(all.len().saturating_sub(1))).copied();
    let [median, high, worst] = [at(50), at(99), all.last().copied()].map(Option::unwrap_or_default);
    format!("{median:.1}, {high:.1}, {worst:.1}")
}
