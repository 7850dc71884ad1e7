//! What weakens a host without stopping the service: a sandbox that cannot be built, and programs that could leave
//! something behind. Each by really breaking the host for one service: it starts, health says `degraded` or warns,
//! commands are refused with the id of the step and its knob, and the printed fix mends it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use salaam_tests::{Account, Host, Mended, Pair, Ran, Within, eventually, limit, pair::text, ran};
use serde_json::{Value, json};

/// A pair with a workspace, stopped.
fn pair() -> Pair {
    let pair = Pair::started(Host::shared());
    pair.stop().ok();
    pair
}

#[track_caller]
fn probe(health: &Value, id: &str) -> Value {
    let probes = health["tool_execution"]["probes"].as_array().expect("a list");
    probes.iter().find(|probe| probe["id"] == id).unwrap_or_else(|| panic!("no {id}: {health:#}")).clone()
}

/// The host behind `within` lets the service start without a sandbox; gives the fix of the step that failed.
#[track_caller]
fn degrades(pair: &Pair, within: &Within<'_>, id: &str, seen: &str) -> String {
    let health = within.start(&[]).ok().json();
    let check = probe(&health, id);
    assert_eq!((&check["result"], &check["severity"]), (&json!("fail"), &json!("degrading")), "{check}");
    assert!(text(&check, "evidence").contains(seen), "{seen}: {check}");
    let execution = &health["tool_execution"];
    assert_eq!((&health["status"], &execution["isolation"]), (&json!("degraded"), &json!("tools-user-no-os-sandbox")));
    assert_eq!(execution["sandbox"], Value::Null, "{health:#}");
    assert!(health["warnings"].to_string().contains("no usable sandbox: commands are refused"), "{health:#}");

    // Nobody is asked about a command that cannot be run as it must be.
    let fix = text(&check, "fix");
    let refused = pair.run_with(&["--json"], &["true"]);
    let error = refused.json()["error"].clone();
    assert_eq!((refused.code, error["id"].as_str()), (Some(125), Some(id)), "{refused}");
    assert!(text(&error, "message").contains(seen) && text(&error, "fix") == fix, "{error}");
    assert_eq!(pair.pending(), [] as [Value; 0]);
    // An edit needs no sandbox: the executor makes it itself. What is read for it is read by a process that landlock
    // and a filter confine, which is not done without.
    let path = format!("edited-{}", fs::read_dir(&pair.workspace).expect("root may").count());
    let edit = json!({"edits": [{"path": path, "create": "an edit\n"}], "grant": true});
    let edited = pair.post(edit).json();
    if ["sandbox-landlock", "sandbox-seccomp"].contains(&id) {
        assert!(text(&edited["error"], "message").contains("not confined: "), "{edited:#}");
    } else {
        assert_eq!(edited["state"], "completed", "{edited:#}");
        assert_eq!(fs::read_to_string(pair.workspace.join(path)).expect("it was made"), "an edit\n");
    }

    let doctor = pair.salaam(&["doctor", "--json"]).ok().json();
    assert_eq!(doctor["result"], "warn", "{doctor}");
    let shown =
        doctor["probes"].as_array().expect("a list").iter().find(|probe| probe["id"] == id).expect("it is there");
    assert_eq!((&shown["evidence"], &shown["fix"]), (&check["evidence"], &check["fix"]));
    pair.stop().ok();
    fix
}

/// There it starts with a sandbox, and runs a command in it.
#[track_caller]
fn mended(pair: &Pair, within: &Within<'_>) {
    let health = within.start(&[]).ok().json();
    let isolation = &health["tool_execution"]["isolation"];
    assert_eq!((&health["status"], isolation), (&json!("ok"), &json!("tools-user-bubblewrap")), "{health:#}");
    pair.run(&["true"]).ok();
    pair.stop().ok();
}

/// S1: two settings of the kernel that look alike from inside, each with its own knob.
#[test]
fn a_limit_on_namespaces_is_told_by_its_name_and_the_printed_command_lifts_it() {
    let _turn = limit!(120);
    let pair = pair();
    // The command writes into sysctl.d: a directory of this host's own.
    let inside = || Within::new(&pair).in_user_namespace().after("mount -t tmpfs none /etc/sysctl.d");
    mended(&pair, &inside());
    for (id, setting) in [("sandbox-userns", "user.max_user_namespaces"), ("sandbox-net", "user.max_net_namespaces")] {
        let broken = inside().after(format!("sysctl -q {setting}=0"));
        let fix = degrades(&pair, &broken, id, "(ENOSPC)");
        assert!(fix.contains(&format!("{setting}=")), "{fix}");
        mended(&pair, &broken.after(format!("{{ {fix}; }} >/dev/null")));
    }
}

