//! Attacks on the walls. Each is first shown to work where the wall is missing, so that a probe that is itself
//! broken proves nothing.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use common::{Bench, fresh, unprivileged};
use salaam_core::{
    bridge::{Prepare, RunPlan},
    check::Status,
    command::Command,
    digest::Digest,
    limits::Limits,
    policy::{Landlock, Profile, Unsandboxed},
};
use salaam_toolsd::command::Proof;

/// Runs a text bare, to show that the attack works.
async fn works_bare(bench: &Bench, text: &str) -> String {
    let outcome = bench.run(bench.bare(text)).await;
    assert!(outcome.failure.is_none(), "{outcome:?}");
    outcome.out()
}

fn open_bench(name: &str) -> Bench {
    Bench::with_floor(name, Unsandboxed::Allow)
}

#[test]
fn every_layer_is_reported_for_the_command_itself() {
    unprivileged("every_layer_is_reported_for_the_command_itself", async || {
        let bench = Bench::new("layers");
        let outcome =
            bench.sh("grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd):' /proc/self/status | tr '\\t\\n' '  '").await;
        let sandbox = outcome.sandbox.as_ref().unwrap();
        assert_eq!(
            (sandbox.backend.as_str(), sandbox.seccomp, sandbox.landlock.as_str()),
            ("bubblewrap", true, "fully-enforced")
        );
        assert!(sandbox.landlock_abi >= 1);
        let mut namespaces = sandbox.namespaces.clone();
        namespaces.sort();
        assert_eq!(namespaces, ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]);
        assert!(
            outcome.out().contains("NoNewPrivs: 1") && outcome.out().contains("CapEff: 0000000000000000"),
            "{outcome:?}"
        );
        assert!(outcome.out().contains("Seccomp: 2"), "{outcome:?}");
    });
}

#[test]
fn the_canary_is_denied_everything_that_works_outside() {
    unprivileged("the_canary_is_denied_everything_that_works_outside", async || {
        let bench = Bench::new("canary");
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        assert!(status.sandbox.is_some(), "{status:?}");
        let ids: Vec<_> = status.checks.iter().map(|check| (check.id.as_str(), check.status)).collect();
        let steps = ["userns", "mount", "net", "landlock", "seccomp", "canary"].map(|step| format!("sandbox-{step}"));
        assert_eq!(ids, steps.iter().map(|step| (step.as_str(), Status::Pass)).collect::<Vec<_>>(), "{status:?}");
    });
}

#[test]
fn a_whole_proof_shows_every_attack_outside_and_denied_inside() {
    unprivileged("a_whole_proof_shows_every_attack_outside_and_denied_inside", async || {
        let bench = Bench::new("proof");
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Whole).await;
        assert!(status.sandbox.is_some(), "{status:?}");
        let attacks: Vec<_> = status.checks.iter().filter(|check| check.id.starts_with("sandbox-attack-")).collect();
        assert_eq!(attacks.len(), salaam_launch::attack::ATTACKS.len());
        for attack in &attacks {
            assert_ne!(attack.status, Status::Fail, "{attack:?}");
            if attack.status != Status::Pass {
                println!("{}: {}", attack.id, attack.evidence);
            }
        }
        // What needs nothing but this account works outside on every host.
        for name in [
            "read-outside",
            "write-outside",
            "hard-link-outside",
            "tcp-outside",
            "path-socket",
            "signal",
            "environment",
            "limits-of-launch",
            "clone3",
            "setuid-file",
            "git-hook",
            "git-config",
            "git-moved-aside",
        ] {
            let check = attacks.iter().find(|check| check.id.ends_with(&format!("attack-{name}"))).unwrap();
            assert_eq!(check.status, Status::Pass, "{check:?}");
        }
        assert!(
            !std::fs::read_dir("/tmp")
                .unwrap()
                .flatten()
                .any(|e| e.file_name().to_string_lossy().starts_with(&format!("salaam-canary-{}", std::process::id())))
        );
    });
}

