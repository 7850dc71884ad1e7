//! An approved command, end to end: who it runs as, what stands around it, what comes back, what is recorded.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::Path,
    time::Duration,
};

use base64::Engine;
use salaam_tests::{Account, Host, Pair, eventually, http, limit, pair::text, process::Process, ran, ran::Ran};
use serde_json::{Value, json};

#[test]
fn an_approved_command_runs_as_the_tools_user() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let ran = pair.run(&["id", "-u"]).ok();
    assert_eq!(ran.out(), format!("{}\n", pair.host.tools.uid));
    assert_ne!(pair.host.tools.uid, pair.host.service.uid);
    pair.assert_sound();
}

#[test]
fn health_tells_what_stands_between_a_command_and_the_host() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let health = pair.health();
    let execution = &health["tool_execution"];
    assert_eq!(health["status"], "ok", "{health:#}");
    assert_eq!(health["service_uid"], pair.host.service.uid);
    assert_eq!(health["floor"], "instance", "{health:#}");
    assert_eq!(execution["mode"], "tools-user");
    assert_eq!(execution["tools_user"], pair.host.tools.name.as_str());
    assert_eq!(execution["tool_uid"], pair.host.tools.uid);
    assert_eq!(execution["isolation"], "tools-user-bubblewrap");
    assert_eq!(execution["unsandboxed_commands"], "refuse");
    assert_eq!(execution["network"], "none");
    assert_eq!(execution["sandbox"]["backend"], "bubblewrap");
    assert!(execution["sandbox"]["landlock_abi"].as_u64().is_some_and(|abi| abi > 0), "{health:#}");
    assert_eq!(execution["sandbox"]["seccomp"], true);
    let executor = &execution["executors"][0];
    let pid = i32::try_from(executor["pid"].as_i64().expect("a pid")).expect("it fits");
    let process = Process::of(pid).expect("the executor that health names is there");
    assert_eq!((process.uid, process.name.as_str()), (pair.host.tools.uid, "salaam-toolsd"));
    for probe in execution["probes"].as_array().expect("a list") {
        // A service that is started by hand has no control group of its own, and says so.
        let by_hand = probe["id"] == "control-group" && probe["result"] == "warn";
        assert!(by_hand || probe["result"] == "pass", "{probe}");
    }
    assert!(
        execution["probes"].as_array().expect("a list").iter().any(|probe| probe["id"] == "state-readable"),
        "{health:#}"
    );
}

#[test]
fn every_result_names_the_account_and_the_isolation_it_had() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.run(&["true"]).ok();
    pair.run(&["false"]).left_with(1);
    let shown = pair.result(&[], &["echo", "hello"]);
    let results: Vec<Value> = pair
        .events()
        .into_iter()
        .filter(|event| event["kind"] == "operation.result")
        .map(|e| e["data"].clone())
        .collect();
    assert_eq!(results.len(), 3);
    for result in results.iter().chain([&shown]) {
        assert_eq!(result["tool_uid"], pair.host.tools.uid, "{result:#}");
        assert_eq!(result["isolation"], "tools-user-bubblewrap");
        assert_eq!(result["profile"], "workspace-write");
        assert_eq!(result["network"], "none");
        assert_eq!(result["sandbox"]["landlock"], "fully-enforced");
        assert_eq!(result["sandbox"]["seccomp"], true);
        assert!(result["sandbox"]["landlock_abi"].as_u64().is_some_and(|abi| abi > 0));
        let namespaces: BTreeSet<&str> =
            result["sandbox"]["namespaces"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        for own in ["user", "mnt", "pid", "net", "ipc", "uts"] {
            assert!(namespaces.contains(own), "{result:#}");
        }
        assert_eq!(result["manifest"], pair.health()["manifest"]);
        assert_eq!(text(result, "binding").len(), 64);
    }
    assert_eq!(shown["output"]["stdout"]["text"], "hello\n");
    assert!(results.iter().all(|result| result["output"]["stdout"].get("text").is_none()), "no text in the journal");
    let timing = &shown["timing_us"];
    let steps: Vec<u64> = ["proposed", "granted", "dispatched", "spawned", "exited", "receipt"]
        .iter()
        .map(|step| timing[step].as_u64().unwrap_or_else(|| panic!("{step} in {timing}")))
        .collect();
    assert!(steps.is_sorted(), "{timing}");
}

