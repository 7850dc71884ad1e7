//! What comes from a workspace, a command, a model or a person never drives the terminal of whoever reads it: each
//! verb, on a real terminal, prints a corpus of hostile text without one control byte reaching it.

use std::{fs, os::unix::ffi::OsStrExt, process::Command};

use salaam_tests::{
    Host, Pair, limit,
    pair::{inside, text},
    ran::{LIMIT, Ran},
    session::{Answer, play, written},
};
use serde_json::{Value, json};

/// What is tried: titles, clipboard, links, colours, cursor, overwriting, direction, invisible letters, C1, NUL.
const CORPUS: &[&str] = &[
    "\u{1b}]0;title\u{7}",
    "\u{1b}]52;c;cm0gLXJmIC8=\u{7}",
    "\u{1b}]8;;http://localhost/\u{7}click\u{1b}]8;;\u{7}",
    "\u{1b}[31mred\u{1b}[0m",
    "\u{1b}[2J\u{1b}[H",
    "\u{1b}P+q544e\u{1b}\\",
    "\u{1b}c",
    "safe\rrm -rf",
    "back\u{8}\u{8}\u{8}\u{8}space",
    "\u{202e}gnitsop\u{202c}",
    "\u{2066}isolate\u{2069}",
    "zero\u{200b}width\u{feff}",
    "\u{9b}31m\u{9d}0;t\u{9c}",
    "bell\u{7}\u{b}\u{c}\u{e}\u{f}",
    "tag\u{e0041}\u{e007f}",
    "\u{7f}\u{ad}\u{2028}line\u{2029}",
];

fn hostile() -> String {
    format!("{}{}", CORPUS.join(" | "), "x".repeat(10_000))
}

/// Runs `salaam` on a terminal of its own, and gives what reached it.
fn on_a_terminal(pair: &Pair, words: &[&str]) -> Vec<u8> {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
    let line: Vec<String> =
        std::iter::once(pair.host.salaam().display().to_string()).chain(words.iter().map(|&w| w.into())).collect();
    let line = line.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    // Enter now and then turns every page; script(1) makes the terminal, and what it writes is what reached it.
    let shell = format!("(while echo; do sleep 0.05; done) 2>/dev/null | script -qec {} /dev/null", quoted(&line));
    let mut command = pair.host.operator.command("sh");
    pair.environment(&mut command);
    Ran::with_input(command.args(["-c", &shell]), b"", LIMIT).stdout
}

