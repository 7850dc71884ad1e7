//! A command ends when it ends or has to, with all that it started, and its bytes are kept as they were.

use std::{
    fs,
    time::{Duration, Instant},
};

use base64::Engine;
use salaam_tests::{
    Host, Pair, eventually, limit,
    pair::{inside, text},
    process, ran,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Limit plus grace plus the machine's own time.
const SOON: Duration = Duration::from_secs(5);

fn nothing_left(pair: &Pair) {
    eventually("no process of a command is left", Duration::from_secs(2), || pair.commands().is_empty().then_some(()));
}

/// S11: what a command leaves behind does not hold its result back, and does not stay.
#[test]
fn what_a_command_leaves_behind_is_ended_and_counted() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    for (text, output) in [
        ("sleep 300 & echo hi", "hi\n"),
        ("setsid sh -c 'setsid sleep 300 & sleep 300' >/dev/null 2>&1 & sleep 0.2; echo hi", "hi\n"),
        ("(sleep 300 &) ; (trap '' TERM HUP; sleep 300) & sleep 0.2; echo hi", "hi\n"),
        ("nohup sleep 300 >/dev/null 2>&1 & disown; echo hi", "hi\n"),
    ] {
        let start = Instant::now();
        let result = pair.result(&["--timeout", "30"], &["bash", "-c", text]);
        assert!(start.elapsed() < SOON, "{text}: {:?}", start.elapsed());
        assert_eq!((&result["state"], &result["exit_code"]), (&json!("completed"), &json!(0)), "{text}: {result:#}");
        assert_eq!(result["output"]["stdout"]["text"], output, "{text}");
        assert!(result["left_processes"].as_u64().is_some_and(|left| left >= 1), "{text}: {result:#}");
        nothing_left(&pair);
    }
    let result = pair.result(&["--timeout", "10"], &["bash", "-c", "exec > >(tee copy); echo hi; exit 3"]);
    assert_eq!((&result["state"], &result["exit_code"]), (&json!("completed"), &json!(3)), "{result:#}");
    assert_eq!(pair.result(&[], &["true"])["left_processes"], 0);
}

/// B1 (a) and (b), with a command that ignores TERM and hides in sessions of its own.
#[test]
fn a_time_limit_ends_the_whole_tree_even_if_it_ignores_the_request() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let stubborn = "trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 301\" &) ; while :; do sleep 302; done";
    let start = Instant::now();
    let result = pair.result(&["--timeout", "1"], &["sh", "-c", stubborn]);
    assert!(start.elapsed() < Duration::from_secs(1) + SOON, "{:?}", start.elapsed());
    assert_eq!((&result["state"], &result["timed_out"]), (&json!("timed-out"), &json!(true)), "{result:#}");
    nothing_left(&pair);
    let polite = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let result = pair.result(&["--timeout", "1"], &["sh", "-c", polite]);
    assert_eq!(result["output"]["stdout"]["text"], "ready\nasked\n", "it is asked before it is ended");
    assert_eq!(result["state"], "timed-out");
}

#[test]
fn a_cancelled_command_is_gone_before_that_is_said() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let body = json!({"command": "trap '' TERM; setsid sleep 303 & echo up; sleep 304", "grant": true, "workspace": pair.workspace_id()});
    let socket = pair.socket();
    let sent = std::thread::spawn(move || salaam_tests::http::send(&socket, "POST", "/v1/operations", Some(&body)));
    eventually("it runs", Duration::from_secs(10), || {
        pair.commands().into_iter().find(|process| process.words.contains("sleep 303"))
    });
    let running = pair.salaam(&["operation", "list", "--json"]).ok().json_lines();
    let operation = running.iter().find(|one| one["state"] == "dispatched").map(|one| text(one, "operation"));
    let operation = operation.expect("it is listed");
    pair.salaam(&["operation", "cancel", &operation]).ok();
    let result = sent.join().expect("it ends").json();
    assert_eq!(result["state"], "cancelled", "{result:#}");
    assert_eq!(pair.commands(), [], "said only with proof");
    let event = pair.events_of("cancel.requested", &operation).pop().expect("recorded");
    assert_eq!(event["data"]["cause"], "operator");
}

/// B1 (c) and (d): no command outlives what runs it.
#[test]
fn a_killed_service_or_sudo_takes_the_command_along() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    for service in [true, false] {
        let running = pair.run_started(&["--json"], &["sh", "-c", "trap '' TERM HUP; setsid sleep 305 & sleep 306"]);
        eventually("it runs", Duration::from_secs(10), || {
            pair.commands().into_iter().find(|process| process.words.contains("sleep 305"))
        });
        if service {
            pair.service_process().expect("it runs").kill();
        } else {
            match pair.sudo_process() {
                Some(sudo) => sudo.kill(),
                None => eprintln!("this sudo does not stay; nothing to kill"),
            }
        }
        nothing_left(&pair);
        let ran = running.wait(Duration::from_secs(30));
        assert_ne!(ran.code, Some(0), "{ran}");
        if service {
            pair.start().ok();
        } else {
            eventually("a new executor", Duration::from_secs(10), || {
                (pair.run(&["true"]).code == Some(0)).then_some(())
            });
        }
    }
    let unknown = pair.events().iter().filter(|event| event["kind"] == "operation.unknown").count();
    assert!(unknown >= 1, "an intent without receipt is unknown");
    pair.salaam(&["journal", "verify"]).ok();
}

