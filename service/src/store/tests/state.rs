//! Rows: stored and read back as they were, changed only by steps that apply.

use salaam_core::{
    canon,
    digest::Digest,
    id::{ApprovalId, WorkspaceId},
    operation::State,
    time::Timestamp,
};
use serde_json::json;

use super::{
    super::{Change, CommitError, OperationQuery, SessionQuery, Store, WorkspaceRow},
    Directory, changes, number, operation_id, operation_row, session_row, step,
};

fn workspace_row(n: u64) -> WorkspaceRow {
    WorkspaceRow {
        id: WorkspaceId::new(n, number(n)),
        name: format!("w{n}"),
        path: format!("/srv/w{n}/caf\u{e9}").bytes().chain([0xff]).collect(),
        device: u64::MAX,
        inode: (1 << 63) + n,
        handle: "00ff".into(),
        added: Timestamp::from_micros(5),
    }
}

async fn with_session(directory: &Directory) -> Store {
    let store = directory.open();
    store.commit(changes(vec![Change::PutSession(session_row())])).await.unwrap();
    store
}

async fn conflict(store: &Store, change: Change) -> Option<State> {
    match store.commit(changes(vec![change])).await {
        Err(CommitError::Conflict { actual }) => actual,
        Err(CommitError::NotDurable(text)) => panic!("{text}"),
        Ok(_) => panic!("it was accepted"),
    }
}

#[tokio::test]
async fn rows_come_back_as_they_went_in() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let mut full = operation_row(2, State::Completed);
    full.decided_by = Some(json!({"uid": 0, "principal": "root"}));
    full.comment = Some("yes\u{2028}\0".into());
    full.result = Some(json!({"exit_code": -1, "n": 9_007_199_254_740_991_i64}));
    let bare = operation_row(1, State::Pending);
    let insert = |row: &_| Change::InsertOperation(Box::new(Clone::clone(row)));
    let workspace = workspace_row(1);
    store.commit(changes(vec![insert(&bare), insert(&full), Change::PutWorkspace(workspace.clone())])).await.unwrap();
    store.close().await;
    let store = directory.open();
    assert_eq!(store.operation(bare.id).await.unwrap().as_ref(), Some(&bare));
    assert_eq!(store.operation_of_approval(full.approval).await.unwrap().as_ref(), Some(&full));
    assert_eq!(store.operation(operation_id(9)).await.unwrap(), None);
    assert_eq!(store.operation_of_approval(ApprovalId::new(9, number(9))).await.unwrap(), None);
    assert_eq!(store.operations(OperationQuery::default()).await.unwrap(), [full.clone(), bare.clone()]);
    assert_eq!(store.workspaces().await.unwrap(), [workspace]);
    assert_eq!(store.sessions(SessionQuery::default()).await.unwrap(), [session_row()]);
    store.close().await;
}

/// The log holds what was written since it was last moved: here, all of it.
#[tokio::test]
async fn a_step_of_an_operation_with_megabytes_of_text_writes_a_few_pages() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let mut row = operation_row(1, State::Pending);
    row.display = "x".repeat(4 << 20);
    let log = || std::fs::metadata(directory.0.join("salaam.db-wal")).unwrap().len();
    let before = log();
    store.commit(changes(vec![Change::InsertOperation(Box::new(row.clone()))])).await.unwrap();
    let asked = log();
    assert!(asked - before > 4 << 20, "it is written once");
    store.commit(changes(vec![step(1, State::Pending, State::Granted)])).await.unwrap();
    store.commit(changes(vec![step(1, State::Granted, State::Dispatched)])).await.unwrap();
    assert!(log() - asked < 256 << 10, "{} bytes for two steps", log() - asked);
    assert_eq!(store.operation(row.id).await.unwrap().unwrap().display, row.display);
    store.close().await;
}

