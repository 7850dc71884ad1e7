//! Which accounts have processes, by the kernel's list. A removed account's processes keep its uid, and whoever
//! gets that uid next would share it with them.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _};

use super::SetupError;
use crate::host::account_of;

/// The processes of one account, by pid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    /// Those that live.
    pub living: Vec<String>,
    /// Those that have ended and that nobody has reaped: a container's first process often reaps none. They hold no
    /// right, and userdel(8) counts them all the same.
    pub ended: Vec<String>,
}

/// All processes by effective uid.
pub(crate) fn by_uid() -> Result<BTreeMap<u32, Running>, SetupError> {
    let entries = std::fs::read_dir("/proc").map_err(SetupError::io("cannot list", "/proc"))?;
    let mut running: BTreeMap<u32, Running> = BTreeMap::new();
    for entry in entries.filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().into_string() else { continue };
        let numeric = pid.bytes().all(|b| b.is_ascii_digit());
        // One that ends while it is looked at is gone, which is what matters.
        let (Ok(meta), Ok(status)) = (entry.metadata(), std::fs::read_to_string(entry.path().join("status"))) else {
            continue;
        };
        if numeric {
            // /proc belongs to root for a process that hides itself; its own line tells.
            let of = running.entry(uid(&status).unwrap_or(meta.uid())).or_default();
            if has_ended(&status) { of.ended.push(pid) } else { of.living.push(pid) }
        }
    }
    Ok(running)
}

/// The lowest uid of system accounts that runs processes and has no account: a new one must be below.
pub(crate) fn orphaned() -> Result<Option<u32>, SetupError> {
    const SYSTEM: std::ops::Range<u32> = 102..1000;
    Ok(by_uid()?.into_keys().find(|uid| SYSTEM.contains(uid) && account_of(*uid).is_none()))
}

fn has_ended(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| matches!(state.trim().bytes().next(), Some(b'Z' | b'X')))
}

fn uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_under_its_uid() {
        let own = by_uid().unwrap().remove(&nix::unistd::geteuid().as_raw()).unwrap();
        assert!(own.living.contains(&std::process::id().to_string()));
    }

    #[test]
    fn the_effective_uid_and_the_state_are_read() {
        assert!(has_ended("State:\tZ (zombie)\n") && !has_ended("State:\tS (sleeping)\n"));
        assert_eq!(uid("Name:\tx\nUid:\t1\t2\t3\t4\n"), Some(2));
        assert_eq!(uid("Name:\tx\n"), None);
    }
}
