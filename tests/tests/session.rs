//! A session on the real pair: an agent proposes, a person decides, the tools user acts, and whatever dies whenever,
//! nothing runs twice and every call is answered.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{Host, Pair, eventually, http, limit, pair::text, process::Process};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(40);

/// One command as a call.
fn command(text: &str) -> Value {
    json!({ "tool": "salaam_local", "arguments": { "action": "command", "command": text } })
}

fn edit(edits: Value) -> Value {
    json!({ "tool": "salaam_local", "arguments": { "action": "edit", "edits": edits } })
}

fn look(arguments: Value) -> Value {
    json!({ "tool": "salaam_workspace", "arguments": arguments })
}

/// What is asked for when a session is made.
fn wanted(pair: &Pair, turns: &Value) -> Value {
    json!({
        "workspace": pair.workspace_id(), "task": "mend it", "provider": "scripted", "script": { "turns": turns },
        "in_place": true,
    })
}

#[track_caller]
fn create(pair: &Pair, turns: &Value) -> String {
    let reply = pair.http("POST", "/v1/sessions", Some(&wanted(pair, turns)));
    assert_eq!(reply.status, 200, "{}", reply.json());
    text(&reply.json(), "session")
}

fn show(pair: &Pair, id: &str) -> Value {
    pair.http("GET", &format!("/v1/sessions/{id}"), None).json()
}

/// `state`, or `state:word` where it waits or is over.
fn state(session: &Value) -> String {
    let word = session["waiting_for"].as_str().or_else(|| session["outcome"].as_str());
    [session["state"].as_str().unwrap_or("?"), word.unwrap_or("")].join(":").trim_end_matches(':').to_owned()
}

#[track_caller]
fn until(pair: &Pair, id: &str, wanted: &str) -> Value {
    let start = Instant::now();
    loop {
        let session = show(pair, id);
        if state(&session) == wanted {
            return session;
        }
        assert!(start.elapsed() < LONG, "{id} does not become {wanted}: {session:#}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn tell(pair: &Pair, id: &str, verb: &str, body: &Value) -> http::Reply {
    pair.http("POST", &format!("/v1/sessions/{id}/{verb}"), Some(body))
}

/// The questions that wait.
fn questions(pair: &Pair) -> Vec<Value> {
    pair.http("GET", "/v1/approvals", None).json()["approvals"].as_array().cloned().unwrap_or_default()
}

fn grant(pair: &Pair, approval: &Value) -> http::Reply {
    let path = format!("/v1/approvals/{}/grant", text(approval, "approval"));
    pair.http("POST", &path, Some(&json!({ "binding": approval["binding"] })))
}

#[track_caller]
fn question(pair: &Pair) -> Value {
    eventually("a question waits", LONG, || questions(pair).into_iter().next())
}

/// A person who says yes to everything, until dropped.
struct Nodding {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Nodding {
    fn to(pair: &Pair) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, socket) = (Arc::clone(&stop), pair.socket());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                if http::connect(&socket, LONG).is_err() {
                    continue;
                }
                let Ok(reply) = std::panic::catch_unwind(|| http::send(&socket, "GET", "/v1/approvals", None)) else {
                    continue;
                };
                for approval in reply.json()["approvals"].as_array().into_iter().flatten() {
                    let path = format!("/v1/approvals/{}/grant", text(approval, "approval"));
                    let body = json!({ "binding": approval["binding"] });
                    drop(std::panic::catch_unwind(|| http::send(&socket, "POST", &path, Some(&body))));
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Nodding {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn events_of(pair: &Pair, session: &str) -> Vec<Value> {
    pair.events().into_iter().filter(|event| event["session"] == session).collect()
}

fn workers(pair: &Pair) -> Vec<Process> {
    let worker = pair.host.libexec().join("salaam-worker");
    let ours = |process: &Process| process.words.starts_with(&worker.display().to_string());
    Process::of_uid(pair.host.service.uid).into_iter().filter(ours).collect()
}

#[test]
fn an_agent_looks_runs_edits_and_takes_back_and_a_person_decides_each() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    pair.host.write(&pair.workspace.join("a.txt"), "one\ntwo\n");
    let turns = json!([
        { "text": "I look.", "calls": [
            look(json!({ "action": "list", "path": "." })),
            look(json!({ "action": "read", "path": "a.txt" })),
            look(json!({ "action": "search", "pattern": "t.o", "path": "." })),
            command("id -u; cat a.txt; exit 3") ] },
        { "expect": [
            { "call": 0, "outcome": "completed", "contains": "a.txt" },
            { "call": 1, "outcome": "completed", "contains": "two" },
            { "call": 2, "outcome": "completed", "contains": "a.txt:2:two" },
            { "call": 3, "outcome": "completed", "exit_code": 3, "contains": "one" } ],
          "text": "I change it.", "calls": [edit(json!([{ "path": "a.txt", "old": "two", "new": "three" }]))] },
        { "expect": [{ "call": 0, "outcome": "completed" }],
          "calls": [command("cat a.txt")] },
        { "expect": [{ "call": 0, "contains": "three" }],
          "calls": [{ "tool": "salaam_local", "arguments": { "action": "undo", "operation": "$op:1.0" } }] },
        { "expect": [{ "call": 0, "outcome": "completed" }], "calls": [command("cat a.txt")] },
        { "expect": [{ "call": 0, "contains": "two" }], "text": "Done." },
    ]);
    let nodding = Nodding::to(&pair);
    let id = create(&pair, &turns);
    let session = until(&pair, &id, "ended:completed");
    drop(nodding);
    assert_eq!(
        (&session["worker_epoch"], &session["turns_taken"], &session["in_place"]),
        (&json!(1), &json!(6), &json!(true))
    );
    assert_eq!(session["turns"].as_array().map(Vec::len), Some(6));
    let ran = session["turns"][0]["calls"][3]["answer"]["stdout"].as_str().unwrap_or_default();
    assert!(ran.starts_with(&format!("{}\n", pair.host.tools.uid)), "{ran}");
    let events = events_of(&pair, &id);
    let kinds: Vec<_> = events.iter().map(|event| text(event, "kind")).collect();
    assert_eq!(kinds[..4], ["session.created", "worker.started", "provider.requested", "provider.responded"]);
    assert_eq!(kinds.last().map(String::as_str), Some("session.ended"));
    let granted = events.iter().filter(|event| event["kind"] == "approval.granted").count();
    let proposed: Vec<_> = events.iter().filter(|event| event["kind"] == "operation.proposed").collect();
    assert_eq!((granted, proposed.len()), (5, 5), "{kinds:?}");
    assert!(
        proposed.iter().all(|event| event["data"]["turn"].is_u64() && event["data"]["call"].is_u64()),
        "{proposed:?}"
    );
    assert!(workers(&pair).is_empty());
    pair.salaam(&["journal", "verify"]);
    pair.assert_sound();
}

#[test]
fn a_denial_and_its_comment_reach_the_agent() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("touch ran")] },
        { "expect": [{ "call": 0, "outcome": "denied", "contains": "not on a friday" }] },
    ]);
    let id = create(&pair, &turns);
    let approval = question(&pair);
    assert_eq!((state(&show(&pair, &id)).as_str(), &approval["session"]), ("waiting:approval", &json!(id)));
    assert!(approval["flags"].as_array().is_some_and(|flags| flags.contains(&json!("in-place"))), "{approval}");
    let path = format!("/v1/approvals/{}/deny", text(&approval, "approval"));
    assert_eq!(pair.http("POST", &path, Some(&json!({ "comment": "not on a friday" }))).status, 200);
    until(&pair, &id, "ended:completed");
    assert!(!pair.workspace.join("ran").exists());
    pair.assert_sound();
}

