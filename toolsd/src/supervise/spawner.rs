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

use tokio::sync::oneshot;

use super::Child;

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

type Request = (Order, oneshot::Sender<io::Result<Child>>);

/// A handle to the thread; the thread ends with the last handle, at the end of the process.
#[derive(Debug, Clone)]
pub struct Spawner {
    requests: mpsc::Sender<Request>,
}

impl Spawner {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (requests, orders) = mpsc::channel::<Request>();
        thread::Builder::new().name("spawner".into()).spawn(move || {
            for (order, answer) in orders {
                // Whoever asked and went away meanwhile drops the child, which ends it.
                drop(answer.send(spawn(&order)));
            }
        })?;
        Ok(Self { requests })
    }

    /// Starts a program; returns when it has been exec'd or could not be.
    pub async fn spawn(&self, order: Order) -> io::Result<Child> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the spawner thread has ended");
        self.requests.send((order, answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn spawn(order: &Order) -> io::Result<Child> {
    let none: &[CString] = &[];
    let descriptors: Vec<_> = order.descriptors.iter().map(|(fd, number)| (fd.as_fd(), *number)).collect();
    let pid = salaam_sys::spawn::spawn(&order.program, &order.argv, none, &descriptors, true)?;
    Child::hold(pid)
}