#[test]
fn nothing_outside_is_read_or_written() {
    unprivileged("nothing_outside_is_read_or_written", async || {
        let bench = open_bench("outside");
        let secret = bench.outside.join("secret");
        std::fs::write(&secret, "s3cret").unwrap();
        let reads = format!("cat {}", secret.display());
        let writes = format!("echo x >{}/planted && echo written", bench.outside.display());
        assert_eq!(works_bare(&bench, &reads).await, "s3cret");
        assert_eq!(works_bare(&bench, &writes).await, "written");
        std::fs::remove_file(bench.outside.join("planted")).unwrap();

        let through_link = format!("ln -s {} link; cat link", secret.display());
        for text in [&reads, &through_link, "cat /proc/1/root/etc/shadow", "cat /etc/shadow", "ls /home /root /var/lib"]
        {
            let outcome = bench.sh(text).await;
            assert_ne!(outcome.code(), Some(0), "{text}");
            assert!(!outcome.out().contains("s3cret"), "{text}");
        }
        for place in ["/usr/x", "/etc/x", "/x", "/dev/x", "/.salaam/x"] {
            assert_ne!(bench.sh(&format!("echo x >{place}")).await.code(), Some(0), "{place}");
        }
        // It may be written in the private /tmp, where this test lives; what counts is that it is not out here.
        bench.sh(&writes).await;
        assert!(!bench.outside.join("planted").exists());
        assert_eq!(
            bench.sh("echo x >inside && echo x >/tmp/x && echo x >/dev/shm/x && echo x >~/x && echo ok").await.out(),
            "ok"
        );
    });
}

#[test]
fn a_read_only_profile_leaves_the_workspace_as_it_is() {
    unprivileged("a_read_only_profile_leaves_the_workspace_as_it_is", async || {
        let bench = Bench::new("readonly");
        std::fs::write(bench.path.join("f"), "1").unwrap();
        let text = "cat f; echo 2 >f; rm -f f; mkdir d; chmod 777 f; touch f; mv f g";
        let plan = RunPlan { profile: Profile::ReadOnly, ..bench.shell(text) };
        let outcome = bench.run(plan).await;
        assert_eq!(outcome.out(), "1");
        assert_eq!(std::fs::read_to_string(bench.path.join("f")).unwrap(), "1");
        assert_eq!(std::fs::read_dir(&bench.path).unwrap().count(), 1);
    });
}

#[test]
fn protected_paths_cannot_be_changed_moved_or_replaced() {
    unprivileged("protected_paths_cannot_be_changed_moved_or_replaced", async || {
        let bench = Bench::new("protected");
        for directory in [".git/hooks", ".git/info", ".vscode"] {
            std::fs::create_dir_all(bench.path.join(directory)).unwrap();
        }
        std::fs::write(bench.path.join(".git/config"), "[core]\n").unwrap();
        std::fs::write(bench.path.join(".envrc"), "").unwrap();
        std::fs::write(bench.path.join("mine"), "").unwrap();
        for attack in [
            "echo x >.git/hooks/pre-commit",
            "echo x >>.git/config",
            "mv .git/config .git/c && echo x >.git/config",
            "mv .git/hooks .git/h",
            "mv .git git && mkdir -p .git/hooks",
            "rm -rf .git",
            "echo x >.envrc",
            "rm .envrc",
            "mv .vscode v",
            "echo x >mine",
            "mv mine m",
        ] {
            let protected_paths = vec![b"mine".to_vec()];
            let outcome = bench.run(RunPlan { protected_paths, ..bench.shell(attack) }).await;
            assert_ne!(outcome.code(), Some(0), "{attack}: {outcome:?}");
        }
        assert_eq!(std::fs::read_to_string(bench.path.join(".git/config")).unwrap(), "[core]\n");
        let names: Vec<_> = std::fs::read_dir(&bench.path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "no placeholder, nothing moved: {names:?}");
        assert_eq!(bench.sh("echo x >.git/index && echo ok").await.out(), "ok");
    });
}

