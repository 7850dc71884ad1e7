//! A hostile executor at the other end of a verified bridge: whatever it answers, the service closes the
//! bridge and says why, and nobody hangs.

use std::{pin::Pin, sync::Arc};

use salaam_core::{
    bridge::{
        Action, Attempt, EditPlan, Edited, FilesRead, ProbeSandbox, ReadFiles, RunEvent, RunPlan, Settle, Settled,
        Stream,
    },
    command::Command,
    edit::{Change, EditedFile, Expected, Image, Method},
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::{Failure, Sandbox},
};
use salaam_proto::wire::{self, executor_server, run_event::Event};
use tokio::sync::Mutex;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{BridgeError, Link, end::End, link::Silent};

type Events = Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

/// Answers as it is told. `run` gives its events and then, if told so, stays silent.
#[derive(Default)]
struct Fake {
    events: Vec<wire::RunEvent>,
    hangs: bool,
    tried: Vec<wire::Attempted>,
    refusal: Option<Vec<u8>>,
    edited: wire::EditReply,
    read: Vec<wire::Part>,
    /// What came in on the stream of `run`, its end included.
    heard: Arc<Mutex<Vec<&'static str>>>,
}

#[tonic::async_trait]
impl executor_server::Executor for Fake {
    type RunStream = Events;
    type ReadFilesStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::Part, Status>> + Send>>;

    async fn hello(&self, _: Request<wire::HelloRequest>) -> Result<Response<wire::HelloReply>, Status> {
        let reply = wire::HelloReply {
            bridge_version: salaam_core::bridge::VERSION,
            floor: "builtin".into(),
            ..wire::HelloReply::default()
        };
        Ok(Response::new(reply))
    }

    async fn probe_sandbox(
        &self,
        _: Request<wire::ProbeSandboxRequest>,
    ) -> Result<Response<wire::ProbeSandboxReply>, Status> {
        let evidence = "x".repeat(5 << 20);
        let check = wire::Check { id: "a".into(), status: "pass".into(), evidence, fix: String::new() };
        Ok(Response::new(wire::ProbeSandboxReply { sandbox: None, checks: vec![check] }))
    }

    async fn r#try(&self, _: Request<wire::TryRequest>) -> Result<Response<wire::TryReply>, Status> {
        Ok(Response::new(wire::TryReply { results: self.tried.clone() }))
    }

    async fn open_workspace(
        &self,
        _: Request<wire::OpenWorkspaceRequest>,
    ) -> Result<Response<wire::OpenWorkspaceReply>, Status> {
        let details = self.refusal.clone().unwrap_or_default();
        Err(Status::with_details(tonic::Code::FailedPrecondition, "refused", details.into()))
    }

    async fn close_workspace(
        &self,
        _: Request<wire::CloseWorkspaceRequest>,
    ) -> Result<Response<wire::CloseWorkspaceReply>, Status> {
        std::future::pending().await
    }

    async fn prepare(&self, _: Request<wire::PrepareRequest>) -> Result<Response<wire::PrepareReply>, Status> {
        Err(Status::internal("\u{1b}[2J an inner path"))
    }

    async fn release(&self, _: Request<wire::ReleaseRequest>) -> Result<Response<wire::ReleaseReply>, Status> {
        Ok(Response::new(wire::ReleaseReply {}))
    }

    async fn run(&self, request: Request<Streaming<wire::RunInput>>) -> Result<Response<Events>, Status> {
        let heard = Arc::clone(&self.heard);
        let mut input = request.into_inner();
        tokio::spawn(async move {
            loop {
                let word = match input.message().await.map(|message| message.and_then(|message| message.input)) {
                    Ok(Some(wire::run_input::Input::Plan(_))) => "plan",
                    Ok(Some(wire::run_input::Input::Stdin(_))) => "stdin",
                    Ok(Some(wire::run_input::Input::Cancel(_))) => "cancel",
                    Ok(None) | Err(_) => "end",
                };
                heard.lock().await.push(word);
                if word == "end" {
                    break;
                }
            }
        });
        let events = tokio_stream::iter(self.events.clone()).map(Ok);
        if self.hangs {
            return Ok(Response::new(Box::pin(events.chain(tokio_stream::pending()))));
        }
        Ok(Response::new(Box::pin(events)))
    }

    async fn read_files(&self, _: Request<wire::ReadFilesRequest>) -> Result<Response<Self::ReadFilesStream>, Status> {
        let endless = wire::Part { bytes: vec![0; 1024].into(), last: false };
        let told = self.read.clone().into_iter();
        let parts: Box<dyn Iterator<Item = _> + Send> =
            if self.read.is_empty() { Box::new(std::iter::repeat(endless)) } else { Box::new(told) };
        Ok(Response::new(Box::pin(tokio_stream::iter(parts.map(Ok)))))
    }

    async fn edit(&self, _: Request<Streaming<wire::Part>>) -> Result<Response<wire::EditReply>, Status> {
        Ok(Response::new(self.edited.clone()))
    }

    async fn settle(&self, _: Request<wire::SettleRequest>) -> Result<Response<wire::SettleReply>, Status> {
        let finished = wire::settle_reply::Settled::Finished(self.edited.clone());
        Ok(Response::new(wire::SettleReply { settled: Some(finished) }))
    }
}

