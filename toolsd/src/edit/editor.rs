//! The door to edits: what the rpc layer calls. Edits of one workspace come one after the other; the blocking
//! work is done on threads of its own, a few at a time, and is never left in the middle.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::stat::fstat;
use salaam_core::{
    bridge::{EditPlan, Edited, FilesRead, ReadFiles, Settle, Settled},
    edit::{EditedFile, Expected, Method},
    id::OperationId,
    result::Failure,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    Refusal, apply,
    apply::{Step, Work},
    place::Identity,
    read::read_files,
    settle,
};

/// Plans in memory at once, each up to 36 MiB: further ones wait in the bridge's flow control.
const ADMITTED: usize = 8;
/// Jobs on the disk at once: it gets no faster by more.
const AT_WORK: usize = 4;
/// Operations that are remembered. They come in order of time, so the oldest are forgotten.
const MOST_REMEMBERED: usize = 65_536;

/// Where an edit takes place. Whatever keeps commands apart from it is held until it is over.
#[derive(Debug)]
pub struct Site<Held> {
    /// The root of the workspace.
    pub root: Arc<OwnedFd>,
    /// Files that running commands have bound, relative to the root: not to be changed under them.
    pub bound: Vec<PathBuf>,
    /// Released when the edit is over.
    pub held: Held,
}

/// Applies and settles edits; one for the whole process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Editor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    admitted: Arc<Semaphore>,
    at_work: Arc<Semaphore>,
    /// One at a time in each workspace, by what the kernel says that it is.
    turns: Mutex<Vec<(Identity, Weak<tokio::sync::Mutex<()>>)>>,
    remembered: Mutex<Remembered>,
    stopping: AtomicBool,
    under_way: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Remembered {
    known: HashSet<OperationId>,
    order: VecDeque<OperationId>,
}

/// Room for one plan.
#[derive(Debug)]
pub struct Admission(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Default for Editor {
    fn default() -> Self {
        Self::new()
    }
}

impl Editor {
    /// An editor at rest.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            admitted: Arc::new(Semaphore::new(ADMITTED)),
            at_work: Arc::new(Semaphore::new(AT_WORK)),
            turns: Mutex::default(),
            remembered: Mutex::default(),
            stopping: AtomicBool::new(false),
            under_way: watch::Sender::new(0),
        }))
    }

    /// Waits until another plan may be taken into memory.
    pub async fn admit(&self) -> Result<Admission, Failure> {
        match Arc::clone(&self.0.admitted).acquire_owned().await {
            Ok(permit) => Ok(Admission(permit)),
            Err(_) => Err(Refusal::Stopped.into_failure()),
        }
    }

    /// Reads whole files; one that is nothing for an edit refuses them all.
    pub async fn read(&self, root: Arc<OwnedFd>, asked: ReadFiles) -> Result<FilesRead, Failure> {
        let site = Site { root, bound: Vec::new(), held: () };
        self.work(site, None, move |_, root| read_files(root, asked.paths, &asked.protected_paths))
            .await
            .map_err(Refusal::into_failure)
    }

    /// Applies an edit, whole or not at all. It goes on to its end when this future is dropped.
    pub async fn edit<H: Send + 'static>(&self, site: Site<H>, plan: EditPlan) -> Result<Edited, Failure> {
        let edited = async {
            let turn = self.turn(&site.root)?;
            let bound = site.bound.clone();
            self.work(site, Some(turn), move |shared, root| shared.apply(root, &bound, plan)).await
        };
        edited.await.map_err(Refusal::into_failure)
    }

    /// Says what became of an edit, and ends it. It goes on to its end when this future is dropped.
    pub async fn settle<H: Send + 'static>(&self, site: Site<H>, asked: Settle) -> Result<Settled, Failure> {
        let settled = async {
            let turn = self.turn(&site.root)?;
            self.work(site, Some(turn), move |shared, root| shared.settle(root, asked)).await
        };
        settled.await.map_err(Refusal::into_failure)
    }

    /// Lets no further edit begin and returns when none is under way: those that had not swapped a file yet
    /// are taken back, the others finished.
    pub async fn shutdown(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
        self.0.admitted.close();
        drop(self.0.under_way.subscribe().wait_for(|count| *count == 0).await);
    }

    fn turn(&self, root: &OwnedFd) -> Result<Arc<tokio::sync::Mutex<()>>, Refusal> {
        let identity = Identity::from(&fstat(root).map_err(Refusal::kernel("looking at", "."))?);
        let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|(_, turn)| turn.strong_count() > 0);
        if let Some(turn) = turns.iter().find(|(of, _)| *of == identity).and_then(|(_, turn)| turn.upgrade()) {
            return Ok(turn);
        }
        let turn = Arc::default();
        turns.push((identity, Arc::downgrade(&turn)));
        Ok(turn)
    }

    async fn work<T: Send + 'static, H: Send + 'static>(
        &self,
        site: Site<H>,
        turn: Option<Arc<tokio::sync::Mutex<()>>>,
        job: impl FnOnce(&Shared, BorrowedFd<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = match turn {
            Some(turn) => Some(turn.lock_owned().await),
            None => None,
        };
        let permit = Arc::clone(&self.0.at_work).acquire_owned().await.map_err(|_| Refusal::Stopped)?;
        let present = UnderWay::enter(Arc::clone(&self.0));
        if self.0.stopping.load(Ordering::Relaxed) {
            return Err(Refusal::Stopped);
        }
        let job = tokio::task::spawn_blocking(move || {
            let done = job(&present.0, site.root.as_fd());
            // Only now, also where nobody waits for the answer any more.
            drop((site, turn, permit, present));
            done
        });
        job.await.unwrap_or_else(|error| {
            // It panicked: what it did is for the next settling to tell.
            Err(Refusal::Undecided { evidence: io::Error::other(error).to_string() })
        })
    }
}

