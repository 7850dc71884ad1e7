//! A response body that is made step by step: each piece is asked for when the client has taken the last one.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes};
use tokio_stream::Stream;

/// What a step gives: a piece and the state for the next step, or the end.
pub(super) type Step<S> = Pin<Box<dyn Future<Output = io::Result<Option<(Bytes, S)>>> + Send>>;

/// A body out of `state` and `step`. Dropping the body drops the state, in whatever step it is: that is how a
/// vanished client ends what it was attached to.
pub(super) fn body<S: Send + 'static>(state: S, step: fn(S) -> Step<S>) -> Body {
    Body::from_stream(Lines { running: Some(step(state)), step })
}

struct Lines<S> {
    running: Option<Step<S>>,
    step: fn(S) -> Step<S>,
}

impl<S> fmt::Debug for Lines<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("ended", &self.running.is_none()).finish_non_exhaustive()
    }
}

impl<S> Stream for Lines<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(running) = self.running.as_mut() else { return Poll::Ready(None) };
        let outcome = ready!(running.as_mut().poll(cx));
        self.running = None;
        match outcome {
            Ok(Some((bytes, state))) => {
                self.running = Some((self.step)(state));
                Poll::Ready(Some(Ok(bytes)))
            }
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}
