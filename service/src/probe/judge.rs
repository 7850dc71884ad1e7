//! From attempts to checks.
//!
//! A denial is proof only when it is EACCES or EPERM, and on an object that the service itself has just opened
//! (or, where opening it is not the service's, has just seen): any other errno says nothing about rights.

use nix::libc;
use salaam_core::{
    bridge::{Action, Attempted},
    check::{Check, Severity, Status},
    show,
};

use super::{
    fix::{errno, shown},
    look::Own,
    tries::{CONTROL, Owner, Try},
};

/// One attempt with both outcomes.
#[derive(Debug, Clone)]
pub(super) struct Tried {
    pub(super) what: Try,
    pub(super) own: Own,
    pub(super) theirs: Option<Attempted>,
}

/// What one attempt shows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shows {
    /// The tools user can: what it did.
    Can(String),
    /// It is refused.
    Denied(String),
    /// There is nothing to refuse.
    Absent(String),
    /// Nothing.
    Unproven(String),
}

/// What the host adds to the judgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    /// /proc hides the processes of others.
    pub(super) proc_hides: bool,
    /// The tools user says that it may not even do what everybody may: a denial of its shows nothing.
    pub(super) denied_everything: bool,
}

/// Whether it says so.
pub(super) fn denied_everything(tried: &[Tried]) -> bool {
    let mut controls = tried.iter().filter(|one| one.what.check == CONTROL);
    // Where the service itself may not either, or nobody answered, nothing is shown that way.
    controls.any(|one| one.own == Own::Opened && one.theirs.as_ref().is_some_and(|theirs| theirs.errno != 0))
}

/// The check `id` from its attempts; `fix` is asked with the first attempt that succeeded.
pub(super) fn judge(id: &str, tried: &[Tried], around: Around, fix: impl Fn(&Try) -> String) -> Check {
    let (mut denied, mut absent, mut unproven) = (Vec::new(), Vec::new(), Vec::new());
    let mut can: Option<(Vec<String>, &Try)> = None;
    for one in tried.iter().filter(|one| one.what.check == id) {
        match shows(one, around) {
            Shows::Can(did) => can.get_or_insert_with(|| (Vec::new(), &one.what)).0.push(did),
            Shows::Denied(seen) => denied.push(seen),
            Shows::Absent(seen) => absent.push(seen),
            Shows::Unproven(seen) => unproven.push(seen),
        }
    }
    if let Some((did, first)) = can {
        let status = match Severity::of(id) {
            Severity::Required => Status::Fail,
            Severity::Degrading => Status::Warn,
        };
        return Check { id: id.into(), status, evidence: did.join("; "), fix: fix(first) };
    }
    if !unproven.is_empty() {
        let fix = "look at what is named, as the service user and as the tools user, and start again";
        return Check::unproven(id, unproven.join("; "), fix);
    }
    let mut evidence = denied;
    if !absent.is_empty() {
        evidence.push(format!("absent: {}", absent.join(", ")));
    }
    if evidence.is_empty() {
        evidence.push("absent: there is nothing of it on this host".into());
    }
    Check::pass(id, evidence.join("; "))
}

fn shows(one: &Tried, around: Around) -> Shows {
    let Some(theirs) = &one.theirs else {
        return Shows::Unproven(format!("{}: the tools user did not try it", shown(&one.what.path)));
    };
    if one.what.owner == Owner::Program {
        return program(one.what.action, theirs);
    }
    let path = shown(&one.what.path);
    let did = match one.what.action {
        Action::Connect => "connected to",
        Action::List => "listed",
        Action::Read
        | Action::SudoRoot
        | Action::SudoList
        | Action::SystemdRun
        | Action::Crontab
        | Action::At
        | Action::Linger => "opened",
    };
    if around.denied_everything && theirs.errno != 0 {
        let seen = errno(theirs.errno);
        return Shows::Unproven(format!("{path}: {seen}, but the tools user says so of what everybody may open, too"));
    }
    let hidden = around.proc_hides && one.what.owner == Owner::Process;
    match (theirs.errno, one.own) {
        (0, _) => Shows::Can(format!("the tools user {did} {path}")),
        (denial @ (libc::EACCES | libc::EPERM), Own::Opened | Own::Seen) => {
            Shows::Denied(format!("{} on {path}", errno(denial)))
        }
        (libc::ENOENT, Own::Opened | Own::Seen) if hidden => Shows::Denied(format!("{path} is hidden (hidepid)")),
        (libc::ENOENT | libc::ENOTDIR, Own::Absent) if one.what.owner == Owner::Other => Shows::Absent(path),
        // In a directory that the service may not enter, such as the tools user's own: that user's word that
        // there is nothing, or that it may not look either.
        (libc::ENOENT | libc::ENOTDIR | libc::EACCES, Own::Denied(libc::EACCES)) if one.what.owner == Owner::Other => {
            Shows::Absent(path)
        }
        (theirs, Own::Opened | Own::Seen) => {
            Shows::Unproven(format!("{path}: the tools user got {}, which proves nothing", errno(theirs)))
        }
        (_, Own::Absent) => Shows::Unproven(format!("{path}: the service itself did not find it")),
        (_, Own::Denied(ours)) => Shows::Unproven(format!("{path}: the service itself got {}", errno(ours))),
    }
}

/// What a program's end shows. Its words only ever make a refusal exact: what is not understood is no proof where
/// the code alone does not say it.
fn program(action: Action, tried: &Attempted) -> Shows {
    let name = match action {
        Action::SudoRoot => "sudo -n -u root",
        Action::SudoList => "sudo -n -l",
        Action::SystemdRun => "systemd-run --user",
        Action::Crontab => "crontab -l",
        Action::At => "atq",
        Action::Linger => "loginctl enable-linger",
        Action::Read | Action::List | Action::Connect => "no program",
    };
    let line = tried.said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let said = show::line(line.trim().as_bytes());
    let code = match (tried.errno, tried.code) {
        (libc::ENOENT, _) => return Shows::Absent(name.into()),
        (0, Some(code)) => code,
        (number, _) => return Shows::Unproven(format!("{name}: {}", errno(number))),
    };
    let worked = || Shows::Can(format!("the tools user's `{name}` worked"));
    let refused = || Shows::Denied(format!("{name}: exit code {code}, {said}"));
    match (action, code) {
        (_, 0) => worked(),
        // An empty table is one that may be filled.
        (Action::Crontab, 1) if tried.said.contains("no crontab for") => worked(),
        (Action::SudoRoot | Action::SudoList, _) if tried.said.contains("no new privileges") => {
            Shows::Unproven(format!("{name}: {said}"))
        }
        (Action::SudoRoot | Action::SudoList | Action::SystemdRun | Action::Linger, _) => refused(),
        (Action::Crontab | Action::At, _) if ["not allowed", "permission"].iter().any(|no| said.contains(no)) => {
            refused()
        }
        (Action::Crontab | Action::At | Action::Read | Action::List | Action::Connect, _) => {
            Shows::Unproven(format!("{name}: exit code {code}, {said}"))
        }
    }
}
