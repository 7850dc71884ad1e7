//! One start, from nothing to a verified link, and one burial, from a link to proof that nothing is left.

use std::{sync::Arc, time::Duration};

use nix::sys::signal::Signal;
use salaam_core::{bridge::VERSION, check::Check, policy::Mode};
use tokio::time::timeout;

use super::{
    checks, classify,
    end::End,
    error::BridgeError,
    greet::{self, Greeted, NoHello, identity},
    link::{Link, Silent},
    spawn::Spawn,
};
use crate::{
    child::{Child, Exit, Lines, Watched},
    group::{Group, GroupError, Room},
};

/// From spawn to hello: sudo may ask a slow directory service about accounts.
const HELLO_WITHIN: Duration = Duration::from_secs(20);
/// For a closed bridge to end the executor, and with it sudo. The executor gives its commands 4 s.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// For sudo to notice that its command has ended.
const SUDO_LEAVES: Duration = Duration::from_millis(200);
/// For the exit that makes a reported loss more exact; the loss does not wait longer for it.
const EXIT_SOON: Duration = Duration::from_millis(100);
/// For the end of a bridge to be seen whose last holder was killed.
const LETS_GO: Duration = Duration::from_secs(1);
/// For what an ended process wrote to be read.
const LAST_LINES: Duration = Duration::from_millis(300);

/// A verified executor with everything that belongs to it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) link: Link,
    child: Child,
    process: Watched,
    lines: Lines,
    group: Option<Arc<Group>>,
}

/// A start that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) checks: Vec<Check>,
    /// Whether what was started is proven gone.
    pub(super) remains: Remains,
}

/// Whether anything of an executor may be left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remains {
    /// Proven: nothing.
    Nothing,
    /// Not proven; what was seen.
    Unproven(String),
}

impl Failed {
    const fn before(checks: Vec<Check>) -> Self {
        Self { checks, remains: Remains::Nothing }
    }
}

/// Starts one executor with `epoch` and verifies it. On failure everything that was started has been closed,
/// and what is left is said.
pub(super) async fn start(spawn: &Spawn, epoch: u64) -> Result<Live, Failed> {
    let failed = checks::before_start(spawn);
    if !failed.is_empty() {
        return Err(Failed::before(failed));
    }
    let attempted = match spawn.mode {
        Mode::ToolsUser => ("sudo-denied", &spawn.sudo),
        Mode::ServiceUser => ("executor-missing", &spawn.toolsd),
    };
    let room = match &spawn.group {
        Some(group) => Some(group.room().await.map_err(no_room)?),
        None => None,
    };
    let spawned = spawn.start(room.as_ref()).map_err(|error| {
        let evidence = format!("starting {} failed: {error}", attempted.1.display());
        Failed::before(vec![Check::fail(attempted.0, evidence, "see that the program can be run by this account")])
    })?;
    let mut starting = Starting::new(spawn, spawned)?;
    let group = spawn.group.clone();
    match starting.verify(spawn, room.as_ref(), epoch).await {
        Ok((link, process)) => Ok(Live { link, child: starting.child, process, lines: starting.lines, group }),
        Err(Stop { check, process }) => {
            // An executor that was not answered was told nothing, and ends with its bridge: where that has ended on
            // its side, sudo may have ended as it liked.
            let mut let_go = process.is_none() && starting.end.let_go(GONE_WITHIN).await;
            if let (None, false, Some(group)) = (&process, let_go, &group) {
                // It is wedged. That its group is empty says nothing of one that was moved out before it said who it
                // is; that nobody holds its end of the bridge does.
                let_go = group.end().await.is_ok() && starting.end.let_go(LETS_GO).await;
            }
            starting.end.close("the start failed");
            let remains = match gone(&mut starting.child, process.as_ref(), group.as_deref()).await {
                Remains::Unproven(_) if let_go && starting.child.reap(Duration::ZERO).await.is_some() => {
                    Remains::Nothing
                }
                remains => remains,
            };
            Err(Failed { checks: vec![check], remains })
        }
    }
}

/// What exists between spawn and verification.
struct Starting {
    child: Child,
    lines: Lines,
    end: std::sync::Arc<End>,
    bridge: Option<tokio::net::UnixStream>,
}

/// Why verification stopped, and the executor's process where it is known by then.
struct Stop {
    check: Check,
    process: Option<Watched>,
}

