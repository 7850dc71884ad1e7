//! Whether a reader that says it is ready is what it must be.

use nix::errno::Errno;
use salaam_core::worker::Canary;

use super::error::ReaderError;

/// What a reader must have tried. One that leaves something out is not taken for one to which it is denied.
const MUST_BE_DENIED: [&str; 14] = [
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
    "openat2-above",
    "openat2-state",
    "openat2-processes",
];

/// Judges what a reader said about itself, before it was told or read anything.
pub(super) fn judge(ours: &str, theirs: &str, canary: &[Canary]) -> Result<(), ReaderError> {
    if ours != theirs {
        return Err(ReaderError::Build { theirs: theirs.to_owned(), ours: ours.to_owned() });
    }
    for attack in MUST_BE_DENIED {
        let came_of_it = match canary.iter().find(|tried| tried.attack == attack) {
            Some(tried) if [Errno::EPERM as i32, Errno::EACCES as i32].contains(&tried.errno) => continue,
            Some(Canary { errno: 0, .. }) => "went through".to_owned(),
            Some(tried) => format!("ended in {}, which proves nothing", Errno::from_raw(tried.errno)),
            None => "was not tried".to_owned(),
        };
        return Err(ReaderError::NotConfined { attack, came_of_it });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_confined_only_if_everything_was_tried_and_denied() {
        let canary = |change: &dyn Fn(&str) -> Option<i32>| -> Vec<Canary> {
            let all = MUST_BE_DENIED.iter();
            all.filter_map(|attack| Some(Canary { attack: (*attack).to_owned(), errno: change(attack)? })).collect()
        };
        let denied = Errno::EACCES as i32;
        assert!(judge("a", "a", &canary(&|_| Some(denied))).is_ok());
        assert!(matches!(judge("a", "b", &canary(&|_| Some(denied))), Err(ReaderError::Build { .. })));
        for attack in MUST_BE_DENIED {
            for errno in [Some(0), Some(Errno::ENOENT as i32), None] {
                let tried = canary(&|tried| if tried == attack { errno } else { Some(denied) });
                let error = judge("a", "a", &tried).unwrap_err();
                assert!(error.to_string().contains(attack), "{error}");
                assert_eq!(error.control(), Some("reader-confined"));
            }
        }
    }
}
