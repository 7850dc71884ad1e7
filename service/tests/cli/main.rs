//! The built program against a fake service: exit codes, what goes to which stream, and the question on a
//! terminal.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests, outside test functions"
)]

mod fake;
mod holder;
mod question;

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use fake::{Fake, approval, result, workspaces};
use serde_json::{Value, json};

/// The program, told to speak to `fake`.
fn salaam(fake: &Fake) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_salaam"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SALAAM_RUNTIME_DIR", &fake.dir)
        .env("SALAAM_STATE_DIR", fake.dir.join("state"))
        .env("SALAAM_CONFIG_DIR", fake.dir.join("config"))
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

fn ran(fake: &Fake, words: &str) -> Output {
    salaam(fake).args(words.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A service whose one answer to a proposal is these lines.
fn answering(lines: Vec<Value>) -> Fake {
    Fake::serving(move |asked, reply| match asked.what.as_str() {
        "GET /v1/workspaces" => reply.json(200, &workspaces("/".as_ref())),
        "POST /v1/operations" => {
            reply.begin();
            lines.iter().for_each(|line| reply.line(line));
        }
        other => panic!("unexpected {other}"),
    })
}

#[test]
fn the_version_names_commit_and_bridge() {
    let out = ran(&Fake::absent(), "--version");
    let shown = text(&out.stdout);
    assert!(shown.starts_with("salaam 0.1.0 (commit ") && shown.ends_with(", bridge 3)\n"), "{shown}");
}

#[test]
fn a_service_that_is_not_running_is_six_with_what_to_do() {
    let fake = Fake::absent();
    for words in ["health", "approvals", "workspace list", "service status", "service stop", "journal list"] {
        let out = ran(&fake, words);
        assert_eq!(out.status.code(), Some(6), "{words}");
        let said = text(&out.stderr);
        assert!(said.starts_with("salaam: not-running: ") && said.contains("fix: start it: salaam service start"));
        assert!(out.stdout.is_empty());
        let out = ran(&fake, &format!("{words} --json"));
        let error: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(error["error"]["id"], "not-running");
        assert!(out.stderr.is_empty() && out.status.code() == Some(6));
    }
    let out = ran(&fake, "run -- true");
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("not-running"));
}

#[test]
fn a_stale_socket_is_not_a_running_service() {
    let fake = Fake::absent();
    drop(std::os::unix::net::UnixListener::bind(fake.dir.join("operator.sock")).unwrap());
    assert_eq!(ran(&fake, "health").status.code(), Some(6));
}

#[test]
fn the_services_errors_have_their_exit_codes() {
    for (status, id, code) in [
        (404, "not-found", 4),
        (409, "binding-mismatch", 5),
        (409, "already-decided", 5),
        (503, "control-failed", 3),
        (400, "bad-request", 2),
        (500, "x", 1),
    ] {
        let error = json!({"error": {"id": id, "message": "m\u{1b}[2J", "fix": "f"}});
        let answer = error.clone();
        let fake = Fake::serving(move |_, reply| reply.json(status, &answer));
        let out = ran(&fake, "approval deny ap_00000000000070008000000000000001");
        assert_eq!(out.status.code(), Some(code), "{id}");
        assert_eq!(text(&out.stderr), format!("salaam: {id}: m\\e[2J\n  fix: f\n"));
        let out = ran(&fake, "health --json");
        assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap(), error);
    }
}

#[test]
fn someone_who_is_no_operator_is_told_who_whose_and_both_fixes() {
    let fake = Fake::serving(|_, reply| {
        reply.json(403, &json!({"error": {"id": "not-an-operator", "message": "", "fix": ""}}))
    });
    let out = ran(&fake, "health");
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3));
    for part in ["you are `", "operator.sock", "sudo -u ", "--operators-group"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_directory_that_others_can_write_is_not_spoken_to() {
    use std::os::unix::fs::PermissionsExt;
    let fake = Fake::serving(|_, reply| reply.json(200, &json!({"status": "ok"})));
    assert!(ran(&fake, "health").status.success());
    std::fs::set_permissions(&fake.dir, PermissionsExt::from_mode(0o770)).unwrap();
    let asked = fake.asked().len();
    let out = ran(&fake, "health");
    assert_eq!((out.status.code(), fake.asked().len()), (Some(3), asked), "{}", text(&out.stderr));
}

#[test]
fn a_listing_is_one_object_a_line() {
    let fake = Fake::serving(|_, reply| {
        reply.json(200, &json!({"workspaces": [{"workspace": "ws_1", "name": "a\n", "path": "/a"}, {"workspace": "ws_2", "name": "b", "path": "/b"}]}));
    });
    let out = ran(&fake, "workspace list --json");
    let lines: Vec<Value> = text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(text(&ran(&fake, "workspace list").stdout).lines().count(), 3);
}

#[test]
fn json_holds_no_character_that_drives_a_terminal_and_is_still_the_same_json() {
    let row = json!({"workspace": "ws_1", "name": "a\u{9b}31m\u{202e}\u{e0041}", "path": "/é"});
    let answer = json!({"workspaces": [row]});
    let fake = Fake::serving(move |_, reply| reply.json(200, &answer));
    let out = ran(&fake, "workspace list --json");
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap(), row);
    let shown = text(&out.stdout);
    assert!(!shown.trim_end().chars().any(salaam_core::show::is_hidden) && shown.contains('é'), "{shown:?}");
}

