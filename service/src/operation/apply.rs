//! Sends an edit or an undo, and takes the executor's word on it, or the disk's where there is no word.

use salaam_core::{
    bridge::EditPlan,
    edit::{Change, Expected},
    result::Failure,
};
use serde_json::Value;

use super::{
    dispatch::{Ready, Way},
    gate::Pass,
    intent,
    owner::{Case, Owner, Stop},
    receipt::{Final, Outputs},
    run::{Ended, Seen},
};
use crate::{
    executor::{BridgeError, Link},
    store::OperationRow,
};

impl Owner {
    /// From the durable intent to the receipt.
    pub(super) async fn send(&mut self, ready: Ready) -> Result<Value, Stop> {
        let Ready { case, link, way } = ready;
        match way {
            Way::Command(slot) => Ok(self.run(case, &link, slot).await?),
            Way::Edit { pass, changes, directories } => self.apply(case, &link, pass, changes, directories).await,
        }
    }

    async fn apply(
        &mut self,
        case: Case,
        link: &Link,
        pass: Pass,
        changes: Vec<Change>,
        directories: Vec<Vec<u8>>,
    ) -> Result<Value, Stop> {
        let Case { row, bound, work } = case;
        drop(work);
        let plan = EditPlan {
            operation: self.id,
            epoch: link.epoch(),
            workspace: row.workspace,
            changes,
            expected: intent::files(&row).unwrap_or_default(),
            protected_paths: self.context.protected_paths(),
            directories,
        };
        let ended = match link.edit(plan).await {
            Ok(edited) => Ended::Edited(Box::new(edited)),
            Err(BridgeError::Refused { id, .. }) if id == UNDECIDED => return self.settle(row, pass).await,
            Err(BridgeError::Refused { id, message }) => Ended::Failed(Failure { id, message }),
            Err(BridgeError::Lost { .. } | BridgeError::Deadline { .. }) => return self.settle(row, pass).await,
        };
        let last = Final { row, policy: bound.policy, ended, seen: Seen::default(), outputs: Outputs::none() };
        Ok(self.conclude(last, pass).await?)
    }

    /// The receipt of an edit. Its gate opens once it is durable.
    pub(super) async fn conclude(&mut self, last: Final, pass: Pass) -> Result<Value, crate::operation::Refusal> {
        self.timing.exited = Some(self.elapsed());
        let no_effect = matches!(last.ended, Ended::Failed(_));
        let value = match self.receipt(last).await {
            Ok(value) => value,
            Err(refusal) => {
                self.pass = Some(pass);
                return Err(refusal);
            }
        };
        if no_effect {
            self.drop_images().await;
        }
        drop(pass);
        Ok(value)
    }
}

/// What was bound of each file of a row that must have it.
pub(super) fn bound_files(row: &OperationRow) -> Result<Vec<Expected>, Ended> {
    intent::files(row).ok_or_else(|| Ended::Unknown("the record does not say what was to become of which file".into()))
}

/// What the executor answers where neither all old nor all new could be shown.
const UNDECIDED: &str = "edit-undecided";
