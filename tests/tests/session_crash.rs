//! A seeded campaign: service, worker, executor or sudo is killed at a random moment while sessions run commands,
//! edit, undo and go on.
//!
//! After each: the session comes to its end, no command ran twice, what was acknowledged is there, two files that
//! are always edited together are of one version, nothing half-made is left, every call has its answer, and the
//! chain verifies. `tests/campaign sessions` plays 300 and writes the figures.

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{
    Host, Pair, Seeded,
    host::chown,
    http, limit,
    pair::{inside, text},
    process::Process,
    ran,
};
use serde_json::{Value, json};

/// The runs of an ordinary test run; the campaign sets SALAAM_CAMPAIGN_RUNS.
const RUNS: u64 = 12;
/// The seed of an ordinary test run, so that it is the same each time.
const SEED: u64 = 20_261_129;
/// A session that has not ended after this long hangs.
const END: Duration = Duration::from_secs(60);
/// The latest moment of a kill after the session was created, in milliseconds.
const LATEST: u64 = 700;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Service,
    Worker,
    Executor,
    Sudo,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "service",
            Self::Worker => "worker",
            Self::Executor => "toolsd",
            Self::Sudo => "sudo",
        })
    }
}

const VICTIMS: [Victim; 4] = [Victim::Service, Victim::Worker, Victim::Executor, Victim::Sudo];

#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    struck: u64,
    completed: u64,
    other_ends: u64,
    unknown: u64,
}

#[test]
fn nothing_happens_twice_by_halves_or_unanswered_whoever_is_killed() {
    let number = |name: &str, default: u64| env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (runs, seed) = (number("SALAAM_CAMPAIGN_RUNS", RUNS), number("SALAAM_CAMPAIGN_SEED", SEED));
    let _turn = limit!(120 + runs * 20);
    let start = Instant::now();
    let pair = Pair::started(Host::shared());
    let mut random = Seeded::new(seed);
    let mut tally: BTreeMap<Victim, Tally> = BTreeMap::new();
    for run in 0..runs {
        let victim = VICTIMS[usize::try_from(run % 4).expect("below 4")];
        strike(&pair, victim, run, &mut random, tally.entry(victim).or_default());
    }
    check_operations(&pair);
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
    for (victim, one) in &tally {
        eprintln!("{victim}: {one:?}");
    }
    assert!(tally.values().map(|one| one.struck).sum::<u64>() > runs / 2, "most kills hit something: {tally:?}");
    if let Ok(path) = env::var("SALAAM_CAMPAIGN_REPORT") {
        report(Path::new(&path), seed, runs, &tally, start.elapsed());
    }
}

/// Two commands that leave a mark, an edit of two files between them, its undo, and a third mark.
fn script(run: u64) -> Value {
    let command = |n: u32, before: &str| {
        json!({"calls": [{"tool": "salaam_local", "arguments":
            {"action": "command", "command": format!("{before}echo mark-{run}-{n} >> log")}}]})
    };
    let edit = json!({"calls": [{"tool": "salaam_local", "arguments": {"action": "edit", "edits": [
        {"path": "left.txt", "old": "before", "new": "after"},
        {"path": "right.txt", "old": "before", "new": "after"},
        {"path": format!("made-{run}.txt"), "create": "after\n"}]}}]});
    // The edit may have been refused or be unknown; then its id may be missing, and that ends the script.
    let undo = json!({"calls": [{"tool": "salaam_local", "arguments": {"action": "undo", "operation": "$op:1.0"}}]});
    json!({"turns": [command(0, ""), edit, command(1, "sleep 0.05; "), undo, command(2, "")]})
}

fn both_files(pair: &Pair, run: u64) {
    for name in ["left.txt", "right.txt"] {
        let path = inside(pair, name);
        drop(fs::remove_file(&path));
        fs::write(&path, format!("run {run}: before\n")).expect("root can write there");
        chown(&path, &format!("{}:{}", pair.host.service.name, pair.host.name("work")));
        ran::run(&["chmod", "0664", &path.display().to_string()]);
    }
}