#[test]
fn a_message_is_told_where_it_is_waited_for_and_an_expectation_that_fails_ends_the_session() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let id = create(&pair, &json!([{ "text": "Shall I?", "await": "message" }, { "text": "I did." }]));
    until(&pair, &id, "waiting:message");
    let said = tell(&pair, &id, "message", &json!({ "text": "yes", "request_id": "one" }));
    assert_eq!(said.status, 200, "{}", said.json());
    let session = until(&pair, &id, "ended:completed");
    assert_eq!(session["messages"][0], json!({ "message": 1, "turn": 0, "text": "yes" }));
    assert_eq!(tell(&pair, &id, "message", &json!({ "text": "yes", "request_id": "one" })).status, 200);
    assert_eq!(tell(&pair, &id, "message", &json!({ "text": "more" })).error_id().as_deref(), Some("session-over"));

    let turns = json!([
        { "calls": [look(json!({ "action": "read", "path": "absent" }))] },
        { "expect": [{ "call": 0, "outcome": "completed" }] },
    ]);
    let id = create(&pair, &turns);
    let session = until(&pair, &id, "ended:script-mismatch");
    assert!(text(&session, "reason").contains("completed"), "{session}");
    pair.assert_sound();
}

#[test]
fn a_cancel_ends_what_runs_and_answers_every_call() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let id = create(&pair, &json!([{ "calls": [command("touch begun; sleep 300"), command("touch second")] }]));
    grant(&pair, &question(&pair));
    eventually("it runs", LONG, || pair.workspace.join("begun").exists().then_some(()));
    let reply = tell(&pair, &id, "cancel", &json!({}));
    assert_eq!((reply.status, state(&reply.json()).as_str()), (200, "ended:cancelled"), "{}", reply.json());
    assert!(text(&reply.json(), "notice").contains("not undone"));
    let session = show(&pair, &id);
    let outcomes: Vec<_> = session["turns"][0]["calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| call["answer"]["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["cancelled", "cancelled"]);
    assert!(!pair.workspace.join("second").exists() && pair.commands().is_empty() && workers(&pair).is_empty());
    assert_eq!(tell(&pair, &id, "cancel", &json!({})).error_id().as_deref(), Some("session-over"));
    pair.assert_sound();
}

