//! `salaam doctor`: every probe with what was seen and what mends it. A service that runs is asked; where none
//! does, this program carries out the checks of a start itself, as the service account.

use nix::unistd::Uid;
use salaam_core::{
    check::{Check, Severity, Status},
    show,
};
use serde_json::{Value, json};

use super::{
    args::Doctor,
    client::{Client, block_on, rows},
    discover::{self, Place, misconfigured},
    exit,
    terminal::{Out, at, columns},
    trouble::Trouble,
};
use crate::{
    app::examine,
    host::{self, Flags, HostError},
    probe::ATTACKS,
};

/// Prints all of them; the exit code is 0, or 3 where one that is required does not hold. To prove is to ask whether
/// the sandbox holds: where it does not, the exit code is 1, also where the service goes on without it.
pub(super) fn run(given: Doctor, instance: Option<&str>, out: Out) -> Result<u8, Trouble> {
    let place = meant(&given, instance)?;
    let prove = given.prove;
    let asked = block_on(Client::new(place.clone()).post("/v1/probes", &json!({ "prove": prove })));
    let (source, probes) = match asked {
        Ok(answer) => ("service", rows(answer, "probes")?),
        // A socket that cannot have a name has no service behind it either.
        Err(trouble) if matches!(trouble.id(), "not-running" | "socket-path-long") => {
            ("host", here(given, &place, instance)?)
        }
        Err(trouble) => return Err(trouble),
    };
    let verdict = verdict(&probes, prove);
    let report = json!({ "source": source, "result": verdict.word(), "probes": probes });
    out.result(&report, |report| render(report, verdict))?;
    Ok(verdict.code())
}

/// The caller's own service where it has one or is about to, whatever other instances the host has; else the one
/// that it may be an operator of.
fn meant(given: &Doctor, instance: Option<&str>) -> Result<Place, Trouble> {
    use std::os::unix::fs::MetadataExt as _;
    if instance.is_none() {
        let own = discover::own_place(None);
        let started = |own: &Place| std::fs::metadata(&own.state).is_ok_and(|state| state.uid() == own.owner);
        if given.tools_user.is_some() || own.as_ref().is_ok_and(started) {
            return own;
        }
    }
    discover::place(instance)
}

/// The checks of a start, without one.
fn here(given: Doctor, place: &Place, instance: Option<&str>) -> Result<Vec<Value>, Trouble> {
    if place.owner != Uid::effective().as_raw() {
        let account = discover::account_name(place.owner).unwrap_or_else(|| format!("#{}", place.owner));
        return Err(Trouble::refused(
            "not-the-service-account",
            format!("the service of {account} does not run, and only that account can look at its host"),
            format!("sudo -u {account} salaam doctor"),
        ));
    }
    discover::own_place(instance)?;
    let flags = Flags { tools_user: given.tools_user, ..Flags::default() };
    let host = match host::load(flags) {
        Ok(host) => host,
        Err(HostError::Closed(checks)) => return Ok(checks.iter().map(row).collect()),
        Err(why) => return Err(misconfigured(why)),
    };
    let checks = block_on(async { Ok(examine(&host, given.prove).await) })?;
    Ok(checks.iter().map(row).collect())
}

fn row(check: &Check) -> Value {
    json!({
        "id": check.id,
        "severity": Severity::of(&check.id),
        "result": check.status,
        "evidence": check.evidence,
        "fix": check.fix,
    })
}

/// What all of them say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// All hold.
    Pass,
    /// What does not hold lessens what is promised.
    Lessened,
    /// The proof that was asked for is none.
    NotHeld,
    /// Something required does not hold.
    Refused,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Lessened => "warn",
            Self::NotHeld | Self::Refused => "fail",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Pass | Self::Lessened => exit::OK,
            Self::NotHeld => exit::FAILED,
            Self::Refused => exit::REFUSED,
        }
    }
}

fn is(probe: &Value, key: &str, word: &str) -> bool {
    probe.get(key).and_then(Value::as_str) == Some(word)
}

fn begins(probe: &Value, with: &str) -> bool {
    probe.get("id").and_then(Value::as_str).is_some_and(|id| id.starts_with(with))
}

/// A row of another version counts as what it says it is.
fn verdict(probes: &[Value], prove: bool) -> Verdict {
    let holds = |probe: &Value| is(probe, "result", Status::Pass.as_str());
    let bad = |probe: &Value| !holds(probe) && !is(probe, "result", Status::Warn.as_str());
    let refused = |probe: &Value| bad(probe) && !is(probe, "severity", Severity::Degrading.as_str());
    // An attack that does not work here anyway shows nothing; a step of the sandbox that was not shown is no proof.
    let open = |probe: &Value| begins(probe, "sandbox-") && bad(probe) && !(begins(probe, ATTACKS) && not_shown(probe));
    if probes.is_empty() || probes.iter().any(refused) {
        Verdict::Refused
    } else if prove && (probes.iter().any(open) || !probes.iter().any(|probe| begins(probe, ATTACKS) && holds(probe))) {
        Verdict::NotHeld
    } else if probes.iter().all(holds) {
        Verdict::Pass
    } else {
        Verdict::Lessened
    }
}

