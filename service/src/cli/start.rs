//! `salaam service start`: this program runs itself again in a new session and is told, over a pipe, that
//! health answers or why not. A start that failed leaves nothing behind.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::{fd::AsFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::setsid,
};
use serde_json::Value;
use tracing_subscriber::EnvFilter;

use super::{
    args::Start,
    client::{Client, block_on},
    discover, health,
    terminal::{Out, at},
    trouble::Trouble,
};
use crate::{
    app::{Log, ServeOptions, serve},
    host::Flags,
};

/// How long a start may take: probes of a slow host included. Below what the units give it (TimeoutStartSec).
const START: Duration = Duration::from_secs(110);
/// The longest line that tells the outcome.
const MAX_OUTCOME_BYTES: usize = 4 << 20;
/// How long a child that failed may take to end by itself before it is killed.
const END: Duration = Duration::from_secs(5);

/// Starts a detached service and prints its health.
pub(super) fn detached(start: Start, instance: Option<&str>, out: Out) -> Result<(), Trouble> {
    let place = discover::own_place(instance)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("salaam")
        .args(again(start, instance)?)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| Trouble::Local { attempted: "starting", path: "/proc/self/exe".into(), source })?;
    let outcome = match child.stdout.take() {
        Some(pipe) => outcome(pipe),
        None => Err(Trouble::refused("start-failed", "the new process has no pipe", "")),
    };
    let ready = outcome.and_then(|line| match line {
        Some(line) if line.get("ready").is_some() => Ok(()),
        Some(line) => Err(Trouble::of_answer(0, &line)),
        None => {
            Err(Trouble::refused("start-failed", ended(&mut child), "see the messages above and the service's log"))
        }
    });
    // Ready is what a served request says, not what a process says of itself.
    match ready.and_then(|()| block_on(Client::new(place).fetch("/v1/health"))) {
        Ok(health) => out.result(&health, health::render),
        Err(trouble) => {
            end(&mut child);
            Err(trouble)
        }
    }
}

/// Serves in this process: in the foreground, or as the detached half of [`detached`]. The exit code is the
/// service's.
pub(super) fn foreground(start: Start, instance: Option<&str>, out: Out) -> Result<ExitCode, Trouble> {
    let log = log();
    let place = discover::own_place(instance)?;
    let failed = |why: io::Error| Trouble::refused("start-failed", format!("cannot report: {why}"), "");
    let flags = Flags {
        tools_user: start.tools_user,
        local_sandbox_read: start.local_sandbox_read,
        unsandboxed_commands: start.unsandboxed_commands,
    };
    if start.detached {
        // A terminal's ^C and hang-up are for whoever sits there, not for the service.
        setsid().map_err(|why| failed(why.into()))?;
        // It was started as /proc/self/exe, and would be listed as `exe`.
        nix::sys::prctl::set_name(c"salaam").map_err(|why| failed(why.into()))?;
        let pipe = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
        return Ok(serve(ServeOptions { flags, ready_pipe: Some(pipe), log: Some((log, place.state.join("log"))) }));
    }
    let (mut reading, writing) = io::pipe().map_err(failed)?;
    // A person reads what the caller of a detached start would.
    let telling = std::thread::spawn(move || {
        let mut line = String::new();
        let told = reading.read_to_string(&mut line).map_err(|why| why.to_string());
        let outcome = told.and_then(|_| serde_json::from_str::<Value>(&line).map_err(|why| why.to_string()));
        match outcome.as_ref().map(|outcome| (outcome, outcome.get("ready"))) {
            Ok((_, Some(health))) if out.json => drop(out.object(health)),
            Ok((_, Some(health))) => out.note(&format!("ready, pid {}", at(health, "/service_pid"))),
            Ok((outcome, None)) => out.complain(&Trouble::of_answer(0, outcome)),
            Err(why) => out.note(&format!("the service ended before it was ready: {why}")),
        }
    });
    let code = serve(ServeOptions { flags, ready_pipe: Some(writing.into()), log: None });
    // The pipe is closed by now, so the thread ends.
    let _ = telling.join();
    Ok(code)
}

/// Diagnosis goes to standard error: the terminal's, a unit's, and STATE/log/service.log once detached. RUST_LOG
/// says how much of it; `SALAAM_*` names keys of the configuration only.
fn log() -> Log {
    let log = Log::default();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call finds the first one's subscriber, which is the same.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // By default a line that cannot be written is told with eprintln!, which panics on a full disk: it ended the
        // thread that writes the journal.
        .log_internal_errors(false)
        .with_writer(log.clone())
        .try_init();
    log
}

/// The arguments of the detached half.
fn again(start: Start, instance: Option<&str>) -> Result<Vec<OsString>, Trouble> {
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    if let Some(name) = instance {
        add(&["--instance", name]);
    }
    add(&["service", "start", "--foreground", "--detached"]);
    if let Some(user) = &start.tools_user {
        add(&["--tools-user", user]);
    }
    if let Some(word) = start.unsandboxed_commands {
        add(&["--unsandboxed-commands", word.as_str()]);
    }
    for path in start.local_sandbox_read {
        let mut word = OsString::from("--local-sandbox-read=");
        word.push(absolute(path)?);
        args.push(word);
    }
    Ok(args)
}

/// The detached half stands in `/`: a relative path is made absolute here. Words such as `toolchain` stay.
fn absolute(path: PathBuf) -> Result<PathBuf, Trouble> {
    let is_word = path.components().count() == 1 && !path.exists();
    if is_word {
        return Ok(path);
    }
    std::path::absolute(&path).map_err(|source| Trouble::Local { attempted: "finding", path, source })
}

/// The line that tells the outcome; None when the process ended without one.
fn outcome(mut pipe: ChildStdout) -> Result<Option<Value>, Trouble> {
    let until = Instant::now() + START;
    let failed = |why: String| Trouble::refused("start-failed", why, "see the messages above and the service's log");
    let mut line = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, wait) {
            Ok(0) => return Err(failed(format!("no outcome after {} s", START.as_secs()))),
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(why) => return Err(failed(format!("cannot wait for the outcome: {why}"))),
        }
        let mut piece = [0; 4096];
        let read = pipe.read(&mut piece).map_err(|why| failed(format!("cannot read the outcome: {why}")))?;
        line.extend_from_slice(piece.get(..read).unwrap_or_default());
        if read == 0 || line.contains(&b'\n') {
            break;
        }
        if line.len() > MAX_OUTCOME_BYTES {
            return Err(failed("the outcome is too long".into()));
        }
    }
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(|why| failed(format!("the outcome is no JSON: {why}")))
}

fn ended(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => format!("the service ended before it was ready ({status})"),
        Err(why) => format!("the service ended before it was ready ({why})"),
    }
}

/// Sees the process off: it has said that it ends, or it is ended.
fn end(child: &mut Child) {
    let until = Instant::now() + END;
    while Instant::now() < until {
        // Reaped, or not ours to wait for.
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}
