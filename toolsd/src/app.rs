//! The start of the executor, as a list, and its end.
//!
//! Every step that fails ends the process with an exit code of its own and one line on standard error; there
//! is no step that is skipped.

use std::{env, ffi::OsString, io::Write as _, process::ExitCode, sync::Arc};

use crate::{
    bridge::{self, Welcomed},
    command::{Runner, RunnerConfig},
    floor::{self, Floor},
    harden,
    probe::{self, Prober},
    refusal::StartError,
    rpc,
    supervise::Cgroups,
};

/// Runs the executor, or its prober; returns the exit code.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [] => serve(),
        [only] if only == probe::PROBER => probe::child(),
        [..] => Err(StartError::Usage),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not eprintln!: where nobody reads any more it panics, and the exit code that says why is lost.
            let _ = writeln!(std::io::stderr(), "salaam-toolsd: {}", with_causes(&error));
            ExitCode::from(error.refusal().code())
        }
    }
}

/// The error and what it came from, on one line.
fn with_causes(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// The start sequence. What follows relies on what precedes: nothing is opened before what was inherited is
/// closed, the bridge is trusted only after its creator is known, the prober is made before no_new_privs (it
/// must be able to do all that the account can), and threads exist only after it (it is a property of
/// threads).
fn serve() -> Result<(), StartError> {
    harden::drop_what_was_inherited()?;
    harden::close_to_others()?;
    let account = harden::unprivileged_account()?;
    let taken = bridge::take()?;
    let caller = bridge::caller(account, env::var_os("SUDO_UID"))?;
    let verified = taken.verify(caller)?;
    let floor = Floor::read(floor::INSTANCES.as_ref(), account, caller)?;
    let prober = probe::spawn().map_err(StartError::Prober)?;
    harden::no_new_privileges()?;
    let welcomed = verified.greet()?;
    listen(welcomed, floor, prober, matches!(caller, bridge::Caller::Own(_)))
}

fn listen(
    welcomed: Welcomed,
    floor: Floor,
    prober: probe::Child,
    in_service_user_mode: bool,
) -> Result<(), StartError> {
    let Welcomed { stream, doors } = welcomed;
    let engine = |step| move |source| StartError::Engine { step, source };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        // By default a line that cannot be written is told with eprintln!, which panics once the service is gone.
        .log_internal_errors(false)
        .with_max_level(tracing::Level::INFO)
        // Nobody may read it any more: the subscriber would tell so on standard error too, and that panics.
        .log_internal_errors(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(engine("the runtime"))?;
    runtime.block_on(async {
        let prober = Prober::adopt(prober).map_err(engine("the prober"))?;
        let cgroups = Cgroups::handed(doors).map_err(engine("the control groups that the service handed over"))?;
        let runner =
            Runner::new(RunnerConfig { launch: None, bwrap: None, cgroups, unsandboxed: floor.unsandboxed() })?;
        let runner = if in_service_user_mode { runner.in_service_user_mode() } else { runner };
        let ended = rpc::serve(stream, Arc::new(rpc::Executor::new(runner, floor, prober)))
            .await
            .map_err(engine("the bridge"))?;
        tracing::info!(reason = %ended, "the bridge ended");
        Ok(())
    })
}
