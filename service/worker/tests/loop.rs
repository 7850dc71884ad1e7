//! The built worker, started as the service starts it: it shows that it is confined, plays a script, and ends when it
//! is told to, when the link closes, and when it is told what the service never says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use salaam_core::{
    id::SessionId,
    operation::State,
    policy::Profile,
    tool::Answer,
    worker::{Begin, EndedBy, FromWorker, MAX_FROM_WORKER_BYTES, MAX_TO_WORKER_BYTES, Provider, ToWorker},
};
use salaam_proto::{frame, worker_wire as wire};
use salaam_sys::handed;

const SCRIPT: &[u8] =
    br#"{"turns":[{"text":"I look.","calls":[{"tool":"salaam_local","arguments":{"action":"command","command":"ls"}}]},
    {"expect":[{"call":0,"outcome":"completed","exit_code":0}],"text":"Done."}]}"#;

struct Worker {
    pid: Pid,
    link: UnixStream,
    log: io::PipeReader,
}

impl Worker {
    fn start(script: Option<File>) -> Self {
        let (link, theirs) = UnixStream::pair().unwrap();
        let (handing, handed) = UnixStream::pair().unwrap();
        if let Some(script) = script {
            handed::send(&handing, salaam_worker::TAG_SCRIPT, script).unwrap();
        }
        let (log, their_log) = io::pipe().unwrap();
        let pid = spawn(theirs.as_fd(), their_log.as_fd(), handed.as_fd());
        link.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { pid, link, log }
    }

    fn hear(&mut self) -> Option<FromWorker> {
        let bytes = frame::read(&mut self.link, MAX_FROM_WORKER_BYTES).unwrap()?;
        Some(frame::value::<wire::FromWorker, _>(&bytes).unwrap())
    }

    fn say(&mut self, message: ToWorker) {
        frame::write(&mut self.link, &wire::ToWorker::from(message), MAX_TO_WORKER_BYTES).unwrap();
    }

    /// Its exit code and what it wrote.
    fn end(mut self) -> (i32, String) {
        drop(self.link);
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        match waitpid(self.pid, None).unwrap() {
            WaitStatus::Exited(_, code) => (code, log),
            other => panic!("{other:?} {log}"),
        }
    }
}

fn spawn(link: BorrowedFd<'_>, log: BorrowedFd<'_>, handed: BorrowedFd<'_>) -> Pid {
    let program = CString::new(env!("CARGO_BIN_EXE_salaam-worker")).unwrap();
    let fds = [(link, 0), (log, 1), (log, 2), (handed, salaam_worker::HANDED)];
    let argv = [program.clone(), c"/var".to_owned()];
    salaam_sys::spawn::spawn(&program, &argv, &[] as &[CString], &fds, true).unwrap()
}

fn sealed(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create(c"script", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.write_all(bytes).unwrap();
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

fn begin() -> ToWorker {
    ToWorker::Begin(Begin {
        session: SessionId::new(1, [7; 10]),
        epoch: 1,
        provider: Provider::Scripted,
        task: "task".into(),
        profile: Profile::WorkspaceWrite,
        tools: vec!["salaam_local".into()],
        past: 0,
    })
}

#[test]
fn a_script_is_played_by_a_process_that_shows_that_it_is_confined() {
    let mut worker = Worker::start(Some(sealed(SCRIPT)));
    let Some(FromWorker::Ready { build, canary }) = worker.hear() else { panic!("it is ready first") };
    assert!(build.contains("(commit "), "{build}");
    assert!(canary.len() > 10 && canary.iter().all(|tried| [1, 13].contains(&tried.errno)), "{canary:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid)).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    worker.say(begin());
    let Some(FromWorker::Turn(turn)) = worker.hear() else { panic!("a turn") };
    assert_eq!((turn.number, turn.text.as_str(), turn.calls.len()), (0, "I look.", 1));
    let answer = Answer { exit_code: Some(0), ..Answer::new(State::Completed) };
    worker.say(ToWorker::Answers { turn: 0, answers: vec![answer] });
    let Some(FromWorker::Turn(turn)) = worker.hear() else { panic!("another turn") };
    assert_eq!((turn.number, turn.text.as_str(), turn.calls.len()), (1, "Done.", 0));
    worker.say(ToWorker::Answers { turn: 1, answers: Vec::new() });
    let Some(FromWorker::Ended { outcome, .. }) = worker.hear() else { panic!("the end") };
    assert_eq!(outcome, EndedBy::Completed);
    worker.say(ToWorker::Stop);
    assert_eq!(worker.hear(), None);
    assert_eq!(worker.end(), (0, String::new()));
}

#[test]
fn a_link_that_closes_ends_it() {
    let mut worker = Worker::start(None);
    assert!(matches!(worker.hear(), Some(FromWorker::Ready { .. })));
    assert_eq!(worker.end(), (0, String::new()));
}

#[test]
fn a_script_that_could_still_be_changed_and_a_message_out_of_place_end_it() {
    let open = File::from(memfd_create(c"script", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
    for (script, message, said) in [
        (open, begin(), "not sealed"),
        (sealed(b"{}"), begin(), "the script"),
        (sealed(SCRIPT), ToWorker::Message { text: "m".into() }, "out of phase"),
    ] {
        let mut worker = Worker::start(Some(script));
        worker.hear();
        worker.say(message);
        assert_eq!(worker.hear(), None);
        let (code, log) = worker.end();
        assert!(code == 72 && log.contains(said), "{said}: {code} {log}");
    }
}

#[test]
fn it_refuses_to_be_started_by_anybody_but_the_maker_of_its_link() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_salaam-worker")).output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    // A pair that another process made: its parent is this one.
    let (reader, writer) = io::pipe().unwrap();
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    let pid = spawn(null.as_fd(), writer.as_fd(), null.as_fd());
    drop(writer);
    let mut log = String::new();
    { reader }.read_to_string(&mut log).unwrap();
    assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Exited(_, 70)), "{log}");
    assert!(log.contains("who made the link"), "{log}");
}
