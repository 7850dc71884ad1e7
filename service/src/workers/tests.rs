//! The service's end against workers that do what none may. The worker's end of the link is in the test's hands; the
//! process is one that would sleep.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as Blocking,
    },
    time::Duration,
};

use nix::sys::wait::waitpid;
use salaam_core::{
    canary::{self, Canary},
    id::SessionId,
    operation::State,
    policy::Profile,
    tool::Answer,
    worker::{Begin, EndedBy, FromWorker, MAX_FROM_WORKER_BYTES, PastTurn, Phase, Provider, RawCall, ToWorker, Turn},
};
use salaam_proto::{frame, worker_wire as wire};
use tokio::{net::UnixStream, time::timeout};

use super::{Gone, Worker, WorkerError, worker::fit};
use crate::child::{Child, Exit, Lines};

const LONG: Duration = Duration::from_secs(10);

/// A worker whose process runs `script`, and the other end of its link.
fn fake(script: &str, taken_within: Duration) -> (Worker, Blocking) {
    let (ours, theirs) = Blocking::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // A mistake in a test must not hold it up for ever.
    theirs.set_read_timeout(Some(LONG)).unwrap();
    theirs.set_write_timeout(Some(LONG)).unwrap();
    let (log, their_log) = io::pipe().unwrap();
    let their_log = OwnedFd::from(their_log);
    let argv = [c"sh".to_owned(), c"-c".to_owned(), CString::new(script).unwrap()];
    let null = File::open("/dev/null").unwrap();
    let fds = [(null.as_fd(), 0), (their_log.as_fd(), 1), (their_log.as_fd(), 2)];
    let pid = salaam_sys::spawn::spawn(c"/bin/sh", &argv, &[] as &[CString], &fds, true).unwrap();
    let lines = Lines::read([("log", log.into())], "worker", 1).unwrap();
    (Worker::over(Child::new(pid).unwrap(), UnixStream::from_std(ours).unwrap(), lines, taken_within), theirs)
}

fn asleep() -> (Worker, Blocking) {
    fake("exec sleep 600", LONG)
}

fn framed(message: FromWorker) -> Vec<u8> {
    frame::framed(&wire::FromWorker::from(message), MAX_FROM_WORKER_BYTES).unwrap()
}

fn ready() -> FromWorker {
    FromWorker::Ready { build: "b".into(), canary: vec![Canary { attack: "x".into(), errno: 1 }] }
}

fn turn(number: u64, calls: usize) -> FromWorker {
    let call = RawCall { tool: "salaam_local".into(), arguments: "{}".into() };
    FromWorker::Turn(Turn { number, text: "t".into(), calls: vec![call; calls], awaits: false })
}

fn ended() -> FromWorker {
    FromWorker::Ended { outcome: EndedBy::Completed, reason: "done".into() }
}

fn begin(past: u64) -> ToWorker {
    ToWorker::Begin(Begin {
        session: SessionId::new(1, [7; 10]),
        epoch: 1,
        provider: Provider::Scripted,
        task: "task".into(),
        profile: Profile::WorkspaceWrite,
        tools: vec!["salaam_local".into()],
        past,
    })
}

fn answers(turn: u64, number: usize) -> ToWorker {
    ToWorker::Answers { turn, answers: vec![Answer::new(State::Completed); number] }
}

/// Brings it to where its provider is asked.
async fn begun(worker: &mut Worker, theirs: &mut Blocking) {
    theirs.write_all(&framed(ready())).unwrap();
    assert_eq!(worker.next().await.unwrap(), ready());
    worker.send(begin(0)).await.unwrap();
}

#[tokio::test]
async fn an_orderly_conversation_runs_to_its_end() {
    let (mut worker, mut theirs) = asleep();
    begun(&mut worker, &mut theirs).await;
    for number in 0..3 {
        theirs.write_all(&framed(turn(number, 2))).unwrap();
        assert_eq!(worker.next().await.unwrap(), turn(number, 2));
        worker.send(answers(number, 2)).await.unwrap();
    }
    theirs.write_all(&framed(ended())).unwrap();
    assert_eq!(worker.next().await.unwrap(), ended());
    assert_eq!(worker.phase(), Phase::Over);
    let pid = worker.pid();
    assert_eq!(worker.end().await, Gone::Proven(Exit::Signal(9)));
    assert!(waitpid(nix::unistd::Pid::from_raw(pid), None).is_err(), "it is reaped");
}

