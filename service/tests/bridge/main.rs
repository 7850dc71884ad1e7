//! The bridge between two real accounts, through the real sudo. Needs root (it makes and removes accounts, a
//! sudoers drop-in and an instance file of its own), sudo, setpriv and python3.
//!
//! The service's side runs in a process of the service account: this binary again, as [`driver`], told what to
//! do on its standard input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the functions beside the tests are tests too"
)]

mod driver;
mod pair;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use pair::{Pair, dead, wait_until};

/// Loss must be seen and the next executor be there within this.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn driver() {
    driver::main();
}

#[test]
fn both_sides_are_verified_and_a_stop_leaves_nothing() {
    let pair = Pair::new("ok");
    let mut driver = pair.driver();
    let up = driver.started();
    assert_eq!((up.epoch, up.uid, up.floor.as_str()), (1, pair.tools_uid, "instance"));
    assert_eq!(up.groups, vec![pair.tools_gid]);
    assert!(up.sudo_pid != 0 && up.sudo_pid != up.pid);
    driver.expect("@notice started 1");

    // Positive control: the same attempts succeed where the account may.
    driver.tell("try");
    assert_eq!(driver.expect("@tried"), format!("@tried null=0 shadow={} nowhere={}", libc_eacces(), libc_enoent()));

    let status = std::fs::read_to_string(format!("/proc/{}/status", up.pid)).unwrap();
    for line in ["NoNewPrivs:\t1", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "Umask:\t0002"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let links = |what: &str| std::fs::read_link(format!("/proc/{}/{what}", up.pid)).unwrap();
    assert_eq!(links("cwd").to_str(), Some("/"));
    assert_eq!(links("fd/0").to_str(), Some("/dev/null"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", up.pid)).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max core file size") && line.contains(" 0 ")), "{limits}");
    let environment = std::fs::read(format!("/proc/{}/environ", up.sudo_pid)).unwrap();
    assert!(environment.is_empty(), "sudo had an environment: {}", String::from_utf8_lossy(&environment));
    let line = std::fs::read(format!("/proc/{}/cmdline", up.sudo_pid)).unwrap();
    let line = String::from_utf8(line).unwrap().replace('\0', " ");
    assert_eq!(line.trim_end(), format!("sudo -n -u {} -- {}", pair.tools, pair.toolsd().display()));
    // Non-dumpable: another process of the account cannot look into it.
    let peeked = pair.as_tools(&["cat", &format!("/proc/{}/environ", up.pid)]);
    assert!(!peeked.status.success(), "its environment is readable");

    driver.tell("stop");
    driver.expect("@stopped children=0");
    assert!(dead(up.pid) && dead(up.sudo_pid));
    assert_eq!(driver.finish(), Vec::<String>::new(), "a requested stop is no loss");
}

#[test]
fn a_killed_executor_is_seen_its_calls_fail_and_the_next_has_a_new_epoch() {
    let pair = Pair::new("kt");
    let mut driver = pair.driver();
    let up = driver.started();
    driver.expect("@notice started 1");
    // Stopped, so that the call is certainly pending when the executor dies.
    pair::stop(up.pid);
    driver.tell("pend");
    driver.expect("@pending");
    let killed = Instant::now();
    pair::signal(up.pid, "KILL");
    let pended = driver.expect("@pended");
    assert!(pended.contains("the executor is gone"), "{pended}");
    driver.expect("@notice lost 1");
    driver.expect("@notice started 2");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    driver.tell("link");
    assert!(driver.expect("@link").starts_with("@link up 2"));
    driver.tell("stop");
    driver.expect("@stopped children=0");
}

#[test]
fn a_killed_sudo_closes_the_bridge_and_the_executor_behind_it_ends() {
    let pair = Pair::new("ks");
    let mut driver = pair.driver();
    let up = driver.started();
    driver.expect("@notice started 1");
    let killed = Instant::now();
    pair::signal(up.sudo_pid, "KILL");
    assert!(driver.expect("@notice lost 1").contains("sudo"));
    assert!(dead(up.pid) || killed.elapsed() < SOON);
    driver.expect("@notice started 2");
    assert!(dead(up.pid), "the next executor started beside the old one");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    driver.tell("stop");
    driver.expect("@stopped children=0");
}

#[test]
fn ten_losses_in_a_row_leave_one_executor_and_no_zombie() {
    let pair = Pair::new("ten");
    let mut driver = pair.driver();
    let mut up = driver.started();
    driver.expect("@notice started 1");
    for epoch in 2..=5 {
        pair::signal(if epoch % 2 == 0 { up.pid } else { up.sudo_pid }, "KILL");
        driver.expect("@notice started");
        driver.tell("link");
        let line = driver.expect("@link up");
        let numbers: Vec<i64> = line.split(' ').skip(2).map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers[0], epoch);
        (up.pid, up.sudo_pid) = (i32::try_from(numbers[1]).unwrap(), i32::try_from(numbers[2]).unwrap());
        assert_eq!(pair.executors(), vec![up.pid]);
    }
    driver.tell("stop");
    driver.expect("@stopped children=0");
    assert_eq!(pair.executors(), Vec::<i32>::new());
}

