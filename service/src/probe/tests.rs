//! Each check fails for its reason, and only for that.

use std::path::PathBuf;

use nix::libc;
use salaam_core::{
    bridge::{Action, Attempted},
    check::Status,
    policy::Isolation,
};

use super::{
    judge::{Around, Tried, denied_everything, judge},
    look::{Own, look},
    required_isolation,
    tries::{CONTROL, Owner, Try},
};

const OPEN: Around = Around { proc_hides: false, denied_everything: false };

fn tried(owner: Owner, action: Action, own: Own, theirs: Option<Attempted>) -> Tried {
    Tried { what: Try { check: "state-readable", action, path: PathBuf::from("/s"), owner }, own, theirs }
}

fn answered(errno: i32) -> Option<Attempted> {
    Some(Attempted { id: "x".into(), errno, code: None, said: String::new() })
}

fn status(owner: Owner, theirs: i32, own: Own, around: Around) -> Status {
    judge("state-readable", &[tried(owner, Action::Read, own, answered(theirs))], around, |_| "fix".into()).status
}

#[test]
fn a_denial_counts_only_as_eacces_or_eperm_on_what_the_service_opened_itself() {
    use Owner::{Other, Process, Service};
    for (owner, theirs, own, expected) in [
        (Service, libc::EACCES, Own::Opened, Status::Pass),
        (Service, libc::EPERM, Own::Opened, Status::Pass),
        (Service, 0, Own::Opened, Status::Fail),
        (Service, 0, Own::Absent, Status::Fail),
        (Service, libc::ENOENT, Own::Opened, Status::Unproven),
        (Service, libc::EMFILE, Own::Opened, Status::Unproven),
        (Service, libc::EACCES, Own::Absent, Status::Unproven),
        (Service, libc::ENOENT, Own::Absent, Status::Unproven),
        (Service, libc::EACCES, Own::Denied(libc::EACCES), Status::Unproven),
        (Process, libc::EACCES, Own::Seen, Status::Pass),
        (Process, libc::ENOENT, Own::Seen, Status::Unproven),
        (Other, libc::EACCES, Own::Seen, Status::Pass),
        (Other, libc::ENOENT, Own::Absent, Status::Pass),
        (Other, libc::ENOENT, Own::Seen, Status::Unproven),
        (Other, libc::ECONNREFUSED, Own::Seen, Status::Unproven),
        (Other, libc::ENOENT, Own::Denied(libc::EACCES), Status::Pass),
        (Other, libc::ECONNREFUSED, Own::Denied(libc::EACCES), Status::Unproven),
    ] {
        assert_eq!(status(owner, theirs, own, OPEN), expected, "{owner:?} {theirs} {own:?}");
    }
    let hiding = Around { proc_hides: true, ..OPEN };
    assert_eq!(status(Process, libc::ENOENT, Own::Seen, hiding), Status::Pass);
    assert_eq!(status(Service, libc::ENOENT, Own::Opened, hiding), Status::Unproven);
}

#[test]
fn an_attempt_without_an_answer_proves_nothing_and_one_success_outweighs_all_denials() {
    let good = || tried(Owner::Service, Action::Read, Own::Opened, answered(libc::EACCES));
    let unanswered = tried(Owner::Service, Action::Read, Own::Opened, None);
    let open = tried(Owner::Service, Action::List, Own::Opened, answered(0));
    let of = |tried: &[Tried]| judge("state-readable", tried, OPEN, |what| format!("close {}", what.path.display()));
    assert_eq!(of(&[good(), unanswered.clone()]).status, Status::Unproven);
    let failed = of(&[good(), unanswered, open]);
    assert_eq!((failed.status, failed.fix.as_str()), (Status::Fail, "close /s"));
    assert_eq!(failed.evidence, "the tools user listed /s");
    assert!(of(&[]).evidence.starts_with("absent"));
}