/// S6: bubblewrap ends with the thread that started it, so that thread must last.
#[test]
fn a_quiet_command_of_twenty_seconds_is_not_killed_on_the_way() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let slow = pair.run_started(&[], &["sh", "-c", "sleep 20; echo done"]);
    for _ in 0..6 {
        pair.run(&["true"]).ok();
        std::thread::sleep(Duration::from_millis(1500));
    }
    let ran = slow.wait(Duration::from_secs(60)).ok();
    assert_eq!(ran.out(), "done\n");
}

/// S12: nobody can answer, so nobody is asked.
#[test]
fn a_command_that_waits_for_input_gets_the_end_at_once() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let start = Instant::now();
    pair.run(&["sh", "-c", "read x"]).left_with(1);
    pair.run(&["cat"]).ok();
    assert!(start.elapsed() < SOON);
    let ran = pair.run(&["sh", "-c", "echo x > /dev/tty"]);
    assert_ne!(ran.code, Some(0), "there is no terminal: {ran}");
    let ran = pair.run(&["sh", "-c", "test -t 0 || test -t 1 || test -t 2"]);
    assert_eq!(ran.code, Some(1), "{ran}");
    let start = Instant::now();
    let ran = pair.run(&["git", "ls-remote", "https://example.invalid/x.git"]);
    assert!(ran.code != Some(0) && start.elapsed() < SOON, "{ran}");
}

/// S13: the record has the bytes, the text has characters.
#[test]
fn bytes_are_kept_exactly_and_text_is_cut_between_characters() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let split = pair.result(&[], &["sh", "-c", r"printf '\342'; sleep 0.05; printf '\200\224'"]);
    assert_eq!(split["output"]["stdout"]["text"], "\u{2014}");
    for (script, bytes) in [
        (r"printf 'a\377b'", &b"a\xffb"[..]),
        (r"printf 'a\000b\000'", b"a\0b\0"),
        (r"printf '\033]0;title\007x'", b"\x1b]0;title\x07x"),
        (r"printf '\342\200'", b"\xe2\x80"),
    ] {
        let result = pair.result(&[], &["sh", "-c", script]);
        assert_eq!(stream(&pair, &result), bytes, "{script}");
        let stdout = &result["output"]["stdout"];
        assert_eq!(stdout["bytes"], bytes.len());
        let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(stdout["sha256"], sha256.as_str());
        let reply = match (&stdout["text"], &stdout["base64"]) {
            (Value::String(text), _) => text.clone().into_bytes(),
            (_, Value::String(raw)) => base64::engine::general_purpose::STANDARD.decode(raw).expect("base64"),
            _ => panic!("neither text nor base64: {stdout}"),
        };
        assert_eq!(reply, bytes, "{script}");
    }
    let result = pair.result(&[], &["sh", "-c", "yes 漢字かな | tr -d '\\n' | head -c 200000; exit 0"]);
    let kept = stream(&pair, &result);
    assert_eq!(kept.len(), 200_000);
    let shown = result["output"]["stdout"]["text"].as_str().expect("it is text, cut at a character").to_owned();
    assert!(shown.len() <= 65_536 + 200 && !shown.contains('\u{fffd}'), "{}", shown.len());
    let ran = pair.run(&["sh", "-c", r"printf 'a\377b\000'"]).ok();
    assert_eq!(ran.stdout, b"a\xffb\0", "into a pipe the bytes pass as they are");
}

fn stream(pair: &Pair, result: &Value) -> Vec<u8> {
    let path = format!("/v1/operations/{}/output?stream=stdout", text(result, "operation"));
    pair.http("GET", &path, None).body
}

#[test]
fn a_flood_of_output_is_counted_and_hashed_whole_and_kept_in_part() {
    let _turn = limit!(180);
    let pair = Pair::started_with(Host::shared(), "[limits]\noutput_bytes = 1048576\n");
    let bytes: u64 = 300 << 20;
    let flood = format!("yes 0123456789abcdef | head -c {bytes}");
    let result = pair.result(&[], &["sh", "-c", &flood]);
    let stdout = &result["output"]["stdout"];
    assert_eq!((&stdout["bytes"], &stdout["truncated"]), (&json!(bytes), &json!(true)), "{stdout:#}");
    let expected = ran::run(&["sh", "-c", &format!("{flood} | sha256sum")]).out();
    assert_eq!(stdout["sha256"].as_str(), expected.split(' ').next());
    let kept = stream(&pair, &result);
    assert!(kept.len() <= (1 << 20) + 4096 && kept.len() > 1 << 19, "{}", kept.len());
    assert!(kept.starts_with(b"0123456789abcdef\n0123"), "the head is kept");
    let twice = "0123456789abcdef\n".repeat(2).into_bytes();
    let at = usize::try_from(bytes % 17).expect("small");
    assert!(kept.ends_with(&twice[at..at + 17]), "the tail is kept");
    pair.run(&["true"]).ok();
}

