//! Round trips, golden bytes, and messages that no honest peer sends.

use prost::Message as _;
use salaam_core::{
    bound::BoundFile,
    bridge::{
        Action, Attempt, Attempted, Beyond, CHUNK_BYTES, Exit, Greeting, Hello, MAX_PLAN_LIST, MAX_STDIN_BYTES,
        OpenWorkspace, OpenedWorkspace, Prepare, Prepared, ProbeSandbox, RunEvent, RunInput, RunPlan, SandboxStatus,
        Stream,
    },
    check::Check,
    command::{Command, MAX_ARGUMENT_BYTES},
    digest::Digest,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::{Changed, Failure, Guard, Sandbox, Usage},
};

use crate::{MAX_ATTEMPTS, MAX_PATH_BYTES, MAX_SENTENCE_BYTES, WireError, wire};

fn operation() -> OperationId {
    OperationId::new(1, [1; 10])
}

fn workspace() -> WorkspaceId {
    WorkspaceId::new(1, [2; 10])
}

fn sandbox() -> Sandbox {
    Sandbox {
        backend: "bubblewrap".into(),
        version: "0.8.0".into(),
        landlock_abi: 7,
        landlock: "fully-enforced".into(),
        seccomp: true,
        namespaces: vec!["user".into(), "mnt".into()],
        warm: false,
        cgroup: vec!["memory".into()],
    }
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
        whole_output: true,
    }
}

fn exit() -> Exit {
    Exit {
        exit_code: Some(3),
        limit: Some("workspace_growth_bytes".into()),
        proven_gone: true,
        left_processes: 2,
        usage: Usage { cpu_ms: 1, peak_memory_bytes: 2, wall_ms: 3 },
        changed: Changed {
            count: 1,
            paths: vec![b"a/\xff".to_vec()],
            complete: true,
            guard: Guard { mounts: 5, scanned: 2, complete: true },
        },
        quarantined: vec![b"sub/.git/hooks".to_vec()],
        ..Exit::default()
    }
}

/// To the wire, through bytes, and back.
pub(crate) fn round<D, W>(value: D)
where
    D: Clone + PartialEq + std::fmt::Debug + TryFrom<W, Error = WireError>,
    W: From<D> + prost::Message + Default,
{
    let bytes = W::from(value.clone()).encode_to_vec();
    let wire = W::decode(bytes.as_slice()).unwrap();
    assert_eq!(D::try_from(wire), Ok(value));
}