#[test]
fn there_is_no_network_and_no_socket_outside_is_reached() {
    unprivileged("there_is_no_network_and_no_socket_outside_is_reached", async || {
        let bench = open_bench("network");
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = format!(
            "python3 -c \"import socket; socket.create_connection(('127.0.0.1',{port}),2); print('connected')\" 2>/dev/null"
        );
        assert_eq!(works_bare(&bench, &connect).await, "connected");
        assert_eq!(bench.sh(&connect).await.out(), "");
        assert_eq!(bench.sh("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '").await.out(), "lo");
        // A server of its own, as tests have them.
        let own = "python3 -c \"import socket; s=socket.create_server(('127.0.0.1',0)); socket.create_connection(s.getsockname()); print('ok')\"";
        assert_eq!(bench.sh(own).await.out(), "ok");
    });
}

#[test]
fn system_calls_that_widen_the_walls_are_refused() {
    unprivileged("system_calls_that_widen_the_walls_are_refused", async || {
        let bench = open_bench("calls");
        let works = "python3 -c 'import socket\nfor f, t, p in [(16, 3, 0), (16, 3, 15), (2, 1, 0), (2, 1, 6), (10, 2, 17), (1, 5, 0)]: socket.socket(f, t, p)\nprint(len(socket.if_nameindex()))'";
        assert_eq!(bench.sh(works).await.out(), "1", "what programs use stays");
        // name, arguments of syscall(2) in Python, whether it works bare.
        let calls = [
            ("unshare", "libc.unshare(0x10000000)", true),
            ("clone with a user namespace", "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)", true),
            ("clone3", "libc.syscall(435, 0, 0)", false),
            ("vsock", "socket(40)", true),
            ("packet", "socket(17)", false),
            ("alg", "socket(38)", true),
            ("a family with upper bits", "libc.syscall(41, ctypes.c_uint64((1 << 32) | 40), 1, 0)", true),
            ("io_uring", "libc.syscall(425, 1, ctypes.create_string_buffer(120))", true),
            ("userfaultfd", "libc.syscall(323, 1)", true),
            ("keyctl", "libc.syscall(250, 0, -3, 1, 0, 0)", true),
            ("bpf", "libc.syscall(321, 0, 0, 0)", false),
            ("perf_event_open", "libc.syscall(298, 0, 0, 0, 0, 0)", false),
            ("mount", "libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0)", false),
            ("x32 getpid", "libc.syscall(0x40000000 | 39)", false),
            ("setns", "libc.setns(os.open('/proc/self/ns/net', 0), 0)", false),
            ("open_by_handle_at", "libc.syscall(304, -100, 0, 0)", false),
            ("chmod setuid", "libc.chmod(b'f', 0o4755)", true),
            ("fchmodat2 setuid", "libc.syscall(452, -100, b'f', 0o4755, 0)", true),
            ("open setuid", "libc.open(b'new', 0o101, 0o4755)", true),
            ("openat2 setuid", "libc.syscall(437, -100, b'new', numbers(0o101, 0o4755, 0), 24)", true),
            ("the limits of launch", "libc.syscall(302, 2, 4, numbers(0, 0), None)", false),
            ("the limits of init", "libc.syscall(302, 1, 4, numbers(0, 0), None)", true),
            ("a netlink family of the kernel's inside", "libc.socket(16, 3, 16)", true),
            ("netfilter", "libc.socket(16, 3, 12)", true),
            ("sctp", "libc.socket(2, 1, 132)", true),
            ("l2tp over IPv6", "libc.socket(10, 2, 115)", false),
            ("open_tree_attr", "libc.syscall(467, -100, b'.', 0, None, 0)", true),
        ];
        let script = |call: &str| {
            format!(
                "import ctypes, os, struct\nlibc = ctypes.CDLL(None, use_errno=True)\nopen('f', 'w')\n\
                 def socket(family): return libc.socket(family, 1, 0)\n\
                 def numbers(*all): return ctypes.create_string_buffer(struct.pack('Q' * len(all), *all))\n\
                 r = {call}\nif r == 0 and 'syscall(56' in '''{call}''': os._exit(0)\n\
                 print('done' if r >= 0 else 'errno %d' % ctypes.get_errno())"
            )
        };
        for (name, call, works) in calls {
            let argv = ["python3", "-c", &script(call)].map(|word| word.as_bytes().to_vec()).to_vec();
            if works {
                let plan = RunPlan { command: Command::Argv(argv.clone()), ..bench.bare("true") };
                let outcome = bench.run(plan).await;
                // A kernel without it (no vsock module, say) proves nothing either way.
                if outcome.out() != "done" {
                    println!("{name}: not there to be denied here: {} {}", outcome.out(), outcome.err());
                }
                drop(std::fs::remove_file(bench.path.join("new")));
            }
            let outcome = bench.run(bench.plan(Command::Argv(argv))).await;
            assert!(outcome.out() == "errno 1" || outcome.out() == "errno 38", "{name}: {outcome:?}");
        }
    });
}

