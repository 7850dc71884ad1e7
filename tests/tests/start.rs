//! Each start check, by really breaking the host: it refuses with 3, names what it saw and what mends it,
//! leaves nothing behind, and starts once it is mended.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use salaam_tests::{Account, Host, Mended, Pair, host::chown, limit, process::Process, ran, ran::Ran};
use serde_json::Value;

/// The failed checks of a refused start; they must all be whole.
#[track_caller]
fn refused(pair: &Pair, ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, Some(3), "{ran}");
    let error = ran.json()["error"].clone();
    assert_eq!(error["id"], "start-refused", "{ran}");
    let checks = error["checks"].as_array().unwrap_or_else(|| panic!("no checks: {ran}")).clone();
    assert!(!checks.is_empty(), "{ran}");
    for check in &checks {
        for key in ["id", "evidence", "fix"] {
            assert!(check[key].as_str().is_some_and(|text| !text.is_empty()), "no {key}: {check}");
        }
    }
    assert!(pair.service_process().is_none(), "a service stayed behind");
    assert_eq!(Process::of_uid(pair.host.tools.uid), [], "an executor stayed behind");
    assert!(!pair.socket().exists(), "a socket stayed behind");
    checks
}

#[track_caller]
fn names(checks: &[Value]) -> Vec<&str> {
    checks.iter().filter_map(|check| check["id"].as_str()).collect()
}

#[track_caller]
fn refuses_with(pair: &Pair, ran: &Ran, id: &str) -> Value {
    let checks = refused(pair, ran);
    let found = checks.iter().find(|check| check["id"] == id);
    found.unwrap_or_else(|| panic!("`{id}` is not among {:?}: {ran}", names(&checks))).clone()
}

fn start_json(pair: &Pair) -> Ran {
    pair.start_with(&["--json"])
}

#[test]
fn a_sound_host_starts_prints_health_and_is_seen_and_stopped() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let start = Instant::now();
    let health = start_json(&pair).ok().json();
    eprintln!("started in {:?}", start.elapsed());
    assert_eq!(health["status"], "ok");
    let again = start_json(&pair);
    assert_eq!(again.code, Some(3), "{again}");
    assert!(again.says("state-locked"), "{again}");
    let service = pair.service_process().expect("it runs");
    assert_eq!(health["service_pid"], service.pid);
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid)).expect("it runs");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned();
    assert_eq!(field("CapEff:"), "0000000000000000");
    let terminal = fs::read_to_string(format!("/proc/{}/stat", service.pid)).expect("it runs");
    let after_name = terminal.rsplit_once(')').expect("a name").1.to_owned();
    assert_eq!(after_name.split_whitespace().nth(4), Some("0"), "it has no terminal");
    pair.salaam(&["service", "status"]).ok();
    pair.stop().ok();
    assert_eq!(pair.stop().code, Some(6));
    assert_eq!(Process::of_uid(pair.host.tools.uid), []);
    pair.start().ok();
}

/// 8 MiB of the newest lines, and three older files; whoever can make the service complain fills no disk.
#[test]
fn the_log_never_grows_past_its_bound() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    pair.start().ok();
    pair.stop().ok();
    let log = |older: &str| pair.state.join(format!("log/service.log{older}"));
    let bound = 8 << 20;
    for round in 0..5 {
        // One line is left of the bound, so that the next one does not fit.
        let mut text = vec![b'x'; bound - 10];
        text.extend_from_slice(format!("\n{round}\n").as_bytes());
        fs::write(log(""), text).expect("root may");
        chown(&log(""), &pair.host.service.name);
        pair.start().ok();
        // The executor's last words are among what is logged.
        pair.stop().ok();
        let newest = fs::metadata(log("")).expect("there is a new one").len();
        assert!(newest > 0 && newest < 100_000, "{newest}");
        let older = fs::read(log(".1")).expect("the full one stands beside it");
        assert!(older.ends_with(format!("\n{round}\n").as_bytes()) && older.len() <= bound);
    }
    let older =
        |n: u32| fs::read(log(&format!(".{n}"))).map(|text| text.ends_with(format!("\n{}\n", 5 - n).as_bytes()));
    assert!((1..=3).all(|n| older(n).is_ok_and(|newest| newest)), "the newest three");
    assert!(!log(".4").exists());
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&log("")), 0o600, "what it makes is nobody else's");
}

