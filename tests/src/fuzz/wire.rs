//! What the processes say to each other: the bridge, the worker, the reader, and launch.

use std::ffi::CString;

use prost::Message;
use salaam_core::{
    bound::BoundFile,
    bridge::{
        self, Attempt, Attempted, EditPlan, Edited, FilesRead, Greeting, Hello, OpenWorkspace, OpenedWorkspace,
        Prepare, Prepared, ProbeSandbox, ReadFiles, RunEvent, RunInput, RunPlan, SandboxStatus, Settle, Settled,
    },
    canary::Canary,
    command::Command,
    digest::Digest,
    edit::{Change, EditedFile, Expected, Image, Method},
    id::{OperationId, SessionId, WorkspaceId},
    limits::Limits,
    operation::State,
    policy::{Landlock, Network, Profile},
    reader::{self, FromReader, ToReader},
    result::Failure,
    tool::Answer,
    worker::{self, Begin, FromWorker, PastTurn, Phase, Provider, RawCall, ToWorker, Turn},
};
use salaam_launch::{
    plan::{Action, Bound, Keeper, Plan, Rules},
    report,
};
use salaam_proto::{Parts, WireError, frame, parted, reader_wire, wire, worker_wire};

use super::{Target, text::short_and_visible};

/// Reads one message of the bridge; what is a value crosses again as the same value.
type Read = fn(&[u8]) -> String;

fn read<W, T>(bytes: &[u8]) -> String
where
    W: Message + Default + From<T>,
    T: TryFrom<W, Error = WireError> + Clone + PartialEq + std::fmt::Debug,
{
    let Ok(message) = W::decode(bytes) else { return "no message".into() };
    match T::try_from(message) {
        Ok(value) => {
            let again = T::try_from(W::from(value.clone()));
            assert_eq!(again, Ok(value), "a value crosses as it is");
            "ok".into()
        }
        Err(error) => short_and_visible(&error.to_string()),
    }
}

const MESSAGES: &[Read] = &[
    read::<wire::HelloRequest, Greeting>,
    read::<wire::HelloReply, Hello>,
    read::<wire::ProbeSandboxRequest, ProbeSandbox>,
    read::<wire::ProbeSandboxReply, SandboxStatus>,
    read::<wire::TryRequest, Vec<Attempt>>,
    read::<wire::TryReply, Vec<Attempted>>,
    read::<wire::OpenWorkspaceRequest, OpenWorkspace>,
    read::<wire::OpenWorkspaceReply, OpenedWorkspace>,
    read::<wire::PrepareRequest, Prepare>,
    read::<wire::PrepareReply, Prepared>,
    read::<wire::RunInput, RunInput>,
    read::<wire::RunEvent, RunEvent>,
    read::<wire::EditPlan, EditPlan>,
    read::<wire::EditReply, Edited>,
    read::<wire::ReadFilesRequest, ReadFiles>,
    read::<wire::FilesRead, FilesRead>,
    read::<wire::SettleRequest, Settle>,
    read::<wire::SettleReply, Settled>,
    |bytes| salaam_proto::refusal_of(bytes).map_or_else(|e| e.to_string(), |_| "ok".into()),
];

fn operation() -> OperationId {
    OperationId::new(1, [1; 10])
}

fn workspace() -> WorkspaceId {
    WorkspaceId::new(1, [2; 10])
}

fn plan() -> RunPlan {
    RunPlan {
        operation: operation(),
        epoch: 3,
        workspace: workspace(),
        command: Command::Argv(vec![b"printf".to_vec(), b"\xff".to_vec()]),
        stdin: Some((Digest::of(b"in"), 2)),
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock: Landlock::Required,
        allow_unsandboxed: false,
        limits: Limits::default(),
        files: vec![BoundFile { path: b"/srv/x/run.sh".to_vec(), sha256: Digest::of(b"x") }],
        read_paths: vec![b"/opt/tool".to_vec()],
        read_identities: vec!["12:00".into()],
        protected_paths: vec![b".env".to_vec()],
        environment: vec![("CI".into(), "1".into())],
        whole_output: false,
    }
}

