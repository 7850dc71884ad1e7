//! From a host to a running service, and back: every step in order, every refusal before anything is opened
//! to operators.

use std::{os::fd::OwnedFd, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use salaam_core::{
    event::{Draft, Kind},
    manifest::Manifest,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::{
    App, Log, notices,
    notify::{Systemd, until_told},
    recovery,
    report::{Report, chain, exit},
    staff::Parts,
    start::{Prepared, Refused, Start, account, readers},
    watch::Watch,
};
use crate::{
    clock::Clock,
    executor::Executor,
    host::{self, Flags, Variables},
    operation::{Context, Controls, Desk, MOST_SKETCHES, Slots},
    session::Sessions,
    store::{EventQuery, Store, Transaction},
    workspace::Registry,
};

/// How `service start` was called.
#[derive(Debug, Default)]
pub struct ServeOptions {
    /// What the command line says of the configuration.
    pub flags: Flags,
    /// Where the parent that detached this process waits for one line: `{"ready":…}` or `{"error":…}`.
    pub ready_pipe: Option<OwnedFd>,
    /// The log, and the directory where it is kept once the outcome is told: given by a start that detaches.
    pub log: Option<(Log, PathBuf)>,
}

/// Looks at the host that may wait; each answers for all that were asked before it began.
const MOST_LOOKS: usize = 16;
/// How long what runs may take to end once the service stops: TERM, its grace, KILL, the receipt. Then the executor
/// is ended, which ends everything. `salaam service stop` waits 20 s for the whole of it.
const COMMANDS_END: Duration = Duration::from_secs(12);
/// How long sessions may take to let go: their workers are told, then killed.
const SESSIONS_END: Duration = Duration::from_secs(8);
/// How long the records may take after that.
const RECORDS_END: Duration = Duration::from_secs(2);
/// How long handlers may take to finish once every operation is over.
const DRAIN: Duration = Duration::from_secs(3);

/// How long a look at the host under way may take when the service ends.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Runs the service until it is told to stop.
pub fn serve(options: ServeOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let mut options = options;
    // A start that detaches is told to its parent; no service manager waits for it.
    let systemd = options.log.is_none().then(|| Systemd::of(&Variables::of_process())).flatten();
    let report = Report::new(options.ready_pipe.take(), options.log.take());
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(run(options, report, systemd));
            // Everything is recorded and let go of by now. What may still run is a look that nobody waits for any more,
            // as long as a sudo that hangs lets it.
            runtime.shutdown_timeout(LAST_LOOK);
            code
        }
        Err(error) => report.failed(
            exit::FAILED,
            "start-failed",
            &format!("the async runtime cannot start: {error}"),
            "check the limits on threads and descriptors",
        ),
    }
}

async fn run(options: ServeOptions, report: Report, systemd: Option<Systemd>) -> ExitCode {
    if let Err(error) = harden() {
        return report.failed(
            exit::FAILED,
            "start-failed",
            &format!("this process cannot be hardened: {error}"),
            "run it on a stock kernel",
        );
    }
    let host = match host::load(options.flags) {
        Ok(host) => host,
        Err(error) => return report.configuration(&error),
    };
    match (Start { host, clock: Clock }).prepare().await {
        Ok(prepared) => prepared.serve(report, systemd).await,
        Err(Refused::Checks(checks)) => report.refused(&checks),
        Err(Refused::Host(error)) => report.configuration(&error),
        Err(Refused::Other(message)) => report.failed(exit::FAILED, "start-failed", &message, "see the message"),
    }
}

