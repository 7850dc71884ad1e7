//! Whether a worker that says it is ready is what it must be.

use nix::errno::Errno;
use salaam_core::worker::Canary;

use super::error::WorkerError;

/// What a worker must have tried. One that leaves something out is not taken for one to which it is denied.
const MUST_BE_DENIED: [&str; 11] = [
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

/// Judges what a worker said about itself. A worker that was taken over before it said it is none of the service's
/// making: the program is root's, and it has read nothing yet.
pub(super) fn judge(ours: &str, theirs: &str, canary: &[Canary]) -> Result<(), WorkerError> {
    if ours != theirs {
        return Err(WorkerError::Build { theirs: theirs.to_owned(), ours: ours.to_owned() });
    }
    for attack in MUST_BE_DENIED {
        let came_of_it = match canary.iter().find(|tried| tried.attack == attack) {
            Some(tried) if denied(tried.errno) => continue,
            Some(Canary { errno: 0, .. }) => "went through".to_owned(),
            Some(tried) => format!("ended in {}, which proves nothing", Errno::from_raw(tried.errno)),
            None => "was not tried".to_owned(),
        };
        return Err(WorkerError::NotConfined { attack, came_of_it });
    }
    Ok(())
}

const fn denied(errno: i32) -> bool {
    errno == Errno::EPERM as i32 || errno == Errno::EACCES as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary(change: impl Fn(&str) -> Option<i32>) -> Vec<Canary> {
        let all = MUST_BE_DENIED.iter();
        all.filter_map(|attack| Some(Canary { attack: (*attack).to_owned(), errno: change(attack)? })).collect()
    }

    #[test]
    fn a_worker_is_confined_only_if_everything_was_tried_and_denied() {
        assert!(judge("a", "a", &canary(|_| Some(libc_eperm()))).is_ok());
        for attack in MUST_BE_DENIED {
            for (errno, word) in [(Some(0), "went through"), (Some(Errno::ESRCH as i32), "ESRCH"), (None, "not tried")]
            {
                let canary = canary(|tried| if tried == attack { errno } else { Some(Errno::EACCES as i32) });
                let error = judge("a", "a", &canary).unwrap_err();
                assert!(error.to_string().contains(word) && error.to_string().contains(attack), "{error}");
                assert_eq!(error.control(), Some("worker-confined"));
            }
        }
    }

    #[test]
    fn another_build_is_refused() {
        let error = judge("0.1.0 (a)", "0.1.0 (b)", &canary(|_| Some(libc_eperm()))).unwrap_err();
        assert!(matches!(error, WorkerError::Build { .. }), "{error}");
    }

    const fn libc_eperm() -> i32 {
        Errno::EPERM as i32
    }
}