#[test]
fn run_passes_bytes_and_codes_through() {
    let output = |stream: &str, base64: &str| json!({"output": {"stream": stream, "base64": base64}});
    let fake = answering(vec![
        json!({"approval": approval(&["true"])}),
        output("stdout", "/wDi"),
        output("stderr", "ZQ=="),
        output("stdout", "gpQ="),
        result("completed", Some(7), None),
    ]);
    let out = salaam(&fake)
        .args(["run", "--yes", "--profile", "read-only", "--timeout", "5", "--", "printf", "a b"])
        .arg(std::ffi::OsStr::new("é"))
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(7));
    assert_eq!((out.stdout.as_slice(), out.stderr.as_slice()), (&b"\xff\0\xe2\x82\x94"[..], &b"e"[..]));
    let asked = fake.wait_for("POST /v1/operations").body;
    let expected = json!({
        "workspace": "ws_00000000000070008000000000000001", "argv": ["printf", "a b", "é"], "profile": "read-only",
        "timeout_seconds": 5, "grant": true, "detach": false, "follow": true,
    });
    assert_eq!(asked, expected);
}

#[test]
fn run_ends_as_the_command_did_or_with_an_id() {
    for (line, code, id) in [
        (result("completed", None, Some(9)), 137, ""),
        (result("timed-out", None, Some(15)), 124, "timed-out"),
        (result("denied", None, None), 125, "denied"),
        (result("expired", None, None), 125, "expired"),
        (result("stale", None, None), 125, "stale"),
        (result("cancelled", None, None), 125, "cancelled"),
        (result("unknown", None, None), 125, "unknown"),
        (json!({"error": {"id": "outcome-unknown", "message": "m", "fix": ""}}), 125, "outcome-unknown"),
    ] {
        let fake = answering(vec![line]);
        for words in ["run --yes -- true", "run --yes --json -- true"] {
            let out = ran(&fake, words);
            assert_eq!(out.status.code(), Some(code), "{id}");
            assert!(text(&out.stderr).contains(id), "{}", text(&out.stderr));
            if words.contains("--json") {
                assert_eq!(text(&out.stdout).lines().count(), 1, "exactly one object");
            }
        }
    }
    // The service dies before the receipt.
    let out = ran(&answering(vec![]), "run --yes -- true");
    assert_eq!(out.status.code(), Some(125));
}

#[test]
fn run_json_prints_the_result_and_nothing_else() {
    let fake =
        answering(vec![json!({"output": {"stream": "stdout", "base64": "aGk="}}), result("completed", Some(0), None)]);
    let out = ran(&fake, "run --yes --json -- true");
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((shown["state"].as_str(), out.status.code()), (Some("completed"), Some(0)));
}

#[test]
fn without_a_terminal_the_exact_grant_line_is_printed() {
    let shown = approval(&["true"]);
    let fake = answering(vec![json!({"approval": shown}), result("completed", Some(0), None)]);
    let out = ran(&fake, "run -- true");
    let line = format!(
        "salaam approval grant ap_00000000000070008000000000000001 --binding {}\n",
        shown["binding"].as_str().unwrap()
    );
    assert!(text(&out.stderr).contains(&line), "{}", text(&out.stderr));
    assert!(out.stdout.is_empty() && out.status.success());
}

