//! Each way in which a host can be wrong, by really breaking it: a start is refused with 3 and names the check,
//! what was seen and what mends it; `salaam doctor` says the same; and following the printed fix makes the next
//! start succeed. What is not broken here by itself is in `start.rs`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use salaam_tests::{
    Account, Host, Mended, Pair, Ran, eventually,
    host::chown,
    limit,
    process::Process,
    ran::{self},
};
use serde_json::Value;

/// The row `id` of a refused start, which left nothing behind.
#[track_caller]
fn refused(pair: &Pair, ran: &Ran, id: &str) -> Value {
    assert_eq!(ran.code, Some(3), "{ran}");
    let error = ran.json()["error"].clone();
    assert_eq!(error["id"], "start-refused", "{ran}");
    assert!(pair.service_process().is_none(), "a service stayed behind");
    assert_eq!(Process::of_uid(pair.host.tools.uid), [], "an executor stayed behind");
    assert!(!pair.socket().exists() && !pair.runtime.join("probe.sock").exists(), "a socket stayed behind");
    row(&error["checks"], id).unwrap_or_else(|| panic!("no {id}: {ran}"))
}

fn row(rows: &Value, id: &str) -> Option<Value> {
    let found = rows.as_array()?.iter().find(|row| row["id"] == id)?.clone();
    for key in ["evidence", "fix"] {
        assert!(key == "fix" && found["result"] == "pass" || !text(&found, key).is_empty(), "no {key}: {found}");
    }
    Some(found)
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

/// What doctor says of `id`, and its exit code.
#[track_caller]
fn doctor(pair: &Pair, id: &str) -> (Value, Option<i32>) {
    let ran = pair.salaam(&["doctor", "--json"]);
    (row(&ran.json()["probes"], id).unwrap_or_else(|| panic!("no {id}: {ran}")), ran.code)
}

/// A start and doctor both refuse for `id`, each with what was seen; gives the fix.
#[track_caller]
fn breaks(pair: &Pair, id: &str, seen: &str) -> String {
    let check = refused(pair, &pair.start_with(&["--json"]), id);
    assert!(text(&check, "evidence").contains(seen), "{seen}: {check}");
    let (said, code) = doctor(pair, id);
    assert_eq!((code, &said["severity"]), (Some(3), &Value::from("required")), "{said}");
    assert_eq!((&said["evidence"], &said["fix"]), (&check["evidence"], &check["fix"]));
    text(&check, "fix")
}

/// Types what was printed, as root.
#[track_caller]
fn follow(fix: &str) {
    ran::run(&["sh", "-ec", fix]);
}

#[track_caller]
fn starts(pair: &Pair) {
    pair.start().ok();
    pair.stop().ok();
}

/// A rule of sudo in a file of this run's own.
fn sudo_rule(host: &Host, name: &str, rule: &str) -> Mended {
    let path = PathBuf::from(format!("/etc/sudoers.d/{}", host.name(name)));
    fs::write(&path, format!("{rule}\n")).expect("root can write there");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).expect("it is ours");
    Mended::by(move || fs::remove_file(path))
}

/// `salaam service start` in mounts of its own, which `script` makes as root.
fn start_within(pair: &Pair, script: &str, words: &[&str]) -> Ran {
    let service = &pair.host.service;
    let script = format!("{script}\nexec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh", "setpriv", "--reuid"]);
    command.args([&service.uid.to_string(), "--regid", &service.gid.to_string(), "--init-groups", "--"]);
    command.arg(pair.host.salaam()).args(["service", "start", "--json", "--tools-user", &pair.host.tools.name]);
    command
        .args(words)
        .current_dir("/")
        .env_clear()
        .env("PATH", salaam_tests::account::PATH)
        .env("HOME", &service.home);
    pair.environment(&mut command);
    Ran::of(&mut command)
}

/// A script that lays a changeable copy over `directory`.
fn over(pair: &Pair, directory: &str) -> String {
    let layer = pair.state.with_file_name(format!("layer{}", directory.replace('/', "-")));
    for part in ["upper", "work"] {
        fs::create_dir_all(layer.join(part)).expect("root may");
    }
    let layer = layer.display();
    format!(
        "mount -t overlay overlay -o lowerdir={directory},upperdir={layer}/upper,workdir={layer}/work {directory}\n"
    )
}