#[test]
fn the_state_is_nobody_elses_to_read() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.run(&["echo", "x"]).ok();
    let secret = pair.state.join("salaam.db");
    assert!(secret.exists());
    for path in [&pair.state, &pair.config, &secret, &pair.state.join("log/service.log")] {
        for account in [&pair.host.tools, &pair.host.stranger, &pair.host.operator] {
            let ran = Ran::of(account.command("cat").arg(path));
            assert!(
                ran.code != Some(0) && ran.err().contains("ermission denied"),
                "{} reads {}: {ran}",
                account.name,
                path.display()
            );
        }
    }
    for process in [pair.service_process(), pair.executors().pop()] {
        let pid = process.expect("it runs").pid;
        for part in ["environ", "mem", "maps", "fd"] {
            let path = format!("/proc/{pid}/{part}");
            for account in [&pair.host.tools, &pair.host.service] {
                let ran = Ran::of(account.command("ls").arg("-L").arg(format!("{path}/")));
                let read = Ran::of(account.command("head").args(["-c", "1", &path]));
                assert!(ran.code != Some(0) && read.code != Some(0), "{} reads {path}", account.name);
            }
        }
    }
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&pair.socket()) & 0o007, mode(&pair.runtime) & 0o007, mode(&secret)), (0, 0, 0o600));
}

/// On a host that was set up by hand, where no instance file says who the tools user is.
#[test]
fn a_tools_user_that_cannot_be_one_is_refused() {
    let _turn = limit!(60);
    let host = Host::shared();
    let by_hand = &host.stranger;
    for (user, id) in [
        ("no-such-account-here", "tools-user-missing"),
        ("root", "tools-user-root"),
        (by_hand.name.as_str(), "tools-user-is-service"),
    ] {
        let mut command = by_hand.command(host.salaam());
        let ran = Ran::of(command.args(["service", "start", "--json", "--tools-user", user]));
        assert_eq!(ran.code, Some(3), "{ran}");
        let checks = ran.json()["error"]["checks"].as_array().expect("checks").clone();
        let check = checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id}: {ran}"));
        assert!(check["evidence"].as_str().is_some_and(|text| text.contains(user)), "{check}");
        assert!(
            check["fix"].as_str().is_some_and(|fix| fix.contains("host setup") || fix.contains("useradd")),
            "{check}"
        );
        // sudo lets a child of its own send root a mail about what it denied.
        salaam_tests::eventually("nothing stays behind", Duration::from_secs(10), || {
            Process::of_uid(by_hand.uid).is_empty().then_some(())
        });
    }
}

/// Where root wrote down who it is, nobody else can be named.
#[test]
fn another_tools_user_than_the_instances_is_refused() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    for user in ["root", &pair.host.service.name, &pair.host.stranger.name] {
        let ran = pair.salaam(&["service", "start", "--json", "--tools-user", user]);
        assert!(matches!(ran.code, Some(2 | 3)), "{ran}");
        assert!(ran.says("tools_user") || ran.says("tools-user"), "{ran}");
        assert!(pair.service_process().is_none());
    }
    pair.start().ok();
}

/// B2: the kernel is asked before sudo is tried.
#[test]
fn no_new_privs_is_named_as_such() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let mut command = pair.command_through(&pair.host.service, &["--no-new-privs"]);
    let ran = Ran::of(command.args(["service", "start", "--json", "--tools-user", &pair.host.tools.name]));
    let check = refuses_with(&pair, &ran, "no-new-privs");
    assert!(check["fix"].as_str().is_some_and(|fix| fix.contains("NoNewPrivileges")), "{check}");
    pair.start().ok();
}

