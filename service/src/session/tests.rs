//! Sessions from their first worker to their end, in a world that loses workers and services at any moment.

mod world;

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use salaam_core::{digest::Digest, tool::Answer, worker::ToWorker};
use serde_json::json;
use world::{House, World, awaiting, person, turn};

use crate::{session::answer, store::ModelCall};

const LONG: Duration = Duration::from_secs(20);

fn twice(world: &World) -> Vec<ModelCall> {
    world.ran.lock().unwrap().iter().filter(|(_, times)| **times > 1).map(|(call, _)| *call).collect()
}

#[tokio::test]
async fn a_session_takes_its_turns_and_ends() {
    let world = World::new(vec![turn(0, &["a", "b"]), turn(1, &[]), turn(2, &["deny", "refuse"])]);
    let house = House::open(&world).await;
    house.begin().await;
    let document = house.until("ended:completed").await;
    assert_eq!((&document["worker_epoch"], &document["turns_taken"]), (&json!(1), &json!(3)));
    assert_eq!(document["reason"], "the plan is done");
    assert_eq!(house.outcomes().await, [vec!["completed", "completed"], vec![], vec!["denied", "refused"]]);
    let turns = house.turns().await;
    let answers: Vec<Answer> = turns
        .iter()
        .flat_map(|turn| &turn.calls)
        .map(|call| answer::parse(call.answer.as_deref().unwrap()).unwrap())
        .collect();
    assert_eq!((answers[0].exit_code, answers[0].operation), (Some(7), turns[0].calls[0].operation));
    assert_eq!(answers[2].comment.as_deref(), Some("the operator says: not today"));
    assert!(answers[3].comment.as_deref().unwrap().starts_with("no-match: the text is not in the file"));
    assert_eq!((answers[3].operation, turns[2].calls[1].operation), (None, None));
    assert_eq!(
        house.kinds().await,
        [
            "worker.started",
            "provider.requested",
            "provider.responded",
            "provider.requested",
            "provider.responded",
            "provider.requested",
            "provider.responded",
            "provider.requested",
            "session.ended"
        ]
    );
    assert!(house.store.brief(world.id).await.unwrap().unwrap().script.is_none());
    house.close().await;
}

#[tokio::test]
async fn a_message_is_waited_for_and_told() {
    let world = World::new(vec![awaiting(0, &["a"]), turn(1, &[])]);
    let house = House::open(&world).await;
    house.begin().await;
    house.until("waiting:message").await;
    house.sessions.message(world.id, "go on".into(), &person(), None).await.unwrap().unwrap();
    house.until("ended:completed").await;
    assert!(house.sessions.message(world.id, "more".into(), &person(), None).await.is_none());
    let told = world.told.lock().unwrap().clone();
    let messages = told[0].iter().filter(|told| **told == ToWorker::Message { text: "go on".into() }).count();
    assert_eq!((told.len(), messages), (1, 1));
    house.close().await;
}

#[tokio::test]
async fn a_message_that_is_sent_twice_at_once_is_taken_once_and_costs_no_worker() {
    let world = World::new(vec![awaiting(0, &["a"]), awaiting(1, &[]), turn(2, &[])]);
    let house = House::open(&world).await;
    house.begin().await;
    house.until("waiting:message").await;
    let who = person();
    let say = |text: &str, request: &str| {
        let request = Some((request.to_owned(), Digest::of(text.as_bytes())));
        house.sessions.message(world.id, text.to_owned(), &who, request)
    };
    say("go on", "once").await.unwrap().unwrap();
    assert_eq!(say("go on", "once").await.unwrap().unwrap_err().id, "conflict");
    say("further", "again").await.unwrap().unwrap();
    assert_eq!(house.until("ended:completed").await["worker_epoch"], 1);
    house.close().await;
}

#[tokio::test]
async fn what_is_unknown_waits_for_a_word_and_the_agent_is_told_it() {
    let world = World::new(vec![turn(0, &["unknown", "b"])]);
    let house = House::open(&world).await;
    house.begin().await;
    house.until("waiting:reconcile").await;
    assert_eq!(house.outcomes().await, [["open", "open"]]);
    let operation = house.turns().await[0].calls[0].operation.unwrap();
    let word = json!({ "verdict": "took-effect", "comment": "the file is there", "by": person().to_value() });
    house.sessions.reconcile(world.id, operation, word).await.unwrap().unwrap();
    house.until("ended:completed").await;
    assert_eq!(house.outcomes().await, [["unknown", "completed"]]);
    let told = answer::parse(house.turns().await[0].calls[0].answer.as_deref().unwrap()).unwrap();
    assert!(told.comment.unwrap().ends_with("an operator looked: took-effect; the file is there"));
    assert!(house.kinds().await.contains(&"operation.reconciled".to_owned()));
    house.close().await;
}

