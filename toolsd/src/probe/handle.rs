//! The prober as the executor's calls see it. One task owns the socket.

use std::{
    io,
    time::{Duration, Instant},
};

use nix::unistd::Pid;
use salaam_core::bridge::{Action, Attempt, Attempted, MAX_SAID_BYTES};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

use super::child::{ACTIONS, Child, NO_CODE};

/// The programs of one call together. They share it, so that a slow one takes from the others only what they do not
/// need: one after the other each answers within milliseconds, on a busy machine within a second or two.
const PROGRAMS: Duration = Duration::from_secs(30);
/// All attempts of one call: the programs, and system calls that do not block. Below what the service waits for an
/// answer.
const WITHIN: Duration = Duration::from_secs(40);
/// Calls that wait for the prober; the service makes one at a time.
const WAITING: usize = 4;

/// A running prober.
#[derive(Debug, Clone)]
pub struct Prober {
    asks: mpsc::Sender<Ask>,
    pid: Pid,
}

#[derive(Debug)]
struct Ask {
    attempts: Vec<Attempt>,
    answer: oneshot::Sender<io::Result<Vec<Attempted>>>,
}

impl Prober {
    /// Takes a started prober over; must be called inside the runtime. Its task ends with the last handle.
    pub fn adopt(child: Child) -> io::Result<Self> {
        child.socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(child.socket)?;
        let (asks, asked) = mpsc::channel(WAITING);
        tokio::spawn(own(socket, asked));
        Ok(Self { asks, pid: child.pid })
    }

    /// Its process.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until it is gone, or so late that nothing it says counts any more.
    pub async fn gone(&self) {
        self.asks.closed().await;
    }

    /// Has everything tried, in order.
    ///
    /// # Errors
    /// The prober is gone or did not answer: nothing is proven then.
    pub async fn attempt(&self, attempts: Vec<Attempt>) -> io::Result<Vec<Attempted>> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the prober is gone");
        let (answer, answered) = oneshot::channel();
        self.asks.send(Ask { attempts, answer }).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn own(mut socket: tokio::net::UnixStream, mut asked: mpsc::Receiver<Ask>) {
    loop {
        let ask = tokio::select! {
            ask = asked.recv() => ask,
            () = unasked(&socket) => return,
        };
        let Some(Ask { attempts, answer }) = ask else { return };
        let outcome = tokio::time::timeout(WITHIN, exchange(&mut socket, attempts))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let broken = outcome.is_err();
        // Whoever asked may have gone away; the exchange is complete all the same.
        let _ = answer.send(outcome);
        if broken {
            // A late answer would be taken for the next one's.
            return;
        }
    }
}

/// Waits until the prober ends, or says something unasked, which no prober does.
async fn unasked(socket: &tokio::net::UnixStream) {
    // What the runtime knows of an earlier answer says nothing of now: only the kernel's word does.
    while socket.readable().await.is_ok() {
        match socket.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}

async fn exchange(socket: &mut tokio::net::UnixStream, attempts: Vec<Attempt>) -> io::Result<Vec<Attempted>> {
    let mut results = Vec::with_capacity(attempts.len());
    let until = Instant::now() + PROGRAMS;
    for attempt in attempts {
        let length = u16::try_from(attempt.path.len()).map_err(io::Error::other)?;
        let left = until.saturating_duration_since(Instant::now());
        let mut message = vec![code(attempt.action)?];
        message.extend(u32::try_from(left.as_millis()).map_err(io::Error::other)?.to_le_bytes());
        message.extend(length.to_le_bytes());
        message.extend(&attempt.path);
        socket.write_all(&message).await?;
        let errno = socket.read_i32_le().await?;
        let code = Some(socket.read_i32_le().await?).filter(|code| *code != NO_CODE);
        let mut said = vec![0; usize::from(socket.read_u16_le().await?)];
        socket.read_exact(&mut said).await?;
        results.push(Attempted { id: attempt.id, errno, code, said: sentence(&said) });
    }
    Ok(results)
}

fn code(action: Action) -> io::Result<u8> {
    let known = ACTIONS.iter().find(|(known, _)| *known == action);
    known.map(|(_, code)| *code).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Text, of at most what the bridge takes: what replaces a byte that is no UTF-8 is longer than it.
fn sentence(said: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(said).into_owned();
    let end = (0..=MAX_SAID_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    text
}
