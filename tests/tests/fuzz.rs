//! A short slice of the fuzz campaign: a few hundred inputs for each target, the same on every run.

use salaam_tests::fuzz::{TARGETS, Until, run};

const INPUTS: u64 = 600;

#[test]
fn no_input_breaks_a_reader_of_foreign_bytes() {
    let mut broken = Vec::new();
    for target in TARGETS {
        let outcome = run(target, Until::Inputs(INPUTS), 1);
        assert!(outcome.answers > 1, "{}: every input is answered alike, so nothing was reached", target.name);
        broken.extend(outcome.findings.into_iter().map(|finding| (target.name, finding)));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_sample_is_valid_where_it_should_be() {
    // Otherwise the campaign would only ever see refusals.
    for (name, valid) in [
        ("tool", "List"),
        ("script", " None"),
        ("host.toml", "ok"),
        ("instance", "ok"),
        ("manifest", "ok"),
        ("journal", "verified"),
        ("parts", "ok"),
        ("launch", "plan"),
    ] {
        let target = TARGETS.iter().find(|target| target.name == name).expect("it is listed");
        let first = (target.samples)().swap_remove(0);
        let answer = (target.read)(&first);
        assert!(answer.starts_with(valid), "{name}: {answer}");
    }
    for name in ["edit", "bridge"] {
        let target = TARGETS.iter().find(|target| target.name == name).expect("it is listed");
        let answers: Vec<String> = (target.samples)().iter().map(|sample| (target.read)(sample)).collect();
        assert!(
            answers.iter().filter(|answer| answer.ends_with("ok") || answer.contains("replace")).count() > 3,
            "{name}: {answers:#?}"
        );
    }
}
