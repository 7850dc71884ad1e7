//! Sizes, slowness and numbers of clients; and clients that go away.

use super::*;
use crate::http::limits::{BODY_BYTES, PROPOSAL_BYTES, SEATS, STAY_SHARE};

#[test]
fn a_body_above_its_limit_is_refused_by_its_declared_length() {
    let stage = Stage::new();
    for (path, most) in [("/v1/deny", BODY_BYTES), ("/v1/operations", PROPOSAL_BYTES)] {
        let head = |bytes: usize| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
            )
        };
        // Nothing of the body is sent: it is refused unread.
        for bytes in [most + 1, 100 << 20, usize::MAX / 2] {
            assert_eq!(error_of(&stage.say(head(bytes).as_bytes())).1, "body-too-large");
        }
        let mut whole = head(most).into_bytes();
        whole.resize(whole.len() + most, b' ');
        assert_eq!(error_of(&stage.say(&whole)).0, 400, "a body of exactly the limit is read");
    }
}

#[test]
fn an_undeclared_body_is_refused_when_it_passes_its_limit() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    stream
        .write_all(b"POST /v1/operations HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    let mut chunk = b"100000\r\n".to_vec();
    chunk.resize(chunk.len() + 0x10_0000, b' ');
    chunk.extend_from_slice(b"\r\n");
    let sent = (0..100).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!((20..40).contains(&sent), "{sent} MiB were taken");
    assert_eq!(error_of(&read_answer(&mut stream)).1, "body-too-large");
    stage.is_well();
}

