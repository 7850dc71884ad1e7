//! The end of one bridge: seen by whoever comes first, with one reason, once.

use std::{
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    sync::watch,
};

/// Ends the bridge and tells everybody who waits on it.
#[derive(Debug)]
pub(super) struct End {
    reason: watch::Sender<Option<String>>,
    socket: UnixStream,
}

impl End {
    /// Over a duplicate of the bridge's descriptor, so that it can be shut down whoever owns the stream.
    pub(super) fn of(bridge: &UnixStream) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { reason: watch::Sender::new(None), socket: bridge.try_clone()? }))
    }

    /// Closes the bridge; the first reason counts.
    pub(super) fn close(&self, reason: impl Into<String>) {
        self.reason.send_if_modified(|slot| match slot {
            Some(_) => false,
            None => {
                *slot = Some(reason.into());
                true
            }
        });
        // Shut down, not only closed: sudo may hold a copy of the other end. That it is no longer connected
        // is what is wanted.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Says nothing more, and waits until the other end is closed or shut down; whether that was seen in time. Nobody
    /// can be told anything over the bridge from then on. Before [`End::close`], which looks the same from here.
    pub(super) async fn let_go(&self, within: Duration) -> bool {
        // Already closed by the other side, or not connected: then it reads the end all the same.
        let _ = self.socket.shutdown(Shutdown::Write);
        let reading = async {
            let mut stream = tokio::net::UnixStream::from_std(self.socket.try_clone()?)?;
            let mut said = [0; 4096];
            // What it still says is from nobody that is known.
            while stream.read(&mut said).await? > 0 {}
            io::Result::Ok(())
        };
        matches!(tokio::time::timeout(within, reading).await, Ok(Ok(())))
    }

    /// Why it is closed.
    pub(super) fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Resolves with the reason once it is closed.
    pub(super) async fn closed(&self) -> String {
        match self.reason.subscribe().wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        }
    }
}

/// The bridge's stream as tonic owns it: its end is the end of the bridge.
#[derive(Debug)]
pub(super) struct Tracked {
    stream: tokio::net::UnixStream,
    end: Arc<End>,
}

impl Tracked {
    pub(super) const fn new(stream: tokio::net::UnixStream, end: Arc<End>) -> Self {
        Self { stream, end }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.end.close("the bridge broke");
    }
}

impl AsyncRead for Tracked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &read {
            Poll::Ready(Ok(())) if buffer.filled().len() == before && buffer.remaining() > 0 => {
                self.end.close("the executor closed the bridge");
            }
            Poll::Ready(Err(error)) => self.end.close(format!("the bridge broke: {error}")),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for Tracked {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
