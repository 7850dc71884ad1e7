//! Counting what nobody keeps: hashed on a thread of its own, so that the pipe is read meanwhile, and at the
//! priority of a command: many that flood take no turn from those that answer.

use std::{sync::mpsc::channel, thread};

use salaam_core::{digest::Digest, kept::Tail};
use salaam_launch::COMMAND_NICENESS;
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};

/// Large, since nobody waits for what is in it; small enough to stay in a processor's cache.
const BUFFER_BYTES: usize = 256 << 10;
/// One is filled, one is hashed, one is on its way.
const BUFFERS: usize = 3;

/// A stream as far as it has come: its digest in the making, and its last bytes.
#[derive(Debug)]
pub(super) struct Tally {
    hash: Sha256,
    tail: Tail,
}

impl Tally {
    /// Goes on from what was hashed before.
    pub(super) const fn new(hash: Sha256, tail: Tail) -> Self {
        Self { hash, tail }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.tail.push(bytes);
    }

    /// The digest of the whole, and its end.
    pub(super) fn counted(self) -> (Digest, Tail) {
        (Digest::from_bytes(self.hash.finalize().into()), self.tail)
    }
}

/// A thread that keeps a tally, and the buffers that go round between it and whoever reads.
#[derive(Debug)]
pub(super) struct Counter {
    full: mpsc::Sender<(Vec<u8>, usize)>,
    empty: mpsc::Receiver<Vec<u8>>,
    tally: oneshot::Receiver<Box<Tally>>,
}

impl Counter {
    /// Starts the thread, which ends with this; gives the tally back where none can be started.
    pub(super) fn start(tally: Box<Tally>) -> Result<Self, Box<Tally>> {
        let (full, mut incoming) = mpsc::channel::<(Vec<u8>, usize)>(BUFFERS);
        let (back, empty) = mpsc::channel(BUFFERS);
        let (begin, begun) = channel::<Box<Tally>>();
        let (tell, told) = oneshot::channel();
        for _ in 0..BUFFERS {
            // There is room for all of them.
            let _ = back.try_send(vec![0; BUFFER_BYTES]);
        }
        // Not one of the runtime's: those are used again, and a priority once lowered stays so.
        let started = thread::Builder::new().name("counter".into()).spawn(move || {
            // At the ordinary one it counts, too.
            let _ = salaam_sys::priority::lower_own(COMMAND_NICENESS);
            let Ok(mut tally) = begun.recv() else { return };
            while let Some((buffer, filled)) = incoming.blocking_recv() {
                tally.take(buffer.get(..filled).unwrap_or(&buffer));
                // Refused only where nobody reads any more.
                let _ = back.try_send(buffer);
            }
            // The same.
            let _ = tell.send(tally);
        });
        match started {
            Ok(_) => begin.send(tally).map(|()| Self { full, empty, tally: told }).map_err(|unsent| unsent.0),
            Err(_) => Err(tally),
        }
    }

    /// A buffer to fill, as soon as there is one.
    pub(super) async fn empty(&mut self) -> Option<Vec<u8>> {
        self.empty.recv().await
    }

    /// Takes what was filled of a buffer.
    pub(super) async fn count(&self, buffer: Vec<u8>, filled: usize) {
        // Refused only by a thread that has ended, which `finish` tells.
        let _ = self.full.send((buffer, filled)).await;
    }

    /// Waits until everything is hashed; absent = the thread died.
    pub(super) async fn finish(self) -> Option<Box<Tally>> {
        drop((self.full, self.empty));
        self.tally.await.ok()
    }
}
