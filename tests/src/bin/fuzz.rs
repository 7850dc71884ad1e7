//! Fuzzes everything that reads bytes from elsewhere: `salaam-tests-fuzz SECONDS_PER_TARGET SEED [REPORT]`, one target
//! only: `salaam-tests-fuzz only TARGET SECONDS SEED`, or one input again: `salaam-tests-fuzz replay TARGET FILE`. Exit code
//! 1 = something broke.

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
            campaign(&TARGETS[at..=at], seconds.parse().expect("seconds"), seed.parse().expect("a seed"), None)
        }
        [seconds, seed, report @ ..] => {
            let seconds = seconds.parse().expect("seconds for each target");
            campaign(TARGETS, seconds, seed.parse().expect("a seed"), report.first().copied())
        }
        [] | [_] => {
            eprintln!(
                "salaam-tests-fuzz SECONDS_PER_TARGET SEED [REPORT] | only TARGET SECONDS SEED | replay TARGET FILE"
            );
            ExitCode::from(2)
        }
    }
}

fn campaign(targets: &[Target], seconds: u64, seed: u64, report: Option<&str>) -> ExitCode {
    let mut outcomes = Vec::new();
    for target in targets {
        let outcome = run(target, Until::Time(Duration::from_secs(seconds)), seed);
        println!("{}", row(target, &outcome));
        for (number, finding) in outcome.findings.iter().enumerate() {
            let file = env::temp_dir().join(format!("salaam-fuzz-{}-{number}", target.name.replace(' ', "-")));
            fs::write(&file, &finding.input).expect("a place for the input");
            println!("  {} ({})", finding.what, file.display());
        }
        outcomes.push((target, outcome));
    }
    if let Some(report) = report {
        fs::write(report, written(seconds, seed, &outcomes)).expect("the report");
    }
    let broken = outcomes.iter().any(|(_, outcome)| !outcome.findings.is_empty());
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn row(target: &Target, outcome: &Outcome) -> String {
    let Outcome { inputs, answers, slowest, findings } = outcome;
    let findings = findings.len();
    format!("| {} | {} | {inputs} | {answers} | {} | {findings} |", target.name, target.about, slowest.as_millis())
}

fn written(seconds: u64, seed: u64, outcomes: &[(&Target, Outcome)]) -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).trim().to_owned()
    };
    let rows: Vec<String> = outcomes.iter().map(|(target, outcome)| row(target, outcome)).collect();
    format!(
        "# Fuzzing\n\n{seconds} s for each target, seed {seed}, {}, Linux {}. Made by `tests/campaign fuzz`.\n\n\
         Inputs are made by mutation from valid samples; one that makes a target answer in a new way is mutated further. A panic, a\n\
         broken invariant and an input of more than 5 s of processor time would be a finding, each kind counted once. The build\n\
         checks arithmetic for overflow.\n\n\
         | target | what it reads | inputs | different answers | slowest (ms of processor time) | findings |\n|---|---|---|---|---|---|\n{}\n",
        said("date", &["-u", "+%F %R UTC"]),
        said("uname", &["-r"]),
        rows.join("\n"),
    )
}