#[test]
fn every_value_comes_back_as_it_went() {
    round::<_, wire::HelloRequest>(Greeting { bridge_version: 1, build: "0.1.0".into(), epoch: 7 });
    let hello =
        Hello { bridge_version: 1, build: "0.1.0".into(), uid: 997, groups: vec![995, 997], floor: "builtin".into() };
    round::<_, wire::HelloReply>(hello);
    round::<_, wire::ProbeSandboxRequest>(ProbeSandbox { landlock: Landlock::IfAvailable, prove: true });
    round::<_, wire::ProbeSandboxReply>(SandboxStatus {
        sandbox: Some(sandbox()),
        checks: vec![Check::fail("sandbox-userns", "ENOSPC", "raise it")],
    });
    round::<_, wire::TryRequest>(vec![Attempt { id: "state".into(), action: Action::Read, path: b"/x".to_vec() }]);
    round::<_, wire::TryReply>(vec![Attempted { id: "state".into(), errno: 13, code: None, said: String::new() }]);
    round::<_, wire::OpenWorkspaceRequest>(OpenWorkspace { workspace: workspace(), path: b"/srv/caf\xe9".to_vec() });
    round::<_, wire::OpenWorkspaceReply>(OpenedWorkspace {
        device: 1,
        inode: u64::MAX,
        handle: "0aff".into(),
        writable: true,
    });
    let command = Command::Shell("ls | wc".into());
    round::<_, wire::PrepareRequest>(Prepare { operation: operation(), workspace: workspace(), command, hold: true });
    round::<_, wire::PrepareReply>(Prepared {
        files: plan().files,
        unpinned: true,
        git_outside: Some("/srv/main/.git/worktrees/x".into()),
    });
    round::<_, wire::RunInput>(RunInput::Plan(Box::new(plan())));
    round::<_, wire::RunInput>(RunInput::Stdin(vec![0; CHUNK_BYTES]));
    round::<_, wire::RunInput>(RunInput::Cancel);
    round::<_, wire::RunEvent>(RunEvent::Spawned(sandbox()));
    round::<_, wire::RunEvent>(RunEvent::Output(Stream::Stderr, vec![0xff; CHUNK_BYTES]));
    for sha256 in [None, Some(Digest::of(b"x"))] {
        round::<_, wire::RunEvent>(RunEvent::Beyond(Beyond { stream: Stream::Stdout, bytes: u64::MAX, sha256 }));
    }
    round::<_, wire::RunEvent>(RunEvent::Failed(Failure { id: "stale-operand".into(), message: "m".into() }));
    round::<_, wire::RunEvent>(RunEvent::Exited(Box::new(exit())));
    let failure = Failure { id: "stale-operand".into(), message: "m".into() };
    assert_eq!(crate::refusal_of(&crate::refusal_details(failure.clone())), Ok(failure));
    assert_eq!(crate::operation_of(&crate::release_request(operation())), Ok(operation()));
    assert_eq!(crate::workspace_of(&crate::close_request(workspace())), Ok(workspace()));
}

#[test]
fn the_wire_form_is_golden() {
    let greeting = Greeting { bridge_version: 1, build: "b".into(), epoch: 300 };
    assert_eq!(wire::HelloRequest::from(greeting).encode_to_vec(), b"\x08\x01\x12\x01b\x18\xac\x02");
    let attempt = vec![Attempt { id: "s".into(), action: Action::Connect, path: b"/x".to_vec() }];
    assert_eq!(wire::TryRequest::from(attempt).encode_to_vec(), b"\x0a\x10\x0a\x01s\x12\x07connect\x1a\x02/x");
    assert_eq!(wire::RunInput::from(RunInput::Cancel).encode_to_vec(), b"\x1a\x00");
}

#[test]
fn an_empty_message_never_means_allow() {
    let missing = |field| WireError::Missing { field };
    assert_eq!(Greeting::try_from(wire::HelloRequest::default()), Err(missing("bridge_version")));
    assert_eq!(Hello::try_from(wire::HelloReply::default()), Err(missing("bridge_version")));
    assert_eq!(ProbeSandbox::try_from(wire::ProbeSandboxRequest::default()), Err(missing("landlock")));
    assert_eq!(SandboxStatus::try_from(wire::ProbeSandboxReply::default()), Err(missing("checks")));
    assert_eq!(OpenWorkspace::try_from(wire::OpenWorkspaceRequest::default()), Err(missing("workspace")));
    assert_eq!(Prepare::try_from(wire::PrepareRequest::default()), Err(missing("operation")));
    assert_eq!(RunPlan::try_from(wire::RunPlan::default()), Err(missing("epoch")));
    assert_eq!(RunInput::try_from(wire::RunInput::default()), Err(missing("input")));
    assert_eq!(RunEvent::try_from(wire::RunEvent::default()), Err(missing("event")));
    assert_eq!(Exit::try_from(wire::Exit::default()), Err(missing("exit.usage")));
    assert!(Sandbox::try_from(wire::Sandbox::default()).is_err());
    assert!(Failure::try_from(wire::Failure::default()).is_err());
    assert!(Check::try_from(wire::Check::default()).is_err());
    assert!(crate::refusal_of(b"").is_err() && crate::refusal_of(b"\xff").is_err());
    assert!(crate::operation_of(&wire::ReleaseRequest::default()).is_err());
    assert!(crate::workspace_of(&wire::CloseWorkspaceRequest::default()).is_err());
}

