//! A world for sessions: a store that is real, and workers, operations and readers that do what a test says. What
//! was run is remembered across crashes, as the world does.

use std::{
    collections::BTreeMap,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use salaam_core::{
    canon,
    event::Draft,
    id::{ApprovalId, OperationId, SessionId, WorkspaceId},
    operation::{Kind as Effect, State},
    policy::{Isolation, Network, Profile},
    reader, session,
    time::Timestamp,
    worker::{EndedBy, FromWorker, Phase, RawCall, ToWorker, Turn},
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::super::{Colleague, Sessions, Staff, view};
use crate::{
    clock::Clock,
    operation::{Attached, Origin, Progress, Proposal, Refusal, Who, Work, orphan},
    store::{
        BriefRow, Change, EventQuery, ModelCall, OperationQuery, OperationRow, SessionRow, Store, Transaction,
        TurnQuery, TurnRow,
    },
    workers::{Gone, WorkerError},
};

/// Everything that outlives a crash of the service.
#[derive(Debug)]
pub(super) struct World {
    pub(super) directory: PathBuf,
    pub(super) id: SessionId,
    /// What the agent will say.
    pub(super) plan: Vec<Turn>,
    /// How often each call took effect.
    pub(super) ran: Mutex<BTreeMap<ModelCall, u32>>,
    /// What workers were told, each in its order.
    pub(super) told: Mutex<Vec<Vec<ToWorker>>>,
    /// Ends the worker that there is.
    pub(super) kill: Notify,
    /// Workers that do not even start.
    pub(super) stillborn: AtomicU64,
    before: Mutex<Option<Store>>,
    next: AtomicU64,
}

impl World {
    pub(super) fn new(plan: Vec<Turn>) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("salaam-session-{}-{number}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        Arc::new(Self {
            directory,
            id: SessionId::new(1, [3; 10]),
            plan,
            ran: Mutex::default(),
            told: Mutex::default(),
            kill: Notify::new(),
            stillborn: AtomicU64::new(0),
            before: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    /// The store, opened anew: what the one before had in its queue is done, as what is on its way to a disk is.
    pub(super) async fn store(&self) -> Store {
        // It stays there until it is closed, for this may be dropped half-way.
        let before = self.before.lock().unwrap().clone();
        if let Some(before) = before {
            before.close().await;
        }
        let store = Store::open(&self.directory, Clock).unwrap();
        *self.before.lock().unwrap() = Some(store.clone());
        store
    }

    fn number(&self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[2..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        bytes
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A turn that runs commands, one a word.
pub(super) fn turn(number: u64, commands: &[&str]) -> Turn {
    let call = |command: &&str| RawCall {
        tool: "salaam_local".into(),
        arguments: json!({ "action": "command", "command": command }).to_string(),
    };
    Turn { number, text: format!("turn {number}"), calls: commands.iter().map(call).collect(), awaits: false }
}

pub(super) fn awaiting(number: u64, commands: &[&str]) -> Turn {
    Turn { awaits: true, ..turn(number, commands) }
}

/// A running service, as far as sessions are concerned.
#[derive(Debug)]
pub(super) struct House {
    pub(super) world: Arc<World>,
    pub(super) store: Store,
    pub(super) sessions: Sessions<Crew>,
    pub(super) stop: watch::Sender<bool>,
}

impl House {
    /// Opens the state as a start of the service does: what was open is settled, sessions are taken up.
    pub(super) async fn open(world: &Arc<World>) -> Self {
        let store = world.store().await;
        let open = [State::Proposed, State::Pending, State::Granted, State::Dispatched].to_vec();
        for row in store.operations(OperationQuery { states: open, ..OperationQuery::default() }).await.unwrap() {
            if let Some((change, event)) = orphan::settlement(&row, orphan::Why::ServiceRestarted).unwrap() {
                store.commit(Transaction { changes: vec![change], events: vec![event] }).await.unwrap();
            }
        }
        let (stop, stopping) = watch::channel(false);
        let crew = Crew { world: Arc::clone(world), store: store.clone(), open: Arc::default() };
        let sessions = Sessions::new(store.clone(), stopping, crew);
        sessions.resume().await.unwrap();
        Self { world: Arc::clone(world), store, sessions, stop }
    }

    /// Makes the session.
    pub(super) async fn begin(&self) {
        let (id, workspace, created) = (self.world.id, WorkspaceId::new(1, [1; 10]), Timestamp::from_micros(1));
        let fixed = view::Fixed {
            id,
            workspace,
            profile: Profile::WorkspaceWrite,
            route: json!({ "provider": "scripted" }),
            network: Network::None,
            tool_uid: 997,
            isolation: Isolation::ToolsUserBubblewrap,
            created,
        };
        let row = SessionRow { id, kind: session::Kind::Worker, workspace, document: view::made(&fixed), created };
        let brief = BriefRow { session: id, task: "mend it".into(), script: Some(b"{}".to_vec()) };
        let changes = vec![Change::PutSession(row), Change::PutBrief(brief)];
        self.sessions.make(id, Transaction { changes, events: Vec::new() }).await.unwrap();
    }

    pub(super) async fn document(&self) -> Value {
        self.store.session(self.world.id).await.unwrap().unwrap().document
    }

    /// Waits until the session is in this state, written as `state` or `state:word`.
    pub(super) async fn until(&self, state: &str) -> Value {
        let start = std::time::Instant::now();
        loop {
            let document = self.document().await;
            let word = document["waiting_for"].as_str().or_else(|| document["outcome"].as_str());
            let now = [document["state"].as_str().unwrap_or("?"), word.unwrap_or("")].join(":");
            if now.trim_end_matches(':') == state {
                return document;
            }
            // Not every step has an event to wait for.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if start.elapsed() > Duration::from_secs(20) {
                let (kinds, outcomes) = (self.kinds().await, self.outcomes().await);
                panic!("the session is {now} and does not become {state}: {document}\n{kinds:?}\n{outcomes:?}");
            }
        }
    }

    /// Waits until this call of the last turn has an operation.
    pub(super) async fn until_asked(&self, call: ModelCall) {
        while self.store.call(self.world.id, call).await.unwrap().is_none_or(|row| row.operation.is_none()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The kinds of all events, in order.
    pub(super) async fn kinds(&self) -> Vec<String> {
        let events = self.store.events(EventQuery::default()).await.unwrap();
        let kind = |line: &[u8]| serde_json::from_slice::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned();
        events.iter().map(|(_, line)| kind(line)).collect()
    }

    pub(super) async fn turns(&self) -> Vec<TurnRow> {
        self.store.turns(TurnQuery { session: self.world.id, from: 0, bytes: 1 << 30 }).await.unwrap()
    }

    /// What each call was answered: its outcome, or `open`.
    pub(super) async fn outcomes(&self) -> Vec<Vec<String>> {
        let outcome = |answer: &Option<String>| match answer {
            Some(answer) => serde_json::from_str::<Value>(answer).unwrap()["outcome"].as_str().unwrap().to_owned(),
            None => "open".to_owned(),
        };
        let turns = self.turns().await;
        turns.iter().map(|turn| turn.calls.iter().map(|call| outcome(&call.answer)).collect()).collect()
    }

    pub(super) async fn close(self) {
        self.stop.send_replace(true);
        self.sessions.close().await;
        self.store.close().await;
    }
}

pub(super) fn person() -> Who {
    Who { uid: 1000, pid: 1, principal: "ada".into(), via: "operator-socket" }
}

/// The staff of the world.
#[derive(Debug)]
pub(super) struct Crew {
    world: Arc<World>,
    store: Store,
    /// Operations that hang, by what ends them.
    open: Arc<Mutex<BTreeMap<OperationId, oneshot::Sender<State>>>>,
}

impl Staff for Crew {
    type Worker = Robot;

    async fn hire(&self, script: Option<Vec<u8>>) -> Result<Robot, WorkerError> {
        assert_eq!(script.as_deref(), Some(&b"{}"[..]));
        tokio::task::yield_now().await;
        let stillborn = self.world.stillborn.load(Ordering::Relaxed);
        if stillborn > 0 {
            self.world.stillborn.store(stillborn - 1, Ordering::Relaxed);
            return Err(WorkerError::Lost { reason: "stillborn".into() });
        }
        self.world.told.lock().unwrap().push(Vec::new());
        let (say, said) = mpsc::unbounded_channel();
        let phase = Phase::default().heard(&ready()).unwrap();
        Ok(Robot { world: Arc::clone(&self.world), phase, say, said, turn: 0 })
    }

    fn propose(&self, proposal: Proposal) -> Result<Attached, Refusal> {
        let id = OperationId::new(1, self.world.number());
        let (progress, heard) = mpsc::channel(16);
        let (world, store, open) = (Arc::clone(&self.world), self.store.clone(), Arc::clone(&self.open));
        tokio::spawn(async move { operate(&world, &store, &open, id, proposal, progress).await });
        Ok(Attached::live(id, heard, None))
    }

    async fn call_off(&self, operation: OperationId) {
        if let Some(end) = self.open.lock().unwrap().remove(&operation) {
            let _gone = end.send(State::Cancelled);
        }
    }

    async fn void(&self, operation: OperationId) {
        if let Some(end) = self.open.lock().unwrap().remove(&operation) {
            let _gone = end.send(State::Stale);
        }
    }

    async fn look(&self, _: WorkspaceId, _: reader::Request) -> Result<reader::Answer, Refusal> {
        Ok(reader::Answer::Listed(reader::Listed::default()))
    }

    fn is_draining(&self) -> bool {
        false
    }
}

fn ready() -> FromWorker {
    FromWorker::Ready { build: String::new(), canary: Vec::new() }
}

/// One operation, as its command says: `deny`, `unknown`, `hang` (pending until it is ended), `refuse` (nothing is
/// recorded), anything else is run.
async fn operate(
    world: &World,
    store: &Store,
    open: &Mutex<BTreeMap<OperationId, oneshot::Sender<State>>>,
    id: OperationId,
    proposal: Proposal,
    progress: mpsc::Sender<Progress>,
) {
    let Origin::Worker { session, epoch, call } = proposal.origin else { panic!("only an agent proposes here") };
    let Work::Command { command, .. } = &proposal.work else { panic!("only commands are proposed here") };
    let word = command.display();
    let recorded = store.call(session, call).await.unwrap().expect("a turn is recorded before it is proposed");
    assert!(recorded.operation.is_none() && recorded.answer.is_none(), "a call is proposed once");
    let document = store.session(session).await.unwrap().unwrap().document;
    assert_eq!(document["worker_epoch"], json!(epoch), "nothing is proposed in the epoch of another worker");
    if word.contains("refuse") {
        let refusal = Refusal::new("no-match", 409, "the text is not in the file", "look again");
        return drop(progress.send(Progress::Refused(refusal)).await);
    }
    let bound = json!({ "operation": id });
    let row = OperationRow {
        id,
        approval: ApprovalId::new(1, world.number()),
        session,
        call: Some(call),
        workspace: proposal.workspace,
        kind: Effect::Command,
        state: State::Pending,
        binding: canon::digest(&bound).unwrap(),
        bound,
        display: word.clone(),
        flags: Vec::new(),
        requested: Timestamp::from_micros(1),
        expires: Timestamp::from_micros(2),
        decided_by: None,
        comment: None,
        result: None,
        reconciled: None,
        again: None,
    };
    let binding = row.binding;
    let (end, ended) = oneshot::channel();
    // It can be ended from here on, as on the desk.
    open.lock().unwrap().insert(id, end);
    commit(store, vec![Change::InsertOperation(Box::new(row))], Vec::new()).await;
    drop(progress.send(Progress::Proposed(json!({}))).await);
    let step = |from, to, comment: Option<&str>, result: Option<Value>| Change::StepOperation {
        id,
        from,
        to,
        decided_by: None,
        comment: comment.map(str::to_owned),
        result,
    };
    let last = if word.contains("deny") {
        step(State::Pending, State::Denied, Some("not today"), None)
    } else if word.contains("hang") {
        let state = ended.await.unwrap_or(State::Cancelled);
        step(State::Pending, state, None, None)
    } else {
        let granted =
            [step(State::Pending, State::Granted, None, None), step(State::Granted, State::Dispatched, None, None)];
        commit(store, granted.into(), Vec::new()).await;
        // From here it is out of the service's hands.
        *world.ran.lock().unwrap().entry(call).or_default() += 1;
        tokio::task::yield_now().await;
        let to = if word.contains("unknown") { State::Unknown } else { State::Completed };
        let result = json!({ "operation": id, "state": to, "binding": binding, "exit_code": 7 });
        step(State::Dispatched, to, None, Some(result))
    };
    commit(store, vec![last], Vec::new()).await;
    drop(progress.send(Progress::Result(json!({}))).await);
}

async fn commit(store: &Store, changes: Vec<Change>, events: Vec<Draft>) {
    store.commit(Transaction { changes, events }).await.unwrap();
}

/// A worker that says what is planned, and holds the service to the phases of the link.
#[derive(Debug)]
pub(super) struct Robot {
    world: Arc<World>,
    phase: Phase,
    say: mpsc::UnboundedSender<FromWorker>,
    said: mpsc::UnboundedReceiver<FromWorker>,
    turn: u64,
}

impl Robot {
    fn speak(&mut self) {
        let thinks = matches!(self.phase, Phase::Thinking { .. });
        if !thinks {
            return;
        }
        let word = match self.world.plan.get(usize::try_from(self.turn).unwrap()) {
            Some(turn) => FromWorker::Turn(turn.clone()),
            None => FromWorker::Ended { outcome: EndedBy::Completed, reason: "the plan is done".into() },
        };
        self.say.send(word).unwrap();
    }
}

impl Colleague for Robot {
    fn pid(&self) -> i32 {
        4711
    }

    async fn next(&mut self) -> Result<FromWorker, WorkerError> {
        tokio::select! {
            biased;
            () = self.world.kill.notified() => Err(WorkerError::Lost { reason: "killed".into() }),
            word = self.said.recv() => {
                let word = word.unwrap();
                // A plan may be out of phase on purpose; the session must notice by itself.
                self.phase = self.phase.heard(&word).unwrap_or(self.phase);
                Ok(word)
            }
        }
    }

    async fn send(&mut self, message: ToWorker) -> Result<(), WorkerError> {
        self.phase = self.phase.sent(&message).expect("the service keeps to the phases");
        match &message {
            ToWorker::Begin(begin) => self.turn = begin.past,
            ToWorker::Answers { turn, .. } => self.turn = turn + 1,
            ToWorker::Past(_) | ToWorker::Message { .. } | ToWorker::Stop => {}
        }
        self.world.told.lock().unwrap().last_mut().unwrap().push(message);
        self.speak();
        Ok(())
    }

    async fn end(self) -> Gone {
        Gone::Unproven { pid: 0 }
    }
}
