//! The receipt: output on disk, then the result in the journal, then the answer.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use salaam_core::{
    bridge::{Exit, Stream},
    event::Kind,
    id::OperationId,
    operation::State,
    policy::Isolation,
    result::{Failure, OperationResult, Output},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    context::event,
    owner::{Case, Owner},
    propose::draft,
    run::{Ended, Seen, state_of},
};
use crate::{
    operation::{Refusal, view},
    store::{Change, CommitError, Store, Transaction},
};

/// Output text in a reply, for each stream.
const MOST_REPLY_TEXT: usize = 64 << 10;
/// Chunks on their way to the disk.
const MOST_SPOOLING: usize = 16;
/// How often a receipt that cannot be written is tried again: a full disk may be mended meanwhile.
const RECEIPT_TRIES: u32 = 20;
/// Between two tries.
const RECEIPT_PAUSE: Duration = Duration::from_millis(500);

/// What both streams came to.
#[derive(Debug)]
pub(super) struct Outputs {
    pub stdout: Stored,
    pub stderr: Stored,
}

/// One stream: its record and the head for the reply.
#[derive(Debug)]
pub(super) struct Stored {
    pub output: Output,
    pub head: Vec<u8>,
    pub error: Option<String>,
}

/// Writes output on a thread of its own, off the async ones.
#[derive(Debug)]
pub(super) struct Spooler {
    chunks: mpsc::Sender<(Stream, Vec<u8>)>,
    task: tokio::task::JoinHandle<Outputs>,
}

impl Spooler {
    pub(super) fn start(store: &Store, operation: OperationId, cap: u64) -> Self {
        let (chunks, mut incoming) = mpsc::channel::<(Stream, Vec<u8>)>(MOST_SPOOLING);
        let mut stdout = Keeper::new(store, operation, Stream::Stdout, cap);
        let mut stderr = Keeper::new(store, operation, Stream::Stderr, cap);
        let task = tokio::task::spawn_blocking(move || {
            while let Some((stream, bytes)) = incoming.blocking_recv() {
                match stream {
                    Stream::Stdout => stdout.write(&bytes),
                    Stream::Stderr => stderr.write(&bytes),
                }
            }
            Outputs { stdout: stdout.finish(), stderr: stderr.finish() }
        });
        Self { chunks, task }
    }

    pub(super) async fn write(&self, stream: Stream, bytes: Vec<u8>) {
        // The task ends only in `finish`, or by a panic, which `finish` reports.
        drop(self.chunks.send((stream, bytes)).await);
    }

    /// Waits until everything is on the disk.
    pub(super) async fn finish(self) -> Outputs {
        drop(self.chunks);
        self.task.await.unwrap_or_else(|error| {
            let lost = || Stored {
                output: Output::empty(),
                head: Vec::new(),
                error: Some(format!("output was not kept: {error}")),
            };
            Outputs { stdout: lost(), stderr: lost() }
        })
    }
}

struct Keeper {
    spool: crate::store::Spool,
    head: Vec<u8>,
    error: Option<String>,
}

impl Keeper {
    fn new(store: &Store, operation: OperationId, stream: Stream, cap: u64) -> Self {
        Self { spool: store.spool(operation, stream, cap), head: Vec::new(), error: None }
    }

    fn write(&mut self, bytes: &[u8]) {
        let room = MOST_REPLY_TEXT.saturating_sub(self.head.len());
        self.head.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        if self.error.is_none()
            && let Err(error) = self.spool.write(bytes)
        {
            self.error = Some(format!("output was not kept: {error}"));
        }
    }

    fn finish(self) -> Stored {
        match self.spool.finish() {
            Ok(output) => Stored { output, head: self.head, error: self.error },
            Err(error) => Stored {
                output: Output::empty(),
                head: self.head,
                error: Some(format!("output was not kept: {error}")),
            },
        }
    }
}