/// S1: a container that refuses namespaces, and one that masks /proc. Neither is worked around.
#[test]
fn a_container_that_refuses_unshare_or_masks_proc_is_told_what_to_allow() {
    let _turn = limit!(120);
    let pair = pair();
    // Every CLONE_NEW flag of sched.h.
    let refuses = ["clone/0x7E020000=EPERM", "unshare=EPERM", "clone3=ENOSYS"];
    let fix = degrades(&pair, &Within::new(&pair).where_calls_answer(&refuses), "sandbox-userns", "namespace");
    assert!(fix.contains("container") && fix.contains("seccomp"), "{fix}");
    mended(&pair, &Within::new(&pair));

    let masked = Within::new(&pair).after("mount -t tmpfs none /proc/irq");
    let fix = degrades(&pair, &masked, "sandbox-mount", "proc");
    assert!(fix.contains("masks parts of /proc") && fix.contains("procMount: Unmasked"), "{fix}");
    mended(&pair, &masked.after("umount /proc/irq"));
}

/// S2: Ubuntu 24.04 and later. The setting is shown as that kernel shows it, and bubblewrap says what it says there.
#[test]
fn apparmors_restriction_is_told_from_namespaces_that_are_off_and_is_never_switched_off() {
    let _turn = limit!(120);
    let pair = pair();
    let within = Within::new(&pair).over("/usr/bin").after(
        "mv /usr/bin/bwrap /usr/bin/bwrap.real
         printf '%s\\n' '#!/bin/sh' 'case $1 in --help|--version) exec /usr/bin/bwrap.real \"$1\";; esac' \
            'echo \"bwrap: setting up uid map: Permission denied\" >&2' 'exit 1' >/usr/bin/bwrap
         chmod 0755 /usr/bin/bwrap",
    );
    let setting = pair.state.with_file_name("settings");
    let kernel = format!(
        "mkdir -p {0}; cp /proc/sys/kernel/overflow* {0}; echo 1 >{0}/apparmor_restrict_unprivileged_userns
         mount --bind {0} /proc/sys/kernel",
        setting.display()
    );
    let fix = degrades(&pair, &within.clone().after(kernel), "sandbox-userns", "setting up uid map");
    assert!(fix.contains("bwrap-userns-restrict") && fix.contains("apparmor_parser"), "{fix}");
    assert!(fix.contains("leave the host-wide setting on"), "{fix}");
    // Without that setting the same words mean something else.
    let fix = degrades(&pair, &within, "sandbox-userns", "setting up uid map");
    assert!(fix.contains("container"), "{fix}");
    mended(&pair, &Within::new(&pair));
}

#[test]
fn a_kernel_without_landlock_or_without_filters_is_named_and_only_the_operators_choice_goes_on_without() {
    let _turn = limit!(120);
    let pair = pair();
    let without = Within::new(&pair).where_calls_answer(&["landlock_create_ruleset=ENOSYS"]);
    let fix = degrades(&pair, &without, "sandbox-landlock", "");
    // The fix names two ways; the second can be gone here.
    assert!(fix.contains("lsm=landlock") && fix.contains("landlock = \"if-available\" and re-pin"), "{fix}");
    pair.configure("landlock = \"if-available\"\n");
    pair.salaam(&["host", "plan", "--pin"]).ok();
    assert_eq!(manifest(&pair)["landlock"], "if-available", "the choice is pinned");
    let health = without.start(&[]).ok().json();
    let check = probe(&health, "sandbox-landlock");
    assert_eq!((&health["status"], &check["result"]), (&json!("ok"), &json!("warn")), "{health:#}");
    assert!(health["warnings"].to_string().contains("sandbox-landlock"), "{health:#}");
    assert_eq!(asked(&pair), ["landlock-not-enforced"], "whoever is asked is told");
    let result = pair.result(&[], &["true"]);
    assert_eq!((&result["state"], &result["sandbox"]["landlock"]), (&json!("completed"), &json!("not-enforced")));
    assert_eq!(result["sandbox"]["landlock_abi"], 0, "{result}");
    pair.stop().ok();
    // Where there is landlock the same choice takes nothing away.
    pair.start().ok();
    assert_eq!(asked(&pair), [] as [String; 0]);
    assert_eq!(pair.result(&[], &["true"])["sandbox"]["landlock"], "fully-enforced");
    pair.stop().ok();
    // There, and cut short: that is no kernel without it, and nobody chose that.
    let parted = Within::new(&pair).where_calls_answer(&["landlock_restrict_self=EOPNOTSUPP"]);
    degrades(&pair, &parted, "sandbox-landlock", "");
    pair.configure("");
    pair.salaam(&["host", "plan", "--pin"]).ok();

    // PR_SET_SECCOMP: what Linux answers without CONFIG_SECCOMP_FILTER.
    let without = Within::new(&pair).where_calls_answer(&["prctl:22=EINVAL", "seccomp=ENOSYS"]);
    let fix = degrades(&pair, &without, "sandbox-seccomp", "invalid argument");
    assert!(fix.contains("CONFIG_SECCOMP_FILTER"), "{fix}");
    mended(&pair, &Within::new(&pair));
}