impl Starting {
    fn new(spawn: &Spawn, spawned: super::spawn::Spawned) -> Result<Self, Failed> {
        let pid = spawned.pid;
        let prepared = Child::new(pid).and_then(|child| {
            let end = End::of(&spawned.bridge)?;
            let lines = Lines::read(spawned.written, "executor", spawn.tools_uid)?;
            let bridge = tokio::net::UnixStream::from_std(spawned.bridge)?;
            Ok(Self { child, lines, end, bridge: Some(bridge) })
        });
        prepared.map_err(|error| {
            // The bridge closed with this error, which ends the executor; that cannot be watched now.
            let evidence = format!("watching process {pid} failed: {error}");
            Failed { checks: vec![identity(spawn, evidence.clone())], remains: Remains::Unproven(evidence) }
        })
    }

    async fn verify(&mut self, spawn: &Spawn, room: Option<&Room>, epoch: u64) -> Result<(Link, Watched), Stop> {
        let stop = |check| Stop { check, process: None };
        let Some(bridge) = self.bridge.take() else { return Err(stop(identity(spawn, "verified twice".into()))) };
        let greeted = tokio::select! {
            biased;
            greeted = timeout(HELLO_WITHIN, greet::greet(&bridge, spawn, room)) => greeted,
            () = self.child.ended() => Ok(Err(NoHello::Ended)),
        };
        let Greeted { pid, process, grouped } = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(NoHello::Failed(check))) => return Err(stop(check)),
            Ok(Err(NoHello::Ended)) => return Err(stop(self.ended_early(spawn).await)),
            Err(_) => {
                let evidence = format!("no hello within {} s", HELLO_WITHIN.as_secs());
                return Err(stop(identity(spawn, evidence)));
            }
        };
        let sudo_pid = Some(self.child.pid().as_raw()).filter(|child| *child != pid);
        if sudo_pid.is_some() && spawn.mode == Mode::ServiceUser {
            let evidence = format!("process {pid} said hello, process {} was started", self.child.pid());
            return Err(Stop { check: identity(spawn, evidence), process: Some(process) });
        }
        let end = std::sync::Arc::clone(&self.end);
        let greeted = match Silent::over(bridge, end).await {
            Ok(silent) => silent.hello(&spawn.build, epoch, pid, sudo_pid, grouped).await,
            Err(error) => Err(error),
        };
        let checked = match greeted {
            Ok(link) => claims(spawn, link),
            Err(BridgeError::Lost { reason }) => Err(self.lost_early(spawn, reason).await),
            Err(error) => Err(identity(spawn, error.to_string())),
        };
        match checked {
            Ok(link) => Ok((link, process)),
            Err(check) => Err(Stop { check, process: Some(process) }),
        }
    }

    /// The stream ended before the hello: the exit says why.
    async fn ended_early(&mut self, spawn: &Spawn) -> Check {
        match self.child.reap(GONE_WITHIN).await {
            Some(exit) => {
                let said = self.lines.last(LAST_LINES).await;
                classify::ended_early(spawn, &checks::service_user(spawn.service_uid), exit, &said)
            }
            None => identity(spawn, "it closed the bridge without a hello and went on running".into()),
        }
    }

    /// The bridge ended between the two hellos: the executor may have refused us by its exit code.
    async fn lost_early(&mut self, spawn: &Spawn, reason: String) -> Check {
        match self.child.reap(GONE_WITHIN).await {
            Some(exit @ Exit::Code(_)) if salaam_core::refusal::StartRefusal::from_code(code(exit)).is_some() => {
                let said = self.lines.last(LAST_LINES).await;
                classify::ended_early(spawn, &checks::service_user(spawn.service_uid), exit, &said)
            }
            Some(exit) => identity(spawn, format!("{reason} ({exit})")),
            None => identity(spawn, reason),
        }
    }
}

const fn code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(_) | Exit::Unknown => -1,
    }
}

/// Asks it to end. sudo relays both signals to the executor; CONT because sudo stops itself when the executor is
/// stopped, and a stopped process handles no TERM. KILL would leave the executor running.
fn terminate(child: &Child) {
    for signal in [Signal::SIGTERM, Signal::SIGCONT] {
        if let Err(error) = child.signal(signal) {
            tracing::warn!(pid = child.pid().as_raw(), %signal, %error, "the executor's sudo could not be signalled");
        }
    }
}

