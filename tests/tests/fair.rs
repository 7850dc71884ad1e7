//! Who goes next, and what a flood leaves to others: order and outcome, never a time.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use salaam_tests::{Host, Pair, Ran, eventually, http, limit, pair::text};
use serde_json::{Value, json};

/// For what has to wait for a follower that does not read.
const PATIENT: Duration = Duration::from_secs(90);

/// Proposes and grants a command that goes on by itself, and waits until it is recorded.
fn begin(pair: &Pair, workspace: &str, command: &str) -> String {
    begin_with(pair, json!({ "workspace": workspace, "command": command, "detach": true })).1
}

/// The same; its caller may follow.
fn begin_with(pair: &Pair, mut body: Value) -> (UnixStream, String) {
    body["grant"] = json!(true);
    let known: Vec<_> = operations(pair).iter().map(|one| text(one, "operation")).collect();
    let mut stream = http::connect(&pair.socket(), PATIENT).expect("the operator socket takes connections");
    stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
    let operation = eventually("it is recorded", Duration::from_secs(20), || {
        operations(pair).iter().map(|one| text(one, "operation")).find(|one| !known.contains(one))
    });
    (stream, operation)
}

fn operations(pair: &Pair) -> Vec<Value> {
    pair.http("GET", "/v1/operations?limit=200", None).json()["operations"].as_array().expect("a list").clone()
}

fn state(pair: &Pair, operation: &str) -> String {
    text(&pair.http("GET", &format!("/v1/operations/{operation}"), None).json(), "state")
}

fn ends(pair: &Pair, operation: &str) -> String {
    eventually(&format!("{operation} ends"), PATIENT, || {
        let state = state(pair, operation);
        (!["proposed", "pending", "granted", "dispatched"].contains(&state.as_str())).then_some(state)
    })
}

/// Another workspace of the same service.
fn another(pair: &Pair, name: &str) -> String {
    let path = pair.host.workspace(name).display().to_string();
    text(&pair.salaam(&["workspace", "add", &path, "--json"]).ok().json(), "workspace")
}

/// The operations in the order in which they were dispatched.
fn dispatched(pair: &Pair) -> Vec<String> {
    let events = pair.events().into_iter().filter(|event| event["kind"] == "operation.dispatched");
    events.map(|event| text(&event["data"], "operation")).collect()
}

#[test]
fn a_flood_of_granted_commands_goes_behind_one_of_each_other_session() {
    let _turn = limit!(120);
    let pair = Pair::started_with(Host::shared(), "[limits]\nconcurrent_commands = 1\n");
    let (one, two) = (pair.workspace_id(), another(&pair, "fair-two"));
    let running = begin(&pair, &one, "while [ ! -e go ]; do sleep 0.05; done");
    let flood: Vec<String> = (0..20).map(|_| begin(&pair, &one, "true")).collect();
    let single = begin(&pair, &two, "true");
    // An agent in the very workspace of the flood; its command is granted last of all.
    let call = json!({"tool": "salaam_local", "arguments": {"action": "command", "command": "echo agent"}});
    let body = json!({
        "workspace": one, "task": "fair", "provider": "scripted", "in_place": true,
        "script": {"turns": [{"calls": [call]}, {"text": "done"}]},
    });
    let session = text(&pair.http("POST", "/v1/sessions", Some(&body)).json(), "session");
    let asked = eventually("the agent asks", Duration::from_secs(20), || pair.pending().into_iter().next());
    pair.grant(&text(&asked, "approval"), &text(&asked, "binding")).ok();
    let agents = text(&asked, "operation");
    for waits in flood.iter().chain([&single, &agents]) {
        assert_eq!(state(&pair, waits), "granted", "there is no room");
    }
    std::fs::write(pair.workspace.join("go"), "").expect("it is ours");
    for operation in flood.iter().chain([&running, &single, &agents]) {
        assert_eq!(ends(&pair, operation), "completed");
    }
    let order = dispatched(&pair);
    let place = |operation: &String| order.iter().position(|one| one == operation).expect("it was dispatched");
    assert_eq!(place(&running), 0);
    let (last, second) = (place(&single).max(place(&agents)), place(&flood[1]));
    assert!(last < second, "behind the flood's first at the most, not behind its rest: {order:#?}");
    let places: Vec<usize> = flood.iter().map(place).collect();
    assert!(places.is_sorted(), "a session's own keep their order: {places:?}");
    eventually("the session ends", Duration::from_secs(20), || {
        let now = pair.http("GET", &format!("/v1/sessions/{session}"), None).json();
        (now["outcome"] == "completed").then_some(())
    });
    pair.assert_sound();
    pair.stop().ok();
}