#[test]
fn a_missing_sudo_is_named_as_such() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let layer = pair.state.with_file_name("layer");
    for part in ["upper", "work"] {
        fs::create_dir_all(layer.join(part)).expect("root may");
    }
    let hide = format!(
        "mount -t overlay overlay -o lowerdir=/usr/bin,upperdir={0}/upper,workdir={0}/work /usr/bin && rm /usr/bin/sudo && exec \"$@\"",
        layer.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &hide, "sh", "setpriv", "--reuid"]);
    let service = &pair.host.service;
    command.args([&service.uid.to_string(), "--regid", &service.gid.to_string(), "--init-groups", "--"]);
    command.arg(pair.host.salaam()).args(["service", "start", "--json", "--tools-user", &pair.host.tools.name]);
    command.env_clear().env("PATH", salaam_tests::account::PATH).env("HOME", &service.home);
    pair.environment(&mut command);
    let check = refuses_with(&pair, &Ran::of(&mut command), "sudo-missing");
    assert!(check["fix"].as_str().is_some_and(|fix| fix.contains("sudo")), "{check}");
    pair.start().ok();
}

#[test]
fn a_missing_rule_is_refused_with_the_rule_to_add_and_that_rule_mends_it() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let away = Mended::moved_away(&pair.host.sudoers());
    let check = refuses_with(&pair, &start_json(&pair), "sudo-denied");
    let fix = check["fix"].as_str().expect("a fix").to_owned();
    let toolsd = pair.host.libexec().join("salaam-toolsd").display().to_string();
    assert!(fix.contains("host setup") || (fix.contains("NOPASSWD") && fix.contains(&toolsd)), "{fix}");
    away.mend();
    pair.start().ok();
}

#[test]
fn an_executor_that_is_missing_or_not_roots_alone_is_refused() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let toolsd = pair.host.libexec().join("salaam-toolsd");
    let away = Mended::moved_away(&toolsd);
    let check = refuses_with(&pair, &start_json(&pair), "executor-missing");
    assert!(check["evidence"].as_str().is_some_and(|text| text.contains("salaam-toolsd")), "{check}");
    away.mend();
    let open = Mended::mode(&toolsd, 0o777);
    refuses_with(&pair, &start_json(&pair), "executor-writable");
    open.mend();
    let open = Mended::mode(&pair.host.libexec(), 0o777);
    refuses_with(&pair, &start_json(&pair), "executor-writable");
    open.mend();
    chown(&toolsd, &pair.host.tools.name);
    let owned = Mended::by({
        let toolsd = toolsd.clone();
        move || {
            chown(&toolsd, "root:root");
            Ok(())
        }
    });
    refuses_with(&pair, &start_json(&pair), "executor-writable");
    owned.mend();
    fs::set_permissions(&toolsd, fs::Permissions::from_mode(0o711)).expect("it is root's");
    pair.start().ok();
}

/// They run with the service user's rights: whoever can write them has those.
#[test]
fn a_worker_or_a_reader_that_is_missing_or_not_roots_alone_is_refused() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    for name in ["salaam-worker", "salaam-reader"] {
        let program = pair.host.libexec().join(name);
        let away = Mended::moved_away(&program);
        let check = refuses_with(&pair, &start_json(&pair), "executor-missing");
        assert!(check["evidence"].as_str().is_some_and(|text| text.contains(name)), "{check}");
        away.mend();
        let open = Mended::mode(&program, 0o777);
        let check = refuses_with(&pair, &start_json(&pair), "executor-writable");
        assert!(check["evidence"].as_str().is_some_and(|text| text.contains(name)), "{check}");
        open.mend();
    }
    pair.start().ok();
}

#[test]
fn an_executor_of_another_version_is_refused_by_both_versions() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let toolsd = pair.host.libexec().join("salaam-toolsd");
    let other = Mended::replaced(&toolsd, b"#!/bin/sh\nprintf 'SALAAMTOOLSD\\143\\0\\0\\0' >&0\nexec sleep 5\n", 0o755);
    let check = refuses_with(&pair, &start_json(&pair), "executor-version");
    let evidence = check["evidence"].as_str().expect("evidence").to_owned();
    assert!(
        evidence.contains("99") && evidence.bytes().filter(u8::is_ascii_digit).count() > 2,
        "both are named: {evidence}"
    );
    other.mend();
    pair.start().ok();
}