#[test]
fn a_killed_service_leaves_what_ran_unknown_until_a_person_looked() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("echo ran >> log; sleep 300"), command("echo second >> log")] },
        { "expect": [{ "call": 0, "outcome": "unknown", "contains": "took-effect" },
                     { "call": 1, "outcome": "completed" }] },
    ]);
    let id = create(&pair, &turns);
    grant(&pair, &question(&pair));
    eventually("it runs", LONG, || pair.workspace.join("log").exists().then_some(()));
    pair.service_process().expect("it runs").kill();
    eventually("it is gone", LONG, || pair.service_process().is_none().then_some(()));
    eventually("its worker is gone", LONG, || workers(&pair).is_empty().then_some(()));
    eventually("its commands are gone", LONG, || pair.commands().is_empty().then_some(()));
    pair.start_after_kill();
    let session = until(&pair, &id, "waiting:reconcile");
    assert_eq!(session["worker_epoch"], 2, "{session}");
    let operation = text(&session["turns"][0]["calls"][0], "operation");
    let word = json!({ "operation": operation, "verdict": "took-effect", "comment": "the line is there" });
    assert_eq!(tell(&pair, &id, "reconcile", &word).status, 200);
    assert_eq!(tell(&pair, &id, "reconcile", &word).error_id().as_deref(), Some("already-reconciled"));
    let nodding = Nodding::to(&pair);
    until(&pair, &id, "ended:completed");
    drop(nodding);
    assert_eq!(fs::read_to_string(pair.workspace.join("log")).unwrap_or_default(), "ran\nsecond\n");
    assert_eq!(pair.events_of("operation.reconciled", &operation).len(), 1);
    pair.assert_sound();
}

#[test]
fn a_question_that_nobody_answered_is_void_after_a_restart_and_the_session_goes_on() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("echo first >> log")] },
        { "calls": [command("echo second >> log")] },
    ]);
    let id = create(&pair, &turns);
    let before = question(&pair);
    let stop = Instant::now();
    pair.stop().ok();
    eprintln!("stopped within {:?}", stop.elapsed());
    assert!(workers(&pair).is_empty());
    pair.start().ok();
    let after = question(&pair);
    assert_ne!(before["approval"], after["approval"]);
    assert_eq!(grant(&pair, &before).status, 409, "what was void stays void");
    grant(&pair, &after);
    let session = until(&pair, &id, "ended:completed");
    assert_eq!(session["worker_epoch"], 2);
    assert_eq!(fs::read_to_string(pair.workspace.join("log")).unwrap_or_default(), "second\n");
    pair.assert_sound();
}

#[test]
fn a_killed_worker_voids_its_question_and_the_next_one_goes_on() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("echo first >> log"), command("echo second >> log")] },
        { "expect": [{ "call": 0, "outcome": "stale" }, { "call": 1, "outcome": "completed" }] },
    ]);
    let id = create(&pair, &turns);
    let before = question(&pair);
    let [worker] = &workers(&pair)[..] else { panic!("one session has one worker") };
    worker.kill();
    let after = eventually("the next question waits", LONG, || {
        questions(&pair).into_iter().find(|one| one["approval"] != before["approval"])
    });
    assert_eq!(after["bound"]["worker_epoch"], 2);
    grant(&pair, &after);
    let session = until(&pair, &id, "ended:completed");
    assert_eq!(session["worker_epoch"], 2);
    let lost: Vec<_> = events_of(&pair, &id).into_iter().filter(|event| event["kind"] == "worker.lost").collect();
    assert_eq!((lost.len(), &lost[0]["data"]["epoch"]), (1, &json!(1)), "{lost:?}");
    assert_eq!(fs::read_to_string(pair.workspace.join("log")).unwrap_or_default(), "second\n");
    pair.assert_sound();
}

#[test]
fn what_runs_outlives_the_worker_that_asked_for_it() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("echo begun >> log; while [ ! -e go ]; do sleep 0.05; done; echo ended >> log")] },
        { "expect": [{ "call": 0, "outcome": "completed", "exit_code": 0 }] },
    ]);
    let id = create(&pair, &turns);
    grant(&pair, &question(&pair));
    eventually("it runs", LONG, || pair.workspace.join("log").exists().then_some(()));
    workers(&pair)[0].kill();
    eventually("another worker is there", LONG, || (show(&pair, &id)["worker_epoch"] == 2).then_some(()));
    pair.host.write(&pair.workspace.join("go"), "");
    until(&pair, &id, "ended:completed");
    assert_eq!(fs::read_to_string(pair.workspace.join("log")).unwrap_or_default(), "begun\nended\n");
    pair.assert_sound();
}