#[test]
fn an_executor_that_cannot_be_proven_gone_is_the_last_one() {
    let pair = Pair::new("wedge");
    let mut driver = pair.driver();
    let up = driver.started();
    driver.expect("@notice started 1");
    pair::stop(up.pid);
    pair::signal(up.sudo_pid, "KILL");
    driver.expect("@notice lost 1");
    let failed = driver.expect("@notice control-failed");
    assert!(failed.contains("executor-not-gone") && failed.contains("still runs"), "{failed}");
    driver.tell("link");
    assert!(driver.expect("@link").starts_with("@link down executor-not-gone"));
    pair::signal(up.pid, "KILL");
    driver.tell("stop");
    driver.expect("@stopped children=0");
    assert_eq!(driver.finish(), Vec::<String>::new());
}

/// A sudo that is killed says nothing about what it started. What never got an answer was told nothing: it is enough
/// that it let go of the bridge, and not enough that it did not.
#[test]
fn an_executor_without_an_answer_is_gone_with_its_bridge_however_its_sudo_ended() {
    for (holds, script) in [(false, "b.recv(1); sys.exit(0)"), (true, "time.sleep(60)")] {
        let pair = Pair::new(if holds { "holds" } else { "letsgo" });
        pair.fake(script);
        let mut driver = pair.driver();
        let mine = |name: &str| {
            let found =
                Command::new("pgrep").args(["-u", name, "-f", pair.toolsd().to_str().unwrap()]).output().unwrap();
            let pids = String::from_utf8(found.stdout).unwrap();
            pids.lines().filter_map(|pid| pid.parse::<i32>().ok()).collect::<Vec<_>>()
        };
        let tools = pair.tools_uid.to_string();
        wait_until("the executor that says nothing runs", || !mine(&tools).is_empty());
        let executor = mine(&tools);
        mine("root").iter().for_each(|sudo| pair::signal(*sudo, "KILL"));
        driver.expect("@refused");
        let rest = driver.finish();
        let unproven = rest.iter().any(|line| line.contains("executor-not-gone"));
        executor.iter().filter(|pid| !dead(**pid)).for_each(|pid| pair::signal(*pid, "KILL"));
        assert_eq!(unproven, holds, "{rest:?}");
    }
}

#[test]
fn a_service_that_dies_takes_its_executor_along() {
    let pair = Pair::new("dies");
    let mut driver = pair.driver();
    let up = driver.started();
    driver.kill();
    wait_until("the executor is gone", || dead(up.pid) && dead(up.sudo_pid));
}

#[test]
fn sudo_denied_names_the_exact_line() {
    let pair = Pair::new("deny");
    std::fs::remove_file(&pair.drop_in).unwrap();
    let mut driver = pair.driver();
    let refused = driver.expect("@refused sudo-denied");
    let line = format!("{} ALL=({}) NOPASSWD: {} \"\"", pair.service, pair.tools, pair.toolsd().display());
    assert!(refused.ends_with(&line), "{refused}\n{line}");
    driver.expect("@alive children=0");
    // The line that it names is the one that mends it.
    pair.sudoers(&format!("{line}\n"));
    let mut driver = pair.driver();
    driver.started();
    driver.tell("stop");
    driver.expect("@stopped");
}

#[test]
fn no_new_privs_is_named_before_sudo_is_tried() {
    let pair = Pair::new("nnp");
    let mut driver = pair.driver_with(&["--no-new-privs"], &[]);
    let refused = driver.expect("@refused no-new-privs");
    assert!(refused.contains("NoNewPrivs: 1") && refused.contains("NoNewPrivileges=no"), "{refused}");
}

#[test]
fn what_is_missing_or_open_to_others_is_not_started() {
    let pair = Pair::new("open");
    let toolsd = pair.toolsd();
    pair::chmod(&toolsd, 0o775);
    pair.driver().expect("@refused executor-writable");
    pair::chmod(&toolsd, 0o711);
    pair::chmod(toolsd.parent().unwrap(), 0o777);
    pair.driver().expect("@refused executor-writable");
    pair::chmod(toolsd.parent().unwrap(), 0o755);
    std::fs::remove_file(&toolsd).unwrap();
    let mut driver = pair.driver_with(&[], &[("DRIVER_SUDO", "/nowhere/sudo")]);
    driver.expect("@refused sudo-missing");
    driver.expect("@refused executor-missing");
}

