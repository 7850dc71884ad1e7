//! One reader: started with its link, a pipe for its log and the root, and nothing else; asked one question at a
//! time, each with a deadline; ended by the kernel.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream as Blocking},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{sys::signal::Signal, unistd::Pid};
use salaam_core::{
    canary::{self, Canary},
    reader::{Answer, Begin, FromReader, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request, ToReader},
};
use salaam_proto::{
    frame::{self, FrameError, HEADER_BYTES},
    reader_wire as wire,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use super::error::ReaderError;
use crate::child::{Child, Exit, Lines};

/// What readers are started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// LIBEXEC/salaam-reader, absolute.
    pub program: PathBuf,
    /// The service's own build: the reader's must be the same.
    pub build: String,
    /// The state directory, which a reader tries to open, in vain.
    pub state_directory: PathBuf,
    /// On whose behalf is read: the account that runs commands.
    pub account: Begin,
}

/// From spawn to its first word. It takes milliseconds; a host under load is no reason to give up.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// For one answer. A reader gives up by itself after six seconds at the most, between two lines or names.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// For the kernel to end a killed process.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// For the exit and the last lines that make a reported loss more exact.
const SOON: Duration = Duration::from_millis(100);
/// Of what it wrote, so much goes into the reason of a loss.
const SAID_BYTES: usize = 1024;
/// Where a reader finds the root (salaam-reader's `ROOT`).
const ROOT: i32 = 3;

/// A reader that has shown that it is confined.
#[derive(Debug)]
pub(super) struct Process {
    /// Always there but in drop.
    child: Option<Child>,
    link: UnixStream,
    lines: Lines,
    answer_within: Duration,
}

impl Process {
    /// Starts one for the directory behind `root`, lets it show that it is confined, and tells it for whom it reads.
    ///
    /// To be called on a thread that lives as long as the service: a reader ends with the thread that started it
    /// (PR_SET_PDEATHSIG), so not in `spawn_blocking`.
    pub(super) async fn start(options: &Options, root: BorrowedFd<'_>) -> Result<Self, ReaderError> {
        let mut process = Self::spawn(options, root)?;
        match process.begin(options).await {
            Ok(()) => Ok(process),
            Err(error) => {
                process.end().await;
                Err(error)
            }
        }
    }

    async fn begin(&mut self, options: &Options) -> Result<(), ReaderError> {
        match self.hear(READY_WITHIN).await? {
            FromReader::Ready { build, canary } => fit(&options.build, build, &canary)?,
            FromReader::Answer(_) => {
                return Err(ReaderError::Impossible { what: "an answer before it was ready".into() });
            }
        }
        self.say(ToReader::Begin(options.account.clone())).await
    }

    fn spawn(options: &Options, root: BorrowedFd<'_>) -> Result<Self, ReaderError> {
        let prepare = |step| move |source| ReaderError::Prepare { step, source };
        let (pid, link, log) = exec(options, root)?;
        // A child that cannot be watched sees its link close, and ends.
        let child = Child::new(pid).map_err(prepare("watching the process"))?;
        let id = u32::try_from(pid.as_raw()).unwrap_or_default();
        let lines = Lines::read([("log", log)], "reader", id).map_err(prepare("reading the log"))?;
        let link = UnixStream::from_std(link).map_err(prepare("watching the link"))?;
        Ok(Self { child: Some(child), link, lines, answer_within: ANSWER_WITHIN })
    }

    /// Over a link of which a test holds the other end.
    #[cfg(test)]
    pub(super) fn over(child: Child, link: UnixStream, lines: Lines, answer_within: Duration) -> Self {
        Self { child: Some(child), link, lines, answer_within }
    }

