//! One verified executor and the calls to it. Each has a deadline, and each ends when the bridge does.

use std::{sync::Arc, time::Duration};

use salaam_core::{
    bridge::{
        Attempt, Attempted, CHUNK_BYTES, EditPlan, Edited, FilesRead, Greeting, Hello, MAX_MESSAGE_BYTES,
        OpenWorkspace, OpenedWorkspace, Prepare, Prepared, ProbeSandbox, ReadFiles, RunInput, RunPlan, SandboxStatus,
        Settle, Settled, VERSION,
    },
    edit::{EditedFile, Expected},
    id::{OperationId, WorkspaceId},
    kept::Kept,
    show,
};
use salaam_proto::{
    Parts, WireError,
    wire::{self, executor_client::ExecutorClient},
};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};

use super::{
    end::{End, Tracked},
    error::BridgeError,
    running::Running,
    streams::Streams,
};

/// Flow-control windows: with 64 KiB chunks, 16 of one command are under way. What nobody takes stays in its stream's
/// window and counts against the connection's too, so that one has room for all 64 commands at once and as much for
/// every other answer: none is held up by a follower of somebody else's command that does not read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 80 << 20;
/// One HTTP/2 frame: a chunk of output and its frame.
const FRAME_BYTES: u32 = 128 << 10;
/// Answer headers; a refusal's details are in them, in base64.
const HEADER_BYTES: u32 = 64 << 10;
/// A stopped or wedged executor is found by pings, not by a command's time limit. Long enough for a host that
/// is busy with what the executor runs.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_WITHIN: Duration = Duration::from_secs(30);

/// One verified toolsd. Cheap to clone; calls on a link that was lost fail as [`BridgeError::Lost`].
#[derive(Debug, Clone)]
pub struct Link {
    client: ExecutorClient<Channel>,
    end: Arc<End>,
    identity: Arc<Identity>,
}

#[derive(Debug)]
struct Identity {
    epoch: u64,
    pid: i32,
    sudo_pid: Option<i32>,
    grouped: bool,
    hello: Hello,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
struct Call {
    name: &'static str,
    within: Duration,
}

const fn call(name: &'static str, seconds: u64) -> Call {
    Call { name, within: Duration::from_secs(seconds) }
}

const HELLO: Call = call("Hello", 10);
/// A whole sandbox is built and tried.
const PROBE_SANDBOX: Call = call("ProbeSandbox", 60);
/// The executor's own limit is 40 s: its answer says which program was slow.
const TRY: Call = call("Try", 45);
const OPEN_WORKSPACE: Call = call("OpenWorkspace", 15);
const CLOSE_WORKSPACE: Call = call("CloseWorkspace", 15);
/// Up to 128 MiB are read from a disk that may be slow, and hashed.
const PREPARE: Call = call("Prepare", 60);
const RELEASE: Call = call("Release", 15);
/// Until the plan and up to 16 MiB of standard input are taken.
const RUN: Call = call("Run", 60);
/// Up to 32 MiB are read from a disk that may be slow, behind others that wait for it.
const READ_FILES: Call = call("ReadFiles", 120);
/// Up to 64 files are read, written and synced one by one, after other edits of the same workspace.
const EDIT: Call = call("Edit", 300);
const SETTLE: Call = call("Settle", 120);

/// A bridge that speaks HTTP/2, before `Hello`.
#[derive(Debug)]
pub(super) struct Silent {
    client: ExecutorClient<Channel>,
    end: Arc<End>,
}

impl Silent {
    /// Speaks HTTP/2 over the one connection that there is; there is nothing to connect to again.
    pub(super) async fn over(stream: tokio::net::UnixStream, end: Arc<End>) -> Result<Self, BridgeError> {
        let mut once = Some(hyper_util::rt::TokioIo::new(Tracked::new(stream, Arc::clone(&end))));
        let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
            let stream = once.take().ok_or_else(|| std::io::Error::other("the bridge has one connection"));
            std::future::ready(stream)
        });
        // The name is never resolved; HTTP/2 wants one.
        let endpoint = Endpoint::from_static("http://bridge.invalid")
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector(connector);
        match tokio::time::timeout(HELLO.within, channel).await {
            Ok(Ok(channel)) => {
                let client = ExecutorClient::new(channel)
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES);
                Ok(Self { client, end })
            }
            Ok(Err(error)) => {
                end.close(format!("HTTP/2 did not begin: {error}"));
                Err(lost(&end))
            }
            Err(_) => {
                end.close("HTTP/2 did not begin in time");
                Err(BridgeError::Deadline { call: HELLO.name })
            }
        }
    }

    /// Says hello and takes the executor's own word on its version and identity.
    pub(super) async fn hello(
        mut self,
        build: &str,
        epoch: u64,
        pid: i32,
        sudo_pid: Option<i32>,
        grouped: bool,
    ) -> Result<Link, BridgeError> {
        let greeting = Greeting { bridge_version: VERSION, build: build.into(), epoch };
        let reply = self.client.hello(wire::HelloRequest::from(greeting));
        let reply = answered(&self.end, HELLO, reply).await?;
        let hello = checked(&self.end, HELLO, Hello::try_from(reply))?;
        let identity = Arc::new(Identity { epoch, pid, sudo_pid, grouped, hello });
        Ok(Link { client: self.client, end: self.end, identity })
    }
}

