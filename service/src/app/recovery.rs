//! After a restart: nothing is run again, nothing stays open.

use salaam_core::event::DraftError;

use super::service::OPEN;
use crate::{
    operation::orphan::{Why, settlement},
    store::{CommitError, OperationQuery, Store, StoreError, Transaction},
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

/// Settles every operation that the process before this one left open; returns how many.
pub(super) async fn settle(store: &Store) -> Result<usize, RecoveryError> {
    let mut settled = 0;
    loop {
        let open = store
            .operations(OperationQuery { states: OPEN.to_vec(), session: None, workspace: None, limit: PAGE })
            .await?;
        if open.is_empty() {
            return Ok(settled);
        }
        settled += open.len();
        let mut transaction = Transaction::default();
        for row in &open {
            if let Some((change, event)) = settlement(row, Why::ServiceRestarted)? {
                transaction.changes.push(change);
                transaction.events.push(event);
            }
        }
        store.commit(transaction).await?;
    }
}
