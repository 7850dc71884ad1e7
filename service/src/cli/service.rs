//! `salaam service start|stop|status`
//!
//! Start runs itself again, detached, and learns the outcome over a pipe; stop and status find the process by
//! the state lock, so that they work across versions.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

use salaam_sys::pidfd;
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use super::{
    args::ServiceVerb,
    client::{Client, block_on},
    discover::{self, Place},
    health, start,
    terminal::{Out, at, columns},
    trouble::Trouble,
};
use crate::{
    store::lock::{Holder, LockError, StateLock},
    version,
};

/// How long a service may take to end what runs and close its journal.
const STOP: Duration = Duration::from_secs(20);
/// How often the lock, or what still runs, is looked at.
const LOOK: Duration = Duration::from_millis(25);

/// Carries out one verb.
pub(super) fn run(verb: ServiceVerb, instance: Option<&str>, out: Out) -> Result<(), Trouble> {
    match verb {
        ServiceVerb::Start(given) => start::detached(given, instance, out),
        ServiceVerb::Stop { drain } => {
            let place = discover::place(instance)?;
            block_on(stop(&place, Duration::from_secs(drain), out))
        }
        ServiceVerb::Status => {
            let place = discover::place(instance)?;
            block_on(status(&place, out))
        }
    }
}

async fn stop(place: &Place, drain: Duration, out: Out) -> Result<(), Trouble> {
    let holder = holder(place)?.ok_or_else(|| not_running(place))?;
    let Some(pid) = holder.pid else {
        return Err(Trouble::refused("stop-failed", holder.to_string(), "stop it from where its pid is seen"));
    };
    let process =
        pidfd::open(pid).map_err(|source| local("opening the process that has the lock of", place, source))?;
    // The number could have been given to another process between the two; the descriptor cannot.
    if self::holder(place)?.and_then(|again| again.pid) != Some(pid) {
        return Err(Trouble::refused("stop-failed", "the service changed while it was looked at", "try again"));
    }
    if !drain.is_zero() {
        drained(place, drain, out).await;
    }
    pidfd::signal(&process, nix::sys::signal::Signal::SIGTERM).map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => not_the_account(place),
        _ => local("signalling the process that has the lock of", place, source),
    })?;
    let until = Instant::now() + STOP;
    while !(pidfd::has_ended(&process, 0).map_err(|source| local("waiting for", place, source))?) {
        if Instant::now() >= until {
            return Err(still_there(pid, &holder));
        }
        time::sleep(LOOK).await;
    }
    out.result(&json!({ "stopped": true, "pid": pid }), |_| format!("stopped (pid {pid})"))
}

/// Waits until nothing is dispatched, at most `drain`. A service that cannot be asked is not waited for.
async fn drained(place: &Place, drain: Duration, out: Out) {
    let client = Client::new(place.clone());
    let until = Instant::now() + drain;
    let closed = json!({ "seconds": (drain + STOP).as_secs() });
    if let Err(why) = client.post("/v1/drain", &closed).await {
        out.note(&format!("new operations are still taken: {why}"));
    }
    loop {
        // Counted by the service: a listing may be cut short.
        let running = match client.fetch("/v1/health").await {
            Ok(health) => match health.pointer("/operations/granted").and_then(Value::as_u64) {
                Some(running) => running,
                None => return out.note("cannot drain: the service does not say what runs"),
            },
            Err(why) => return out.note(&format!("cannot drain: {why}")),
        };
        if running == 0 {
            return;
        }
        if Instant::now() >= until {
            return out.note(&format!("{running} still running; they are cancelled"));
        }
        time::sleep(LOOK * 8).await;
    }
}

async fn status(place: &Place, out: Out) -> Result<(), Trouble> {
    let health = Client::new(place.clone()).fetch("/v1/health").await;
    // An operator may ask for health and still not look into the state directory.
    let holder = match holder(place) {
        Ok(holder) => holder,
        Err(why) if health.is_err() => return Err(why),
        Err(_) => None,
    };
    let (answers, health, why) = match health {
        Ok(health) => (true, health, None),
        Err(why @ Trouble::NotRunning { .. }) if holder.is_none() => return Err(why),
        Err(why) => (false, Value::Null, Some(why.to_string())),
    };
    let pid = holder.as_ref().and_then(|holder| holder.pid).map(Value::from);
    let wrote = holder.and_then(|holder| holder.version).map(Value::from);
    let either = |first: Option<Value>, name: &str| first.or_else(|| health.get(name).cloned()).unwrap_or(Value::Null);
    let status = json!({
        "running": true, "answers": answers, "pid": either(pid, "service_pid"), "version": either(wrote, "version"),
        "client_version": version::NUMBER, "socket": place.socket.to_string_lossy(), "instance": place.instance,
        "health": health, "why": why,
    });
    out.result(&status, render)?;
    if answers { Ok(()) } else { Err(Trouble::Shown) }
}

fn render(status: &Value) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let head = columns(&[
        row("running", format!("pid {}", at(status, "/pid"))),
        row("version", format!("{} (this program: {})", at(status, "/version"), at(status, "/client_version"))),
        row("socket", at(status, "/socket")),
    ]);
    match status.get("health") {
        Some(health @ Value::Object(_)) => format!("{head}\n{}", health::render(health)),
        Some(_) | None => format!("{head}it does not answer: {}\n", at(status, "/why")),
    }
}

fn holder(place: &Place) -> Result<Option<Holder>, Trouble> {
    match StateLock::holder(&place.state) {
        Ok(holder) => Ok(holder),
        Err(LockError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(LockError::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Err(not_the_account(place))
        }
        Err(LockError::File { attempted, path, source }) => Err(Trouble::Local { attempted, path, source }),
        // What only a caller that wants the lock is told; it is an answer all the same.
        Err(LockError::Held { holder, .. }) => Ok(Some(holder)),
    }
}

fn not_running(place: &Place) -> Trouble {
    Trouble::NotRunning {
        socket: place.socket.clone(),
        why: io::Error::new(ErrorKind::NotFound, "nobody has the state lock"),
    }
}

fn not_the_account(place: &Place) -> Trouble {
    let (owner, name) = (discover::account(place.owner), discover::account_name(place.owner));
    Trouble::refused(
        "not-the-service-account",
        format!("only {owner} and root may look into {} and signal the service", place.state.display()),
        format!("sudo -u {} salaam service …", name.unwrap_or_else(|| format!("#{}", place.owner))),
    )
}

fn still_there(pid: i32, holder: &Holder) -> Trouble {
    let theirs = holder.version.as_deref().unwrap_or("unknown");
    Trouble::refused(
        "stop-failed",
        format!(
            "pid {pid} (version {theirs}; this program {}) did not end in {} s after SIGTERM",
            version::NUMBER,
            STOP.as_secs()
        ),
        format!(
            "see the service's log; as a last resort kill -KILL {pid}: what ran becomes unknown, nothing runs twice"
        ),
    )
}

fn local(attempted: &'static str, place: &Place, source: io::Error) -> Trouble {
    Trouble::Local { attempted, path: place.state.clone(), source }
}
