//! The journal has everything, in order; anyone can verify it; damage is found; a full disk stops dispatch.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use salaam_tests::{
    Host, Mended, Pair, eventually,
    host::{chown, sources},
    limit,
    pair::{inside, text},
    process::Process,
    ran,
    ran::{Ran, Started},
};
use serde_json::json;

fn verified_by_python(export: &Path) -> Ran {
    Ran::of(Command::new("python3").arg(sources().join("tests/verify_export.py")).arg(export))
}

/// Some of everything, with what is awkward: text outside the basic plane, paths that are not UTF-8.
fn filled() -> Pair {
    let pair = Pair::started(Host::shared());
    pair.run(&["echo", "\u{1f600}\u{10ffff}\u{202e}"]).ok();
    pair.run(&["sh", "-c", "printf x > \"$(printf 'caf\\351')\"; exit 3"]).left_with(3);
    let asked = pair.propose(json!({"command": "flip-me-0451", "detach": true}));
    pair.salaam(&["approval", "deny", &asked.approval, "--comment", "\u{e9}\u{2028}"]).ok();
    pair.final_state(&asked.operation);
    pair
}

fn export(pair: &Pair) -> (PathBuf, Vec<u8>) {
    let bytes = pair.salaam(&["journal", "export"]).ok().stdout;
    let path = pair.state.with_file_name("export.jsonl");
    fs::write(&path, &bytes).expect("root writes");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("it is ours");
    (path, bytes)
}

#[test]
fn an_export_verifies_with_ten_lines_of_python_live_and_stopped() {
    let _turn = limit!(90);
    let pair = filled();
    let (path, live) = export(&pair);
    verified_by_python(&path).ok();
    pair.salaam(&["journal", "verify"]).ok();
    pair.salaam(&["journal", "verify", "--file", &path.display().to_string()]).ok();
    let last: serde_json::Value =
        serde_json::from_slice(live.split(|b| *b == b'\n').rfind(|l| !l.is_empty()).expect("a line")).expect("JSON");
    let health = pair.health();
    assert_eq!((&health["journal"]["last_seq"], &health["journal"]["last_hash"]), (&last["seq"], &last["hash"]));
    pair.stop().ok();
    let (path, stopped) = export(&pair);
    assert!(stopped.starts_with(&live) && stopped.len() > live.len(), "the end is added, nothing else changed");
    verified_by_python(&path).ok();
    pair.salaam(&["journal", "verify"]).ok();
    let events = pair.events();
    assert_eq!(events[0]["prev"], "0".repeat(64));
    assert!(events.iter().enumerate().all(|(n, event)| event["seq"] == n + 1), "no gaps");
    assert_eq!(events[0]["seq"], 1);
}

