//! The owner task of one session: hears what happens, records it, and then does what follows.
//!
//! Promises: nothing is done before what it follows from is recorded; a turn is recorded before any call of it is
//! proposed, an answer before the worker is told, a message before anybody is told that it was taken. Whatever goes
//! wrong here, the task ends, its worker is ended, and another one goes on from the record.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use salaam_core::{id::SessionId, worker::FromWorker};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Shared,
    carry::{Carried, Known},
    course::{Action, Course, Event, Recorded},
    error::SessionError,
    order::Order,
    record::{self, Note},
    staff::{Colleague, Staff},
};
use crate::{
    store::{Mail, ModelCall, SessionRow, TurnRow},
    workers::{Gone, WorkerError},
};

/// A provider that says nothing for so long will not say anything.
const MOST_THINKING: Duration = Duration::from_secs(900);

/// One session's owner.
#[derive(Debug)]
pub(super) struct Owner<S: Staff> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) id: SessionId,
    pub(super) row: SessionRow,
    pub(super) course: Course,
    pub(super) mail: Mail,
    pub(super) seat: Seat<S::Worker>,
    /// Why the next worker is started.
    pub(super) reason: String,
    /// Of everything that was said.
    pub(super) bytes: u64,
    pub(super) carrying: Option<Carrying>,
    /// What is to be heard before anything else.
    pub(super) due: Option<Due>,
    /// Who waits for the end.
    waiting: Vec<oneshot::Sender<()>>,
    stopping: watch::Receiver<bool>,
}

pub(super) type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The worker's seat.
pub(super) enum Seat<W> {
    Empty,
    /// One is on its way.
    Hiring(Doing<Result<W, WorkerError>>),
    Here(Box<Hired<W>>),
    /// One is being ended.
    Leaving(Doing<()>),
}

#[derive(Debug)]
pub(super) struct Hired<W> {
    pub(super) worker: W,
    pub(super) since: Instant,
    /// When it was asked for a turn that has not come yet.
    pub(super) asked: Option<Instant>,
}

/// The call that is carried out.
pub(super) struct Carrying {
    pub(super) call: ModelCall,
    pub(super) operation: Known,
    pub(super) doing: Doing<Result<Carried, SessionError>>,
}

#[derive(Debug)]
pub(super) enum Due {
    Withdrawn,
    Lost(WorkerError),
}

enum Heard<W> {
    Stop,
    Order(Order),
    Hired(Result<W, WorkerError>),
    Left,
    Said(FromWorker),
    Lost(WorkerError),
    Carried(Result<Carried, SessionError>),
    Withdrawn,
}

impl<S: Staff> Owner<S> {
    /// Takes up the session where its record ends, with what is to be done first; absent = it is over, or there is
    /// none.
    pub(super) async fn take_up(
        shared: Arc<Shared<S>>,
        id: SessionId,
        reason: &str,
    ) -> Result<Option<(Self, Vec<Action>)>, SessionError> {
        let store = &shared.store;
        let Some(row) = store.session(id).await? else { return Ok(None) };
        if super::view::is_over(&row.document) {
            return Ok(None);
        }
        let last = store.last_turn(id).await?;
        let mail = store.mail(id).await?;
        let bytes = store.transcript_bytes(id).await?;
        let recorded = recorded(last.as_ref(), mail, &row.document);
        let (course, actions) = Course::take_up(&recorded);
        let stopping = shared.stopping.clone();
        let owner = Self {
            shared,
            id,
            row,
            course,
            mail,
            seat: Seat::Empty,
            reason: reason.to_owned(),
            bytes,
            carrying: None,
            due: None,
            waiting: Vec::new(),
            stopping,
        };
        Ok(Some((owner, actions)))
    }

