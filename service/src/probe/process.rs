//! What the kernel says about this process: its ids, its groups, its capabilities, and whether it may still gain
//! rights.

use std::io;

/// The rights of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Effective uid.
    pub uid: u32,
    /// Effective gid and supplementary groups, sorted.
    pub groups: Vec<u32>,
    /// `NoNewPrivs` of /proc/self/status; none where the kernel does not say (before 4.10).
    pub no_new_privs: Option<bool>,
    /// The sets of capabilities that are not empty, as /proc/self/status writes them: `CapEff: 0000000000000400`.
    pub capabilities: Vec<String>,
}

impl Process {
    /// This one, now.
    pub fn own() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let mut groups: Vec<u32> = nix::unistd::getgroups()?.into_iter().map(nix::unistd::Gid::as_raw).collect();
        groups.push(nix::unistd::getegid().as_raw());
        groups.sort_unstable();
        groups.dedup();
        Ok(Self {
            uid: nix::unistd::geteuid().as_raw(),
            groups,
            no_new_privs: no_new_privs(&status),
            capabilities: capabilities(&status),
        })
    }
}

fn no_new_privs(status: &str) -> Option<bool> {
    let value = status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:"))?;
    match value.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Not the bounding set: it gives nothing, and sudo needs it.
fn capabilities(status: &str) -> Vec<String> {
    let sets = status.lines().filter_map(|line| line.split_once(':'));
    sets.filter(|(name, _)| matches!(*name, "CapInh" | "CapPrm" | "CapEff" | "CapAmb"))
        .filter(|(_, value)| value.trim().bytes().any(|b| b != b'0'))
        .map(|(name, value)| format!("{name}: {}", value.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_read_and_never_guessed() {
        assert_eq!(no_new_privs("Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t0\n"), Some(true));
        assert_eq!(no_new_privs("NoNewPrivs:\t0\n"), Some(false));
        assert_eq!(no_new_privs("Name:\tx\n"), None);
        assert_eq!(no_new_privs("NoNewPrivs:\tmaybe\n"), None);
    }

    #[test]
    fn a_set_that_is_not_empty_is_named_and_the_bounding_set_is_none_of_them() {
        let status = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000400\nCapBnd:\t000001ffffffffff\nCapAmb:\t0\n";
        assert_eq!(capabilities(status), ["CapPrm: 0000000000000400"]);
    }
}