    /// Its number.
    pub(super) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.pid().as_raw())
    }

    /// Asks one question. After an error other than a refusal the reader is of no use any more: end it.
    pub(super) async fn ask(&mut self, request: Request) -> Result<Answer, ReaderError> {
        self.say(ToReader::Ask(request.clone())).await?;
        match self.hear(self.answer_within).await? {
            FromReader::Answer(answer) if answers(&request, &answer) => Ok(answer),
            FromReader::Answer(_) => Err(ReaderError::Impossible { what: "an answer to another question".into() }),
            FromReader::Ready { .. } => Err(ReaderError::Impossible { what: "that it is ready, again".into() }),
        }
    }

    /// Whether it has ended, by the kernel's word.
    pub(super) async fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.reap(Duration::ZERO).await.is_some(),
            None => true,
        }
    }

    /// Ends it, and takes the kernel's word that it is gone. It has nothing that it could lose.
    pub(super) async fn end(mut self) {
        self.kill();
        let pid = self.pid();
        if self.reap(GONE_WITHIN).await.is_none() {
            tracing::error!(pid, "a reader was killed and is not gone; a file system may hold it");
        }
    }

    async fn say(&mut self, message: ToReader) -> Result<(), ReaderError> {
        let framed = frame::framed(&wire::ToReader::from(message), MAX_REQUEST_BYTES);
        let bytes = framed
            .map_err(|error| ReaderError::Prepare { step: "framing a question", source: io::Error::other(error) })?;
        let limit = self.answer_within;
        match timeout(limit, self.link.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(&error.to_string()).await),
            Err(_) => Err(ReaderError::Late { limit }),
        }
    }

    async fn hear(&mut self, limit: Duration) -> Result<FromReader, ReaderError> {
        match timeout(limit, receive(&mut self.link)).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(FrameError::Io(error))) => Err(self.lost(&error.to_string()).await),
            Ok(Err(FrameError::Torn)) => Err(self.lost("it closed the link").await),
            Ok(Err(error @ (FrameError::TooLong { .. } | FrameError::Malformed | FrameError::Impossible(_)))) => {
                Err(ReaderError::Impossible { what: error.to_string() })
            }
            Err(_) => Err(ReaderError::Late { limit }),
        }
    }

    async fn lost(&mut self, seen: &str) -> ReaderError {
        let exit = self.reap(SOON).await;
        let said: String = self.lines.last(SOON).await.chars().take(SAID_BYTES).collect();
        let reason = match (exit, said.is_empty()) {
            (Some(exit), true) => exit.to_string(),
            (Some(exit), false) => format!("{exit}: {said}"),
            (None, _) => seen.to_owned(),
        };
        ReaderError::Lost { reason }
    }

    async fn reap(&mut self, limit: Duration) -> Option<Exit> {
        match &mut self.child {
            Some(child) => child.reap(limit).await,
            None => None,
        }
    }

    fn kill(&self) {
        let Some(child) = &self.child else { return };
        match child.signal(Signal::SIGKILL) {
            Ok(()) => {}
            // It is gone and reaped.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            Err(error) => tracing::error!(pid = child.pid().as_raw(), %error, "a reader cannot be killed"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let (Some(mut child), Ok(runtime)) = (self.child.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn(async move { child.reap(GONE_WITHIN).await }));
        }
    }
}

/// Whether the answer is one to that question, and no longer than was asked for.
fn answers(request: &Request, answer: &Answer) -> bool {
    let within = |count: usize, most: u64| u64::try_from(count).is_ok_and(|count| count <= most);
    match (request, answer) {
        (_, Answer::Refused(_)) => true,
        (Request::List { most, .. }, Answer::Listed(listed)) => within(listed.entries.len(), u64::from(*most)),
        (Request::Read { lines: most, .. }, Answer::Lines(lines)) => within(lines.lines.len(), *most),
        (Request::Search { most, .. }, Answer::Found(found)) => within(found.matches.len(), u64::from(*most)),
        (Request::Whole { most_bytes, .. }, Answer::Whole(whole)) => within(whole.image.content.len(), *most_bytes),
        (
            Request::List { .. } | Request::Read { .. } | Request::Search { .. } | Request::Whole { .. },
            Answer::Listed(_) | Answer::Lines(_) | Answer::Found(_) | Answer::Whole(_),
        ) => false,
    }
}

/// Memory grows with what arrives, not with what the header promises.
async fn receive(link: &mut UnixStream) -> Result<FromReader, FrameError> {
    let mut header = [0; HEADER_BYTES];
    match link.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(FrameError::Torn),
        Err(error) => return Err(FrameError::Io(error)),
    }
    let length = frame::length(header, MAX_ANSWER_BYTES)?;
    let mut bytes = Vec::new();
    link.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() != length {
        return Err(FrameError::Torn);
    }
    frame::value::<wire::FromReader, _>(&bytes)
}

/// In a session without a terminal, with an empty environment. The other ends are the reader's alone when this
/// returns.
fn exec(options: &Options, root: BorrowedFd<'_>) -> Result<(Pid, Blocking, OwnedFd), ReaderError> {
    let prepare = |step| move |source| ReaderError::Prepare { step, source };
    let (link, theirs) = Blocking::pair().map_err(prepare("making a socketpair"))?;
    link.set_nonblocking(true).map_err(prepare("making a socketpair"))?;
    let (log, their_log) = io::pipe().map_err(prepare("making a pipe"))?;
    let fds = [(theirs.as_fd(), 0), (their_log.as_fd(), 1), (their_log.as_fd(), 2), (root, ROOT)];
    let failed = |source| ReaderError::Spawn { program: options.program.clone(), source };
    let program = word(&options.program).map_err(failed)?;
    let argv = [program.clone(), word(&options.state_directory).map_err(failed)?];
    let pid = salaam_sys::spawn::spawn(&program, &argv, &[] as &[CString], &fds, true).map_err(failed)?;
    Ok((pid, link, log.into()))
}

fn word(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

/// Judges what a reader says of itself, before it was told or read anything.
pub(super) fn fit(ours: &str, theirs: String, tried: &[Canary]) -> Result<(), ReaderError> {
    if ours != theirs {
        return Err(ReaderError::Build { theirs, ours: ours.to_owned() });
    }
    canary::judge(canary::ALL.into_iter().chain(canary::ROOTED), tried).map_err(ReaderError::NotConfined)
}
