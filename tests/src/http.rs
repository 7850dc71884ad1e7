//! A small HTTP/1.1 client by hand, so that what the service gets is exactly what a test sends.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

/// What came back.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Header lines, lower case names.
    pub headers: Vec<(String, String)>,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| {
            panic!("not JSON ({e}), status {}: {}", self.status, String::from_utf8_lossy(&self.body))
        })
    }

    /// The id of the error in it.
    pub fn error_id(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.body).ok()?;
        Some(value["error"]["id"].as_str()?.to_owned())
    }

    /// Reads one from a connection that the other side closes.
    pub fn read(stream: &mut UnixStream) -> Option<Self> {
        let mut all = Vec::new();
        // A reset after the answer still leaves the answer.
        drop(stream.read_to_end(&mut all));
        Self::parse(&all)
    }

    fn parse(all: &[u8]) -> Option<Self> {
        let split = all.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..split]).into_owned();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let body = &all[split + 4..];
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value.contains("chunked"));
        Some(Self { status, body: if chunked { joined(body) } else { body.to_vec() }, headers })
    }
}

fn joined(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        if size == 0 || rest.len() < end + 2 + size {
            body.extend_from_slice(rest.get(end + 2..).filter(|_| size != 0).unwrap_or_default());
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    body
}

/// Connects with a limit on every read and write.
pub fn connect(socket: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// The bytes of a request; the service is asked to close after it.
pub fn request(method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: salaam\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

/// Sends a request and waits for the whole answer.
#[track_caller]
pub fn send(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Reply {
    let mut stream = connect(socket, Duration::from_secs(120)).expect("the operator socket takes connections");
    stream.write_all(&request(method, path, body)).expect("the service reads a request");
    Reply::read(&mut stream).unwrap_or_else(|| panic!("no answer to {method} {path}"))
}

/// The same where nobody may be there to answer: a service that is being killed.
pub fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Option<Reply> {
    let mut stream = connect(socket, Duration::from_secs(10)).ok()?;
    stream.write_all(&request(method, path, body)).ok()?;
    Reply::read(&mut stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_chunks_is_joined_and_one_with_a_length_is_taken_as_it_is() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let reply = Reply::parse(chunked).expect("it is whole");
        assert_eq!((reply.status, reply.body.as_slice()), (200, &b"abcde"[..]));
        let plain = b"HTTP/1.1 404 Not Found\r\ncontent-length: 24\r\n\r\n{\"error\":{\"id\":\"lost\"}}";
        let reply = Reply::parse(plain).expect("it is whole");
        assert_eq!((reply.status, reply.error_id().as_deref()), (404, Some("lost")));
        assert!(Reply::parse(b"HTTP/1.1 200 OK\r\n").is_none());
    }
}
