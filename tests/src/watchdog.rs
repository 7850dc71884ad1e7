//! A time limit for one test, and the turn that tests of one binary take.
//!
//! Tests share accounts, so one runs at a time. A test that hangs is named before the binary is ended: a
//! silent time-out of the whole run would hide which promise broke.

use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

static TURN: Mutex<()> = Mutex::new(());

/// Exit code of a test binary in which a test hung.
const HUNG: i32 = 124;

/// Held by a test while it runs.
#[derive(Debug)]
pub struct Turn {
    name: &'static str,
    start: Instant,
    done: Option<mpsc::Sender<()>>,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    /// Waits for the turn, then gives the test `seconds`.
    pub fn take(name: &'static str, seconds: u64) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name.trim_end_matches("::here");
        let (done, over) = mpsc::channel::<()>();
        thread::spawn(move || {
            if over.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not eprintln!: what a test prints is kept back until it ends, and this one will not.
                drop(writeln!(std::io::stderr(), "\nHUNG: {name} did not end within {seconds} s"));
                std::process::exit(HUNG);
            }
        });
        Self { name, start: Instant::now(), done: Some(done), _turn: turn }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.done.take());
        eprintln!("[{:6.2} s] {}", self.start.elapsed().as_secs_f64(), self.name);
    }
}

/// Takes the turn of the test that it stands in, with a limit in seconds.
#[macro_export]
macro_rules! limit {
    ($seconds:expr) => {{
        fn here() {}
        fn name_of<T>(_: T) -> &'static str {
            std::any::type_name::<T>()
        }
        // Making the host may wait for cargo; that is nobody's test.
        $crate::Host::shared();
        $crate::watchdog::Turn::take(name_of(here), $seconds)
    }};
}
