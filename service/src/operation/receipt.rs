//! The receipt: output on disk, then the result in the journal, then the answer.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use salaam_core::{
    bridge::{Beyond, Edited, Exit, Stream},
    canon,
    event::Kind,
    id::OperationId,
    operation::State,
    policy::{Isolation, Policy},
    result::{Changed, Failure, OperationResult, Output},
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::{
    flow::Written,
    owner::Owner,
    record::{draft, event},
    run::{Ended, Seen, state_of},
};
use crate::{
    operation::{Refusal, view},
    store::{Change, CommitError, OperationRow, Store, Transaction},
};

/// Output text in a reply, for each stream.
const MOST_REPLY_TEXT: usize = 64 << 10;
/// Chunks on their way to the disk.
const MOST_SPOOLING: usize = 16;
/// How often a receipt that cannot be written is tried again: a full disk may be mended meanwhile.
const RECEIPT_TRIES: u32 = 20;
/// Between two tries.
const RECEIPT_PAUSE: Duration = Duration::from_millis(500);

/// Everything that a receipt is made of.
#[derive(Debug)]
pub(super) struct Final {
    pub row: OperationRow,
    /// What was bound.
    pub policy: Policy,
    pub ended: Ended,
    pub seen: Seen,
    pub outputs: Outputs,
}

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

impl Outputs {
    /// Of what writes none.
    pub(super) fn none() -> Self {
        let none = || Stored { output: Output::empty(), head: Vec::new(), error: None };
        Self { stdout: none(), stderr: none() }
    }
}

/// What is told of the output.
#[derive(Debug)]
enum Piece {
    Bytes(Stream, Vec<u8>),
    Beyond(Beyond),
}

/// Writes output on a thread of its own, off the async ones.
#[derive(Debug)]
pub(super) struct Spooler {
    pieces: mpsc::Sender<Piece>,
    task: tokio::task::JoinHandle<Outputs>,
}

impl Spooler {
    /// `written` is told how much can be read, after each chunk.
    pub(super) fn start(store: &Store, operation: OperationId, cap: u64, written: watch::Sender<Written>) -> Self {
        let (pieces, mut incoming) = mpsc::channel::<Piece>(MOST_SPOOLING);
        let mut stdout = Keeper::new(store, operation, Stream::Stdout, cap);
        let mut stderr = Keeper::new(store, operation, Stream::Stderr, cap);
        let task = tokio::task::spawn_blocking(move || {
            while let Some(piece) = incoming.blocking_recv() {
                match piece {
                    Piece::Bytes(Stream::Stdout, bytes) => stdout.write(&bytes),
                    Piece::Bytes(Stream::Stderr, bytes) => stderr.write(&bytes),
                    Piece::Beyond(beyond @ Beyond { stream: Stream::Stdout, .. }) => stdout.beyond(&beyond),
                    Piece::Beyond(beyond @ Beyond { stream: Stream::Stderr, .. }) => stderr.beyond(&beyond),
                }
                written.send_replace(Written { stdout: stdout.spool.readable(), stderr: stderr.spool.readable() });
            }
            Outputs { stdout: stdout.finish(), stderr: stderr.finish() }
        });
        Self { pieces, task }
    }

    pub(super) async fn write(&self, stream: Stream, bytes: Vec<u8>) {
        // The task ends only in `finish`, or by a panic, which `finish` reports.
        drop(self.pieces.send(Piece::Bytes(stream, bytes)).await);
    }

    /// What a stream comes to that is not sent whole.
    pub(super) async fn beyond(&self, beyond: Beyond) {
        drop(self.pieces.send(Piece::Beyond(beyond)).await);
    }

    /// Waits until everything is on the disk.
    pub(super) async fn finish(self) -> Outputs {
        drop(self.pieces);
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

    fn beyond(&mut self, beyond: &Beyond) {
        self.spool.beyond(beyond.bytes, beyond.sha256);
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
    pub(super) async fn receipt(&mut self, last: Final) -> Result<Value, Refusal> {
        let state = state_of(&last.ended);
        self.timing.receipt = Some(self.elapsed());
        let unknown = match &last.ended {
            Ended::Unknown(reason) => Some(reason.clone()),
            Ended::Exited(exit) if !exit.proven_gone => Some("the command's processes are not proven gone".to_owned()),
            Ended::Exited(_) | Ended::Edited(_) | Ended::Failed(_) => None,
        };
        let heads = [last.outputs.stdout.head.clone(), last.outputs.stderr.head.clone()];
        let (mut row, result) = self.result(last, state);
        let event = match &unknown {
            None => draft(event(Kind::OperationResult, row.session, result.clone()))?,
            Some(reason) => {
                let data = json!({ "operation": self.id, "binding": row.binding, "reason": reason });
                draft(event(Kind::OperationUnknown, row.session, data))?
            }
        };
        row.result = Some(result);
        let mut tries = 1;
        loop {
            let change = Change::StepOperation {
                id: self.id,
                from: State::Dispatched,
                to: state,
                decided_by: None,
                comment: None,
                result: row.result.clone(),
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
        row.state = state;
        let [stdout, stderr] = heads;
        Ok(view::result(&row, &stdout, &stderr))
    }

    fn result(&self, last: Final, state: State) -> (OperationRow, Value) {
        let Final { row, policy, ended, seen, outputs } = last;
        let (exit, edited, error) = match ended {
            Ended::Exited(exit) => (*exit, None, None),
            Ended::Edited(edited) => (Exit { changed: changed(&edited), ..Exit::default() }, Some(*edited), None),
            Ended::Failed(failure) => (Exit::default(), None, Some(failure)),
            Ended::Unknown(reason) => (Exit::default(), None, Some(Failure { id: "unknown".into(), message: reason })),
        };
        let lost = [&outputs.stdout, &outputs.stderr].into_iter().find_map(|stored| stored.error.clone());
        let error = error.or_else(|| lost.map(|message| Failure { id: "output-not-kept".into(), message }));
        let measured =
            seen.sandbox.as_ref().map(|sandbox| Isolation::of(self.context.mode(), sandbox.backend == "bubblewrap"));
        let Edited { files, made } = edited.unwrap_or(Edited { files: Vec::new(), made: Vec::new() });
        let result = OperationResult {
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
            binding: row.binding,
            sandbox: seen.sandbox,
            stdout: outputs.stdout.output,
            stderr: outputs.stderr.output,
            left_processes: exit.left_processes,
            changed: exit.changed,
            files,
            quarantined: exit.quarantined,
            egress: Vec::new(),
            usage: exit.usage,
            timing: self.timing,
        };
        let mut value = result.to_value();
        if let Some(map) = value.as_object_mut() {
            if !made.is_empty() {
                map.insert("made".into(), made.iter().map(|path| canon::bytes(path)).collect());
            }
            map.extend(seen.settled.map(|settled| ("settled".to_owned(), settled)));
        }
        (row, value)
    }
}

/// What an edit changed, as a command's is told.
fn changed(edited: &Edited) -> Changed {
    let paths = edited.files.iter().map(|file| file.path.clone()).collect();
    Changed { count: edited.files.len() as u64, paths, complete: true, ..Changed::default() }
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