#[test]
fn a_terminal_is_never_typed_into() {
    unprivileged("a_terminal_is_never_typed_into", async || {
        let bench = open_bench("terminal");
        // On a terminal of its own making, which works bare unless the kernel forbids it altogether.
        let types = "import fcntl, os, pty, termios\npid, fd = pty.fork()\nif pid == 0:\n try:\n  fcntl.ioctl(0, {}, b'x'); os._exit(0)\n except OSError as e: os._exit(e.errno)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
        for request in ["termios.TIOCSTI", "0x541c", "0x5412 | (1 << 32) if False else 0x5412"] {
            let argv = ["python3", "-c", &types.replace("{}", request)].map(|word| word.as_bytes().to_vec()).to_vec();
            let outcome = bench.run(bench.plan(Command::Argv(argv))).await;
            assert_eq!(outcome.out(), "1", "{request}: {outcome:?}");
        }
        assert_eq!(bench.sh("(: </dev/tty) 2>/dev/null || echo none").await.out(), "none");
    });
}

#[test]
fn a_fork_bomb_stays_inside_its_limit_and_is_gone_afterwards() {
    unprivileged("a_fork_bomb_stays_inside_its_limit_and_is_gone_afterwards", async || {
        let bench = Bench::new("bomb");
        let limits = Limits { processes: 64, command_seconds: 2, ..Limits::default() };
        let start = Instant::now();
        let bomb = RunPlan { limits, ..bench.shell("b() { b | b & }; b; sleep 294.5") };
        let exit = bench.run(bomb).await.exit.unwrap();
        assert!(exit.proven_gone, "{exit:?}");
        assert!(start.elapsed() < Duration::from_secs(8));
        assert_eq!(Bench::alive("294.5"), [] as [String; 0]);
        assert_eq!(bench.sh("echo well").await.out(), "well");
    });
}

#[test]
fn a_command_reaches_neither_launch_nor_anything_outside() {
    unprivileged("a_command_reaches_neither_launch_nor_anything_outside", async || {
        let bench = Bench::new("reach");
        let outcome = bench.sh("ls -l /proc/[12]/fd 2>&1 | grep -c denied; kill -9 2; kill -STOP 1; echo $(ls /proc | grep -c '^[0-9]'); ls /proc/self/fd").await;
        let lines: Vec<_> = outcome.out().lines().map(str::to_owned).collect();
        assert!(lines[0].parse::<u32>().unwrap() >= 1, "{outcome:?}");
        assert!(lines[1].parse::<u32>().unwrap() <= 7, "{outcome:?}");
        assert_eq!(lines[2..], ["0", "1", "2", "3"], "{outcome:?}");
        assert_eq!(outcome.code(), Some(0));
    });
}