impl Shared {
    fn apply(&self, root: BorrowedFd<'_>, bound: &[PathBuf], plan: EditPlan) -> Result<Edited, Refusal> {
        if let Some(bound) = bound.iter().find(|bound| plan.expected.iter().any(|file| file.path == bytes(bound))) {
            return Err(Refusal::Bound(bound.clone()));
        }
        self.remember(plan.operation)?;
        let work = Work {
            operation: plan.operation,
            changes: plan.changes,
            expected: plan.expected,
            protected: plan.protected_paths,
            directories: plan.directories.iter().map(|path| paths(path)).collect(),
        };
        let made = apply(root, &work, &mut |step| match step {
            // A file that is swapped is not left beside one that is not.
            Step::Swap(_) | Step::Check(_) | Step::Finish | Step::Tidy => Ok(()),
            Step::Read | Step::Make(_) | Step::Stage(_) => {
                if self.stopping.load(Ordering::Relaxed) {
                    Err(Refusal::Stopped)
                } else {
                    Ok(())
                }
            }
        })?;
        Ok(edited(work.expected, made))
    }

    fn settle(&self, root: BorrowedFd<'_>, asked: Settle) -> Result<Settled, Refusal> {
        // The edit itself must not come after its settling.
        let _known = self.remember(asked.operation);
        let directories: Vec<PathBuf> = asked.directories.iter().map(|path| paths(path)).collect();
        Ok(match settle(root, asked.operation, &asked.expected, &directories)? {
            super::Settled::Finished { made } => Settled::Finished(edited(asked.expected, made)),
            super::Settled::RolledBack => Settled::RolledBack,
            super::Settled::Undecided { evidence } => Settled::Undecided { evidence },
        })
    }

    fn remember(&self, operation: OperationId) -> Result<(), Refusal> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if !remembered.known.insert(operation) {
            return Err(Refusal::Repeated(operation));
        }
        remembered.order.push_back(operation);
        if remembered.order.len() > MOST_REMEMBERED
            && let Some(oldest) = remembered.order.pop_front()
        {
            remembered.known.remove(&oldest);
        }
        Ok(())
    }
}

fn edited(expected: Vec<Expected>, made: Vec<PathBuf>) -> Edited {
    let file = |file: Expected| {
        let method = match (&file.pre, &file.post) {
            (None, _) => Method::Create,
            (Some(_), None) => Method::Delete,
            (Some(_), Some(_)) => Method::Exchange,
        };
        EditedFile { path: file.path, pre: file.pre, post: file.post, method }
    };
    let mut made: Vec<Vec<u8>> = made.iter().map(|path| bytes(path).to_vec()).collect();
    made.sort_unstable();
    Edited { files: expected.into_iter().map(file).collect(), made }
}

fn bytes(path: &std::path::Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn paths(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Counts a job as long as it lasts.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn enter(shared: Arc<Shared>) -> Self {
        shared.under_way.send_modify(|count| *count += 1);
        Self(shared)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}