#[test]
fn an_executor_that_does_not_prove_itself_is_refused() {
    let _turn = limit!(200);
    let pair = Pair::new(Host::shared());
    let toolsd = pair.host.libexec().join("salaam-toolsd");
    for program in [
        "#!/bin/sh\nprintf 'NOT-THE-EXECUTOR' >&0\nexec sleep 3\n",
        "#!/bin/sh\nprintf 'SALAAM' >&0\n",
        "#!/bin/sh\nexit 0\n",
        "#!/bin/sh\nhead -c 4096 /dev/zero >&0\nexec sleep 3\n",
        "#!/bin/sh\nprintf 'SALAAMTOOLSD\\1\\0\\0\\0' >&0\nhead -c 16 <&0 >/dev/null\nhead -c 1000000 /dev/urandom >&0\nexec sleep 3\n",
        "#!/bin/sh\nprintf 'SALAAMTOOLSD\\1\\0\\0\\0' >&0\nexec sleep 30\n",
    ] {
        let other = Mended::replaced(&toolsd, program.as_bytes(), 0o755);
        let start = Instant::now();
        let checks = refused(&pair, &start_json(&pair));
        assert!(names(&checks).iter().any(|id| id.starts_with("executor-")), "{program}: {checks:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        other.mend();
    }
    pair.start().ok();
}

#[test]
fn directories_that_others_can_enter_are_refused_and_so_is_what_they_then_read() {
    let _turn = limit!(120);
    let pair = Pair::new(Host::shared());
    let open = Mended::mode(&pair.state, 0o755);
    let checks = refused(&pair, &start_json(&pair));
    let found = names(&checks);
    assert!(found.contains(&"state-dir-mode") && found.contains(&"state-readable"), "{found:?}");
    let mode = checks.iter().find(|check| check["id"] == "state-dir-mode").expect("just seen");
    assert!(mode["evidence"].to_string().contains("755"), "{mode}");
    follow(&pair.host.service, mode);
    pair.start().ok();
    pair.stop().ok();
    open.mend();
    fs::set_permissions(&pair.state, fs::Permissions::from_mode(0o700)).expect("it is ours");

    let open = Mended::mode(&pair.config, 0o750);
    follow(&pair.host.service, &refuses_with(&pair, &start_json(&pair), "config-dir-mode"));
    drop(open);
    fs::set_permissions(&pair.config, fs::Permissions::from_mode(0o700)).expect("it is ours");

    let open = Mended::mode(&pair.runtime, 0o777);
    refuses_with(&pair, &start_json(&pair), "runtime-dir-mode");
    open.mend();
    pair.start().ok();
}

/// Runs the first `chmod` of a fix as the account that it is for.
#[track_caller]
fn follow(account: &Account, check: &Value) {
    let fix = check["fix"].as_str().expect("a fix");
    let at = fix.find("chmod ").unwrap_or_else(|| panic!("no chmod in the fix: {fix}"));
    let words: Vec<&str> =
        fix[at..].split_whitespace().take(3).map(|word| word.trim_matches(['`', '\'', ';', ',', '.'])).collect();
    Ran::of(account.command(words[0]).args(&words[1..])).ok();
}

#[test]
fn state_of_another_owner_is_refused() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    chown(&pair.state, "root");
    let ran = start_json(&pair);
    assert!(matches!(ran.code, Some(3)), "{ran}");
    assert!(ran.says("state-dir-mode") || ran.says("state-"), "{ran}");
    chown(&pair.state, &pair.host.service.name);
    pair.start().ok();
}