/// What the executor says about itself must agree with what the kernel said.
fn claims(spawn: &Spawn, link: Link) -> Result<Link, Check> {
    let hello = link.hello();
    if hello.bridge_version != VERSION {
        return Err(classify::versions(spawn, hello.bridge_version));
    }
    if hello.uid != spawn.tools_uid {
        return Err(identity(spawn, format!("it says uid {}, the kernel says {}", hello.uid, spawn.tools_uid)));
    }
    if hello.build != spawn.build {
        let theirs = salaam_core::show::line(hello.build.as_bytes());
        tracing::warn!(
            ours = spawn.build,
            theirs,
            "service and executor are of two builds that speak one bridge version"
        );
    }
    Ok(link)
}

impl Live {
    /// Resolves when anything of it is lost: the bridge, sudo or the executor.
    pub(super) async fn lost(&self) -> String {
        let child = self.link.sudo_pid().map_or("the executor", |_| "sudo");
        tokio::select! {
            biased;
            () = self.process.ended() => "the executor ended".into(),
            () = self.child.ended() => format!("{child} ended"),
            reason = self.link.end().closed() => reason,
        }
    }

    /// How the child ended, if that is known within a moment; for the reason that is reported.
    pub(super) async fn exit(&mut self) -> Option<String> {
        let name = self.link.sudo_pid().map_or("salaam-toolsd", |_| "sudo");
        self.child.reap(EXIT_SOON).await.map(|exit| format!("{name}: {exit}"))
    }

    /// Waits until nothing is left. The bridge is closed by then.
    pub(super) async fn bury(mut self) -> Remains {
        let remains = gone(&mut self.child, Some(&self.process), self.group.as_deref()).await;
        // Whatever was written last is logged before the readers end.
        let _ = self.lines.last(LAST_LINES).await;
        remains
    }
}

/// No room, and so no start. What does not end there is somebody who may still run something.
fn no_room(error: GroupError) -> Failed {
    let remains = match &error {
        GroupError::Populated { .. } => Remains::Unproven(error.to_string()),
        GroupError::Step { .. } => Remains::Nothing,
    };
    Failed { checks: vec![error.to_check()], remains }
}

/// Proof that nothing is left: the executor by its pidfd, our child reaped, and, where there is one, the group empty.
async fn gone(child: &mut Child, process: Option<&Watched>, group: Option<&Group>) -> Remains {
    if let Some(process) = process
        && !process.has_ended(GONE_WITHIN).await
    {
        end_it(child, group).await;
        if !process.has_ended(GONE_WITHIN).await {
            let evidence =
                format!("the executor still runs {} s after its bridge was closed", 2 * GONE_WITHIN.as_secs());
            return Remains::Unproven(evidence);
        }
    }
    // With its command gone sudo leaves by itself, unless it stands still because the command did. Where the
    // command is not known, sudo gets the whole time first: TERM would go to a start that is still under way.
    let by_itself = if process.is_some() { SUDO_LEAVES } else { GONE_WITHIN };
    let mut exit = child.reap(by_itself).await;
    if exit.is_none() {
        end_it(child, group).await;
        exit = child.reap(GONE_WITHIN).await;
    }
    let Some(exit) = exit else {
        return Remains::Unproven(format!("process {} (sudo) does not end", child.pid()));
    };
    // Whatever the executor left, with or without its will.
    if let Some(group) = group
        && let Err(error) = group.end().await
    {
        return Remains::Unproven(error.to_string());
    }
    match (process, exit) {
        (Some(_), _) | (None, Exit::Code(_)) => Remains::Nothing,
        // sudo waits for what it started unless it is killed itself.
        (None, Exit::Signal(_) | Exit::Unknown) => {
            Remains::Unproven(format!("sudo ended by {exit} before the executor had said who it is"))
        }
    }
}

/// Ends what does not end by itself: all of its group at once, where there is one, which no state of it withstands; and
/// by way of sudo what is not in it, or where there is none. No KILL for sudo alone, which would leave the executor
/// running.
async fn end_it(child: &Child, group: Option<&Group>) {
    if let Some(group) = group
        && let Err(error) = group.end().await
    {
        tracing::warn!(%error, "the control group of the executor does not end");
    }
    terminate(child);
}