/// The control bytes that are left once line ends, tabs, the echo of Enter and wiped progress lines are taken out.
fn driving(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let mut plain = String::new();
    let mut rest = text.as_str();
    // A progress line is wiped by blanks between two carriage returns.
    while let Some((before, after)) = rest.split_once('\r') {
        plain.push_str(before);
        let blanks = after.len() - after.trim_start_matches(' ').len();
        match after[blanks..].strip_prefix('\r') {
            Some(wiped) => rest = wiped,
            None => {
                plain.push('\r');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    let bad = |c: &char| !matches!(c, '\n' | '\t') && drives(*c);
    plain.chars().filter(bad).map(|c| format!("{c:?}")).collect()
}

fn drives(c: char) -> bool {
    // By Unicode's own classes, not by the product's list: what it forgot would show here.
    let n = u32::from(c);
    c.is_control()
        || matches!(n, 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff)
        || matches!(n, 0xfe00..=0xfe0f | 0xfff9..=0xfffb | 0xe0000..=0xe0fff)
}

#[track_caller]
fn is_quiet(pair: &Pair, words: &[&str]) {
    let shown = on_a_terminal(pair, words);
    let left = driving(&shown);
    assert!(left.is_empty(), "{words:?} let {left:?} through: {}", String::from_utf8_lossy(&shown).escape_debug());
}

fn script() -> Value {
    let hostile = hostile();
    let print = "printf '%b' \"$(cat hostile.txt)\"; cat hostile.bin; cat hostile.bin >&2";
    json!({"turns": [
        {"text": hostile, "calls": [
            {"tool": "salaam_workspace", "arguments": {"action": "list", "path": "."}},
            {"tool": "salaam_workspace", "arguments": {"action": "search", "pattern": hostile.chars().take(200).collect::<String>(), "path": "."}},
            {"tool": hostile.chars().take(60).collect::<String>(), "arguments": {"action": hostile}},
            {"tool": "salaam_local", "arguments": {"action": "command", "command": format!("{print} # {}", CORPUS.join(" "))}}]},
        {"calls": [{"tool": "salaam_local", "arguments": {"action": "edit", "edits": [
            {"path": "odd.txt", "create": format!("{hostile}\n")},
            {"path": "\u{202e}name\u{200b}.txt", "create": "x\n"},
            {"path": "hostile.txt", "old": "start", "new": CORPUS.join("")}]}}]},
        {"text": "ask", "await": "message"},
        {"calls": [{"tool": "salaam_local", "arguments": {"action": "command", "command": format!("echo {}", CORPUS.join(""))}}]}
    ]})
}

#[test]
fn no_verb_lets_a_control_byte_through() {
    let _turn = limit!(240);
    let pair = Pair::started(Host::shared());
    let hostile_bytes = CORPUS.join("\n").into_bytes();
    for (name, content) in
        [("hostile.bin", [&hostile_bytes[..], b"\0\xff\xfe\x9b1m"].concat()), ("hostile.txt", b"start\n".to_vec())]
    {
        fs::write(inside(&pair, name), content).expect("root can write there");
    }
    let odd = std::ffi::OsStr::from_bytes(b"\x1b]0;name\x07\xff\xe2\x80\xae.txt");
    fs::write(pair.workspace.join(odd), "x").expect("root can write there");
    let (service, group) = (&pair.host.service.name, pair.host.name("work"));
    Ran::of(Command::new("chown").arg("-R").arg(format!("{service}:{group}")).arg(&pair.workspace)).ok();
    Ran::of(Command::new("chmod").args(["-R", "g+rwX"]).arg(&pair.workspace)).ok();

    // The terminal that is used here does show what drives it.
    let raw = on_a_terminal_of("cat", &pair, &inside(&pair, "hostile.bin").display().to_string());
    assert!(!driving(&raw).is_empty(), "the corpus would drive this terminal");

    let path = written(&pair, "hostile", &script().to_string());
    let mut number = 0;
    let mut told = false;
    let answer = |one: &Value, _: usize| {
        let approval = text(one, "approval");
        is_quiet(&pair, &["approval", "list"]);
        is_quiet(&pair, &["approval", "show", &approval]);
        is_quiet(&pair, &["approval", "show", &approval, "--json"]);
        number += 1;
        if number == 3 { Answer::Deny("no \u{1b}]0;t\u{7}\u{202e}") } else { Answer::Grant }
    };
    let played = play(&pair, &path, answer, |id| {
        let now = pair.salaam(&["session", "show", id, "--json"]).ok().json();
        if !told && now["waiting_for"] == "message" {
            told = true;
            let message = CORPUS.join(" ");
            pair.salaam_as(&pair.host.operator, &["session", "message", id, &message]).ok();
        }
    });
    assert_eq!(played.outcome(&pair).0, "ended");
    assert!(told && played.approvals.len() == 3, "{}", played.ran);

    let id = played.id.as_str();
    let mut verbs: Vec<Vec<&str>> = vec![
        vec!["session", "list"],
        vec!["session", "show", id],
        vec!["session", "follow", id],
        vec!["approval", "list", "--all"],
        vec!["operation", "list"],
        vec!["journal", "list"],
        vec!["journal", "export"],
        vec!["workspace", "list"],
        vec!["workspace", "show"],
        vec!["health"],
        vec!["service", "status"],
        vec!["session", "cancel", id],
    ];
    let workspace = pair.workspace.display().to_string();
    if let Some(words) = verbs.iter_mut().find(|words| words.as_slice() == ["workspace", "show"]) {
        words.push(&workspace);
    }
    let operations: Vec<String> = played.approvals.iter().map(|one| text(one, "operation")).collect();
    for operation in &operations {
        verbs.push(vec!["operation", "show", operation]);
        verbs.push(vec!["operation", "output", operation]);
        verbs.push(vec!["operation", "output", operation, "--stream", "stderr"]);
    }
    verbs.push(vec!["session", "undo", id, &operations[1], "--yes"]);
    for words in &verbs {
        is_quiet(&pair, words);
        if !words.contains(&"undo") {
            let json: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
            is_quiet(&pair, &json);
        }
    }
    // `run` shows the question and passes output on; refusals quote what was given.
    let corpus = CORPUS.join(" ");
    is_quiet(&pair, &["run", "--yes", "--workspace", &workspace, "--", "cat", "hostile.bin"]);
    is_quiet(&pair, &["run", "--yes", "--workspace", &workspace, "--", &corpus]);
    for words in [
        ["operation", "show", &corpus],
        ["session", "show", &corpus],
        ["workspace", "show", &corpus],
        ["approval", "show", &corpus],
        ["workspace", "add", &corpus],
    ] {
        is_quiet(&pair, &words);
    }
    pair.assert_sound();
}

/// A program of the host, on the same kind of terminal.
fn on_a_terminal_of(program: &str, pair: &Pair, argument: &str) -> Vec<u8> {
    let shell = format!("script -qec '{program} {argument}' /dev/null </dev/null");
    Ran::of(pair.host.service.command("sh").args(["-c", &shell])).stdout
}