#[test]
fn a_head_above_its_limit_is_refused() {
    let stage = Stage::new();
    let long = format!("GET /v1/who HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
    assert_eq!(error_of(&stage.say(long.as_bytes())).1, "head-too-large");
    let many = format!("GET /v1/who HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65));
    assert_eq!(error_of(&stage.say(many.as_bytes())).1, "head-too-large");
    let path = format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(64 * 1024));
    assert_eq!(error_of(&stage.say(path.as_bytes())).1, "head-too-large");
    stage.is_well();
}

#[test]
fn five_hundred_slow_clients_keep_nobody_out() {
    let stage = Stage::new();
    let slow: Vec<_> = (0..500)
        .map(|i| {
            let mut stream = stage.connect();
            // Half a head, or a head and half a body.
            let start: &[u8] = match i % 3 {
                0 => b"",
                1 => b"GET /v1/who HTTP/1.1\r\nhost:",
                _ => b"POST /v1/operations HTTP/1.1\r\nhost: s\r\ncontent-length: 1000\r\n\r\n{",
            };
            let _ = stream.write_all(start);
            if i % 25 == 0 {
                let asked = Instant::now();
                stage.is_well();
                assert!(asked.elapsed() < Duration::from_secs(5));
            }
            stream
        })
        .collect();
    let asked = Instant::now();
    stage.is_well();
    assert!(asked.elapsed() < Duration::from_secs(5));
    // The oldest gave way; the newest are still there.
    let closed = |stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!((&mut &*stream).read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = || slow.iter().filter(|stream| !closed(stream)).count();
    eventually("every seat taken once", || open() <= SEATS);
    assert!(open() > SEATS / 2);
}

const SHORT: Times =
    Times { head: Duration::from_millis(300), body: Duration::from_millis(300), answer: Duration::from_millis(300) };

#[test]
fn connections_leave_descriptors_to_the_rest_of_the_service() {
    use crate::http::limits::seats;
    for (descriptors, expected) in [(0, 8), (256, 8), (512, 128), (768, SEATS), (1024, SEATS), (u64::MAX, SEATS)] {
        assert_eq!(seats(descriptors), expected, "of {descriptors}");
    }
}

#[test]
fn a_slow_head_ends_in_time_however_steadily_it_drips() {
    let stage = Stage::with(None, SHORT);
    let mut stream = stage.connect();
    let start = Instant::now();
    let dripped = b"GET /v1/who HTTP/1.1\r\nx: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
        .iter()
        .take_while(|byte| {
            std::thread::sleep(Duration::from_millis(50));
            stream.write_all(&[**byte]).is_ok()
        })
        .count();
    assert!(start.elapsed() >= SHORT.head && dripped < 30, "{dripped} bytes in {:?}", start.elapsed());
}

#[test]
fn a_connection_without_a_request_ends_in_time() {
    let stage = Stage::with(None, SHORT);
    let mut stream = stage.connect();
    let mut text = String::new();
    assert_eq!(stream.read_to_string(&mut text).unwrap_or(0), 0);
    stream = stage.connect();
    stream.write_all(b"GET /v1/who HTTP/1.1\r\nhost: s\r\n\r\n").unwrap();
    let _ = stream.read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 200 "), "the answer before the wait");
}

#[test]
fn a_slow_body_is_refused_in_time() {
    let stage = Stage::with(None, SHORT);
    let answer = stage.say(b"POST /v1/operations HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\n{");
    assert_eq!((error_of(&answer).0, error_of(&answer).1), (408, "slow-body"));
}

#[test]
fn a_verb_that_does_not_answer_runs_into_its_deadline() {
    let stage = Stage::with(None, SHORT);
    let answer = stage.ask("GET", "/v1/stuck", "", b"");
    assert_eq!((error_of(&answer).0, error_of(&answer).1), (504, "deadline"));
}

#[test]
fn a_mistake_of_ours_costs_one_connection() {
    let stage = Stage::new();
    assert_eq!(stage.ask("GET", "/v1/panic", "", b"").0, 0);
    stage.is_well();
}

#[test]
fn a_client_that_does_not_read_stops_what_is_made_for_it() {
    let stage = Stage::new();
    let mut client = stage.connect();
    client.write_all(b"GET /v1/flood HTTP/1.1\r\nhost: s\r\n\r\n").unwrap();
    eventually("the first piece", || stage.held.load(Ordering::SeqCst) > 0);
    std::thread::sleep(Duration::from_millis(500));
    let made = stage.held.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(stage.held.load(Ordering::SeqCst), made);
    assert!(made < 64, "{made} pieces of 64 KiB were made for nobody");
    let mut piece = vec![0; 4 << 20];
    client.read_exact(&mut piece).unwrap();
    assert!(stage.held.load(Ordering::SeqCst) > made, "it goes on when it is read");
}

#[test]
fn lasting_requests_leave_half_the_seats_to_the_others() {
    const STAYS: usize = SEATS / STAY_SHARE;
    let stage = Stage::new();
    let lasting: Vec<_> = (0..STAYS).map(|_| hold(&stage)).collect();
    eventually("all lasting requests", || stage.held.load(Ordering::SeqCst) == STAYS);
    let answer = stage.ask("POST", "/v1/hold", "", b"");
    assert_eq!((error_of(&answer).0, error_of(&answer).1), (503, "busy"));
    // They are not evicted for newcomers either.
    let idle: Vec<_> = (0..SEATS).map(|_| stage.connect()).collect();
    stage.is_well();
    assert_eq!(stage.held.load(Ordering::SeqCst), STAYS);
    drop((idle, lasting));
    eventually("nothing lasting", || stage.held.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_client_that_goes_away_drops_its_handler() {
    let stage = Stage::new();
    let client = hold(&stage);
    eventually("the handler", || stage.held.load(Ordering::SeqCst) == 1);
    drop(client);
    eventually("its end", || stage.held.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_client_that_closes_half_drops_its_handler() {
    let stage = Stage::new();
    let client = hold(&stage);
    eventually("the handler", || stage.held.load(Ordering::SeqCst) == 1);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    eventually("its end", || stage.held.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_client_that_goes_away_drops_the_body_that_it_reads() {
    let stage = Stage::new();
    let mut client = stage.connect();
    client.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: s\r\n\r\n").unwrap();
    let mut first = [0; 15];
    client.read_exact(&mut first).unwrap();
    assert_eq!(stage.held.load(Ordering::SeqCst), 1);
    drop(client);
    eventually("its end", || stage.held.load(Ordering::SeqCst) == 0);
}

/// hyper alone does not see the end of a connection behind bytes that it has not read.
#[test]
fn a_client_that_pipelined_more_and_goes_away_drops_its_handler() {
    let stage = Stage::new();
    let mut client = hold(&stage);
    client.write_all(b"GET /v1/who HTTP/1.1\r\nhost: s\r\n\r\n").unwrap();
    eventually("the handler", || stage.held.load(Ordering::SeqCst) == 1);
    drop(client);
    eventually("its end", || stage.held.load(Ordering::SeqCst) == 0);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let stage = Stage::new();
    let answer = |bytes: &[u8]| {
        let mut stream = stage.connect();
        stream.write_all(bytes).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.matches("HTTP/1.1 ").map(|_| ()).count();
        text.split("HTTP/1.1 ").skip(1).map(|part| part[..3].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        answer(b"GET /v1/who HTTP/1.1\r\nhost: s\r\n\r\nGET /nothing HTTP/1.1\r\nhost: s\r\n\r\nGET /v1/who HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n"),
        ["200", "404", "200"]
    );
}

fn hold(stage: &Stage) -> UnixStream {
    let mut stream = stage.connect();
    stream.write_all(b"POST /v1/hold HTTP/1.1\r\nhost: s\r\ncontent-length: 0\r\n\r\n").unwrap();
    stream
}