impl Owner {
    /// Commits the receipt and gives the reply. Nobody is told before it is durable.
    pub(super) async fn receipt(
        &mut self,
        mut case: Case,
        ended: Ended,
        seen: Seen,
        outputs: Outputs,
    ) -> Result<Value, Refusal> {
        let state = state_of(&ended);
        self.timing.receipt = Some(self.elapsed());
        let unknown = match &ended {
            Ended::Unknown(reason) => Some(reason.clone()),
            Ended::Exited(exit) if !exit.proven_gone => Some("the command's processes are not proven gone".to_owned()),
            Ended::Exited(_) | Ended::Failed(_) => None,
        };
        let result = self.result(&case, state, ended, seen, &outputs);
        let event = match &unknown {
            None => draft(event(Kind::OperationResult, case.row.session, result.to_value()))?,
            Some(reason) => {
                let data = json!({ "operation": self.id, "binding": case.row.binding, "reason": reason });
                draft(event(Kind::OperationUnknown, case.row.session, data))?
            }
        };
        case.row.result = Some(result.to_value());
        let mut tries = 1;
        loop {
            let change = Change::StepOperation {
                id: self.id,
                from: State::Dispatched,
                to: state,
                decided_by: None,
                comment: None,
                result: case.row.result.clone(),
            };
            match self.context.store.commit(Transaction { changes: vec![change], events: vec![event.clone()] }).await {
                Ok(_) => break,
                Err(CommitError::Conflict { actual }) => {
                    return Err(Refusal::new(
                        "illegal-step",
                        500,
                        format!("the operation is {actual:?} and has no owner but this"),
                        "report this",
                    ));
                }
                Err(error @ CommitError::NotDurable(_)) => {
                    if tries == 1 {
                        tracing::error!(operation = %self.id, %error, "the receipt cannot be written; no new grants");
                        self.context.controls.fail("journal-not-writable");
                    }
                    if tries >= RECEIPT_TRIES {
                        return Err(Refusal::journal(error));
                    }
                    tries += 1;
                    tokio::time::sleep(RECEIPT_PAUSE).await;
                }
            }
        }
        case.row.state = state;
        Ok(view::result(&case.row, &outputs.stdout.head, &outputs.stderr.head))
    }

    fn result(&self, case: &Case, state: State, ended: Ended, seen: Seen, outputs: &Outputs) -> OperationResult {
        let (exit, error) = match ended {
            Ended::Exited(exit) => (*exit, None),
            Ended::Failed(failure) => (Exit::default(), Some(failure)),
            Ended::Unknown(reason) => (Exit::default(), Some(Failure { id: "unknown".into(), message: reason })),
        };
        let lost = [&outputs.stdout, &outputs.stderr].into_iter().find_map(|stored| stored.error.clone());
        let error = error.or_else(|| lost.map(|message| Failure { id: "output-not-kept".into(), message }));
        let policy = &case.bound.policy;
        let measured =
            seen.sandbox.as_ref().map(|sandbox| Isolation::of(self.context.mode(), sandbox.backend == "bubblewrap"));
        OperationResult {
            operation: self.id,
            state,
            exit_code: exit.exit_code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            limit: exit.limit,
            error,
            tool_uid: self.context.tool_uid,
            isolation: measured.unwrap_or(policy.isolation),
            profile: policy.profile,
            network: policy.network,
            manifest: policy.manifest,
            binding: case.row.binding,
            sandbox: seen.sandbox,
            stdout: outputs.stdout.output.clone(),
            stderr: outputs.stderr.output.clone(),
            left_processes: exit.left_processes,
            changed: exit.changed,
            quarantined: exit.quarantined,
            egress: Vec::new(),
            usage: exit.usage,
            timing: self.timing,
        }
    }
}

/// Output for a reply: text where it is UTF-8, else base64.
pub(crate) fn reply_text(head: &[u8], whole: u64) -> (&'static str, Value) {
    let cut = (head.len() as u64) < whole;
    match std::str::from_utf8(head) {
        Ok(text) => ("text", json!(text)),
        // A character that the cut halved is left out; anything else that is not UTF-8 is shown as it is.
        Err(error) if cut && error.error_len().is_none() => {
            let whole = head.get(..error.valid_up_to()).unwrap_or_default();
            ("text", json!(String::from_utf8_lossy(whole)))
        }
        Err(_) => ("base64", json!(STANDARD.encode(head))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halved_character_at_the_cut_is_left_out_and_bad_bytes_stay_visible() {
        assert_eq!(reply_text("aé".as_bytes(), 3), ("text", json!("aé")));
        assert_eq!(reply_text(b"a\xc3", 3), ("text", json!("a")));
        assert_eq!(reply_text(b"a\xc3", 2).0, "base64");
        assert_eq!(reply_text(b"\xff", 1), ("base64", json!("/w==")));
    }
}