#[test]
fn a_plan_with_any_one_field_taken_away_or_spoilt_is_refused() {
    type Spoil = (&'static str, fn(&mut wire::RunPlan));
    let spoil: &[Spoil] = &[
        ("operation", |p| p.operation.clear()),
        ("operation of another noun", |p| p.operation = p.operation.replace("op_", "ws_")),
        ("epoch", |p| p.epoch = 0),
        ("workspace", |p| p.workspace.clear()),
        ("command", |p| p.command = None),
        ("command form", |p| p.command = Some(wire::Command { form: None })),
        ("empty argv", |p| {
            p.command = Some(wire::Command { form: Some(wire::command::Form::Argv(wire::Argv { words: vec![] })) });
        }),
        ("long argument", |p| {
            let words = vec![vec![b'a'; MAX_ARGUMENT_BYTES + 1].into()];
            p.command = Some(wire::Command { form: Some(wire::command::Form::Argv(wire::Argv { words })) });
        }),
        ("empty shell", |p| {
            p.command = Some(wire::Command { form: Some(wire::command::Form::Shell(" ".into())) });
        }),
        ("short digest", |p| p.stdin = Some(wire::Stdin { sha256: vec![0; 31].into(), bytes: 1 })),
        ("long stdin", |p| {
            p.stdin = Some(wire::Stdin { sha256: vec![0; 32].into(), bytes: MAX_STDIN_BYTES + 1 });
        }),
        ("profile", |p| p.profile.clear()),
        ("unknown profile", |p| p.profile = "Workspace-Write".into()),
        ("network", |p| p.network.clear()),
        ("landlock", |p| p.landlock = "best-effort".into()),
        ("limits", |p| p.limits = None),
        ("zero limits", |p| p.limits = Some(wire::Limits::default())),
        ("limit above the ceiling", |p| {
            p.limits.as_mut().unwrap().command_seconds = Limits::CEILING.command_seconds + 1;
        }),
        ("file digest", |p| p.files[0].sha256 = vec![0; 33].into()),
        ("file twice", |p| p.files = vec![p.files[0].clone(), p.files[0].clone()]),
        ("relative file", |p| p.files[0].path = b"x".to_vec().into()),
        ("relative read path", |p| p.read_paths = vec![b"opt".to_vec().into()]),
        ("read path with ..", |p| p.read_paths = vec![b"/opt/../root".to_vec().into()]),
        ("read path with NUL", |p| p.read_paths = vec![b"/opt\0".to_vec().into()]),
        ("long read path", |p| p.read_paths = vec![vec![b'/'; MAX_PATH_BYTES + 1].into()]),
        ("many read paths", |p| p.read_paths = vec![b"/a".to_vec().into(); MAX_PLAN_LIST + 1]),
        ("absolute protected path", |p| p.protected_paths = vec![b"/a".to_vec().into()]),
        ("protected path out", |p| p.protected_paths = vec![b"a/../..".to_vec().into()]),
        ("environment name", |p| p.environment[0].name = "A=B".into()),
        ("environment value", |p| p.environment[0].value = "a\0".into()),
        ("long environment value", |p| p.environment[0].value = "a".repeat(32 * 1024 + 1)),
    ];
    assert!(RunPlan::try_from(wire::RunPlan::from(plan())).is_ok());
    for (what, spoil) in spoil {
        let mut wire = wire::RunPlan::from(plan());
        spoil(&mut wire);
        assert!(RunPlan::try_from(wire).is_err(), "{what}");
    }
}

#[test]
fn hostile_answers_are_refused() {
    let event = |event| RunEvent::try_from(wire::RunEvent { event: Some(event) });
    let output = |stream: &str, bytes: Vec<u8>| {
        event(wire::run_event::Event::Output(wire::Output { stream: stream.into(), bytes: bytes.into() }))
    };
    assert!(output("stdout", vec![0; CHUNK_BYTES + 1]).is_err());
    assert!(output("stdin", vec![0]).is_err());
    assert!(output("stdout", vec![]).is_err());
    let beyond = |stream: &str, sha256: Option<Vec<u8>>| {
        let sha256 = sha256.map(Into::into);
        event(wire::run_event::Event::Beyond(wire::Beyond { stream: stream.into(), bytes: 1, sha256 }))
    };
    assert!(beyond("stdout", Some(vec![0; 32])).is_ok());
    assert!(beyond("stdin", None).is_err());
    assert!(beyond("stdout", Some(vec![0; 31])).is_err());
    let spoil: &[fn(&mut wire::Exit)] = &[
        |e| e.signal = Some(9),
        |e| e.exit_code = Some(256),
        |e| (e.exit_code, e.signal) = (None, Some(65)),
        |e| e.usage = None,
        |e| e.changed = None,
        |e| e.changed.as_mut().unwrap().paths = vec![b"a".to_vec().into(); 101],
        |e| e.changed.as_mut().unwrap().paths = vec![b"../a".to_vec().into()],
        |e| e.quarantined = vec![b"a".to_vec().into(); MAX_PLAN_LIST + 1],
        |e| e.limit = "a b".into(),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut wire = wire::Exit::from(exit());
        spoil(&mut wire);
        assert!(Exit::try_from(wire).is_err(), "{index}");
    }
    let failure = wire::Failure { id: "x".into(), message: "m".repeat(MAX_SENTENCE_BYTES + 1) };
    assert!(Failure::try_from(failure).is_err());
    let named = wire::Attempt { id: "s".into(), action: "sudo-root".into(), path: b"/bin/sh".to_vec().into() };
    assert!(Attempt::try_from(named).is_err(), "the service names no program");
    let said = wire::Attempted { id: "s".into(), said: "x".repeat(513), ..wire::Attempted::default() };
    assert!(Vec::<Attempted>::try_from(wire::TryReply { results: vec![said] }).is_err());
    let attempts = vec![Attempt { id: "s".into(), action: Action::Read, path: b"/x".to_vec() }; MAX_ATTEMPTS + 1];
    assert!(Vec::<Attempt>::try_from(wire::TryRequest::from(attempts)).is_err());
    let reply =
        wire::TryReply { results: vec![wire::Attempted { id: "s".into(), errno: -1, ..wire::Attempted::default() }] };
    assert!(Vec::<Attempted>::try_from(reply).is_err());
    let reply = wire::HelloReply {
        bridge_version: 1,
        groups: vec![0; 65_537],
        floor: "builtin".into(),
        ..wire::HelloReply::default()
    };
    assert!(Hello::try_from(reply).is_err());
    let reply = wire::OpenWorkspaceReply { handle: "0G".into(), ..wire::OpenWorkspaceReply::default() };
    assert!(OpenedWorkspace::try_from(reply).is_err());
    let checks = vec![wire::Check::from(Check::pass("a", "")); 65];
    assert!(SandboxStatus::try_from(wire::ProbeSandboxReply { sandbox: None, checks }).is_err());
}

#[test]
fn a_long_message_of_our_own_is_cut_on_a_character() {
    let long = Failure { id: "x".into(), message: "é".repeat(MAX_SENTENCE_BYTES) };
    let cut = Failure::try_from(wire::Failure::from(long)).unwrap();
    assert!(cut.message.len() <= MAX_SENTENCE_BYTES && cut.message.ends_with('é'));
}

#[test]
fn the_contract_is_embedded_with_every_call() {
    let text = String::from_utf8_lossy(crate::DESCRIPTORS);
    for call in [
        "Hello",
        "ProbeSandbox",
        "Try",
        "OpenWorkspace",
        "CloseWorkspace",
        "Prepare",
        "Release",
        "Run",
        "RunEvent",
        "ReadFiles",
        "Edit",
        "Settle",
    ] {
        assert!(text.contains(call), "{call}");
    }
}
