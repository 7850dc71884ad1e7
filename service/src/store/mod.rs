//! The journal and the state: one SQLite database, one writer thread, group commit; output blobs beside it.
//!
//! Promise: what [`Store::commit`] returned is durable; state changes and their events are in one transaction;
//! a database that is damaged, foreign or newer than this program is left exactly as it is, and no other is
//! started beside it.
//!
//! Deliberately absent: no decision. Which step an operation may take is `core::operation`; here a step is
//! compared, swapped and recorded.

mod apply;
mod chain;
mod error;
mod handle;
mod images;
pub mod lock;
pub mod offline;
mod reader;
mod rows;
mod schema;
mod spool;
mod transcript;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{CommitError, StoreError};
pub use handle::{DiskUse, Space, Store};
pub use images::KeptImage;
pub use lock::{Holder, LockError, StateLock};
pub use reader::{MAX_EVENT_BYTES_PER_READ, MAX_OPERATION_BYTES_PER_READ, MAX_ROWS_PER_READ};
pub use rows::{
    BriefRow, CallRow, Change, EventQuery, Mail, MessageRow, ModelCall, OpenOperations, OperationQuery, OperationRow,
    RequestRow, SessionQuery, SessionRow, Transaction, TurnQuery, TurnRow, WorkspaceRow,
};
pub(crate) use schema::discard;
pub use spool::Spool;
pub use writer::MAX_EVENT_BYTES;