/// Messages that no worker sends, and where: `true` once a turn is open, else where the provider is asked.
fn impossible() -> Vec<(&'static str, bool, Vec<u8>)> {
    let mut session = wire::FromWorker::from(ended());
    if let Some(wire::from_worker::Message::Ended(ended)) = &mut session.message {
        ended.outcome = "granted".into();
    }
    let many = |calls| {
        let call = wire::Call { tool: "salaam_local".into(), arguments: "{}".into() };
        let turn = wire::Turn { number: 0, text: String::new(), calls: vec![call; calls], awaits: false };
        let message = wire::FromWorker { message: Some(wire::from_worker::Message::Turn(turn)) };
        frame::framed(&message, usize::MAX).unwrap()
    };
    let long = FromWorker::Turn(Turn { text: "x".repeat(1 << 20), ..Turn::default() });
    vec![
        ("garbage", false, b"\x10\0\0\0GET / HTTP/1.1\r\n".to_vec()),
        ("a header of 4 GiB", false, b"\xff\xff\xff\xff".to_vec()),
        ("one byte more than a turn has", false, (MAX_FROM_WORKER_BYTES as u32 + 1).to_le_bytes().to_vec()),
        ("an empty message", false, b"\0\0\0\0".to_vec()),
        ("ready again", false, framed(ready())),
        ("a turn out of order", false, framed(turn(1, 1))),
        ("the last turn there could be", false, framed(turn(9_999, 1))),
        ("a turn that is none", false, frame::framed(&wire::FromWorker::default(), 10).unwrap()),
        ("33 calls", false, many(33)),
        ("10 000 calls", false, many(10_000)),
        ("a text of 1 MiB", false, framed(long)),
        ("an outcome that grants", false, frame::framed(&session, 1000).unwrap()),
        // What the service says, said back: a message of the other direction.
        ("answers to itself", false, frame::framed(&wire::ToWorker::from(answers(0, 1)), 1000).unwrap()),
        ("a turn before the last is answered", true, framed(turn(1, 1))),
        ("the same turn again", true, framed(turn(0, 1))),
        ("an end before the answers", true, framed(ended())),
    ]
}

#[tokio::test]
async fn whatever_no_worker_says_there_ends_it_at_once() {
    for (what, open, bytes) in impossible() {
        let (mut worker, mut theirs) = asleep();
        begun(&mut worker, &mut theirs).await;
        if open {
            theirs.write_all(&framed(turn(0, 1))).unwrap();
            worker.next().await.unwrap();
        }
        // On a thread: what the service does not take, nobody takes.
        let writer = std::thread::spawn(move || {
            let _ = theirs.write_all(&bytes);
            // An honest end after it is not heard any more.
            let _ = theirs.write_all(&framed(ended()));
            theirs
        });
        let error = timeout(LONG, worker.next()).await.unwrap().unwrap_err();
        assert!(matches!(error, WorkerError::Impossible(_)), "{what}: {error:?}");
        assert!(matches!(worker.next().await, Err(WorkerError::Lost { .. })), "{what}");
        assert!(matches!(worker.send(answers(0, 1)).await, Err(WorkerError::Lost { .. })), "{what}");
        assert_eq!(worker.end().await, Gone::Proven(Exit::Signal(9)), "{what}");
        drop(writer.join().unwrap());
    }
}

