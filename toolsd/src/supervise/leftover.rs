//! What an executor before this one can have left, and no signal of the kernel's ends: a bwrap whose own parent was
//! killed in the moment between its start and the word to go on. It waits for that word for ever, before any of the
//! command is there.
//!
//! It is known by its words, which are ours, and by its session: a bwrap that goes on to build a sandbox has its leader
//! beside it, or leads a session of its own.

use std::{fs, path::Path};

use nix::{sys::signal::Signal, unistd::getuid};
use salaam_sys::pidfd;

use super::orphans::{field, processes};

/// Ends them; returns how many there were. `launch` are the paths by which bwrap starts salaam-launch.
pub fn end_leftovers(launch: &[&Path]) -> usize {
    processes().filter(|process| is_left(*process, launch) && end(*process, launch)).count()
}

fn end(process: i32, launch: &[&Path]) -> bool {
    // Held first and looked at again: a number is used again.
    let Ok(held) = pidfd::open(process) else { return false };
    is_left(process, launch) && pidfd::signal(&held, Signal::SIGKILL).is_ok()
}

fn is_left(process: i32, launch: &[&Path]) -> bool {
    is_ours(process, launch) && has_lost_its_leader(process)
}

fn is_ours(process: i32, launch: &[&Path]) -> bool {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let (Some(&first), Some([dashes, program])) = (words.first(), words.last_chunk::<2>()) else { return false };
    if first != b"bwrap" || *dashes != b"--" {
        return false;
    }
    let starts_launch = launch.iter().any(|path| path.as_os_str().as_encoded_bytes() == *program);
    starts_launch && words.contains(&b"--json-status-fd".as_slice()) && account(process) == Some(getuid().as_raw())
}

fn has_lost_its_leader(process: i32) -> bool {
    let Some(session) = field::<i32>(process, SESSION) else { return false };
    // The number of a session is nobody else's as long as one process is in it.
    session != process && !Path::new("/proc").join(session.to_string()).exists()
}

/// Where proc(5) has the session, counted from behind the name.
const SESSION: usize = 3;

fn account(process: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::AsFd as _,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_bwrap_whose_parent_was_killed_too_early_is_ended_and_no_other_one() {
        let (block, _hold) = std::io::pipe().unwrap();
        let (_says, status) = std::io::pipe().unwrap();
        let launch = Path::new("/.salaam/launch");
        let start = |launch: &str, descriptors: &[_]| {
            // It waits for this descriptor exactly where the parent was killed.
            let words = ["bwrap", "--unshare-user", "--unshare-pid", "--die-with-parent", "--userns-block-fd", "5"];
            let words =
                words.into_iter().chain(["--info-fd", "7", "--json-status-fd", "6", "--bind", "/", "/", "--", launch]);
            let argv: Vec<_> = words.map(|word| std::ffi::CString::new(word).unwrap()).collect();
            let none: &[&std::ffi::CStr] = &[];
            salaam_sys::spawn::spawn(c"/usr/bin/bwrap", &argv, none, descriptors, true).unwrap()
        };
        let outer = start("/.salaam/launch", &[(block.as_fd(), 5), (status.as_fd(), 6), (status.as_fd(), 7)]);
        let until = Instant::now() + Duration::from_secs(10);
        let child = loop {
            let below = |process: &i32| field(*process, 1) == Some(outer.as_raw());
            match processes().find(below).filter(|child| is_ours(*child, &[launch])) {
                Some(child) => break child,
                None => assert!(Instant::now() < until, "bwrap has a child"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(end_leftovers(&[launch]), 0, "as long as its parent is there, it is nobody's leftover");
        nix::sys::signal::kill(outer, Signal::SIGKILL).unwrap();
        nix::sys::wait::waitpid(outer, None).unwrap();
        drop(status);
        std::thread::sleep(Duration::from_millis(300));
        assert!(Path::new(&format!("/proc/{child}/exe")).exists(), "this is what was left");
        assert_eq!(end_leftovers(&[Path::new("/another/launch")]), 0);
        assert_eq!(end_leftovers(&[launch]), 1);
        let until = Instant::now() + Duration::from_secs(10);
        while is_ours(child, &[launch]) {
            assert!(Instant::now() < until, "it is gone");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
