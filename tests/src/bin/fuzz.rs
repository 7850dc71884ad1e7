//! Fuzzes everything that reads bytes from elsewhere: `salaam-tests-fuzz SECONDS_PER_TARGET SEED [REPORT [TARGET ...]]`, one
//! target without a report: `salaam-tests-fuzz only TARGET SECONDS SEED`, or one input again: `salaam-tests-fuzz replay
//! TARGET FILE`. Exit code 1 = something broke. A report keeps the rows of what was not tried this time.

use std::{
    env, fs,
    process::{Command, ExitCode},
    time::Duration,
};

use salaam_tests::fuzz::{Outcome, TARGETS, Target, Until, replay, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let named = |name: &str| TARGETS.iter().position(|target| target.name == name).expect("a target of the report");
    match arguments.as_slice() {
        ["replay", target, file] => {
            println!("{}", replay(&TARGETS[named(target)], &fs::read(file).expect("the input")));
            ExitCode::SUCCESS
        }
        ["only", target, seconds, seed] => {
            let at = named(target);
            campaign(&[&TARGETS[at]], seconds.parse().expect("seconds"), seed.parse().expect("a seed"), None)
        }
        [seconds, seed, rest @ ..] => {
            let (report, wanted) = rest.split_first().map_or((None, rest), |(report, wanted)| (Some(*report), wanted));
            let seconds = seconds.parse().expect("seconds for each target");
            // A word that names no target ends it before hours are spent.
            let wanted: Vec<usize> = wanted.iter().map(|name| named(name)).collect();
            let all = wanted.is_empty();
            let chosen = TARGETS.iter().enumerate().filter(|(at, _)| all || wanted.contains(at));
            let chosen: Vec<&Target> = chosen.map(|(_, target)| target).collect();
            campaign(&chosen, seconds, seed.parse().expect("a seed"), report)
        }
        [] | [_] => {
            eprintln!(
                "salaam-tests-fuzz SECONDS_PER_TARGET SEED [REPORT [TARGET ...]] | only TARGET SECONDS SEED | replay TARGET FILE"
            );
            ExitCode::from(2)
        }
    }
}

fn campaign(targets: &[&Target], seconds: u64, seed: u64, report: Option<&str>) -> ExitCode {
    let mut broken = false;
    for target in targets {
        let outcome = run(target, Until::Time(Duration::from_secs(seconds)), seed);
        let row = row(target, &outcome, seconds, seed);
        println!("{row}");
        for (number, finding) in outcome.findings.iter().enumerate() {
            let file = env::temp_dir().join(format!("salaam-fuzz-{}-{number}", target.name.replace(' ', "-")));
            fs::write(&file, &finding.input).expect("a place for the input");
            println!("  {} ({})", finding.what, file.display());
        }
        broken |= !outcome.findings.is_empty();
        // After each, so that a campaign of hours that is ended has its rows.
        if let Some(report) = report {
            let before = fs::read_to_string(report).unwrap_or_default();
            fs::write(report, written(&before, target, &row)).expect("the report");
        }
    }
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

fn row(target: &Target, outcome: &Outcome, seconds: u64, seed: u64) -> String {
    let Outcome { inputs, answers, slowest, findings } = outcome;
    let (findings, slowest) = (findings.len(), slowest.as_millis());
    let at = said("date", &["-u", "+%F"]);
    format!(
        "| {} | {} | {seconds} s, seed {seed}, {at} | {inputs} | {answers} | {slowest} | {findings} |",
        target.name, target.about
    )
}

/// The report with this target's row in its place, and all others as they are.
fn written(before: &str, target: &Target, row: &str) -> String {
    let name = |row: &str| row.trim_start_matches("| ").split(" | ").next().unwrap_or_default().to_owned();
    let kept = |wanted: &Target| before.lines().find(|line| line.starts_with("| ") && name(line) == wanted.name);
    let rows = TARGETS.iter().filter_map(|wanted| {
        if wanted.name == target.name { Some(row.to_owned()) } else { kept(wanted).map(str::to_owned) }
    });
    let rows: Vec<String> = rows.collect();
    // What people wrote below the table stays.
    let after = before.rsplit_once("|\n\n").map_or("", |(_, after)| after).trim_end();
    let after = if after.is_empty() { String::new() } else { format!("\n{after}\n") };
    format!(
        "# Fuzzing\n\nMade by `tests/campaign fuzz`; each row says for how long, from which seed and when.\n\n\
         Inputs are made by mutation from valid samples; one that makes a target answer in a new way is mutated further. A panic, a\n\
         broken invariant and an input of more than 5 s of processor time would be a finding, each kind counted once. The build\n\
         checks arithmetic for overflow.\n\n\
         | target | what it reads | run | inputs | different answers | slowest (ms of processor time) | findings |\n|---|---|---|---|---|---|---|\n{}\n{after}",
        rows.join("\n"),
    )
}
