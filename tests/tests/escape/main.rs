//! Ways out of a command, each first shown to work outside, and then tried in every profile that promises that it
//! does not; what a command may leave behind; and what must go on working in there.
//!
//! The tables are the files beside this one. What they find is `docs/isolation.md`: `tests/campaign isolation` writes
//! it, and the test here compares.

mod alone;
mod attack;
mod files;
mod kernel;
mod later;
mod layers;
mod outside;
mod processes;
mod report;
mod sockets;
mod uncovered;
mod working;

use std::{fs, path::Path, process::Stdio, time::Duration};

use attack::Attack;
use outside::Outside;
use salaam_tests::{Host, Pair, eventually, limit, process::Process, ran};
use serde_json::Value;

/// Every attack of the tables.
pub fn attacks() -> Vec<Attack> {
    [files::TABLE, later::TABLE, processes::TABLE, kernel::TABLE, sockets::TABLE].concat()
}

/// A pair for commands with and without a sandbox, with limits that are soon reached.
pub fn tight(host: &'static Host) -> Pair {
    // What root allows on this host, which is this suite's own.
    let instance = fs::read_to_string(host.instance()).expect("host setup wrote it");
    let open = instance.replace("unsandboxed_commands = \"refuse\"", "unsandboxed_commands = \"allow\"");
    fs::write(host.instance(), open).expect("it is root's");
    let mut pair = Pair::new(host);
    pair.configure(
        "unsandboxed_commands = \"allow\"\n[limits]\nprocesses = 128\nmemory_bytes = 1073741824\n\
         file_bytes = 33554432\ntmp_bytes = 33554432\nopen_files = 256\noutput_bytes = 1048576\n\
         workspace_growth_bytes = 67108864\ncommand_seconds = 60\n",
    );
    // Nothing of its own environment reaches a command.
    pair.variables.push(("CARELESS_SECRET".to_owned(), "token".to_owned()));
    pair.start().ok();
    pair.with_workspace();
    pair
}

/// A snippet that is itself wrong looks like a denial.
pub fn mistaken(outcome: &str) -> bool {
    let wrong = ["NameError", "TypeError", "AttributeError", "SyntaxError", "UnboundLocalError", "JSONDecodeError"];
    wrong.iter().any(|kind| outcome.starts_with(kind))
}

#[test]
fn what_works_outside_works_in_no_profile_that_promises_so() {
    let _turn = limit!(170);
    let mut pair = tight(Host::shared());
    let outside = Outside::new(&mut pair);
    let all = attacks();
    assert!(all.len() >= 80, "{}", all.len());
    let controls = outside.controls(&pair, &all);
    let unshown: Vec<_> = all.iter().zip(&controls).filter(|(_, did)| *did != "done").collect();
    for (attack, did) in &unshown {
        // A kernel without it, or an account database without homes.
        println!("not shown outside: {}: {did}", attack.name);
    }
    assert!(unshown.len() * 20 <= all.len(), "{} of {} attempts are broken", unshown.len(), all.len());

    let mut broke = Vec::new();
    let mut found = Vec::new();
    for profile in ["read-only", "workspace-write", "full-access"] {
        let bare = profile == "full-access";
        pair.with_workspace();
        let at = pair.workspace.clone();
        outside::prepare(&pair, &at);
        let tried: Vec<(usize, &Attack, &Path)> = all
            .iter()
            .enumerate()
            .filter(|(_, attack)| !bare || attack.everywhere)
            .map(|(number, attack)| (number, attack, at.as_path()))
            .collect();
        let ran = pair.run_with(&["--profile", profile], &["python3", "-c", &outside.script(&tried, true)]).ok();
        for ((_, attack, _), did) in tried.iter().zip(outside.judge(&ran, &tried)) {
            if did == "done" || mistaken(&did) {
                broke.push(format!("{profile}: {}: {did}", attack.name));
            }
            found.push((profile, attack.name, did));
        }
        println!("{profile}: {} attacks, {:?}", tried.len(), ran.wall);
    }
    for (profile, name, did) in &found {
        println!("{profile}: {name}: {did}");
    }
    assert_eq!(broke, [] as [String; 0]);
    // Nothing that a proof would have missed: the stand-ins are as they were.
    assert_eq!(fs::read(outside.directory.join("secret")).expect("it is there").len(), "secret\nx".len());
    assert!(Process::of(outside.victim).is_some());
    drop(outside);
    pair.assert_sound();
    report::compare(&all, &controls);
}

