//! What the bridge reports, journaled, and what follows from it.

use std::sync::Arc;

use salaam_core::{
    canon,
    event::{Draft, Kind},
};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::watch::Look;
use crate::{
    executor::Notice,
    operation::{Context, Tools},
    store::Transaction,
};

/// Follows the executor until the bridge's supervisor is gone. `first` was measured at start.
pub(super) async fn follow(
    context: Arc<Context>,
    mut notices: mpsc::Receiver<Notice>,
    tools: watch::Sender<Tools>,
    looks: mpsc::Sender<Look>,
    first: u64,
) {
    while let Some(notice) = notices.recv().await {
        match notice {
            Notice::Started { uid, epoch, pid, reason } => {
                record(&context, Kind::ExecutorStarted, uid, epoch, pid, &reason).await;
                // A new executor is tried again; if the queue is full, a look is due anyway.
                if epoch != first && looks.try_send(Look::of_executor()).is_err() {
                    tracing::warn!("the probes of a new executor wait for those that are due");
                }
            }
            Notice::Lost { uid, epoch, pid, reason } => {
                tools.send_replace(Tools::default());
                record(&context, Kind::ExecutorLost, uid, epoch, pid, &reason).await;
            }
            Notice::ControlFailed { id, evidence } => context.control_failed(&id, &evidence).await,
        }
    }
}

async fn record(context: &Context, kind: Kind, uid: u32, epoch: u64, pid: i32, reason: &str) {
    let data = json!({ "uid": uid, "epoch": canon::wide(epoch), "pid": pid, "reason": reason });
    let written = match Draft::new(kind, None, data) {
        Ok(event) => context
            .store
            .commit(Transaction { changes: Vec::new(), events: vec![event] })
            .await
            .map(drop)
            .map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = written {
        tracing::error!(%kind, error, "an event of the executor could not be journaled; no new grants");
        context.controls.fail("journal-not-writable");
    }
}
