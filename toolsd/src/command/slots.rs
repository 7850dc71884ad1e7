//! How many commands run at once: `limits.concurrent_commands` of the plan that asks. More wait, and workspaces take
//! turns: one that asks for a hundred does not hold up another that asks for one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::id::WorkspaceId;
use tokio::sync::oneshot;

/// The places.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    used: u64,
    /// Who waits, by workspace; the first workspace is next.
    waiting: VecDeque<(WorkspaceId, VecDeque<Waiter>)>,
}

#[derive(Debug)]
struct Waiter {
    most: u64,
    called: oneshot::Sender<Slot>,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(super) struct Slot(Option<Arc<Slots>>);

impl Slots {
    /// Waits for its turn among fewer than `most`, and takes a place. Dropped while it waits, it has asked for nothing.
    pub(super) async fn take(self: &Arc<Self>, workspace: WorkspaceId, most: u64) -> Slot {
        let (called, turn) = oneshot::channel();
        {
            let mut places = self.lock();
            let waiter = Waiter { most, called };
            match places.waiting.iter_mut().find(|(other, _)| *other == workspace) {
                Some((_, queue)) => queue.push_back(waiter),
                None => places.waiting.push_back((workspace, VecDeque::from([waiter]))),
            }
            self.call(&mut places);
        }
        // The sender stays in the queue until it has called; that it is lost cannot happen, and would give no place.
        turn.await.unwrap_or(Slot(None))
    }

    /// Gives places to who is next, as long as there are any.
    fn call(self: &Arc<Self>, places: &mut Places) {
        let mut skipped = 0;
        while skipped < places.waiting.len() {
            let Some((workspace, mut queue)) = places.waiting.pop_front() else { return };
            let used = places.used;
            match queue.pop_front_if(|next| next.called.is_closed() || used < next.most) {
                Some(next) => {
                    skipped = 0;
                    if let Err(mut refused) = next.called.send(Slot(Some(Arc::clone(self)))) {
                        // It went away meanwhile; given back here, where the lock is held.
                        refused.0 = None;
                    } else {
                        places.used += 1;
                    }
                }
                // Its own limit is lower than what runs.
                None => skipped += 1,
            }
            if !queue.is_empty() {
                places.waiting.push_back((workspace, queue));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            let mut places = slots.lock();
            places.used -= 1;
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
        assert_eq!((places.used, places.waiting.len()), (0, 0));
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
        assert_eq!(slots.lock().used, 0);
    }
}
