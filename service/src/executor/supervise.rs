//! The supervisor: one task that owns the executor's life. Loss closes the bridge at once; the next executor
//! starts only after the old one is proven gone.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use salaam_core::check::Check;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    error::BridgeError,
    link::Link,
    notice::Notice,
    spawn::Spawn,
    start::{self, Failed, Live, Remains},
};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// An executor that lived this long did not fail by starting.
const GOOD_LIFE: Duration = Duration::from_secs(60);

/// A handle to the supervised executor. The executor ends with the last handle.
#[derive(Debug, Clone)]
pub struct Executor {
    state: watch::Receiver<State>,
    stop: Arc<watch::Sender<bool>>,
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

#[derive(Debug, Clone)]
enum State {
    Up(Link),
    Down { reason: String },
}

impl Executor {
    /// Starts the first toolsd with `epoch` and returns when both sides are verified. Each further start, tried
    /// or made, has the next epoch.
    ///
    /// # Errors
    /// Every check that failed (`sudo-missing`, `sudo-denied`, `executor-missing`, `executor-writable`,
    /// `executor-identity`, `executor-version`, `no-new-privs`, `executor-not-gone`), each with evidence and
    /// fix; nothing is left running then except where `executor-not-gone` says so.
    pub async fn start(spawn: Spawn, epoch: u64, notices: mpsc::Sender<Notice>) -> Result<Self, Vec<Check>> {
        let live = match start::start(&spawn, epoch).await {
            Ok(live) => live,
            Err(Failed { mut checks, remains }) => {
                if let Remains::Unproven(evidence) = remains {
                    checks.push(not_gone(&spawn, evidence));
                }
                return Err(checks);
            }
        };
        let (tell, state) = watch::channel(State::Up(live.link.clone()));
        let stop = Arc::new(watch::Sender::new(false));
        let supervisor = Supervisor { spawn, notices, tell, stop: stop.subscribe(), epoch };
        let task = tokio::spawn(supervisor.run(live));
        Ok(Self { state, stop, task: Arc::new(Mutex::new(Some(task))) })
    }

    /// The live link, or why there is none.
    ///
    /// # Errors
    /// [`BridgeError::Lost`] with the reason: the next executor is being started, or none will be.
    pub fn link(&self) -> Result<Link, BridgeError> {
        match &*self.state.borrow() {
            State::Up(link) => match link.end().reason() {
                None => Ok(link.clone()),
                Some(reason) => Err(BridgeError::Lost { reason }),
            },
            State::Down { reason } => Err(BridgeError::Lost { reason: reason.clone() }),
        }
    }

    /// Waits for a live link; nothing = there will be none: the executor was stopped or given up.
    pub async fn up(&self) -> Option<Link> {
        let mut state = self.state.clone();
        loop {
            if let State::Up(link) = &*state.borrow_and_update()
                && link.end().reason().is_none()
            {
                return Some(link.clone());
            }
            state.changed().await.ok()?;
        }
    }

    /// Closes the bridge and waits until the executor is proven gone; it is not reported as lost.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        match task {
            // The task ends by itself; a panic in it is reported by the runtime and leaves nothing to wait for.
            Some(task) => drop(task.await),
            // Another caller waits for the task: wait for its last word. One receiver, which remembers what it saw: a
            // new one each time would find the same word new for ever.
            None => {
                let mut state = self.state.clone();
                while state.changed().await.is_ok() {}
            }
        }
    }
}

fn not_gone(spawn: &Spawn, evidence: String) -> Check {
    Check::fail("executor-not-gone", evidence, format!("as root: pkill -KILL -u {} salaam-toolsd", spawn.tools_uid))
}

struct Supervisor {
    spawn: Spawn,
    notices: mpsc::Sender<Notice>,
    tell: watch::Sender<State>,
    stop: watch::Receiver<bool>,
    epoch: u64,
}

/// Why a life ended.
enum Over {
    Stopped,
    Lost(String),
}

impl Supervisor {
    async fn run(mut self, first: Live) {
        let mut live = first;
        let mut delay = FIRST_DELAY;
        let mut reason = "service start".to_owned();
        loop {
            let began = Instant::now();
            self.report_start(&live, reason).await;
            let lost = match self.watch(&live).await {
                Over::Stopped => return self.finish(live).await,
                Over::Lost(lost) => lost,
            };
            live.link.end().close(lost.clone());
            self.down(lost.clone());
            self.report_loss(&mut live, lost.clone()).await;
            if let Remains::Unproven(evidence) = live.bury().await {
                return self.give_up(evidence).await;
            }
            if began.elapsed() >= GOOD_LIFE {
                delay = FIRST_DELAY;
            }
            live = match self.again(&mut delay).await {
                Some(live) => live,
                None => return,
            };
            reason = lost;
        }
    }

    async fn watch(&mut self, live: &Live) -> Over {
        tokio::select! {
            biased;
            () = stopped(&mut self.stop) => Over::Stopped,
            lost = live.lost() => Over::Lost(lost),
        }
    }

    /// Tries until an executor lives; nothing = it was stopped, or the host no longer allows one safely.
    async fn again(&mut self, delay: &mut Duration) -> Option<Live> {
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    self.down("the service is stopping".into());
                    return None;
                }
                () = tokio::time::sleep(*delay) => {}
            }
            *delay = (*delay * 2).min(LONGEST_DELAY);
            self.epoch += 1;
            match start::start(&self.spawn, self.epoch).await {
                Ok(live) => return Some(live),
                Err(Failed { checks, remains }) => {
                    for check in &checks {
                        tracing::error!(id = check.id, evidence = check.evidence, fix = check.fix, "no executor");
                    }
                    self.down(
                        checks
                            .iter()
                            .map(|check| format!("{}: {}", check.id, check.evidence))
                            .collect::<Vec<_>>()
                            .join("; "),
                    );
                    if let Remains::Unproven(evidence) = remains {
                        self.give_up(evidence).await;
                        return None;
                    }
                }
            }
        }
    }

    async fn report_start(&self, live: &Live, reason: String) {
        let link = &live.link;
        self.report(Notice::Started { uid: self.spawn.tools_uid, epoch: link.epoch(), pid: link.pid(), reason }).await;
        self.tell.send_replace(State::Up(link.clone()));
    }

    async fn report_loss(&self, live: &mut Live, reason: String) {
        let reason = match live.exit().await {
            Some(exit) => format!("{reason} ({exit})"),
            None => reason,
        };
        let (epoch, pid) = (live.link.epoch(), live.link.pid());
        self.report(Notice::Lost { uid: self.spawn.tools_uid, epoch, pid, reason }).await;
    }

    async fn report(&self, notice: Notice) {
        if self.notices.send(notice).await.is_err() {
            tracing::warn!("nobody takes the executor's notices any more");
        }
    }

    fn down(&self, reason: String) {
        self.tell.send_replace(State::Down { reason });
    }

    async fn finish(self, live: Live) {
        live.link.end().close("the service is stopping");
        self.down("the service is stopping".into());
        if let Remains::Unproven(evidence) = live.bury().await {
            self.give_up(evidence).await;
        }
    }

    /// Two executors of one account could both run the same thing: rather none.
    async fn give_up(&self, evidence: String) {
        self.down(format!("executor-not-gone: {evidence}"));
        self.report(Notice::ControlFailed { id: "executor-not-gone".into(), evidence }).await;
    }
}

/// Resolves when a stop was asked for, or when nobody is left who could.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that every handle is gone.
    let _ = stop.wait_for(|stop| *stop).await;
}