#[test]
fn all_that_is_wrong_is_listed_at_once() {
    let _turn = limit!(60);
    let pair = Pair::new(Host::shared());
    let broken =
        [Mended::mode(&pair.state, 0o755), Mended::mode(&pair.config, 0o755), Mended::moved_away(&pair.host.sudoers())];
    let checks = refused(&pair, &start_json(&pair));
    let found = names(&checks);
    for id in ["state-dir-mode", "config-dir-mode", "sudo-denied"] {
        assert!(found.contains(&id), "{id} is missing in {found:?}");
    }
    let plain = pair.start();
    assert_eq!(plain.code, Some(3), "{plain}");
    assert!(found.iter().all(|id| plain.says(id)), "a person sees them all: {plain}");
    drop(broken);
    pair.start().ok();
}

#[test]
fn a_changed_plan_is_refused_until_it_is_pinned() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let before = pair.health()["manifest"].clone();
    pair.stop().ok();
    pair.configure("approval_ttl_seconds = 77\n\n[limits]\nprocesses = 99\n");
    let check = {
        // Without flags: flags on start pin anew.
        let ran = pair.salaam(&["service", "start", "--json"]);
        refuses_with(&pair, &ran, "plan-changed")
    };
    assert!(check["evidence"].to_string().contains("approval_ttl_seconds"), "{check}");
    assert!(check["fix"].as_str().is_some_and(|fix| fix.contains("salaam host plan --pin")), "{check}");
    pair.salaam(&["host", "plan", "--pin"]).ok();
    pair.salaam(&["service", "start", "--json"]).ok();
    let after = pair.health()["manifest"].clone();
    assert_ne!(before, after);
    let planned = pair.events().into_iter().rfind(|event| event["kind"] == "host.planned").expect("recorded");
    assert!(planned["data"]["difference"].to_string().contains("limits.processes"), "{planned}");
    let result = pair.result(&[], &["true"]);
    assert_eq!(result["manifest"], after);
}

#[test]
fn the_loss_of_the_executor_is_seen_journaled_and_made_good() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let old = pair.executors().pop().expect("it runs");
    let epoch = pair.health()["tool_execution"]["executors"][0]["epoch"].as_u64().expect("a number");
    old.kill();
    salaam_tests::eventually("it is journaled", Duration::from_secs(2), || {
        pair.events().into_iter().find(|event| event["kind"] == "executor.lost")
    });
    salaam_tests::eventually("a new one works", Duration::from_secs(10), || {
        (pair.run(&["true"]).code == Some(0)).then_some(())
    });
    let after = pair.health()["tool_execution"]["executors"][0]["epoch"].as_u64().expect("a number");
    assert!(after > epoch, "{after} after {epoch}");
    assert_eq!(pair.executors().len(), 1);
}

#[test]
fn host_setup_is_harmless_the_second_time_and_prints_before_it_acts() {
    let _turn = limit!(60);
    let host = Host::shared();
    let words = [
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
        &host.workspace.display().to_string(),
    ];
    let sudoers = fs::read(host.sudoers()).expect("it is there");
    let instance = fs::read(host.instance()).expect("it is there");
    ran::run(&[&[host.salaam().display().to_string().as_str()], &words[..], &["--dry-run"]].concat());
    assert_eq!(fs::read(host.instance()).expect("it is there"), instance);
    ran::run(&[&[host.salaam().display().to_string().as_str()], &words[..]].concat());
    assert_eq!(fs::read(host.sudoers()).expect("it is there"), sudoers);
    assert_eq!(fs::read(host.instance()).expect("it is there"), instance);
    let mode = fs::metadata(host.sudoers()).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o440);
    let denied = |words: &[&str]| {
        let ran = Ran::of(host.service.command("sudo").arg("-n").args(words));
        assert_ne!(ran.code, Some(0), "the rule is wider than it should be: {ran}");
    };
    let toolsd = host.libexec().join("salaam-toolsd").display().to_string();
    denied(&["-u", &host.tools.name, "--", &toolsd, "an-argument"]);
    denied(&["-u", &host.tools.name, "--", "/bin/sh", "-c", "id"]);
    denied(&["-u", "root", "--", &toolsd]);
    denied(&["-u", &host.tools.name, "-g", "root", "--", &toolsd]);
    denied(&["--", "id"]);
}