#[tokio::test]
async fn operations_are_listed_newest_first_by_state_and_session() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    for (n, state) in [(5, State::Pending), (4, State::Granted), (3, State::Pending), (2, State::Denied)] {
        store.commit(changes(vec![Change::InsertOperation(Box::new(operation_row(n, state)))])).await.unwrap();
    }
    let listed = async |states: &[State], limit| -> Vec<_> {
        let query =
            OperationQuery { states: states.to_vec(), session: Some(session_row().id), limit, ..Default::default() };
        store.operations(query).await.unwrap().into_iter().map(|row| row.id).collect()
    };
    assert_eq!(listed(&[], 0).await, [2, 3, 4, 5].map(operation_id));
    assert_eq!(listed(&[State::Pending, State::Granted], 2).await, [3, 4].map(operation_id));
    assert_eq!(listed(&[State::Unknown], 0).await, []);
    let other = OperationQuery { session: Some(salaam_core::id::SessionId::new(9, [9; 10])), ..Default::default() };
    assert_eq!(store.operations(other).await.unwrap(), []);
    store.close().await;
}

#[tokio::test]
async fn a_listing_of_long_operations_is_cut_short_and_what_is_open_is_counted_all_the_same() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let states = [State::Pending, State::Granted, State::Dispatched, State::Proposed, State::Denied];
    for (n, state) in (1..).zip(states) {
        let row = super::super::OperationRow { display: "x".repeat(10 << 20), ..operation_row(n, state) };
        store.commit(changes(vec![Change::InsertOperation(Box::new(row))])).await.unwrap();
    }
    let listed = store.operations(OperationQuery::default()).await.unwrap();
    assert_eq!(listed.iter().map(|row| row.id).collect::<Vec<_>>(), [5, 4, 3].map(operation_id));
    let open = store.open_operations().await.unwrap();
    assert_eq!((open.all, open.pending, open.granted), (4, 1, 2));
    let elsewhere = OperationQuery { workspace: Some(WorkspaceId::new(9, [9; 10])), ..Default::default() };
    assert_eq!(store.operations(elsewhere).await.unwrap(), []);
    store.close().await;
}

#[tokio::test]
async fn a_workspace_has_one_operator_session_whoever_comes_first() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let second = super::super::SessionRow { id: salaam_core::id::SessionId::new(2, [2; 10]), ..session_row() };
    assert_eq!(conflict(&store, Change::PutSession(second)).await, None);
    store.commit(changes(vec![Change::PutSession(session_row())])).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_grant_is_consumed_once_whoever_asks_at_the_same_time() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    store.commit(changes(vec![Change::InsertOperation(Box::new(operation_row(1, State::Granted)))])).await.unwrap();
    let attempts: Vec<_> = (0..32)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(changes(vec![step(1, State::Granted, State::Dispatched)])).await })
        })
        .collect();
    let mut taken = 0;
    for attempt in attempts {
        match attempt.await.unwrap() {
            Ok(_) => taken += 1,
            Err(CommitError::Conflict { actual }) => assert_eq!(actual, Some(State::Dispatched)),
            Err(CommitError::NotDurable(text)) => panic!("{text}"),
        }
    }
    assert_eq!(taken, 1);
    store.close().await;
}

#[tokio::test]
async fn a_step_keeps_what_it_does_not_name() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let row = operation_row(1, State::Pending);
    store.commit(changes(vec![Change::InsertOperation(Box::new(row.clone()))])).await.unwrap();
    let granted = Change::StepOperation {
        id: row.id,
        from: State::Pending,
        to: State::Granted,
        decided_by: Some(json!({"uid": 1000})),
        comment: Some("go".into()),
        result: None,
    };
    store.commit(changes(vec![granted, step(1, State::Granted, State::Dispatched)])).await.unwrap();
    let found = store.operation(row.id).await.unwrap().unwrap();
    let expected = super::super::OperationRow {
        state: State::Dispatched,
        decided_by: Some(json!({"uid": 1000})),
        comment: Some("go".into()),
        ..row
    };
    assert_eq!(found, expected);
    store.close().await;
}