fn expected() -> Vec<Expected> {
    let stamp = |content: &[u8]| Some(Image { content: content.to_vec(), mode: 0o644 }.stamp());
    vec![
        Expected { path: b"a".to_vec(), pre: stamp(b"x"), post: stamp(b"y") },
        Expected { path: b"b".to_vec(), pre: None, post: stamp(b"") },
    ]
}

fn edit_plan() -> EditPlan {
    EditPlan {
        operation: operation(),
        epoch: 3,
        workspace: workspace(),
        changes: vec![
            Change::Replace { path: b"a".to_vec(), old: b"x".to_vec(), new: b"y".to_vec(), all: true },
            Change::Rename { path: b"d".to_vec(), to: b"e".to_vec() },
            Change::Write { path: b"g".to_vec(), content: b"all".to_vec(), mode: 0o600 },
        ],
        expected: expected(),
        protected_paths: vec![b".env".to_vec()],
        directories: vec![b"d".to_vec()],
    }
}

fn edited() -> Edited {
    let file =
        |file: Expected| EditedFile { path: file.path, pre: file.pre, post: file.post, method: Method::Exchange };
    Edited { files: expected().into_iter().map(file).collect(), made: vec![b"n".to_vec()] }
}

fn bridge_samples() -> Vec<Vec<u8>> {
    let read = FilesRead {
        files: vec![(b"a".to_vec(), Some(Image { content: b"x".to_vec(), mode: 0o640 })), (b"b".to_vec(), None)],
    };
    let settle = Settle {
        operation: operation(),
        epoch: 3,
        workspace: workspace(),
        expected: expected(),
        directories: Vec::new(),
    };
    let exit = bridge::Exit { exit_code: Some(3), proven_gone: true, ..bridge::Exit::default() };
    let samples: Vec<(u8, Vec<u8>)> = vec![
        (
            0,
            wire::HelloRequest::from(Greeting {
                bridge_version: salaam_core::bridge::VERSION,
                build: "b".into(),
                epoch: 1,
            })
            .encode_to_vec(),
        ),
        (
            8,
            wire::PrepareRequest::from(Prepare {
                operation: operation(),
                workspace: workspace(),
                command: plan().command,
                hold: true,
            })
            .encode_to_vec(),
        ),
        (
            9,
            wire::PrepareReply::from(Prepared {
                files: plan().files,
                unpinned: true,
                git_outside: Some("/srv/main/.git/worktrees/x".into()),
            })
            .encode_to_vec(),
        ),
        (10, wire::RunInput::from(RunInput::Plan(Box::new(plan()))).encode_to_vec()),
        (11, wire::RunEvent::from(RunEvent::Exited(Box::new(exit))).encode_to_vec()),
        (
            11,
            wire::RunEvent::from(RunEvent::Failed(Failure { id: "stale".into(), message: "m".into() })).encode_to_vec(),
        ),
        (12, wire::EditPlan::from(edit_plan()).encode_to_vec()),
        (13, wire::EditReply::from(edited()).encode_to_vec()),
        (
            14,
            wire::ReadFilesRequest::from(ReadFiles {
                workspace: workspace(),
                paths: vec![b"a".to_vec(), b"b".to_vec()],
                protected_paths: vec![b"c".to_vec()],
            })
            .encode_to_vec(),
        ),
        (15, wire::FilesRead::from(read).encode_to_vec()),
        (16, wire::SettleRequest::from(settle).encode_to_vec()),
        (17, wire::SettleReply::from(Settled::Finished(edited())).encode_to_vec()),
        (17, wire::SettleReply::from(Settled::Undecided { evidence: "e".into() }).encode_to_vec()),
    ];
    let mut samples: Vec<Vec<u8>> = samples.into_iter().map(|(kind, bytes)| [vec![kind], bytes].concat()).collect();
    samples.extend((0..MESSAGES.len()).map(|kind| vec![kind as u8]));
    samples
}

