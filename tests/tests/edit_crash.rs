//! Edits and undos with the executor or the service killed in the middle: all of an edit or none of it, nothing left
//! behind, and a definite end.
//!
//! `SALAAM_EDIT_KILLS` = how many (20 if it is not set), `SALAAM_SEED` = the seed.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{
    Host, Pair, Seeded, eventually, http, limit,
    pair::{inside, text},
    ran::LIMIT,
};
use serde_json::{Value, json};

/// Files of the tree: enough that a kill lands between two of them.
const FILES: u64 = 24;

type Tree = BTreeMap<String, String>;

/// Everything in the tree, so that what an edit leaves behind is seen too.
fn tree(pair: &Pair) -> Tree {
    let entries = fs::read_dir(inside(pair, "tree")).expect("it is there").flatten();
    let content = |path| fs::read_to_string(path).unwrap_or_else(|e| format!("unreadable: {e}"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), content(entry.path()))).collect()
}

fn name(n: u64) -> String {
    format!("f{n:02}")
}

/// The edit of one round, and the tree after it.
fn edit(before: &Tree, round: u64) -> (Value, Tree) {
    let mut after = before.clone();
    let mut edits = Vec::new();
    for n in 0..FILES {
        let path = name(n);
        match after.get_mut(&path) {
            Some(_) if n % 8 == round % 8 && n > 0 => {
                edits.push(json!({ "path": format!("tree/{path}"), "delete": true }));
                after.remove(&path);
            }
            Some(content) => {
                let line = content.lines().next().expect("it has one").to_owned();
                let new = format!("round {round} of {path}");
                edits.push(json!({ "path": format!("tree/{path}"), "old": line, "new": new }));
                *content = content.replacen(&line, &new, 1);
            }
            None => {
                let content = format!("made in {round} as {path}\n{}", "y".repeat(5000));
                edits.push(json!({ "path": format!("tree/{path}"), "create": content }));
                after.insert(path, content);
            }
        }
    }
    (json!({ "edits": edits }), after)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("it is a number"))
}

/// Waits until the executor makes its first file there; for two seconds at the most.
fn begins(tree: &Path) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let names = fs::read_dir(tree).expect("it is there").flatten();
        if names.into_iter().any(|entry| entry.file_name().as_encoded_bytes().starts_with(b".salaam")) {
            return;
        }
    }
}

/// The newest operation, if it is another one than `known`.
fn newest(pair: &Pair, known: &str) -> Option<String> {
    let listed = pair.http("GET", "/v1/operations?limit=1", None).json();
    let id = text(listed["operations"].get(0)?, "operation");
    (id != known).then_some(id)
}

fn is_up(pair: &Pair) -> bool {
    let executors = pair.health()["tool_execution"]["executors"].clone();
    executors.as_array().is_some_and(|all| !all.is_empty()) && pair.run(&["true"]).code == Some(0)
}

#[test]
fn whatever_is_killed_an_edit_is_done_whole_or_not_at_all_and_has_its_end() {
    let (kills, seed) = (number("SALAAM_EDIT_KILLS", 20), number("SALAAM_SEED", 7));
    let _turn = limit!(120 + 15 * kills);
    let mut random = Seeded::new(seed);
    let pair = Pair::started(Host::shared());
    fs::create_dir(inside(&pair, "tree")).expect("root can");
    let owner = format!("{}:{}", pair.host.service.name, pair.host.name("work"));
    salaam_tests::host::chown(&inside(&pair, "tree"), &owner);
    for n in 0..FILES {
        pair.host.write(&inside(&pair, format!("tree/{}", name(n))), format!("first of {n}\n{}", "x".repeat(20_000)));
    }
    let workspace = pair.workspace_id();
    let mut last = String::new();
    // The newest edit that took effect, with the tree before it.
    let mut undoable: Option<(String, Tree)> = None;
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..kills {
        let before = tree(&pair);
        let undo = undoable.take().filter(|_| random.below(3) == 0);
        let (mut body, after) = match undo {
            Some((id, tree)) => (json!({ "undo": id }), tree),
            None => edit(&before, round),
        };
        body["workspace"] = json!(workspace);
        body["grant"] = json!(true);
        body["detach"] = json!(true);
        let of_service = random.below(2) == 0;
        let victim = if of_service { pair.service_process() } else { pair.executors().into_iter().next() };
        let victim = victim.expect("it runs");
        let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
        stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
        // Most once files are being made, some before and after: how long an edit takes depends on build and host.
        if random.below(4) > 0 {
            begins(&inside(&pair, "tree"));
            // Before, between and after the swaps: the files are made one by one, each flushed.
            let most = [30_000, 200_000, 800_000][random.below(3) as usize];
            thread::sleep(Duration::from_micros(random.below(most)));
        } else {
            thread::sleep(Duration::from_millis(random.below(25) * random.below(25)));
        }
        victim.kill();
        if of_service {
            let gone = || pair.service_process().is_none().then_some(());
            eventually("the service is gone", Duration::from_secs(5), gone);
            pair.start_after_kill();
        }
        eventually("commands run again", Duration::from_secs(20), || is_up(&pair).then_some(()));
        let now = tree(&pair);
        let all_or_none = |state: &str| {
            assert!(now.keys().all(|name| name.starts_with('f')), "round {round}: left behind: {:?}", now.keys());
            match state {
                "completed" => assert_eq!(now, after, "round {round} of seed {seed}: {state}"),
                _ => assert_eq!(now, before, "round {round} of seed {seed}: {state}"),
            }
        };
        // The command above was sent after the edit was settled, so its end is in the record by now; `true` of the
        // check is the newest operation.
        let known = last.clone();
        let found = pair.http("GET", "/v1/operations?limit=20", None).json();
        let all = found["operations"].as_array().expect("a list");
        let ours = all
            .iter()
            .take_while(|one| one["operation"] != known.as_str())
            .find(|one| one["kind"] == "edit" || one["kind"] == "undo");
        last = newest(&pair, "").expect("there are some");
        let Some(ours) = ours else {
            all_or_none("never recorded");
            *tally.entry("never recorded".into()).or_default() += 1;
            continue;
        };
        let id = text(ours, "operation");
        let state = pair.final_state(&id);
        let shown = pair.operation(&id);
        all_or_none(&state);
        assert_ne!(state, "unknown", "round {round} of seed {seed}: nothing else wrote there: {shown:#}");
        if state == "completed" {
            undoable = Some((id.clone(), before));
        }
        let settled = shown["result"]["settled"]["outcome"].as_str().unwrap_or("answered");
        *tally.entry(format!("{state}, {settled}")).or_default() += 1;
        let ends = pair.events_of("operation.result", &id).len() + pair.events_of("operation.unknown", &id).len();
        let sent = pair.events_of("operation.dispatched", &id).len();
        assert_eq!(sent, ends, "round {round}: {sent} intents and {ends} ends");
    }
    println!("{kills} kills, seed {seed}: {tally:?}");
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
    assert!(
        tally.keys().any(|what| what.ends_with("finished") || what.ends_with("rolled-back")),
        "no kill hit an edit"
    );
}
