//! HTTP/1.1 over the operator socket: one connection a request, the listener's uid checked before a byte is
//! sent.

use std::{io, os::unix::fs::MetadataExt, time::Duration};

use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use nix::{
    errno::Errno,
    unistd::{Gid, Group, Uid},
};
use serde_json::Value;
use tokio::{net::UnixStream, task::JoinHandle, time};

use super::{
    discover::{self, Place},
    trouble::Trouble,
};

/// How long a listener may take to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer that is no stream may take; adding a workspace and cancelling wait for the executor.
const ANSWER: Duration = Duration::from_secs(60);
/// The largest answer, and the largest line of a stream: an approval of the longest command, every character
/// of it escaped twice.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Speaks to one service.
#[derive(Debug, Clone)]
pub(super) struct Client {
    place: Place,
}

impl Client {
    /// For the service at `place`; connects at each request.
    pub(super) fn new(place: Place) -> Self {
        Self { place }
    }

    /// GET, answered by one JSON document.
    pub(super) async fn fetch(&self, path: &str) -> Result<Value, Trouble> {
        self.document(Method::GET, path, None).await
    }

    /// POST of one JSON document, answered by one.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        self.document(Method::POST, path, Some(body)).await
    }

    /// DELETE.
    pub(super) async fn delete(&self, path: &str) -> Result<Value, Trouble> {
        self.document(Method::DELETE, path, None).await
    }

    /// A request whose answer is read piece by piece.
    pub(super) async fn open(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Stream, Trouble> {
        let (response, connection) = self.send(method, path, body).await?;
        let status = response.status();
        let mut stream = Stream { body: response.into_body(), connection, line: Vec::new(), ended: false };
        if status.is_success() {
            return Ok(stream);
        }
        let body = time::timeout(ANSWER, stream.whole()).await.map_err(|_| late(path))??;
        Err(self.refusal(status, &body))
    }

    async fn document(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Trouble> {
        let whole = async {
            let mut stream = self.open(method, path, body).await?;
            stream.whole().await
        };
        let bytes = time::timeout(ANSWER, whole).await.map_err(|_| late(path))??;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|why| broken("reading the service's answer", &why))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Response<Incoming>, Connection), Trouble> {
        let stream = self.connect().await?;
        let asking = |why: hyper::Error| broken("asking the service", &why);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(asking)?;
        let connection = Connection(tokio::spawn(async move {
            // Its errors reach whoever reads the answer.
            let _ = connection.await;
        }));
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "salaam");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(Full::new(bytes)).map_err(|why| broken("asking the service", &why))?;
        let response = sender.send_request(request).await.map_err(asking)?;
        Ok((response, connection))
    }

    async fn connect(&self) -> Result<UnixStream, Trouble> {
        let socket = &self.place.socket;
        let connecting = async {
            loop {
                match UnixStream::connect(socket).await {
                    // The queue of the listener is full: unix(7) answers EAGAIN at once.
                    Err(why) if why.raw_os_error() == Some(Errno::EAGAIN as i32) => {
                        time::sleep(Duration::from_millis(20)).await;
                    }
                    other => return other,
                }
            }
        };
        let stream = time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections")))
            .map_err(|why| self.unreachable(why))?;
        let peer = stream.peer_cred().map_err(|why| broken("asking the kernel who listens", &why))?;
        if peer.uid() != self.place.owner {
            return Err(Trouble::WrongListener {
                socket: socket.clone(),
                expected: discover::account(self.place.owner),
                found: discover::account(peer.uid()),
            });
        }
        Ok(stream)
    }

    fn unreachable(&self, why: io::Error) -> Trouble {
        let socket = self.place.socket.clone();
        match why.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                Trouble::NotRunning { socket, why }
            }
            io::ErrorKind::PermissionDenied => self.not_an_operator(),
            io::ErrorKind::InvalidInput => Trouble::refused(
                "socket-path-long",
                format!("the socket path {} is too long for unix(7)", socket.display()),
                "use a shorter SALAAM_RUNTIME_DIR",
            ),
            _ => Trouble::Local { attempted: "connecting to", path: socket, source: why },
        }
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> Trouble {
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        let refused = Trouble::of_answer(status.as_u16(), &body);
        if status == StatusCode::FORBIDDEN && refused.id() == "not-an-operator" {
            return self.not_an_operator();
        }
        refused
    }

    fn not_an_operator(&self) -> Trouble {
        // A directory that was named by hand may be another account's than the one expected there; its group, where
        // that may pass, is the operators'.
        let directory = self.place.socket.parent().and_then(|directory| std::fs::metadata(directory).ok());
        let owner = directory.as_ref().map_or(self.place.owner, MetadataExt::uid);
        let passing = directory.filter(|found| found.mode() & 0o011 == 0o010).map(|found| Gid::from_raw(found.gid()));
        let passing = passing.and_then(|gid| Group::from_gid(gid).ok().flatten()).map(|group| group.name);
        Trouble::NotOperator {
            you: discover::account(Uid::effective().as_raw()),
            owner: discover::account(owner),
            account: discover::account_name(owner).unwrap_or_else(|| format!("#{owner}")),
            group: self.place.operators_group.clone().or(passing),
            socket: self.place.socket.clone(),
        }
    }
}

