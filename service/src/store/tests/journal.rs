//! Events: numbered, chained, durable in groups, read back as they were hashed.

use salaam_core::{
    canon,
    event::{Event, Head, Kind},
    operation::State,
    time::Timestamp,
};
use serde_json::json;

use super::{
    super::{Change, CommitError, EventQuery, MAX_EVENT_BYTES, Transaction, offline},
    Directory, all_events, changes, event, note, notes, operation_id, operation_row, session_row, step, verified,
};

#[tokio::test]
async fn events_have_no_gaps_and_form_a_chain_across_restarts() {
    let directory = Directory::new();
    for round in 0..3 {
        let store = directory.open();
        assert_eq!(store.head().seq, round * 2);
        let head = store.commit(Transaction { changes: Vec::new(), events: vec![note(1), note(2)] }).await.unwrap();
        assert_eq!((head, head.seq), (store.head(), round * 2 + 2));
        store.close().await;
    }
    let store = directory.open();
    let mut head = Head::START;
    for (seq, line) in all_events(&store).await {
        (head, _) = head.follow(&line).unwrap();
        assert_eq!(head.seq, seq);
    }
    assert_eq!(head, store.head());
    store.close().await;
    assert_eq!(verified(&directory.0), 6);
}

#[tokio::test]
async fn an_empty_journal_and_an_empty_transaction_are_whole() {
    let directory = Directory::new();
    let store = directory.open();
    assert_eq!(store.commit(Transaction::default()).await.unwrap(), Head::START);
    assert_eq!(store.last_executor_epoch().await.unwrap(), 0);
    assert!(all_events(&store).await.is_empty());
    store.close().await;
    assert_eq!(verified(&directory.0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_committers_at_once_each_get_their_own_place() {
    let directory = Directory::new();
    let store = directory.open();
    let tasks: Vec<_> = (0..400)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { (n, store.commit(notes(n)).await.unwrap().seq) })
        })
        .collect();
    let mut places = Vec::new();
    for task in tasks {
        let (n, seq) = task.await.unwrap();
        let line = &store.events(EventQuery { after: seq - 1, limit: 1, ..EventQuery::default() }).await.unwrap()[0].1;
        assert_eq!(serde_json::from_slice::<Event>(line).unwrap().data["n"], n);
        places.push(seq);
    }
    places.sort_unstable();
    assert_eq!(places, (1..=400).collect::<Vec<_>>());
    store.close().await;
    assert_eq!(verified(&directory.0), 400);
}

#[tokio::test]
async fn a_commit_whose_caller_has_gone_is_carried_out() {
    let directory = Directory::new();
    let store = directory.open();
    for n in 0..50 {
        let commit = store.commit(notes(n));
        // Polled once it is queued; dropped before the answer can be there.
        tokio::select! { biased; _ = commit => {}, () = std::future::ready(()) => {} }
    }
    let head = store.commit(notes(50)).await.unwrap();
    assert_eq!(head.seq, 51);
    store.close().await;
    assert_eq!(verified(&directory.0), 51);
}

#[tokio::test]
async fn close_carries_out_what_is_queued_and_refuses_the_rest() {
    let directory = Directory::new();
    let store = directory.open();
    let queued: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(notes(n)).await })
        })
        .collect();
    tokio::task::yield_now().await;
    store.close().await;
    let durable = {
        let mut durable = 0;
        for task in queued {
            match task.await.unwrap() {
                Ok(_) => durable += 1,
                Err(CommitError::NotDurable(text)) => assert!(text.contains("closed"), "{text}"),
                Err(CommitError::Conflict { .. }) => panic!("no change was asked for"),
            }
        }
        durable
    };
    assert!(matches!(store.commit(notes(0)).await, Err(CommitError::NotDurable(_))));
    assert!(store.events(EventQuery::default()).await.is_err());
    store.close().await;
    assert!(!directory.0.join("salaam.db-wal").exists());
    assert_eq!(verified(&directory.0), durable);
}

