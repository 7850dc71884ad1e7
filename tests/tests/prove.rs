//! `salaam doctor --prove`: on a sound host every attack is shown to work outside and to be denied inside, and with any
//! layer switched off the proof says so by the attack's name. The short set of it is taken at every start and on the
//! timer, and what it finds stops commands until it is mended.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use salaam_launch::attack::ATTACKS;
use salaam_tests::{
    Host, Pair, Ran, Within, eventually, limit,
    pair::text,
    process::Process,
    ran::{self, Started},
};
use serde_json::{Value, json};

/// How the ids of attacks begin.
const ATTACK: &str = "sandbox-attack-";

/// A pair with a workspace, stopped.
fn pair() -> Pair {
    let pair = Pair::started(Host::shared());
    pair.stop().ok();
    pair
}

/// The attacks of a proof by name, with what came of each and what was seen.
#[track_caller]
fn attacks(report: &Value) -> BTreeMap<String, (String, String)> {
    let probes = report["probes"].as_array().unwrap_or_else(|| panic!("no probes: {report}"));
    let named = probes.iter().filter_map(|probe| {
        let name = probe["id"].as_str()?.strip_prefix(ATTACK)?.to_owned();
        Some((name, (text(probe, "result"), text(probe, "evidence"))))
    });
    named.collect()
}

#[track_caller]
fn check(report: &Value, id: &str) -> Value {
    let probes = report["probes"].as_array().unwrap_or_else(|| panic!("no probes: {report}"));
    probes.iter().find(|probe| probe["id"] == id).unwrap_or_else(|| panic!("no {id}: {report:#}")).clone()
}

/// What a proof may leave nowhere.
fn traces(pair: &Pair) -> Vec<String> {
    let named = ["/tmp", "/dev/shm"].into_iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let files = named.map(|entry| entry.path().display().to_string()).filter(|path| path.contains("salaam-canary"));
    let segments = ran::run(&["ipcs", "-m"]).out();
    let segments = segments.lines().filter(|line| line.contains(&pair.host.tools.name)).map(str::to_owned);
    files.chain(segments.collect::<Vec<_>>()).chain(pair.commands().iter().map(|one| one.words.clone())).collect()
}

#[test]
fn on_a_sound_host_every_attack_is_shown_and_held_and_nothing_stays() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let executor = pair.executors().first().expect("it runs").pid;
    let report = pair.salaam(&["doctor", "--prove", "--json"]).ok().json();
    let found = attacks(&report);
    assert_eq!(report["source"], "service");
    let names: Vec<_> = found.keys().map(String::as_str).collect();
    let mut all: Vec<_> = ATTACKS.iter().map(|described| described.name).collect();
    all.sort_unstable();
    assert_eq!(names, all);
    let (mut held, mut unshown) = (0, Vec::new());
    for (name, (result, seen)) in &found {
        match result.as_str() {
            "pass" => {
                assert!(seen.starts_with("outside works, inside ") && !seen.contains("inside works"), "{name}: {seen}");
                held += 1;
            }
            // Never as held: it does not work outside.
            "unproven" => {
                assert!(seen.starts_with("not shown: outside ") && !seen.contains("outside works"), "{name}: {seen}");
                unshown.push(name.clone());
            }
            other => panic!("{name}: {other}: {seen}"),
        }
    }
    println!("{held} held, not shown on this kernel: {unshown:?}");
    assert!(held >= 40, "{found:#?}");
    let all_pass = report["probes"].as_array().expect("a list").iter().all(|probe| probe["result"] == "pass");
    assert_eq!(report["result"], if all_pass { "pass" } else { "warn" });
    // What needs nothing but an account, a loopback and a file is shown on every host; so no layer is without one.
    for described in ATTACKS.iter().filter(|described| described.always) {
        assert_eq!(found[described.name].0, "pass", "{}: {:?}", described.name, found[described.name]);
    }
    assert_eq!(traces(&pair), [] as [String; 0]);
    assert_eq!(pair.executors().first().map(|now| now.pid), Some(executor), "the same executor");
    pair.run(&["true"]).ok();

    let human = pair.salaam(&["doctor", "--prove"]).ok().out();
    for (name, (result, _)) in &found {
        let word = if result == "pass" { "pass" } else { "not shown" };
        let line = human.lines().find(|line| line.contains(&format!("{ATTACK}{name} ")));
        assert!(line.is_some_and(|line| line.starts_with(word)), "{name}: {human}");
    }
    let last = human.lines().last().expect("it says something");
    assert!(last.contains("probes pass") && !last.contains("does not hold"), "{human}");
    // Without being asked to prove, no attack of its own is listed.
    assert_eq!(attacks(&pair.salaam(&["doctor", "--json"]).ok().json()).len(), 0);

    pair.stop().ok();
    let words = ["doctor", "--prove", "--json", "--tools-user", &pair.host.tools.name];
    let alone = pair.salaam(&words).ok().json();
    assert_eq!((&alone["source"], attacks(&alone).len()), (&json!("host"), ATTACKS.len()));
    // Everything that a start asks stands there, too.
    check(&alone, "service-sudo-wide");
    assert_eq!(traces(&pair), [] as [String; 0]);
}

