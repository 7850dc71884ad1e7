//! A broken host is mended by typing what a refused start printed, word for word: the next start succeeds. What
//! `fails_closed.rs` follows already is not repeated here.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use salaam_tests::{
    Account, Host, Mended, Pair, Ran, Within,
    host::{chown, sources},
    limit,
    pair::text,
    ran,
};
use serde_json::Value;

/// Every id that a start can refuse for or degrade with, as the design names them, and the two that only warn.
const IDS: &[&str] = &[
    "service-is-root",
    "service-capabilities",
    "service-sudo-wide",
    "service-lacks-work-group",
    "tools-user-missing",
    "tools-user-root",
    "tools-user-is-service",
    "tools-user-groups",
    "tools-user-can-sudo",
    "tools-user-shared",
    "no-new-privs",
    "sudo-missing",
    "sudo-denied",
    "executor-missing",
    "executor-writable",
    "executor-identity",
    "executor-version",
    "state-dir-mode",
    "config-dir-mode",
    "runtime-dir-mode",
    "state-readable",
    "config-readable",
    "credential-readable",
    "environ-readable",
    "operator-socket-reachable",
    "docker-socket-reachable",
    "stk-socket-reachable",
    "session-bus-socket-reachable",
    "socket-path-long",
    "state-locked",
    "plan-changed",
    "required-isolation",
    "journal-damaged",
    "sandbox-userns",
    "sandbox-mount",
    "sandbox-net",
    "sandbox-landlock",
    "sandbox-seccomp",
    "sandbox-canary",
    "can-linger",
    "can-cron",
    "can-at",
    "sudo-rule-wide",
    "instance-missing",
];

#[test]
fn every_check_is_carried_out_by_doctor_and_broken_by_a_test() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let report = pair.salaam(&["doctor", "--json"]).ok().json();
    let shown: BTreeSet<String> =
        report["probes"].as_array().expect("a list").iter().map(|probe| text(probe, "id")).collect();
    let known: BTreeSet<String> = IDS.iter().map(|id| (*id).to_owned()).collect();
    assert_eq!(shown, known);
    let suites = ["start", "fails_closed", "degraded", "fixes"]
        .map(|name| fs::read_to_string(sources().join(format!("tests/tests/{name}.rs"))).expect("it is there"));
    // Once in the list above is not enough.
    let broken = |id: &&&str| suites.iter().map(|suite| suite.matches(&format!("\"{id}\"")).count()).sum::<usize>() > 1;
    let unbroken: Vec<_> = IDS.iter().filter(|id| !broken(id)).collect();
    assert_eq!(unbroken, [] as [&&str; 0]);
}

/// The row `id` of a refused start.
#[track_caller]
fn refused(ran: &Ran, id: &str, seen: &str) -> String {
    assert_eq!(ran.code, Some(3), "{ran}");
    let rows = ran.json()["error"]["checks"].clone();
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == id).cloned());
    let row = row.unwrap_or_else(|| panic!("no {id}: {ran}"));
    assert!(text(&row, "evidence").contains(seen), "{seen}: {row}");
    text(&row, "fix")
}

#[track_caller]
fn start(pair: &Pair, id: &str, seen: &str) -> String {
    refused(&pair.start_with(&["--json"]), id, seen)
}

/// Types it as root, in a checkout. sudo changes nothing for root, and would not find an installation in /opt.
#[track_caller]
fn follow(host: &Host, fix: &str) {
    let path = format!("{}:{}", host.prefix.join("bin").display(), std::env::var("PATH").expect("a path"));
    let script = format!("sudo() {{ \"$@\"; }}\n{fix}");
    Ran::with_input(
        Command::new("sh").args(["-ec", &script]).env("PATH", path).current_dir(sources()),
        b"",
        std::time::Duration::from_secs(300),
    )
    .ok();
}

#[track_caller]
fn starts(pair: &Pair) {
    pair.start().ok();
    pair.stop().ok();
}

