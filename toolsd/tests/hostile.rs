//! A hostile service against the real executor, in service-user mode: whatever it sends, the executor refuses
//! or ends, with a reason on standard error, and never panics.
//!
//! As root each test runs again as an account without privileges, because the executor refuses root. That
//! needs setpriv.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the functions beside the tests are tests too"
)]

#[path = "hostile/edits.rs"]
mod edits;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use salaam_core::{
    bridge::{ANSWER_MAGIC, CHUNK_BYTES, HELLO_MAGIC, RunPlan, VERSION, hello_bytes},
    command,
    digest::Digest,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
};
use salaam_proto::wire::{self, executor_client::ExecutorClient, run_input::Input};
use tonic::{Code, Status, codegen::http, transport::Channel};

/// No account has it; the executor needs none in service-user mode.
const UID: &str = "54321";
/// For an executor to notice and end.
const SOON: Duration = Duration::from_secs(10);

/// Runs `body` as an account that is not root.
fn unprivileged(test: &str, body: impl FnOnce()) {
    if !nix::unistd::geteuid().is_root() {
        body();
        fs::remove_dir_all(binary().parent().unwrap()).unwrap();
        return;
    }
    let run = Command::new("setpriv")
        .args([&format!("--reuid={UID}"), &format!("--regid={UID}"), "--clear-groups", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

struct Toolsd {
    child: Child,
    bridge: Option<UnixStream>,
}

impl Toolsd {
    fn start() -> Self {
        let (bridge, theirs) = UnixStream::pair().unwrap();
        Self { child: spawn(&[], OwnedFd::from(theirs)), bridge: Some(bridge) }
    }

    /// Past the sixteen bytes.
    fn shaken() -> Self {
        let mut toolsd = Self::start();
        let bridge = toolsd.bridge.as_mut().unwrap();
        let mut hello = [0; 16];
        if bridge.read_exact(&mut hello).is_err() {
            panic!("no hello: {:?}", toolsd.end());
        }
        assert_eq!(hello, hello_bytes(HELLO_MAGIC, VERSION));
        bridge.write_all(&hello_bytes(ANSWER_MAGIC, VERSION)).unwrap();
        toolsd
    }

    fn send(&mut self, bytes: &[u8]) {
        // It may close while we still write.
        let _ = self.bridge.as_mut().unwrap().write_all(bytes);
    }

    async fn client(&mut self) -> ExecutorClient<Channel> {
        ExecutorClient::new(self.channel().await).max_encoding_message_size(usize::MAX)
    }

    async fn channel(&mut self) -> Channel {
        let stream = self.bridge.take().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = Some(hyper_util::rt::TokioIo::new(tokio::net::UnixStream::from_std(stream).unwrap()));
        let connector = tower::service_fn(move |_: http::Uri| {
            std::future::ready(stream.take().ok_or(std::io::Error::other("once")))
        });
        let channel = tonic::transport::Endpoint::from_static("http://bridge.invalid");
        channel.connect_with_connector(connector).await.unwrap()
    }

    /// Its exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + SOON;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > until {
                self.child.kill().unwrap();
                panic!("it did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        (status.code(), said)
    }

    fn closed_as_impossible(self, what: &str) {
        let (code, said) = self.end();
        assert!(code == Some(0) && said.contains("impossible"), "{what}: {code:?} {said}");
    }
}

fn spawn(arguments: &[&str], stdin: impl Into<Stdio>) -> Child {
    Command::new(binary())
        .args(arguments)
        .env_clear()
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A copy with a salaam-launch beside it: no command is run here, so that one is found is enough.
fn binary() -> &'static Path {
    static INSTALLED: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = std::env::temp_dir().join(format!("salaam-hostile-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("salaam-launch"), "").unwrap();
        fs::copy(env!("CARGO_BIN_EXE_salaam-toolsd"), directory.join("salaam-toolsd")).unwrap();
        directory.join("salaam-toolsd")
    });
    &INSTALLED
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn greeting() -> wire::HelloRequest {
    wire::HelloRequest { bridge_version: VERSION, build: "test".into(), epoch: 7 }
}

fn plan(stdin: Option<&[u8]>) -> wire::RunPlan {
    RunPlan {
        operation: OperationId::new(1, [1; 10]),
        epoch: 7,
        workspace: WorkspaceId::new(1, [1; 10]),
        command: command::Command::Argv(vec![b"true".to_vec()]),
        stdin: stdin.map(|bytes| (Digest::of(bytes), bytes.len() as u64)),
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock: Landlock::Required,
        allow_unsandboxed: false,
        limits: Limits::default(),
        files: vec![],
        read_paths: vec![],
        read_identities: vec![],
        protected_paths: vec![],
        environment: vec![],
        whole_output: false,
    }
    .into()
}

fn input(input: Input) -> wire::RunInput {
    wire::RunInput { input: Some(input) }
}

fn of(plan: wire::RunPlan) -> wire::RunInput {
    input(Input::Plan(plan))
}

fn stdin(bytes: &[u8]) -> wire::RunInput {
    input(Input::Stdin(bytes.to_vec().into()))
}

fn cancel() -> wire::RunInput {
    input(Input::Cancel(wire::Cancel {}))
}

/// Sends these and keeps the stream open, as an honest service would.
async fn run(client: &mut ExecutorClient<Channel>, inputs: Vec<wire::RunInput>) -> Result<(), Status> {
    use tokio_stream::StreamExt as _;
    let inputs = tokio_stream::iter(inputs).chain(tokio_stream::pending());
    let mut events = tokio::time::timeout(SOON, client.run(inputs)).await.unwrap()?.into_inner();
    while events.message().await?.is_some() {}
    Ok(())
}

#[test]
fn what_is_no_bridge_is_refused_with_a_code_of_its_own() {
    unprivileged("what_is_no_bridge_is_refused_with_a_code_of_its_own", || {
        let null = || Stdio::from(File::open("/dev/null").unwrap());
        let (pipe, _write) = std::io::pipe().unwrap();
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        let (stream, _ours) = UnixStream::pair().unwrap();
        for (what, arguments, fd, code) in [
            ("an argument", &["serve"][..], null(), 64),
            ("a second argument", &["prober", "x"], null(), 64),
            ("a file", &[], null(), 70),
            ("a pipe, as with log_input", &[], Stdio::from(OwnedFd::from(pipe)), 70),
            ("datagrams", &[], Stdio::from(OwnedFd::from(datagram)), 70),
            ("a prober without a bridge", &["prober"], null(), 70),
        ] {
            let (got, said) = Toolsd { child: spawn(arguments, fd), bridge: None }.end();
            assert_eq!(got, Some(code), "{what}: {said}");
            assert!(said.starts_with("salaam-toolsd: "), "{what}: {said}");
        }
        drop(stream);
    });
}

#[test]
fn root_is_refused() {
    if nix::unistd::geteuid().is_root() {
        assert_eq!(Toolsd::start().end().0, Some(66));
        fs::remove_dir_all(binary().parent().unwrap()).unwrap();
    }
}

#[test]
fn a_wrong_answer_to_the_hello_ends_it() {
    unprivileged("a_wrong_answer_to_the_hello_ends_it", || {
        for (answer, code) in [
            (hello_bytes(ANSWER_MAGIC, VERSION + 1).to_vec(), 76),
            (hello_bytes(HELLO_MAGIC, VERSION).to_vec(), 75),
            (b"PRI * HTTP/2.0\r\n".to_vec(), 75),
            (b"SALAAM".to_vec(), 75),
            (vec![], 75),
        ] {
            let mut toolsd = Toolsd::start();
            toolsd.send(&answer);
            toolsd.bridge.as_ref().unwrap().shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(toolsd.end().0, Some(code), "{answer:?}");
        }
    });
}

#[test]
fn bytes_that_are_no_http2_end_it() {
    unprivileged("bytes_that_are_no_http2_end_it", || {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (what, bytes) in [
            ("garbage", vec![0xa5; 4096]),
            ("HTTP/1.1", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            ("a frame of 16 MiB", [preface, &b"\xff\xff\xff\0\0\0\0\0\x01"[..], &[0; 4096]].concat()),
            ("headers on stream 0", [preface, &b"\0\0\x01\x01\x04\0\0\0\0\x82"[..]].concat()),
            ("broken HPACK", [preface, &b"\0\0\x02\x01\x04\0\0\0\x01\xff\xff"[..]].concat()),
        ] {
            let mut toolsd = Toolsd::shaken();
            toolsd.send(&bytes);
            let (code, said) = toolsd.end();
            assert_eq!(code, Some(0), "{what}: {said}");
        }
    });
}

#[test]
fn the_end_of_the_bridge_is_the_end_of_the_executor() {
    unprivileged("the_end_of_the_bridge_is_the_end_of_the_executor", || {
        let mut toolsd = Toolsd::shaken();
        toolsd.bridge = None;
        assert_eq!(toolsd.end().0, Some(0));
    });
}

#[test]
fn a_signal_that_sudo_relays_is_an_orderly_end() {
    unprivileged("a_signal_that_sudo_relays_is_an_orderly_end", || {
        let mut toolsd = Toolsd::shaken();
        let client = runtime();
        let mut held = client.block_on(toolsd.client());
        client.block_on(held.hello(greeting())).unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(toolsd.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let (code, said) = toolsd.end();
        assert!(code == Some(0) && said.contains("a signal asked for it"), "{code:?} {said}");
    });
}

#[test]
fn an_honest_service_is_served_and_a_refusal_leaves_the_bridge_open() {
    unprivileged("an_honest_service_is_served_and_a_refusal_leaves_the_bridge_open", || {
        let mut toolsd = Toolsd::shaken();
        runtime().block_on(async {
            let mut client = toolsd.client().await;
            let hello = client.hello(greeting()).await.unwrap().into_inner();
            assert_eq!((hello.bridge_version, hello.floor.as_str()), (VERSION, "builtin"));
            assert_eq!(hello.uid, nix::unistd::getuid().as_raw());
            let open = wire::OpenWorkspaceRequest {
                workspace: WorkspaceId::new(1, [1; 10]).to_string(),
                path: b"/etc".to_vec().into(),
            };
            let refused = client.open_workspace(open).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert_eq!(salaam_proto::refusal_of(refused.details()).unwrap().id, "workspace-refused");
            let attempts =
                vec![wire::Attempt { id: "null".into(), action: "read".into(), path: b"/dev/null".to_vec().into() }];
            let tried = client.r#try(wire::TryRequest { attempts }).await.unwrap().into_inner();
            assert_eq!(tried.results.first().map(|tried| tried.errno), Some(0));
        });
        assert_eq!(toolsd.end().0, Some(0));
    });
}

#[test]
fn two_versions_are_both_named_and_nothing_follows() {
    unprivileged("two_versions_are_both_named_and_nothing_follows", || {
        let mut toolsd = Toolsd::shaken();
        runtime().block_on(async {
            let mut client = toolsd.client().await;
            let other = wire::HelloRequest { bridge_version: VERSION + 1, ..greeting() };
            assert_eq!(client.hello(other).await.unwrap().into_inner().bridge_version, VERSION);
            assert!(
                client
                    .probe_sandbox(wire::ProbeSandboxRequest { landlock: "required".into(), prove: true })
                    .await
                    .is_err()
            );
        });
        toolsd.closed_as_impossible("after a mismatch");
    });
}

#[test]
fn calls_out_of_order_close_the_bridge() {
    unprivileged("calls_out_of_order_close_the_bridge", || {
        let calls: [(&str, bool, MakeCall); 7] = [
            ("Run before Hello", false, |mut c| Box::pin(async move { run(&mut c, vec![of(plan(None))]).await })),
            ("a probe before Hello", false, |mut c| {
                let probe = wire::ProbeSandboxRequest { landlock: "required".into(), prove: true };
                Box::pin(async move { c.probe_sandbox(probe).await.map(drop) })
            }),
            ("a second Hello", true, |mut c| Box::pin(async move { c.hello(greeting()).await.map(drop) })),
            ("another epoch", true, |mut c| {
                let other = wire::RunPlan { epoch: 6, ..plan(None) };
                Box::pin(async move { run(&mut c, vec![of(other)]).await })
            }),
            ("standard input first", true, |mut c| Box::pin(async move { run(&mut c, vec![stdin(b"x")]).await })),
            ("a cancel first", true, |mut c| Box::pin(async move { run(&mut c, vec![cancel()]).await })),
            ("two plans", true, |mut c| {
                let twice = vec![of(plan(Some(b"x"))), of(plan(Some(b"x")))];
                Box::pin(async move { run(&mut c, twice).await })
            }),
        ];
        for (what, greet, call) in calls {
            refused(what, greet, call);
        }
    });
}

#[test]
fn standard_input_that_is_not_what_was_bound_closes_the_bridge() {
    unprivileged("standard_input_that_is_not_what_was_bound_closes_the_bridge", || {
        let calls: [(&str, MakeCall); 5] = [
            ("other bytes", |mut c| {
                Box::pin(async move { run(&mut c, vec![of(plan(Some(b"ab"))), stdin(b"ac")]).await })
            }),
            ("more bytes", |mut c| {
                Box::pin(async move { run(&mut c, vec![of(plan(Some(b"ab"))), stdin(b"abc")]).await })
            }),
            ("a cancel within", |mut c| {
                Box::pin(async move { run(&mut c, vec![of(plan(Some(b"ab"))), stdin(b"a"), cancel()]).await })
            }),
            ("an empty chunk", |mut c| {
                Box::pin(async move { run(&mut c, vec![of(plan(Some(b"ab"))), stdin(b"")]).await })
            }),
            ("a chunk above the limit", |mut c| {
                let long = vec![0; CHUNK_BYTES + 1];
                Box::pin(async move { run(&mut c, vec![of(plan(Some(&long))), stdin(&long)]).await })
            }),
        ];
        for (what, call) in calls {
            refused(what, true, call);
        }
    });
}

#[test]
fn messages_that_are_oversize_or_malformed_close_the_bridge() {
    unprivileged("messages_that_are_oversize_or_malformed_close_the_bridge", || {
        let calls: [(&str, MakeCall); 5] = [
            ("5 MiB to a unary call", |mut c| {
                let path = vec![b'a'; 5 << 20].into();
                let open = wire::OpenWorkspaceRequest { workspace: String::new(), path };
                Box::pin(async move { c.open_workspace(open).await.map(drop) })
            }),
            ("5 MiB into Run", |mut c| Box::pin(async move { run(&mut c, vec![stdin(&vec![0; 5 << 20])]).await })),
            ("an empty plan", |mut c| Box::pin(async move { run(&mut c, vec![of(wire::RunPlan::default())]).await })),
            ("an empty request", |mut c| {
                Box::pin(async move { c.prepare(wire::PrepareRequest::default()).await.map(drop) })
            }),
            ("an unknown word", |mut c| {
                let probe = wire::ProbeSandboxRequest { landlock: "best-effort".into(), prove: false };
                Box::pin(async move { c.probe_sandbox(probe).await.map(drop) })
            }),
        ];
        for (what, call) in calls {
            refused(what, true, call);
        }
        for (what, path) in [
            ("another message's bytes", "/salaam.bridge.v1.Executor/Release"),
            ("an unknown method", "/salaam.bridge.v1.Executor/Shell"),
            ("an unknown service", "/grpc.reflection.v1.ServerReflection/Info"),
        ] {
            let mut toolsd = Toolsd::shaken();
            runtime().block_on(async {
                let channel = toolsd.channel().await;
                ExecutorClient::new(channel.clone()).hello(greeting()).await.unwrap();
                assert!(raw(channel, path).await.is_err(), "{what}");
            });
            toolsd.closed_as_impossible(what);
        }
    });
}

/// Sends a message whose field 1 is a number, where a release has a string.
async fn raw(channel: Channel, path: &'static str) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let message = wire::OpenWorkspaceReply { device: 1, ..wire::OpenWorkspaceReply::default() };
    let codec = tonic_prost::ProstCodec::<wire::OpenWorkspaceReply, wire::Cancel>::default();
    grpc.unary(tonic::Request::new(message), http::uri::PathAndQuery::from_static(path), codec).await.map(drop)
}

type MakeCall = fn(ExecutorClient<Channel>) -> Call;
type Call = std::pin::Pin<Box<dyn Future<Output = Result<(), Status>>>>;

fn refused(what: &str, greet: bool, call: impl FnOnce(ExecutorClient<Channel>) -> Call) {
    let mut toolsd = Toolsd::shaken();
    runtime().block_on(async {
        let mut client = toolsd.client().await;
        if greet {
            client.hello(greeting()).await.unwrap();
        }
        assert!(call(client).await.is_err(), "{what}");
    });
    toolsd.closed_as_impossible(what);
}