#[test]
fn rights_of_the_service_that_are_too_wide_are_refused() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let (service, tools) = (&pair.host.service.name, &pair.host.tools.name);

    let held = ["--inh-caps", "+net_bind_service", "--ambient-caps", "+net_bind_service"];
    let mut command = pair.command_through(&pair.host.service, &held);
    let ran = Ran::of(command.args(["service", "start", "--json", "--tools-user", tools]));
    let check = refused(&pair, &ran, "service-capabilities");
    assert!(text(&check, "evidence").contains("CapAmb: 0000000000000400"), "{check}");
    let fix = text(&check, "fix");
    let through = fix.split_once("start through: ").expect("it says how").1;
    let mut command = pair.host.service.command_through(&held, "sh");
    pair.environment(&mut command);
    let salaam = pair.host.salaam().display().to_string();
    Ran::of(command.args(["-c", &through.replace("salaam service start", &format!("{salaam} service start"))])).ok();
    pair.stop().ok();

    for (rule, seen) in [
        (format!("{service} ALL=(root) NOPASSWD: /bin/ls"), "(root) NOPASSWD: /bin/ls"),
        (format!("{service} ALL=(ALL:ALL) NOPASSWD: ALL"), "became root"),
    ] {
        let wide = sudo_rule(pair.host, "wide", &rule);
        let fix = breaks(&pair, "service-sudo-wide", seen);
        let narrow = fix.split_once("only: ").expect("it names the rule that stays").1;
        let ours = fs::read_to_string(pair.host.sudoers()).expect("it is there");
        assert!(ours.lines().any(|line| line == narrow), "{narrow}\n{ours}");
        wide.mend();
        starts(&pair);
    }

    ran::run(&["gpasswd", "-d", service, &pair.host.name("work")]);
    let fix = breaks(&pair, "service-lacks-work-group", "the process has the groups");
    follow(fix.split(',').next().expect("a command"));
    starts(&pair);

    let ran = Ran::of(pair.command_as(&Account::root()).args(["service", "start", "--json", "--tools-user", tools]));
    let check = refused(&pair, &ran, "service-is-root");
    assert!(text(&check, "fix").contains("sudo -u salaam salaam service start"), "{check}");
}

#[test]
fn rights_of_the_tools_user_that_are_too_wide_are_refused() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let tools = &pair.host.tools.name;

    let rule = sudo_rule(pair.host, "can", &format!("{tools} ALL=(root) NOPASSWD: /bin/ls"));
    let fix = breaks(&pair, "tools-user-can-sudo", "`sudo -n -l` worked");
    let shown = ran::run(&["sudo", "-l", "-U", tools]);
    assert!(fix.starts_with(&format!("sudo -l -U {tools}")) && shown.says("NOPASSWD: /bin/ls"), "{fix} {shown}");
    rule.mend();
    starts(&pair);

    // One group too many, and the one that it must have missing.
    ran::run(&["gpasswd", "-a", tools, &pair.host.stranger.name]);
    ran::run(&["gpasswd", "-d", tools, &pair.host.name("work")]);
    let fix = breaks(&pair, "tools-user-groups", &pair.host.stranger.name);
    assert!(fix.contains("gpasswd -d") && fix.contains("usermod -aG"), "{fix}");
    follow(&fix);
    starts(&pair);

    let other = &pair.host.operator;
    let path = PathBuf::from(format!("/etc/salaam/{}.toml", other.name));
    let own = fs::read_to_string(pair.host.instance()).expect("it is there");
    let (service, uid) = (&pair.host.service.name, pair.host.service.uid);
    let theirs = own
        .replace(&format!("service_user = \"{service}\""), &format!("service_user = \"{}\"", other.name))
        .replace(&format!("service_uid = {uid}"), &format!("service_uid = {}", other.uid));
    fs::write(&path, theirs).expect("root can write there");
    let second = Mended::by(move || fs::remove_file(path));
    let fix = breaks(&pair, "tools-user-shared", &other.name);
    assert!(fix.contains(&format!("--service-user {} --undo", other.name)), "{fix}");
    second.mend();
    starts(&pair);
}

