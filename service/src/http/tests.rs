//! The operator socket as its clients see it: over real sockets, with verbs that need no application.

mod contract;
mod journal;
mod limits;
mod peers;
mod requests;
mod socket;

use std::{
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    body::{Body, Bytes},
    middleware,
    response::Response,
    routing::{get, post},
};
use salaam_core::id::OperationId;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    ask::{Asked, Checked, CheckedOrEmpty, Named},
    front::in_time,
    limits::Times,
    lines,
    seat::Seat,
    socket::{SOCKET_NAME, listen},
    verbs::{approvals::Denial, events::WhichEvents, operations::Propose},
};
use crate::app::{Refusal, Who, Work};

/// A directory of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("salaam-http-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join(SOCKET_NAME)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A served socket on a runtime of its own.
struct Stage {
    scratch: Scratch,
    held: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stage {
    fn new() -> Self {
        Self::with_group(None)
    }

    fn with_group(operators_gid: Option<u32>) -> Self {
        Self::with(operators_gid, Times::USUAL)
    }

    fn with(operators_gid: Option<u32>, times: Times) -> Self {
        enough_descriptors();
        let scratch = Scratch::new();
        if let Some(gid) = operators_gid {
            std::os::unix::fs::chown(&scratch.0, None, Some(gid)).unwrap();
            std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o710)).unwrap();
        }
        let listening = listen(&scratch.0, operators_gid).unwrap();
        let held = Arc::new(AtomicUsize::new(0));
        let router = verbs(held.clone(), times);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let stopped = async { drop(stopped.await) };
            runtime.block_on(listening.serve_router(router, times, stopped)).unwrap();
        });
        Self { scratch, held, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.scratch.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes and reads to the end of the answer's connection.
    fn say(&self, bytes: &[u8]) -> (u16, Value) {
        let mut stream = self.connect();
        // The service may answer and close before it has read everything.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream)
    }

    fn ask(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> (u16, Value) {
        let mut bytes = format!(
            "{method} {path} HTTP/1.1\r\nhost: salaam\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body);
        self.say(&bytes)
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, "application/json", body.to_string().as_bytes())
    }

    fn is_well(&self) {
        let (status, body) = self.ask("GET", "/v1/who", "", b"");
        assert_eq!((status, &body["via"]), (200, &json!("operator-socket")));
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

/// Verbs without an application: who asks, what a body was understood as, and some that last.
fn verbs(held: Arc<AtomicUsize>, times: Times) -> Router {
    let holding = held.clone();
    let flooding = held.clone();
    let stuck = Router::new()
        .route("/v1/stuck", get(std::future::pending::<()>))
        .route_layer(middleware::from_fn_with_state(times.answer, in_time));
    Router::new()
        .merge(stuck)
        .route(
            "/v1/asked/{id}",
            get(async |Named(_): Named<OperationId>, Asked(_): Asked<WhichEvents>| Json(json!({}))),
        )
        .route("/v1/panic", get(async || -> () { panic!("a mistake of ours") }))
        .route(
            "/v1/flood",
            get(async move |Extension(seat): Extension<Seat>| -> Result<Response, Refusal> {
                let state = (seat.stay()?, flooding);
                Ok(Response::new(lines::body(state, |(stay, made)| {
                    Box::pin(async move {
                        made.fetch_add(1, Ordering::SeqCst);
                        Ok(Some((Bytes::from(vec![b'x'; 64 * 1024]), (stay, made))))
                    })
                })))
            }),
        )
        .route(
            "/v1/who",
            get(async |Extension(who): Extension<Who>| {
                Json(json!({"uid": who.uid, "pid": who.pid, "principal": who.principal, "via": who.via}))
            }),
        )
        .route(
            "/v1/operations",
            post(async |Extension(who), Checked(asked): Checked<Propose>| -> Result<Json<Value>, Refusal> {
                Ok(Json(match asked.into_proposal(who)?.work {
                    Work::Command { command, stdin, .. } => {
                        json!({"command": command.display(), "stdin": stdin.map(|bytes| bytes.len())})
                    }
                    Work::Edit { changes } => json!({"edits": format!("{changes:?}")}),
                    Work::Undo { operation } => json!({"undo": operation}),
                }))
            }),
        )
        .route("/v1/deny", post(async |CheckedOrEmpty(_): CheckedOrEmpty<Denial>| Json(json!({}))))
        .route(
            "/v1/hold",
            post(async move |Extension(seat): Extension<Seat>| -> Result<Json<Value>, Refusal> {
                let _stay = seat.stay()?;
                let _held = Held::new(&holding);
                std::future::pending::<()>().await;
                Ok(Json(json!({})))
            }),
        )
        .route(
            "/v1/stream",
            get(async move |Extension(seat): Extension<Seat>| -> Result<Response, Refusal> {
                let state = (seat.stay()?, Held::new(&held));
                Ok(Response::new(quiet_after_one_line(state)))
            }),
        )
}

fn quiet_after_one_line<S: Send + 'static>(state: S) -> Body {
    lines::body((0, state), |(said, state)| {
        Box::pin(async move {
            if said > 0 {
                std::future::pending::<()>().await;
            }
            Ok(Some((Bytes::from_static(b"{}\n"), (said + 1, state))))
        })
    })
}

/// Counts what is attached; dropped with its handler or body.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reads one answer to the end of the connection.
fn read_answer(stream: &mut UnixStream) -> (u16, Value) {
    let mut bytes = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let status = text.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Waits until `holds`, for ten seconds at the most.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} did not come to hold");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn error_of(answer: &(u16, Value)) -> (u16, &str, &str) {
    let (status, body) = answer;
    let field = |name: &str| body["error"][name].as_str().unwrap_or("");
    assert!(!field("fix").is_empty(), "no fix in {body}");
    (*status, field("id"), field("message"))
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Clients and service share one process here, which doubles what each needs.
fn enough_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Tests that need other accounts say so where there is only one.
fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root, for a second account");
    }
    root
}