#[test]
fn a_lost_executor_leaves_what_ran_unknown_and_the_session_waits() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let turns = json!([
        { "calls": [command("touch begun; sleep 300")] },
        { "expect": [{ "call": 0, "outcome": "unknown", "contains": "no-effect" }], "calls": [command("true")] },
        { "expect": [{ "call": 0, "outcome": "completed" }] },
    ]);
    let id = create(&pair, &turns);
    grant(&pair, &question(&pair));
    eventually("it runs", LONG, || pair.workspace.join("begun").exists().then_some(()));
    pair.executors()[0].kill();
    let session = until(&pair, &id, "waiting:reconcile");
    let operation = text(&session["turns"][0]["calls"][0], "operation");
    let word = json!({ "operation": operation, "verdict": "no-effect" });
    assert_eq!(tell(&pair, &id, "reconcile", &word).status, 200);
    let nodding = Nodding::to(&pair);
    until(&pair, &id, "ended:completed");
    drop(nodding);
    pair.assert_sound();
}

#[test]
fn a_person_takes_back_what_an_agent_changed_one_edit_after_the_other() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let file = pair.workspace.join("a.txt");
    pair.host.write(&file, "0\n");
    let turns = json!([
        { "calls": [edit(json!([{ "path": "a.txt", "old": "0", "new": "1" }]))] },
        { "calls": [edit(json!([{ "path": "a.txt", "old": "1", "new": "2" }]))] },
    ]);
    let nodding = Nodding::to(&pair);
    let id = create(&pair, &turns);
    let session = until(&pair, &id, "ended:completed");
    drop(nodding);
    let content = || fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(content(), "2\n");
    for left in ["1\n", "0\n"] {
        let reply = tell(&pair, &id, "undo", &json!({ "grant": true }));
        assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("completed")), "{}", reply.json());
        assert_eq!(content(), left);
    }
    assert_eq!(tell(&pair, &id, "undo", &json!({ "grant": true })).error_id().as_deref(), Some("nothing-to-undo"));
    // An undo can be taken back by its name.
    let last = events_of(&pair, &id).into_iter().rfind(|event| event["kind"] == "operation.proposed");
    let undo = text(&last.expect("there was one")["data"], "operation");
    let reply = tell(&pair, &id, "undo", &json!({ "operation": undo, "grant": true }));
    assert_eq!((reply.status, content().as_str()), (200, "1\n"), "{}", reply.json());
    assert_eq!(session["turns"][0]["calls"][0]["answer"]["outcome"], "completed");
    pair.assert_sound();
}

#[test]
fn what_is_no_session_is_refused_with_its_reason() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let good = wanted(&pair, &json!([{ "text": "hello" }]));
    let refused = |change: &dyn Fn(&mut Value), id: &str| {
        let mut body = good.clone();
        change(&mut body);
        let reply = pair.http("POST", "/v1/sessions", Some(&body));
        assert_eq!(reply.error_id().as_deref(), Some(id), "{}", reply.json());
    };
    refused(&|body| body["in_place"] = json!(false), "in-place-only");
    refused(&|body| body["provider"] = json!("other"), "unknown-provider");
    refused(&|body| body["script"] = json!({ "turns": [] }), "bad-script");
    refused(&|body| body["script"] = json!({ "turns": [{ "texts": "x" }] }), "bad-script");
    refused(&|body| drop(body.as_object_mut().map(|body| body.remove("script"))), "bad-request");
    refused(&|body| body["task"] = json!(""), "bad-request");
    refused(&|body| body["task"] = json!("x".repeat(65_537)), "bad-request");
    refused(&|body| body["workspace"] = json!("ws_00000000000000000000000000000000"), "not-found");
    refused(&|body| body["grant"] = json!(true), "bad-request");
    let nothing = "/v1/sessions/ses_00000000000000000000000000000000";
    assert_eq!(pair.http("GET", nothing, None).status, 404);
    for (verb, body) in [("message", json!({ "text": "x" })), ("cancel", json!({})), ("undo", json!({}))] {
        assert_eq!(pair.http("POST", &format!("{nothing}/{verb}"), Some(&body)).status, 404, "{verb}");
    }
    let mut twice = good.clone();
    twice["request_id"] = json!("same");
    let [first, second] = [0, 1].map(|_| pair.http("POST", "/v1/sessions", Some(&twice)).json());
    assert_eq!(first["session"], second["session"]);
    twice["task"] = json!("another");
    assert_eq!(pair.http("POST", "/v1/sessions", Some(&twice)).error_id().as_deref(), Some("request-id-reused"));
    pair.assert_sound();
}