pub(super) const BRIDGE: Target = Target {
    name: "bridge",
    about: "every message of the bridge, decoded and checked; what is a value crosses again as the same value",
    samples: bridge_samples,
    words: &["op_", "ws_", "/", "..", "read-only", "workspace-write", "exchange", "stdout", "required"],
    read: |input| {
        let (kind, bytes) = input.split_first().unwrap_or((&0, b""));
        let kind = usize::from(*kind) % MESSAGES.len();
        format!("{} {}", char::from(b'a' + kind as u8), MESSAGES[kind](bytes))
    },
};

pub(super) const PARTS: Target = Target {
    name: "parts",
    about: "edits and files that cross in parts",
    samples: || {
        let delimited =
            |parts: Vec<wire::Part>| parts.iter().flat_map(Message::encode_length_delimited_to_vec).collect();
        let read = FilesRead { files: vec![(b"a".to_vec(), Some(Image { content: vec![7; 100], mode: 0o640 }))] };
        let part = |bytes: &[u8], last| wire::Part { bytes: bytes.to_vec().into(), last };
        vec![
            delimited(parted(&wire::EditPlan::from(edit_plan())).expect("it is small")),
            delimited(parted(&wire::FilesRead::from(read)).expect("it is small")),
            delimited(vec![part(b"\x0a", false), part(b"\x00", false), part(b"", true)]),
        ]
    },
    words: &["\u{8}", "\u{10}\u{1}"],
    read: |input| {
        let (mut parts, mut rest, mut count) = (Parts::new(), input, 0);
        loop {
            let Ok(part) = wire::Part::decode_length_delimited(&mut rest) else {
                return format!("no part after {}", count.min(3));
            };
            count += 1;
            match parts.push(&part) {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => return error.to_string(),
            }
        }
        match parts.value::<wire::EditPlan, EditPlan>() {
            Ok(_) => "ok".into(),
            Err(error) => short_and_visible(&error.to_string()),
        }
    },
};

fn turn() -> Turn {
    let call = RawCall { tool: "salaam_local".into(), arguments: r#"{"action":"command","command":"ls"}"#.into() };
    Turn { number: 0, text: "t".into(), calls: vec![call], awaits: true }
}

fn begin(past: u64) -> ToWorker {
    ToWorker::Begin(Begin {
        session: SessionId::new(1, [1; 10]),
        epoch: 2,
        provider: Provider::Scripted,
        task: "fix it".into(),
        profile: Profile::WorkspaceWrite,
        tools: vec!["salaam_local".into()],
        past,
    })
}

fn ready() -> FromWorker {
    FromWorker::Ready { build: "b".into(), canary: vec![Canary { attack: "socket".into(), errno: 1 }] }
}

fn ended() -> FromWorker {
    FromWorker::Ended { outcome: worker::EndedBy::Completed, reason: "r".into() }
}

fn framed<M: Message>(messages: impl IntoIterator<Item = M>) -> Vec<u8> {
    messages.into_iter().flat_map(|message| frame::framed(&message, usize::MAX).expect("it is small")).collect()
}

/// Reads frame after frame as the other end would; `take` says whether the link goes on.
fn frames<W, T>(input: &[u8], most: usize, mut take: impl FnMut(T) -> Result<(), String>) -> String
where
    W: Message + Default + From<T>,
    T: TryFrom<W, Error = WireError> + Clone + PartialEq + std::fmt::Debug,
{
    let (mut from, mut count) = (input, 0);
    loop {
        let bytes = match frame::read(&mut from, most) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return format!("closed after {}", if count > 2 { "many" } else { "few" }),
            Err(error) => return error.to_string(),
        };
        assert!(bytes.len() <= most);
        count += 1;
        match frame::value::<W, T>(&bytes) {
            Ok(value) => {
                assert_eq!(T::try_from(W::from(value.clone())), Ok(value.clone()), "a value crosses as it is");
                if let Err(refused) = take(value) {
                    return refused;
                }
            }
            Err(error) => return short_and_visible(&error.to_string()),
        }
    }
}

