//! The bytes of one connection: hyper's own bare refusal gets our JSON, and a vanished peer is noticed even
//! where unread bytes hide its end of file.

use std::{
    io,
    os::{fd::AsFd as _, unix::net},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::UnixStream,
};

/// One connection. Where a request head cannot be parsed, hyper answers by itself with an empty body, and there
/// is no hook for it; so the first write of a connection is looked at, and that one answer is replaced.
///
/// Only the first: nothing but a response head of ours or of hyper's can be there, and ours always declare a
/// body with their refusals. Later writes may hold bytes of a command and are never looked at.
#[derive(Debug)]
pub(super) struct Wire {
    stream: UnixStream,
    first: First,
}

#[derive(Debug)]
enum First {
    /// Nothing was written yet.
    Due,
    /// A replaced refusal is on its way; `written` bytes are out, and `stands_for` bytes of hyper's are eaten.
    Replacing { answer: &'static [u8], written: usize, stands_for: usize },
    /// What comes passes.
    Over,
}

impl Wire {
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self { stream, first: First::Due }
    }

    /// Sends a replacement, if one is due for `bytes`; `None` = pass them on.
    fn replace(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Option<io::Result<usize>>> {
        if matches!(self.first, First::Due) {
            self.first = match replacement(bytes) {
                Some(answer) => First::Replacing { answer, written: 0, stands_for: bytes.len() },
                None => First::Over,
            };
        }
        let First::Replacing { answer, written, stands_for } = &mut self.first else { return Poll::Ready(None) };
        while let Some(rest) = answer.get(*written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::WriteZero.into()))),
                Ok(count) => *written += count,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let eaten = (*stands_for).min(bytes.len());
        self.first = First::Over;
        Poll::Ready(Some(Ok(eaten)))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(self.replace(cx, bytes)) {
            Some(outcome) => Poll::Ready(outcome),
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let head = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        match ready!(self.replace(cx, head)) {
            Some(outcome) => Poll::Ready(outcome),
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Watches for the peer's end by a descriptor of its own. hyper notices an end of file only when it has no
/// unread bytes; a client that pipelines a second request and dies would keep its command running.
#[derive(Debug)]
pub(super) struct Presence(UnixStream);

impl Presence {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        // A duplicate, because one descriptor is registered once and its readiness is hyper's to clear; both
        // see the same socket, and nothing is ever read here.
        let duplicate = net::UnixStream::from(stream.as_fd().try_clone_to_owned()?);
        UnixStream::from_std(duplicate).map(Self)
    }

    /// Resolves when the peer has closed both directions. A peer that only finished sending still reads.
    pub(super) async fn gone(&self) {
        loop {
            let Ok(ready) = self.0.ready(Interest::READABLE).await else { return };
            if hung_up(&self.0) {
                return;
            }
            if ready.is_read_closed() {
                // That readiness never clears, so waiting for it again would spin.
                tokio::time::sleep(HALF_CLOSED_LOOK).await;
            } else {
                // Waits for the next change instead of for what is there already.
                let _cleared = self.0.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
        }
    }
}

fn hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds.iter().any(|fd| fd.revents().is_some_and(|got| got.contains(PollFlags::POLLHUP))),
        Err(_) => false,
    }
}

/// The answer that stands for hyper's, if `bytes` are a bare refusal of hyper's.
fn replacement(bytes: &[u8]) -> Option<&'static [u8]> {
    let text = std::str::from_utf8(bytes).ok()?;
    if !text.ends_with("\r\n\r\n") || !text.to_ascii_lowercase().contains("\r\ncontent-length: 0\r\n") {
        return None;
    }
    match text.get(..13)? {
        "HTTP/1.1 400 " => Some(GARBAGE),
        "HTTP/1.1 414 " | "HTTP/1.1 431 " => Some(HEAD_TOO_LARGE),
        _ => None,
    }
}

/// How often a half-closed peer is looked at.
const HALF_CLOSED_LOOK: Duration = Duration::from_millis(200);

macro_rules! answer {
    ($status:literal, $length:literal, $body:literal) => {{
        const _: () = assert!($body.len() == $length);
        concat!(
            "HTTP/1.1 ",
            $status,
            "\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ",
            $length,
            "\r\n\r\n",
            $body
        )
        .as_bytes()
    }};
}

const GARBAGE: &[u8] = answer!(
    "400 Bad Request",
    127,
    r#"{"error":{"id":"bad-request","message":"this is not an HTTP/1.1 request","fix":"GET /v1/openapi.json describes every request"}}"#
);
const HEAD_TOO_LARGE: &[u8] = answer!(
    "431 Request Header Fields Too Large",
    129,
    r#"{"error":{"id":"head-too-large","message":"the request head is larger than 16384 bytes or 64 fields","fix":"send fewer headers"}}"#
);
