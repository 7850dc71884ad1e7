//! The end of an operation that has no owner: after a crash of the service, or when its owner could not record it.
//!
//! Promise: nothing is run again and nothing stays open. What was dispatched is `unknown`, the rest is void.

use std::time::Duration;

use salaam_core::{
    event::{Draft, DraftError, Kind},
    id::OperationId,
    operation::{CancelCause, State},
};
use serde_json::json;

use super::dispatch::is_edit;
use crate::store::{Change, CommitError, OperationRow, Store, Transaction};

/// How long the journal is given between two tries, at first and at the most: a full disk may be mended meanwhile.
pub(super) const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Why an operation has no owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The process that owned it ended.
    ServiceRestarted,
    /// Its owner ended without a record of its end.
    OwnerLost,
}

/// The step that ends `row` and its event; nothing if it is over already.
pub(crate) fn settlement(row: &OperationRow, why: Why) -> Result<Option<(Change, Draft)>, DraftError> {
    let Some(to) = row.state.after_crash() else { return Ok(None) };
    let (cause, what) = match why {
        Why::ServiceRestarted => (CancelCause::ServiceRestarted, "the service ended"),
        Why::OwnerLost => (CancelCause::OwnerLost, "its owner in the service ended"),
    };
    let (kind, data, error) = match to {
        State::Unknown => {
            let reason = format!("{what} between the intent and the receipt");
            let error =
                json!({ "id": "unknown", "message": reason, "fix": "look at the workspace; nothing is run again" });
            (Kind::OperationUnknown, json!({ "operation": row.id, "binding": row.binding, "reason": reason }), error)
        }
        State::Proposed
        | State::Pending
        | State::Granted
        | State::Dispatched
        | State::Completed
        | State::Failed
        | State::TimedOut
        | State::Cancelled
        | State::Refused
        | State::Denied
        | State::Expired
        | State::Stale => {
            let message = format!("void: {what} while it was open");
            let error = json!({ "id": cause, "message": message, "fix": "propose it again" });
            let data = json!({ "operation": row.id, "binding": row.binding, "approval": row.approval, "cause": cause });
            (Kind::CancelRequested, data, error)
        }
    };
    let event = Draft::new(kind, Some(row.session), data)?;
    let result = Some(json!({ "operation": row.id, "state": to, "binding": row.binding, "error": error }));
    Ok(Some((
        Change::StepOperation { id: row.id, from: row.state, to, decided_by: None, comment: None, result },
        event,
    )))
}

/// Ends an operation whose owner is gone, if it is recorded and open; tries until the journal takes it. Gives back an
/// edit that was sent: the disk says what became of it.
pub(super) async fn settle(store: &Store, id: OperationId) -> Option<OperationRow> {
    let [mut pause, longest] = PAUSES;
    loop {
        match try_to_settle(store, id).await {
            Ok(edit) => return edit,
            Err(error) => {
                tracing::error!(operation = %id, error, "an operation without an owner cannot be settled yet")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

async fn try_to_settle(store: &Store, id: OperationId) -> Result<Option<OperationRow>, String> {
    let Some(row) = store.operation(id).await.map_err(|e| e.to_string())? else { return Ok(None) };
    if row.state == State::Dispatched && is_edit(row.kind) {
        return Ok(Some(row));
    }
    close(store, &row).await.map(|()| None)
}

/// Ends it as after a crash, if it is open.
pub(super) async fn close(store: &Store, row: &OperationRow) -> Result<(), String> {
    let Some((change, event)) = settlement(row, Why::OwnerLost).map_err(|e| e.to_string())? else { return Ok(()) };
    match store.commit(Transaction { changes: vec![change], events: vec![event] }).await {
        Ok(_) => Ok(()),
        // It moved while we looked: look again.
        Err(error @ (CommitError::Conflict { .. } | CommitError::NotDurable(_))) => Err(error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::DirBuilderExt as _;

    use salaam_core::{
        canon,
        id::{ApprovalId, SessionId, WorkspaceId},
        operation, session,
        time::Timestamp,
    };

    use super::*;
    use crate::{
        clock::Clock,
        store::{EventQuery, SessionRow},
    };

    fn row(n: u8, state: State) -> OperationRow {
        let id = OperationId::new(1, [n; 10]);
        OperationRow { id, approval: ApprovalId::new(1, [n; 10]), state, ..row_that_binds(json!({ "operation": id })) }
    }

    /// A row with nothing in it but what it binds.
    pub(crate) fn row_that_binds(bound: serde_json::Value) -> OperationRow {
        let (n, id) = (1, OperationId::new(1, [1; 10]));
        OperationRow {
            id,
            approval: ApprovalId::new(1, [n; 10]),
            session: SessionId::new(1, [1; 10]),
            workspace: WorkspaceId::new(1, [1; 10]),
            kind: operation::Kind::Command,
            state: State::Proposed,
            binding: canon::digest(&bound).unwrap(),
            bound,
            display: "ls".into(),
            flags: Vec::new(),
            requested: Timestamp::from_micros(1),
            expires: Timestamp::from_micros(2),
            decided_by: None,
            comment: None,
            result: None,
            call: None,
            reconciled: None,
            again: None,
        }
    }

    #[tokio::test]
    async fn an_operation_whose_owner_is_lost_does_not_stay_open() {
        let state = std::env::temp_dir().join(format!("salaam-orphan-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        let store = Store::open(&state, Clock).unwrap();
        let session = SessionRow {
            id: SessionId::new(1, [1; 10]),
            kind: session::Kind::Operator,
            workspace: WorkspaceId::new(1, [1; 10]),
            document: json!({}),
            created: Timestamp::from_micros(1),
        };
        let mut changes = vec![Change::PutSession(session)];
        let open = [(1, State::Pending), (2, State::Granted), (3, State::Dispatched), (4, State::Denied)];
        changes.extend(open.map(|(n, state)| Change::InsertOperation(Box::new(row(n, state)))));
        store.commit(Transaction { changes, events: Vec::new() }).await.unwrap();
        for n in 1..=5 {
            settle(&store, OperationId::new(1, [n; 10])).await;
        }
        let mut ends = Vec::new();
        for (n, _) in open {
            let row = store.operation(OperationId::new(1, [n; 10])).await.unwrap().unwrap();
            ends.push((row.state, row.result.map(|result| result["error"]["id"].clone())));
        }
        let void = || (State::Cancelled, Some(json!("owner-lost")));
        assert_eq!(ends, [void(), void(), (State::Unknown, Some(json!("unknown"))), (State::Denied, None)]);
        let events = store.events(EventQuery::default()).await.unwrap();
        assert_eq!(events.len(), 3, "one for each that was open");
        store.close().await;
        std::fs::remove_dir_all(state).unwrap();
    }
}
