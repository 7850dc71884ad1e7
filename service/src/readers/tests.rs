//! A reader that is not what it should be, played over the link; and programs that are none.

use std::{ffi::CString, io::Write as _, os::unix::net::UnixStream as Blocking, time::Duration};

use salaam_core::{
    canary::{self, Canary},
    edit::Image,
    id::WorkspaceId,
    reader::{Answer, Begin, FromReader, Line, Lines, Listed, MAX_ANSWER_BYTES, NotRead, Refused, Request, Whole},
};
use salaam_proto::{frame, reader_wire as wire};

use super::{
    process::{Options, Process, fit},
    *,
};
use crate::child::{Child, Lines as Log};

const LIMIT: Duration = Duration::from_millis(300);

/// A process that is only there, with its link in the hand of the test.
fn played() -> (Process, Blocking) {
    let argv = [c"sleep".to_owned(), c"60".to_owned()];
    let pid = salaam_sys::spawn::spawn(c"/bin/sleep", &argv, &[] as &[CString], &[], false).unwrap();
    let (ours, theirs) = Blocking::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let lines = Log::read([], "reader", 0).unwrap();
    let link = tokio::net::UnixStream::from_std(ours).unwrap();
    (Process::over(Child::new(pid).unwrap(), link, lines, LIMIT), theirs)
}

fn says(answer: Answer) -> Vec<u8> {
    frame::framed(&wire::FromReader::from(FromReader::Answer(answer)), MAX_ANSWER_BYTES).unwrap()
}

fn read(lines: u64) -> Request {
    Request::Read { path: b"x".to_vec(), from_line: 1, lines }
}

async fn told(request: Request, bytes: &[u8]) -> Result<Answer, ReaderError> {
    let (mut process, mut theirs) = played();
    theirs.write_all(bytes).unwrap();
    let answered = process.ask(request).await;
    let pid = process.pid();
    process.end().await;
    assert!(salaam_sys::pidfd::open(pid).is_err(), "whatever it said, it is gone when it is ended");
    answered
}

#[tokio::test]
async fn an_answer_is_taken_only_if_it_is_one_to_the_question() {
    let lines = |count| Answer::Lines(Lines { lines: vec![Line::default(); count], ..Lines::default() });
    assert_eq!(told(read(2), &says(lines(2))).await.unwrap(), lines(2));
    let refused = Answer::Refused(NotRead { why: Refused::Closed, detail: String::new() });
    assert_eq!(told(read(2), &says(refused.clone())).await.unwrap(), refused);
    let image = Image { content: vec![0; 3], mode: 0o644 };
    let whole = Answer::Whole(Whole { image, device: 1, inode: 1, links: 1 });
    let ready = FromReader::Ready { build: "x".into(), canary: Vec::new() };
    for (request, bytes) in [
        (read(2), says(lines(3))),
        (read(2), says(Answer::Listed(Listed::default()))),
        (read(2), says(whole.clone())),
        (Request::Whole { path: b"x".to_vec(), most_bytes: 2 }, says(whole)),
        (read(2), frame::framed(&wire::FromReader::from(ready), MAX_ANSWER_BYTES).unwrap()),
        (read(2), u32::MAX.to_le_bytes().to_vec()),
        (read(2), b"\x02\0\0\0\xff\xff".to_vec()),
        (read(2), b"\0\0\0\0".to_vec()),
    ] {
        let error = told(request, &bytes).await.unwrap_err();
        assert!(matches!(error, ReaderError::Impossible { .. }), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn a_reader_that_is_silent_is_late_and_one_that_hangs_up_is_lost() {
    for started in [&b""[..], b"\x09\0", b"\x09\0\0\0xx"] {
        assert!(matches!(told(read(1), started).await, Err(ReaderError::Late { .. })));
    }
    let (mut process, theirs) = played();
    drop(theirs);
    assert!(matches!(process.ask(read(1)).await, Err(ReaderError::Lost { .. })));
    process.end().await;
}

fn readers(program: &str) -> Readers {
    let account = Begin { uid: 1, groups: Vec::new() };
    Readers::new(Options { program: program.into(), build: "x".into(), state_directory: "/".into(), account })
}

#[tokio::test]
async fn a_program_that_is_no_reader_gives_an_error_each_time() {
    let root = std::fs::File::open("/").unwrap();
    let id = WorkspaceId::new(1, [1; 10]);
    for (program, expected) in [("/nowhere/reader", "reader-start"), ("/bin/true", "reader-lost")] {
        let readers = readers(program);
        for _ in 0..2 {
            assert_eq!(readers.ask(id, &root, read(1)).await.unwrap_err().id(), expected, "{program}");
        }
        assert_eq!(readers.count(), 1);
        readers.stop().await;
        assert_eq!(readers.count(), 0);
    }
}

#[tokio::test]
async fn a_question_that_breaks_the_contract_reaches_no_reader() {
    let root = std::fs::File::open("/").unwrap();
    let readers = readers("/nowhere/reader");
    for path in ["/etc/passwd", "../x", "a/../b", "a\0b", ""] {
        let request = Request::Read { path: path.into(), from_line: 1, lines: 1 };
        let error = readers.ask(WorkspaceId::new(1, [1; 10]), &root, request).await.unwrap_err();
        assert_eq!(error.id(), "reader-question", "{path}");
    }
    assert_eq!(readers.count(), 0);
}

#[tokio::test]
async fn an_owner_that_nobody_asks_ends_and_another_follows() {
    let root = std::fs::File::open("/").unwrap();
    let id = WorkspaceId::new(1, [1; 10]);
    let account = Begin { uid: 1, groups: Vec::new() };
    let options = Options { program: "/bin/true".into(), build: "x".into(), state_directory: "/".into(), account };
    let readers = Readers::with_idle(options, Duration::from_millis(10));
    assert!(readers.ask(id, &root, read(1)).await.is_err());
    while readers.count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(readers.ask(id, &root, read(1)).await.unwrap_err().id(), "reader-lost");
}

#[test]
fn a_reader_of_another_build_or_that_leaves_an_attempt_out_is_not_taken() {
    let tried: Vec<_> = canary::ALL
        .into_iter()
        .chain(canary::ROOTED)
        .map(|attack| Canary { attack: attack.to_owned(), errno: 13 })
        .collect();
    assert!(fit("a", "a".into(), &tried).is_ok());
    assert!(matches!(fit("a", "b".into(), &tried), Err(ReaderError::Build { .. })));
    for left_out in 0..tried.len() {
        let mut less = tried.clone();
        let gone = less.remove(left_out);
        let error = fit("a", "a".into(), &less).unwrap_err();
        assert_eq!(error.control(), Some("reader-confined"));
        assert!(error.to_string().contains(&format!("{} was not tried", gone.attack)), "{error}");
    }
}
