//! A process that swaps a bound script as fast as it can never gets other bytes run than those that were shown.
//!
//! The swapper works by rename and by writing in place, in turn. Each version says who it is in its first and in
//! its last line, so that even a content torn between two versions has an output of its own.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    process::{Child, Command, Stdio},
    time::Duration,
};

use salaam_tests::{
    Account, Host, Pair, Reply, eventually, http, limit,
    pair::{inside, text},
    ran::{LIMIT, Ran},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const RUNS: usize = 500;

/// Two versions of one length.
fn version(name: &str) -> String {
    let padding = format!("# {}\n", name.repeat(60)).repeat(40);
    format!("echo ran-{name}\n{padding}echo end-{name}\n")
}

/// What each content prints by its hash: both versions, and every way to tear one into the other.
fn outputs() -> BTreeMap<String, String> {
    let (a, b) = (version("a"), version("b"));
    let begins = "echo ran-a".len();
    let ends = a.len() - "a\n".len();
    let mut outputs = BTreeMap::new();
    for (first, second, from, to) in [(&a, &b, "a", "b"), (&b, &a, "b", "a")] {
        for cut in 0..=first.len() {
            let start = if cut >= begins { from } else { to };
            let end = if cut > ends { from } else { to };
            outputs.insert(hash(&format!("{}{}", &first[..cut], &second[cut..])), format!("ran-{start}\nend-{end}\n"));
        }
    }
    outputs
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Swapper(Child);

impl Swapper {
    /// By rename, then in place, as `account`, until it is dropped.
    fn start(account: &Account, directory: &std::path::Path) -> Self {
        let program = r#"
import os, random, time
a, b = open("version-a", "rb").read(), open("version-b", "rb").read()
n = 0
while True:
    n += 1
    body = a if n % 2 else b
    if (n // 2) % 2:
        with open("next", "wb") as f: f.write(body)
        os.chmod("next", 0o664)
        os.rename("next", "race.sh")
    else:
        f = os.open("race.sh", os.O_WRONLY)
        os.pwrite(f, body, 0)
        os.close(f)
    # In bursts: some swaps fall into every step of an operation, and some operations meet none.
    if n % 4 == 0: time.sleep(random.random() * 0.04)
"#;
        let child = account
            .command("/usr/bin/python3")
            .args(["-c", program])
            .current_dir(directory)
            .stdin(Stdio::null())
            .spawn()
            .expect("python3 is there");
        Self(child)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn plant(pair: &Pair) {
    for (file, content) in [("version-a", version("a")), ("version-b", version("b")), ("race.sh", version("a"))] {
        pair.host.write(&inside(pair, file), content);
    }
}

/// The attack does work on whoever checks a path and then runs it.
fn succeeds_against_a_check_by_path(account: &Account, directory: &std::path::Path) -> bool {
    (0..2000).any(|_| {
        let script =
            r#"shown=$(sed -n 's/^echo ran/ran/p' race.sh); ran=$(sh race.sh | head -n 1); [ "$shown" = "$ran" ]"#;
        Ran::of(account.command("sh").args(["-c", script]).current_dir(directory)).code != Some(0)
    })
}

/// One question, its grant, and what the proposer is told in the end.
fn shown_and_granted(pair: &Pair, body: &Value) -> Value {
    let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
    stream.write_all(&http::request("POST", "/v1/operations", Some(body))).expect("the service reads");
    let asked = eventually("it is asked", Duration::from_secs(10), || {
        pair.http("GET", "/v1/approvals", None).json()["approvals"].as_array().and_then(|all| all.first().cloned())
    });
    let (approval, binding) = (text(&asked, "approval"), text(&asked, "binding"));
    pair.http("POST", &format!("/v1/approvals/{approval}/grant"), Some(&json!({"binding": binding})));
    Reply::read(&mut stream).expect("a proposal is answered").json()
}

fn race(as_service: bool) {
    let pair = Pair::started(Host::shared());
    plant(&pair);
    let account = if as_service { &pair.host.service } else { &pair.host.tools };
    let swapper = Swapper::start(account, &pair.workspace);
    assert!(
        succeeds_against_a_check_by_path(&pair.host.tools, &pair.workspace),
        "the swapper is too slow to prove a thing"
    );
    let body = json!({"workspace": pair.workspace_id(), "argv": ["sh", "race.sh"]});
    let replies: Vec<Value> = (0..RUNS).map(|_| shown_and_granted(&pair, &body)).collect();
    drop(swapper);
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    let mut stale = 0;
    for event in pair.events() {
        match event["kind"].as_str() {
            Some("approval.requested") => {
                let files = event["data"]["bound"]["files"].as_object().expect("a map").clone();
                if let Some(sha256) = files.values().next().and_then(Value::as_str) {
                    shown.insert(text(&event["data"], "operation"), sha256.to_owned());
                }
            }
            Some("approval.stale") => stale += 1,
            _ => {}
        }
    }
    let refused = replies.iter().filter(|reply| reply["state"] == "failed").count();
    let outputs = outputs();
    let mut ran = 0;
    // What was ended because it opened something else says so in its limit.
    for reply in replies.iter().filter(|reply| reply["state"] == "completed" && reply["limit"].is_null()) {
        ran += 1;
        let operation = text(reply, "operation");
        let asked = || pair.events_of("approval.requested", &operation);
        let bound = shown.get(&operation).unwrap_or_else(|| panic!("nothing was bound: {:#?} {reply:#}", asked()));
        let expected = outputs.get(bound).unwrap_or_else(|| panic!("{bound} is no content that ever was"));
        let output = reply["output"]["stdout"]["text"].as_str().expect("text");
        assert_eq!(output, expected, "other bytes ran than those shown: {reply:#}");
    }
    eprintln!("{RUNS} questions under swapping: {ran} ran, {stale} were stale, {refused} were ended");
    assert!(ran > RUNS / 50, "too few ran to show a thing");
    assert!(stale > 0 && stale + refused > RUNS / 10, "too few met a swap: there was no race");
    assert!(ran + stale <= RUNS);
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
}

#[test]
fn a_swap_by_the_tools_user_never_gets_other_bytes_run() {
    let _turn = limit!(240);
    race(false);
}

#[test]
fn a_swap_by_the_service_user_never_gets_other_bytes_run() {
    let _turn = limit!(240);
    race(true);
}

/// A command beside it swaps what this one runs twice: guarded to its end, or ended.
#[test]
fn a_script_that_runs_twice_is_the_same_both_times_beside_a_command_that_swaps_it() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    plant(&pair);
    let swap = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); for v in a b; do cp version-$v next; mv -f next race.sh; done; done";
    let outputs = outputs();
    let (mut ran, mut ended) = (0, 0);
    for _ in 0..3 {
        let swapping = pair.run_started(&["--timeout", "6", "--json"], &["sh", "-c", swap]);
        eventually("it swaps", Duration::from_secs(10), || {
            pair.commands().into_iter().find(|process| process.name == "mv" || process.name == "cp")
        });
        let result = pair.result(&[], &["sh", "-c", "sh race.sh; sleep 0.2; sh race.sh"]);
        swapping.wait(Duration::from_secs(60));
        if result["state"] != "completed" {
            ended += 1;
            continue;
        }
        let operation = text(&result, "operation");
        let asked = pair.events_of("approval.requested", &operation).pop().expect("recorded");
        let files = asked["data"]["bound"]["files"].as_object().expect("a map");
        let bound = files.values().next().and_then(Value::as_str).expect("the script is bound");
        let twice = outputs[bound].repeat(2);
        if result["limit"] == "stale-operand" {
            // A swap was seen after it had begun: what it had printed by then is of what was shown.
            assert!(twice.starts_with(&text(&result["output"]["stdout"], "text")), "{result:#}");
            ended += 1;
            continue;
        }
        ran += 1;
        assert_eq!(result["output"]["stdout"]["text"], twice.as_str(), "{result:#}");
    }
    eprintln!("{ran} ran, {ended} were stale or ended");
}

/// The bytes that run are fixed at dispatch, not at exec: a script that is swapped while it runs stays itself.
#[test]
fn a_script_that_is_rewritten_while_it_runs_stays_what_was_shown() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let first = "echo first\nsleep 1\necho first-end\n";
    let other = "echo other\nsleep 1\necho other-end\n";
    let script = inside(&pair, "slow.sh");
    // Without the pair: the shell reads on in the file that was rewritten under it.
    pair.host.write(&script, first);
    let bare = Command::new("sh").arg(&script).stdout(Stdio::piped()).spawn().expect("a shell");
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::write(&script, other).expect("root writes");
    let bare = bare.wait_with_output().expect("it ends");
    let rewritten = String::from_utf8_lossy(&bare.stdout).into_owned();
    eprintln!("bare: {rewritten:?}");

    pair.host.write(&script, first);
    let running = pair.run_started(&[], &["sh", "slow.sh"]);
    salaam_tests::eventually("it sleeps", std::time::Duration::from_secs(10), || {
        pair.commands().into_iter().find(|process| process.words.contains("sleep 1"))
    });
    fs::write(&script, other).expect("root writes");
    let ran = running.wait(std::time::Duration::from_secs(20)).ok();
    assert_eq!(ran.out(), "first\nfirst-end\n");
}