#[test]
fn what_the_tools_user_can_read_is_refused() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let (tools, home) = (&pair.host.tools.name, &pair.host.service.home);
    for (directory, id) in [(&pair.state, "state-readable"), (&pair.config, "config-readable")] {
        let path = directory.display().to_string();
        ran::run(&["setfacl", "-m", &format!("u:{tools}:rx"), &path]);
        let fix = breaks(&pair, id, &format!("the tools user listed {path}"));
        follow(&fix);
        starts(&pair);
    }

    let open_home = Mended::mode(home, 0o755);
    let secret = home.join(".netrc");
    fs::write(&secret, "machine x login y password z\n").expect("root can write there");
    chown(&secret, &pair.host.service.name);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let gone = Mended::by({
        let secret = secret.clone();
        move || fs::remove_file(secret)
    });
    follow(&breaks(&pair, "credential-readable", ".netrc"));
    starts(&pair);
    drop((gone, open_home));

    // A file of anybody's in the place of the service's own word about its environment.
    let ran = start_within(&pair, "mount --bind /etc/hostname /proc/$$/environ", &["--foreground"]);
    let check = refused(&pair, &ran, "environ-readable");
    assert!(text(&check, "evidence").contains("environ") && text(&check, "fix").contains("umount"), "{check}");
    starts(&pair);
}

#[test]
fn what_the_tools_user_can_connect_to_is_refused() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let (tools, runtime) = (&pair.host.tools, pair.runtime.display().to_string());
    // The mode of the directory says nothing of it: 0710 as it must be.
    ran::run(&["setfacl", "-m", &format!("u:{}:x", tools.name), "-d", "-m", &format!("u:{}:rw", tools.name), &runtime]);
    follow(&breaks(&pair, "operator-socket-reachable", "the tools user connected to"));
    starts(&pair);

    for (id, place) in [
        ("docker-socket-reachable", "/run/docker.sock".to_owned()),
        ("stk-socket-reachable", "/run/stk/a.sock".to_owned()),
        ("session-bus-socket-reachable", format!("/run/user/{}/bus", tools.uid)),
    ] {
        let socket = pair.state.with_file_name(format!("{id}.sock"));
        let _listens = UnixListener::bind(&socket).expect("the directory is root's");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("it is ours");
        let directory = Path::new(&place).parent().expect("it has one").display().to_string();
        let script = format!(
            "{}mkdir -p {directory}\ntouch {place}\nmount --bind {} {place}",
            over(&pair, "/run"),
            socket.display()
        );
        let check = refused(&pair, &start_within(&pair, &script, &[]), id);
        assert!(text(&check, "evidence").contains(&format!("connected to {place}")), "{check}");
        let fix = text(&check, "fix");
        // There is no systemd here that could end the account's bus: it is taken away by not being made.
        let mended = if id.starts_with("session") {
            assert!(fix.contains(&format!("loginctl disable-linger {}", tools.name)), "{fix}");
            String::new()
        } else {
            format!("{script}\n{fix}")
        };
        start_within(&pair, &mended, &[]).ok();
        pair.stop().ok();
    }
}