impl Link {
    /// The epoch that the service gave it.
    pub fn epoch(&self) -> u64 {
        self.identity.epoch
    }

    /// Its process, by the kernel's word.
    pub fn pid(&self) -> i32 {
        self.identity.pid
    }

    /// The sudo in front of it; absent in service-user mode and where sudo execs directly.
    pub fn sudo_pid(&self) -> Option<i32> {
        self.identity.sudo_pid
    }

    /// Whether it is in the group that was made for it, by the kernel's word.
    pub fn is_grouped(&self) -> bool {
        self.identity.grouped
    }

    /// What it said about itself.
    pub fn hello(&self) -> &Hello {
        &self.identity.hello
    }

    /// Has the sandbox tried on this host.
    ///
    /// # Errors
    /// See [`BridgeError`]; so for every call here.
    pub async fn probe_sandbox(&self, probe: ProbeSandbox) -> Result<SandboxStatus, BridgeError> {
        let mut client = self.client.clone();
        let reply = client.probe_sandbox(wire::ProbeSandboxRequest::from(probe));
        let reply = answered(&self.end, PROBE_SANDBOX, reply).await?;
        checked(&self.end, PROBE_SANDBOX, reply.try_into())
    }

    /// Has the tools user try what it must not be able to do; answers come in the order asked.
    pub async fn attempt(&self, attempts: Vec<Attempt>) -> Result<Vec<Attempted>, BridgeError> {
        let asked: Vec<String> = attempts.iter().map(|attempt| attempt.id.clone()).collect();
        let mut client = self.client.clone();
        let reply = client.r#try(wire::TryRequest::from(attempts));
        let reply = answered(&self.end, TRY, reply).await?;
        let tried: Vec<Attempted> = checked(&self.end, TRY, reply.try_into())?;
        if tried.iter().map(|tried| &tried.id).eq(&asked) {
            Ok(tried)
        } else {
            Err(impossible(&self.end, TRY, "it answered other attempts than were asked"))
        }
    }

    /// Has a workspace opened and kept open.
    pub async fn open_workspace(&self, id: WorkspaceId, path: &[u8]) -> Result<OpenedWorkspace, BridgeError> {
        let open = OpenWorkspace { workspace: id, path: path.to_vec() };
        let mut client = self.client.clone();
        let reply = client.open_workspace(wire::OpenWorkspaceRequest::from(open));
        let reply = answered(&self.end, OPEN_WORKSPACE, reply).await?;
        checked(&self.end, OPEN_WORKSPACE, reply.try_into())
    }

    /// Has it let go of a workspace.
    pub async fn close_workspace(&self, id: WorkspaceId) -> Result<(), BridgeError> {
        let mut client = self.client.clone();
        let reply = client.close_workspace(salaam_proto::close_request(id));
        answered(&self.end, CLOSE_WORKSPACE, reply).await.map(|wire::CloseWorkspaceReply {}| ())
    }