/// Before the first secret is read: not dumpable (a core limit does not stop a piped core handler), no core
/// files, nothing that this process creates is readable by others.
pub(super) fn harden() -> nix::Result<()> {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    nix::sys::prctl::set_dumpable(false)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Connections of operators are bounded far above the usual soft limit of 1024.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

impl Prepared {
    async fn serve(self, report: Report, systemd: Option<Systemd>) -> ExitCode {
        let Self { host, clock, lock, store, executor, notices, epoch, tools, manifest, checks, engine, group } = self;
        let (tools_tx, tools) = watch::channel(tools);
        let (stop, stopping) = watch::channel(false);
        let digest = match manifest.digest() {
            Ok(digest) => digest,
            Err(error) => return report.failed(exit::FAILED, "start-failed", &error.to_string(), "report this"),
        };
        let slots = Slots::new(manifest.limits.concurrent_commands);
        let context = Arc::new(Context {
            clock,
            store: store.clone(),
            executor: executor.clone(),
            readers: readers(&host),
            workspaces: Registry::default(),
            manifest_digest: digest,
            tool_uid: account(&host).1,
            manifest,
            controls: Controls::default(),
            slots: Arc::new(slots),
            gate: Arc::default(),
            sketches: Arc::new(Slots::new(MOST_SKETCHES)),
            tools,
            stopping,
            group,
        });
        let begun = begin(&store, &context.manifest).await;
        let started = clock.now();
        let (checks_tx, checks) = watch::channel(checks.into_iter().map(|check| (check, started)).collect());
        let (looks, asked) = mpsc::channel(MOST_LOOKS);
        let every = Duration::from_secs(host.config.probe_interval_seconds);
        let operators = host.operators_gid;
        let (runtime_dir, socket) = (host.dirs.runtime.clone(), host.dirs.socket());
        let (desk, draining) = (Arc::new(Desk::new(Arc::clone(&context))), Arc::default());
        let parts = Parts {
            context: Arc::clone(&context),
            desk: Arc::clone(&desk),
            draining: Arc::clone(&draining),
            program: host.dirs.libexec.join("salaam-worker"),
            state: host.dirs.state.clone(),
        };
        let app = Arc::new(App {
            desk,
            sessions: Sessions::new(store.clone(), context.stopping.clone(), parts),
            context: Arc::clone(&context),
            host,
            started,
            checks,
            looks: looks.clone(),
            draining,
            stop,
            leave: watch::Sender::new(false),
        });
        let listen = |open| Ok((crate::http::listen(&runtime_dir, operators).map_err(|e| e.to_string())?, open));
        let listener = begun.and_then(listen);
        let code = match listener {
            Ok((listener, open)) => {
                open.adopt(&app.desk);
                let (watched, tools) = (Arc::clone(&context), tools_tx.clone());
                let watched = Watch { context: watched, engine, tools, checks: checks_tx, every };
                let watching = tokio::spawn(watched.run(asked));
                let following = tokio::spawn(notices::follow(Arc::clone(&context), notices, tools_tx, looks, epoch));
                let serving = tokio::spawn(listener.serve(Arc::clone(&app)));
                // What is read here was read by `begin` a moment ago; if not, the next start takes it up.
                if let Err(error) = app.sessions.resume().await {
                    tracing::error!(%error, "sessions cannot be taken up");
                }
                if report.ready(&app.health().await) {
                    until_told(systemd, &store, &socket).await;
                }
                app.begin_stop();
                watching.abort();
                tokio::join!(end_operations(&app, &executor), end_sessions(&app));
                end(&store).await;
                app.leave.send_replace(true);
                if tokio::time::timeout(DRAIN, serving).await.is_err() {
                    tracing::warn!("some connections were still open when the service ended");
                }
                executor.stop().await;
                context.readers.stop().await;
                following.abort();
                ExitCode::SUCCESS
            }
            Err(error) => {
                executor.stop().await;
                report.failed(exit::FAILED, "start-failed", &error, "see the message")
            }
        };
        store.close().await;
        drop(lock);
        code
    }
}

/// Settles what the process before left open, then records the start. What goes on is given back.
async fn begin(store: &Store, manifest: &Manifest) -> Result<recovery::Open, String> {
    let (settled, open) = recovery::settle(store).await.map_err(|e| chain(&e))?;
    let mut events = Vec::new();
    if let Some(planned) = planned(store, manifest).await? {
        events.push(Draft::new(Kind::HostPlanned, None, planned).map_err(|e| chain(&e))?);
    }
    let data = json!({ "version": crate::version::NUMBER, "pid": std::process::id(), "settled": settled, "open": open.count() });
    events.push(Draft::new(Kind::ServiceStarted, None, data).map_err(|e| chain(&e))?);
    store.commit(Transaction { changes: Vec::new(), events }).await.map_err(|e| chain(&e))?;
    Ok(open)
}

/// The data of `host.planned`, unless the journal's last one is of this very plan. The journal is asked, not the
/// pinned file: `host plan --pin` writes that one while no service runs.
async fn planned(store: &Store, manifest: &Manifest) -> Result<Option<Value>, String> {
    let mut before: Option<Manifest> = None;
    let mut query = EventQuery { kind: Some(Kind::HostPlanned.as_str().to_owned()), ..EventQuery::default() };
    loop {
        let page = store.events(query.clone()).await.map_err(|e| chain(&e))?;
        let Some((seq, line)) = page.last() else { break };
        query.after = *seq;
        let event: Value = serde_json::from_slice(line).map_err(|e| chain(&e))?;
        before = event.pointer("/data/plan").and_then(|plan| serde_json::from_value(plan.clone()).ok());
    }
    if before.as_ref() == Some(manifest) {
        return Ok(None);
    }
    let canonical = manifest.to_canonical().map_err(|e| chain(&e))?;
    let plan: Value = serde_json::from_slice(&canonical).map_err(|e| chain(&e))?;
    let digest = manifest.digest().map_err(|e| chain(&e))?;
    Ok(Some(json!({ "manifest": digest, "plan": plan, "difference": manifest.difference(before.as_ref()) })))
}

/// Ends every operation with its record; at the latest by ending the executor.
async fn end_operations(app: &App, executor: &Executor) {
    if tokio::time::timeout(COMMANDS_END, app.desk.close()).await.is_ok() {
        return;
    }
    tracing::warn!(open = app.desk.open(), "operations did not end in time; the executor is ended");
    executor.stop().await;
    if tokio::time::timeout(RECORDS_END, app.desk.close()).await.is_err() {
        tracing::error!(open = app.desk.open(), "operations are left to the next start to settle");
    }
}

/// Lets every session go: its worker is ended, the record says where it goes on.
async fn end_sessions(app: &App) {
    if tokio::time::timeout(SESSIONS_END, app.sessions.close()).await.is_err() {
        tracing::error!(live = app.sessions.live(), "sessions did not let go in time; the next start takes them up");
    }
}

async fn end(store: &Store) {
    let event = Draft::new(
        Kind::ServiceStopping,
        None,
        json!({ "version": crate::version::NUMBER, "pid": std::process::id() }),
    );
    if let Ok(event) = event
        && let Err(error) = store.commit(Transaction { changes: Vec::new(), events: vec![event] }).await
    {
        tracing::error!(%error, "the stop could not be journaled");
    }
}
