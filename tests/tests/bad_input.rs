//! What is wrong is refused with the reason and the fix, and the daemon stays healthy. Nothing panics.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{Host, Pair, eventually, host::chown, http, limit, pair::inside, ran, ran::Ran};
use serde_json::{Value, json};

fn healthy(pair: &Pair) {
    let start = Instant::now();
    assert_eq!(pair.health()["status"], "ok");
    pair.run(&["true"]).ok();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    pair.assert_sound();
}

#[test]
fn a_wrong_configuration_is_refused_with_key_file_and_line() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let file = pair.config.join("host.toml").display().to_string();
    for (text, key, line) in [
        ("# a comment\nno_such_key = 1\n", "no_such_key", Some(2)),
        ("approval_ttl_seconds = \"soon\"\n", "approval_ttl_seconds", Some(1)),
        ("\n[limits]\nprocesses = -1\n", "processes", Some(3)),
        ("[limits]\nno_such_limit = 5\n", "no_such_limit", Some(2)),
        ("local_sandbox_read_paths = 7\n", "local_sandbox_read_paths", Some(1)),
        ("unsandboxed_commands = \"perhaps\"\n", "unsandboxed_commands", Some(1)),
        ("[limits]\nprocesses = 1\n", "processes", None),
        ("this is no toml\n", "", Some(1)),
    ] {
        pair.configure(text);
        let ran = pair.start();
        assert_eq!(ran.code, Some(2), "{text}: {ran}");
        assert!(ran.says(key) && ran.says(&file), "key and file are named: {ran}");
        if let Some(line) = line {
            assert!(
                ran.says(&format!("line {line}")) || ran.says(&format!("host.toml:{line}")),
                "the line is named: {ran}"
            );
        }
        assert!(pair.service_process().is_none(), "nothing stays behind");
    }
    pair.configure("");
    let mut command = pair.command_as(&pair.host.service);
    command.env("SALAAM_APPROVAL_TTL_SECONDS", "soon").args([
        "service",
        "start",
        "--tools-user",
        &pair.host.tools.name,
    ]);
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(2), "{ran}");
    assert!(ran.says("approval_ttl_seconds") || ran.says("SALAAM_APPROVAL_TTL_SECONDS"), "{ran}");
    let mut command = pair.command_as(&pair.host.service);
    command.env("SALAAM_NO_SUCH_KEY", "1").args(["service", "start", "--tools-user", &pair.host.tools.name]);
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(2), "{ran}");
    assert!(ran.says("no_such_key") || ran.says("SALAAM_NO_SUCH_KEY"), "{ran}");
}

#[test]
fn garbage_instead_of_http_harms_nobody() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(200_000));
    let many_headers = format!("GET /v1/health HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(20_000));
    let cases: [&[u8]; 12] = [
        b"\x00\x01\x02\x03",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nabcde",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/operations/op_%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        long_path.as_bytes(),
        many_headers.as_bytes(),
    ];
    for bytes in cases {
        let mut stream = http::connect(&pair.socket(), Duration::from_secs(30)).expect("it takes connections");
        // It may hang up before it has read all of it.
        drop(stream.write_all(bytes));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let status = String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned);
        assert!(
            status.as_deref().is_none_or(|status| status.starts_with('4') || status.starts_with('5')),
            "{} was answered {status:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
        );
    }
    healthy(&pair);
}