#[test]
fn the_journal_has_intent_before_effect_and_who_decided() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let operation = text(&pair.result(&[], &["true"]), "operation");
    let events: Vec<Value> =
        pair.events().into_iter().filter(|event| event["data"]["operation"] == operation.as_str()).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(
        kinds,
        ["operation.proposed", "approval.requested", "approval.granted", "operation.dispatched", "operation.result"]
    );
    assert!(events.iter().all(|event| event["data"]["binding"] == events[0]["data"]["binding"]));
    assert_eq!(events[2]["data"]["by"]["uid"], pair.host.service.uid);
    assert!(events[3]["data"]["executor_epoch"].as_u64().is_some());
    pair.salaam(&["journal", "verify"]).ok();
}

#[test]
fn run_leaves_with_the_commands_own_code_or_says_what_else_happened() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    for code in [0, 1, 7, 100, 255] {
        pair.run(&["sh", "-c", &format!("exit {code}")]).left_with(code);
    }
    pair.run(&["sh", "-c", "kill -TERM $$"]).left_with(128 + 15);
    pair.run(&["sh", "-c", "kill -KILL $$"]).left_with(128 + 9);
    pair.run(&["sh", "-c", "kill -SEGV $$"]).left_with(128 + 11);
    pair.run_with(&["--timeout", "1"], &["sleep", "30"]).left_with(124);
    let missing = pair.run(&["no-such-program-anywhere"]);
    assert!(matches!(missing.code, Some(125..=127)), "{missing}");
    let unknown =
        Ran::of(pair.command_as(&pair.host.service).args(["run", "--yes", "--workspace", "/nowhere", "--", "true"]));
    assert_eq!(unknown.code, Some(125), "{unknown}");
    let result = pair.result(&[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(
        (&result["exit_code"], &result["signal"], &result["state"]),
        (&Value::Null, &json!(15), &json!("completed"))
    );
}

#[test]
fn output_and_errors_stay_apart_and_input_is_bound() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let ran = pair.run(&["sh", "-c", "echo out; echo err >&2; echo out2"]).ok();
    assert_eq!((ran.out().as_str(), ran.err().contains("err\n")), ("out\nout2\n", true), "{ran}");
    assert!(!ran.out().contains("err"));
    let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let ran = pair.run_input(&["--stdin"], &["cat"], &input).ok();
    assert_eq!(ran.stdout, input);
    let ran = pair.run_input(&[], &["cat"], b"not for the command").ok();
    assert_eq!(ran.out(), "", "without --stdin the command's input is empty");
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let words =
        ["two words", "*", "$HOME", "`id`", "a;b|c&d", "", "\u{1f600} caf\u{e9}", "line\nfeed", "'\"\\", "-n", "--yes"];
    let mut all = vec!["printf", "%s\\0"];
    all.extend_from_slice(&words);
    let ran = pair.run(&all).ok();
    let got: Vec<String> = ran.out().split_terminator('\0').map(str::to_owned).collect();
    assert_eq!(got, words);
    let raw = base64::engine::general_purpose::STANDARD.encode(b"\xff\xfe raw");
    let reply = pair.post(json!({"argv": ["printf", "%s", {"base64": raw}], "grant": true})).json();
    assert_eq!(reply["state"], "completed", "{reply:#}");
    let output = pair.http("GET", &format!("/v1/operations/{}/output?stream=stdout", text(&reply, "operation")), None);
    assert_eq!(output.body, b"\xff\xfe raw");
}

#[test]
fn a_command_works_in_the_root_of_its_workspace_and_owns_what_it_makes() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let ran = pair.run(&["sh", "-c", "pwd; touch a; mkdir -p d/e; echo x > d/e/f"]).ok();
    assert_eq!(ran.out().trim_end(), pair.workspace.display().to_string());
    use std::os::unix::fs::MetadataExt;
    let made = fs::metadata(pair.workspace.join("a")).expect("the command made it");
    let group = nix::unistd::Group::from_name(&pair.host.name("work")).expect("readable").expect("made").gid.as_raw();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o770), (pair.host.tools.uid, group, 0o660));
    let directory = fs::metadata(pair.workspace.join("d/e")).expect("the command made it");
    assert_eq!((directory.gid(), directory.mode() & 0o7770), (group, 0o2770));
}

#[test]
fn a_read_only_command_cannot_change_the_workspace() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.run(&["sh", "-c", "echo x > f"]).ok();
    let ran = pair.run_with(&["--profile", "read-only"], &["sh", "-c", "cat f; echo y > f; echo z > g; rm f"]);
    assert_ne!(ran.code, Some(0));
    assert_eq!(ran.out(), "x\n");
    assert_eq!(fs::read_to_string(pair.workspace.join("f")).expect("it is there"), "x\n");
    assert!(!pair.workspace.join("g").exists());
}

