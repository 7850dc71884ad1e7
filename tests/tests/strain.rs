//! Clients that do not read, large records, a stop in the middle: none of it holds up anybody else.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use salaam_tests::{Host, Pair, eventually, http, limit, pair::text, ran::LIMIT};
use serde_json::{Value, json};

/// A proposer that sends its request and then does nothing.
fn deaf(pair: &Pair, command: &str) -> (UnixStream, String) {
    let known: Vec<_> = operations(pair).iter().map(|one| text(one, "operation")).collect();
    let body = json!({ "workspace": pair.workspace_id(), "command": command, "grant": true, "follow": true });
    let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
    stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
    let operation = eventually("it runs", Duration::from_secs(10), || {
        let all = operations(pair);
        let new = all.iter().find(|one| !known.contains(&text(one, "operation")))?;
        (new["state"] == "dispatched").then(|| text(new, "operation"))
    });
    (stream, operation)
}

fn operations(pair: &Pair) -> Vec<Value> {
    pair.http("GET", "/v1/operations", None).json()["operations"].as_array().expect("a list").clone()
}

#[test]
fn a_proposer_that_does_not_read_holds_up_neither_others_nor_its_cancel_nor_the_stop() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let flood = "head -c 300000000 /dev/zero";
    let (_silent, operation) = deaf(&pair, flood);
    // Until everything between the command and this test is full.
    std::thread::sleep(Duration::from_secs(1));
    pair.run(&["true"]).ok();
    let began = Instant::now();
    pair.salaam(&["operation", "cancel", &operation]).ok();
    assert!(began.elapsed() < Duration::from_secs(8), "the cancel took {:?}", began.elapsed());
    assert_eq!(pair.operation(&operation)["state"], "cancelled");
    let (_silent, operation) = deaf(&pair, flood);
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    pair.stop().ok();
    assert!(began.elapsed() < Duration::from_secs(15), "the stop took {:?}", began.elapsed());
    pair.start().ok();
    assert_eq!(pair.operation(&operation)["state"], "cancelled", "with its record, not settled by the next start");
    pair.assert_sound();
    pair.stop().ok();
}

#[test]
fn a_command_that_takes_its_time_to_end_is_told_to_its_proposer_although_the_service_stops() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let (mut stream, _) = deaf(&pair, "trap '' TERM; while :; do sleep 0.1; done");
    std::thread::sleep(Duration::from_millis(500));
    pair.stop().ok();
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("the answer is whole");
    assert!(told.contains("\"result\"") && told.contains("\"cancelled\""), "{told}");
}

#[test]
fn events_of_many_megabytes_are_all_served_in_order() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    for _ in 0..6 {
        // About 2 MiB of journal each, so that a read ends at its bytes and not at its count.
        let argv: Vec<_> = std::iter::once("true".to_owned()).chain((0..9).map(|_| "x".repeat(120_000))).collect();
        let reply = pair.post(json!({ "argv": argv, "grant": true }));
        assert_eq!(reply.json()["state"], "completed");
    }
    let numbers: Vec<u64> = pair.events().iter().map(|event| event["seq"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(pair.health()["journal"]["last_seq"].as_u64(), numbers.last().copied());
    pair.salaam(&["journal", "verify"]).ok();
    pair.stop().ok();
}

#[test]
fn a_drain_takes_no_new_operation_and_lets_the_running_one_end() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let (mut stream, _) = deaf(&pair, "sleep 3; echo whole");
    let stopping = std::thread::scope(|scope| {
        let stop = scope.spawn(|| pair.salaam(&["service", "stop", "--drain", "20"]));
        eventually("it drains", Duration::from_secs(3), || {
            let reply = pair.post(json!({ "argv": ["true"], "grant": true }));
            (reply.error_id().as_deref() == Some("draining")).then_some(())
        });
        stop.join().expect("it returns")
    });
    stopping.ok();
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("the answer is whole");
    assert!(told.contains("\"completed\""), "{told}");
}

#[test]
fn a_decision_sent_again_is_answered_as_the_first_and_another_one_is_refused() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({ "argv": ["true"], "detach": true }));
    let path = format!("/v1/approvals/{}/grant", asked.approval);
    let grant = json!({ "binding": asked.binding, "request_id": "one" });
    for _ in 0..3 {
        let reply = pair.http("POST", &path, Some(&grant));
        assert_eq!(reply.error_id(), None);
        assert_eq!(text(&reply.json(), "operation"), asked.operation);
    }
    let other =
        pair.http("POST", &format!("/v1/approvals/{}/deny", asked.approval), Some(&json!({ "request_id": "one" })));
    assert_eq!(other.error_id().as_deref(), Some("request-id-reused"));
    assert_eq!(pair.final_state(&asked.operation), "completed");
    assert_eq!(pair.events_of("approval.granted", &asked.operation).len(), 1);
    pair.stop().ok();
}

#[test]
fn full_access_is_refused_when_it_is_proposed() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let refused = pair.post(json!({ "argv": ["true"], "profile": "full-access", "grant": true })).json();
    assert_eq!((&refused["state"], &refused["error"]["id"]), (&json!("refused"), &json!("unsandboxed-refused")));
    assert_eq!(pair.events_of("operation.dispatched", &text(&refused, "operation")), Vec::<Value>::new());
    pair.stop().ok();
}
