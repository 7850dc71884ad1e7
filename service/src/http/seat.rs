//! What one connection holds: its seat, and what its requests hold beyond it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    limits::{BODIES_BYTES, STAY_SHARE},
    refuse,
};
use crate::app::Refusal;

/// What all connections share.
#[derive(Debug, Clone)]
pub(super) struct House {
    stays: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl House {
    /// For so many seats: half of them may go to requests that last.
    pub(super) fn new(seats: usize) -> Self {
        Self { stays: Arc::new(Semaphore::new(seats / STAY_SHARE)), bodies: Arc::new(Semaphore::new(BODIES_BYTES)) }
    }
}

/// One connection's seat, as its requests see it. While nothing works under it, it may be given to a newcomer.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    house: House,
    working: Arc<AtomicUsize>,
}

impl Seat {
    pub(super) fn new(house: House) -> Self {
        Self { house, working: Arc::default() }
    }

    /// Whether nothing is lost but a wait when this connection is closed.
    pub(super) fn is_idle(&self) -> bool {
        self.working.load(Ordering::Acquire) == 0
    }

    /// From here the request is whole and is being answered.
    pub(super) fn work(&self) -> Working {
        self.working.fetch_add(1, Ordering::AcqRel);
        Working(self.working.clone())
    }

    /// For a request that lasts as long as its client wants.
    pub(super) fn stay(&self) -> Result<Stay, Refusal> {
        match self.house.stays.clone().try_acquire_owned() {
            Ok(permit) => Ok(Stay { _working: self.work(), _permit: permit }),
            Err(_) => Err(refuse::busy("another follower, attached command or download")),
        }
    }

    /// Room for `bytes` of a request body.
    pub(super) fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let refuse = || refuse::busy("another request body");
        let bytes = u32::try_from(bytes).map_err(|_| refuse())?;
        self.house.bodies.clone().try_acquire_many_owned(bytes).map_err(|_| refuse())
    }
}

/// A request is being answered.
#[derive(Debug)]
pub(super) struct Working(Arc<AtomicUsize>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A long request; lives in its handler and then in its body.
#[derive(Debug)]
pub(super) struct Stay {
    _working: Working,
    _permit: OwnedSemaphorePermit,
}