fn attempted(id: &str, errno: i32) -> wire::Attempted {
    wire::Attempted { id: id.into(), errno, ..wire::Attempted::default() }
}

async fn link(fake: Fake) -> Link {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
    let incoming = tokio_stream::once(Ok::<_, std::io::Error>(theirs)).chain(tokio_stream::pending());
    let server = executor_server::ExecutorServer::new(fake).max_encoding_message_size(usize::MAX);
    tokio::spawn(Server::builder().serve_with_incoming(server, incoming));
    let end = End::of(&ours).unwrap();
    let silent = Silent::over(tokio::net::UnixStream::from_std(ours).unwrap(), end).await.unwrap();
    silent.hello("test", 1, 1, None, false).await.unwrap()
}

fn plan() -> RunPlan {
    RunPlan {
        operation: OperationId::new(1, [1; 10]),
        epoch: 1,
        workspace: WorkspaceId::new(1, [1; 10]),
        command: Command::Shell("true".into()),
        stdin: None,
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
}

fn spawned() -> wire::RunEvent {
    RunEvent::Spawned(Sandbox {
        backend: "none".into(),
        version: String::new(),
        landlock_abi: 0,
        landlock: "not-enforced".into(),
        seccomp: false,
        namespaces: vec![],
        warm: false,
        cgroup: vec!["memory".into()],
    })
    .into()
}

fn output() -> wire::RunEvent {
    RunEvent::Output(Stream::Stdout, b"x".to_vec()).into()
}

fn exited() -> wire::RunEvent {
    RunEvent::Exited(Box::default()).into()
}

/// Runs to the end of the events: how many came, and what ended them if not a last event.
async fn events(fake: Fake) -> (usize, Option<BridgeError>) {
    let link = link(fake).await;
    let mut running = link.run(plan(), vec![]).await.unwrap();
    let mut count = 0;
    loop {
        match running.next().await {
            Ok(RunEvent::Exited(_) | RunEvent::Failed(_)) => return (count + 1, None),
            Ok(RunEvent::Spawned(_) | RunEvent::Output(_, _) | RunEvent::Beyond(_)) => count += 1,
            Err(error) => {
                assert!(link.end().reason().is_some(), "the bridge is still open after {error}");
                return (count, Some(error));
            }
        }
    }
}

#[tokio::test]
async fn events_come_in_the_one_order_that_is_possible() {
    let good = Fake { events: vec![spawned(), output(), output(), exited()], ..Fake::default() };
    assert_eq!(events(good).await, (4, None));
    let failure = RunEvent::Failed(Failure { id: "sandbox-userns".into(), message: "m".into() });
    assert_eq!(events(Fake { events: vec![failure.into()], ..Fake::default() }).await, (1, None));
    let long = Event::Output(wire::Output { stream: "stdout".into(), bytes: vec![0; 5 << 20].into() });
    for (what, bad, before) in [
        ("no end", vec![spawned(), output()], 2),
        ("nothing", vec![], 0),
        ("output first", vec![output(), spawned()], 0),
        ("an exit of nothing", vec![exited()], 0),
        ("spawned twice", vec![spawned(), spawned()], 1),
        ("an empty event", vec![spawned(), wire::RunEvent { event: None }], 1),
        ("an empty exit", vec![spawned(), wire::RunEvent { event: Some(Event::Exited(wire::Exit::default())) }], 1),
        ("5 MiB at once", vec![spawned(), wire::RunEvent { event: Some(long) }], 1),
    ] {
        let (count, error) = events(Fake { events: bad, ..Fake::default() }).await;
        assert_eq!(count, before, "{what}");
        assert!(matches!(error, Some(BridgeError::Lost { .. })), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn impossible_answers_close_the_bridge() {
    let lost = |outcome: BridgeError| matches!(outcome, BridgeError::Lost { .. });
    let attempt = || vec![Attempt { id: "a".into(), action: Action::Read, path: b"/x".to_vec() }];
    for tried in [vec![], vec![attempted("b", 13)], vec![attempted("a", 13); 2], vec![attempted("a", -13)]] {
        let link = link(Fake { tried, ..Fake::default() }).await;
        assert!(lost(link.attempt(attempt()).await.unwrap_err()));
        assert!(link.end().reason().unwrap().contains("Try"));
    }
    let tried = vec![attempted("a", 13)];
    assert_eq!(link(Fake { tried, ..Fake::default() }).await.attempt(attempt()).await.unwrap().len(), 1);

    let oversize = link(Fake::default()).await;
    assert!(lost(
        oversize.probe_sandbox(ProbeSandbox { landlock: Landlock::Required, prove: false }).await.unwrap_err()
    ));

    let inner = link(Fake::default()).await;
    let prepare = salaam_core::bridge::Prepare {
        operation: plan().operation,
        workspace: plan().workspace,
        command: plan().command,
        hold: true,
    };
    assert!(lost(inner.prepare(prepare).await.unwrap_err()));
    assert!(!inner.end().reason().unwrap().contains('\u{1b}'));
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_needs_its_details() {
    let failure = Failure { id: "workspace-refused".into(), message: "m".into() };
    let good = link(Fake { refusal: Some(salaam_proto::refusal_details(failure)), ..Fake::default() }).await;
    let refused = BridgeError::Refused { id: "workspace-refused".into(), message: "m".into() };
    assert_eq!(good.open_workspace(plan().workspace, b"/x").await, Err(refused));
    assert_eq!(good.end().reason(), None);
    assert_eq!(good.release(plan().operation).await, Ok(()));
    for details in [vec![], vec![0xff; 64]] {
        let bad = link(Fake { refusal: Some(details), ..Fake::default() }).await;
        assert!(matches!(bad.open_workspace(plan().workspace, b"/x").await, Err(BridgeError::Lost { .. })));
    }
}

#[tokio::test]
async fn the_end_of_the_bridge_ends_every_pending_call() {
    let link = link(Fake { events: vec![spawned()], hangs: true, ..Fake::default() }).await;
    let mut running = link.run(plan(), vec![]).await.unwrap();
    running.next().await.unwrap();
    let (other, pending) = (link.clone(), link.clone());
    let pending = tokio::spawn(async move { pending.close_workspace(plan().workspace).await });
    other.end().close("the executor ended");
    let lost = BridgeError::Lost { reason: "the executor ended".into() };
    assert!(matches!(running.next().await, Err(BridgeError::Lost { .. })));
    assert_eq!(pending.await.unwrap(), Err(lost.clone()));
    assert_eq!(link.release(plan().operation).await, Err(lost));
}

#[tokio::test]
async fn a_cancel_and_a_drop_both_reach_the_executor() {
    let fake = Fake { events: vec![spawned()], hangs: true, ..Fake::default() };
    let heard = Arc::clone(&fake.heard);
    let link = link(fake).await;
    let mut running = link.run(plan(), vec![1; 100_000]).await.unwrap();
    running.next().await.unwrap();
    running.cancel();
    running.cancel();
    until(&heard, &["plan", "stdin", "stdin", "cancel"]).await;
    drop(running);
    until(&heard, &["plan", "stdin", "stdin", "cancel", "end"]).await;
    assert_eq!(link.end().reason(), None, "the bridge outlives a command");
}

fn expected() -> Vec<Expected> {
    let stamp = |text: &[u8]| Some(Image { content: text.to_vec(), mode: 0o644 }.stamp());
    vec![Expected { path: b"a".to_vec(), pre: stamp(b"1"), post: stamp(b"2") }]
}

fn edit() -> EditPlan {
    EditPlan {
        operation: plan().operation,
        epoch: 1,
        workspace: plan().workspace,
        changes: vec![Change::Write { path: b"a".to_vec(), content: b"2".to_vec(), mode: 0o644 }],
        expected: expected(),
        protected_paths: vec![],
        directories: vec![],
    }
}

fn settle() -> Settle {
    let EditPlan { operation, epoch, workspace, expected, directories, .. } = edit();
    Settle { operation, epoch, workspace, expected, directories }
}

#[tokio::test]
async fn an_edit_that_did_something_else_than_was_expected_is_no_answer() {
    let edited = |change: &dyn Fn(&mut EditedFile)| {
        let Expected { path, pre, post } = expected().remove(0);
        let mut file = EditedFile { path, pre, post, method: Method::Exchange };
        change(&mut file);
        wire::EditReply::from(Edited { files: vec![file], made: vec![] })
    };
    let good = link(Fake { edited: edited(&|_| {}), ..Fake::default() }).await;
    assert_eq!(good.edit(edit()).await.unwrap().files.len(), 1);
    assert!(matches!(good.settle(settle()).await, Ok(Settled::Finished(_))));
    let mut twice = edited(&|_| {});
    twice.files.push(twice.files[0].clone());
    for (what, bad) in [
        ("nothing", wire::EditReply::default()),
        ("another file", edited(&|file| file.path = b"b".to_vec())),
        ("another content", edited(&|file| file.post = Image { content: vec![], mode: 0o644 }.stamp().into())),
        ("a file twice", twice),
        ("a directory outside", wire::EditReply { made: vec![b"../x".to_vec().into()], ..edited(&|_| {}) }),
    ] {
        let bad = link(Fake { edited: bad, ..Fake::default() }).await;
        assert!(matches!(bad.edit(edit()).await, Err(BridgeError::Lost { .. })), "{what}");
        assert!(bad.end().reason().unwrap().contains("Edit"), "{what}");
    }
    let bad = link(Fake { edited: edited(&|file| file.path = b"b".to_vec()), ..Fake::default() }).await;
    assert!(matches!(bad.settle(settle()).await, Err(BridgeError::Lost { .. })));
}

#[tokio::test]
async fn files_that_were_not_asked_for_or_never_end_are_no_answer() {
    let asked = |paths: &[&str]| ReadFiles {
        workspace: plan().workspace,
        paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
        protected_paths: Vec::new(),
    };
    let read = |paths: &[&str]| {
        let files = paths.iter().map(|path| (path.as_bytes().to_vec(), None)).collect();
        salaam_proto::parted(&wire::FilesRead::from(FilesRead { files })).unwrap()
    };
    let good = link(Fake { read: read(&["a", "b"]), ..Fake::default() }).await;
    assert_eq!(good.read_files(asked(&["a", "b"])).await.unwrap().files.len(), 2);
    let cut = wire::Part { last: false, ..read(&["a"]).remove(0) };
    for (what, read) in [("others", read(&["b"])), ("too few", read(&[])), ("no end", vec![cut]), ("endless", vec![])] {
        let bad = link(Fake { read, ..Fake::default() }).await;
        assert!(matches!(bad.read_files(asked(&["a"])).await, Err(BridgeError::Lost { .. })), "{what}");
        assert!(bad.end().reason().unwrap().contains("ReadFiles"), "{what}");
    }
}

async fn until(heard: &Mutex<Vec<&'static str>>, wanted: &[&str]) {
    let matches = async {
        loop {
            let now: Vec<_> = heard.lock().await.iter().copied().filter(|word| *word != "cancel").collect();
            let want: Vec<_> = wanted.iter().copied().filter(|word| *word != "cancel").collect();
            let cancelled = heard.lock().await.contains(&"cancel");
            if now == want && cancelled == wanted.contains(&"cancel") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), matches).await.unwrap();
}