/// B4: sudo's command line and every log are free of what is run, however long it is.
#[test]
fn command_text_of_any_length_stays_out_of_every_log_and_command_line() {
    let _turn = limit!(120);
    let host = Host::shared();
    let listener = LogListener::new();
    let pair = Pair::started(host);
    let token = "tok_demo_123";
    let long = format!("echo begin; : {} {token}; echo end", "x".repeat(300_000));
    let reply = pair.post(json!({"command": long, "grant": true})).json();
    assert_eq!(reply["state"], "completed", "{}", reply["error"]);
    assert_eq!(reply["output"]["stdout"]["text"], "begin\nend\n");

    let id = pair.workspace_id();
    let body = json!({"workspace": id, "command": format!("sleep 2; : {token}"), "grant": true});
    let socket = pair.socket();
    let sent = std::thread::spawn(move || http::send(&socket, "POST", "/v1/operations", Some(&body)));
    let sleeping = |process: &&Process| process.uid == host.tools.uid && process.words.contains(token);
    eventually("the command is seen running", Duration::from_secs(5), || {
        Process::all().iter().find(sleeping).map(|_| ())
    });
    let outside = fs::read_link("/proc/self/ns/pid").expect("/proc is mounted");
    for process in Process::all().into_iter().filter(|process| process.words.contains(token)) {
        assert!(
            process.uid == host.tools.uid && process.namespace("pid").is_some_and(|inside| inside != outside),
            "command text on a command line outside the sandbox: {process:?}"
        );
    }
    assert_eq!(sent.join().expect("it ends").json()["state"], "completed");

    let lines = listener.lines();
    assert!(
        lines.iter().any(|line| line.contains("sudo") && line.contains("salaam-toolsd")),
        "sudo logged nothing that names the executor: {lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains(token) || line.contains("xxxxxxxx")), "{lines:?}");
    assert!(!pair.log().contains(token));
}

/// B3: no variable of the daemon crosses, the command has a small fixed set.
#[test]
fn no_variable_of_the_daemon_reaches_a_command() {
    let _turn = limit!(60);
    let host = Host::shared();
    let mut pair = Pair::new(host);
    pair.variables.push(("DEMO_API_KEY".into(), "sk-demo-1".into()));
    pair.variables.push(("LD_PRELOAD".into(), "/nonexistent/preload.so".into()));
    pair.variables.push(("BASH_ENV".into(), "/nonexistent/rc".into()));
    pair.start().ok();
    pair.with_workspace();
    let service = pair.service_process().expect("it runs");
    assert_eq!(service.variable("DEMO_API_KEY").as_deref(), Some("sk-demo-1"), "the daemon does have it");
    let ran = pair.run(&["env"]).ok();
    let names: BTreeSet<String> =
        ran.out().lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    for needed in ["PATH", "HOME", "LANG", "TMPDIR", "TERM"] {
        assert!(names.contains(needed), "{names:?}");
    }
    for name in &names {
        let known = [
            "PATH",
            "HOME",
            "LANG",
            "TMPDIR",
            "TERM",
            "USER",
            "LOGNAME",
            "SHELL",
            "PWD",
            "CI",
            "DEBIAN_FRONTEND",
            "PAGER",
        ];
        let kinds = ["GIT_", "PIP_", "NPM_", "npm_", "CARGO_", "RUSTUP_", "SSH_ASKPASS", "LC_"];
        assert!(
            known.contains(&name.as_str()) || kinds.iter().any(|kind| name.starts_with(kind)),
            "{name} is not in the fixed set: {ran}"
        );
    }
    assert!(ran.out().contains("HOME=/tmp/home\n") && ran.out().contains("TERM=dumb\n"), "{ran}");
    for foreign in ["DEMO", "LD_PRELOAD", "SUDO", "SALAAM", "BASH_ENV"] {
        assert!(!ran.out().contains(foreign), "{foreign} crossed: {ran}");
    }
    let toolsd = pair.executors().pop().expect("it runs");
    for name in ["DEMO_API_KEY", "LD_PRELOAD", "BASH_ENV", "SALAAM_STATE_DIR"] {
        assert_eq!(toolsd.variable(name), None, "{name} crossed sudo");
    }
}

/// Laptop mode: one account, no sudo, no set-up, and it says what that costs.
#[test]
fn without_a_tools_user_the_pair_works_and_says_what_is_weaker() {
    let _turn = limit!(90);
    let host = Host::shared();
    let dev = &host.stranger;
    let project = dev.home.join("project");
    let runtime = dev.home.join("runtime");
    for path in [&project, &runtime] {
        fs::create_dir(path).expect("it is new");
        salaam_tests::host::chown(path, &format!("{0}:{0}", dev.name));
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    }
    let salaam = |words: &[&str]| {
        Ran::of(dev.command(host.salaam()).args(words).env("XDG_RUNTIME_DIR", &runtime).current_dir(&project))
    };
    let stopped = StopAtEnd(dev, host, &runtime);
    let started = salaam(&["service", "start"]).ok();
    salaam(&["workspace", "add", &project.display().to_string()]).ok();
    let ran = salaam(&["run", "--yes", "--", "id", "-u"]).ok();
    assert_eq!(ran.out(), format!("{}\n", dev.uid));
    let health = salaam(&["health", "--json"]).ok().json();
    assert_eq!(health["tool_execution"]["mode"], "service-user");
    assert_eq!(health["tool_execution"]["isolation"], "service-user-bubblewrap");
    let warnings = health["warnings"].to_string();
    assert!(warnings.contains("service-user"), "what is weaker is said: {health:#}\n{started}");
    let sudo = Process::all().into_iter().any(|process| process.name == "sudo" && process.words.contains(&host.tag));
    assert!(!sudo, "no sudo in this mode");
    salaam(&["service", "stop"]).ok();
    drop(stopped);
    assert_eq!(Process::of_uid(dev.uid), [], "nothing stays");
}

#[test]
fn an_operator_may_and_a_stranger_may_not() {
    let _turn = limit!(60);
    let pair = Pair::started_with(Host::shared(), &format!("operators_group = \"{}\"\n", Host::shared().name("ops")));
    let ran = pair.salaam_as(
        &pair.host.operator,
        &["run", "--yes", "--workspace", &pair.workspace.display().to_string(), "--", "id", "-u"],
    );
    assert_eq!(ran.clone().ok().out(), format!("{}\n", pair.host.tools.uid), "{ran}");
    let granted = pair.events().into_iter().rfind(|event| event["kind"] == "approval.granted").expect("recorded");
    assert_eq!(granted["data"]["by"]["uid"], pair.host.operator.uid, "{granted}");
    let refused = pair.salaam_as(&pair.host.stranger, &["health"]);
    assert_eq!(refused.code, Some(3), "{refused}");
    assert!(refused.says(&pair.host.name("ops")), "the way in is named: {refused}");
    let refused = pair.salaam_as(&pair.host.tools, &["health"]);
    assert_eq!(refused.code, Some(3), "the tools user is no operator: {refused}");
}

#[test]
fn nobody_home_is_said_as_such() {
    let _turn = limit!(30);
    let pair = Pair::new(Host::shared());
    for words in [&["health"][..], &["approval", "list"], &["service", "status"], &["service", "stop"]] {
        let ran = pair.salaam(words);
        assert_eq!(ran.code, Some(6), "{ran}");
    }
    let ran = pair.salaam(&["no-such-verb"]);
    assert_eq!(ran.code, Some(2), "{ran}");
}

struct StopAtEnd<'a>(&'a Account, &'a Host, &'a Path);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        let mut command = self.0.command(self.1.salaam());
        drop(Ran::of(command.args(["service", "stop"]).env("XDG_RUNTIME_DIR", self.2)));
    }
}

/// Stands in for the system's log. Where a host has a log of its own, it is put back.
struct LogListener {
    socket: UnixDatagram,
    aside: Option<String>,
}

const LOG: &str = "/dev/log";

impl LogListener {
    fn new() -> Self {
        let aside = fs::symlink_metadata(LOG).is_ok().then(|| {
            let aside = format!("{LOG}.salaam-tests-{}", std::process::id());
            ran::run(&["mv", LOG, &aside]);
            aside
        });
        let socket = UnixDatagram::bind(LOG).expect("root can bind there");
        fs::set_permissions(LOG, fs::Permissions::from_mode(0o666)).expect("it is ours");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        Self { socket, aside }
    }

    fn lines(&self) -> Vec<String> {
        let mut buffer = vec![0; 1 << 20];
        let mut lines = Vec::new();
        while let Ok(size) = self.socket.recv(&mut buffer) {
            lines.push(String::from_utf8_lossy(&buffer[..size]).into_owned());
        }
        lines
    }
}

impl Drop for LogListener {
    fn drop(&mut self) {
        drop(fs::remove_file(LOG));
        if let Some(aside) = &self.aside {
            ran::run(&["mv", aside, LOG]);
        }
    }
}
