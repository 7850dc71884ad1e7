//! `salaam doctor` where no service runs: the checks of a start, without one. Nothing is created, pinned or
//! left running; the state directory is only read.

use salaam_core::check::Check;
use tokio::sync::mpsc;

use super::start::{dedup, engine, hopeless, spawn};
use crate::{
    executor::Executor,
    host::Host,
    probe::Depth,
    store::{LockError, StateLock, offline},
};

/// Every check of this host, in the order in which an operator would mend them.
/// To `prove` is to carry out every attack that there is on the sandbox, each a check of its own.
pub async fn examine(host: &Host, prove: bool) -> Vec<Check> {
    let depth = if prove { Depth::Proof } else { Depth::Whole };
    if let Err(error) = super::serve::harden() {
        return vec![Check::unproven(
            "environ-readable",
            format!("this process cannot be hardened: {error}"),
            "use a stock kernel",
        )];
    }
    let engine = engine(host);
    let mut checks = engine.alone(depth).await;
    checks.push(engine.plan());
    let (locked, free) = locked(host);
    checks.push(locked);
    if free {
        checks.push(journal(host));
    }
    // Two executors of one account could both run the same thing: beside a service that runs none is started.
    if free && !hopeless(&checks) {
        let (notices, _unheard) = mpsc::channel(1);
        match Executor::start(spawn(host), 1, notices).await {
            Ok(executor) => {
                checks.extend(
                    ["sudo-denied", "executor-identity", "executor-version"]
                        .map(|id| Check::pass(id, "an executor was started and proved itself")),
                );
                if let Ok(link) = executor.link() {
                    let landlock = host.config.landlock;
                    checks.extend(engine.with_executor(&link, landlock, depth).await.checks);
                }
                executor.stop().await;
            }
            Err(failed) => checks.extend(failed),
        }
    }
    dedup(&mut checks);
    checks
}

/// `state-locked`, and whether the state is nobody's.
fn locked(host: &Host) -> (Check, bool) {
    let state = &host.dirs.state;
    if !state.exists() {
        return (Check::pass("state-locked", format!("{} does not exist yet", state.display())), true);
    }
    match StateLock::holder(state) {
        Ok(None) => (Check::pass("state-locked", format!("nobody has the lock of {}", state.display())), true),
        Ok(Some(holder)) => {
            let held = LockError::Held { state: state.clone(), holder };
            (held.to_check(), false)
        }
        Err(error) => (error.to_check(), true),
    }
}

/// `journal-damaged`, by the whole chain: a start looks at its end.
fn journal(host: &Host) -> Check {
    let state = &host.dirs.state;
    if !state.join("salaam.db").exists() {
        return Check::pass("journal-damaged", "there is no journal yet");
    }
    match offline::verify(state) {
        Ok(verified) => Check::pass("journal-damaged", format!("the chain of {} events holds", verified.events)),
        Err(error) => error.to_check(),
    }
}