#[tokio::test]
async fn a_worker_that_speaks_before_it_is_told_its_session_is_ended() {
    for first in [turn(0, 1), ended()] {
        let (mut worker, mut theirs) = asleep();
        theirs.write_all(&framed(first)).unwrap();
        assert!(matches!(worker.next().await, Err(WorkerError::Impossible(_))));
        assert_eq!(worker.end().await, Gone::Proven(Exit::Signal(9)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_out_of_place_is_not_sent() {
    let (mut worker, mut theirs) = asleep();
    assert!(matches!(worker.send(begin(0)).await, Err(WorkerError::OutOfPhase { said: "begin", .. })));
    begun(&mut worker, &mut theirs).await;
    for message in [begin(0), answers(0, 0), ToWorker::Message { text: "m".into() }] {
        assert!(matches!(worker.send(message).await, Err(WorkerError::OutOfPhase { .. })));
    }
    let told = frame::framed(&wire::ToWorker::from(begin(0)), 1 << 20).unwrap();
    let mut arrived = vec![0; told.len()];
    theirs.read_exact(&mut arrived).unwrap();
    assert_eq!(arrived, told);
    theirs.set_nonblocking(true).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing more was sent");
}

#[tokio::test]
async fn a_worker_that_floods_waits_on_itself() {
    let (mut worker, mut theirs) = asleep();
    begun(&mut worker, &mut theirs).await;
    theirs.set_nonblocking(true).unwrap();
    let flood = framed(turn(0, 1)).repeat(1000);
    let mut sent = 0;
    let blocked = loop {
        match theirs.write(&flood) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error.kind(),
        }
        assert!(sent < 64 << 20, "the service must not take what nobody asked for");
    };
    assert_eq!(blocked, io::ErrorKind::WouldBlock);
    tokio::task::yield_now().await;
    worker.next().await.unwrap();
    assert!(matches!(worker.next().await, Err(WorkerError::Impossible(_))), "the second of them is out of place");
}

#[tokio::test]
async fn a_worker_that_does_not_read_is_ended_and_holds_nobody_up() {
    let (mut worker, mut theirs) = fake("exec sleep 600", Duration::from_millis(50));
    theirs.write_all(&framed(ready())).unwrap();
    worker.next().await.unwrap();
    worker.send(begin(9_000)).await.unwrap();
    let mut number = 0;
    let error = timeout(LONG, async {
        loop {
            let turn = Turn { number, text: "x".repeat(100_000), ..Turn::default() };
            match worker.send(ToWorker::Past(PastTurn { turn, answers: Vec::new(), message: None })).await {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        }
    });
    let error = error.await.unwrap();
    assert!(matches!(error, WorkerError::Stalled { .. }), "{error:?}");
    assert!(number < 100, "{number} turns were taken by nobody");
    assert_eq!(worker.end().await, Gone::Proven(Exit::Signal(9)));
}

#[tokio::test]
async fn a_loss_says_how_the_process_ended_and_what_it_said_last() {
    let (mut worker, theirs) = fake("sleep 0.05; printf 'no \\033[31mluck' >&2; exit 70", LONG);
    drop(theirs);
    let error = worker.next().await.unwrap_err();
    assert_eq!(error.to_string(), "the worker is gone: it closed the link; exit code 70: no \\e[31mluck");
    assert!(matches!(worker.next().await, Err(WorkerError::Lost { .. })));
    assert_eq!(worker.end().await, Gone::Proven(Exit::Code(70)));
}

#[tokio::test]
async fn a_wait_that_is_dropped_loses_no_byte() {
    let (mut worker, mut theirs) = asleep();
    for byte in framed(ready()) {
        assert!(timeout(Duration::from_millis(1), worker.next()).await.is_err());
        theirs.write_all(&[byte]).unwrap();
    }
    assert_eq!(worker.next().await.unwrap(), ready());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_stop_leaves_by_itself_and_one_that_does_not_is_killed() {
    let (mut worker, mut theirs) = fake("sleep 0.05; exit 0", LONG);
    begun(&mut worker, &mut theirs).await;
    assert_eq!(worker.end().await, Gone::Proven(Exit::Code(0)));
    let mut told = Vec::new();
    theirs.read_to_end(&mut told).unwrap();
    assert!(told.ends_with(&frame::framed(&wire::ToWorker::from(ToWorker::Stop), 100).unwrap()));

    let (worker, _theirs) = fake("trap '' TERM HUP; sleep 600", LONG);
    assert_eq!(worker.end().await, Gone::Proven(Exit::Signal(9)));
}

#[tokio::test]
async fn a_worker_that_is_dropped_is_killed_and_reaped() {
    let (worker, _theirs) = asleep();
    let pid = nix::unistd::Pid::from_raw(worker.pid());
    drop(worker);
    let start = std::time::Instant::now();
    while nix::sys::signal::kill(pid, None).is_ok() {
        assert!(start.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_worker_of_another_build_or_that_leaves_an_attempt_out_is_not_taken() {
    let tried: Vec<_> = canary::ALL.into_iter().map(|attack| Canary { attack: attack.to_owned(), errno: 13 }).collect();
    assert!(fit("a", "a".into(), &tried).is_ok());
    assert!(matches!(fit("a", "b".into(), &tried), Err(WorkerError::Build { .. })));
    for left_out in 0..tried.len() {
        let mut less = tried.clone();
        let gone = less.remove(left_out);
        let error = fit("a", "a".into(), &less).unwrap_err();
        assert_eq!(error.control(), Some("worker-confined"));
        assert!(error.to_string().contains(&format!("{} was not tried", gone.attack)), "{error}");
    }
}
