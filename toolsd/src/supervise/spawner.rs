//! The one thread that starts bwrap.
//!
//! bwrap's --die-with-parent is PR_SET_PDEATHSIG, and that fires when the *thread* that started it ends, not
//! the process (prctl(2)). A thread of the runtime's blocking pool ends after some idle seconds and would take
//! running commands with it. This thread lives as long as the process.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd, RawFd},
    sync::{Arc, mpsc},
    thread,
};

use nix::unistd::Pid;
use tokio::sync::oneshot;

use super::{Child, orphans::Family};

/// A program to start.
#[derive(Debug)]
pub struct Order {
    /// Its absolute path.
    pub program: CString,
    /// Its arguments, the first being its name. Its environment is empty.
    pub argv: Vec<CString>,
    /// Its descriptors, each with its number there.
    pub descriptors: Vec<(Arc<OwnedFd>, RawFd)>,
}

type Request = (Order, bool, oneshot::Sender<io::Result<Child>>);

/// A handle to the thread; the thread ends with the last handle, at the end of the process.
#[derive(Debug, Clone)]
pub struct Spawner {
    requests: mpsc::Sender<Request>,
    family: Family,
}

impl Spawner {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (requests, orders) = mpsc::channel::<Request>();
        let family = Family::of_this_process();
        let members = family.clone();
        thread::Builder::new().name("spawner".into()).spawn(move || {
            for (order, ends_by_itself, answer) in orders {
                // Whoever asked and went away meanwhile drops the child, which ends it.
                let started = members.born(|| spawn(&order));
                drop(answer.send(started.and_then(|own| Child::hold(own, ends_by_itself))));
            }
        })?;
        Ok(Self { requests, family })
    }

    /// Starts a program; returns when it has been exec'd or could not be.
    pub async fn spawn(&self, order: Order) -> io::Result<Child> {
        self.ask(order, false).await
    }

    /// The same for one that keeps others together: dropped, it is not killed, since they would be left.
    pub(super) async fn spawn_keeper(&self, order: Order) -> io::Result<Child> {
        self.ask(order, true).await
    }

    /// Every process that this one started and has not reaped.
    pub(super) fn family(&self) -> Family {
        self.family.clone()
    }

    async fn ask(&self, order: Order, ends_by_itself: bool) -> io::Result<Child> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the spawner thread has ended");
        self.requests.send((order, ends_by_itself, answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn spawn(order: &Order) -> io::Result<Pid> {
    let none: &[CString] = &[];
    let descriptors: Vec<_> = order.descriptors.iter().map(|(fd, number)| (fd.as_fd(), *number)).collect();
    salaam_sys::spawn::spawn(&order.program, &order.argv, none, &descriptors, true)
}
