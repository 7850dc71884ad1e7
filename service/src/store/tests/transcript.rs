//! What was said in a session: written once, in order, read back as it was.

use super::{
    super::{BriefRow, CallRow, CommitError, Mail, MessageRow, ModelCall, TurnQuery, TurnRow},
    *,
};

fn id() -> SessionId {
    session_row().id
}

fn turn(number: u64, calls: u64) -> TurnRow {
    let calls: Vec<_> = (0..calls)
        .map(|n| CallRow {
            tool: "salaam_local".into(),
            arguments: format!("{{\"n\":{n}}}"),
            operation: None,
            answer: None,
        })
        .collect();
    TurnRow {
        session: id(),
        number,
        epoch: 3,
        text: format!("turn {number}: \u{1f600}"),
        awaits: calls.is_empty(),
        calls,
    }
}

async fn with_session(directory: &Directory) -> Store {
    let store = directory.open();
    store.commit(changes(vec![Change::PutSession(session_row())])).await.unwrap();
    store
}

async fn conflicts(store: &Store, change: Change) {
    let outcome = store.commit(changes(vec![change])).await;
    assert!(matches!(outcome, Err(CommitError::Conflict { .. })), "{outcome:?}");
}

fn answer(turn: u64, call: u64) -> Change {
    Change::AnswerCall { session: id(), call: ModelCall { turn, call }, answer: "{\"outcome\":\"completed\"}".into() }
}

async fn all(store: &Store) -> Vec<TurnRow> {
    store.turns(TurnQuery { session: id(), from: 0, bytes: 1 << 20 }).await.unwrap()
}

#[tokio::test]
async fn turns_come_back_in_order_with_their_calls_operations_and_answers() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let proposed = OperationRow { call: Some(ModelCall { turn: 0, call: 1 }), ..operation_row(1, State::Pending) };
    store
        .commit(changes(vec![
            Change::InsertTurn(turn(0, 3)),
            Change::InsertTurn(turn(1, 0)),
            Change::InsertOperation(Box::new(proposed)),
            answer(0, 0),
        ]))
        .await
        .unwrap();
    let mut first = turn(0, 3);
    first.calls[0].answer = Some("{\"outcome\":\"completed\"}".into());
    first.calls[1].operation = Some(operation_id(1));
    assert_eq!(all(&store).await, [first.clone(), turn(1, 0)]);
    assert_eq!(store.last_turn(id()).await.unwrap(), Some(turn(1, 0)));
    for (call, row) in (0..).zip(&first.calls) {
        assert_eq!(store.call(id(), ModelCall { turn: 0, call }).await.unwrap().as_ref(), Some(row));
    }
    assert_eq!(store.call(id(), ModelCall { turn: 0, call: 3 }).await.unwrap(), None);
    let one = store.turns(TurnQuery { session: id(), from: 0, bytes: 1 }).await.unwrap();
    assert_eq!(one.len(), 1, "one comes at the least, and no more than fit");
    store.close().await;
}

#[tokio::test]
async fn a_call_never_has_a_second_operation() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let of = |n, call: Option<u64>| {
        let call = call.map(|call| ModelCall { turn: 0, call });
        Change::InsertOperation(Box::new(OperationRow { call, ..operation_row(n, State::Pending) }))
    };
    store.commit(changes(vec![of(1, Some(0))])).await.unwrap();
    conflicts(&store, of(2, Some(0))).await;
    store.commit(changes(vec![of(3, Some(1)), of(4, None), of(5, None)])).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_turn_an_answer_and_a_message_are_written_once() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    conflicts(&store, Change::InsertTurn(turn(1, 0))).await;
    store.commit(changes(vec![Change::InsertTurn(turn(0, 1)), answer(0, 0)])).await.unwrap();
    conflicts(&store, Change::InsertTurn(turn(0, 1))).await;
    conflicts(&store, Change::InsertTurn(turn(2, 1))).await;
    conflicts(&store, answer(0, 0)).await;
    conflicts(&store, answer(0, 1)).await;
    let message = |number| MessageRow { session: id(), number, turn: None, text: "go on".into() };
    let tell = |number| Change::TellMessage { session: id(), number, turn: 0 };
    store.commit(changes(vec![Change::InsertMessage(message(1))])).await.unwrap();
    conflicts(&store, Change::InsertMessage(message(1))).await;
    store.commit(changes(vec![tell(1)])).await.unwrap();
    conflicts(&store, tell(1)).await;
    conflicts(&store, tell(2)).await;
    store.commit(changes(vec![Change::InsertMessage(message(2))])).await.unwrap();
    assert_eq!(store.mail(id()).await.unwrap(), Mail { all: 2, told: 1, last: Some(0) });
    assert_eq!(store.message_after(id(), 0).await.unwrap().as_deref(), Some("go on"));
    assert_eq!(store.message_after(id(), 1).await.unwrap(), None);
    let told = MessageRow { turn: Some(0), ..message(1) };
    assert_eq!(store.messages(id(), 0, 9).await.unwrap(), [told, message(2)]);
    assert_eq!(store.messages(id(), 2, 9).await.unwrap(), [message(2)]);
    store.close().await;
}

