//! After a restart: nothing is run again. What was open is void or unknown, but for what can go on as it stands: a
//! question of a person that nothing changed, and an edit of which the disk says what became of it.

use salaam_core::{event::DraftError, operation::State};

use super::service::OPEN;
use crate::{
    operation::{
        Desk, may_go_on,
        orphan::{Why, settlement},
    },
    store::{CommitError, OperationQuery, OperationRow, Store, StoreError, Transaction},
};

/// Operations settled in one transaction.
const PAGE: u32 = 256;

/// Why what was open could not be settled.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecoveryError {
    /// The state cannot be read.
    #[error("what was open before the restart cannot be read")]
    Read(#[from] StoreError),
    /// The state cannot be written.
    #[error("what was open before the restart cannot be settled")]
    Write(#[from] CommitError),
    /// An event has no form.
    #[error("what was open before the restart cannot be recorded")]
    Draft(#[from] DraftError),
}

/// What goes on.
#[derive(Debug, Default)]
pub(super) struct Open {
    rows: Vec<OperationRow>,
}

impl Open {
    /// How much.
    pub(super) const fn count(&self) -> usize {
        self.rows.len()
    }

    /// Gives each an owner. Edits first: nothing is sent into their workspaces before they are settled.
    pub(super) fn adopt(self, desk: &Desk) {
        let (edits, questions): (Vec<_>, Vec<_>) =
            self.rows.into_iter().partition(|row| row.state == State::Dispatched);
        for row in edits {
            let id = row.id;
            if !desk.settle(row) {
                tracing::error!(operation = %id, "an edit has no owner; the next start settles it");
            }
        }
        for row in questions {
            let id = row.id;
            if !desk.ask_again(row) {
                tracing::error!(operation = %id, "a question has no owner; the next start asks it");
            }
        }
    }
}

/// Settles every operation that the process before this one left open and that does not go on; returns how many, and
/// what goes on.
pub(super) async fn settle(store: &Store) -> Result<(usize, Open), RecoveryError> {
    let mut settled = 0;
    let mut open = Open::default();
    loop {
        let query = OperationQuery {
            states: OPEN.to_vec(),
            limit: PAGE,
            before: open.rows.last().map(|row| row.id),
            ..OperationQuery::default()
        };
        let page = store.operations(query).await?;
        if page.is_empty() {
            return Ok((settled, open));
        }
        let mut transaction = Transaction::default();
        for row in page {
            if may_go_on(&row) {
                open.rows.push(row);
                continue;
            }
            if let Some((change, event)) = settlement(&row, Why::ServiceRestarted)? {
                settled += 1;
                transaction.changes.push(change);
                transaction.events.push(event);
            }
        }
        store.commit(transaction).await?;
    }
}
