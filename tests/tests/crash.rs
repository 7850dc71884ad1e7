//! A seeded campaign: service, executor, sudo or client is killed at a random moment while commands run.
//!
//! After each: within two seconds nothing of the commands is left, no command ran twice, the chain verifies,
//! and every intent without a receipt is `unknown`. `tests/campaign crash` runs 200 and writes the figures.

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{
    Host, Pair, Seeded, eventually, limit, pair::inside, pair::text, process::Process, ran, ran::Started,
};
use serde_json::Value;

/// How long a command may outlive the death of what ran it.
const GONE: Duration = Duration::from_secs(2);
/// The runs of an ordinary test run; the campaign sets SALAAM_CAMPAIGN_RUNS.
const RUNS: u64 = 12;
/// The seed of an ordinary test run, so that it is the same each time.
const SEED: u64 = 20_261_129;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Service,
    Executor,
    Sudo,
    Client,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "service",
            Self::Executor => "toolsd",
            Self::Sudo => "sudo",
            Self::Client => "client",
        })
    }
}

const VICTIMS: [Victim; 4] = [Victim::Service, Victim::Executor, Victim::Sudo, Victim::Client];

#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    struck: u64,
    unknown: u64,
    receipts: u64,
    slowest: Duration,
}

#[test]
fn nothing_survives_and_nothing_runs_twice_whoever_is_killed() {
    let number = |name: &str, default: u64| env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (runs, seed) = (number("SALAAM_CAMPAIGN_RUNS", RUNS), number("SALAAM_CAMPAIGN_SEED", SEED));
    let _turn = limit!(60 + runs * 15);
    let start = Instant::now();
    let pair = Pair::started(Host::shared());
    let mut random = Seeded::new(seed);
    let mut tally: BTreeMap<Victim, Tally> = BTreeMap::new();
    for run in 0..runs {
        // Each victim in turn, the moment by chance: a short campaign still meets all four.
        let victim = VICTIMS[usize::try_from(run % 4).expect("below 4")];
        let one = tally.entry(victim).or_default();
        strike(&pair, victim, run, &mut random, one);
    }
    check_journal(&pair, &mut tally);
    pair.assert_sound();
    for (victim, one) in &tally {
        eprintln!("{victim}: {one:?}");
    }
    assert!(tally.values().all(|one| one.struck > 0), "no kill hit a running command: {tally:?}");
    if let Ok(path) = env::var("SALAAM_CAMPAIGN_REPORT") {
        report(Path::new(&path), seed, runs, &tally, start.elapsed());
    }
}

fn strike(pair: &Pair, victim: Victim, run: u64, random: &mut Seeded, tally: &mut Tally) {
    let count = if victim == Victim::Client { 1 } else { 1 + random.below(3) };
    let mut clients: Vec<Started> = Vec::new();
    for n in 0..count {
        let mark = format!("mark-{run}-{n}");
        // Some finish by themselves around the kill, some would go on for ever.
        let sleep = if random.below(3) == 0 { "0.15" } else { "300" };
        let text = format!("echo {mark}-begin >> log; sleep {sleep}; echo {mark}-end >> log");
        clients.push(pair.run_started(&["--json"], &["sh", "-c", &text]));
    }
    thread::sleep(Duration::from_millis(random.below(350)));
    let before = pair.commands().len();
    let victim_process = match victim {
        Victim::Service => pair.service_process(),
        Victim::Executor => pair.executors().pop(),
        Victim::Sudo => pair.sudo_process(),
        Victim::Client => Process::of(i32::try_from(clients[0].child.id()).expect("a pid")),
    };
    let killed = Instant::now();
    if let Some(process) = &victim_process {
        process.kill();
    }
    let old = pair.executors();
    eventually(&format!("run {run}: nothing of the commands is left after the {victim} was killed"), GONE, || {
        let left = pair.commands();
        // Where only one end was hit, a command that ends by itself may still be ending; none may stay.
        left.is_empty().then_some(())
    });
    if victim == Victim::Service {
        eventually(&format!("run {run}: the executor went with its service"), GONE, || {
            pair.executors().is_empty().then_some(())
        });
    }
    tally.runs += 1;
    tally.struck += u64::from(before > 0);
    tally.slowest = tally.slowest.max(killed.elapsed());
    for client in clients {
        let ran = client.wait(Duration::from_secs(30));
        assert!(ran.signal.is_some() || ran.code.is_some(), "{ran}");
    }
    match victim {
        Victim::Service => {
            pair.start_after_kill();
        }
        Victim::Executor | Victim::Sudo => {
            eventually(&format!("run {run}: a new executor answers"), Duration::from_secs(10), || {
                let now = pair.executors();
                let fresh = now.len() == 1 && old.iter().all(|process| process.pid != now[0].pid) || old.is_empty();
                (fresh && pair.run(&["true"]).code == Some(0)).then_some(())
            });
        }
        Victim::Client => {}
    }
    let log = fs::read_to_string(inside(pair, "log")).unwrap_or_default();
    for n in 0..count {
        for step in ["begin", "end"] {
            let line = format!("mark-{run}-{n}-{step}");
            assert!(log.lines().filter(|one| **one == line).count() <= 1, "{line} stands twice: it ran twice");
        }
    }
    pair.salaam(&["journal", "verify"]).ok();
}

