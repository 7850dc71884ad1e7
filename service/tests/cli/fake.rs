//! A service that answers what a test tells it to, over a real unix socket, and remembers what it was asked.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// `POST /v1/operations`
    pub(crate) what: String,
    /// The JSON body, or null.
    pub(crate) body: Value,
}

/// Answers one request; the stream may be used for a body that comes piece by piece.
pub(crate) type Answering = dyn Fn(&Asked, &mut Reply) + Send + Sync;

/// The fake.
pub(crate) struct Fake {
    /// A directory of its own, removed at the end.
    pub(crate) dir: PathBuf,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The answer to one request.
pub(crate) struct Reply(UnixStream);

impl Reply {
    /// A whole JSON answer.
    pub(crate) fn json(&mut self, status: u16, body: &Value) {
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = self.0.write_all((head + &body).as_bytes());
    }

    /// The head of an answer that ends with the connection.
    pub(crate) fn begin(&mut self) {
        let _ = self.0.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
    }

    /// One line of it.
    pub(crate) fn line(&mut self, value: &Value) {
        let _ = self.0.write_all(format!("{value}\n").as_bytes());
    }

    /// Waits until the caller has closed the connection.
    pub(crate) fn gone(&mut self) {
        let _ = self.0.read_to_end(&mut Vec::new());
    }
}

impl Fake {
    /// Serves until the test ends.
    pub(crate) fn serving(answer: impl Fn(&Asked, &mut Reply) + Send + Sync + 'static) -> Self {
        let fake = Self::absent();
        let listener = UnixListener::bind(fake.dir.join("operator.sock")).unwrap();
        let asked = Arc::clone(&fake.asked);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream.unwrap(), &asked, &*answer));
            }
        });
        fake
    }

    /// Only the directory.
    pub(crate) fn absent() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("salaam-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        Self { dir, asked: Arc::default() }
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until something was asked.
    pub(crate) fn wait_for(&self, what: &str) -> Asked {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(asked) = self.asked().into_iter().find(|asked| asked.what == what) {
                return asked;
            }
            assert!(Instant::now() < until, "nobody asked {what}: {:?}", self.asked());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn serve(stream: UnixStream, asked: &Mutex<Vec<Asked>>, answer: &Answering) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if let Some(given) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = given.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let what = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let request = Asked { what, body };
    asked.lock().unwrap().push(request.clone());
    answer(&request, &mut Reply(stream));
}

/// The listing of one workspace that holds `path`.
pub(crate) fn workspaces(path: &Path) -> Value {
    json!({"workspaces": [{"workspace": "ws_00000000000070008000000000000001", "name": "here", "path": path}]})
}

/// An approval of `argv` with its true binding.
pub(crate) fn approval(argv: &[&str]) -> Value {
    let zero = "0".repeat(64);
    let bound = json!({
        "operation": "op_00000000000070008000000000000001", "kind": "command",
        "workspace": {"id": "ws_00000000000070008000000000000001", "path": "/srv", "device": 1, "inode": 2, "handle": ""},
        "arguments": {"argv": argv, "stdin": null, "timeout_seconds": 600}, "files": {},
        "policy": {"manifest": zero, "profile": "workspace-write", "isolation": "tools-user-bubblewrap", "network": "none",
                   "limits": {"processes": 512}},
        "worker_epoch": 0, "expires": "2026-01-02T03:04:05.678901Z",
    });
    json!({
        "approval": "ap_00000000000070008000000000000001", "operation": bound["operation"], "session": null,
        "state": "pending", "binding": salaam_core::canon::digest(&bound).unwrap(), "bound": bound, "display": "",
        "flags": [],
    })
}

/// A result in `state`.
pub(crate) fn result(state: &str, exit_code: Option<u8>, signal: Option<u8>) -> Value {
    json!({"result": {"operation": "op_00000000000070008000000000000001", "state": state, "exit_code": exit_code, "signal": signal}})
}