#[test]
fn operators_may_have_the_host_proven_and_nobody_else() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let words = ["doctor", "--prove", "--json"];
    let by_operator = pair.salaam_as(&pair.host.operator, &words).ok().json();
    assert_eq!(attacks(&by_operator).len(), ATTACKS.len());
    for account in [&pair.host.stranger, &pair.host.tools] {
        let refused = pair.salaam_as(account, &words).left_with(3);
        assert_eq!(refused.error_id().as_deref(), Some("not-an-operator"), "{refused}");
        assert!(!refused.says(ATTACK), "{refused}");
    }
    pair.salaam(&["doctor", "--prove", "extra"]).left_with(2);
    pair.stop().ok();
    // Without a service only its own account can look at its host.
    for account in [&pair.host.operator, &pair.host.stranger] {
        let refused = pair.salaam_as(account, &words);
        assert!(refused.code == Some(3) && !refused.says(ATTACK), "{refused}");
    }
}

/// On hosts that have no interpreter, no compiler and no shell the proof is the same: it is carried out by launch.
#[test]
fn the_proof_needs_no_interpreter_and_no_shell() {
    let _turn = limit!(60);
    let pair = pair();
    let bare = Within::new(&pair).over("/usr/bin").after(
        "cd /usr/bin; rm -f python* perl* gcc* cc c++ g++* tcc node ruby awk gawk mawk sed bash dash sh rbash busybox",
    );
    bare.start(&[]).ok();
    let report = pair.salaam(&["doctor", "--prove", "--json"]).ok().json();
    assert!(attacks(&report).values().filter(|(result, _)| result == "pass").count() >= 40, "{report:#}");
}

/// Bubblewrap as it is, behind a program that changes its words as a file says.
fn wrapped<'a>(pair: &'a Pair) -> (Within<'a>, PathBuf) {
    let switch = pair.state.with_file_name("walls");
    fs::write(&switch, "[]").expect("it is root's");
    let within = Within::new(pair).over("/usr/bin").after(format!(
        "mv /usr/bin/bwrap /usr/bin/bwrap.real
         cat >/usr/bin/bwrap <<'END'
#!/usr/bin/python3
import json, os, sys
words = sys.argv[1:]
for old, new in json.load(open('{}')):
    at = 0
    while at < len(words) and words[at] != '--' or words[at:at + 1] == old:
        if words[at:at + 1] == old:
            words[at:at + 1] = new
            at += max(len(new), 1)
            if old == ['--']: break
        else:
            at += 1
os.execv('/usr/bin/bwrap.real', ['bwrap'] + words)
END
         chmod 0755 /usr/bin/bwrap",
        switch.display()
    ));
    (within, switch)
}

