//! How many commands run at once: `limits.concurrent_commands` of the plan that asks. More wait, and workspaces take
//! turns, as `core::turns` decides.
//!
//! The service dispatches no more than that, in turn between sessions; this is the limit over what really runs. They
//! differ where the service gave up on a command that is not ended here yet: its place is taken until it is.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::{
    id::WorkspaceId,
    turns::{Ticket, Turns},
};
use tokio::sync::oneshot;

/// The places.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    turns: Turns<WorkspaceId>,
    /// Where each one who waits is called.
    waiting: HashMap<Ticket, (WorkspaceId, oneshot::Sender<Slot>)>,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(super) struct Slot(Option<(Arc<Slots>, WorkspaceId)>);

/// One who waits; dropped, it has asked for nothing.
struct Waiting<'a> {
    slots: &'a Arc<Slots>,
    ticket: Ticket,
    turn: oneshot::Receiver<Slot>,
}

impl Slots {
    /// Waits for its turn among fewer than `most`, and takes a place. May be dropped at any time.
    pub(super) async fn take(self: &Arc<Self>, workspace: WorkspaceId, most: u64) -> Slot {
        let mut waiting = {
            let (call, turn) = oneshot::channel();
            let mut places = self.lock();
            let ticket = places.turns.ask(workspace, most);
            places.waiting.insert(ticket, (workspace, call));
            self.call(&mut places);
            Waiting { slots: self, ticket, turn }
        };
        // The sender is kept until it has called; that it is lost cannot happen, and would give no place.
        (&mut waiting.turn).await.unwrap_or(Slot(None))
    }

    /// Calls everybody whose turn it is.
    fn call(self: &Arc<Self>, places: &mut Places) {
        while let Some(ticket) = places.turns.call() {
            // Who leaves takes both away under the same lock, so that there is no ticket without its waiter.
            let Some((workspace, call)) = places.waiting.remove(&ticket) else { continue };
            if let Err(mut refused) = call.send(Slot(Some((Arc::clone(self), workspace)))) {
                // It is being dropped; given back here, where the lock is held.
                refused.0 = None;
                places.turns.done(workspace);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut places = self.slots.lock();
        if places.waiting.remove(&self.ticket).is_some() {
            places.turns.leave(self.ticket);
            // It may have held others back.
            self.slots.call(&mut places);
        }
        // A place that came and was not taken goes back with the channel, after this lock.
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((slots, workspace)) = self.0.take() {
            let mut places = slots.lock();
            places.turns.done(workspace);
            slots.call(&mut places);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn workspace(number: u8) -> WorkspaceId {
        WorkspaceId::new(1, [number; 10])
    }

    fn poll(taking: Pin<&mut impl Future<Output = Slot>>) -> Option<Slot> {
        match taking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }

    #[test]
    fn no_more_than_the_limit_are_taken_and_each_comes_back() {
        let slots = Arc::new(Slots::default());
        let first = poll(pin!(slots.take(workspace(1), 2))).unwrap();
        let second = poll(pin!(slots.take(workspace(1), 2))).unwrap();
        let mut third = pin!(slots.take(workspace(1), 2));
        let mut modest = pin!(slots.take(workspace(2), 1));
        assert!(poll(third.as_mut()).is_none() && poll(modest.as_mut()).is_none());
        drop(first);
        let third = poll(third.as_mut()).unwrap();
        assert!(poll(modest.as_mut()).is_none());
        drop((second, third));
        drop(poll(modest.as_mut()).unwrap());
        let places = slots.lock();
        assert!(places.turns.is_idle() && places.waiting.is_empty());
    }

    #[test]
    fn workspaces_take_turns() {
        let slots = Arc::new(Slots::default());
        let running = poll(pin!(slots.take(workspace(1), 1))).unwrap();
        let mut flood: Vec<_> = (0..10).map(|_| Box::pin(slots.take(workspace(1), 1))).collect();
        assert!(flood.iter_mut().all(|one| poll(one.as_mut()).is_none()));
        let mut other = pin!(slots.take(workspace(2), 1));
        assert!(poll(other.as_mut()).is_none());
        drop(running);
        let first = poll(flood[0].as_mut()).unwrap();
        assert!(poll(other.as_mut()).is_none());
        drop(first);
        assert!(poll(flood[1].as_mut()).is_none(), "one of the other workspace comes before the second of this");
        drop(poll(other.as_mut()).unwrap());
        assert!(poll(flood[1].as_mut()).is_some());
    }

    #[test]
    fn who_goes_away_keeps_no_place() {
        let slots = Arc::new(Slots::default());
        let running = poll(pin!(slots.take(workspace(1), 1))).unwrap();
        let mut waits = Box::pin(slots.take(workspace(1), 1));
        let mut called = Box::pin(slots.take(workspace(1), 1));
        assert!(poll(waits.as_mut()).is_none() && poll(called.as_mut()).is_none());
        drop(waits);
        drop(running);
        // It was called and never came.
        drop(called);
        let places = slots.lock();
        assert!(places.turns.is_idle() && places.waiting.is_empty());
    }
}