#[test]
fn limits_hold() {
    let _turn = limit!(180);
    let config = "[limits]\nprocesses = 40\nmemory_bytes = 268435456\nfile_bytes = 1048576\ntmp_bytes = 2097152\nopen_files = 64\nworkspace_growth_bytes = 8388608\n";
    let pair = Pair::started_with(Host::shared(), config);
    let ran = pair.run(&["sh", "-c", "for i in $(seq 100); do sleep 5 & done; wait"]);
    assert!(ran.err().to_lowercase().contains("fork"), "processes: {ran}");
    let ran = pair.run(&["python3", "-c", "b = bytearray(1 << 30); print(len(b))"]);
    assert!(ran.code != Some(0) && ran.says("MemoryError"), "memory: {ran}");
    let ran = pair.run(&["sh", "-c", "head -c 2000000 /dev/zero > f; stat -c %s f"]);
    assert!(ran.out().trim() == "1048576" || ran.code != Some(0), "file size: {ran}");
    let ran = pair.run(&["sh", "-c", "for i in 1 2 3 4 5; do head -c 1000000 /dev/zero > /tmp/f$i || exit 9; done"]);
    assert_eq!(ran.code, Some(9), "private /tmp: {ran}");
    let ran = pair.run(&["python3", "-c", "fs = [open('/dev/null') for _ in range(100)]"]);
    assert!(ran.code != Some(0) && ran.says("Too many open files"), "descriptors: {ran}");
    let ran = pair.run(&["sh", "-c", "ulimit -c"]).ok();
    assert_eq!(ran.out(), "0\n", "no core files");
    let growing =
        "i=0; while [ $i -lt 400 ]; do head -c 1000000 /dev/zero > g$i || exit 9; i=$((i+1)); sleep 0.05; done";
    let result = pair.result(&["--timeout", "60"], &["sh", "-c", growing]);
    assert_eq!(result["limit"], "workspace_growth_bytes", "{result:#}");
    nothing_left(&pair);
    for entry in fs::read_dir(&pair.workspace).expect("it is there").flatten() {
        drop(fs::remove_file(entry.path()));
    }
    pair.run(&["true"]).ok();
}

#[test]
fn many_commands_at_once_all_get_their_own_result() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let running: Vec<_> =
        (0..12).map(|n| pair.run_started(&[], &["sh", "-c", &format!("sleep 0.3; echo out-{n}; exit {n}")])).collect();
    for (n, one) in running.into_iter().enumerate() {
        let ran = one.wait(Duration::from_secs(60));
        assert_eq!((ran.code, ran.out()), (i32::try_from(n).ok(), format!("out-{n}\n")), "{ran}");
    }
    nothing_left(&pair);
}

#[test]
fn output_passes_through_while_the_command_runs() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let file = pair.host.prefix.join("live-output");
    let writes = fs::File::create(&file).expect("the prefix is root's");
    let mut command = pair.command_as(&pair.host.service);
    command.args(["run", "--yes", "--workspace"]).arg(&pair.workspace);
    let mut child = command
        .args(["--", "sh", "-c", "echo early; sleep 3; echo late"])
        .stdin(std::process::Stdio::null())
        .stdout(writes)
        .spawn()
        .expect("it starts");
    eventually("the first line is there before the last", Duration::from_millis(2500), || {
        (fs::read_to_string(&file).ok()? == "early\n").then_some(())
    });
    assert!(child.wait().expect("it ends").success());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "early\nlate\n");
}

/// The service's own end: nothing is left, whether it had a command running or not.
#[test]
fn stop_ends_commands_and_leaves_no_process() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let running = pair.run_started(&["--json"], &["sh", "-c", "touch up; sleep 307"]);
    eventually("it runs", Duration::from_secs(10), || inside(&pair, "up").exists().then_some(()));
    let (service, executor) = (pair.service_process().expect("it runs"), pair.executors().pop().expect("it runs"));
    pair.stop().ok();
    assert!(!process::is_alive(service.pid) && !process::is_alive(executor.pid));
    assert_eq!(pair.commands(), []);
    let ran = running.wait(Duration::from_secs(20));
    assert_ne!(ran.code, Some(0), "{ran}");
    assert!(!pair.socket().exists(), "the socket goes with it");
    pair.salaam(&["journal", "verify"]).ok();
    let last = pair.events().pop().expect("there are some");
    assert_eq!(last["kind"], "service.stopping", "{last}");
}
