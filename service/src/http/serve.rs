//! The accept loop: who comes in, who has to wait, who has to go, and how it ends.
//!
//! The loop owns every connection's task. When all seats are taken, the oldest connection that has no request
//! in progress gives its seat to the newcomer: slow clients, however many, keep nobody out.

use std::{collections::HashMap, io, sync::Arc};

use axum::{Router, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::geteuid,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{sleep, timeout},
};
use tower::ServiceExt as _;

use super::{
    front,
    limits::{self, ACCEPT_REST, DRAIN_TIME, HEAD_BYTES, HEAD_FIELDS, STRANGERS, Times},
    peer::{self, Admission, Verdict},
    routes,
    seat::{House, Seat},
    socket::{Listening, SocketError},
    wire::{Presence, Wire},
};
use crate::app::App;

impl Listening {
    /// Serves operators until the application stops, then lets requests in progress end, for at most two
    /// seconds. The socket is gone when this returns.
    ///
    /// # Errors
    /// The listener could not be given to the runtime.
    pub async fn serve(self, app: Arc<App>) -> Result<(), SocketError> {
        let router = routes::verbs(Times::USUAL.answer).with_state(app.clone());
        self.serve_router(router, Times::USUAL, async move { app.leaving().await }).await
    }

    /// The same for any verbs; `stop` resolves when no more connections are to be taken.
    pub(super) async fn serve_router(
        self,
        router: Router,
        times: Times,
        stop: impl Future<Output = ()>,
    ) -> Result<(), SocketError> {
        let path = self.path().to_owned();
        let listener = UnixListener::from_std(self.listener).map_err(|source| SocketError::Step {
            step: "serve",
            path,
            source,
        })?;
        let admission = Admission { service_uid: geteuid().as_raw(), operators_gid: self.operators_gid };
        let mut hall = Hall::new(front::before(router, times), times, admission);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = hall.tasks.join_next_with_id() => hall.left(ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => hall.enter(stream),
                    Err(error) => {
                        // Whoever is idle may hold the descriptor that is missing.
                        hall.make_room();
                        rest(&error).await;
                    }
                },
            }
        }
        drop(listener);
        drop(self.file);
        hall.close().await;
        Ok(())
    }
}

/// Everybody who is connected.
struct Hall {
    door: Door,
    house: House,
    seats: usize,
    taken: HashMap<Id, Taken>,
    tasks: JoinSet<()>,
    stopping: watch::Sender<bool>,
    arrivals: u64,
}

/// What every connection's task needs.
#[derive(Clone)]
struct Door {
    router: Router,
    times: Times,
    admission: Admission,
    strangers: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

/// A seat that is taken.
struct Taken {
    arrival: u64,
    seat: Seat,
    task: AbortHandle,
}

impl Hall {
    fn new(router: Router, times: Times, admission: Admission) -> Self {
        let (stopping, seen) = watch::channel(false);
        let strangers = Arc::new(Semaphore::new(STRANGERS));
        let seats = limits::seats(descriptors());
        Self {
            door: Door { router, times, admission, strangers, stopping: seen },
            house: House::new(seats),
            seats,
            taken: HashMap::new(),
            tasks: JoinSet::new(),
            stopping,
            arrivals: 0,
        }
    }

    fn enter(&mut self, stream: UnixStream) {
        let peer = match peer::read(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "a peer that the kernel does not name is not served");
                return;
            }
        };
        match peer::admit(&peer, self.door.admission) {
            Verdict::Service | Verdict::Root | Verdict::Member => {}
            Verdict::Stranger => {
                self.turn_away(stream, peer);
                return;
            }
        }
        if self.taken.len() >= self.seats && !self.make_room() {
            tracing::warn!(seats = self.seats, "all connections have requests in progress; a new one is closed");
            return;
        }
        let seat = Seat::new(self.house.clone());
        let task = self.tasks.spawn(operator(self.door.clone(), stream, peer, seat.clone()));
        self.arrivals += 1;
        self.taken.insert(task.id(), Taken { arrival: self.arrivals, seat, task });
    }

    /// Strangers are answered aside, a few at a time; the rest are closed unheard.
    fn turn_away(&mut self, stream: UnixStream, peer: peer::Peer) {
        tracing::warn!(uid = peer.uid, gid = peer.gid, pid = peer.pid, "a peer that is no operator is turned away");
        if let Ok(permit) = self.door.strangers.clone().try_acquire_owned() {
            let door = self.door.clone();
            self.tasks.spawn(async move {
                stranger(door, stream, peer).await;
                drop(permit);
            });
        }
    }

    fn make_room(&mut self) -> bool {
        let idle = self.taken.iter().filter(|(_, taken)| taken.seat.is_idle());
        let Some(oldest) = idle.min_by_key(|(_, taken)| taken.arrival).map(|(id, _)| *id) else { return false };
        if let Some(taken) = self.taken.remove(&oldest) {
            taken.task.abort();
        }
        true
    }

    fn left(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a request ended in a panic; its connection was closed");
                }
                error.id()
            }
        };
        self.taken.remove(&id);
    }

    async fn close(mut self) {
        // No receiver left means no connection left.
        self.stopping.send_replace(true);
        let all_left = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(DRAIN_TIME, all_left).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "requests that did not end in time are cut off");
        }
        self.tasks.shutdown().await;
    }
}

/// Serves one operator's connection until either side has enough.
async fn operator(door: Door, stream: UnixStream, peer: peer::Peer, seat: Seat) {
    let who = peer::who(&peer).await;
    let router = door.router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(who.clone());
        request.extensions_mut().insert(seat.clone());
        router.clone().oneshot(request)
    });
    speak(door.times, door.stopping, stream, service).await;
}

/// Tells one stranger why it is not served, whatever it asks; its body is not read.
async fn stranger(door: Door, stream: UnixStream, peer: peer::Peer) {
    let refusal = peer::not_an_operator(&peer, door.admission).await;
    let service = service_fn(move |_: hyper::Request<Incoming>| {
        let response = axum::response::IntoResponse::into_response(refusal.clone());
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    speak(door.times, door.stopping, stream, service).await;
}

async fn speak<S>(times: Times, mut stopping: watch::Receiver<bool>, stream: UnixStream, service: S)
where
    S: hyper::service::Service<
            hyper::Request<Incoming>,
            Response = axum::response::Response,
            Error = std::convert::Infallible,
        >,
{
    let presence = match Presence::of(&stream) {
        Ok(presence) => presence,
        Err(error) => {
            tracing::warn!(%error, "a connection is closed because its end could not be watched");
            return;
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_FIELDS)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Wire::new(stream)), service);
    tokio::pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            outcome = &mut connection => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            // Dropping the connection drops the handler and what it is attached to.
            () = presence.gone() => return,
            _ = stopping.wait_for(|stop| *stop), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The descriptors that this process may have; none that we know of where the kernel does not say.
fn descriptors() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Accepting failed: out of descriptors or memory, or a client that was gone already. All pass.
async fn rest(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    sleep(ACCEPT_REST).await;
}