#[test]
fn what_is_cancelled_while_it_waits_takes_no_place_and_is_never_dispatched() {
    let _turn = limit!(60);
    let pair = Pair::started_with(Host::shared(), "[limits]\nconcurrent_commands = 1\n");
    let one = pair.workspace_id();
    let running = begin(&pair, &one, "while [ ! -e go ]; do sleep 0.05; done");
    let waiting: Vec<String> = (0..6).map(|_| begin(&pair, &one, "true")).collect();
    // One whose proposer hangs up, and some that are cancelled: the first, one in the middle, the last.
    let (stream, tied) = begin_with(&pair, json!({ "workspace": one, "command": "true" }));
    drop(stream);
    for at in [0, 3, 5] {
        pair.salaam(&["operation", "cancel", &waiting[at]]).ok();
    }
    assert_eq!(ends(&pair, &tied), "cancelled");
    std::fs::write(pair.workspace.join("go"), "").expect("it is ours");
    let states: Vec<String> = waiting.iter().map(|operation| ends(&pair, operation)).collect();
    assert_eq!(states, ["cancelled", "completed", "completed", "cancelled", "completed", "cancelled"]);
    let expected: Vec<&String> = [&running].into_iter().chain([1, 2, 4].map(|at| &waiting[at])).collect();
    assert_eq!(dispatched(&pair).iter().collect::<Vec<_>>(), expected);
    assert_eq!(pair.result(&[], &["true"])["state"], "completed", "no place was lost");
    pair.stop().ok();
}

#[test]
fn followers_that_do_not_read_hold_up_neither_the_bridge_nor_the_places_for_long() {
    let _turn = limit!(240);
    let pair = Pair::started_with(Host::shared(), "[limits]\nconcurrent_commands = 7\n");
    let (one, two) = (pair.workspace_id(), another(&pair, "fair-deaf"));
    // More than the pipes, the bridge and the service hold of it together.
    let body = json!({ "workspace": one, "command": "head -c 300000000 /dev/zero", "follow": true });
    let mut deaf: Vec<_> = (0..6).map(|_| begin_with(&pair, body.clone())).collect();
    // Until everything between the commands and this test is full.
    std::thread::sleep(Duration::from_secs(2));
    let other = json!({ "workspace": two, "command": "head -c 3000000 /dev/zero", "grant": true });
    assert_eq!(pair.http("POST", "/v1/operations", Some(&other)).json()["state"], "completed");
    for (_, operation) in &deaf {
        assert_eq!(state(&pair, operation), "dispatched", "it is held up by its own follower");
    }
    // All places taken: what comes now goes once a follower is let go of, long before the time limit of the command.
    deaf.push(begin_with(&pair, body));
    assert_eq!(pair.http("POST", "/v1/operations", Some(&other)).json()["state"], "completed");
    for (mut stream, operation) in deaf {
        assert_eq!(ends(&pair, &operation), "completed", "the command itself goes on to its end");
        let mut told = String::new();
        stream.read_to_string(&mut told).expect("the answer is whole");
        let lines: Vec<&str> = told.lines().collect();
        let at = |what: &str| lines.iter().position(|line| line.starts_with(what)).expect(what);
        assert!(at("{\"cut\":") < at("{\"result\":"), "it is told before the result");
        assert!(
            lines[at("{\"cut\":")].contains(&operation)
                && !lines[at("{\"cut\":")..].iter().any(|l| l.contains("\"output\":{\"stream\""))
        );
        let stdout = &pair.operation(&operation)["result"]["output"]["stdout"];
        assert_eq!(stdout["bytes"], 300_000_000, "all of it was counted: {stdout}");
    }
    pair.assert_sound();
    pair.stop().ok();
}

