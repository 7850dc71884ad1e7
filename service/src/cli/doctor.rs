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
};

/// Prints all of them; the exit code is 0, or 3 where one that is required does not hold.
pub(super) fn run(given: Doctor, instance: Option<&str>, out: Out) -> Result<u8, Trouble> {
    let place = meant(&given, instance)?;
    let asked = block_on(Client::new(place.clone()).post("/v1/probes", &json!({ "prove": given.prove })));
    let (source, probes) = match asked {
        Ok(answer) => ("service", rows(answer, "probes")?),
        // A socket that cannot have a name has no service behind it either.
        Err(trouble) if matches!(trouble.id(), "not-running" | "socket-path-long") => {
            ("host", here(given, &place, instance)?)
        }
        Err(trouble) => return Err(trouble),
    };
    let (result, code) = verdict(&probes);
    let report = json!({ "source": source, "result": result, "probes": probes });
    out.result(&report, render)?;
    Ok(code)
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

/// One word for all of them. A row of another version counts as what it says it is.
fn verdict(probes: &[Value]) -> (&'static str, u8) {
    let is = |probe: &Value, key: &str, word: &str| probe.get(key).and_then(Value::as_str) == Some(word);
    let holds = |probe: &Value| is(probe, "result", Status::Pass.as_str());
    let failed = |probe: &&Value| {
        !holds(probe)
            && !is(probe, "result", Status::Warn.as_str())
            && !is(probe, "severity", Severity::Degrading.as_str())
    };
    if probes.is_empty() || probes.iter().any(|probe| failed(&probe)) {
        ("fail", exit::REFUSED)
    } else if probes.iter().all(holds) {
        ("pass", exit::OK)
    } else {
        ("warn", exit::OK)
    }
}

fn render(report: &Value) -> String {
    let probes = report.get("probes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut text = String::new();
    let mut passed = Vec::new();
    for probe in probes {
        if at(probe, "/result") == Status::Pass.as_str() {
            passed.push(vec!["pass".to_owned(), at(probe, "/id"), at(probe, "/evidence")]);
        }
    }
    text += &columns(&passed);
    for probe in probes.iter().filter(|probe| at(probe, "/result") != Status::Pass.as_str()) {
        text += &format!("{} ({}): {}\n", at(probe, "/result"), at(probe, "/severity"), at(probe, "/id"));
        text += &format!("    seen: {}\n", at(probe, "/evidence"));
        if let Some(fix) = probe.get("fix").and_then(Value::as_str).filter(|fix| !fix.is_empty()) {
            text += &format!("    fix:  {}\n", show::line(fix.as_bytes()));
        }
    }
    text += &match at(report, "/result").as_str() {
        "pass" => format!("all {} probes pass\n", probes.len()),
        "warn" => format!("{} of {} probes pass; what is left lessens what is promised\n", passed.len(), probes.len()),
        _ => format!("{} of {} probes pass; a start is refused\n", passed.len(), probes.len()),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_failure_is_3_and_everything_less_is_0() {
        let of = |checks: &[Check]| verdict(&checks.iter().map(row).collect::<Vec<_>>());
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
        let text = render(&json!({ "result": "fail", "probes": rows }));
        let wanted = "fail (required): config-readable\n    seen: opened\\e[2J\n    fix:  chmod 0700 /c\n1 of 2 probes pass; a start is refused\n";
        assert!(text.starts_with("pass") && text.ends_with(wanted), "{text}");
    }
}