    /// Lives until the session is over or the service stops. The worker is gone when this returns.
    pub(super) async fn live(
        mut self,
        actions: Vec<Action>,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<(), SessionError> {
        let lived = self.go_on(actions, orders).await;
        self.dismiss();
        if let Seat::Leaving(leaving) = self.seat {
            leaving.await;
        }
        for waiting in self.waiting {
            // Whoever asked may be gone.
            let _ = waiting.send(());
        }
        lived
    }

    async fn go_on(&mut self, actions: Vec<Action>, orders: &mut mpsc::Receiver<Order>) -> Result<(), SessionError> {
        self.begin(actions).await?;
        while !self.course.is_over() {
            match self.hear(orders).await {
                Heard::Stop => return Ok(()),
                Heard::Order(order) => self.obey(order).await?,
                Heard::Hired(Ok(worker)) => self.hired(worker).await?,
                Heard::Hired(Err(error)) => self.lost(&error).await?,
                Heard::Left => self.seat = Seat::Empty,
                Heard::Said(FromWorker::Turn(turn)) => self.turn(turn).await?,
                Heard::Said(FromWorker::Ended { outcome, reason }) => self.ended(outcome, reason).await?,
                Heard::Said(FromWorker::Ready { .. }) => {
                    self.lost(&WorkerError::Impossible("was ready a second time".into())).await?;
                }
                Heard::Lost(error) => self.lost(&error).await?,
                Heard::Carried(carried) => self.carried(carried?).await?,
                Heard::Withdrawn => self.report(Event::Withdrawn, Note::default()).await?,
            }
        }
        Ok(())
    }

    /// Waits for the next thing that concerns the session. Cancel-safe.
    async fn hear(&mut self, orders: &mut mpsc::Receiver<Order>) -> Heard<S::Worker> {
        match self.due.take() {
            Some(Due::Withdrawn) => return Heard::Withdrawn,
            Some(Due::Lost(error)) => return Heard::Lost(error),
            None => {}
        }
        let Self { seat, carrying, stopping, .. } = self;
        let stopped = async {
            if stopping.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let ordered = async {
            match orders.recv().await {
                Some(order) => order,
                // The register let go of this session; it goes on without orders.
                None => std::future::pending().await,
            }
        };
        let carried = async {
            match carrying {
                Some(carrying) => carrying.doing.as_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopped => Heard::Stop,
            order = ordered => Heard::Order(order),
            heard = listen(seat) => heard,
            carried = carried => Heard::Carried(carried),
        }
    }

    /// Answers once the session is over.
    pub(super) fn await_end(&mut self, answer: oneshot::Sender<()>) {
        self.waiting.push(answer);
    }

    /// The worker could not be told something.
    pub(super) fn unheard(&mut self, error: WorkerError) {
        self.due.get_or_insert(Due::Lost(error));
    }
}

/// What the worker's seat has to say.
async fn listen<W: Colleague>(seat: &mut Seat<W>) -> Heard<W> {
    match seat {
        Seat::Empty => std::future::pending().await,
        Seat::Hiring(hiring) => Heard::Hired(hiring.as_mut().await),
        Seat::Leaving(leaving) => {
            leaving.as_mut().await;
            Heard::Left
        }
        Seat::Here(hired) => {
            let silent = async {
                match hired.asked.and_then(|asked| asked.checked_add(MOST_THINKING)) {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                said = hired.worker.next() => match said {
                    Ok(message) => Heard::Said(message),
                    Err(error) => Heard::Lost(error),
                },
                () = silent => Heard::Lost(WorkerError::Impossible(format!(
                    "said nothing for {} s after it was asked", MOST_THINKING.as_secs()
                ))),
            }
        }
    }
}

pub(super) fn leaving<W: Colleague>(worker: W) -> Seat<W> {
    Seat::Leaving(Box::pin(async move {
        match worker.end().await {
            Gone::Proven(_) => {}
            Gone::Unproven { pid } => tracing::error!(pid, "a worker was killed and is not gone"),
        }
    }))
}

/// What a course needs of the record.
fn recorded(last: Option<&TurnRow>, mail: Mail, document: &serde_json::Value) -> Recorded {
    let known = Recorded {
        waiting: mail.all.saturating_sub(mail.told),
        begun: record::epoch(document) > 0,
        closing: record::closing(document),
        ..Recorded::default()
    };
    let Some(last) = last else { return known };
    let answered = last.calls.iter().take_while(|call| call.answer.is_some()).count();
    Recorded {
        turns: last.number + 1,
        calls: last.calls.len() as u64,
        answered: answered as u64,
        awaits: last.awaits,
        told: mail.last == Some(last.number),
        proposed: last.calls.get(answered).is_some_and(|call| call.operation.is_some()),
        ..known
    }
}

impl<W: std::fmt::Debug> std::fmt::Debug for Seat<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Hiring(_) => f.write_str("Hiring"),
            Self::Here(hired) => f.debug_tuple("Here").field(hired).finish(),
            Self::Leaving(_) => f.write_str("Leaving"),
        }
    }
}

impl std::fmt::Debug for Carrying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrying").field("call", &self.call).field("operation", &self.operation).finish_non_exhaustive()
    }
}