/// The first byte says which end reads: an even one the service, an odd one the worker or reader.
fn side(input: &[u8]) -> (bool, &[u8]) {
    let (side, rest) = input.split_first().unwrap_or((&0, b""));
    (side % 2 == 0, rest)
}

pub(super) const WORKER: Target = Target {
    name: "worker",
    about: "frames between service and worker, with the phases of the link",
    samples: || {
        let answers = ToWorker::Answers { turn: 0, answers: vec![Answer::new(State::Completed)] };
        let past = PastTurn { turn: turn(), answers: vec![Answer::new(State::Denied)], message: Some("m".into()) };
        let to = [begin(1), ToWorker::Past(past), answers, ToWorker::Message { text: "go on".into() }, ToWorker::Stop];
        let quiet = FromWorker::Turn(Turn { number: 0, ..Turn::default() });
        vec![
            [vec![0], framed([ready(), FromWorker::Turn(turn()), ended()].map(worker_wire::FromWorker::from))].concat(),
            [vec![0], framed([ready(), quiet, ended()].map(worker_wire::FromWorker::from))].concat(),
            [vec![1], framed(to.map(worker_wire::ToWorker::from))].concat(),
            [vec![1], framed([begin(0), ToWorker::Stop].map(worker_wire::ToWorker::from))].concat(),
        ]
    },
    words: &["completed", "script-mismatch", "scripted", "ses_", "op_", "socket"],
    read: |input| {
        let (service, input) = side(input);
        let mut phase = Phase::default();
        let refused = |error: worker::OutOfPhase| short_and_visible(&error.to_string());
        if service {
            // The service answers at once, so that the worker may go on.
            frames::<worker_wire::FromWorker, FromWorker>(input, worker::MAX_FROM_WORKER_BYTES, |message| {
                phase = phase.heard(&message).map_err(refused)?;
                loop {
                    let next = match phase {
                        Phase::Ready => begin(0),
                        Phase::Answering { turn, calls, .. } => {
                            ToWorker::Answers { turn, answers: vec![Answer::new(State::Completed); calls] }
                        }
                        Phase::Listening { .. } => ToWorker::Message { text: String::new() },
                        Phase::Silent
                        | Phase::Loading { .. }
                        | Phase::Thinking { .. }
                        | Phase::Stopping
                        | Phase::Over => {
                            return Ok(());
                        }
                    };
                    phase = phase.sent(&next).expect("the service keeps to the table");
                }
            })
        } else {
            phase = phase.heard(&ready()).expect("a worker begins so");
            frames::<worker_wire::ToWorker, ToWorker>(input, worker::MAX_TO_WORKER_BYTES, |message| {
                phase = phase.sent(&message).map_err(refused)?;
                if let Phase::Thinking { next } = phase {
                    phase = phase.heard(&FromWorker::Turn(Turn { number: next, ..turn() })).expect("it is its turn");
                }
                Ok(())
            })
        }
    },
};