#[tokio::test]
async fn a_cancel_ends_what_is_open_and_answers_every_call() {
    let world = World::new(vec![turn(0, &["a", "hang", "c"])]);
    let house = House::open(&world).await;
    house.begin().await;
    house.until_asked(ModelCall { turn: 0, call: 1 }).await;
    house.sessions.cancel(world.id, &person(), LONG).await.unwrap().unwrap();
    let document = house.until("ended:cancelled").await;
    assert_eq!(document["reason"], "cancelled by ada");
    assert_eq!(house.outcomes().await, [["completed", "cancelled", "cancelled"]]);
    assert_eq!(house.sessions.live(), 0);
    house.close().await;
}

#[tokio::test]
async fn a_lost_worker_voids_its_question_and_the_next_one_is_told_everything() {
    let world = World::new(vec![turn(0, &["a"]), turn(1, &["hang", "b"]), turn(2, &[])]);
    let house = House::open(&world).await;
    house.begin().await;
    house.until_asked(ModelCall { turn: 1, call: 0 }).await;
    world.kill.notify_one();
    let document = house.until("ended:completed").await;
    assert_eq!(document["worker_epoch"], 2);
    assert_eq!(house.outcomes().await, [vec!["completed"], vec!["stale", "completed"], vec![]]);
    let told = world.told.lock().unwrap().clone();
    let ToWorker::Begin(begin) = &told[1][0] else { panic!("{told:?}") };
    assert_eq!((begin.epoch, begin.past), (2, 2));
    let kinds = house.kinds().await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "worker.lost").count(), 1);
    assert!(twice(&world).is_empty());
    house.close().await;
}

#[tokio::test]
async fn a_worker_that_does_not_start_is_followed_by_another() {
    let world = World::new(vec![turn(0, &["a"])]);
    world.stillborn.store(2, Ordering::Relaxed);
    let house = House::open(&world).await;
    house.begin().await;
    let document = house.until("ended:completed").await;
    assert_eq!(document["worker_epoch"], 3, "each had a number of its own");
    let kinds = house.kinds().await;
    assert_eq!(kinds[..3], ["worker.lost", "worker.lost", "worker.started"]);
    house.close().await;
}

#[tokio::test]
async fn a_worker_that_speaks_out_of_turn_is_lost_and_nothing_of_it_is_kept() {
    // The plan has turn 5 where turn 1 is due; the robot says it all the same.
    let world = World::new(vec![turn(0, &["a"]), turn(5, &["b"])]);
    let house = House::open(&world).await;
    house.begin().await;
    let mut seen = house.store.watch();
    while !house.kinds().await.contains(&"worker.lost".to_owned()) {
        tokio::time::timeout(LONG, seen.changed()).await.unwrap().unwrap();
    }
    assert_eq!(house.turns().await.len(), 1);
    house.sessions.cancel(world.id, &person(), LONG).await.unwrap().unwrap();
    house.close().await;
}

#[tokio::test]
async fn a_stop_leaves_the_session_where_it_is_and_the_next_start_goes_on() {
    let world = World::new(vec![turn(0, &["a"]), awaiting(1, &[]), turn(2, &["c"])]);
    let house = House::open(&world).await;
    house.begin().await;
    let before = house.until("waiting:message").await;
    house.close().await;
    let house = House::open(&world).await;
    assert_eq!(house.sessions.live(), 1);
    assert_eq!(house.document().await, before);
    house.sessions.message(world.id, "go on".into(), &person(), None).await.unwrap().unwrap();
    let document = house.until("ended:completed").await;
    assert_eq!(document["worker_epoch"], 2);
    assert!(twice(&world).is_empty());
    let told = world.told.lock().unwrap().clone();
    let ToWorker::Past(last) = told[1].last().unwrap().clone() else { return assert!(!told[1].is_empty()) };
    assert_eq!(last.message.as_deref(), Some("go on"));
    house.close().await;
}