#[test]
fn a_wrong_body_is_refused_by_what_is_wrong_with_it() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let id = pair.workspace_id();
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "no body"),
        (b"{".to_vec(), "half of one"),
        (b"[]".to_vec(), "no object"),
        (b"{\"workspace\":5,\"argv\":[\"true\"]}".to_vec(), "wrong type"),
        (b"{\"workspace\":\"\xff\"}".to_vec(), "no UTF-8"),
        (deep.into_bytes(), "too deep"),
        (json!({"workspace": id, "argv": ["true"], "no_such_field": 1}).to_string().into_bytes(), "unknown field"),
        (json!({"workspace": id, "argv": "true"}).to_string().into_bytes(), "no list"),
        (json!({"workspace": id, "argv": ["a\u{0}b"]}).to_string().into_bytes(), "NUL"),
        (json!({"workspace": id, "argv": ["true"], "profile": "everything"}).to_string().into_bytes(), "profile"),
        (json!({"workspace": id, "argv": ["true"], "timeout_seconds": 0}).to_string().into_bytes(), "no time"),
        (json!({"workspace": id, "argv": ["true"], "timeout_seconds": -1}).to_string().into_bytes(), "less than none"),
        (json!({"workspace": id, "argv": ["true"], "timeout_seconds": 1u64 << 60}).to_string().into_bytes(), "ages"),
        (json!({"workspace": id, "argv": ["true"], "stdin_base64": "***"}).to_string().into_bytes(), "base64"),
        (json!({"workspace": id, "argv": ["x".repeat(131_072)]}).to_string().into_bytes(), "one argument too long"),
        (json!({"workspace": id, "command": "x".repeat((1 << 20) + 1)}).to_string().into_bytes(), "text too long"),
        (json!({"workspace": "ws_0", "argv": ["true"]}).to_string().into_bytes(), "no such id"),
        (
            json!({"workspace": format!("ws_{}", "0".repeat(32)), "argv": ["true"]}).to_string().into_bytes(),
            "unknown id",
        ),
    ];
    for (body, what) in bodies {
        let mut stream = http::connect(&pair.socket(), Duration::from_secs(30)).expect("it takes connections");
        let head = format!(
            "POST /v1/operations HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        drop(stream.write_all(&body));
        let reply = http::Reply::read(&mut stream).unwrap_or_else(|| panic!("{what}: no answer"));
        assert!((400..500).contains(&reply.status), "{what}: {}", reply.status);
        let error: Value = reply.json()["error"].clone();
        assert!(error["id"].is_string() && error["message"].is_string() && error["fix"].is_string(), "{what}: {error}");
    }
    assert_eq!(pair.http("DELETE", "/v1/operations", None).status, 405);
    let lost = pair.http("GET", "/v1/no-such-thing", None);
    assert_eq!(lost.status, 404);
    let dispatched = pair.events().into_iter().filter(|event| event["kind"] == "operation.dispatched").count();
    assert_eq!(dispatched, 0);
    healthy(&pair);
}

#[test]
fn a_body_of_100_mib_is_refused_without_being_kept() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let service = pair.service_process().expect("it runs");
    let mut peak = 0;
    for chunked in [false, true] {
        let mut stream = http::connect(&pair.socket(), Duration::from_secs(60)).expect("it takes connections");
        let length =
            if chunked { "Transfer-Encoding: chunked".into() } else { format!("Content-Length: {}", 100 << 20) };
        let head =
            format!("POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..100 {
            let sent = if chunked { stream.write_all(b"100000\r\n") } else { Ok(()) };
            let end = if chunked { &b"\r\n"[..] } else { b"" };
            if sent.and_then(|()| stream.write_all(&piece)).and_then(|()| stream.write_all(end)).is_err() {
                break;
            }
            peak = peak.max(service.memory().map_or(0, |(resident, _)| resident));
        }
        drop(stream.shutdown(std::net::Shutdown::Write));
        if let Some(reply) = http::Reply::read(&mut stream) {
            assert!(matches!(reply.status, 400 | 413), "{}", reply.status);
        }
    }
    assert!(peak < 128 << 10, "the service grew to {peak} KiB");
    healthy(&pair);
}

#[test]
fn five_hundred_slow_clients_do_not_keep_an_operator_out() {
    let _turn = limit!(240);
    let pair = Pair::started(Host::shared());
    let mut slow: Vec<UnixStream> = Vec::new();
    for n in 0..500 {
        // Whoever comes too late may be turned away; nobody else may suffer.
        let Ok(mut stream) = http::connect(&pair.socket(), Duration::from_millis(500)) else { continue };
        drop(stream.write_all(if n % 2 == 0 { b"GET /v1/he" } else { b"" }));
        slow.push(stream);
    }
    let start = Instant::now();
    let health = eventually("an operator gets through", Duration::from_secs(60), || {
        let ran = pair.salaam(&["health", "--json"]);
        (ran.code == Some(0)).then(|| ran.json())
    });
    eprintln!("{} slow clients; health after {:?}", slow.len(), start.elapsed());
    assert_eq!(health["status"], "ok");
    drop(slow);
    healthy(&pair);
}

#[test]
fn a_client_that_reads_nothing_does_not_stop_the_others() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let body =
        json!({"workspace": pair.workspace_id(), "command": "yes | head -c 50000000", "grant": true, "detach": true});
    let mut deaf = Vec::new();
    for _ in 0..2 {
        let mut stream = http::connect(&pair.socket(), Duration::from_secs(30)).expect("it takes connections");
        stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("it reads");
        let mut follower = http::connect(&pair.socket(), Duration::from_secs(30)).expect("it takes connections");
        follower.write_all(&http::request("GET", "/v1/events?after=0&follow=true", None)).expect("it reads");
        deaf.push((stream, follower));
    }
    for _ in 0..5 {
        pair.run(&["true"]).ok();
    }
    drop(deaf);
    healthy(&pair);
}

