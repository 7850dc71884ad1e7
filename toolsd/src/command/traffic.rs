//! Who runs in a workspace at the same time, and what they could do to each other's bound content.
//!
//! Bound content is a mount over a path. A rename or unlink of that path in *another* mount namespace takes
//! the mount away (mount_namespaces(7), "Restrictions": lazily unmounted), so a command that writes in the same
//! workspace could swap what this one is about to run. Hence: a writer that starts while a command with bound
//! content runs has those paths as mount points of its own, which the kernel lets nobody rename or unlink there
//! (EBUSY); and a command with bound content waits a little for writers that run already, and starts beside
//! those that stay only under guard to its end (salaam-launch, `hold`), which is slow and safe.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salaam_core::id::OperationId;
use tokio::{sync::Notify, time::timeout};

/// How long a command with bound content waits for writers: long enough for a short command, short enough
/// that nobody wonders.
const PATIENCE: Duration = Duration::from_secs(2);

/// The commands in one workspace.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    present: Mutex<Vec<Present>>,
    left: Notify,
}

#[derive(Debug)]
struct Present {
    operation: OperationId,
    writes: bool,
    bound: Vec<PathBuf>,
}

/// A command that may run now. It leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    traffic: Arc<Traffic>,
    operation: OperationId,
    /// A writer was there before: bound content is guarded to the end.
    pub(super) beside_a_writer: bool,
    /// Bound content of others, relative to the root: not to be moved by this command.
    pub(super) immovable: Vec<PathBuf>,
}

impl Traffic {
    /// Lets a command in, after [`PATIENCE`] also beside writers.
    pub(super) async fn enter(self: &Arc<Self>, operation: OperationId, writes: bool, bound: Vec<PathBuf>) -> Pass {
        let waiting = async {
            loop {
                let left = self.left.notified();
                tokio::pin!(left);
                left.as_mut().enable();
                if let Some(pass) = self.try_enter(operation, writes, &bound) {
                    return pass;
                }
                left.await;
            }
        };
        match timeout(PATIENCE, waiting).await {
            Ok(pass) => pass,
            Err(_) => self.admit(&mut self.lock(), operation, writes, &bound),
        }
    }

    /// Lets an edit in, at once: it writes, and has nothing bound.
    pub(super) fn enter_to_edit(self: &Arc<Self>, operation: OperationId) -> Pass {
        self.admit(&mut self.lock(), operation, true, &[])
    }

    fn try_enter(self: &Arc<Self>, operation: OperationId, writes: bool, bound: &[PathBuf]) -> Option<Pass> {
        let mut present = self.lock();
        let waits = !bound.is_empty() && present.iter().any(|other| other.writes);
        (!waits).then(|| self.admit(&mut present, operation, writes, bound))
    }

    fn admit(
        self: &Arc<Self>,
        present: &mut Vec<Present>,
        operation: OperationId,
        writes: bool,
        bound: &[PathBuf],
    ) -> Pass {
        let immovable = present.iter().flat_map(|other| other.bound.iter().cloned()).collect();
        let beside_a_writer = present.iter().any(|other| other.writes);
        present.push(Present { operation, writes, bound: bound.to_vec() });
        Pass { traffic: Arc::clone(self), operation, beside_a_writer, immovable }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.traffic.lock().retain(|present| present.operation != self.operation);
        self.traffic.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(number: u8) -> OperationId {
        OperationId::new(1, [number; 10])
    }

    #[test]
    fn bound_content_waits_for_older_writers_and_younger_writers_cannot_move_it() {
        let traffic = Arc::new(Traffic::default());
        let bound = [PathBuf::from("run.sh")];
        let writer = traffic.try_enter(operation(1), true, &[]).unwrap();
        let reader = traffic.try_enter(operation(2), false, &[]).unwrap();
        assert!(traffic.try_enter(operation(3), true, &bound).is_none());
        drop(writer);
        let runs = traffic.try_enter(operation(3), true, &bound).unwrap();
        assert!(!runs.beside_a_writer);
        assert_eq!(traffic.try_enter(operation(4), true, &[]).unwrap().immovable, bound);
        let edit = traffic.enter_to_edit(operation(5));
        assert_eq!(edit.immovable, bound);
        assert!(traffic.try_enter(operation(6), false, &bound).is_none(), "an edit is a writer");
        assert_eq!(reader.immovable, [] as [PathBuf; 0]);
    }

    #[tokio::test]
    async fn beside_a_writer_that_stays_bound_content_is_guarded() {
        let traffic = Arc::new(Traffic::default());
        let _writer = traffic.try_enter(operation(1), true, &[]).unwrap();
        assert!(traffic.enter(operation(2), true, vec!["run.sh".into()]).await.beside_a_writer);
    }
}
