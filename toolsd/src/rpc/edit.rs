//! Edits over the bridge: plans and files come and go in parts.

use std::{pin::Pin, time::Duration};

use salaam_core::bridge::{EditPlan, ReadFiles, Settle};
use salaam_proto::wire;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::{
    Executor,
    calls::at,
    gate::{impossible, refused},
};
use crate::edit::Site;

/// What the service reads of `ReadFiles`.
pub(super) type Parts = Pin<Box<dyn Stream<Item = Result<wire::Part, Status>> + Send>>;

/// At most 36 MiB through local memory.
const PLAN_WITHIN: Duration = Duration::from_secs(60);

/// Reads whole files.
pub(super) async fn read_files(executor: &Executor, request: wire::ReadFilesRequest) -> Result<Parts, Status> {
    executor.epoch()?;
    let asked = ReadFiles::try_from(request).map_err(at("ReadFiles"))?;
    let admission = executor.editor.admit().await.map_err(refused)?;
    let root = executor.runner.root(asked.workspace).map_err(refused)?;
    let read = executor.editor.read(root, asked).await.map_err(refused)?;
    let parts = salaam_proto::parted(&wire::FilesRead::from(read)).map_err(impossible)?;
    // The admission lasts until the last part was taken.
    let parts = parts.into_iter().map(move |part| {
        let _held = &admission;
        Ok(part)
    });
    Ok(Box::pin(tokio_stream::iter(parts)))
}

/// Takes a plan, and applies it.
pub(super) async fn edit(executor: &Executor, parts: Streaming<wire::Part>) -> Result<wire::EditReply, Status> {
    let epoch = executor.epoch()?;
    let admission = executor.editor.admit().await.map_err(refused)?;
    let plan = tokio::time::timeout(PLAN_WITHIN, plan(parts)).await.unwrap_or_else(|_| {
        Err(impossible(format!("Edit: the plan did not come within {} s", PLAN_WITHIN.as_secs())))
    })?;
    named(epoch, plan.epoch, "Edit")?;
    // A bridge that is being closed begins nothing, also where the plan took its time.
    executor.epoch()?;
    let editing = executor.runner.enter_to_edit(plan.workspace, plan.operation).map_err(refused)?;
    let site = Site {
        root: std::sync::Arc::clone(&editing.root),
        bound: editing.bound().to_vec(),
        held: (editing, admission),
    };
    executor.editor.edit(site, plan).await.map(Into::into).map_err(refused)
}

async fn plan(mut parts: Streaming<wire::Part>) -> Result<EditPlan, Status> {
    let mut joined = salaam_proto::Parts::new();
    loop {
        match parts.message().await {
            Ok(Some(part)) => {
                if joined.push(&part).map_err(at("Edit"))? {
                    return Ok(joined.value::<wire::EditPlan, EditPlan>().map_err(at("Edit"))?);
                }
            }
            Ok(None) => return Err(Status::cancelled("the plan ended early")),
            Err(status) if matches!(status.code(), Code::Cancelled) => return Err(status),
            Err(status) => return Err(impossible(format!("Edit: {}", status.message()))),
        }
    }
}

/// Says what became of an edit, and ends it.
pub(super) async fn settle(executor: &Executor, request: wire::SettleRequest) -> Result<wire::SettleReply, Status> {
    let epoch = executor.epoch()?;
    let asked = Settle::try_from(request).map_err(at("Settle"))?;
    named(epoch, asked.epoch, "Settle")?;
    let editing = executor.runner.enter_to_edit(asked.workspace, asked.operation).map_err(refused)?;
    let site = Site { root: std::sync::Arc::clone(&editing.root), bound: Vec::new(), held: editing };
    executor.editor.settle(site, asked).await.map(Into::into).map_err(refused)
}

fn named(ours: u64, theirs: u64, call: &str) -> Result<(), Status> {
    if ours == theirs {
        Ok(())
    } else {
        Err(impossible(format!("{call}: it is for epoch {theirs}, this executor has {ours}")))
    }
}
