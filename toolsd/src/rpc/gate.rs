//! The gate: an answer that is neither ok nor a refusal means that the request was impossible, and an
//! impossible request closes the bridge. It also sees what tonic answers by itself: an unknown method, a
//! message above the limit, bytes that are no message.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use salaam_core::{result::Failure, show};
use salaam_proto::{WireError, refusal_details, wire::executor_server::ExecutorServer};
use tokio::sync::watch;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
};

use super::Executor;

/// What a refusal looks like: nothing took effect, and the failure is in the details. Its text stays out of
/// the status message, which would travel twice.
pub(super) fn refused(failure: Failure) -> Status {
    Status::with_details(Code::FailedPrecondition, "refused", refusal_details(failure).into())
}

/// A request that no honest service makes.
pub(super) fn impossible(why: impl ToString) -> Status {
    Status::invalid_argument(why.to_string())
}

impl From<WireErrorAt> for Status {
    fn from(error: WireErrorAt) -> Self {
        impossible(format!("{}: {}", error.0, error.1))
    }
}

/// A wire error and the call that it came in.
pub(super) struct WireErrorAt(pub(super) &'static str, pub(super) WireError);

/// Closes the bridge; the first reason counts.
#[derive(Debug, Clone)]
pub(super) struct Closer(Arc<watch::Sender<Option<String>>>);

impl Closer {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    pub(super) fn close(&self, reason: String) {
        self.0.send_if_modified(|slot| match slot {
            Some(_) => false,
            None => {
                *slot = Some(reason);
                true
            }
        });
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Resolves with the reason once the bridge is to be closed.
    pub(super) async fn closed(&self) -> String {
        let mut seen = self.0.subscribe();
        match seen.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "its owner is gone".into(),
        }
    }
}

/// The executor's service behind the gate.
#[derive(Clone)]
pub(super) struct Gate {
    inner: ExecutorServer<Executor>,
    closer: Closer,
}

impl Gate {
    pub(super) const fn new(inner: ExecutorServer<Executor>, closer: Closer) -> Self {
        Self { inner, closer }
    }
}

impl Service<http::Request<Body>> for Gate {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let called = show::line(request.uri().path().as_bytes()).chars().take(128).collect::<String>();
        let closer = self.closer.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A call that failed answers with its status in the headers; a stream that failed later closes
            // the bridge itself (`run`).
            match Status::from_header_map(answer.headers()).map(|status| (status.code(), status)) {
                None | Some((Code::Ok | Code::FailedPrecondition | Code::Cancelled, _)) => {}
                Some((_, status)) => {
                    closer.close(format!("{called}: {}", show::line(status.message().as_bytes())));
                }
            }
            Ok(answer)
        })
    }
}