/// The proof on the host behind `within` says that these work, and no other does not hold; both with a service and
/// without.
#[track_caller]
fn shown_to_work(pair: &Pair, within: &Within<'_>, names: &[&str]) {
    let health = within.start(&[]).ok().json();
    // The short set has one for each layer: no start believes in what does not hold.
    assert_eq!(health["status"], "degraded", "{names:?}: {health:#}");
    let report = pair.salaam(&["doctor", "--prove", "--json"]).left_with(1).json();
    let canary = check(&report, "sandbox-canary");
    assert_eq!((&report["result"], &canary["result"]), (&json!("fail"), &json!("fail")), "{report:#}");
    let found = attacks(&report);
    let failed: Vec<_> = found.iter().filter(|(_, (result, _))| result == "fail").map(|(name, _)| name).collect();
    for name in names {
        let (result, seen) = &found[*name];
        assert!(result == "fail" && seen.contains("outside works, inside works"), "{name}: {result}: {seen}");
        assert!(text(&canary, "evidence").contains(&format!("{name}: outside works")), "{canary}");
    }
    println!("{failed:?}");
    let human = pair.salaam(&["doctor", "--prove"]).left_with(1).out();
    for name in names {
        assert!(human.contains(&format!("fail (degrading): {ATTACK}{name}\n")), "{human}");
    }
    assert!(human.ends_with("the sandbox does not hold, and is not used\n"), "{human}");
    let refused = pair.run_with(&["--json"], &["true"]);
    assert_eq!((refused.code, refused.error_id().as_deref()), (Some(125), Some("sandbox-canary")), "{refused}");
    pair.stop().ok();
    let alone = within.salaam(&["doctor", "--prove", "--json", "--tools-user", &pair.host.tools.name]).left_with(1);
    let alone = attacks(&alone.json());
    assert!(names.iter().all(|name| alone[*name].0 == "fail"), "{alone:#?}");
}