#[test]
fn a_directory_that_cannot_be_a_workspace_is_refused_with_reason_and_fix() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let host = pair.host;
    let area = pair.workspace.parent().expect("it lies in one").to_owned();
    let file = area.join("a-file");
    host.write(&file, "x");
    let private = area.join("private");
    fs::create_dir(&private).expect("it is new");
    chown(&private, &format!("{0}:{0}", host.service.name));
    fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("it is ours");
    let nested = inside(&pair, "nested");
    pair.run(&["mkdir", "nested"]).ok();
    let link_to_root = area.join("link-to-root");
    symlink("/", &link_to_root).expect("it is new");
    let state = pair.state.clone();
    let cases: Vec<(PathBuf, &str)> = vec![
        (area.join("missing"), "missing"),
        (file, "a file"),
        (PathBuf::from("/"), "the root"),
        (link_to_root, "the root behind a link"),
        (host.service.home.clone(), "a home"),
        (PathBuf::from("/root"), "root's home"),
        (PathBuf::from("/home"), "what holds homes"),
        (PathBuf::from("/etc"), "a system directory"),
        (PathBuf::from("/usr/lib"), "a system directory"),
        (PathBuf::from("/proc"), "a system directory"),
        (private, "not usable by the tools user"),
        (nested, "inside another"),
        (area, "around another"),
        (state, "the state directory"),
        (host.libexec(), "LIBEXEC"),
    ];
    for (path, what) in cases {
        let ran = pair.salaam(&["workspace", "add", &path.display().to_string(), "--json"]);
        assert!(!matches!(ran.code, Some(0) | None), "{what}: {ran}");
        let error = ran.json()["error"].clone();
        assert!(error["id"].is_string() && error["message"].as_str().is_some_and(|m| !m.is_empty()), "{what}: {ran}");
        assert!(error["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{what}: no fix: {ran}");
    }
    let again = pair.salaam(&["workspace", "add", &pair.workspace.display().to_string(), "--json"]).ok().json();
    assert_eq!(again["workspace"], pair.workspace_id().as_str(), "what is one already stays the same one");
    let listed = pair.salaam(&["workspace", "list", "--json"]).ok().json_lines();
    assert_eq!(listed.len(), 1, "none of them was added");
    healthy(&pair);
}

#[test]
fn a_workspace_that_was_replaced_is_not_the_one_that_was_registered() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.run(&["true"]).ok();
    let aside = pair.workspace.with_extension("aside");
    fs::rename(&pair.workspace, &aside).expect("root may");
    let name = pair.workspace.file_name().expect("it has one").to_string_lossy().into_owned();
    pair.host.workspace(&name);
    let ran = pair.run(&["touch", "made"]);
    assert_ne!(ran.code, Some(0), "{ran}");
    assert!(!inside(&pair, "made").exists() && !aside.join("made").exists(), "{ran}");
}

/// H1: the kernel's limit is 107 bytes and a terminator.
#[test]
fn a_socket_path_that_is_too_long_is_refused_before_anything_is_bound() {
    let _turn = limit!(90);
    for (bytes, fits) in [(107, true), (108, false), (160, false)] {
        let mut pair = Pair::new(Host::shared());
        let before = pair.runtime.display().to_string().len() + 1 + "/operator.sock".len();
        let long = pair.runtime.join("r".repeat(bytes - before));
        fs::create_dir(&long).expect("it is new");
        chown(&long, &format!("{}:{}", pair.host.service.name, pair.host.name("ops")));
        fs::set_permissions(&long, std::os::unix::fs::PermissionsExt::from_mode(0o710)).expect("it is ours");
        pair.runtime = long;
        assert_eq!(pair.socket().display().to_string().len(), bytes);
        let ran = pair.start_with(&["--json"]);
        if fits {
            ran.ok();
            assert_eq!(pair.health()["status"], "ok");
        } else {
            assert_eq!(ran.code, Some(3), "{ran}");
            assert!(ran.says("socket-path-long") && ran.says(&bytes.to_string()) && ran.says("107"), "{ran}");
            assert!(pair.service_process().is_none());
        }
    }
}

