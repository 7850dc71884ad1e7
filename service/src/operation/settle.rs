//! An edit that was sent and has no answer: what the disk says of it, by the next executor.
//!
//! Promise: nothing else is sent into the workspace before, and `unknown` is only what the disk does not decide.

use std::time::Duration;

use salaam_core::{
    bridge::{Settle, Settled},
    canon,
    policy::Policy,
    result::Failure,
};
use serde_json::{Value, json};

use super::{
    apply::bound_files,
    dispatch::is_edit,
    gate::Pass,
    intent, orphan,
    owner::{Owner, Stop},
    receipt::{Final, Outputs},
    run::{Ended, Seen},
    session::workspace_row,
};
use crate::{
    executor::{BridgeError, Link},
    operation::Refusal,
    store::OperationRow,
    workspace::WorkspaceError,
};

/// How often the disk is asked before it counts as undecided; a lost executor does not count.
const TRIES: u32 = 5;
/// Between two times.
const PAUSE: Duration = Duration::from_millis(500);

/// What one try came to.
enum Try {
    Ended(Ended, &'static str),
    /// The executor was lost over it: the next one is asked.
    Lost,
    /// It could not look.
    Failed(String),
}

impl Owner {
    /// Settles an edit that an earlier service, or an owner that is gone, sent.
    pub(super) async fn settle_row(&mut self, row: OperationRow) -> Result<Value, Stop> {
        debug_assert!(is_edit(row.kind), "the desk settles edits only");
        let pass = self.context.gate.enter_unsettled(row.workspace, row.session);
        self.settle(row, pass).await
    }

    /// Asks executors until one has an answer. Left to the next start where there will be none.
    pub(super) async fn settle(&mut self, row: OperationRow, pass: Pass) -> Result<Value, Stop> {
        let policy = row.bound.get("policy").cloned().and_then(|policy| serde_json::from_value::<Policy>(policy).ok());
        let Some(policy) = policy else {
            // Nothing that this program wrote: the row is closed as it would be without an owner.
            orphan::close(&self.context.store, &row).await.map_err(Refusal::journal)?;
            drop(pass);
            return Err(Stop::Refused(Refusal::journal("the record of an edit does not read")));
        };
        let mut failures = Vec::new();
        let (ended, outcome, epoch) = loop {
            let Some(link) = self.context.executor.up().await else {
                tracing::warn!(operation = %self.id, "no executor will come; the next start settles the edit");
                return Err(Stop::Left);
            };
            match self.ask(&row, &link).await {
                Try::Ended(ended, outcome) => break (ended, outcome, link.epoch()),
                Try::Lost => tokio::time::sleep(PAUSE).await,
                Try::Failed(why) if failures.len() + 1 < TRIES as usize => {
                    tracing::warn!(operation = %self.id, why, "an edit cannot be settled yet");
                    failures.push(why);
                    tokio::time::sleep(PAUSE).await;
                }
                Try::Failed(why) => break (Ended::Unknown(why), "undecided", link.epoch()),
            }
        };
        tracing::info!(operation = %self.id, outcome, "an edit without an answer was settled");
        let settled = json!({ "outcome": outcome, "executor_epoch": canon::wide(epoch) });
        let seen = Seen { settled: Some(settled), ..Seen::default() };
        Ok(self.conclude(Final { row, policy, ended, seen, outputs: Outputs::none() }, pass).await?)
    }

    async fn ask(&self, row: &OperationRow, link: &Link) -> Try {
        let context = &self.context;
        let expected = match bound_files(row) {
            Ok(expected) => expected,
            Err(ended) => return Try::Ended(ended, "undecided"),
        };
        let workspace = match workspace_row(context, row.workspace).await {
            Ok(workspace) => workspace,
            Err(refusal) => return Try::Failed(refusal.message),
        };
        let identity = match context.workspaces.identity(&workspace) {
            Ok(identity) => identity,
            Err(error) => return Try::Failed(error.to_string()),
        };
        match context.workspaces.open_on(link, &identity).await {
            Ok(()) => {}
            Err(WorkspaceError::Executor {
                source: BridgeError::Lost { .. } | BridgeError::Deadline { .. }, ..
            }) => {
                return Try::Lost;
            }
            Err(error) => return Try::Failed(error.to_string()),
        }
        let directories = match intent::undoes(row) {
            None => Vec::new(),
            Some(undone) => match context.store.operation(undone).await {
                Ok(undone) => undone.as_ref().map_or_else(Vec::new, intent::made),
                Err(error) => return Try::Failed(error.to_string()),
            },
        };
        let settle =
            Settle { operation: self.id, epoch: link.epoch(), workspace: row.workspace, expected, directories };
        match link.settle(settle).await {
            Ok(Settled::Finished(edited)) => Try::Ended(Ended::Edited(Box::new(edited)), "finished"),
            Ok(Settled::RolledBack) => {
                let message = "it was cut off, and the files are as they were before it".to_owned();
                Try::Ended(Ended::Failed(Failure { id: "rolled-back".into(), message }), "rolled-back")
            }
            Ok(Settled::Undecided { evidence }) => Try::Ended(Ended::Unknown(evidence), "undecided"),
            Err(BridgeError::Refused { id, message }) => Try::Failed(format!("{id}: {message}")),
            Err(BridgeError::Lost { .. } | BridgeError::Deadline { .. }) => Try::Lost,
        }
    }
}