/// Every dispatched operation has exactly one end, and what has no receipt is unknown.
fn check_journal(pair: &Pair, tally: &mut BTreeMap<Victim, Tally>) {
    let mut ends: BTreeMap<String, (u32, u32, Option<Victim>)> = BTreeMap::new();
    for event in pair.events() {
        let operation = || text(&event["data"], "operation");
        match event["kind"].as_str() {
            Some("approval.requested") => {
                let victim = event["data"]["bound"]["arguments"].to_string();
                let run = victim.split("mark-").nth(1).and_then(|rest| rest.split('-').next()?.parse::<usize>().ok());
                ends.entry(operation()).or_insert((0, 0, run.map(|run| VICTIMS[run % 4])));
            }
            Some("operation.dispatched") => ends.entry(operation()).or_default().0 += 1,
            Some("operation.result") => {
                let entry = ends.entry(operation()).or_default();
                entry.1 += 1;
                if let Some(one) = entry.2.and_then(|victim| tally.get_mut(&victim)) {
                    one.receipts += 1;
                }
            }
            Some("operation.unknown") => {
                let entry = ends.entry(operation()).or_default();
                entry.1 += 1;
                assert!(event["data"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{event}");
                if let Some(one) = entry.2.and_then(|victim| tally.get_mut(&victim)) {
                    one.unknown += 1;
                }
            }
            _ => {}
        }
    }
    for (operation, (dispatched, ended, _)) in &ends {
        assert!(*dispatched <= 1, "{operation} was dispatched {dispatched} times");
        if *dispatched == 1 {
            assert_eq!(*ended, 1, "{operation} has an intent and {ended} ends");
            let state = text(&pair.operation(operation), "state");
            assert!(
                ["completed", "failed", "timed-out", "cancelled", "unknown"].contains(&state.as_str()),
                "{operation} is {state}"
            );
        }
    }
    assert!(ends.values().any(|(dispatched, ..)| *dispatched == 1));
    let lost: Vec<Value> = pair.events().into_iter().filter(|event| event["kind"] == "executor.lost").collect();
    let epochs: Vec<u64> = pair
        .events()
        .iter()
        .filter(|event| event["kind"] == "executor.started")
        .filter_map(|event| event["data"]["epoch"].as_u64())
        .collect();
    assert!(!lost.is_empty(), "the loss of an executor is recorded");
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "epochs only rise: {epochs:?}");
}

fn report(path: &Path, seed: u64, runs: u64, tally: &BTreeMap<Victim, Tally>, wall: Duration) {
    let date = ran::run(&["date", "--utc", "+%Y-%m-%d %H:%M UTC"]).out();
    let kernel = ran::run(&["uname", "-sr"]).out();
    let mut text = format!(
        "# Crash campaign\n\n{} runs, seed {seed}, {}, {}, {:.0} s. Made by `tests/campaign crash`.\n\n\
         Each run starts one to three commands that append a line, sleep and append another, and kills one\n\
         process with SIGKILL 0 to 350 ms later. After each run: nothing of the commands was left within 2 s, no\n\
         line stood twice, the journal verified. At the end every dispatched operation had exactly one end.\n\n\
         | killed | runs | hit a running command | receipts | unknown | slowest until all was gone (ms) |\n|---|---|---|---|---|---|\n",
        runs,
        date.trim(),
        kernel.trim(),
        wall.as_secs_f64()
    );
    for (victim, one) in tally {
        text.push_str(&format!(
            "| {victim} | {} | {} | {} | {} | {} |\n",
            one.runs,
            one.struck,
            one.receipts,
            one.unknown,
            one.slowest.as_millis()
        ));
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).expect("the sources can be written");
    }
    fs::write(path, text).expect("the sources can be written");
}