fn strike(pair: &Pair, victim: Victim, run: u64, random: &mut Seeded, tally: &mut Tally) {
    both_files(pair, run);
    let body = json!({"workspace": pair.workspace_id(), "task": format!("run {run}"), "provider": "scripted",
        "script": script(run), "in_place": true});
    let reply = pair.http("POST", "/v1/sessions", Some(&body));
    assert!((200..300).contains(&reply.status), "{}: {}", reply.status, String::from_utf8_lossy(&reply.body));
    let session = text(&reply.json(), "session");
    let moment = Instant::now() + Duration::from_millis(random.below(LATEST));
    let mut struck = false;
    let limit = Instant::now() + END;
    tally.runs += 1;
    let ended = loop {
        if Instant::now() >= limit {
            let now = pair.http("GET", &format!("/v1/sessions/{session}"), None).json();
            let operations = pair.http("GET", "/v1/operations?limit=100", None).json();
            panic!("run {run}: the session does not end after the {victim} was killed: {now}\n{operations}");
        }
        if !struck && Instant::now() >= moment {
            struck = true;
            let found = find(pair, victim);
            tally.struck += u64::from(found.is_some());
            if let Some(process) = found {
                process.kill();
            }
            if victim == Victim::Service {
                pair.start_after_kill();
            }
        }
        if let Some(state) = tend(pair, &session, tally)
            && struck
        {
            break state;
        }
        thread::sleep(Duration::from_millis(10));
    };
    match ended.as_str() {
        "completed" => tally.completed += 1,
        _ => tally.other_ends += 1,
    }
    check_run(pair, run, &session, &ended);
}

fn find(pair: &Pair, victim: Victim) -> Option<Process> {
    match victim {
        Victim::Service => pair.service_process(),
        Victim::Worker => {
            let worker = pair.host.libexec().join("salaam-worker");
            let service = pair.service_process()?.pid;
            let ours = |process: &Process| process.parent == service && process.program().as_ref() == Some(&worker);
            Process::of_uid(pair.host.service.uid).into_iter().find(ours)
        }
        Victim::Executor => pair.executors().pop(),
        Victim::Sudo => pair.sudo_process(),
    }
}

/// Does what an operator has to: grants, and says what became of what nobody saw. The outcome, once there is one.
fn tend(pair: &Pair, session: &str, tally: &mut Tally) -> Option<String> {
    let ask = |method: &str, path: &str, body: Option<&Value>| http::ask(&pair.socket(), method, path, body);
    let json = |reply: http::Reply| serde_json::from_slice::<Value>(&reply.body).ok();
    let list = ask("GET", "/v1/approvals", None).and_then(json)?;
    for one in list["approvals"].as_array().into_iter().flatten() {
        if one["session"] == session && one["state"] == "pending" {
            let path = format!("/v1/approvals/{}/grant", text(one, "approval"));
            // Its answer is in the record; the service may be gone at this moment.
            drop(ask("POST", &path, Some(&json!({"binding": one["binding"]}))));
        }
    }
    let now = ask("GET", &format!("/v1/sessions/{session}"), None).and_then(json)?;
    if now["waiting_for"] == "reconcile" {
        let all = ask("GET", "/v1/operations?limit=100", None).and_then(json)?;
        for one in all["operations"].as_array().into_iter().flatten() {
            if one["state"] == "unknown" && one["session"] == session && one["reconciled"].is_null() {
                let body = json!({"operation": one["operation"], "verdict": verdict(pair, one), "comment": "looked"});
                let path = format!("/v1/sessions/{session}/reconcile");
                let reply = ask("POST", &path, Some(&body))?;
                tally.unknown += u64::from((200..300).contains(&reply.status));
            }
        }
    }
    (now["state"] == "ended").then(|| text(&now, "outcome"))
}

/// A person looks whether the mark is there.
fn verdict(pair: &Pair, operation: &Value) -> &'static str {
    let display = text(operation, "display");
    let mark = display.split("echo ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("-");
    let log = fs::read_to_string(inside(pair, "log")).unwrap_or_default();
    if log.lines().any(|line| line == mark) { "took-effect" } else { "no-effect" }
}