#[test]
fn every_changed_cut_or_moved_line_of_an_export_is_found() {
    let _turn = limit!(120);
    let pair = filled();
    let (path, bytes) = export(&pair);
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    let n = lines.len();
    let mut damaged: Vec<(&str, Vec<u8>)> = vec![
        ("a line missing", [&lines[..2], &lines[3..]].concat().concat()),
        ("two changed places", [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat().concat()),
        ("one stands twice", [&lines[..3], &lines[2..]].concat().concat()),
        ("the first missing", lines[1..].concat()),
        ("torn", bytes[..bytes.len() - 30].to_vec()),
    ];
    let at = find(&bytes, b"flip-me-0451").expect("it is in there");
    let mut flipped = bytes.clone();
    flipped[at] ^= 1;
    damaged.push(("one bit", flipped));
    let spaced = String::from_utf8(bytes.clone()).expect("text").replacen("\"seq\":3", "\"seq\": 3", 1);
    damaged.push(("a blank", spaced.into_bytes()));
    for (what, content) in damaged {
        fs::write(&path, content).expect("root writes");
        let ran = pair.salaam(&["journal", "verify", "--file", &path.display().to_string()]);
        assert_eq!(ran.code, Some(1), "{what}: {ran}");
        if what != "a blank" {
            assert_ne!(verified_by_python(&path).code, Some(0), "{what}: python");
        }
    }
    assert!(n > 10, "there was something to damage");
    fs::write(&path, lines[..n - 1].concat()).expect("root writes");
    pair.salaam(&["journal", "verify", "--file", &path.display().to_string()]).ok();
    // A missing tail shows against the head that health gave, not within the file.
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[test]
fn a_flipped_byte_in_the_database_is_found_and_refuses_the_start() {
    let _turn = limit!(90);
    let pair = filled();
    pair.stop().ok();
    let database = pair.state.join("salaam.db");
    let whole = fs::read(&database).expect("it is there");
    let (mut found, mut places) = (0, 0);
    let mut from = 0;
    while let Some(at) = find(&whole[from..], b"flip-me-0451").map(|at| at + from) {
        from = at + 1;
        // Only where it stands inside an event; the state tables hold it, too.
        let before = String::from_utf8_lossy(&whole[at.saturating_sub(2000)..at]).into_owned();
        places += 1;
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        fs::write(&database, &flipped).expect("root writes");
        let ran = pair.salaam(&["journal", "verify"]);
        if ran.code == Some(1) {
            found += 1;
            assert!(ran.says("hash") || ran.says("does not"), "it says what is wrong: {ran}");
        } else {
            assert_eq!(ran.code, Some(0), "{ran}");
            assert!(!before.contains("\"prev\":\"") || before.contains("\"hash\""), "{ran}");
        }
    }
    assert!(found > 0, "none of {places} places was noticed");
    fs::write(&database, &whole).expect("root writes");
    pair.salaam(&["journal", "verify"]).ok();
    let last = pair.events().pop().expect("some");
    let at = whole.windows(64).rposition(|window| window == text(&last, "hash").as_bytes());
    if let Some(at) = at {
        let mut torn = whole.clone();
        torn[at] = if torn[at] == b'0' { b'1' } else { b'0' };
        fs::write(&database, torn).expect("root writes");
        if pair.salaam(&["journal", "verify"]).code == Some(1) {
            let ran = pair.start_with(&["--json"]);
            assert_eq!(ran.code, Some(3), "{ran}");
            assert!(ran.says("journal-damaged"), "{ran}");
        }
        fs::write(&database, &whole).expect("root writes");
    }
    pair.start().ok();
}

#[test]
fn damage_to_the_end_of_the_chain_refuses_the_start() {
    let _turn = limit!(60);
    let pair = filled();
    pair.stop().ok();
    let script = r#"
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
tables = [r[0] for r in c.execute("select name from sqlite_master where type='table'") if 'event' in r[0]]
assert tables, "no table of events"
t = tables[0]
columns = [r[1] for r in c.execute(f"pragma table_info({t})")]
print(t, columns)
# Whoever can write the file can take its guards away, too.
for name in [r[0] for r in c.execute("select name from sqlite_master where type='trigger'")]: c.execute(f"drop trigger {name}")
c.execute(f"delete from {t} where rowid = (select max(rowid) - 1 from {t})")
c.commit()
"#;
    let ran = Ran::of(Command::new("python3").args(["-c", script]).arg(pair.state.join("salaam.db")));
    ran.clone().ok();
    for suffix in ["", "-wal", "-shm"] {
        let path = pair.state.join(format!("salaam.db{suffix}"));
        if path.exists() {
            chown(&path, &format!("{0}:{0}", pair.host.service.name));
        }
    }
    let verify = pair.salaam(&["journal", "verify"]);
    assert_eq!(verify.code, Some(1), "{verify}\n{ran}");
    let start = pair.start_with(&["--json"]);
    assert_eq!(start.code, Some(3), "{start}");
    assert!(start.says("journal-damaged"), "{start}");
}

#[test]
fn list_show_and_follow_give_the_same_events() {
    let _turn = limit!(90);
    let pair = filled();
    let all = pair.events();
    let listed = pair.salaam(&["journal", "list", "--json"]).ok().json_lines();
    assert!(!listed.is_empty() && listed.iter().all(|event| all.contains(event)), "{listed:?}");
    let seq = all[3]["seq"].to_string();
    assert_eq!(pair.salaam(&["journal", "show", &seq, "--json"]).ok().json(), all[3]);
    assert_eq!(pair.salaam(&["journal", "show", "999999"]).code, Some(4));
    let mut command = pair.command_as(&pair.host.service);
    let mut following = Started::new(command.args(["journal", "follow", "--json"]), b"");
    std::thread::sleep(Duration::from_millis(500));
    let operation = text(&pair.result(&[], &["echo", "followed"]), "operation");
    std::thread::sleep(Duration::from_millis(1000));
    following.child.kill().expect("it is ours");
    let seen = following.wait(Duration::from_secs(10)).out();
    for kind in ["operation.proposed", "approval.granted", "operation.dispatched", "operation.result"] {
        assert!(
            seen.lines().any(|line| line.contains(kind) && line.contains(&operation)),
            "{kind} was not followed: {seen}"
        );
    }
    let reply = pair.http("GET", "/v1/events?after=2&kind=operation.result", None);
    let lines: Vec<serde_json::Value> = String::from_utf8_lossy(&reply.body)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"))
        .collect();
    assert!(lines.len() >= 3 && lines.iter().all(|event| event["kind"] == "operation.result"), "{lines:?}");
}

#[test]
fn what_a_person_sees_holds_no_control_character() {
    let _turn = limit!(60);
    let pair = filled();
    pair.run(&["printf", "\u{1b}[31m%s\u{202e}", "red"]).ok();
    for words in
        [&["journal", "list"][..], &["operation", "list"], &["approval", "list"], &["health"], &["workspace", "list"]]
    {
        let ran = pair.salaam(words).ok();
        assert!(!ran.stdout.iter().any(|b| *b < 0x20 && *b != b'\n' && *b != b'\t'), "{ran}");
        assert!(!ran.out().contains('\u{202e}'), "{ran}");
    }
}

/// J3: what ran when the service died is not run again.
#[test]
fn after_a_crash_two_have_receipts_the_third_is_unknown_and_none_ran_twice() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    pair.run(&["sh", "-c", "echo 1 >> f"]).ok();
    pair.run(&["sh", "-c", "echo 2 >> f"]).ok();
    let third = pair.run_started(&["--json"], &["sh", "-c", "echo 3 >> f; sleep 300"]);
    eventually("the third runs", Duration::from_secs(10), || {
        fs::read_to_string(inside(&pair, "f")).ok()?.contains('3').then_some(())
    });
    pair.service_process().expect("it runs").kill();
    third.wait(Duration::from_secs(20));
    pair.start_after_kill();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(fs::read_to_string(inside(&pair, "f")).expect("it is there"), "1\n2\n3\n");
    let states: Vec<String> = pair
        .salaam(&["operation", "list", "--json"])
        .ok()
        .json_lines()
        .iter()
        .map(|operation| text(operation, "state"))
        .collect();
    assert_eq!(states.iter().filter(|state| *state == "completed").count(), 2, "{states:?}");
    assert_eq!(states.iter().filter(|state| *state == "unknown").count(), 1, "{states:?}");
    pair.salaam(&["journal", "verify"]).ok();
}

/// J1: no record, no effect.
#[test]
fn on_a_full_disk_nothing_is_dispatched_and_it_recovers() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let (uid, gid) = (pair.host.service.uid, pair.host.service.gid);
    let path = pair.state.display().to_string();
    ran::run(&["mount", "-t", "tmpfs", "-o", &format!("size=4m,mode=0700,uid={uid},gid={gid}"), "tmpfs", &path]);
    let unmount = Mended::by({
        let path = path.clone();
        move || {
            ran::run(&["umount", "--lazy", &path]);
            Ok(())
        }
    });
    let mut pair = pair;
    pair.start().ok();
    pair.with_workspace();
    pair.run(&["sh", "-c", "echo before >> f"]).ok();
    let filler = pair.state.join("filler");
    drop(Ran::of(Command::new("dd").args(["if=/dev/zero", &format!("of={}", filler.display()), "bs=4k"])));
    let mut refused = 0;
    for n in 0..40 {
        let ran = pair.run(&["sh", "-c", &format!("echo full-{n} >> f; : {}", "x".repeat(12_000))]);
        match ran.code {
            Some(0) => {}
            Some(125) => {
                refused += 1;
                assert!(!ran.err().trim().is_empty(), "it is said aloud: {ran}");
            }
            _ => panic!("{ran}"),
        }
        if refused >= 3 {
            break;
        }
    }
    assert!(refused >= 3, "the disk never was full enough");
    let file = fs::read_to_string(inside(&pair, "f")).expect("it is there");
    let full = file.lines().filter(|line| line.starts_with("full-")).count();
    assert!(Process::of(pair.service_process().expect("it still runs").pid).is_some());
    eprintln!("{full} got through before the disk was full");
    let health = pair.health();
    assert_eq!(health["status"], "degraded", "{health:#}");
    assert!(health["warnings"].to_string().contains("journal"), "{health:#}");
    fs::remove_file(&filler).expect("root may");
    eventually("it recovers", Duration::from_secs(20), || {
        (pair.run(&["sh", "-c", "echo after >> f"]).code == Some(0)).then_some(())
    });
    let health = pair.health();
    assert!(!health["warnings"].to_string().contains("could not"), "little space may still be said: {health:#}");
    let dispatched = pair.events().iter().filter(|event| event["kind"] == "operation.dispatched").count();
    let lines = fs::read_to_string(inside(&pair, "f")).expect("it is there").lines().count();
    assert_eq!(dispatched, lines, "as many effects as durable intents");
    pair.salaam(&["journal", "verify"]).ok();
    pair.stop().ok();
    pair.start().ok();
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
    pair.stop().ok();
    drop(pair);
    drop(unmount);
}

#[test]
fn output_is_kept_beside_the_journal_and_never_in_it() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let result = pair.result(&[], &["sh", "-c", "echo sec; echo ret >&2; echo needle-$((40+2))"]);
    assert_eq!(result["output"]["stdout"]["text"], "sec\nneedle-42\n");
    let exported = pair.salaam(&["journal", "export"]).ok().out();
    assert!(!exported.contains("needle-42"));
    let stored = pair.salaam(&["operation", "output", &text(&result, "operation"), "--stream", "stdout"]).ok();
    assert_eq!(stored.out(), "sec\nneedle-42\n");
    let blobs = pair.state.join("blobs");
    let mut seen = 0;
    let mut directories = vec![blobs];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("root reads").flatten() {
            if entry.path().is_dir() {
                directories.push(entry.path());
            } else {
                use std::os::unix::fs::MetadataExt;
                seen += 1;
                assert_eq!(entry.metadata().expect("it is there").mode() & 0o777, 0o600);
            }
        }
    }
    assert!(seen >= 2);
}