#[test]
fn standard_input_is_read_whole_before_anything_is_proposed() {
    use std::io::Write;
    let fake = answering(vec![result("completed", Some(0), None)]);
    let mut child = salaam(&fake).args(["run", "--yes", "--stdin", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one ").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(fake.asked().is_empty());
    stdin.write_all(b"two").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(fake.wait_for("POST /v1/operations").body["stdin_base64"], "b25lIHR3bw==");

    let big = fake.dir.join("big");
    std::fs::File::create(&big).unwrap().set_len((16 << 20) + 1).unwrap();
    let before = fake.asked().len();
    let out = salaam(&fake)
        .args(["run", "--yes", "--stdin", "--", "cat"])
        .stdin(std::fs::File::open(&big).unwrap())
        .output()
        .unwrap();
    assert_eq!((out.status.code(), fake.asked().len()), (Some(125), before));
}

#[test]
fn an_interrupt_closes_the_connection() {
    let (tell, told) = std::sync::mpsc::channel();
    let fake = Fake::serving(move |asked, reply| {
        if asked.what == "GET /v1/workspaces" {
            return reply.json(200, &workspaces("/".as_ref()));
        }
        reply.begin();
        reply.line(&json!({"approval": approval(&["true"])}));
        reply.gone();
        tell.send(()).unwrap();
    });
    let child = salaam(&fake).args(["run", "--yes", "--", "sleep", "60"]).stderr(Stdio::piped()).spawn().unwrap();
    fake.wait_for("POST /v1/operations");
    // The line is on its way; without it the message has no operation to name.
    std::thread::sleep(Duration::from_millis(200));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    assert!(text(&out.stderr).contains("op_00000000000070008000000000000001 is cancelled"));
    told.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn a_reader_that_goes_away_is_no_complaint() {
    let event = json!({"seq": 1, "time": "t", "kind": "service.started", "data": {}}).to_string() + "\n";
    let fake = Fake::serving(move |asked, reply| {
        reply.begin();
        if asked.what.ends_with("after=0") {
            (0..10_000).for_each(|_| reply.line(&serde_json::from_str(&event).unwrap()));
        }
    });
    let mut child =
        salaam(&fake).args(["journal", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
    assert!(out.status.success());
}

#[test]
fn the_events_of_all_pages_are_verified() {
    use salaam_core::{
        event::{Draft, Event, Head, Kind},
        time::Timestamp,
    };
    let mut head = Head::START;
    let lines: Vec<Value> = (0..5)
        .map(|i| {
            let draft = Draft::new(Kind::ServiceStarted, None, json!({"version": format!("{i}")})).unwrap();
            let event = Event::seal(draft, head, Timestamp::from_micros(1)).unwrap();
            head = Head { seq: event.seq, hash: event.hash };
            serde_json::from_slice(&event.to_line().unwrap()).unwrap()
        })
        .collect();
    let served = lines.clone();
    let fake = Fake::serving(move |asked, reply| {
        reply.begin();
        let after: usize = asked.what.rsplit('=').next().unwrap().parse().unwrap();
        served.iter().skip(after).take(2).for_each(|line| reply.line(line));
    });
    let out = ran(&fake, "journal verify --json");
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(shown, json!({"verified": true, "events": 5, "last_hash": head.hash}));

    let export = fake.dir.join("export");
    std::fs::write(&export, ran(&fake, "journal export").stdout).unwrap();
    let verified = ran(&fake, &format!("journal verify --file {}", export.display()));
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let whole = std::fs::read_to_string(&export).unwrap();
    std::fs::write(&export, whole.replacen("\"3\"", "\"4\"", 1)).unwrap();
    assert_eq!(ran(&fake, &format!("journal verify --file {}", export.display())).status.code(), Some(1));
}

#[test]
fn a_grant_sends_all_of_the_binding_that_was_shown() {
    let shown = approval(&["true"]);
    let binding = shown["binding"].as_str().unwrap().to_owned();
    let fake = Fake::serving(move |asked, reply| {
        reply.json(200, if asked.what.starts_with("GET") { &shown } else { &Value::Null });
    });
    let id = "ap_00000000000070008000000000000001";
    let grant = |hex: &str| ran(&fake, &format!("approval grant {id} --binding {hex}"));
    let other = if binding.starts_with('0') { "1".repeat(12) } else { "0".repeat(12) };
    for hex in [&binding[..11], other.as_str()] {
        assert_eq!(grant(hex).status.code(), Some(5));
        assert!(fake.asked().iter().all(|asked| asked.what.starts_with("GET")), "nothing was granted");
    }
    assert!(grant(&binding[..12]).status.success());
    assert_eq!(fake.wait_for(&format!("POST /v1/approvals/{id}/grant")).body, json!({"binding": binding}));
}
