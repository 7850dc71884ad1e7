//! All readers of a service, by workspace.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use salaam_core::{
    id::WorkspaceId,
    reader::{Answer, Found, Lines, Listed, Place, Request, ToReader, Whole},
};
use salaam_proto::reader_wire as wire;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    error::ReaderError,
    owner::{Question, own},
    process::Options,
};

/// Readers at once: each has up to some 50 MiB while it is asked, and 2 MiB while it is not.
const MOST: usize = 16;
/// Questions that wait for one reader.
const WAITING: usize = 32;
/// A reader that nobody has asked for so long is ended.
const IDLE: Duration = Duration::from_secs(60);

/// Asks the reader of each workspace, and starts it where there is none.
#[derive(Debug)]
pub struct Readers {
    options: Options,
    seats: Mutex<HashMap<WorkspaceId, Seat>>,
    idle: Duration,
}

/// One owner task.
#[derive(Debug)]
struct Seat {
    questions: mpsc::Sender<Question>,
    asked: Instant,
    owner: JoinHandle<()>,
}

impl Readers {
    /// None is started yet.
    pub fn new(options: Options) -> Self {
        Self { options, seats: Mutex::default(), idle: IDLE }
    }

    #[cfg(test)]
    pub(super) fn with_idle(options: Options, idle: Duration) -> Self {
        Self { options, seats: Mutex::default(), idle }
    }

    /// A page of a directory. `root` is the workspace's directory; what is open on it decides, not its path.
    ///
    /// # Errors
    /// A refusal of the reader, or no reader.
    pub async fn list(
        &self,
        id: WorkspaceId,
        root: impl AsFd + Send,
        path: Vec<u8>,
        after: Option<Vec<u8>>,
        most: u32,
    ) -> Result<Listed, ReaderError> {
        match self.ask(id, root, Request::List { path, after, most }).await? {
            Answer::Listed(listed) => Ok(listed),
            other => Err(another(&other)),
        }
    }

    /// Lines of a file.
    ///
    /// # Errors
    /// As [`Readers::list`].
    pub async fn read(
        &self,
        id: WorkspaceId,
        root: impl AsFd + Send,
        path: Vec<u8>,
        from_line: u64,
        lines: u64,
    ) -> Result<Lines, ReaderError> {
        match self.ask(id, root, Request::Read { path, from_line, lines }).await? {
            Answer::Lines(lines) => Ok(lines),
            other => Err(another(&other)),
        }
    }

    /// Lines that match.
    ///
    /// # Errors
    /// As [`Readers::list`].
    pub async fn search(
        &self,
        id: WorkspaceId,
        root: impl AsFd + Send,
        pattern: String,
        path: Vec<u8>,
        after: Option<Place>,
        most: u32,
    ) -> Result<Found, ReaderError> {
        match self.ask(id, root, Request::Search { pattern, path, after, most }).await? {
            Answer::Found(found) => Ok(found),
            other => Err(another(&other)),
        }
    }

    /// A whole file, as an edit needs it.
    ///
    /// # Errors
    /// As [`Readers::list`].
    pub async fn whole(
        &self,
        id: WorkspaceId,
        root: impl AsFd + Send,
        path: Vec<u8>,
        most_bytes: u64,
    ) -> Result<Whole, ReaderError> {
        match self.ask(id, root, Request::Whole { path, most_bytes }).await? {
            Answer::Whole(whole) => Ok(whole),
            other => Err(another(&other)),
        }
    }

    /// Any question; a refusal of the reader is an error here.
    ///
    /// # Errors
    /// As [`Readers::list`].
    pub async fn ask(&self, id: WorkspaceId, root: impl AsFd + Send, request: Request) -> Result<Answer, ReaderError> {
        // A reader takes a question that breaks the contract for a broken service, and ends.
        if let Err(error) = ToReader::try_from(wire::ToReader::from(ToReader::Ask(request.clone()))) {
            return Err(ReaderError::Question(error));
        }
        let (answer, answered) = oneshot::channel();
        self.queue(id, root, Question { request, answer })?;
        match answered.await {
            Ok(Ok(Answer::Refused(refused))) => Err(ReaderError::Refused(refused)),
            Ok(answered) => answered,
            // The owner was aborted.
            Err(_) => Err(ReaderError::Stopping),
        }
    }

    /// Ends the reader of a workspace that is no longer used, or is another directory now.
    pub async fn forget(&self, id: WorkspaceId) {
        let seat = self.lock().remove(&id);
        if let Some(seat) = seat {
            seat.end().await;
        }
    }

    /// Ends them all.
    pub async fn stop(&self) {
        let seats: Vec<_> = self.lock().drain().collect();
        for (_, seat) in seats {
            seat.end().await;
        }
    }

    /// How many there may be now, for health and metrics.
    pub fn count(&self) -> usize {
        self.lock().values().filter(|seat| !seat.questions.is_closed()).count()
    }

    fn queue(&self, id: WorkspaceId, root: impl AsFd, question: Question) -> Result<(), ReaderError> {
        let mut seats = self.lock();
        let question = match seats.get_mut(&id) {
            None => question,
            Some(seat) => match seat.questions.try_send(question) {
                Ok(()) => {
                    seat.asked = Instant::now();
                    return Ok(());
                }
                Err(mpsc::error::TrySendError::Full(_)) => {
                    return Err(ReaderError::Full { most: WAITING, of: "questions to one workspace" });
                }
                // It was idle and has ended.
                Err(mpsc::error::TrySendError::Closed(question)) => question,
            },
        };
        make_room(&mut seats)?;
        let prepare = |source: io::Error| ReaderError::Prepare { step: "holding the root", source };
        let root = root.as_fd().try_clone_to_owned().map_err(prepare)?;
        let (questions, asked) = mpsc::channel(WAITING);
        // There is room for one: the channel is new.
        drop(questions.try_send(question));
        // On a thread of the runtime, which lives as long as the service.
        let owner = tokio::spawn(own(self.options.clone(), root, asked, self.idle));
        seats.insert(id, Seat { questions, asked: Instant::now(), owner });
        Ok(())
    }

    /// A poisoned lock means that a holder panicked between two plain map operations; the map is still whole.
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Lets the owner answer what it is at, and end.
    async fn end(self) {
        drop(self.questions);
        if let Err(error) = self.owner.await
            && error.is_panic()
        {
            tracing::error!("the owner of a reader panicked");
        }
    }
}

/// Forgets owners that have ended, and lets go of the one that was asked least recently where there are too many.
fn make_room(seats: &mut HashMap<WorkspaceId, Seat>) -> Result<(), ReaderError> {
    seats.retain(|_, seat| !seat.questions.is_closed());
    if seats.len() < MOST {
        return Ok(());
    }
    let free = |seat: &Seat| seat.questions.capacity() == WAITING;
    let oldest = seats.iter().filter(|(_, seat)| free(seat)).min_by_key(|(_, seat)| seat.asked).map(|(id, _)| *id);
    match oldest {
        // Its task answers what it is at, ends the reader, and then itself.
        Some(id) => drop(seats.remove(&id)),
        None => return Err(ReaderError::Full { most: MOST, of: "workspaces" }),
    }
    Ok(())
}

/// [`super::process`] lets no answer to another question through.
fn another(answer: &Answer) -> ReaderError {
    let what = match answer {
        Answer::Listed(_) => "a listing",
        Answer::Lines(_) => "lines",
        Answer::Found(_) => "matches",
        Answer::Whole(_) => "a file",
        Answer::Refused(_) => "a refusal",
    };
    ReaderError::Impossible { what: what.into() }
}
