//! Processes as /proc shows them, found by account, and ended by pid.

use std::{fs, path::PathBuf, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// USER_HZ, which is 100 on every architecture that Linux runs on here.
const TICKS_PER_SECOND: u64 = 100;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its real uid.
    pub uid: u32,
    /// Its short name.
    pub name: String,
    /// `R`, `S`, `Z` and so on.
    pub state: char,
    /// Its words, joined by blanks.
    pub words: String,
}

impl Process {
    /// Looks one up; zombies count as gone.
    pub fn of(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let state = field("State:")?.chars().next()?;
        if matches!(state, 'Z' | 'X') {
            return None;
        }
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Self {
            pid,
            parent: field("PPid:")?.parse().ok()?,
            uid: field("Uid:")?.parse().ok()?,
            name: field("Name:")?.to_owned(),
            state,
            words: String::from_utf8_lossy(&words).replace('\0', " "),
        })
    }

    /// Every process of the host.
    pub fn all() -> Vec<Self> {
        let pids = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        pids.filter_map(|entry| Self::of(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    /// Those of one account.
    pub fn of_uid(uid: u32) -> Vec<Self> {
        Self::all().into_iter().filter(|process| process.uid == uid).collect()
    }

    /// The value of a variable of its environment, as it was started.
    pub fn variable(&self, name: &str) -> Option<String> {
        let environ = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let wanted = format!("{name}=");
        environ
            .split(|b| *b == 0)
            .find_map(|entry| Some(String::from_utf8_lossy(entry.strip_prefix(wanted.as_bytes())?).into_owned()))
    }

    /// The program that it runs.
    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// The namespace of `kind` (`pid`, `user`, `net` …) that it is in.
    pub fn namespace(&self, kind: &str) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/ns/{kind}", self.pid)).ok()
    }

    /// Private, resident and proportional memory in KiB: `Rss`, `Pss`.
    pub fn memory(&self) -> Option<(u64, u64)> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).ok()?;
        let field = |name: &str| {
            rollup.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        Some((field("Rss:")?, field("Pss:")?))
    }

    /// The processor time that all its threads have used.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("it is there");
        // The name, in parentheses, may hold anything; after it utime and stime are the 12th and 13th.
        let after = stat.rsplit_once(')').expect("it has a name").1;
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    /// SIGKILL. The caller found it under an account of this run, or as the sudo of one.
    pub fn kill(&self) {
        // It may have gone in the meantime, which is as good.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }
}

/// Whether a process of that number is there and no zombie.
pub fn is_alive(pid: i32) -> bool {
    Process::of(pid).is_some()
}
