//! One call, from what the agent wrote to the end of what it asked for.
//!
//! Promise: a call that has an operation is never proposed again, whoever asks and after whatever crash; its end is
//! waited for. A call that has none may be proposed, since nothing happened.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use salaam_core::{
    id::{OperationId, SessionId, WorkspaceId},
    policy::Profile,
    tool::{self, Answer, Call},
};

use super::{answer, error::SessionError, look, staff::Staff};
use crate::{
    operation::{Attached, Origin, Progress, Proposal, Refusal, Work},
    store::{ModelCall, Store},
};

/// Between two looks at whether operations are taken again, or whether an executor is there.
const PAUSE: Duration = Duration::from_millis(250);
/// So often is a proposal tried again that nobody could look at: an executor is back after a few seconds.
const MOST_TRIES: u32 = 120;
/// The longest time between two looks at an operation that another owner sees through.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// After a change in the journal, before an operation is looked at again.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Which call, and for whom.
#[derive(Debug, Clone)]
pub(super) struct Errand {
    pub(super) session: SessionId,
    pub(super) workspace: WorkspaceId,
    pub(super) profile: Profile,
    pub(super) epoch: u64,
    pub(super) call: ModelCall,
    pub(super) operation: Known,
}

/// The operation that a call has, or is being proposed as; shared with whoever may end it.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<Mutex<Option<OperationId>>>);

impl Known {
    pub(super) fn id(&self) -> Option<OperationId> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: Option<OperationId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Carried {
    /// This is the answer; nothing is recorded of it elsewhere.
    Answer(Box<Answer>),
    /// The operation is over; the answer is in its row.
    Operation(OperationId),
    /// Its worker was replaced before anything was recorded: it may be carried out again.
    Withdrawn,
}

/// Carries out a call. Never resolves once the service stops: what is open is taken up by the next start.
pub(super) async fn through<S: Staff>(store: &Store, staff: &S, errand: &Errand) -> Result<Carried, SessionError> {
    let missing = SessionError::Missing { session: errand.session, what: "a call" };
    let row = store.call(errand.session, errand.call).await?.ok_or(missing)?;
    if let Some(operation) = row.operation {
        errand.operation.set(Some(operation));
        return settled(store, operation).await;
    }
    let call = match tool::parse(&row.tool, &row.arguments) {
        Ok(call) => call,
        Err(error) => return Ok(told(answer::unfit(&error))),
    };
    if let Some(request) = look::request(&call) {
        return Ok(told(match staff.look(errand.workspace, request.clone()).await {
            Ok(seen) => look::answer(&request, &seen),
            Err(refusal) => answer::refused(&refusal),
        }));
    }
    let mut tries = 1;
    loop {
        while staff.is_draining() {
            tokio::time::sleep(PAUSE).await;
        }
        let Some(proposal) = proposal(errand, &call) else {
            return Err(SessionError::Missing { session: errand.session, what: "the effect of a call" });
        };
        let refusal = match staff.propose(proposal) {
            Ok(attached) => {
                // From here on it can be ended, although nothing may be recorded yet.
                errand.operation.set(Some(attached.operation()));
                match follow(store, errand, attached).await? {
                    Followed::Over(operation) => return Ok(Carried::Operation(operation)),
                    Followed::Refused(refusal) => {
                        errand.operation.set(None);
                        refusal
                    }
                }
            }
            Err(refusal) => refusal,
        };
        match refusal.id.as_str() {
            "stopping" => std::future::pending::<()>().await,
            "worker-epoch" => return Ok(Carried::Withdrawn),
            "executor-gone" | "executor-silent" if tries < MOST_TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            _ => return Ok(told(answer::refused(&refusal))),
        }
    }
}

fn told(answer: Answer) -> Carried {
    Carried::Answer(Box::new(answer))
}

/// What a call proposes; absent for what only looks.
fn proposal(errand: &Errand, call: &Call) -> Option<Proposal> {
    let work = match call {
        Call::Command { command, timeout_seconds } => {
            Work::Command { command: command.clone(), stdin: None, timeout_seconds: *timeout_seconds }
        }
        Call::Edit { edits } => Work::Edit { changes: edits.clone() },
        Call::Undo { operation } => Work::Undo { operation: *operation },
        Call::List { .. } | Call::Read { .. } | Call::Search { .. } => return None,
    };
    Some(Proposal {
        workspace: errand.workspace,
        work,
        profile: Some(errand.profile),
        detach: true,
        follow: false,
        request_id: None,
        origin: Origin::Worker { session: errand.session, epoch: errand.epoch, call: errand.call },
    })
}

enum Followed {
    Over(OperationId),
    /// Nothing was recorded.
    Refused(Refusal),
}

async fn follow(store: &Store, errand: &Errand, mut attached: Attached) -> Result<Followed, SessionError> {
    let operation = attached.operation();
    let mut refusal = None;
    loop {
        match attached.next().await {
            Some(Progress::Proposed(_) | Progress::Output(..) | Progress::Cut) => {}
            Some(Progress::Result(_)) | None => break,
            Some(Progress::Refused(refused)) => {
                refusal = Some(refused);
                break;
            }
        }
    }
    // The word of the owner is not taken for it: what counts is what is recorded.
    match store.operation(operation).await? {
        Some(row) if row.state.is_final() => Ok(Followed::Over(operation)),
        Some(_) => match settled(store, operation).await? {
            Carried::Operation(operation) => Ok(Followed::Over(operation)),
            Carried::Answer(_) | Carried::Withdrawn => {
                Err(SessionError::Missing { session: errand.session, what: "an operation" })
            }
        },
        None => Ok(Followed::Refused(refusal.unwrap_or_else(|| {
            Refusal::new(
                "executor-gone",
                503,
                "the owner of the operation ended before it recorded anything",
                "look at the service's log",
            )
        }))),
    }
}

/// Waits until an operation that is recorded is over.
async fn settled(store: &Store, operation: OperationId) -> Result<Carried, SessionError> {
    let mut seen = store.watch();
    loop {
        match store.operation(operation).await? {
            Some(row) if row.state.is_final() => return Ok(Carried::Operation(operation)),
            Some(_) | None => {}
        }
        // A look now and then besides: what is missed here is missed for ever.
        match tokio::time::timeout(LOOK_AGAIN, seen.changed()).await {
            Ok(Ok(())) | Err(_) => tokio::time::sleep(SETTLE_PAUSE).await,
            Ok(Err(_)) => std::future::pending::<()>().await,
        }
    }
}
