//! What a person takes back of what an agent changed.

use std::collections::BTreeSet;

use salaam_core::{
    id::{OperationId, SessionId},
    operation::{Kind as Effect, State},
};
use serde_json::Value;

use super::service::App;
use crate::{
    operation::{Attached, Origin, Proposal, Refusal, Who, Work},
    store::{OperationQuery, OperationRow},
};

impl App {
    /// Proposes to take back an edit of a session: the one that is named, or the last that still stands. `how` =
    /// whether it is granted at once, goes on without its caller, and is followed.
    pub async fn undo(
        &self,
        id: SessionId,
        operation: Option<OperationId>,
        how: (bool, bool, bool),
        request_id: Option<String>,
        who: Who,
    ) -> Result<Attached, Refusal> {
        let session = self.session_row(id).await?;
        let operation = match operation {
            Some(operation) => operation,
            None => self.last_edit(id, request_id.as_deref()).await?,
        };
        let row = self.operation_row(operation).await?;
        if row.workspace != session.workspace {
            return Err(Refusal::not_found("operation in this session's workspace", operation));
        }
        let (grant, detach, follow) = how;
        self.propose(Proposal {
            workspace: session.workspace,
            work: Work::Undo { operation },
            profile: None,
            detach,
            follow,
            request_id,
            origin: Origin::Operator { who, grant, session: Some(id) },
        })
        .await
    }

    /// The last edit that still stands; for a request that was carried out before, the one that it was about.
    async fn last_edit(&self, id: SessionId, request_id: Option<&str>) -> Result<OperationId, Refusal> {
        if let Some(known) = self.known_request(request_id).await?
            && let Ok(before) = known.subject.parse()
            && let Some(undone) = undone_by(&self.operation_row(before).await?)
        {
            return Ok(undone);
        }
        let query = OperationQuery { states: vec![State::Completed], session: Some(id), ..OperationQuery::default() };
        let rows = self.context.store.operations(query).await.map_err(Refusal::journal)?;
        last_standing(&rows).ok_or_else(|| {
            Refusal::new(
                "nothing-to-undo",
                409,
                format!("no edit of {id} stands"),
                "name an operation; `salaam session show` lists them",
            )
        })
    }
}

/// What an undo takes back.
fn undone_by(row: &OperationRow) -> Option<OperationId> {
    row.bound.pointer("/arguments/undo").and_then(Value::as_str)?.parse().ok()
}

/// The newest edit that no undo took back, unless that undo was itself taken back. `rows`: completed, newest first.
fn last_standing(rows: &[OperationRow]) -> Option<OperationId> {
    let mut taken_back = BTreeSet::new();
    for row in rows {
        let stands = !taken_back.contains(&row.id);
        match row.kind {
            Effect::Edit if stands => return Some(row.id),
            Effect::Undo if stands => taken_back.extend(undone_by(row)),
            Effect::Edit | Effect::Undo | Effect::Command | Effect::Restore | Effect::Patch => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operation::orphan::tests::row_that_binds;

    fn row(n: u8, kind: Effect, undone: Option<u8>) -> OperationRow {
        let id = |n: u8| OperationId::new(1, [n; 10]);
        let bound = json!({ "arguments": { "undo": undone.map(id) } });
        OperationRow { id: id(n), kind, state: State::Completed, ..row_that_binds(bound) }
    }

    #[test]
    fn the_newest_edit_that_no_undo_took_back_is_the_last_that_stands() {
        use Effect::{Command, Edit, Undo};
        let last = |rows: &[(u8, Effect, Option<u8>)]| {
            let rows: Vec<_> = rows.iter().rev().map(|(n, kind, undone)| row(*n, *kind, *undone)).collect();
            last_standing(&rows)
        };
        let id = |n: u8| Some(OperationId::new(1, [n; 10]));
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[(1, Command, None)]), None);
        assert_eq!(last(&[(1, Edit, None), (2, Edit, None), (3, Command, None)]), id(2));
        assert_eq!(last(&[(1, Edit, None), (2, Edit, None), (3, Undo, Some(2))]), id(1));
        assert_eq!(last(&[(1, Edit, None), (2, Undo, Some(1))]), None);
        // The undo was itself taken back.
        assert_eq!(last(&[(1, Edit, None), (2, Undo, Some(1)), (3, Undo, Some(2))]), id(1));
        assert_eq!(last(&[(1, Edit, None), (2, Undo, Some(1)), (3, Undo, Some(2)), (4, Undo, Some(3))]), None);
    }
}