fn not_shown(probe: &Value) -> bool {
    is(probe, "result", Status::Unproven.as_str())
}

fn render(report: &Value, verdict: Verdict) -> String {
    let probes = report.get("probes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut text = String::new();
    let row = |word: &str, probe: &Value| vec![word.to_owned(), at(probe, "/id"), at(probe, "/evidence")];
    let passed = probes.iter().filter(|probe| is(probe, "result", Status::Pass.as_str()));
    let passed: Vec<_> = passed.map(|probe| row("pass", probe)).collect();
    // Nobody can mend that an attack does not work on this host.
    let unshown = probes.iter().filter(|probe| begins(probe, ATTACKS) && not_shown(probe));
    let unshown: Vec<_> = unshown.map(|probe| row("not shown", probe)).collect();
    text += &columns(&[passed.clone(), unshown.clone()].concat());
    let rest = probes
        .iter()
        .filter(|probe| !(is(probe, "result", Status::Pass.as_str()) || begins(probe, ATTACKS) && not_shown(probe)));
    for probe in rest {
        text += &format!("{} ({}): {}\n", at(probe, "/result"), at(probe, "/severity"), at(probe, "/id"));
        text += &format!("    seen: {}\n", at(probe, "/evidence"));
        if let Some(fix) = probe.get("fix").and_then(Value::as_str).filter(|fix| !fix.is_empty()) {
            text += &format!("    fix:  {}\n", show::line(fix.as_bytes()));
        }
    }
    let of = format!("{} of {} probes pass", passed.len(), probes.len());
    text += &match verdict {
        Verdict::Pass => format!("all {} probes pass\n", probes.len()),
        Verdict::Lessened if passed.len() + unshown.len() == probes.len() => {
            format!("{of}, {} attacks do not work on this host anyway\n", unshown.len())
        }
        Verdict::Lessened => format!("{of}; what is left lessens what is promised\n"),
        Verdict::NotHeld => format!("{of}; the sandbox does not hold, and is not used\n"),
        Verdict::Refused => format!("{of}; a start is refused\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_failure_is_3_and_everything_less_is_0() {
        let of = |checks: &[Check]| {
            let verdict = verdict(&checks.iter().map(row).collect::<Vec<_>>(), false);
            (verdict.word(), verdict.code())
        };
        let pass = Check::pass("state-readable", "EACCES");
        assert_eq!(of(std::slice::from_ref(&pass)), ("pass", 0));
        assert_eq!(of(&[pass.clone(), Check::warn("can-cron", "e", "f")]), ("warn", 0));
        assert_eq!(of(&[pass.clone(), Check::fail("sandbox-userns", "e", "f")]), ("warn", 0));
        assert_eq!(of(&[pass.clone(), Check::fail("config-readable", "e", "f")]), ("fail", 3));
        assert_eq!(of(&[pass, Check::unproven("config-readable", "e", "f")]), ("fail", 3));
        assert_eq!(of(&[]), ("fail", 3), "nothing tried is no proof");
    }

    #[test]
    fn what_does_not_hold_stands_last_with_its_fix() {
        let rows: Vec<_> = [
            Check::fail("config-readable", "opened\u{1b}[2J", "chmod 0700 /c"),
            Check::pass("state-readable", "EACCES"),
        ]
        .iter()
        .map(row)
        .collect();
        let text = render(&json!({ "result": "fail", "probes": rows }), verdict(&rows, false));
        let wanted = "fail (required): config-readable\n    seen: opened\\e[2J\n    fix:  chmod 0700 /c\n1 of 2 probes pass; a start is refused\n";
        assert!(text.starts_with("pass") && text.ends_with(wanted), "{text}");
    }

    #[test]
    fn a_proof_is_1_where_the_sandbox_does_not_hold_and_what_shows_nothing_is_no_failure() {
        let of = |checks: &[Check]| verdict(&checks.iter().map(row).collect::<Vec<_>>(), true);
        let held = Check::pass("sandbox-attack-signal", "outside works, inside ESRCH");
        let unshown = Check::unproven("sandbox-attack-alg-socket", "not shown: outside EAFNOSUPPORT", "");
        assert_eq!(of(std::slice::from_ref(&held)), Verdict::Pass);
        assert_eq!(of(&[held.clone(), unshown.clone()]), Verdict::Lessened);
        assert_eq!(of(std::slice::from_ref(&unshown)), Verdict::NotHeld, "nothing held is no proof");
        assert_eq!(of(&[Check::pass("state-readable", "EACCES")]), Verdict::NotHeld, "nothing tried is no proof");
        for bad in ["sandbox-attack-signal", "sandbox-canary"] {
            assert_eq!(of(&[held.clone(), Check::fail(bad, "e", "f")]).code(), 1);
        }
        assert_eq!(of(&[held.clone(), Check::unproven("sandbox-canary", "e", "f")]).code(), 1);
        assert_eq!(of(&[held, Check::fail("state-readable", "e", "f")]).code(), 3);
        let rows = [row(&unshown)];
        let text = render(&json!({ "probes": rows }), Verdict::Lessened);
        assert!(text.starts_with("not shown") && text.contains("do not work on this host anyway"), "{text}");
    }
}
