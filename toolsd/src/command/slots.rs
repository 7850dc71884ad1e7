//! How many commands run at once: `limits.concurrent_commands` of the plan that asks. More wait, in no
//! particular order.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The places.
#[derive(Debug, Default)]
pub(super) struct Slots {
    used: Mutex<u64>,
    freed: Notify,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(super) struct Slot<'a>(&'a Slots);

impl Slots {
    /// Waits until fewer than `most` are taken, and takes one.
    pub(super) async fn take(&self, most: u64) -> Slot<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Listens before it looks, so that a place freed in between is not missed.
            freed.as_mut().enable();
            if let Some(slot) = self.try_take(most) {
                return slot;
            }
            freed.await;
        }
    }

    fn try_take(&self, most: u64) -> Option<Slot<'_>> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        (*used < most).then(|| {
            *used += 1;
            Slot(self)
        })
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        // All who wait look again: each has a limit of its own.
        self.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_are_taken_and_each_comes_back() {
        let slots = Slots::default();
        let first = slots.try_take(2).unwrap();
        let second = slots.try_take(2).unwrap();
        assert!(slots.try_take(2).is_none());
        drop(first);
        assert!(slots.try_take(1).is_none());
        drop(second);
        assert!(slots.try_take(1).is_some());
    }
}