#[test]
fn a_damaged_journal_a_long_path_and_too_little_isolation_are_refused() {
    let _turn = limit!(120);
    let mut pair = Pair::new(Host::shared());
    starts(&pair);
    let database = pair.state.join("salaam.db");
    let mut bytes = fs::read(&database).expect("root may");
    // Behind its first page everything is something else.
    bytes.iter_mut().skip(4096).for_each(|byte| *byte = b'x');
    fs::write(&database, bytes).expect("root can write there");
    let fix = text(&refused(&pair, &pair.start_with(&["--json"]), "journal-damaged"), "fix");
    assert_eq!(doctor(&pair, "journal-damaged").1, Some(3));
    assert!(fix.contains("move it, its -wal and the blobs directory away together"), "{fix}");
    let away = pair.state.with_file_name("away");
    fs::create_dir(&away).expect("root may");
    for entry in fs::read_dir(&pair.state).expect("root may").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("salaam.db") || name == "blobs" {
            fs::rename(entry.path(), away.join(name)).expect("root may");
        }
    }
    starts(&pair);

    let long = pair.state.with_file_name("r".repeat(90));
    fs::create_dir(&long).expect("root may");
    chown(&long, &format!("{}:{}", pair.host.service.name, pair.host.name("ops")));
    fs::set_permissions(&long, fs::Permissions::from_mode(0o710)).expect("it is ours");
    pair.variables.push(("SALAAM_RUNTIME_DIR".into(), long.display().to_string()));
    let fix = breaks(&pair, "socket-path-long", "of at most 107");
    assert!(fix.contains("SALAAM_RUNTIME_DIR"), "{fix}");
    pair.variables.clear();
    starts(&pair);

    pair.configure("required_isolation = \"tools-user-bubblewrap\"\n");
    pair.salaam(&["host", "plan", "--pin"]).ok();
    let without = format!("{}rm -f /usr/bin/bwrap", over(&pair, "/usr/bin"));
    let check = refused(&pair, &start_within(&pair, &without, &[]), "required-isolation");
    assert!(text(&check, "evidence").contains("tools-user-no-os-sandbox is less than"), "{check}");
    assert!(text(&check, "fix").starts_with("mend the failed sandbox checks"), "{check}");
    starts(&pair);
    // Nothing required: it starts, says so, and refuses commands.
    pair.configure("");
    pair.salaam(&["host", "plan", "--pin"]).ok();
    let health = start_within(&pair, &without, &[]).ok().json();
    assert_eq!(health["status"], "degraded", "{health}");
    let ran = pair.salaam(&["doctor", "--json"]).ok();
    assert_eq!(ran.json()["result"], "warn", "{ran}");
}

#[test]
fn all_that_is_wrong_is_listed_at_once() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let (service, tools) = (&pair.host.service.name, &pair.host.tools.name);
    ran::run(&["gpasswd", "-a", tools, &pair.host.stranger.name]);
    let left = Mended::by({
        let (tools, group) = (tools.clone(), pair.host.stranger.name.clone());
        move || ran::run(&["gpasswd", "-d", &tools, &group]).code.map(drop).ok_or(std::io::ErrorKind::Other.into())
    });
    let broken = [
        sudo_rule(pair.host, "wide", &format!("{service} ALL=(root) NOPASSWD: /bin/ls")),
        sudo_rule(pair.host, "can", &format!("{tools} ALL=(root) NOPASSWD: /bin/ls")),
        Mended::mode(&pair.state, 0o755),
        Mended::mode(&pair.config, 0o755),
        Mended::mode(&pair.runtime, 0o755),
        left,
    ];
    let start = pair.start_with(&["--json"]);
    let doctor = pair.salaam(&["doctor", "--json"]);
    for id in [
        "service-sudo-wide",
        "tools-user-can-sudo",
        "tools-user-groups",
        "state-dir-mode",
        "config-dir-mode",
        "runtime-dir-mode",
        "state-readable",
        "config-readable",
    ] {
        refused(&pair, &start, id);
        assert_ne!(row(&doctor.json()["probes"], id).expect("it is there")["result"], "pass", "{doctor}");
    }
    drop(broken);
    starts(&pair);
    let sound = pair.salaam(&["doctor", "--json"]).ok().json();
    assert!(sound["source"] == "host" && sound["result"] != "fail", "{sound}");
}

