//! Bare commands, with a pid namespace and without one: nothing of the executor is reached, nothing is left behind.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    process::Command as Process,
    time::{Duration, Instant},
};

use common::{Bench, unprivileged};
use salaam_core::{bridge::RunPlan, command::Command, limits::Limits, policy::Unsandboxed};

/// Both kinds of host.
fn hosts(name: &str) -> [(&'static str, Bench); 2] {
    [
        ("with a pid namespace", Bench::with_floor(&format!("{name}-ns"), Unsandboxed::Allow)),
        ("without one", Bench::without_bwrap(&format!("{name}-alone"))),
    ]
}

#[test]
fn what_is_left_behind_is_ended_counted_and_proven_gone() {
    unprivileged("what_is_left_behind_is_ended_counted_and_proven_gone", async || {
        for (host, bench) in hosts("left") {
            let text = "(setsid sh -c 'trap \"\" TERM HUP; sleep 292.25; sleep 292.25' >/dev/null 2>&1 &) ; \
                        python3 -c 'import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork()==0: time.sleep(292.25)\n os._exit(0)'; sleep 0.2; exit 7";
            let outcome = bench.run(bench.bare(text)).await;
            let exit = outcome.exit.as_ref().unwrap_or_else(|| panic!("{host}: {outcome:?}"));
            assert_eq!((exit.exit_code, exit.proven_gone), (Some(7), true), "{host}: {outcome:?}");
            assert!(exit.left_processes >= 3, "{host}: {exit:?}");
            assert_eq!(Bench::alive("292.25"), [] as [String; 0], "{host}");
            assert_eq!(Bench::children().len(), 0, "{host}: nothing fell to the executor");
        }
    });
}

#[test]
fn a_timeout_and_a_cancel_end_what_ignores_signals() {
    unprivileged("a_timeout_and_a_cancel_end_what_ignores_signals", async || {
        for (host, bench) in hosts("stubborn") {
            let stubborn = "trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; while :; do sleep 291.25; done' &); while :; do sleep 291.25; done";
            let limits = Limits { command_seconds: 1, ..Limits::default() };
            let start = Instant::now();
            let exit = bench.run(RunPlan { limits, ..bench.bare(stubborn) }).await.exit.unwrap();
            assert!(exit.timed_out && exit.proven_gone, "{host}: {exit:?}");
            assert!(start.elapsed() < Duration::from_secs(8), "{host}");
            let exit = bench.run_with(bench.bare(stubborn), b"", Some(Duration::from_millis(300))).await.exit.unwrap();
            assert!(exit.cancelled && exit.proven_gone, "{host}: {exit:?}");
            assert_eq!(Bench::alive("291.25"), [] as [String; 0], "{host}");
        }
    });
}

#[test]
fn lineages_that_fork_on_and_leave_are_ended() {
    unprivileged("lineages_that_fork_on_and_leave_are_ended", async || {
        for (host, bench) in hosts("lineages") {
            let text = "import os, time\nfor i in range(20):\n if os.fork() == 0:\n  os.setsid()\n  while True:\n   if os.fork(): os._exit(0)\n   time.sleep(0.002)\ntime.sleep(0.3)\n";
            let command = Command::Argv(["python3", "-c", text].map(|word| word.as_bytes().to_vec()).to_vec());
            let exit = bench.run(RunPlan { command, ..bench.bare("true") }).await.exit.unwrap();
            assert!(exit.proven_gone, "{host}: {exit:?}");
            assert_eq!(Bench::alive("os.setsid"), [] as [String; 0], "{host}");
            assert_eq!(Bench::children().len(), 0, "{host}");
        }
    });
}

#[test]
fn the_executor_is_neither_signalled_nor_traced_nor_limited() {
    unprivileged("the_executor_is_neither_signalled_nor_traced_nor_limited", async || {
        let own = std::process::id();
        let attacks = [
            ("signal", "os.kill(PID, 0)"),
            ("signal by descriptor", "signal.pidfd_send_signal(os.pidfd_open(PID), 0)"),
            ("trace", "check(libc.ptrace(0x4206, PID, 0, 0))"),
            ("read its memory", "open('/proc/PID/mem', 'rb').close()"),
            ("take a descriptor", "check(libc.syscall(438, os.pidfd_open(PID), 0, 0))"),
            ("its limits", "resource.prlimit(PID, resource.RLIMIT_CORE, (0, 0))"),
            ("its niceness", "os.setpriority(os.PRIO_PROCESS, PID, 19)"),
            ("everybody's niceness", "os.setpriority(os.PRIO_USER, 0, 19)"),
            ("its processors", "os.sched_setaffinity(PID, {0})"),
            ("its policy", "os.sched_setscheduler(PID, os.SCHED_BATCH, os.sched_param(0))"),
        ];
        let script = |attack: &str| {
            format!(
                "import ctypes, os, resource, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                 def check(r):\n if r < 0: raise OSError(ctypes.get_errno(), 'x')\n\
                 try:\n {}\n print('done')\nexcept OSError as e: print('errno', e.errno)\n",
                attack.replace("PID", &own.to_string())
            )
        };
        // Outside: the same account reaches this process, which is traceable unlike toolsd.
        for (name, attack) in attacks.iter().filter(|(name, _)| *name != "everybody's niceness") {
            let mut attacker = Process::new("python3");
            attacker.args(["-c", &script(attack)]);
            let output = attacker.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done", "{name} works outside");
            // What was traced is let go with its tracer.
        }
        for (host, bench) in hosts("reach") {
            for (name, attack) in attacks {
                let argv = ["python3", "-c", &script(attack)].map(|word| word.as_bytes().to_vec()).to_vec();
                let outcome = bench.run(RunPlan { command: Command::Argv(argv), ..bench.bare("true") }).await;
                // In a namespace of its own "everybody" is itself.
                let allowed = name == "everybody's niceness" && host == "with a pid namespace";
                assert!(outcome.out().starts_with("errno") || allowed, "{host}: {name}: {outcome:?}");
            }
        }
    });
}

#[test]
fn kill_everything_reaches_only_the_command_itself() {
    unprivileged("kill_everything_reaches_only_the_command_itself", async || {
        for (host, bench) in hosts("everything") {
            let beside = bench.bare("sleep 1; echo alive");
            let (first, second) = tokio::join!(bench.run(beside), async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                bench.run(bench.bare("kill -9 -1; echo still")).await
            });
            assert_eq!((first.out().as_str(), first.code()), ("alive", Some(0)), "{host}: {first:?}");
            assert!(second.exit.unwrap().proven_gone, "{host}");
        }
    });
}

#[test]
fn a_keeper_that_is_killed_from_outside_leaves_nothing() {
    unprivileged("a_keeper_that_is_killed_from_outside_leaves_nothing", async || {
        let bench = Bench::without_bwrap("keeper");
        let (outcome, ()) = tokio::join!(bench.run(bench.bare("setsid sleep 290.25 & sleep 290.25")), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let keepers = Bench::children();
            assert_eq!(keepers.len(), 1, "{keepers:?}");
            let pid: i32 = keepers[0].split(' ').next().unwrap().parse().unwrap();
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
        });
        let exit = outcome.exit.unwrap();
        assert_eq!((exit.signal, exit.proven_gone), (Some(9), true), "{exit:?}");
        assert_eq!(Bench::alive("290.25"), [] as [String; 0]);
        assert_eq!(Bench::children().len(), 0);
    });
}
