//! The two directions of the link: frames that are read only when somebody wants one, and frames that are written
//! by a task of their own.

use std::{io, time::Duration};

use salaam_core::worker::{FromWorker, MAX_FROM_WORKER_BYTES, MAX_TO_WORKER_BYTES, ToWorker};
use salaam_proto::{
    frame::{self, FrameError, HEADER_BYTES},
    worker_wire as wire,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

/// For a worker to take one frame. It does nothing but read while it has nothing to say.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Frames that wait for a slow reader. There are more only while past turns are told, and then the teller waits.
const QUEUED: usize = 2;
/// Read at once; memory grows with what arrives, not with what a header promises.
const PIECE: usize = 64 << 10;

/// What the worker says.
#[derive(Debug)]
pub(super) struct Hearing {
    stream: OwnedReadHalf,
    /// What has arrived of the next frame, and no byte after it: the rest is the worker's to wait on.
    arrived: Vec<u8>,
}

impl Hearing {
    pub(super) const fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, arrived: Vec::new() }
    }

    /// The next message; absent = the worker closed the link. It may be dropped while it waits, and called again.
    pub(super) async fn next(&mut self) -> Result<Option<FromWorker>, FrameError> {
        loop {
            let whole = match self.arrived.first_chunk::<HEADER_BYTES>() {
                None => HEADER_BYTES,
                Some(header) => {
                    let whole = HEADER_BYTES + frame::length(*header, MAX_FROM_WORKER_BYTES)?;
                    if self.arrived.len() == whole {
                        let arrived = std::mem::take(&mut self.arrived);
                        let body = arrived.get(HEADER_BYTES..).unwrap_or_default();
                        return frame::value::<wire::FromWorker, _>(body).map(Some);
                    }
                    whole
                }
            };
            let missing = whole.saturating_sub(self.arrived.len()).min(PIECE);
            // Cancel-safe, as AsyncReadExt::read_buf says: what was read is in `arrived`.
            match (&mut self.stream).take(missing as u64).read_buf(&mut self.arrived).await {
                Ok(0) if self.arrived.is_empty() => return Ok(None),
                Ok(0) => return Err(FrameError::Torn),
                Ok(_) => {}
                Err(error) => return Err(FrameError::Io(error)),
            }
        }
    }
}

/// What the worker is told.
#[derive(Debug)]
pub(super) struct Telling {
    queue: mpsc::Sender<Vec<u8>>,
    writer: JoinHandle<Refused>,
    refused: Option<Refused>,
}

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It was not read in time.
    Stalled,
    /// The worker closed the link.
    Closed,
}

impl Telling {
    /// Starts the task that writes.
    pub(super) fn new(stream: OwnedWriteHalf, taken_within: Duration) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUED);
        Self { queue, writer: tokio::spawn(write(stream, waiting, taken_within)), refused: None }
    }

    /// Frames a message.
    pub(super) fn frame(message: ToWorker) -> io::Result<Vec<u8>> {
        frame::framed(&wire::ToWorker::from(message), MAX_TO_WORKER_BYTES).map_err(io::Error::other)
    }

    /// Puts a frame in the queue; waits only where the queue is full, and no longer than the worker is given.
    pub(super) async fn send(&self, frame: Vec<u8>) -> Result<(), ()> {
        self.queue.send(frame).await.map_err(|_| ())
    }

    /// Resolves once a frame was not taken. It may be dropped while it waits, and called again.
    pub(super) async fn refused(&mut self) -> Refused {
        match self.refused {
            Some(refused) => refused,
            None => *self.refused.insert((&mut self.writer).await.unwrap_or(Refused::Closed)),
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

async fn write(mut stream: OwnedWriteHalf, mut waiting: mpsc::Receiver<Vec<u8>>, taken_within: Duration) -> Refused {
    while let Some(frame) = waiting.recv().await {
        match timeout(taken_within, stream.write_all(&frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Refused::Closed,
            Err(_) => return Refused::Stalled,
        }
    }
    Refused::Closed
}