#[test]
fn a_command_starts_with_three_descriptors_and_no_word_of_its_makers() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let ran = pair.run(&["sh", "-c", "echo /proc/self/fd/*; env; cat /proc/self/status"]).ok();
    let out = ran.out();
    assert!(
        out.starts_with("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/10 /proc/self/fd/2\n")
            || out.starts_with("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3\n"),
        "{out}"
    );
    for word in ["SUDO", "SALAAM", "LD_", "SSH_AUTH", "XDG", "DBUS"] {
        assert!(!out.lines().any(|line| line.starts_with(word)), "{word}: {out}");
    }
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[test]
fn files_are_copied_with_all_that_they_have() {
    let _turn = limit!(60);
    let mut pair = Pair::started(Host::shared());
    // The one that `host setup` prepared.
    pair.workspace.clone_from(&pair.host.workspace);
    pair.salaam(&["workspace", "add", &pair.workspace.display().to_string()]).ok();
    let text = "set -e; mkdir -p d/e; echo 1 >d/e/f; cp -a d d2; cp -p d/e/f f; install -p -m 755 f g; \
                tar cpf - d | tar xpf - -C /tmp; mv /tmp/d d3; test -g d3/e; rm -r d d2 d3 f g";
    pair.run(&["sh", "-c", text]).ok();
}

/// What a command leaves or does, and then the pair must be as it was.
#[rustfmt::skip]
const NUISANCES: &[(&str, &str)] = &[
    ("it kills all that it can", "kill -9 -1; true"),
    ("it kills its own process group", "kill -9 0"),
    ("daemons that left their session", "for i in 1 2 3 4 5; do setsid sh -c 'trap \"\" TERM HUP; sleep 593.5' & done; exit 0"),
    ("a fork bomb", "b() { b | b & }; b 2>/dev/null; sleep 0.5"),
    ("100 MB of output", "head -c 100000000 /dev/zero"),
    ("20 000 files and more", "mkdir many && cd many && python3 -c 'for i in range(25000): open(str(i), \"w\")'"),
    ("directories deeper than a path is long", "python3 -c 'import os\nfor i in range(2000): os.mkdir(\"deep\"); os.chdir(\"deep\")'"),
    ("a FIFO, a socket, loops of links, names that are no text", "python3 -c 'import os, socket\nos.mkfifo(\"fifo\"); socket.socket(socket.AF_UNIX).bind(\"sock\")\nos.symlink(\"loop\", \"loop\"); os.symlink(\".\", \"here\"); open(b\"\\xff\\n\\x1b[31m\", \"w\"); open(\"-rf\", \"w\")'"),
    ("closed directories", "mkdir -p closed/in && touch closed/in/f && chmod 0 closed/in && chmod 0 closed"),
    ("every descriptor open", "python3 -c 'import os\ntry:\n  while True: os.open(\"/dev/null\", 0)\nexcept OSError: pass'"),
    ("a full /tmp", "head -c 2000000000 /dev/zero >/tmp/full 2>/dev/null; true"),
    ("closed streams", "exec <&- >&- 2>&-; true"),
    ("the workspace emptied and made unreadable", "rm -rf -- ./* ; chmod 0 . 2>/dev/null; true"),
];

#[test]
fn whatever_a_command_leaves_behind_the_next_one_runs_as_ever() {
    let _turn = limit!(120);
    let pair =
        Pair::started_with(Host::shared(), "[limits]\nprocesses = 128\ntmp_bytes = 67108864\ncommand_seconds = 30\n");
    pair.run(&["true"]).ok();
    let executor = pair.executors().first().expect("it runs").clone();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", executor.pid)).expect("it runs").count();
    let before = descriptors();
    for (what, text) in NUISANCES {
        let result: Value = pair.result(&[], &["sh", "-c", text]);
        assert!(result["state"] == "completed", "{what}: {result:#}");
        assert_eq!(pair.run(&["echo", "well"]).ok().out(), "well\n", "{what}");
    }
    eventually("nothing of them is left", Duration::from_secs(5), || pair.commands().is_empty().then_some(()));
    assert_eq!(unreaped(executor.pid), 0);
    assert_eq!(pair.executors().first().map(|now| now.pid), Some(executor.pid), "the same executor all along");
    eventually("its descriptors are those it had", Duration::from_secs(5), || {
        (descriptors() <= before + 2).then_some(())
    });
    let (resident, _) = executor.memory().expect("it runs");
    assert!(resident < 32 << 10, "{resident} KiB");
    assert_eq!(pair.health()["status"], "ok");
    pair.assert_sound();
}

/// Children of a process that have ended and that it has not reaped.
fn unreaped(parent: i32) -> usize {
    let all = ran::run(&["ps", "-e", "-o", "ppid=,stat="]).out();
    let of = |line: &&str| line.trim().starts_with(&format!("{parent} ")) && line.contains('Z');
    all.lines().filter(of).count()
}

#[test]
fn a_client_that_goes_at_any_moment_leaves_no_process() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let executor = pair.executors().first().expect("it runs").pid;
    for round in 0..40u64 {
        let mut client = pair
            .command_as(&pair.host.service)
            .args(["run", "--yes", "--workspace"])
            .arg(&pair.workspace)
            .args(["--", "sleep", "592.5"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        std::thread::sleep(Duration::from_micros(round * 1500));
        client.kill().expect("it is ours");
        client.wait().expect("it is ours");
    }
    eventually("every command is gone and reaped", Duration::from_secs(10), || {
        (pair.commands().is_empty() && unreaped(executor) == 0).then_some(())
    });
    assert!(Process::of(executor).is_some(), "the same executor all along");
    pair.assert_sound();
}