/// On a host that nobody set up: set-up makes the account that the fix names.
#[test]
fn a_tools_user_that_cannot_be_one_is_mended_by_the_set_up_that_is_printed() {
    let _turn = limit!(180);
    let host = Host::shared();
    let service = &host.stranger;
    let own = host.name("out-tools");
    let salaam = |words: &[&str]| Ran::of(service.command(host.salaam()).args(words));
    for (user, id, seen) in [
        (own.as_str(), "tools-user-missing", "there is no account"),
        ("root", "tools-user-root", "root is uid 0"),
        (service.name.as_str(), "tools-user-is-service", "which is the service's own"),
    ] {
        let fix = refused(&salaam(&["service", "start", "--json", "--tools-user", user]), id, seen);
        let words = ["--service-user", &service.name, "--tools-user", &own, "--group", &host.name("out-work")];
        assert_eq!(fix, format!("sudo salaam host setup {}", words.join(" ")));
        follow(host, &fix);
        let health = salaam(&["service", "start", "--json", "--tools-user", &own]).ok().json();
        assert_eq!((health["status"].as_str(), health["floor"].as_str()), (Some("ok"), Some("instance")), "{health:#}");
        salaam(&["service", "stop"]).ok();
        ran::run(&[&host.salaam().display().to_string(), "host", "setup", "--service-user", &service.name, "--undo"]);
        assert_eq!(Account::named(&own), None);
    }
}

#[test]
fn a_uid_with_two_names_is_no_tools_users() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let tools = &pair.host.tools;
    // One more account in an account database of this service's own.
    let second = Within::new(&pair).over("/etc").after(format!(
        "echo 'second:x:{}:{}::/nonexistent:/usr/sbin/nologin' >>/etc/passwd; echo 'second:!::::::' >>/etc/shadow",
        tools.uid, tools.gid
    ));
    let fix = refused(&second.start(&[]), "tools-user-shared", "are both uid");
    assert_eq!(fix, "give one of them a uid of its own: sudo usermod -u UID second");
    let typed = fix.split_once(": ").expect("a command").1.replace("UID", "64218");
    second.after(typed).start(&[]).ok();
    pair.stop().ok();
}

#[test]
fn a_missing_rule_is_mended_by_the_line_that_is_printed_in_the_file_that_is_named() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let away = Mended::moved_away(&pair.host.sudoers());
    let fix = start(&pair, "sudo-denied", "");
    let (place, line) = fix.split_once(" (visudo -f): ").expect("a file and a line");
    let place = PathBuf::from(place.strip_prefix("as root, in ").expect("it says where"));
    assert_eq!(place, pair.host.sudoers());
    fs::write(&place, format!("{line}\n")).expect("root may");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o440)).expect("it is ours");
    ran::run(&["visudo", "-c", "-q", "-f", &place.display().to_string()]);
    starts(&pair);
    away.mend();
}

#[test]
fn a_sudo_without_its_bit_is_no_sudo() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let without = Within::new(&pair).over("/usr/bin").after("chmod u-s /usr/bin/sudo");
    let fix = refused(&without.start(&[]), "sudo-missing", "it is not set-uid root");
    assert_eq!(fix, "apt-get install --reinstall sudo");
    // What that puts back.
    without.after("chmod 4755 /usr/bin/sudo").start(&[]).ok();
    pair.stop().ok();
}

