//! What a confined process of the service user must have tried in vain before it is told anything, and the judgement
//! of what it says came of it.

use std::fmt;

/// Something that a confined process tried at start, to show that it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// What was tried: `socket-unix`, `exec`, `open-state` …
    pub attack: String,
    /// The errno that stopped it; 0 = nothing did.
    pub errno: i32,
}

/// Attempts of one process; more are none of a canary.
pub const MAX_CANARY: usize = 64;

/// What every confined process tries.
pub const ALL: [&str; 11] = [
    "socket-unix",
    "socket-inet",
    "connect",
    "open-file",
    "open-state",
    "exec",
    "thread",
    "kill",
    "ptrace",
    "read-memory",
    "pidfd",
];
/// What a process tries in addition that may open files beneath one root.
pub const ROOTED: [&str; 3] = ["openat2-above", "openat2-state", "openat2-processes"];

/// An attempt that proves nothing, or proves that something is not denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDenied {
    /// What was to be tried.
    pub attack: &'static str,
    /// What came of it.
    pub came_of_it: CameOfIt,
}

/// What came of an attempt that was not denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CameOfIt {
    /// Nothing stopped it.
    WentThrough,
    /// It failed with this errno, as it may where no layer is.
    OtherErrno(i32),
    /// The process does not speak of it.
    NotTried,
}

impl fmt::Display for CameOfIt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WentThrough => f.write_str("went through"),
            Self::OtherErrno(errno) => write!(f, "ended in errno {errno}, which proves nothing"),
            Self::NotTried => f.write_str("was not tried"),
        }
    }
}

impl Canary {
    /// Whether a layer stopped it: `EPERM` or `EACCES`, the two errnos that a filter and landlock answer with.
    #[must_use]
    pub const fn denied(&self) -> bool {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        matches!(self.errno, EPERM | EACCES)
    }
}

/// Judges what a process says it tried. One that leaves something out is not taken for one to which it is denied.
///
/// # Errors
/// The first of `must` that was not denied.
pub fn judge(must: impl IntoIterator<Item = &'static str>, tried: &[Canary]) -> Result<(), NotDenied> {
    for attack in must {
        let came_of_it = match tried.iter().find(|tried| tried.attack == attack) {
            Some(tried) if tried.denied() => continue,
            Some(Canary { errno: 0, .. }) => CameOfIt::WentThrough,
            Some(tried) => CameOfIt::OtherErrno(tried.errno),
            None => CameOfIt::NotTried,
        };
        return Err(NotDenied { attack, came_of_it });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_confined_only_if_everything_was_tried_and_denied() {
        let all = || ALL.into_iter().chain(ROOTED);
        let said = |change: &dyn Fn(&str) -> Option<i32>| -> Vec<Canary> {
            all().filter_map(|attack| Some(Canary { attack: attack.to_owned(), errno: change(attack)? })).collect()
        };
        for errno in [1, 13] {
            assert_eq!(judge(all(), &said(&|_| Some(errno))), Ok(()));
        }
        for attack in all() {
            for (errno, came_of_it) in [
                (Some(0), CameOfIt::WentThrough),
                (Some(2), CameOfIt::OtherErrno(2)),
                (Some(-1), CameOfIt::OtherErrno(-1)),
                (None, CameOfIt::NotTried),
            ] {
                let tried = said(&|tried| if tried == attack { errno } else { Some(13) });
                assert_eq!(judge(all(), &tried), Err(NotDenied { attack, came_of_it }));
            }
        }
    }
}
