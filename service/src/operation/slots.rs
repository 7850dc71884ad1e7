//! Places for what may run at once, given in turn between sessions; `core::turns` decides who is next.
//!
//! A workspace's operators are a session too. What waits here is granted, not dispatched: nothing of it is at the
//! executor yet, which keeps the limit once more, by workspace, over what it really runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salaam_core::{
    id::SessionId,
    turns::{Ticket, Turns},
};
use tokio::sync::oneshot;

/// The places.
#[derive(Debug)]
pub struct Slots {
    most: u64,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    turns: Turns<SessionId>,
    /// Where each one who waits is called.
    waiting: HashMap<Ticket, (SessionId, oneshot::Sender<Slot>)>,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub struct Slot(Option<(Arc<Slots>, SessionId)>);

/// One who waits; dropped, it has asked for nothing.
struct Waiting<'a> {
    slots: &'a Arc<Slots>,
    ticket: Ticket,
    turn: oneshot::Receiver<Slot>,
}

impl Slots {
    /// With `most` places.
    pub fn new(most: u64) -> Self {
        Self { most, places: Mutex::default() }
    }

    /// A place at once: one is free, and nobody waits who goes first.
    pub fn try_take(self: &Arc<Self>, session: SessionId) -> Option<Slot> {
        // Dropped here unless it was called in the same moment, and then its place is in it.
        self.ask(session).turn.try_recv().ok()
    }

    /// Waits for its turn. May be dropped at any time, also when the turn has just come.
    pub async fn take(self: &Arc<Self>, session: SessionId) -> Option<Slot> {
        // The sender is kept until it has called, so there is always a place in the end.
        (&mut self.ask(session).turn).await.ok()
    }

    /// A place beside the others, for what is under way already.
    pub fn enter(self: &Arc<Self>, session: SessionId) -> Slot {
        self.lock().turns.enter(session);
        Slot(Some((Arc::clone(self), session)))
    }

    fn ask(self: &Arc<Self>, session: SessionId) -> Waiting<'_> {
        let (call, turn) = oneshot::channel();
        let mut places = self.lock();
        let ticket = places.turns.ask(session, self.most);
        places.waiting.insert(ticket, (session, call));
        self.call(&mut places);
        Waiting { slots: self, ticket, turn }
    }

    /// Calls everybody whose turn it is.
    fn call(self: &Arc<Self>, places: &mut Places) {
        while let Some(ticket) = places.turns.call() {
            // Who leaves takes both away under the same lock, so that there is no ticket without its waiter.
            let Some((session, call)) = places.waiting.remove(&ticket) else { continue };
            if let Err(mut refused) = call.send(Slot(Some((Arc::clone(self), session)))) {
                // It is being dropped; given back here, where the lock is held.
                refused.0 = None;
                places.turns.done(session);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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
        if let Some((slots, session)) = self.0.take() {
            let mut places = slots.lock();
            places.turns.done(session);
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

    fn session(number: u8) -> SessionId {
        SessionId::new(1, [number; 10])
    }

    fn poll(taking: Pin<&mut impl Future<Output = Option<Slot>>>) -> Option<Slot> {
        match taking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot.unwrap()),
            Poll::Pending => None,
        }
    }

    fn idle(slots: &Slots) -> bool {
        let places = slots.lock();
        places.turns.is_idle() && places.waiting.is_empty()
    }

    #[test]
    fn a_session_with_fifty_does_not_hold_up_another_with_one() {
        let slots = Arc::new(Slots::new(1));
        let running = slots.try_take(session(1)).unwrap();
        let mut flood: Vec<_> = (0..50).map(|_| Box::pin(slots.take(session(1)))).collect();
        assert!(flood.iter_mut().all(|one| poll(one.as_mut()).is_none()));
        let mut single = pin!(slots.take(session(2)));
        assert!(poll(single.as_mut()).is_none());
        drop(running);
        let first = poll(flood[0].as_mut()).unwrap();
        assert!(poll(single.as_mut()).is_none());
        drop(first);
        assert!(poll(flood[1].as_mut()).is_none());
        drop(poll(single.as_mut()).unwrap());
        assert!(poll(flood[1].as_mut()).is_some());
        drop(flood);
        assert!(idle(&slots));
    }

    #[test]
    fn nobody_goes_past_who_waits() {
        let slots = Arc::new(Slots::new(1));
        let running = slots.try_take(session(1)).unwrap();
        let mut waits = pin!(slots.take(session(1)));
        assert!(poll(waits.as_mut()).is_none() && slots.try_take(session(2)).is_none());
        drop(running);
        // It has been called, though it has not looked yet.
        assert!(slots.try_take(session(2)).is_none());
        drop(poll(waits.as_mut()).unwrap());
        drop(slots.try_take(session(2)).unwrap());
        assert!(idle(&slots), "an attempt in vain leaves nothing behind");
    }

    #[test]
    fn who_is_dropped_while_waiting_or_just_called_keeps_no_place() {
        let slots = Arc::new(Slots::new(1));
        let running = slots.try_take(session(1)).unwrap();
        let mut leaves = Box::pin(slots.take(session(1)));
        let mut called = Box::pin(slots.take(session(2)));
        let mut last = pin!(slots.take(session(3)));
        assert!(poll(leaves.as_mut()).is_none() && poll(called.as_mut()).is_none() && poll(last.as_mut()).is_none());
        drop(leaves);
        drop(running);
        drop(called);
        drop(poll(last.as_mut()).expect("the place that was not taken comes to the next"));
        assert!(idle(&slots));
    }

    #[test]
    fn what_is_under_way_already_counts() {
        let slots = Arc::new(Slots::new(1));
        let [one, two] = [slots.enter(session(1)), slots.enter(session(1))];
        let mut waits = pin!(slots.take(session(2)));
        assert!(poll(waits.as_mut()).is_none());
        drop(one);
        assert!(poll(waits.as_mut()).is_none());
        drop(two);
        drop(poll(waits.as_mut()).unwrap());
        assert!(idle(&slots));
    }

    /// Many tasks on several threads, each dropped, cancelled or served at any moment: nobody sleeps on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_call_is_lost_between_threads() {
        let slots = Arc::new(Slots::new(3));
        let tasks: Vec<_> = (0..400_u32)
            .map(|number| {
                let slots = Arc::clone(&slots);
                tokio::spawn(async move {
                    let taking = slots.take(session(u8::try_from(number % 7).unwrap()));
                    if number % 3 == 0 {
                        let brief = std::time::Duration::from_micros(u64::from(number % 50));
                        drop(tokio::time::timeout(brief, taking).await);
                    } else {
                        let slot = taking.await.unwrap();
                        assert!(slots.lock().turns.at_work() <= 3);
                        tokio::task::yield_now().await;
                        drop(slot);
                    }
                })
            })
            .collect();
        let all = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), all).await.expect("everybody has had a turn");
        assert!(idle(&slots));
    }
}