#[tokio::test]
async fn what_a_session_was_given_outlives_it_but_for_its_script() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let brief = BriefRow { session: id(), task: "mend it".into(), script: Some(vec![0, 0xff]) };
    store.commit(changes(vec![Change::PutBrief(brief.clone())])).await.unwrap();
    conflicts(&store, Change::PutBrief(brief.clone())).await;
    assert_eq!(store.brief(id()).await.unwrap(), Some(brief.clone()));
    store.commit(changes(vec![Change::RemoveScript(id())])).await.unwrap();
    assert_eq!(store.brief(id()).await.unwrap(), Some(BriefRow { script: None, ..brief }));
    assert_eq!(store.task(id()).await.unwrap().as_deref(), Some("mend it"));
    store.close().await;
}

#[tokio::test]
async fn a_transcript_is_measured_in_bytes() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    assert_eq!(store.transcript_bytes(id()).await.unwrap(), 0);
    let message = MessageRow { session: id(), number: 1, turn: None, text: "é".into() };
    store.commit(changes(vec![Change::InsertTurn(turn(0, 1)), Change::InsertMessage(message)])).await.unwrap();
    // `turn 0: ` and four bytes, a tool of 12 and `{"n":0}`, two bytes.
    assert_eq!(store.transcript_bytes(id()).await.unwrap(), 12 + 12 + 7 + 2);
    store.commit(changes(vec![answer(0, 0)])).await.unwrap();
    assert_eq!(store.transcript_bytes(id()).await.unwrap(), 33 + 23);
    store.close().await;
}

#[tokio::test]
async fn only_what_is_unknown_is_reconciled_and_only_once() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let rows = [(1, State::Unknown), (2, State::Completed), (3, State::Dispatched)];
    let insert = rows.map(|(n, state)| Change::InsertOperation(Box::new(operation_row(n, state))));
    store.commit(changes(insert.into())).await.unwrap();
    let word = |n| Change::Reconcile { id: operation_id(n), word: json!({"verdict": "took-effect"}) };
    for n in [2, 3, 4] {
        conflicts(&store, word(n)).await;
    }
    store.commit(changes(vec![word(1)])).await.unwrap();
    conflicts(&store, word(1)).await;
    store.close().await;
}

#[tokio::test]
async fn an_epoch_is_expected_of_a_session_that_lives() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let expect = |epoch| Change::ExpectEpoch { session: id(), epoch };
    let put = |state, epoch| {
        Change::PutSession(SessionRow { document: json!({"state": state, "worker_epoch": epoch}), ..session_row() })
    };
    conflicts(&store, expect(0)).await;
    store.commit(changes(vec![put("running", 2), expect(2)])).await.unwrap();
    conflicts(&store, expect(1)).await;
    conflicts(&store, expect(3)).await;
    store.commit(changes(vec![put("ended", 2)])).await.unwrap();
    conflicts(&store, expect(2)).await;
    store.close().await;
}

#[tokio::test]
async fn sessions_that_ask_and_sessions_that_live_are_found() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    assert_eq!(store.live_sessions().await.unwrap(), 1);
    assert!(store.asking_sessions().await.unwrap().is_empty());
    store.commit(changes(vec![Change::InsertOperation(Box::new(operation_row(1, State::Pending)))])).await.unwrap();
    assert_eq!(store.asking_sessions().await.unwrap().into_iter().collect::<Vec<_>>(), [id()]);
    let over = SessionRow { document: json!({"state": "ended"}), ..session_row() };
    store.commit(changes(vec![Change::PutSession(over)])).await.unwrap();
    assert_eq!(store.live_sessions().await.unwrap(), 0);
    let live = super::super::SessionQuery { live: true, ..Default::default() };
    assert!(store.sessions(live).await.unwrap().is_empty());
    store.close().await;
}
