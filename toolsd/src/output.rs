//! What a command writes: read from its pipes in large pieces, sent on with back-pressure, complete when the
//! command's tree is gone. What is beyond the part that is kept stays here: it is counted and hashed.

mod counter;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use counter::{Counter, Tally};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
};
use salaam_core::{
    bridge::{Beyond, CHUNK_BYTES, RunEvent, Stream},
    kept::Kept,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    net::unix::pipe,
    sync::{mpsc, watch},
};

/// What a pipe holds: larger saves wake-ups; 1 MiB is the most that the kernel gives without a privilege.
const PIPE_BYTES: i32 = 1 << 20;
/// How often the service is told how far a stream has come that it gets no more of.
const TELL_EVERY: u64 = 16 << 20;

/// What is to be sent of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All of it: somebody reads along.
    Whole,
    /// What is kept, and what the rest comes to.
    Kept(Kept),
}

/// Where a command's stream goes.
#[derive(Debug)]
pub struct Way {
    /// Which it is.
    pub stream: Stream,
    /// What of it is sent.
    pub wanted: Wanted,
    /// To whom.
    pub events: mpsc::Sender<RunEvent>,
}

/// Nobody takes the events any more.
struct Unheard;

/// Enlarges a pipe; an account over its quota of pipe memory keeps the ordinary size.
pub fn enlarge(pipe: impl AsFd) {
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
}

/// Sends what comes out of `pipe` until its end, or until `gone` turns true: then what the command wrote lies in
/// the pipe already, so that much is read and no more, whoever else may still hold the pipe.
///
/// Returns early where nobody takes the events any more.
pub async fn forward(pipe: OwnedFd, way: Way, gone: watch::Receiver<bool>) -> io::Result<()> {
    let mut source = Source { pipe: pipe::Receiver::from_owned_fd(pipe)?, gone, left: None };
    // Whoever does not listen is told nothing: the command is ended elsewhere.
    let _: Result<(), Unheard> = match way.wanted {
        Wanted::Whole => way.send(&mut source, u64::MAX, |_| {}).await.map(drop),
        Wanted::Kept(kept) => way.send_kept(&mut source, kept).await,
    };
    Ok(())
}

impl Way {
    /// Sends the next bytes, at most so many; true = there may be more.
    async fn send(&self, source: &mut Source, most: u64, mut see: impl FnMut(&[u8])) -> Result<bool, Unheard> {
        let mut left = most;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let mut bytes = vec![0; room];
            let got = source.read(&mut bytes).await;
            if got == 0 {
                return Ok(false);
            }
            bytes.truncate(got);
            // A prompt of ten bytes must not hold 64 KiB in the queue.
            if got < CHUNK_BYTES / 16 {
                bytes.shrink_to_fit();
            }
            see(&bytes);
            left -= got as u64;
            self.tell(RunEvent::Output(self.stream, bytes)).await?;
        }
        Ok(true)
    }

    /// Sends the head at once, and at the end what the whole came to, and the tail.
    async fn send_kept(&self, source: &mut Source, kept: Kept) -> Result<(), Unheard> {
        let mut hash = Sha256::new();
        if !self.send(source, kept.head, |bytes| hash.update(bytes)).await? {
            return Ok(());
        }
        let mut total = kept.head;
        let tally = match Counter::start(Box::new(Tally::new(hash, kept.tail()))) {
            Ok(counter) => self.count(source, kept, counter, &mut total).await?,
            Err(mut tally) => {
                let mut buffer = vec![0; CHUNK_BYTES];
                while let got @ 1.. = source.read(&mut buffer).await {
                    total += got as u64;
                    tally.take(buffer.get(..got).unwrap_or_default());
                }
                Some(tally)
            }
        };
        // Without its digest a stream has no end, and the service takes that for a loss and not for a result.
        let Some((sha256, mut tail)) = tally.map(|tally| tally.counted()) else {
            return self.tell(RunEvent::Beyond(self.beyond(total, None))).await;
        };
        if total > kept.whole() {
            self.tell(RunEvent::Beyond(self.beyond(total, Some(sha256)))).await?;
        }
        let (older, newer) = tail.take();
        for bytes in older.chunks(CHUNK_BYTES).chain(newer.chunks(CHUNK_BYTES)) {
            self.tell(RunEvent::Output(self.stream, bytes.to_vec())).await?;
        }
        Ok(())
    }

    /// Counts the rest, and tells now and then how far it has come; absent = the tally is lost.
    async fn count(
        &self,
        source: &mut Source,
        kept: Kept,
        mut counter: Counter,
        total: &mut u64,
    ) -> Result<Option<Box<Tally>>, Unheard> {
        let mut told = 0;
        while let Some(mut buffer) = counter.empty().await {
            let filled = source.fill(&mut buffer).await;
            let over = filled < buffer.len();
            *total += filled as u64;
            counter.count(buffer, filled).await;
            if over {
                break;
            }
            if *total > kept.whole() && *total - told >= TELL_EVERY {
                told = *total;
                self.tell(RunEvent::Beyond(self.beyond(told, None))).await?;
            }
        }
        Ok(counter.finish().await)
    }

    const fn beyond(&self, bytes: u64, sha256: Option<salaam_core::digest::Digest>) -> Beyond {
        Beyond { stream: self.stream, bytes, sha256 }
    }

    async fn tell(&self, event: RunEvent) -> Result<(), Unheard> {
        self.events.send(event).await.map_err(|_| Unheard)
    }
}

/// A pipe that a command writes to.
struct Source {
    pipe: pipe::Receiver,
    gone: watch::Receiver<bool>,
    /// Once the command is gone: what is still to be read.
    left: Option<usize>,
}

impl Source {
    /// Reads what is there into `bytes`, and waits for it; 0 = the end. A pipe that cannot be read has ended.
    async fn read(&mut self, bytes: &mut [u8]) -> usize {
        loop {
            if let Some(left) = &mut self.left {
                let most = bytes.len().min(*left);
                let got = bytes.get_mut(..most).map_or(0, |bytes| read_now(&self.pipe, bytes));
                *left -= got;
                return got;
            }
            tokio::select! {
                ready = self.pipe.readable() => {
                    match ready.and_then(|()| self.pipe.try_read(bytes)) {
                        Ok(got) => return got,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => return 0,
                    }
                }
                // An error means that the sender is dropped: the command's task is over and waits for nobody.
                _ = self.gone.wait_for(|gone| *gone) => {
                    self.left = Some(salaam_sys::file::waiting_bytes(&self.pipe).unwrap_or(0));
                }
            }
        }
    }

    /// Reads until `bytes` are full or the end has come; how many there are.
    async fn fill(&mut self, bytes: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest).await {
                0 => break,
                got => filled += got,
            }
        }
        filled
    }
}

/// Reads what lies in the pipe by the kernel's word. The runtime's own word comes late: until its reactor has seen
/// the bytes arrive, `try_read` says that there are none, and a short command's output would be lost.
fn read_now(pipe: &pipe::Receiver, bytes: &mut [u8]) -> usize {
    loop {
        match nix::unistd::read(pipe, bytes) {
            Ok(got) => return got,
            Err(Errno::EINTR) => {}
            Err(_) => return 0,
        }
    }
}

#[cfg(test)]
mod tests;
