//! Each role, confined for real in a process of its own that has one thread: what the canary says then.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{
    env,
    fs::File,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    process::{Command, ExitCode},
};

use salaam_confine::{Keep, Limits, Role, canary, confine};

const LIMITS: Limits = Limits { memory_bytes: 64 << 20, open_files: 16, cpu_seconds: Some(60) };

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("as-worker") => be(Role::Worker),
        Some("as-reader") => be(Role::Reader),
        _ => {
            every_attempt_of_a_confined_role_is_denied("as-worker");
            every_attempt_of_a_confined_role_is_denied("as-reader");
            println!("test result: ok. 2 passed; 0 failed; one a role, each in a process of its own");
            ExitCode::SUCCESS
        }
    }
}

fn every_attempt_of_a_confined_role_is_denied(role: &str) {
    let output = Command::new(env::current_exe().unwrap()).arg(role).env_clear().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{role}: {:?} {text} {:?}", output.status, output.stderr);
    let attempts: Vec<_> = text.lines().collect();
    assert_eq!(attempts.len(), salaam_core::canary::ALL.len(), "{text}");
    assert!(attempts.iter().all(|line| line.ends_with(" true")), "{role}: {text}");
    println!("{role}: {} attempts denied", attempts.len());
}

fn be(role: Role) -> ExitCode {
    let root = File::open("/usr").unwrap();
    let keep = Keep {
        descriptors: &[root.as_raw_fd()],
        root: match role {
            Role::Worker => None,
            Role::Reader => Some(root.as_fd()),
        },
        limits: LIMITS,
    };
    match confine(role, &keep) {
        Ok(held) if held.domain.abi > 0 && held.filter > 0 => {
            for attempt in canary::sing(Path::new("/etc")) {
                println!("{} {} {}", attempt.attack, attempt.errno, attempt.denied());
            }
            ExitCode::SUCCESS
        }
        other => {
            println!("{other:?}");
            ExitCode::FAILURE
        }
    }
}