#[test]
fn an_executor_that_is_gone_open_foreign_or_of_another_build_is_mended_by_the_command_that_is_printed() {
    let _turn = limit!(300);
    let pair = Pair::new(Host::shared());
    let toolsd = pair.host.libexec().join("salaam-toolsd");
    let install = format!("sudo packaging/install --prefix {}", pair.host.prefix.display());

    let away = Mended::moved_away(&toolsd);
    let fix = start(&pair, "executor-missing", "salaam-toolsd");
    assert_eq!(fix, format!("{install}, or set SALAAM_LIBEXEC_DIR to where they are"));
    follow(pair.host, fix.split(',').next().expect("a command"));
    starts(&pair);
    drop(away);

    for path in [toolsd.clone(), pair.host.libexec()] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).expect("it is ours");
        chown(&path, &pair.host.tools.name);
        follow(pair.host, &start(&pair, "executor-writable", &path.display().to_string()));
        chown(&path, "root:root");
        starts(&pair);
    }
    fs::set_permissions(&toolsd, fs::Permissions::from_mode(0o711)).expect("it is root's");

    for (program, id, seen) in [
        ("#!/bin/sh\nprintf 'SALAAMTOOLSD\\143\\0\\0\\0' >&0\nexec sleep 5\n", "executor-version", "version 99"),
        (
            "#!/bin/sh\nprintf 'SALAAMTOOLSX\\1\\0\\0\\0' >&0\nexec sleep 5\n",
            "executor-identity",
            "not that of salaam-toolsd",
        ),
    ] {
        let other = Mended::replaced(&toolsd, program.as_bytes(), 0o755);
        let fix = start(&pair, id, seen);
        assert!(fix.contains(&install), "{fix}");
        follow(pair.host, &install);
        starts(&pair);
        drop(other);
    }
    starts(&pair);
}

#[test]
fn directories_are_mended_by_the_commands_that_are_printed() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    for (directory, id) in
        [(&pair.state, "state-dir-mode"), (&pair.config, "config-dir-mode"), (&pair.runtime, "runtime-dir-mode")]
    {
        let shown = directory.display().to_string();
        let mode = |mode| fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("it is ours");
        mode(0o775);
        follow(pair.host, &start(&pair, id, "0775"));
        starts(&pair);
        chown(directory, "root");
        follow(pair.host, &start(&pair, id, &format!("{shown} has mode")));
        starts(&pair);
        // Above it somebody else may write: it could be exchanged whole.
        let above = directory.parent().expect("it has one");
        let open = Mended::mode(above, 0o777);
        follow(pair.host, &start(&pair, id, "could be exchanged"));
        starts(&pair);
        drop(open);
    }
    // The operators still reach it.
    pair.start().ok();
    pair.salaam_as(&pair.host.operator, &["health"]).ok();
}

#[test]
fn a_state_that_is_somebody_elses_is_free_again_after_the_stop_that_is_printed() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let again = pair.start_with(&["--json"]);
    let holder = pair.service_process().expect("it runs").pid;
    let fix = refused(&again, "state-locked", &holder.to_string());
    assert!(fix.contains("salaam service stop ends it"), "{fix}");
    pair.stop().ok();
    starts(&pair);
}