#[test]
fn read_paths_show_what_was_asked_and_never_credentials() {
    unprivileged("read_paths_show_what_was_asked_and_never_credentials", async || {
        let bench = Bench::new("read");
        // This account owns all it makes, so every path of its own is writable, which is a refusal itself.
        let with = |path: &Path| bench.reading([path], "true");
        for place in [".ssh", ".aws/sub", "plain"] {
            std::fs::create_dir_all(bench.outside.join(place)).unwrap();
        }
        for path in [Path::new("/"), Path::new("/root"), Path::new("/etc"), &bench.path, &bench.outside] {
            assert_eq!(bench.run(with(path)).await.failure.unwrap().id, "read-path-refused", "{path:?}");
        }
        let credential = bench.run(with(&bench.outside.join(".ssh"))).await.failure.unwrap();
        assert!(credential.message.contains("credentials"), "{}", credential.message);
        let writable = bench.run(with(&bench.outside.join("plain"))).await.failure.unwrap();
        assert!(writable.message.contains("not fixed"), "{}", writable.message);
        let spool = Path::new("/var/lib/dpkg/info");
        if spool.is_dir() {
            let plan =
                bench.reading([spool], "ls /var/lib/dpkg; touch /var/lib/dpkg/info/x 2>/dev/null || echo denied");
            assert_eq!(bench.run(plan).await.out(), "info\ndenied");
        }
    });
}

#[test]
fn a_workspace_that_was_moved_away_is_still_the_one_that_was_opened() {
    unprivileged("a_workspace_that_was_moved_away_is_still_the_one_that_was_opened", async || {
        let bench = Bench::new("moved");
        std::fs::write(bench.path.join("mine"), "").unwrap();
        std::fs::rename(&bench.path, bench.outside.join("elsewhere")).unwrap();
        std::fs::create_dir(&bench.path).unwrap();
        std::fs::write(bench.path.join("planted"), "").unwrap();
        assert_eq!(bench.sh("ls").await.out(), "mine");
    });
}

/// Prepares and runs `run.sh` 250 times while `swap` changes it; how often it ran as approved.
async fn race(name: &str, text: &str, swap: impl Fn(u64, &Path) + Send + 'static) -> (u32, u32) {
    let bench = Bench::new(name);
    let script = bench.path.join("run.sh");
    std::fs::write(&script, GOOD).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let racer = {
        let stop = std::sync::Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut round = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                swap(round, &script);
            }
        })
    };
    let (mut ran, mut stale) = (0, 0);
    while ran + stale < 250 {
        let command = Command::shell(text.into()).unwrap();
        let operation = fresh();
        let asked = Prepare { operation, workspace: bench.workspace, command: command.clone(), hold: true };
        let prepared = bench.runner.prepare(asked).await.unwrap();
        if prepared.files.first().map(|file| file.sha256) != Some(Digest::of(GOOD.as_bytes())) {
            // Changed before the check: not what this is about.
            bench.runner.release(operation);
            tokio::time::sleep(Duration::from_micros(200)).await;
            continue;
        }
        let outcome = bench.run(RunPlan { operation, files: prepared.files, ..bench.plan(command) }).await;
        match outcome.failure {
            Some(failure) => {
                assert_eq!(failure.id, "stale-operand", "{failure:?}");
                stale += 1;
            }
            None if outcome.exit.as_ref().is_some_and(|exit| exit.limit.as_deref() == Some("stale-operand")) => {
                assert_eq!(outcome.out(), "", "{outcome:?}");
                stale += 1;
            }
            None => {
                assert_eq!(outcome.out(), "good", "{outcome:?}");
                ran += 1;
            }
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    racer.join().unwrap();
    assert!(!bench.path.join("evil.log").exists(), "other bytes ran");
    println!("{ran} ran as approved, {stale} were stale");
    (ran, stale)
}

const GOOD: &str = "#!/bin/sh\necho good\n";
// Run by its first line alone, so that an interpreter that never opens the script would run it too.
const EVIL: &str = "#!/usr/bin/env -S sh -c 'echo evil >evil.log'\necho evil >evil.log; echo evil\n";

fn text(round: u64) -> &'static str {
    if round.is_multiple_of(2) { GOOD } else { EVIL }
}

