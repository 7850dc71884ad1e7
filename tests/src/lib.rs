//! Drives the built release binaries as real accounts on a real host.
//!
//! Promise: what is made here (accounts, groups, directories, mounts, one sudoers drop-in) carries the tag of
//! this run and goes away with it, however the run ends; nothing else on the host is touched, and only
//! processes of accounts with the tag are ever killed.

pub mod account;
pub mod bare;
pub mod breakage;
pub mod fuzz;
pub mod host;
pub mod http;
pub mod pair;
pub mod process;
pub mod ran;
pub mod random;
pub mod session;
pub mod sweep;
pub mod watchdog;
pub mod within;

pub use account::Account;
pub use breakage::Mended;
pub use host::Host;
pub use http::Reply;
pub use pair::{Pair, Pending};
pub use ran::Ran;
pub use random::Seeded;
pub use within::Within;

use std::{
    thread,
    time::{Duration, Instant},
};

/// Tries every 10 ms until `holds` gives something, at most for `limit`; `what` names it in the failure.
pub fn eventually<T>(what: &str, limit: Duration, mut holds: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
