//! One function a call: phase, wire to value, floor, engine.

use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::{getgid, getgroups, getuid};
use salaam_core::{
    bridge::{Attempt, Greeting, Hello, OpenWorkspace, Prepare, ProbeSandbox, VERSION},
    result::Failure,
};
use salaam_proto::wire::{self, executor_server};
use tokio::task::JoinSet;
use tonic::{Request, Response, Status, Streaming};

use super::{
    edit::{self, Parts},
    gate::{Closer, WireErrorAt, impossible, refused},
    run::{self, Events},
};
use crate::{
    command::{Proof, Runner},
    edit::Editor,
    floor::Floor,
    probe::Prober,
};

/// What goes over the bridge as this executor's build; `salaam --version` prints the service's.
fn build_name() -> String {
    salaam_core::bridge::build_name(env!("CARGO_PKG_VERSION"), env!("SALAAM_COMMIT"))
}

/// How far the conversation has come. `Hello` comes first and once; after a mismatch nothing follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Silent,
    Greeted { epoch: u64 },
    Mismatched,
}

/// What every call needs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Executor {
    pub(super) runner: Arc<Runner>,
    pub(super) editor: Editor,
    pub(super) floor: Arc<Floor>,
    pub(super) closer: Closer,
    /// The owner tasks of running commands; ended by [`super::serve()`].
    pub(super) running: Arc<Mutex<JoinSet<()>>>,
    pub(super) prober: Prober,
    phase: Arc<Mutex<Phase>>,
}

impl Executor {
    /// The calls over this engine, floor and prober.
    pub fn new(runner: Runner, floor: Floor, prober: Prober) -> Self {
        Self {
            runner: Arc::new(runner),
            editor: Editor::new(),
            floor: Arc::new(floor),
            closer: Closer::new(),
            running: Arc::new(Mutex::new(JoinSet::new())),
            prober,
            phase: Arc::new(Mutex::new(Phase::Silent)),
        }
    }

    /// The epoch, which exists only after `Hello`. Once the bridge is being closed nothing new begins.
    pub(super) fn epoch(&self) -> Result<u64, Status> {
        if self.closer.is_closed() {
            return Err(Status::cancelled("the bridge is being closed"));
        }
        match *self.phase.lock().unwrap_or_else(PoisonError::into_inner) {
            Phase::Greeted { epoch } => Ok(epoch),
            Phase::Silent => Err(impossible("a call before Hello")),
            Phase::Mismatched => Err(impossible("a call after Hello found two bridge versions")),
        }
    }

    fn greet(&self, greeting: &Greeting) -> Result<(), Status> {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        match *phase {
            Phase::Silent => {}
            Phase::Greeted { .. } | Phase::Mismatched => return Err(impossible("a second Hello")),
        }
        *phase = if greeting.bridge_version == VERSION {
            Phase::Greeted { epoch: greeting.epoch }
        } else {
            Phase::Mismatched
        };
        Ok(())
    }
}

pub(super) fn at<E: Into<salaam_proto::WireError>>(call: &'static str) -> impl FnOnce(E) -> WireErrorAt {
    move |error| WireErrorAt(call, error.into())
}

// Each call is harmless by itself: Hello names ids; the probes try what any process of this account could;
// opening, preparing, releasing and reading files touch only what the account can read and change nothing; Run
// is checked by the wire, the floor and the engine before anything starts; Edit and Settle touch regular files
// of an open workspace and no protected path, Edit only those that are what was approved, Settle only what
// bears the operation's name.
#[tonic::async_trait]
impl executor_server::Executor for Executor {
    type RunStream = Events;
    type ReadFilesStream = Parts;