#[tokio::test]
async fn every_step_that_the_table_does_not_have_is_refused() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    for (n, from) in (1..).zip(State::ALL) {
        store.commit(changes(vec![Change::InsertOperation(Box::new(operation_row(n, *from)))])).await.unwrap();
        for to in State::ALL.iter().filter(|to| from.step(**to).is_err()) {
            let refused = store.commit(changes(vec![step(n, *from, *to)])).await;
            assert!(matches!(refused, Err(CommitError::NotDurable(_))), "{from} became {to}");
        }
        assert_eq!(store.operation(operation_id(n)).await.unwrap().unwrap().state, *from);
    }
    store.close().await;
}

#[tokio::test]
async fn what_exists_or_is_missing_is_a_conflict() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let insert = |row| Change::InsertOperation(Box::new(row));
    let row = operation_row(1, State::Pending);
    store.commit(changes(vec![insert(row.clone()), Change::PutWorkspace(workspace_row(1))])).await.unwrap();
    assert_eq!(conflict(&store, insert(row.clone())).await, Some(State::Pending));
    let mut same_approval = operation_row(2, State::Pending);
    same_approval.approval = row.approval;
    assert_eq!(conflict(&store, insert(same_approval)).await, None);
    let mut no_session = operation_row(3, State::Pending);
    no_session.session = salaam_core::id::SessionId::new(9, [9; 10]);
    assert_eq!(conflict(&store, insert(no_session)).await, None);
    assert_eq!(conflict(&store, step(9, State::Pending, State::Granted)).await, None);
    assert_eq!(conflict(&store, Change::RemoveWorkspace(workspace_row(9).id)).await, None);
    let taken_name = WorkspaceRow { name: "w1".into(), ..workspace_row(2) };
    assert_eq!(conflict(&store, Change::PutWorkspace(taken_name)).await, None);
    let taken_path = WorkspaceRow { path: workspace_row(1).path, ..workspace_row(2) };
    assert_eq!(conflict(&store, Change::PutWorkspace(taken_path)).await, None);
    let renamed = WorkspaceRow { name: "other".into(), ..workspace_row(1) };
    store.commit(changes(vec![Change::PutWorkspace(renamed.clone())])).await.unwrap();
    assert_eq!(store.workspaces().await.unwrap(), [renamed]);
    store.commit(changes(vec![Change::RemoveWorkspace(workspace_row(1).id)])).await.unwrap();
    assert_eq!(store.workspaces().await.unwrap(), []);
    store.close().await;
}

#[tokio::test]
async fn a_request_id_is_remembered_once() {
    let directory = Directory::new();
    let store = directory.open();
    let remember = |content: &[u8]| Change::RememberRequest {
        request_id: "r'1".into(),
        fingerprint: Digest::of(content),
        subject: operation_id(1).to_string(),
    };
    assert_eq!(store.request("r'1").await.unwrap(), None);
    store.commit(changes(vec![remember(b"a")])).await.unwrap();
    assert_eq!(conflict(&store, remember(b"b")).await, None);
    assert_eq!(store.request("r'1").await.unwrap().unwrap().fingerprint, Digest::of(b"a"));
    store.close().await;
}

#[tokio::test]
async fn what_does_not_hash_to_its_binding_is_neither_stored_nor_believed() {
    let directory = Directory::new();
    let store = with_session(&directory).await;
    let mut wrong = operation_row(1, State::Pending);
    wrong.binding = Digest::ZERO;
    let refused = store.commit(changes(vec![Change::InsertOperation(Box::new(wrong))])).await;
    assert!(matches!(refused, Err(CommitError::NotDurable(_))));
    let right = operation_row(1, State::Pending);
    store.commit(changes(vec![Change::InsertOperation(Box::new(right.clone()))])).await.unwrap();
    store.close().await;
    let other = json!({"operation": right.id, "n": 2});
    assert_ne!(canon::digest(&other).unwrap(), right.binding);
    directory.tamper(&format!("UPDATE asked SET bound = '{other}'"));
    let store = directory.open();
    let error = store.operation(right.id).await.unwrap_err();
    assert!(matches!(error, super::super::StoreError::Damaged { .. }), "{error}");
    store.close().await;
}