/// J2: the lock is the kernel's, on the directory itself, whatever it is called.
#[test]
fn a_second_daemon_on_the_same_state_is_refused_also_through_a_link() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let holder = pair.service_process().expect("it runs").pid;
    let mut second = Pair::new(pair.host);
    let own = std::mem::replace(&mut second.state, pair.state.clone());
    let direct = second.start_with(&["--json"]);
    assert_eq!(direct.code, Some(3), "{direct}");
    assert!(direct.says("state-locked") && direct.says(&holder.to_string()), "the holder is named: {direct}");
    let link = own.with_file_name("state-link");
    symlink(&pair.state, &link).expect("it is new");
    chown(&link, &pair.host.service.name);
    second.state = link;
    let linked = second.start_with(&["--json"]);
    assert_eq!(linked.code, Some(3), "{linked}");
    second.state = own;
    healthy(&pair);
    // A killed holder does not block the next start, whoever has its number now.
    pair.service_process().expect("it runs").kill();
    eventually("it is gone", Duration::from_secs(2), || pair.service_process().is_none().then_some(()));
    pair.start().ok();
    healthy(&pair);
}

/// H2: after a crash there is one daemon, however many ask at once.
#[test]
fn five_starts_at_once_after_a_crash_make_one_daemon() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    pair.service_process().expect("it runs").kill();
    eventually("it is gone", Duration::from_secs(2), || pair.service_process().is_none().then_some(()));
    assert!(pair.socket().exists(), "a crash leaves its socket");
    let health = pair.salaam(&["health"]);
    assert_eq!(health.code, Some(6), "a dead socket is no service: {health}");
    let codes: Vec<Option<i32>> = thread::scope(|scope| {
        let starts: Vec<_> = (0..5).map(|_| scope.spawn(|| pair.start().code)).collect();
        starts.into_iter().map(|start| start.join().expect("no panic")).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| matches!(code, Some(0 | 3))), "{codes:?}");
    let pid = i64::from(pair.service_process().expect("one runs").pid);
    assert_eq!(pair.health()["service_pid"], pid);
    eventually("one executor", Duration::from_secs(5), || (pair.executors().len() == 1).then_some(()));
    healthy(&pair);
}

#[test]
fn the_socket_is_not_taken_from_a_file_that_is_none() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    fs::write(pair.socket(), "precious").expect("root writes");
    chown(&pair.socket(), &pair.host.service.name);
    let ran = pair.start();
    assert_ne!(ran.code, Some(0), "{ran}");
    assert_eq!(fs::read_to_string(pair.socket()).expect("it is still there"), "precious");
    drop(fs::remove_file(pair.socket()));
}

/// S10: nothing is read from a workspace or above it, by whatever way it came there; and what the operator changes in
/// the host's own configuration holds only once it is pinned.
#[test]
fn configuration_that_lies_in_a_workspace_is_not_read() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let wider = "no_such_key = 1\nunsandboxed_commands = \"allow\"\n";
    for name in ["host.toml", ".salaam/host.toml", "salaam.toml"] {
        let path = inside(&pair, name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("root may");
        fs::write(path, wider).expect("root writes");
    }
    // As an agent would: an approved edit.
    let edit = serde_json::json!({"edits": [{"path": ".config/salaam/host.toml", "create": wider}], "grant": true});
    assert_eq!(pair.post(edit).json()["state"], "completed");
    let above = pair.workspace.with_file_name("host.toml");
    fs::write(&above, wider).expect("root writes");
    let gone = salaam_tests::Mended::by(move || fs::remove_file(above));
    let result = pair.result(&[], &["true"]);
    assert_eq!(result["isolation"], "tools-user-bubblewrap");
    // The host's own: what runs keeps what it was started with, and the next start refuses until it is pinned.
    pair.configure("unsandboxed_commands = \"allow\"\n");
    assert_eq!(pair.result(&[], &["true"])["manifest"], result["manifest"]);
    assert_eq!(pair.health()["tool_execution"]["unsandboxed_commands"], "refuse");
    pair.configure("");
    pair.stop().ok();
    let mut command = pair.command_as(&pair.host.service);
    command.args(["service", "start", "--tools-user", &pair.host.tools.name]).current_dir(&pair.workspace);
    Ran::of(&mut command).ok();
    assert_eq!(pair.health()["tool_execution"]["unsandboxed_commands"], "refuse");
    drop(gone);
    ran::run(&["rm", "-r", &inside(&pair, ".salaam").display().to_string()]);
}