    /// Has the content hashed that a command would run, and kept if asked.
    pub async fn prepare(&self, prepare: Prepare) -> Result<Prepared, BridgeError> {
        let request = wire::PrepareRequest::from(prepare);
        fits(salaam_proto::message_bytes(&request))?;
        let mut client = self.client.clone();
        let reply = answered(&self.end, PREPARE, client.prepare(request)).await?;
        checked(&self.end, PREPARE, reply.try_into())
    }

    /// Drops what is kept for an operation that will not run.
    pub async fn release(&self, operation: OperationId) -> Result<(), BridgeError> {
        let mut client = self.client.clone();
        let reply = client.release(salaam_proto::release_request(operation));
        answered(&self.end, RELEASE, reply).await.map(|wire::ReleaseReply {}| ())
    }

    /// Sends the plan and the standard input; events follow from [`Running::next`].
    pub async fn run(&self, plan: RunPlan, stdin: Vec<u8>) -> Result<Running, BridgeError> {
        let limit = Duration::from_secs(plan.limits.command_seconds);
        let streams = Streams::new((!plan.whole_output).then(|| Kept::of(plan.limits.output_bytes)));
        let plan = wire::RunInput::from(RunInput::Plan(Box::new(plan)));
        fits(salaam_proto::message_bytes(&plan))?;
        let chunks: Vec<wire::RunInput> =
            stdin.chunks(CHUNK_BYTES).map(|chunk| RunInput::Stdin(chunk.to_vec()).into()).collect();
        drop(stdin);
        // The stream stays open for a cancel; it ends when the sender is dropped, which ends the command.
        let (control, controls) = mpsc::channel(1);
        let input = tokio_stream::once(plan).chain(tokio_stream::iter(chunks)).chain(ReceiverStream::new(controls));
        let mut client = self.client.clone();
        let events = answered(&self.end, RUN, client.run(input)).await?;
        Ok(Running::new(events, control, Arc::clone(&self.end), streams, limit))
    }

    /// Has whole files read that only the executor's account can read; they come in the order asked.
    pub async fn read_files(&self, asked: ReadFiles) -> Result<FilesRead, BridgeError> {
        let paths = asked.paths.clone();
        let mut client = self.client.clone();
        let read = async {
            let mut stream = client.read_files(wire::ReadFilesRequest::from(asked)).await?.into_inner();
            let mut joined = Parts::new();
            loop {
                let Some(part) = stream.message().await? else {
                    return Ok(Response::new(Err(WireError::Missing { field: "part.last" })));
                };
                match joined.push(&part) {
                    Ok(false) => {}
                    Ok(true) => return Ok(Response::new(joined.value::<wire::FilesRead, FilesRead>())),
                    Err(error) => return Ok(Response::new(Err(error))),
                }
            }
        };
        let read = answered(&self.end, READ_FILES, read).await?;
        let read = checked(&self.end, READ_FILES, read)?;
        if read.files.iter().map(|(path, _)| path).eq(&paths) {
            Ok(read)
        } else {
            Err(impossible(&self.end, READ_FILES, "it read other files than were asked"))
        }
    }

    /// Has an edit applied, whole or not at all. What it says it did is what was expected, else it is no answer.
    ///
    /// # Errors
    /// A refusal says that nothing took effect, unless its id is `edit-undecided`. After any other error, and
    /// after that one, [`Link::settle`] tells.
    pub async fn edit(&self, plan: EditPlan) -> Result<Edited, BridgeError> {
        let expected = plan.expected.clone();
        let parts = salaam_proto::parted(&wire::EditPlan::from(plan)).map_err(|error| BridgeError::Refused {
            id: "plan-too-large".into(),
            message: format!("the edit cannot cross the bridge: {error}; send several edits"),
        })?;
        let mut client = self.client.clone();
        let reply = answered(&self.end, EDIT, client.edit(tokio_stream::iter(parts))).await?;
        let edited = checked(&self.end, EDIT, Edited::try_from(reply))?;
        self.as_expected(EDIT, &expected, edited)
    }