#[test]
fn a_script_that_is_written_in_place_runs_as_approved() {
    unprivileged("a_script_that_is_written_in_place_runs_as_approved", async || {
        let (ran, _) = race("in-place", "sh run.sh", |round, script| {
            std::fs::write(script, text(round)).unwrap();
            std::thread::sleep(Duration::from_micros(round * 7919 % 3_000));
        })
        .await;
        assert!(ran > 20, "{ran}: too few to mean anything");
    });
}

#[test]
fn a_script_that_is_replaced_never_runs() {
    unprivileged("a_script_that_is_replaced_never_runs", async || {
        for (number, text_of_command) in ["sh run.sh", "exec ./run.sh", "true; sh run.sh"].into_iter().enumerate() {
            let longest = [900, 30_000, 5_000][number];
            race(&format!("replaced-{number}"), text_of_command, move |round, script| {
                let other = script.with_extension("new");
                std::fs::write(&other, text(round)).unwrap();
                std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
                std::fs::rename(&other, script).unwrap();
                std::thread::sleep(Duration::from_micros(round * 7919 % longest));
            })
            .await;
        }
    });
}

#[test]
fn an_older_command_may_replace_a_script_and_its_bytes_do_not_run() {
    unprivileged("an_older_command_may_replace_a_script_and_its_bytes_do_not_run", async || {
        let bench = Bench::new("older");
        std::fs::write(bench.path.join("step.sh"), "echo good\n").unwrap();
        let older = bench.sh("sleep 3.4; echo 'echo evil >evil.log' >new; mv new step.sh; sleep 0.5");
        let bound = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let command = Command::shell("while :; do sh step.sh; sleep 0.05; done".into()).unwrap();
            let operation = fresh();
            let asked = Prepare { operation, workspace: bench.workspace, command: command.clone(), hold: true };
            let prepared = bench.runner.prepare(asked).await.unwrap();
            assert_eq!(prepared.files.len(), 1);
            bench.run(RunPlan { operation, files: prepared.files, ..bench.plan(command) }).await
        };
        let (older, bound) = tokio::join!(older, bound);
        assert_eq!(older.code(), Some(0));
        assert!(bound.out().starts_with("good\ngood\n"), "{bound:?}");
        assert_eq!(bound.exit.unwrap().limit.as_deref(), Some("stale-operand"));
        assert!(!bench.path.join("evil.log").exists());
    });
}

#[test]
fn another_command_cannot_swap_what_is_bound() {
    unprivileged("another_command_cannot_swap_what_is_bound", async || {
        let bench = Bench::new("neighbours");
        std::fs::write(
            bench.path.join("run.sh"),
            "sleep 1; echo good >>log; sh -c 'sh run.sh again' >/dev/null & cat run.sh | head -c 5",
        )
        .unwrap();
        let command = Command::shell("sh run.sh".into()).unwrap();
        let operation = fresh();
        let asked = Prepare { operation, workspace: bench.workspace, command: command.clone(), hold: true };
        let prepared = bench.runner.prepare(asked).await.unwrap();
        let bound = bench.run(RunPlan { operation, files: prepared.files, ..bench.plan(command) });
        let swap = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            bench.sh("echo 'echo evil' >evil; mv evil run.sh || mv run.sh old || rm run.sh").await
        };
        let (bound, swap) = tokio::join!(bound, swap);
        assert_ne!(swap.code(), Some(0), "{swap:?}");
        assert!(swap.err().contains("busy"), "{swap:?}");
        assert_eq!(bound.out(), "sleep");
    });
}