/// The task that drives one connection; dropping it closes the connection, which an attached operation
/// notices.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer that is read piece by piece; dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Stream {
    body: Incoming,
    #[expect(dead_code, reason = "held for its Drop")]
    connection: Connection,
    line: Vec<u8>,
    ended: bool,
}

impl Stream {
    /// The next bytes; None at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|why| broken("reading the service's answer", &why))?;
            if let Ok(bytes) = frame.into_data()
                && !bytes.is_empty()
            {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The next line without its line feed; None at the end. Safe to drop and call again.
    pub(super) async fn line(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.line.iter().skip(searched).position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.pop();
                return Ok(Some(line));
            }
            searched = self.line.len();
            if searched > MAX_ANSWER_BYTES {
                return Err(too_long());
            }
            if self.ended {
                let last = std::mem::take(&mut self.line);
                return Ok((!last.is_empty()).then_some(last));
            }
            match self.next().await? {
                Some(bytes) => self.line.extend_from_slice(&bytes),
                None => self.ended = true,
            }
        }
    }

    /// The next line as JSON.
    pub(super) async fn object(&mut self) -> Result<Option<Value>, Trouble> {
        while let Some(line) = self.line().await? {
            // Blank lines keep an idle stream alive.
            if !line.is_empty() {
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|why| broken("reading the service's answer", &why));
            }
        }
        Ok(None)
    }

    /// Everything to the end.
    pub(super) async fn whole(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(&bytes);
            if all.len() > MAX_ANSWER_BYTES {
                return Err(too_long());
            }
        }
        Ok(all)
    }
}

fn broken(attempted: &str, why: &dyn std::error::Error) -> Trouble {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    Trouble::Connection { attempted: attempted.into(), why: text }
}

fn late(path: &str) -> Trouble {
    Trouble::Connection {
        attempted: format!("waiting for {path}"),
        why: format!("no answer in {} s", ANSWER.as_secs()),
    }
}

fn too_long() -> Trouble {
    Trouble::Connection {
        attempted: "reading the service's answer".into(),
        why: format!("it has more than {MAX_ANSWER_BYTES} bytes"),
    }
}

/// The rows of a listing, which is an array or an object with one array.
pub(super) fn rows(listing: Value, name: &str) -> Result<Vec<Value>, Trouble> {
    let list = match listing {
        Value::Object(mut map) => map.remove(name).unwrap_or(Value::Null),
        other => other,
    };
    match list {
        Value::Array(rows) => Ok(rows),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(Trouble::Connection { attempted: format!("reading the list of {name}"), why: "it is no list".into() })
        }
    }
}

/// Runs one verb to its end on this thread.
pub(super) fn block_on<T>(verb: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| Trouble::Local { attempted: "starting", path: "the event loop".into(), source })?;
    runtime.block_on(verb)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixListener, time::Duration};

    use super::*;

    /// What a listener receives that is expected to run as `owner`, and how the request ended.
    fn received(owner: u32) -> (Vec<u8>, Trouble) {
        let socket = std::env::temp_dir().join(format!("salaam-client-{}-{owner}", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let listening = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut bytes = vec![0; 4096];
            let read = stream.read(&mut bytes).unwrap_or(0);
            bytes.truncate(read);
            bytes
        });
        let place =
            Place { instance: None, socket: socket.clone(), state: socket.clone(), owner, operators_group: None };
        let trouble = block_on(Client::new(place).fetch("/v1/health")).unwrap_err();
        std::fs::remove_file(socket).unwrap();
        (listening.join().unwrap(), trouble)
    }

    #[test]
    fn another_accounts_listener_is_sent_nothing() {
        let me = Uid::effective().as_raw();
        let (bytes, trouble) = received(me);
        assert!(bytes.starts_with(b"GET /v1/health HTTP/1.1\r\n"), "the right one is asked: {trouble}");
        let (bytes, trouble) = received(me + 1);
        assert_eq!(bytes, b"");
        assert_eq!((trouble.id(), trouble.exit()), ("wrong-listener", 3));
    }
}