#[test]
fn what_begins_to_fail_stops_new_grants_until_it_holds_again() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.run(&["true"]).ok();
    let open = Mended::mode(&pair.state, 0o755);
    let (check, code) = doctor(&pair, "state-readable");
    assert_eq!((code, &check["result"]), (Some(3), &Value::from("fail")), "{check}");
    let health = pair.health();
    assert!(health["status"] == "degraded" && health["warnings"].to_string().contains("state-readable"), "{health}");
    let run = pair.run(&["true"]);
    assert!(run.code == Some(125) && run.says("control-failed"), "{run}");
    follow(&text(&check, "fix"));
    assert_eq!(doctor(&pair, "state-readable").1, Some(0));
    pair.run(&["true"]).ok();
    drop(open);
    fs::set_permissions(&pair.state, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let told: Vec<String> = pair
        .events()
        .iter()
        .filter(|event| event["data"]["id"] == "state-readable")
        .map(|event| text(event, "kind"))
        .collect();
    assert_eq!(told, ["control.failed", "control.restored"]);
}

#[test]
fn the_timer_finds_it_without_being_asked() {
    let _turn = limit!(60);
    let pair = Pair::started_with(Host::shared(), "probe_interval_seconds = 1\n");
    let warned = |what: &str| pair.health()["warnings"].to_string().contains(what);
    let rule = sudo_rule(pair.host, "can", &format!("{} ALL=(root) NOPASSWD: /bin/ls", pair.host.tools.name));
    eventually("the rule is found", Duration::from_secs(10), || warned("tools-user-can-sudo").then_some(()));
    rule.mend();
    eventually("grants go on", Duration::from_secs(10), || (!warned("tools-user-can-sudo")).then_some(()));
    pair.run(&["true"]).ok();
}

/// The old recipe: no instance file, and a rule for every command.
#[test]
fn a_host_set_up_by_hand_works_and_is_told_what_to_narrow() {
    let _turn = limit!(60);
    let host = Host::shared();
    let service = &host.stranger;
    let tools = Account::made(&host.name("hand"), &host.prefix.join("homes/hand").display().to_string());
    let rule = sudo_rule(host, "hand", &format!("{} ALL=({}) NOPASSWD: ALL", service.name, tools.name));
    let salaam = |words: &[&str]| Ran::of(service.command(host.salaam()).args(words));
    let report = salaam(&["doctor", "--json", "--tools-user", &tools.name]).ok().json();
    assert!(report["source"] == "host" && report["result"] == "warn", "{report}");
    let wide = row(&report["probes"], "sudo-rule-wide").expect("it is there");
    let toolsd = host.libexec().join("salaam-toolsd").display().to_string();
    let narrow = format!("{} ALL=({}) NOPASSWD: {toolsd} \"\"", service.name, tools.name);
    assert!(wide["result"] == "warn" && text(&wide, "fix").ends_with(&narrow), "{wide}");
    let missing = row(&report["probes"], "instance-missing").expect("it is there");
    assert!(text(&missing, "fix").contains(&format!("--service-user {}", service.name)), "{missing}");
    salaam(&["service", "start", "--tools-user", &tools.name]).ok();
    salaam(&["service", "stop"]).ok();
    rule.mend();
    let narrowed = sudo_rule(host, "hand", &narrow);
    salaam(&["service", "start", "--tools-user", &tools.name]).ok();
    let report = salaam(&["doctor", "--json"]).ok().json();
    assert_eq!(row(&report["probes"], "sudo-rule-wide").expect("it is there")["result"], "pass");
    salaam(&["service", "stop"]).ok();
    narrowed.mend();
}

/// cron's own list decides, and the fix writes into it.
#[test]
fn what_could_stay_behind_degrades_and_its_fix_works() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    if !Path::new("/usr/bin/crontab").exists() {
        starts(&pair);
        assert!(text(&doctor(&pair, "can-cron").0, "evidence").starts_with("absent"));
        return;
    }
    let mut script = over(&pair, "/etc");
    script += "rm -f /etc/cron.allow /etc/cron.deny";
    let cron = |health: &Value| row(&health["tool_execution"]["probes"], "can-cron").expect("it is there");
    let health = start_within(&pair, &script, &[]).ok().json();
    pair.stop().ok();
    let check = cron(&health);
    assert!(health["status"] == "ok" && check["result"] == "warn", "{check}");
    let health = start_within(&pair, &format!("{script}\n{} >/dev/null", text(&check, "fix")), &[]).ok().json();
    pair.stop().ok();
    assert_eq!(cron(&health)["result"], "pass", "{}", cron(&health));
}