/// What a proposal is flagged with.
#[track_caller]
fn asked(pair: &Pair) -> Vec<String> {
    let pending = pair.propose(json!({"argv": ["true"]}));
    let flags = pending.object["flags"].as_array().unwrap_or_else(|| panic!("no flags: {}", pending.object)).clone();
    pair.salaam(&["approval", "deny", &pending.approval]).ok();
    flags.iter().map(|flag| flag.as_str().expect("a word").to_owned()).collect()
}

fn manifest(pair: &Pair) -> Value {
    let bytes = fs::read(pair.config.join("manifest.json")).expect("it was pinned");
    let value: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    value.get("manifest").unwrap_or(&value).clone()
}

/// Kernels from the floor (5.13, the first ABI) to the one before scopes (6.7): the domain is whole for what they
/// have, and that is what health, result and proof say.
#[test]
fn an_older_landlock_is_enforced_whole_and_named_by_its_version() {
    let _turn = limit!(120);
    let pair = pair();
    for (abi, answers) in [(1, "landlock-abi=1"), (3, "landlock-abi=3"), (5, "landlock-abi=5")] {
        let older = Within::new(&pair).where_calls_answer(&[answers]);
        let health = older.start(&[]).ok().json();
        let check = probe(&health, "sandbox-landlock");
        assert_eq!((&health["status"], &check["result"]), (&json!("ok"), &json!("pass")), "{health:#}");
        assert_eq!(text(&check, "evidence"), format!("ABI {abi}, fully-enforced"));
        let result = pair.result(&[], &["true"]);
        assert_eq!(result["sandbox"]["landlock_abi"], abi, "{result}");
        assert_eq!(asked(&pair), [] as [String; 0]);
        // What only a scope denies is not promised there, and not shown.
        let proof = pair.salaam(&["doctor", "--prove", "--json"]).ok().json();
        let scope = proof["probes"].as_array().expect("a list");
        let scope = scope.iter().find(|probe| probe["id"] == "sandbox-attack-signal-launch").expect("it is listed");
        assert_eq!(scope["result"], "unproven", "{scope}");
        assert!(text(scope, "evidence").ends_with("this kernel has no such scope"), "{scope}");
        pair.stop().ok();
    }
}

/// Bare commands on a host without user namespaces: kept together by launch and signal scopes, or not run at all.
#[test]
fn without_user_namespaces_bare_commands_leave_nothing_and_reach_no_executor_or_do_not_run() {
    let _turn = limit!(120);
    let pair = pair();
    pair.configure("unsandboxed_commands = \"allow\"\n");
    let instance = pair.host.instance().display().to_string();
    let without = || {
        Within::new(&pair).in_user_namespace().over("/etc").after(format!(
            "sed -i 's/unsandboxed_commands = \"refuse\"/unsandboxed_commands = \"allow\"/' {instance}
             sysctl -q user.max_user_namespaces=0"
        ))
    };
    without().salaam(&["host", "plan", "--pin"]).ok();
    let health = without().start(&[]).ok().json();
    let execution = &health["tool_execution"];
    assert_eq!(execution["isolation"], "tools-user-no-os-sandbox", "{health:#}");
    assert_eq!((&execution["sandbox"], &probe(&health, "sandbox-userns")["result"]), (&Value::Null, &json!("fail")));
    assert_eq!(asked(&pair), ["unsandboxed"]);
    let executor = pair.executors().first().expect("it runs").pid;
    let text = format!(
        "setsid sleep 591.5 & (trap '' TERM; exec sleep 591.5) & kill -0 {executor} && echo signalled; \
         prlimit --pid {executor} --core=0 && echo limited; cat /proc/{executor}/environ >/dev/null && echo read; echo ran"
    );
    for profile in ["workspace-write", "full-access"] {
        let result = pair.result(&["--profile", profile], &["sh", "-c", &text]);
        assert_eq!((&result["state"], &result["exit_code"]), (&json!("completed"), &json!(0)), "{result:#}");
        assert_eq!((&result["sandbox"]["backend"], &result["sandbox"]["namespaces"]), (&json!("none"), &json!([])));
        assert_eq!(result["left_processes"], 2, "{result:#}");
        let operation = result["operation"].as_str().expect("it has an id");
        let out = pair.salaam(&["operation", "output", operation]).ok().out();
        assert_eq!(out, "ran\n", "{result:#}");
        eventually("nothing stays", Duration::from_secs(5), || pair.commands().is_empty().then_some(()));
    }
    // A proof that there is none is asked for and given.
    let proof = pair.salaam(&["doctor", "--prove", "--json"]).left_with(1).json();
    assert_eq!(proof["result"], "fail");
    pair.stop().ok();
    // Before 6.12 landlock has no scopes: nothing would keep such a command from the executor.
    without().where_calls_answer(&["landlock-abi=5"]).start(&[]).ok();
    for profile in ["workspace-write", "full-access"] {
        let refused = pair.run_with(&["--json", "--profile", profile], &["true"]);
        assert_eq!((refused.code, refused.error_id().as_deref()), (Some(125), Some("sandbox-landlock")), "{refused}");
    }
    pair.stop().ok();
    pair.configure("");
    pair.salaam(&["host", "plan", "--pin"]).ok();
}