/// Services and workers die at random moments until the session is over, and in one life out of three a person ends
/// it. `seed` decides the moments.
fn survive(seed: u64) {
    let mut state = seed | 1;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let plan = vec![
        turn(0, &["a", "b", "c"]),
        turn(1, &[]),
        awaiting(2, &["d"]),
        turn(3, &["unknown", "e"]),
        turn(4, &["refuse", "f", "deny", "g"]),
        awaiting(5, &[]),
        turn(6, &["h"]),
    ];
    let world = World::new(plan);
    let cancelled_in = if draw(3) == 0 { 1 + draw(8) } else { u64::MAX };
    let mut starts = 0;
    loop {
        starts += 1;
        assert!(starts < 400, "seed {seed}: the session does not come to its end");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fate = Duration::from_micros(300 + draw(if starts > 40 { 400_000 } else { 12_000 }));
        let kill = Duration::from_micros(draw(9_000));
        let over = runtime.block_on(async {
            let lived = async {
                let house = House::open(&world).await;
                if house.store.session(world.id).await.unwrap().is_none() {
                    house.begin().await;
                }
                let mut seen = house.store.watch();
                if starts >= cancelled_in {
                    // It may be over, or be ending since the life before.
                    let _ = house.sessions.cancel(world.id, &person(), Duration::from_millis(2)).await;
                }
                loop {
                    let document = house.document().await;
                    match document["waiting_for"].as_str() {
                        Some("message") => {
                            let _ = house.sessions.message(world.id, "go on".into(), &person(), None).await;
                        }
                        Some("reconcile") => {
                            let turns = house.turns().await;
                            let open = turns.iter().flat_map(|turn| &turn.calls).find(|call| call.answer.is_none());
                            if let Some(operation) = open.and_then(|call| call.operation) {
                                let word = json!({ "verdict": "took-effect", "by": person().to_value() });
                                let _ = house.sessions.reconcile(world.id, operation, word).await;
                            }
                        }
                        Some(_) | None => {}
                    }
                    if document["state"] == "ended" {
                        break house.close().await;
                    }
                    // What was said may have been said to a session that was on its way elsewhere.
                    let _ = tokio::time::timeout(Duration::from_millis(20), seen.changed()).await;
                }
            };
            let killed = async {
                tokio::time::sleep(kill).await;
                world.kill.notify_one();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = lived => true,
                () = killed => false,
                () = tokio::time::sleep(fate) => false,
            }
        });
        // As a kill: whatever was under way is gone, what was committed stays.
        drop(runtime);
        if over {
            break;
        }
    }
    assert_eq!(twice(&world), [], "seed {seed}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let house = House::open(&world).await;
        let outcome = house.document().await["outcome"].clone();
        let fits = outcome == "completed" || (outcome == "cancelled" && starts >= cancelled_in);
        assert!(fits, "seed {seed}: {outcome} after {starts} starts");
        let outcomes = house.outcomes().await;
        assert!(outcomes.iter().flatten().all(|outcome| outcome != "open"), "seed {seed}: {outcomes:?}");
        // Whatever is said to have been completed was, once; what took effect is not said to have been refused.
        for (number, turn) in house.turns().await.iter().enumerate() {
            for (index, call) in turn.calls.iter().enumerate() {
                let place = ModelCall { turn: number as u64, call: index as u64 };
                let ran = world.ran.lock().unwrap().get(&place).copied().unwrap_or(0);
                let outcome = answer::parse(call.answer.as_deref().unwrap()).unwrap().outcome.as_str();
                let fits = match ran {
                    1 => matches!(outcome, "completed" | "unknown"),
                    _ => matches!(outcome, "denied" | "refused" | "cancelled" | "stale" | "unknown"),
                };
                assert!(fits, "seed {seed}: {place:?} ran {ran} times and is {outcome}");
            }
        }
        house.close().await;
    });
    assert!(Arc::strong_count(&world) >= 1);
    assert!(crate::store::offline::verify(&world.directory).is_ok());
}

#[test]
fn whatever_dies_whenever_nothing_runs_twice_and_every_call_is_answered() {
    for seed in 1..=6 {
        survive(seed * 0x9e37_79b9);
    }
}