/// One word of bubblewrap's, and what stands in its place.
type Change = (&'static str, &'static [&'static str]);

/// What is switched off, how bubblewrap's words change, and attacks that then work.
const LAYERS: &[(&str, &[Change], &[&str])] = &[
    (
        "mount namespace",
        &[("--", &["--bind", "/tmp", "/tmp", "--"])],
        &["read-outside", "write-outside", "read-through-proc", "read-through-link", "path-socket"],
    ),
    ("network namespace", &[("--unshare-net", &[])], &["tcp-outside", "udp-outside"]),
    ("IPC namespace", &[("--unshare-ipc", &[])], &["shared-segment"]),
    ("protected paths", &[("--ro-bind-fd", &["--bind-fd"])], &["git-hook", "git-config", "editor-tasks"]),
];

#[test]
fn with_a_layer_of_bubblewraps_switched_off_the_proof_names_what_works_then() {
    let _turn = limit!(240);
    let pair = pair();
    let (within, switch) = wrapped(&pair);
    within.start(&[]).ok();
    pair.salaam(&["doctor", "--prove"]).ok();
    pair.stop().ok();
    for (layer, changes, names) in LAYERS {
        println!("{layer}");
        let changes: Vec<_> = changes.iter().map(|(old, new)| json!([[old], new])).collect();
        fs::write(&switch, json!(changes).to_string()).expect("it is root's");
        shown_to_work(&pair, &within, names);
    }
    // Without a pid namespace launch does not even begin: what it would end is not its own.
    fs::write(&switch, json!([[["--unshare-pid"], []]]).to_string()).expect("it is root's");
    let health = within.start(&[]).ok().json();
    assert_eq!(health["status"], "degraded", "{health:#}");
    let report = pair.salaam(&["doctor", "--prove", "--json"]).left_with(1).json();
    assert!(attacks(&report).values().all(|(result, _)| result != "pass"), "{report:#}");
}

/// A kernel that says `done` and does nothing: what launch reports of its layers is then wrong, and only attacks show
/// it.
#[test]
fn with_a_kernel_that_lies_about_a_layer_the_proof_names_what_works_then() {
    let _turn = limit!(240);
    let pair = pair();
    for (answers, names) in [
        // PR_SET_SECCOMP
        (
            "prctl:22=0",
            &[
                // Not the namespaces: bubblewrap denies them, too.
                "keyring",
                "limits-of-launch",
                "clone3",
                "calls-32-bit",
                "terminal-input",
                "setuid-file",
                "setuid-file-created",
                "setuid-file-by-openat2",
                "setuid-file-by-mknod",
            ][..],
        ),
        ("landlock_restrict_self=0", &["signal-launch"]),
        // RLIMIT_FSIZE
        ("prlimit64@1:1=0", &["file-size"]),
    ] {
        println!("{answers}");
        shown_to_work(&pair, &Within::new(&pair).where_calls_answer(&[answers]), names);
    }
}

/// What a kernel does not have needs no denial, and is not called one.
#[test]
fn what_does_not_work_outside_is_not_shown_and_never_held() {
    let _turn = limit!(60);
    let pair = pair();
    let without = Within::new(&pair).where_calls_answer(&["userfaultfd=ENOSYS", "io_uring_setup=ENOSYS"]);
    without.start(&[]).ok();
    let report = pair.salaam(&["doctor", "--prove", "--json"]).ok().json();
    let found = attacks(&report);
    for name in ["userfaultfd", "io-uring"] {
        let (result, seen) = &found[name];
        assert!(result == "unproven" && seen.starts_with("not shown: outside ENOSYS"), "{name}: {result}: {seen}");
    }
    let human = pair.salaam(&["doctor", "--prove"]).ok().out();
    assert!(human.lines().any(|line| line.starts_with("not shown") && line.contains("userfaultfd")), "{human}");
    assert!(!human.contains(&format!("{ATTACK}userfaultfd\n    seen")), "nobody can mend it: {human}");
}

#[test]
fn the_timer_finds_a_wall_that_falls_while_the_service_runs_and_one_that_stands_again() {
    let _turn = limit!(120);
    let pair = pair();
    pair.configure("probe_interval_seconds = 1\n");
    pair.salaam(&["host", "plan", "--pin"]).ok();
    let (within, switch) = wrapped(&pair);
    within.start(&[]).ok();
    let executor = pair.executors().first().expect("it runs").pid;
    let service = pair.service_process().expect("it runs").pid;
    let status = |wanted: &str| {
        eventually(wanted, Duration::from_secs(20), || {
            let health = pair.health();
            (health["status"] == wanted).then_some(health)
        })
    };
    for (change, id, seen) in [
        (json!([[["--unshare-net"], []]]), "sandbox-canary", "tcp-outside: outside works, inside works"),
        (
            json!([[["--"], ["--bind", "/tmp", "/tmp", "--"]]]),
            "sandbox-canary",
            "read-outside: outside works, inside works",
        ),
        (json!([[["--"], ["--bind", "/nowhere", "/nowhere", "--"]]]), "sandbox-mount", "/nowhere"),
    ] {
        pair.run(&["true"]).ok();
        // Exchanged at once: a look may be under way.
        let next = switch.with_extension("new");
        fs::write(&next, change.to_string()).expect("it is root's");
        fs::rename(&next, &switch).expect("it is root's");
        let health = status("degraded");
        let execution = &health["tool_execution"];
        assert_eq!(execution["sandbox"], Value::Null, "{health:#}");
        let failed = check(execution, id);
        assert!(failed["result"] == "fail" && text(&failed, "evidence").contains(seen), "{seen}: {failed}");
        let refused = pair.run_with(&["--json"], &["true"]);
        assert_eq!((refused.code, refused.error_id().as_deref()), (Some(125), Some(id)), "{refused}");
        assert_eq!(pair.pending(), [] as [Value; 0], "nobody is asked about what cannot run");
        fs::write(&next, "[]").expect("it is root's");
        fs::rename(&next, &switch).expect("it is root's");
        status("ok");
    }
    pair.run(&["true"]).ok();
    let now = (pair.executors().first().map(|one| one.pid), pair.service_process().map(|one| one.pid));
    assert_eq!(now, (Some(executor), Some(service)), "neither was started again");
    // A look may be under way.
    eventually("nothing stays", Duration::from_secs(10), || traces(&pair).is_empty().then_some(()));
}

/// Whoever is denied everything proves nothing by being denied.
#[test]
fn a_tools_user_that_may_not_even_do_what_everybody_may_starts_nothing() {
    let _turn = limit!(60);
    let pair = pair();
    let denied =
        Within::new(&pair).over("/etc").after(format!("setfacl -m u:{}:--- /etc/passwd", pair.host.tools.name));
    let refused = denied.start(&[]).left_with(3);
    let checks = refused.json()["error"]["checks"].as_array().expect("it lists them").clone();
    let state = checks.iter().find(|check| check["id"] == "state-readable").unwrap_or_else(|| panic!("{refused}"));
    assert!(text(state, "evidence").contains("of what everybody may open, too"), "{state}");
}

/// Puts a sudo in front of sudo that waits where `condition` (in C) holds.
fn slow_sudo(pair: &Pair, condition: &str, seconds: u32) -> String {
    let place = pair.state.with_file_name("sudo-in-front");
    let source = place.with_extension("c");
    let program = format!(
        "#define _GNU_SOURCE\n#include <string.h>\n#include <unistd.h>\nint main(int n, char **words) {{ (void)n;\n\
         if ({condition}) sleep({seconds});\nexecv(\"/usr/bin/sudo.real\", words); return 1; }}\n"
    );
    fs::write(&source, program).expect("it is root's");
    ran::run(&["gcc", "-O1", "-o", &path(&place), &path(&source)]);
    format!("mv /usr/bin/sudo /usr/bin/sudo.real; cp {} /usr/bin/sudo; chmod 4755 /usr/bin/sudo", path(&place))
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// On a busy machine a sudo that needs two seconds is no sudo that does not answer.
#[test]
fn slow_programs_are_waited_for() {
    let _turn = limit!(120);
    let pair = pair();
    let sudo = slow_sudo(&pair, "1", 2);
    let within = Within::new(&pair).over("/usr/bin").after(sudo).after(
        "printf '#!/bin/sh\\nsleep 2; echo not allowed >&2; exit 1\\n' >/usr/bin/crontab
         cp /usr/bin/crontab /usr/bin/atq; chmod 0755 /usr/bin/crontab /usr/bin/atq",
    );
    let started = within.start(&[]).ok();
    let health = started.json();
    assert!(started.wall > Duration::from_secs(10), "sudo was not slow: {:?}", started.wall);
    assert_eq!(health["status"], "ok", "{health:#}");
    for id in ["tools-user-can-sudo", "can-cron", "can-at"] {
        assert_eq!(check(&health["tool_execution"], id)["result"], "pass", "{health:#}");
    }
}

/// One that never answers is named, takes nothing from the others, and is no proof.
#[test]
fn a_program_that_never_answers_is_no_proof_and_starves_no_other() {
    let _turn = limit!(180);
    let pair = pair();
    let tools = pair.host.tools.uid;
    let sudo = slow_sudo(&pair, &format!("getuid() == {tools} && !strcmp(words[n - 1], \"-l\")"), 100);
    let within = Within::new(&pair)
        .over("/usr/bin")
        .after(sudo)
        .after("printf '#!/bin/sh\\necho not allowed >&2; exit 1\\n' >/usr/bin/crontab; chmod 0755 /usr/bin/crontab");
    let refused: Ran = within.start(&[]).left_with(3);
    let checks = refused.json()["error"]["checks"].as_array().expect("it lists them").clone();
    let ids: Vec<_> = checks.iter().filter_map(|check| check["id"].as_str()).collect();
    assert_eq!(ids, ["tools-user-can-sudo"], "{refused}");
    assert!(text(&checks[0], "evidence").contains("ETIMEDOUT"), "{refused}");
}

/// What nobody waits for any more holds no end up: the look at the host is still under way when the service is gone.
#[test]
fn a_stop_waits_for_no_look_at_the_host() {
    let _turn = limit!(120);
    let pair = pair();
    let slow_now = pair.state.with_file_name("slow-now");
    let service = pair.host.service.uid;
    let condition =
        format!("getuid() == {service} && !strcmp(words[n - 1], \"-l\") && !euidaccess(\"{}\", 0)", path(&slow_now));
    let within = Within::new(&pair).over("/usr/bin").after(slow_sudo(&pair, &condition, 60));
    within.start(&[]).ok();
    fs::write(&slow_now, "").expect("it is root's");
    let mut asks = pair.command_as(&pair.host.service);
    asks.args(["doctor", "--json"]);
    let asked = Started::new(&mut asks, b"");
    let lists = || Process::of_uid(service).into_iter().find(|one| one.words.trim_end().ends_with("sudo -k -n -l"));
    let slow = eventually("sudo is asked", Duration::from_secs(20), lists);
    pair.stop().ok();
    assert!(pair.service_process().is_none());
    assert!(lists().is_some_and(|still| still.pid == slow.pid), "the look was over before the stop");
    slow.kill();
    asked.wait(Duration::from_secs(20));
}