fn check_run(pair: &Pair, run: u64, session: &str, ended: &str) {
    let log = fs::read_to_string(inside(pair, "log")).unwrap_or_default();
    let count = |n: u32| log.lines().filter(|line| **line == format!("mark-{run}-{n}")).count();
    for n in 0..3 {
        assert!(count(n) <= 1, "run {run}: mark {n} stands {} times: it ran twice", count(n));
    }
    let read = |name: &str| fs::read_to_string(inside(pair, name)).expect("an edit never loses a file");
    let (left, right) = (read("left.txt"), read("right.txt"));
    assert_eq!(left, right, "run {run}: an edit of both took effect by halves");
    let made = inside(pair, format!("made-{run}.txt")).exists();
    assert_eq!(made, left.contains("after"), "run {run}: the third file is of another version");
    drop(fs::remove_file(inside(pair, format!("made-{run}.txt"))));
    let left_over: Vec<_> = fs::read_dir(&pair.workspace)
        .expect("it is there")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".salaam-"))
        .collect();
    assert!(left_over.is_empty(), "run {run}: {left_over:?}");

    let shown = pair.http("GET", &format!("/v1/sessions/{session}"), None).json();
    let turns = shown["turns"].as_array().unwrap_or_else(|| panic!("no turns in {shown}"));
    for turn in turns {
        for call in turn["calls"].as_array().into_iter().flatten() {
            // A session that ended otherwise than by its worker still has answered all that was called.
            assert!(call["answer"]["outcome"].is_string(), "run {run} ({ended}): a call without an answer: {turn}");
        }
    }
    // What was acknowledged is there.
    let all = pair.http("GET", "/v1/operations?limit=100", None).json();
    for one in all["operations"].as_array().into_iter().flatten().filter(|one| one["session"] == session) {
        if one["state"] == "completed" && one["kind"] == "command" && one["result"]["exit_code"] == 0 {
            let display = text(one, "display");
            let n: u32 = display.chars().rev().find(char::is_ascii_digit).and_then(|c| c.to_digit(10)).expect("a mark");
            assert_eq!(count(n), 1, "run {run}: {display} was acknowledged and is not there");
        }
    }
    pair.salaam(&["journal", "verify"]).ok();
}

/// Every dispatched operation has exactly one end, and an edit is never left unknown where the disk can tell.
fn check_operations(pair: &Pair) {
    let mut ends: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for event in pair.events() {
        let operation = || text(&event["data"], "operation");
        match event["kind"].as_str() {
            Some("operation.dispatched") => ends.entry(operation()).or_default().0 += 1,
            Some("operation.result" | "operation.unknown") => ends.entry(operation()).or_default().1 += 1,
            _ => {}
        }
    }
    for (operation, (dispatched, ended)) in &ends {
        assert_eq!((*dispatched, *ended), (1, 1), "{operation}: intents and ends");
        let row = pair.operation(operation);
        if row["kind"] != "command" {
            assert_ne!(row["state"], "unknown", "the disk tells what became of an edit: {row}");
        }
    }
    assert!(!ends.is_empty());
}

fn report(path: &Path, seed: u64, runs: u64, tally: &BTreeMap<Victim, Tally>, wall: Duration) {
    let date = ran::run(&["date", "--utc", "+%Y-%m-%d %H:%M UTC"]).out();
    let kernel = ran::run(&["uname", "-sr"]).out();
    let mut text = format!(
        "# Session campaign\n\n{runs} runs, seed {seed}, {}, {}, {:.0} s. Made by `tests/campaign sessions`.\n\n\
         Each run plays a session of three commands that leave a mark, an edit of two files and a new one, and its\n\
         undo; one process is killed with SIGKILL up to {LATEST} ms after the session was made. After each run: the\n\
         session had ended, no mark stood twice, what was acknowledged was there, the edited files were of one\n\
         version, no temporary file was left, every call had its answer, the journal verified. At the end every\n\
         dispatched operation had exactly one end, and no edit or undo was unknown.\n\n\
         | killed | runs | was there to be killed | sessions completed | ended otherwise | unknown, reconciled |\n|---|---|---|---|---|---|\n",
        date.trim(),
        kernel.trim(),
        wall.as_secs_f64()
    );
    for (victim, one) in tally {
        text.push_str(&format!(
            "| {victim} | {} | {} | {} | {} | {} |\n",
            one.runs, one.struck, one.completed, one.other_ends, one.unknown
        ));
    }
    fs::write(path, text).expect("the sources can be written");
}