#[test]
fn ten_floods_make_nothing_of_another_session_fail() {
    let _turn = limit!(180);
    let pair = Pair::started_with(Host::shared(), "[limits]\nconcurrent_commands = 12\noutput_bytes = 4194304\n");
    let (one, two) = (pair.workspace_id(), another(&pair, "fair-quiet"));
    let ways = [
        "yes",
        "exec dd if=/dev/zero bs=1 status=none",
        "while :; do echo out; echo err >&2; done",
        "yes a long line that goes to the other stream >&2",
        "cat /dev/zero & cat /dev/zero >&2",
    ];
    let floods: Vec<_> = (0..10)
        .map(|number| {
            let body = json!({ "workspace": one, "command": ways[number % ways.len()], "follow": number % 3 == 0 });
            begin_with(&pair, body)
        })
        .collect();
    for number in 0..8 {
        let script = format!("seq 1 5000; echo {number} >&2; exit {number}");
        let ran =
            pair.http("POST", "/v1/operations", Some(&json!({ "workspace": two, "command": script, "grant": true })));
        let ran = ran.json();
        assert_eq!((&ran["state"], &ran["exit_code"]), (&json!("completed"), &json!(number)), "{ran:#}");
        let whole: String = (1..=5000).map(|line| format!("{line}\n")).collect();
        assert_eq!(
            (&ran["output"]["stdout"]["text"], &ran["output"]["stderr"]["text"]),
            (&json!(whole), &json!(format!("{number}\n")))
        );
    }
    let edit = json!({ "workspace": two, "edits": [{"path": "made", "create": "by hand\n"}], "grant": true });
    assert_eq!(pair.http("POST", "/v1/operations", Some(&edit)).json()["state"], "completed");
    let asked = pair.propose(json!({ "workspace": two, "argv": ["true"], "detach": true }));
    pair.grant(&asked.approval, &asked.binding).ok();
    assert_eq!(ends(&pair, &asked.operation), "completed");
    for (stream, operation) in &floods {
        assert_eq!(state(&pair, operation), "dispatched");
        drop(stream.shutdown(std::net::Shutdown::Both));
    }
    for (_, operation) in &floods {
        assert_eq!(ends(&pair, operation), "cancelled", "with the proof that it is gone");
    }
    let lost = pair.events().into_iter().filter(|event| event["kind"] == "executor.lost").count();
    assert_eq!(lost, 0, "the executor is the one that it was");
    pair.assert_sound();
    pair.stop().ok();
}

/// Tries on itself, on a child, and on who watches it, everything that sets a priority.
const PRIORITIES: &str = r#"
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "20"])
tries = {
    "setpriority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "affinity": lambda pid: os.sched_setaffinity(pid, {0}),
    "ionice": lambda pid: subprocess.run(["ionice", "-c", "3", "-p", str(pid)], check=True, stderr=subprocess.DEVNULL),
    "scheduler": lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
    "param": lambda pid: os.sched_setparam(pid, os.sched_param(0)),
}
def tried(what):
    try:
        what()
        return "done"
    except (PermissionError, subprocess.CalledProcessError):
        return "denied"
for name, action in tries.items():
    print(name, *(tried(lambda: action(pid)) for pid in (child.pid, 2)))
print("user", tried(lambda: os.setpriority(os.PRIO_USER, 0, 19)))
print("raised", tried(lambda: subprocess.run(["ionice", "-c", "2", "-n", "0", "true"], check=True, stderr=subprocess.DEVNULL)))
print("better", tried(lambda: os.setpriority(os.PRIO_PROCESS, child.pid, 0)))
print("watched by", open("/proc/2/comm").read().strip())
child.kill()
"#;

#[test]
fn a_command_sets_priorities_of_its_own_only_and_raises_none() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let all = ["setpriority", "affinity", "ionice", "scheduler", "param"];
    // Without the filter, in the same kind of pid namespace, every one of them works on the second process, which
    // has this one as its child and the same account.
    let mut bare = pair.host.tools.command("bwrap");
    bare.args(["--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--chdir", "/"]);
    let bare = Ran::of(bare.args(["nice", "-n", "5", "sh", "-c", "python3 -c \"$0\"; true", PRIORITIES])).ok().out();
    for name in all {
        assert!(bare.contains(&format!("{name} done done\n")), "{bare}");
    }
    assert!(bare.contains("user done\nraised done\n") && bare.contains("watched by sh"), "{bare}");
    for profile in ["workspace-write", "read-only"] {
        let walled = pair.run_with(&["--profile", profile], &["python3", "-c", PRIORITIES]).ok().out();
        for name in all {
            assert!(walled.contains(&format!("{name} done denied\n")), "{walled}");
        }
        assert!(walled.contains("user denied\nraised denied\nbetter denied\nwatched by launch"), "{walled}");
    }
    pair.stop().ok();
}