/// Walls that stand and do not hold: what builds them is not what was tested.
#[test]
fn a_sandbox_that_lets_its_canary_out_is_not_used() {
    let _turn = limit!(120);
    let pair = pair();
    let without = |word: &str| {
        Within::new(&pair).over("/usr/bin").after(format!(
            "mv /usr/bin/bwrap /usr/bin/bwrap.real
             cat >/usr/bin/bwrap <<'END'
#!/usr/bin/python3
import os, sys
os.execv('/usr/bin/bwrap.real', ['bwrap'] + [word for word in sys.argv[1:] if word != '{word}'])
END
             chmod 0755 /usr/bin/bwrap"
        ))
    };
    mended(&pair, &without("nothing is left out"));
    let leaking = without("--unshare-net");
    let fix = degrades(&pair, &leaking, "sandbox-canary", "tcp-outside: outside works, inside works");
    assert!(fix.starts_with("sudo apt-get install --reinstall bubblewrap"), "{fix}");
    // What that puts back.
    mended(&pair, &leaking.after("mv /usr/bin/bwrap.real /usr/bin/bwrap"));

    let closed = Within::new(&pair).after("mount -t tmpfs -o mode=0755 none /tmp");
    let fix = degrades(&pair, &closed, "sandbox-canary", "could not be made in /tmp");
    mended(&pair, &closed.after(fix));

    let absent = Within::new(&pair).over("/usr/bin").after("rm /usr/bin/bwrap");
    let fix = degrades(&pair, &absent, "sandbox-missing", "bubblewrap is at none of");
    assert!(fix.contains("`bubblewrap`"), "{fix}");
}

/// Unpacks a package of this machine's own sources; None where there is no network to fetch it over.
fn unpacked(pair: &Pair, name: &str) -> Option<PathBuf> {
    let area = pair.host.prefix.join("packages");
    let place = area.join(name);
    if place.exists() {
        return Some(place);
    }
    fs::create_dir_all(&area).expect("the prefix is root's");
    let mut download = Command::new("apt-get");
    let fetched = Ran::of(download.args(["-q", "-o", "APT::Sandbox::User=root", "download", name]).current_dir(&area));
    let entries = fs::read_dir(&area).expect("it is there").flatten().map(|entry| entry.path());
    let ours = format!("{name}_");
    let archive =
        entries.into_iter().find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&ours)));
    let Some(archive) = archive else {
        eprintln!("skipped, the package {name} cannot be had here: {fetched}");
        return None;
    };
    ran::run(&["dpkg", "-x", &archive.display().to_string(), &place.display().to_string()]);
    Some(place)
}

/// What `id` says on the host behind `within`.
#[track_caller]
fn weakness(pair: &Pair, within: &Within<'_>, id: &str) -> Value {
    let health = within.start(&[]).ok().json();
    pair.stop().ok();
    let check = probe(&health, id);
    assert_eq!((&health["status"], &check["severity"]), (&json!("ok"), &json!("degrading")), "{health:#}");
    let warned = health["warnings"].to_string().contains(id);
    assert_eq!(warned, check["result"] == "warn", "{health:#}");
    check
}

