//! The table that people read: `docs/isolation.md`, made from the same tables that the tests run.

use std::{fmt::Write, fs};

use salaam_tests::host::sources;

use crate::{
    alone,
    attack::{Attack, Layer},
    layers, uncovered, working,
};

const PLACE: &str = "docs/isolation.md";

/// Compares the committed table with what was found, or writes it where a campaign says so.
///
/// Everything that could not be denied has failed before this: a row says what was promised and held. A row that
/// this host cannot show is not compared.
pub fn compare(all: &[Attack], controls: &[String]) {
    let text = written(all, controls);
    if let Ok(place) = std::env::var("SALAAM_ISOLATION_REPORT") {
        fs::write(&place, text).unwrap_or_else(|e| panic!("{place}: {e}"));
        return;
    }
    let committed = fs::read_to_string(sources().join(PLACE)).expect("it is committed");
    let unshown = |line: &str| line.contains("| not on this host |");
    let known: Vec<&str> = committed.lines().collect();
    let missing: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| ") && !unshown(line) && !known.contains(line)).collect();
    let more: Vec<&str> = known
        .iter()
        .copied()
        .filter(|line| line.starts_with("| ") && !unshown(line) && !text.contains(&first_cell(line)))
        .collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "{PLACE} is not what is found here: run `sudo tests/campaign isolation`; not in it: {missing:#?}; only in it: {more:#?}"
    );
}

fn first_cell(line: &str) -> String {
    line.split(" | ").next().unwrap_or_default().to_owned() + " | "
}

fn words(layers: &[Layer]) -> String {
    layers.iter().map(|layer| layer.word()).collect::<Vec<_>>().join(", ")
}

fn written(all: &[Attack], controls: &[String]) -> String {
    let mut text = format!(
        "# What holds a command\n\n\
         Made by `sudo tests/campaign isolation` from the tables of `tests/tests/escape/`, which the ordinary tests run,\n\
         too. {} attacks in one go and {} on their own, each first shown to work outside (`works as`: the tools user,\n\
         the service user whose own it is, or root in namespaces of its own), then tried in each profile through a\n\
         real service and executor. `blocked`: it was tried and did nothing. `as is`: `full-access` promises nothing\n\
         about it; commands there have the rights of the tools user. The last column names everything that stops it\n\
         in a sandbox; where it names one layer, the attack works without that one. `not on this host`: it was denied,\n\
         but does not work outside either, so that nothing is shown. Where the target is there only inside (launch,\n\
         init, the executor's own processes), another process of the account stands in for it outside.\n",
        all.len(),
        alone::TABLE.len()
    );
    let mut area = "";
    for (attack, control) in all.iter().zip(controls) {
        if attack.area != area {
            area = attack.area;
            let _ = write!(
                text,
                "\n## {}{}\n\n| attack | works as | read-only | workspace-write | full-access | stopped by |\n|---|---|---|---|---|---|\n",
                area[..1].to_uppercase(),
                &area[1..]
            );
        }
        let control = if control == "done" { attack.control.word() } else { "not on this host" };
        let bare = if attack.everywhere { "blocked" } else { "as is" };
        let _ =
            writeln!(text, "| {} | {control} | blocked | blocked | {bare} | {} |", attack.name, words(attack.layers));
    }
    text += "\n## Alone: resources and what outlives a command\n\n| attack | works as | workspace-write | full-access | stopped by |\n|---|---|---|---|---|\n";
    for attack in alone::TABLE {
        let bare = if attack.everywhere { "blocked" } else { "as is" };
        let _ = writeln!(text, "| {} | tools user | blocked | {bare} | {} |", attack.name, words(attack.layers));
    }
    text += "\n## Each layer on its own\n\nWith one layer switched off, and all others on, these attacks work (those that work here at all):\n\n";
    for layer in layers::SWITCHED {
        let shown =
            all.iter().zip(controls).filter(|(attack, control)| attack.layers == [*layer] && *control == "done");
        let only: Vec<&str> = shown.map(|(attack, _)| attack.name).collect();
        let _ = writeln!(text, "- **{}** ({}): {}.", layer.word(), only.len(), only.join("; "));
    }
    text += "\n## What keeps working\n\nEach was run in `workspace-write`, where the program is installed:\n\n";
    for work in working::TABLE {
        let _ = writeln!(text, "- {}", work.name);
    }
    text += "\n## What is not covered\n\nThe suite shows that these are so, where a command can show them. What the second account still denies\nstands beside each.\n\n| what a sandboxed command can do | and what it still cannot |\n|---|---|\n";
    for gap in uncovered::TABLE {
        let _ = writeln!(text, "| {} | {} |", gap.name, gap.still);
    }
    text
}
