//! The task that owns the reader of one workspace: one question after the other, a new reader after each that
//! ended, none while nobody asks.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use salaam_core::reader::{Answer, Request};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    error::ReaderError,
    process::{Options, Process},
};

/// A question and where its answer goes.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Result<Answer, ReaderError>>,
}

/// Answers until nobody can ask any more, or nobody has for `idle`.
pub(super) async fn own(options: Options, root: OwnedFd, mut questions: mpsc::Receiver<Question>, idle: Duration) {
    let mut reader: Option<Process> = None;
    while let Ok(Some(Question { request, answer })) = timeout(idle, questions.recv()).await {
        // Whoever asked has gone; an answer would be work for nobody.
        if answer.is_closed() {
            continue;
        }
        let mut process = match live(reader.take(), &options, &root).await {
            Ok(process) => process,
            Err(error) => {
                tracing::warn!(%error, "no reader");
                drop(answer.send(Err(error)));
                continue;
            }
        };
        match process.ask(request).await {
            Ok(answered) => {
                reader = Some(process);
                drop(answer.send(Ok(answered)));
            }
            Err(error) => {
                tracing::warn!(pid = process.pid(), %error, "a reader is ended");
                process.end().await;
                drop(answer.send(Err(error)));
            }
        }
    }
    // From here on whoever asks finds the channel closed, and gets another owner.
    questions.close();
    while let Ok(Question { answer, .. }) = questions.try_recv() {
        drop(answer.send(Err(ReaderError::Stopping)));
    }
    if let Some(process) = reader {
        process.end().await;
    }
}

/// The reader that there is, or a new one.
async fn live(reader: Option<Process>, options: &Options, root: &OwnedFd) -> Result<Process, ReaderError> {
    if let Some(mut process) = reader {
        if !process.has_ended().await {
            return Ok(process);
        }
        tracing::warn!(pid = process.pid(), "a reader ended while nobody asked it");
    }
    Process::start(options, root.as_fd()).await
}