    /// Has it said what became of an edit, and the edit ended.
    pub async fn settle(&self, asked: Settle) -> Result<Settled, BridgeError> {
        let expected = asked.expected.clone();
        let mut client = self.client.clone();
        let reply = answered(&self.end, SETTLE, client.settle(wire::SettleRequest::from(asked))).await?;
        match checked(&self.end, SETTLE, Settled::try_from(reply))? {
            Settled::Finished(edited) => self.as_expected(SETTLE, &expected, edited).map(Settled::Finished),
            settled @ (Settled::RolledBack | Settled::Undecided { .. }) => Ok(settled),
        }
    }

    fn as_expected(&self, call: Call, expected: &[Expected], edited: Edited) -> Result<Edited, BridgeError> {
        let same = |(file, expected): (&EditedFile, &Expected)| {
            file.path == expected.path && file.pre == expected.pre && file.post == expected.post
        };
        if edited.files.len() == expected.len() && edited.files.iter().zip(expected).all(same) {
            Ok(edited)
        } else {
            Err(impossible(&self.end, call, "it changed other files than were expected"))
        }
    }

    pub(super) fn end(&self) -> &Arc<End> {
        &self.end
    }
}

/// A request of our own that the contract cannot carry is refused here: it must not look like the executor's
/// fault.
fn fits(bytes: usize) -> Result<(), BridgeError> {
    if bytes <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    let message = format!(
        "the command with its paths and environment has {bytes} bytes; the bridge carries {MAX_MESSAGE_BYTES}: \
         put it into a file or send it as standard input"
    );
    Err(BridgeError::Refused { id: "plan-too-large".into(), message })
}

pub(super) fn lost(end: &End) -> BridgeError {
    BridgeError::Lost { reason: end.reason().unwrap_or_else(|| "the bridge is closed".into()) }
}

/// The answer, the end of the bridge, or the deadline: whichever comes first.
async fn answered<T>(
    end: &End,
    call: Call,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, BridgeError> {
    tokio::select! {
        biased;
        reason = end.closed() => Err(BridgeError::Lost { reason }),
        answer = tokio::time::timeout(call.within, answer) => match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(failed(end, call.name, &status)),
            Err(_) => {
                end.close(format!("no answer to {} within {} s", call.name, call.within.as_secs()));
                Err(BridgeError::Deadline { call: call.name })
            }
        },
    }
}

/// A refusal is an answer; every other status means that the bridge, or what is at its other end, is not what
/// it must be.
pub(super) fn failed(end: &End, call: &'static str, status: &Status) -> BridgeError {
    if status.code() == Code::FailedPrecondition {
        return match salaam_proto::refusal_of(status.details()) {
            Ok(failure) => BridgeError::Refused { id: failure.id, message: failure.message },
            Err(error) => {
                end.close(format!("impossible answer to {call}: {error}"));
                lost(end)
            }
        };
    }
    let message: String = show::line(status.message().as_bytes()).chars().take(512).collect();
    end.close(format!("{call} failed: {:?}: {message}", status.code()));
    lost(end)
}

fn checked<T>(end: &End, call: Call, value: Result<T, WireError>) -> Result<T, BridgeError> {
    value.map_err(|error| impossible(end, call, error))
}

fn impossible(end: &End, call: Call, why: impl std::fmt::Display) -> BridgeError {
    end.close(format!("impossible answer to {}: {why}", call.name));
    lost(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_without_an_answer_closes_the_bridge() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let end = End::of(&ours).unwrap();
        let soon = Call { name: "Try", within: Duration::from_millis(20) };
        let never = std::future::pending::<Result<Response<()>, Status>>();
        assert_eq!(answered(&end, soon, never).await, Err(BridgeError::Deadline { call: "Try" }));
        assert!(end.reason().unwrap().contains("no answer to Try"));
    }

    #[test]
    fn what_the_bridge_cannot_carry_is_refused_before_it_is_sent() {
        assert_eq!(fits(MAX_MESSAGE_BYTES), Ok(()));
        let Err(BridgeError::Refused { id, .. }) = fits(MAX_MESSAGE_BYTES + 1) else { panic!("it was let through") };
        assert_eq!(id, "plan-too-large");
    }
}