    async fn hello(&self, request: Request<wire::HelloRequest>) -> Result<Response<wire::HelloReply>, Status> {
        let greeting = Greeting::try_from(request.into_inner()).map_err(at("Hello"))?;
        self.greet(&greeting)?;
        let supplementary = getgroups().map_err(|error| impossible(format!("getgroups: {error}")))?;
        let mut groups: Vec<u32> = supplementary.into_iter().chain([getgid()]).map(|gid| gid.as_raw()).collect();
        groups.sort_unstable();
        groups.dedup();
        let hello = Hello {
            bridge_version: VERSION,
            build: build_name(),
            uid: getuid().as_raw(),
            groups,
            floor: self.floor.word().into(),
        };
        Ok(Response::new(hello.into()))
    }

    async fn probe_sandbox(
        &self,
        request: Request<wire::ProbeSandboxRequest>,
    ) -> Result<Response<wire::ProbeSandboxReply>, Status> {
        self.epoch()?;
        let probe = ProbeSandbox::try_from(request.into_inner()).map_err(at("ProbeSandbox"))?;
        let proof = if probe.prove { Proof::Whole } else { Proof::Short };
        Ok(Response::new(self.runner.probe_sandbox(probe.landlock, proof).await.into()))
    }

    async fn r#try(&self, request: Request<wire::TryRequest>) -> Result<Response<wire::TryReply>, Status> {
        self.epoch()?;
        let attempts = Vec::<Attempt>::try_from(request.into_inner()).map_err(at("Try"))?;
        let tried = self.prober.attempt(attempts).await.map_err(|error| {
            refused(Failure { id: "prober-gone".into(), message: format!("the prober did not answer: {error}") })
        })?;
        Ok(Response::new(tried.into()))
    }

    async fn open_workspace(
        &self,
        request: Request<wire::OpenWorkspaceRequest>,
    ) -> Result<Response<wire::OpenWorkspaceReply>, Status> {
        self.epoch()?;
        let open = OpenWorkspace::try_from(request.into_inner()).map_err(at("OpenWorkspace"))?;
        let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&open.path);
        self.floor.permit_workspace(path.as_ref()).map_err(refused)?;
        let opened = self.runner.open_workspace(open.workspace, &open.path).map_err(refused)?;
        Ok(Response::new(opened.into()))
    }

    async fn close_workspace(
        &self,
        request: Request<wire::CloseWorkspaceRequest>,
    ) -> Result<Response<wire::CloseWorkspaceReply>, Status> {
        self.epoch()?;
        let workspace = salaam_proto::workspace_of(request.get_ref()).map_err(at("CloseWorkspace"))?;
        self.runner.close_workspace(workspace);
        Ok(Response::new(wire::CloseWorkspaceReply {}))
    }

    async fn prepare(&self, request: Request<wire::PrepareRequest>) -> Result<Response<wire::PrepareReply>, Status> {
        self.epoch()?;
        let prepare = Prepare::try_from(request.into_inner()).map_err(at("Prepare"))?;
        let prepared = self.runner.prepare(prepare).await.map_err(refused)?;
        Ok(Response::new(prepared.into()))
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> Result<Response<wire::ReleaseReply>, Status> {
        self.epoch()?;
        let operation = salaam_proto::operation_of(request.get_ref()).map_err(at("Release"))?;
        self.runner.release(operation);
        Ok(Response::new(wire::ReleaseReply {}))
    }

    async fn run(&self, request: Request<Streaming<wire::RunInput>>) -> Result<Response<Events>, Status> {
        run::run(self, request.into_inner()).await.map(Response::new)
    }

    async fn read_files(&self, request: Request<wire::ReadFilesRequest>) -> Result<Response<Parts>, Status> {
        edit::read_files(self, request.into_inner()).await.map(Response::new)
    }

    async fn edit(&self, request: Request<Streaming<wire::Part>>) -> Result<Response<wire::EditReply>, Status> {
        edit::edit(self, request.into_inner()).await.map(Response::new)
    }

    async fn settle(&self, request: Request<wire::SettleRequest>) -> Result<Response<wire::SettleReply>, Status> {
        edit::settle(self, request.into_inner()).await.map(Response::new)
    }
}