#[tokio::test]
async fn a_conflict_takes_back_only_its_own_transaction() {
    let directory = Directory::new();
    let store = directory.open();
    let insert = |n| Change::InsertOperation(Box::new(operation_row(n, State::Pending)));
    store.commit(changes(vec![Change::PutSession(session_row()), insert(1)])).await.unwrap();
    let conflicting =
        Transaction { changes: vec![insert(2), step(1, State::Granted, State::Dispatched)], events: vec![note(666)] };
    // All three in the queue before the thread looks again, so that they share one COMMIT more often than not.
    let (first, second, third) =
        tokio::join!(store.commit(notes(1)), store.commit(conflicting), store.commit(notes(2)));
    assert_eq!(first.unwrap().seq, 1);
    assert!(matches!(second, Err(CommitError::Conflict { actual: Some(State::Pending) })));
    assert_eq!(third.unwrap().seq, 2);
    assert_eq!(store.operation(operation_id(2)).await.unwrap(), None);
    store.close().await;
    assert_eq!(verified(&directory.0), 2);
}

#[tokio::test]
async fn an_event_that_is_too_large_or_too_deep_is_refused_alone() {
    let directory = Directory::new();
    let store = directory.open();
    let large = event(Kind::CancelRequested, json!({"text": "x".repeat(MAX_EVENT_BYTES)}));
    let mut nested = json!(0);
    for _ in 0..31 {
        nested = json!([nested]);
    }
    let deep = event(Kind::CancelRequested, json!({ "deep": nested }));
    for draft in [large, deep] {
        let refused = store.commit(Transaction { changes: Vec::new(), events: vec![note(1), draft] }).await;
        let Err(CommitError::NotDurable(text)) = refused else { panic!("it was accepted") };
        assert!(text.contains("no place in the journal"), "{text}");
    }
    let largest = "x".repeat(MAX_EVENT_BYTES - 512);
    store
        .commit(Transaction {
            changes: Vec::new(),
            events: vec![event(Kind::CancelRequested, json!({ "text": largest }))],
        })
        .await
        .unwrap();
    assert_eq!(store.commit(notes(1)).await.unwrap().seq, 2);
    store.close().await;
    assert_eq!(verified(&directory.0), 2);
}

#[tokio::test]
async fn a_clock_that_goes_back_does_not_take_the_journal_along() {
    let directory = Directory::new();
    let store = directory.open();
    store.commit(notes(1)).await.unwrap();
    store.close().await;
    // The journal of a host whose clock was in the year 2200 and has since been set right.
    let future = Timestamp::from_micros(7_258_118_400_000_000);
    let sealed = Event::seal(note(1), Head::START, future).unwrap();
    let line = String::from_utf8(sealed.to_line().unwrap()).unwrap();
    directory.tamper(&format!("UPDATE events SET line = '{line}'; UPDATE head SET hash = '{}'", sealed.hash));
    let store = directory.open();
    store.commit(notes(2)).await.unwrap();
    let last = all_events(&store).await.pop().unwrap().1;
    assert_eq!(serde_json::from_slice::<Event>(&last).unwrap().time, future);
    store.close().await;
    assert_eq!(verified(&directory.0), 2);
}