/// A host set up by hand, told what to narrow and how to write itself down; then it is one like any other.
#[test]
fn a_host_without_an_instance_file_is_written_down_by_the_set_up_that_is_printed() {
    let _turn = limit!(120);
    let host = Host::shared();
    let service = &host.stranger;
    let home = host.prefix.join("homes/hand").display().to_string();
    let tools = Account::named(&host.name("hand")).unwrap_or_else(|| Account::made(&host.name("hand"), &home));
    let rule = PathBuf::from(format!("/etc/sudoers.d/{}", host.name("hand")));
    fs::write(&rule, format!("{} ALL=({}) NOPASSWD: ALL\n", service.name, tools.name)).expect("root may");
    fs::set_permissions(&rule, fs::Permissions::from_mode(0o440)).expect("it is ours");
    let gone = Mended::by(move || fs::remove_file(rule));
    let salaam = |words: &[&str]| Ran::of(service.command(host.salaam()).args(words));
    let health = salaam(&["service", "start", "--json", "--tools-user", &tools.name]).ok().json();
    assert_eq!((health["status"].as_str(), health["floor"].as_str()), (Some("ok"), Some("builtin")), "{health:#}");
    let workspace = host.workspace(&format!("hand-{}", std::process::id()));
    let probes = health["tool_execution"]["probes"].as_array().expect("a list");
    let fix_of = |id: &str| {
        let probe = probes.iter().find(|probe| probe["id"] == id).unwrap_or_else(|| panic!("no {id}: {health:#}"));
        assert_eq!(
            (probe["result"].as_str(), probe["severity"].as_str()),
            (Some("warn"), Some("degrading")),
            "{probe}"
        );
        text(probe, "fix")
    };
    let narrow = fix_of("sudo-rule-wide");
    assert!(narrow.starts_with("in visudo, instead of it: "), "{narrow}");
    let fix = fix_of("instance-missing");
    salaam(&["service", "stop"]).ok();
    drop(gone);
    follow(host, &fix);
    let health = salaam(&["service", "start", "--json", "--tools-user", &tools.name]).ok().json();
    assert_eq!((health["status"].as_str(), health["floor"].as_str()), (Some("ok"), Some("instance")), "{health:#}");
    let probes: &Vec<Value> = health["tool_execution"]["probes"].as_array().expect("a list");
    for id in ["sudo-rule-wide", "instance-missing"] {
        assert!(probes.iter().any(|probe| probe["id"] == id && probe["result"] == "pass"), "{health:#}");
    }
    salaam(&["service", "stop"]).ok();
    ran::run(&[&host.salaam().display().to_string(), "host", "setup", "--service-user", &service.name, "--undo"]);
    drop(fs::remove_dir_all::<&Path>(workspace.as_ref()));
}

/// B5: what the tools user cannot use in a workspace is listed when that is set up, not met later as a riddle; and that
/// it can use nothing else is tried before anything runs.
#[test]
fn a_workspace_that_the_tools_user_cannot_use_whole_is_listed_and_a_readable_state_refuses() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let host = pair.host;
    let workspace = host.workspace(&format!("b5-{}", std::process::id()));
    let made = |name: &str, owner: &str, mode: u32| {
        let path = workspace.join(name);
        fs::write(&path, name).expect("root may");
        chown(&path, &format!("{owner}:{owner}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    made("secret", &host.service.name, 0o600);
    made("foreign", &host.stranger.name, 0o644);
    let plain = workspace.join("plain");
    fs::create_dir(&plain).expect("root may");
    chown(&plain, &format!("{0}:{0}", host.service.name));
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let shown = workspace.display().to_string();
    let set_up = ran::run(&[
        &host.salaam().display().to_string(),
        "host",
        "setup",
        "--service-user",
        &host.service.name,
        "--tools-user",
        &host.tools.name,
        "--group",
        &host.name("work"),
        "--operators-group",
        &host.name("ops"),
        "--workspace",
        &shown,
    ]);
    let said = set_up.out();
    let listed = |name: &str, why: &str| said.lines().any(|line| line.contains(name) && line.contains(why));
    assert!(listed("secret", "private") && listed("foreign", "somebody else"), "{said}");
    assert_eq!(fs::metadata(&plain).expect("it is there").permissions().mode() & 0o7070, 0o2070, "mended, not listed");

    let open = Mended::mode(&pair.state, 0o755);
    let ran = pair.start_with(&["--json"]);
    for id in ["state-dir-mode", "state-readable"] {
        refused(&ran, id, &pair.state.display().to_string());
    }
    drop(open);
    pair.start().ok();
    pair.salaam(&["workspace", "add", &shown]).ok();
    let script = "echo x >made; echo x >plain/made; cat secret; sudo -n true; id -Gn; exit 0";
    let ran = pair.salaam(&["run", "--yes", "--workspace", &shown, "--", "sh", "-c", script]).ok();
    assert!(workspace.join("made").exists() && workspace.join("plain/made").exists(), "{ran}");
    assert!(ran.err().contains("secret: Permission denied"), "{ran}");
}