/// The tools user may leave a job behind on the host behind `within`; the printed fix takes that away.
#[track_caller]
fn warns(pair: &Pair, within: &Within<'_>, id: &str, seen: &str, fix: &str) {
    let check = weakness(pair, within, id);
    assert!(check["result"] == "warn" && text(&check, "evidence").contains(seen), "{check}");
    assert_eq!(text(&check, "fix"), fix);
    let check = weakness(pair, &within.clone().after(format!("{fix} >/dev/null")), id);
    assert_eq!(check["result"], "pass", "{check}");
}

#[test]
fn jobs_of_cron_and_at_are_warned_of_and_the_fix_writes_into_the_list_that_decides() {
    let _turn = limit!(180);
    let pair = pair();
    let tools = &pair.host.tools.name;
    for (id, package, program, asks, spool, owner) in [
        ("can-cron", "cron", "crontab", "crontab -l", "/var/spool/cron/crontabs", "root"),
        ("can-at", "at", "at", "atq", "/var/spool/cron/atjobs", "daemon"),
    ] {
        let Some(from) = unpacked(&pair, package) else { continue };
        let with = Within::new(&pair).over("/usr/bin").over("/etc").over("/var/spool").after(format!(
            "cp -a {0}/usr/bin/{program} /usr/bin/
             [ {program} != at ] || {{ chown daemon:daemon /usr/bin/at; chmod 6755 /usr/bin/at; ln -sf at /usr/bin/atq; }}
             mkdir -p {spool}; chown {owner}:{owner} {spool}; chmod 1771 {spool}
             rm -f /etc/{package}.allow; : >/etc/{package}.deny",
            from.display(),
        ));
        let worked = format!("the tools user's `{asks}` worked");
        warns(&pair, &with, id, &worked, &format!("echo {tools} | sudo tee -a /etc/{package}.deny"));
        // Where there is a list of those who may, the other is not read.
        let listed = with.clone().after(format!("printf 'root\\n{tools}\\n' >/etc/{package}.allow"));
        warns(&pair, &listed, id, &worked, &format!("sudo sed -i '/^{tools}$/d' /etc/{package}.allow"));
    }
    let without = Within::new(&pair).over("/usr/bin").after("rm -f /usr/bin/crontab /usr/bin/atq");
    let absent = weakness(&pair, &without, "can-at");
    assert!(absent["result"] == "pass" && text(&absent, "evidence").contains("absent"), "{absent}");
}

/// No systemd runs here that could be asked (tests/vm/run asks one): the file that its answer leaves is what is seen.
#[test]
fn a_lingering_tools_user_is_warned_of() {
    let _turn = limit!(60);
    let pair = pair();
    let tools = &pair.host.tools.name;
    let file = Path::new("/var/lib/systemd/linger").join(tools);
    let lingers = Within::new(&pair)
        .after("mkdir -p /var/lib/systemd")
        .over("/var/lib/systemd")
        .after(format!("mkdir -p /var/lib/systemd/linger; : >{}", file.display()));
    let check = weakness(&pair, &lingers, "can-linger");
    assert!(check["result"] == "warn" && text(&check, "evidence") == format!("{} exists", file.display()), "{check}");
    assert_eq!(text(&check, "fix"), format!("sudo loginctl disable-linger {tools}"));
    let check = weakness(&pair, &lingers.after(format!("rm {}", file.display())), "can-linger");
    assert_eq!(check["result"], "pass", "{check}");
}

/// H3: each part that is lost is named by health while the service goes on, and nothing of people's files is said.
#[test]
fn health_names_the_part_that_is_gone_and_says_nothing_of_peoples_files() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let away = Mended::moved_away(&pair.host.sudoers());
    pair.executors().pop().expect("it runs").kill();
    let health = eventually("the loss shows", Duration::from_secs(10), || {
        let health = pair.health();
        (health["status"] == "degraded").then_some(health)
    });
    assert!(health["warnings"].to_string().contains("no executor"), "{health:#}");
    assert_eq!(health["tool_execution"]["executors"], json!([]));
    // Liveness is another question, and is answered all the same.
    pair.salaam(&["service", "status"]).ok();
    pair.run(&["true"]).left_with(125);
    away.mend();
    eventually("a new executor", Duration::from_secs(60), || (pair.health()["status"] == "ok").then_some(()));
    pair.run(&["true"]).ok();
    let said = pair.health().to_string();
    for account in [Account::root(), pair.host.service.clone(), pair.host.operator.clone()] {
        assert!(!said.contains(&format!("{}/.", account.home.display())), "{said}");
    }
}