pub(super) const READER: Target = Target {
    name: "reader",
    about: "frames between service and reader",
    samples: || {
        let place = || reader::Place { path: b"a".to_vec(), line: 3 };
        let asked = [
            reader::Request::List { path: Vec::new(), after: Some(b"a".to_vec()), most: 10 },
            reader::Request::Read { path: b"a".to_vec(), from_line: 1, lines: 10 },
            reader::Request::Search { pattern: "re".into(), path: Vec::new(), after: Some(place()), most: 10 },
            reader::Request::Whole { path: b"a".to_vec(), most_bytes: 100 },
        ];
        let asked = asked.map(ToReader::Ask).into_iter();
        let begin = ToReader::Begin(reader::Begin { uid: 997, groups: vec![995] });
        let line = reader::Line { bytes: b"x\n".to_vec(), cut: 0 };
        let found = reader::Match { place: place(), column: 1, text: b"x".to_vec(), cut_before: 0, cut_after: 0 };
        let entry = reader::Entry {
            name: b"n".to_vec(),
            kind: reader::EntryKind::File,
            size: 1,
            mode: 0o644,
            closed: false,
            target: Vec::new(),
        };
        let whole =
            reader::Whole { image: Image { content: b"x".to_vec(), mode: 0o644 }, device: 1, inode: 2, links: 1 };
        let answers = [
            reader::Answer::Listed(reader::Listed { entries: vec![entry], more: false }),
            reader::Answer::Lines(reader::Lines { lines: vec![line], total: Some(1), ..reader::Lines::default() }),
            reader::Answer::Found(reader::Found {
                matches: vec![found],
                next: Some(place()),
                ..reader::Found::default()
            }),
            reader::Answer::Whole(whole),
            reader::Answer::Refused(reader::NotRead { why: reader::Refused::Pattern, detail: "d".into() }),
        ];
        let ready = FromReader::Ready { build: "b".into(), canary: vec![Canary { attack: "socket".into(), errno: 1 }] };
        let said = [ready].into_iter().chain(answers.map(FromReader::Answer));
        vec![
            [vec![0], framed(said.map(reader_wire::FromReader::from))].concat(),
            [vec![1], framed([begin].into_iter().chain(asked).map(reader_wire::ToReader::from))].concat(),
        ]
    },
    words: &["not-found", "pattern", "file", "link", "..", "/"],
    read: |input| {
        let (service, input) = side(input);
        if service {
            frames::<reader_wire::FromReader, FromReader>(input, reader::MAX_ANSWER_BYTES, |_| Ok(()))
        } else {
            frames::<reader_wire::ToReader, ToReader>(input, reader::MAX_REQUEST_BYTES, |_| Ok(()))
        }
    },
};

pub(super) const LAUNCH: Target = Target {
    name: "launch",
    about: "the plan that launch is given, and the reports that it gives",
    samples: || {
        let text = |text: &str| CString::new(text).expect("no NUL");
        let plan = Plan {
            action: Action::Exec { argv: vec![text("sh"), text("-c")], env: vec![text("PATH=/usr/bin")] },
            directory: text("/srv/x"),
            limits: vec![(6, 64), (7, 1024)],
            landlock: Some(Rules {
                required: true,
                signals_only: false,
                read: vec![text("/usr")],
                write: vec![text("/srv/x")],
                devices: vec![text("/dev/null")],
            }),
            seccomp: vec![6, 0, 0, 0, 0, 0, 255, 127],
            bound: vec![Bound { path: text("./run.sh"), size: 10, placed: text("/srv/x/run.sh") }],
            guard_to_the_end: true,
            script: false,
            keeper: Keeper::Launch,
            cgroup: true,
        };
        let report = (0..=8_u8).map(|kind| [vec![1, kind], vec![0; report::BYTES - 1]].concat());
        [[vec![0], plan.encode()].concat(), [vec![0], Plan::default().encode()].concat()]
            .into_iter()
            .chain(report)
            .collect()
    },
    words: &["SALPLAN\u{2}", "SALPLAN\u{3}"],
    read: |input| {
        let (plan, input) = side(input);
        if plan {
            match Plan::decode(input) {
                Ok(plan) => {
                    assert_eq!(plan.encode(), input, "a plan has one form");
                    "plan".into()
                }
                Err(_) => "no plan".into(),
            }
        } else {
            let Some(record) = input.first_chunk::<{ report::BYTES }>() else { return "short".into() };
            match report::Record::decode(record) {
                Some(read) => {
                    assert_eq!(report::Record::decode(&read.encode()), Some(read), "a record crosses as it is");
                    "record".into()
                }
                None => "no record".into(),
            }
        }
    },
};
