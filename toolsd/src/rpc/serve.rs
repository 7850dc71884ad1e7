//! The one connection: served until it ends, whatever ends it; then every command is ended.

use std::{
    fmt, io,
    os::unix::net::UnixStream,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use salaam_core::bridge::MAX_MESSAGE_BYTES;
use salaam_proto::wire::executor_server::ExecutorServer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    signal::unix::{SignalKind, signal},
};
use tokio_stream::StreamExt as _;
use tonic::transport::{Server, server::Connected};

use super::{
    Executor,
    gate::{Closer, Gate},
};

/// Calls at once: the service runs 64 commands at the most, and asks beside them.
const CALLS: u32 = 256;
/// Flow-control windows. An edit that waits for others leaves its plan in its stream's window, which counts against
/// the connection's too: that one has room for all calls, so that no cancel waits behind an edit.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = CALLS * STREAM_WINDOW;
/// Request headers: a path and a few fixed fields.
const HEADER_BYTES: u32 = 16 << 10;
/// One HTTP/2 frame: a chunk of output or input and its frame.
const FRAME_BYTES: u32 = 128 << 10;
/// A last answer that says why gets this long to leave before the bridge closes.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long the engine may take to end and prove every command gone.
const SHUTDOWN: Duration = Duration::from_secs(4);

/// Why the bridge ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The service closed it, or died.
    ByService,
    /// The service sent what no honest service sends.
    Impossible(String),
    /// A signal asked for the end (sudo relays TERM).
    Signalled,
    /// The prober is gone. Only a new executor can make one: it is made before no_new_privs.
    Unproven,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByService => f.write_str("the service closed it"),
            Self::Impossible(what) => write!(f, "impossible: {what}"),
            Self::Signalled => f.write_str("a signal asked for it"),
            Self::Unproven => f.write_str("the prober is gone, and only a new executor can make one"),
        }
    }
}

/// Serves the executor's calls on `stream` until it ends; returns when every command has been ended.
///
/// # Errors
/// The runtime did not take the stream or the signals; nothing was served then.
pub async fn serve(stream: UnixStream, executor: Arc<Executor>) -> io::Result<Ended> {
    stream.set_nonblocking(true)?;
    let gone = Closer::new();
    let tracked = Tracked { stream: tokio::net::UnixStream::from_std(stream)?, gone: gone.clone() };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let service = ExecutorServer::from_arc(Arc::clone(&executor))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    // tonic returns as soon as there can be no further connection, even while one is being served: hence a
    // stream that never ends.
    let incoming = tokio_stream::once(Ok::<_, io::Error>(tracked)).chain(tokio_stream::pending());
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CALLS)
        .http2_max_header_list_size(HEADER_BYTES)
        .max_frame_size(FRAME_BYTES)
        .serve_with_incoming(Gate::new(service, executor.closer.clone()), incoming);
    let ended = tokio::select! {
        biased;
        reason = executor.closer.closed() => Ended::Impossible(reason),
        _ = gone.closed() => Ended::ByService,
        _ = terminate.recv() => Ended::Signalled,
        _ = interrupt.recv() => Ended::Signalled,
        _ = hangup.recv() => Ended::Signalled,
        // What runs goes to its end first; meanwhile what is tried fails, and the service grants nothing new.
        () = async { executor.prober.gone().await; executor.runner.idle().await } => Ended::Unproven,
        served = server => match served {
            Ok(()) => Ended::ByService,
            Err(error) => Ended::Impossible(error.to_string()),
        },
    };
    executor.closer.close(ended.to_string());
    if matches!(ended, Ended::Impossible(_)) {
        tokio::time::sleep(LAST_WORDS).await;
    }
    end_work(&executor).await;
    Ok(ended)
}

/// The engine ends every command; what it cannot end in time dies with this process, whose end closes the
/// control pipes and takes the sandboxes along (PDEATHSIG). An edit on a slow disk still goes to its end: the
/// runtime waits for it.
async fn end_work(executor: &Executor) {
    let mut running = std::mem::take(&mut *executor.running.lock().unwrap_or_else(PoisonError::into_inner));
    let ended = tokio::time::timeout(SHUTDOWN, async {
        tokio::join!(executor.runner.shutdown(), executor.editor.shutdown());
        while running.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        tracing::error!("commands or edits were not over within {} s; ending anyway", SHUTDOWN.as_secs());
    }
}

/// The stream, telling when tonic lets go of it: that is the end of the bridge.
struct Tracked {
    stream: tokio::net::UnixStream,
    gone: Closer,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.gone.close("dropped".into());
    }
}

impl Connected for Tracked {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Tracked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // The end of the stream counts at once, not when every answer under way has been written.
        if let Poll::Ready(Ok(())) = read
            && buffer.filled().len() == before
            && buffer.remaining() > 0
        {
            self.gone.close("end of stream".into());
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