#[test]
fn the_end_of_a_program_is_read_for_what_it_shows() {
    let of = |check: &'static str, action, errno, code, said: &str| {
        let theirs = Some(Attempted { id: "x".into(), errno, code, said: said.into() });
        let what = Try { check, action, path: PathBuf::from("/"), owner: Owner::Program };
        judge(check, &[Tried { what, own: Own::Seen, theirs }], OPEN, |_| "fix".into()).status
    };
    let sudo = "tools-user-can-sudo";
    for (check, action, errno, code, said, expected) in [
        (sudo, Action::SudoRoot, 0, Some(0), "", Status::Fail),
        (sudo, Action::SudoList, 0, Some(0), "User t may run …", Status::Fail),
        (sudo, Action::SudoRoot, 0, Some(1), "sudo: a password is required", Status::Pass),
        (sudo, Action::SudoRoot, 0, Some(1), "sudo: The \"no new privileges\" flag is set", Status::Unproven),
        (sudo, Action::SudoRoot, libc::ETIMEDOUT, None, "", Status::Unproven),
        ("session-bus-socket-reachable", Action::SystemdRun, 0, Some(0), "", Status::Fail),
        ("session-bus-socket-reachable", Action::SystemdRun, 0, Some(1), "Failed to connect to bus", Status::Pass),
        ("can-cron", Action::Crontab, libc::ENOENT, None, "", Status::Pass),
        ("can-cron", Action::Crontab, 0, Some(1), "no crontab for t", Status::Warn),
        ("can-cron", Action::Crontab, 0, Some(1), "You (t) are not allowed to use this program", Status::Pass),
        ("can-cron", Action::Crontab, 0, Some(1), "something else", Status::Unproven),
        ("can-at", Action::At, 0, Some(0), "", Status::Warn),
        ("can-at", Action::At, 0, Some(1), "You do not have permission to use at.", Status::Pass),
        ("can-linger", Action::Linger, 0, Some(0), "", Status::Warn),
        ("can-linger", Action::Linger, 0, Some(1), "Access denied", Status::Pass),
    ] {
        assert_eq!(of(check, action, errno, code, said), expected, "{check} {code:?} {said}");
    }
}

#[test]
fn isolation_is_judged_on_both_axes() {
    let required = Some(Isolation::ToolsUserBubblewrap);
    assert!(required_isolation(required, Isolation::ServiceUserBubblewrap).refuses());
    assert!(required_isolation(required, Isolation::ToolsUserNoOsSandbox).refuses());
    assert!(!required_isolation(required, Isolation::ToolsUserBubblewrap).refuses());
    assert!(!required_isolation(None, Isolation::ServiceUserNoOsSandbox).refuses());
}

#[test]
fn looking_at_the_database_keeps_the_locks_that_this_process_has_on_it() {
    use nix::{fcntl::FcntlArg, libc};
    use std::os::unix::fs::MetadataExt as _;
    let path = std::env::temp_dir().join(format!("salaam-probe-{}", std::process::id()));
    std::fs::write(&path, "x").unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, FcntlArg::F_SETLK(&whole)).unwrap();
    let inode = format!(":{} ", file.metadata().unwrap().ino());
    let locked = || std::fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains(&inode));
    assert!(locked());
    // What was done before, and why it is not done: this drops the lock. It is taken again for the real thing.
    drop(std::fs::File::open(&path).unwrap());
    assert!(!locked());
    nix::fcntl::fcntl(&file, FcntlArg::F_SETLK(&whole)).unwrap();
    let seen = |path: &std::path::Path| {
        look(&Try { check: "state-readable", action: Action::Read, path: path.into(), owner: Owner::Database })
    };
    assert_eq!((seen(&path), seen("/nowhere/at/all".as_ref())), (Own::Opened, Own::Absent));
    assert!(locked());
    std::fs::remove_file(path).unwrap();
}

/// Whoever answers `denied` to everything proves nothing with it.
#[test]
fn a_tools_user_that_is_denied_what_everybody_may_open_is_not_believed() {
    let control = |theirs, own| {
        let one = tried(Owner::Everybody, Action::Read, own, theirs);
        Tried { what: Try { check: CONTROL, ..one.what }, ..one }
    };
    let state = tried(Owner::Service, Action::Read, Own::Opened, answered(libc::EACCES));
    for (theirs, own, believed) in [
        (answered(0), Own::Opened, true),
        (answered(libc::EACCES), Own::Opened, false),
        (answered(libc::ENOENT), Own::Opened, false),
        // A host on which not even the service may says nothing about the tools user.
        (answered(libc::EACCES), Own::Denied(libc::EACCES), true),
    ] {
        let all = [state.clone(), control(theirs, own)];
        let around = Around { denied_everything: denied_everything(&all), ..OPEN };
        let check = judge("state-readable", &all, around, |_| "fix".into());
        assert_eq!(check.status == Status::Pass, believed, "{check:?}");
    }
    // What it can do is no lie.
    let can = tried(Owner::Service, Action::Read, Own::Opened, answered(0));
    let around = Around { denied_everything: true, ..OPEN };
    assert_eq!(judge("state-readable", &[can], around, |_| "fix".into()).status, Status::Fail);
}