#[test]
fn an_instance_file_that_pairs_others_is_refused_by_the_executor() {
    let pair = Pair::new("inst");
    pair.instance(pair.service_uid + 5000, pair.tools_uid);
    let refused = pair.driver().expect("@refused tools-user-shared");
    assert!(refused.contains("exit code 74"), "{refused}");
    std::fs::remove_file(&pair.instance_file).unwrap();
    let mut driver = pair.driver();
    assert_eq!(driver.started().floor, "builtin");
    driver.tell("stop");
    driver.expect("@stopped");
}

#[test]
fn a_bridge_that_somebody_else_made_is_refused_whatever_sudo_uid_says() {
    let pair = Pair::new("forge");
    // A process of the tools account makes the pair and claims that the service called it.
    let script = format!(
        "import os, socket, subprocess, sys\n\
         a, b = socket.socketpair()\n\
         e = {{'SUDO_UID': sys.argv[1]}} if sys.argv[1] else {{}}\n\
         sys.exit(subprocess.run(['{}'], stdin=b, env=e).returncode)",
        pair.toolsd().display()
    );
    let started = |sudo_uid: &str| pair.as_tools(&["python3", "-c", &script, sudo_uid]).status.code();
    assert_eq!(started(&pair.service_uid.to_string()), Some(72), "forged");
    assert_eq!(started("0"), Some(72), "root");
    assert_eq!(started("-1"), Some(71), "no number");
    assert_eq!(started(""), Some(74), "the tools user of an instance serves nobody else, itself included");
}

#[test]
fn a_hello_of_another_uid_is_refused() {
    let pair = Pair::new("uid");
    let uid = (pair.tools_uid + 5000).to_string();
    let refused = pair.driver_with(&[], &[("DRIVER_TOOLS_UID", &uid)]).expect("@refused executor-identity");
    assert!(refused.contains(&format!("uid {} said hello", pair.tools_uid)), "{refused}");
}

#[test]
fn a_hostile_executor_is_closed_and_the_service_lives() {
    let pair = Pair::new("fake");
    for (what, script, id) in [
        ("short hello", "b.send(b'SALAAM')", "executor-identity"),
        ("long hello", "b.send(b'SALAAMTOOLSD' + V + b'PRI * HTTP/2.0')", "executor-identity"),
        ("other words", "b.send(b'X' * 16)", "executor-identity"),
        ("other version", "b.send(b'SALAAMTOOLSD' + b'\\x63\\0\\0\\0')", "executor-version"),
        ("descriptors", "socket.send_fds(b, [b'SALAAMTOOLSD' + V], [1, 2])", "executor-identity"),
        ("nothing, and an end", "sys.exit(3)", "sudo-denied"),
        ("garbage for HTTP/2", "hello(); b.send(os.urandom(4096))", "executor-identity"),
        ("HTTP/1", "hello(); b.send(b'HTTP/1.1 200 OK\\r\\n\\r\\n')", "executor-identity"),
        (
            "a frame of 16 MiB",
            "hello(); b.send(b'\\0\\0\\0\\4\\0\\0\\0\\0\\0' + b'\\xff\\xff\\xff\\0\\0\\0\\0\\0\\1' + b'x' * 65536)",
            "executor-identity",
        ),
        ("an end after the hello", "hello(); sys.exit(0)", "executor-identity"),
    ] {
        pair.fake(script);
        let mut driver = pair.driver();
        let refused = driver.expect("@refused");
        assert!(refused.starts_with(&format!("@refused {id} ")), "{what}: {refused}");
        driver.expect("@alive children=0");
    }
    // Two megabytes of terminal escapes on standard error, and silence on the bridge.
    pair.fake("os.write(2, b'\\x1b[2J' * 500000); sys.exit(1)");
    let refused = pair.driver().expect("@refused sudo-denied");
    assert!(!refused.contains('\x1b') && refused.len() < 40_000, "{}", refused.len());
}

#[test]
fn service_user_mode_needs_no_sudo() {
    let pair = Pair::new("own");
    std::fs::remove_file(&pair.drop_in).unwrap();
    let mut driver = pair.driver_with(&["--no-new-privs"], &[("DRIVER_MODE", "service-user")]);
    let up = driver.started();
    assert_eq!((up.uid, up.sudo_pid), (pair.service_uid, 0));
    driver.expect("@notice started 1");
    pair::signal(up.pid, "KILL");
    driver.expect("@notice lost 1");
    driver.expect("@notice started 2");
    driver.tell("stop");
    driver.expect("@stopped children=0");
}

fn libc_eacces() -> i32 {
    nix::errno::Errno::EACCES as i32
}

fn libc_enoent() -> i32 {
    nix::errno::Errno::ENOENT as i32
}

#[test]
fn an_executor_that_was_stopped_is_ended_through_its_sudo() {
    let pair = Pair::new("stop");
    let mut driver = pair.driver();
    let up = driver.started();
    pair::stop(up.pid);
    driver.tell("stop");
    driver.expect("@stopped children=0");
    assert!(dead(up.pid) && dead(up.sudo_pid));
}