#[tokio::test]
async fn conditions_of_a_query_hold_together() {
    let directory = Directory::new();
    let store = directory.open();
    let of = |n: u64| json!({"operation": operation_id(n)});
    let session = session_row().id;
    let mut events = vec![event(Kind::OperationProposed, of(1)), event(Kind::OperationProposed, of(2))];
    events.push(event(Kind::OperationRefused, of(1)));
    events
        .push(salaam_core::event::Draft::new(Kind::SessionEnded, Some(session), json!({"outcome": "failed"})).unwrap());
    // A claim that is no operation is not indexed as one.
    events.push(event(Kind::CancelRequested, json!({"operation": "op_1"})));
    store.commit(Transaction { changes: Vec::new(), events }).await.unwrap();
    let seqs = async |query: EventQuery| -> Vec<u64> {
        store.events(query).await.unwrap().into_iter().map(|(seq, _)| seq).collect()
    };
    let one = Some(operation_id(1));
    assert_eq!(seqs(EventQuery::default()).await, [1, 2, 3, 4, 5]);
    assert_eq!(seqs(EventQuery { limit: 2, after: 1, ..EventQuery::default() }).await, [2, 3]);
    assert_eq!(seqs(EventQuery { operation: one, ..EventQuery::default() }).await, [1, 3]);
    let kind = Some("operation.proposed".to_owned());
    assert_eq!(seqs(EventQuery { kind: kind.clone(), ..EventQuery::default() }).await, [1, 2]);
    assert_eq!(seqs(EventQuery { kind: kind.clone(), operation: one, ..EventQuery::default() }).await, [1]);
    assert_eq!(seqs(EventQuery { kind, after: 1, operation: one, ..EventQuery::default() }).await, [0_u64; 0]);
    assert_eq!(seqs(EventQuery { session: Some(session), ..EventQuery::default() }).await, [4]);
    assert_eq!(seqs(EventQuery { after: u64::MAX, ..EventQuery::default() }).await, [0_u64; 0]);
    let injected = Some("' OR 1 --".to_owned());
    assert_eq!(seqs(EventQuery { kind: injected, ..EventQuery::default() }).await, [0_u64; 0]);
    store.close().await;
}

#[tokio::test]
async fn followers_are_told_of_what_they_can_read() {
    let directory = Directory::new();
    let store = directory.open();
    let mut watch = store.watch();
    assert_eq!(*watch.borrow_and_update(), 0);
    let writer = store.clone();
    let task = tokio::spawn(async move {
        for n in 0..20 {
            writer.commit(notes(n)).await.unwrap();
        }
    });
    let mut seen = 0;
    while seen < 20 {
        watch.changed().await.unwrap();
        let told = *watch.borrow_and_update();
        seen = all_events(&store).await.last().unwrap().0;
        assert!(seen >= told);
    }
    task.await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn one_read_is_bounded_in_bytes_and_still_goes_on() {
    let directory = Directory::new();
    let store = directory.open();
    for n in 0..5 {
        let draft = event(Kind::CancelRequested, json!({"n": n, "text": "x".repeat(3 << 20)}));
        store.commit(Transaction { changes: Vec::new(), events: vec![draft] }).await.unwrap();
    }
    assert_eq!(store.events(EventQuery::default()).await.unwrap().len(), 2);
    assert_eq!(all_events(&store).await.len(), 5);
    store.close().await;
}

#[tokio::test]
async fn the_highest_executor_epoch_survives() {
    let directory = Directory::new();
    let store = directory.open();
    for epoch in [1, 7, 3] {
        let draft = event(Kind::ExecutorStarted, json!({ "epoch": epoch }));
        store.commit(Transaction { changes: Vec::new(), events: vec![draft] }).await.unwrap();
    }
    assert_eq!(store.last_executor_epoch().await.unwrap(), 7);
    store.close().await;
}

#[tokio::test]
async fn an_export_verifies_with_the_independent_script() {
    let directory = Directory::new();
    let store = directory.open();
    let awkward = json!({"inode": canon::wide(u64::MAX), "path": canon::bytes(b"/caf\xe9"), "text": "\u{0}\u{1b}\u{7f}\u{2028}\u{1f600}\"\\"});
    let events = vec![event(Kind::WorkspaceAdded, awkward), note(1), note(2)];
    let head = store.commit(Transaction { changes: Vec::new(), events }).await.unwrap();
    store.close().await;
    let path = directory.0.join("export");
    offline::export(&directory.0, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/verify_export.py");
    let output = std::process::Command::new("python3").arg(script).arg(&path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("3 events") && said.contains(&head.hash.to_string()), "{said}");
}
