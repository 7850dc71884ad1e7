//! What a command gets and what is told of it: codes, signals, streams, limits, ends.

mod common;

use std::time::{Duration, Instant};

use common::{Bench, unprivileged};
use salaam_core::{
    bridge::RunPlan,
    command::Command,
    limits::Limits,
    policy::{Network, Profile, Unsandboxed},
};
use salaam_toolsd::command::Proof;

#[test]
fn the_exit_code_and_the_signal_are_the_commands_own() {
    unprivileged("the_exit_code_and_the_signal_are_the_commands_own", async || {
        let bench = Bench::new("codes");
        assert_eq!(bench.sh("exit 0").await.code(), Some(0));
        assert_eq!(bench.sh("exit 77").await.code(), Some(77));
        let killed = bench.sh("kill -ABRT $$").await.exit.unwrap();
        assert_eq!((killed.exit_code, killed.signal), (None, Some(6)));
        // 128+n by the shell's own convention stays a code.
        assert_eq!(bench.sh("exit 137").await.code(), Some(137));
        assert!(killed.proven_gone);
    });
}

#[test]
fn a_program_that_is_not_there_is_a_failure_and_not_a_code() {
    unprivileged("a_program_that_is_not_there_is_a_failure_and_not_a_code", async || {
        let bench = Bench::new("noexec");
        let outcome = bench.run(bench.plan(Command::Argv(vec![b"no-such-program".to_vec()]))).await;
        assert_eq!(outcome.failure.as_ref().map(|f| f.id.as_str()), Some("exec-failed"), "{outcome:?}");
        assert!(outcome.failure.unwrap().message.contains("no-such-program"));
        assert_eq!(bench.sh("no-such-program").await.code(), Some(127));
    });
}

#[test]
fn a_command_runs_in_its_workspace_with_an_environment_from_nothing() {
    unprivileged("a_command_runs_in_its_workspace_with_an_environment_from_nothing", async || {
        let bench = Bench::new("place");
        let outcome = bench.sh("pwd; id -u; env | cut -d= -f1 | sort | tr '\\n' ' '; umask").await;
        let lines: Vec<_> = outcome.stdout.split(|b| *b == b'\n').map(String::from_utf8_lossy).collect();
        assert_eq!(lines[0], bench.path.to_str().unwrap(), "{outcome:?}");
        assert_eq!(lines[1], nix::unistd::getuid().to_string());
        assert!(!lines[2].contains("CARGO") && !lines[2].contains("SALAAM"), "{outcome:?}");
        assert!(lines[2].ends_with("0002"), "{outcome:?}");
        let declared =
            RunPlan { environment: vec![("GREETING".into(), "salaam".into())], ..bench.shell("echo $GREETING") };
        assert_eq!(bench.run(declared).await.out(), "salaam");
    });
}

#[test]
fn a_command_starts_with_default_signals_and_goes_first_when_memory_ends() {
    unprivileged("a_command_starts_with_default_signals_and_goes_first_when_memory_ends", async || {
        let bench = Bench::new("start");
        let outcome = bench.sh("grep SigIgn /proc/self/status | cut -f2; cat /proc/self/oom_score_adj").await;
        let told = outcome.out();
        let (ignored, score) = told.split_once('\n').unwrap();
        // The C library keeps 32 and 33 for itself: whoever ignores those stays so.
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & !(3 << 31), 0, "{outcome:?}");
        assert_eq!(score, "1000", "{outcome:?}");
        // A program whose reader has gone is ended by SIGPIPE and says nothing, as in every shell.
        let outcome = bench.sh("yes | head -n 1").await;
        assert_eq!((outcome.out(), outcome.err()), ("y".into(), String::new()), "{outcome:?}");
    });
}

#[test]
fn standard_input_is_what_was_given_or_empty_and_there_is_no_terminal() {
    unprivileged("standard_input_is_what_was_given_or_empty_and_there_is_no_terminal", async || {
        let bench = Bench::new("stdin");
        let start = Instant::now();
        assert_eq!(bench.sh("read x; echo \"<$x>\"").await.out(), "<>");
        assert_eq!(bench.sh("(: </dev/tty) 2>&1; tty").await.code(), Some(1));
        assert!(start.elapsed() < Duration::from_secs(5));
        let given = bench.run_with(bench.shell("cat; wc -c"), b"line\n", None).await;
        assert_eq!(given.out(), "line\n0");
    });
}

#[test]
fn every_byte_is_kept_as_it_was_written() {
    unprivileged("every_byte_is_kept_as_it_was_written", async || {
        let bench = Bench::new("bytes");
        let outcome =
            bench.sh("printf '\\342'; sleep 0.05; printf '\\200\\224\\377\\0\\033]0;x\\007'; printf e >&2").await;
        assert_eq!(outcome.stdout, b"\xe2\x80\x94\xff\0\x1b]0;x\x07");
        assert_eq!(outcome.stderr, b"e");
    });
}

#[test]
fn three_hundred_mebibytes_of_output_arrive_whole_where_somebody_reads_along() {
    unprivileged("three_hundred_mebibytes_of_output_arrive_whole_where_somebody_reads_along", async || {
        let bench = Bench::new("output");
        let plan = RunPlan { whole_output: true, ..bench.shell("head -c 314572800 /dev/zero; echo end >&2") };
        let outcome = bench.run(plan).await;
        assert_eq!((outcome.stdout.len(), outcome.err().as_str()), (314_572_800, "end"));
    });
}

#[test]
fn a_long_shell_text_runs_as_it_is() {
    unprivileged("a_long_shell_text_runs_as_it_is", async || {
        let bench = Bench::new("long");
        let text = format!(": {}\necho end; read x; echo \"<$x>\"", "x".repeat(300_000));
        let outcome = bench.run_with(bench.shell(&text), b"in\n", None).await;
        assert_eq!(outcome.out(), "end\n<in>", "{}", outcome.err());
    });
}

#[test]
fn a_command_that_ignores_term_is_killed_at_its_limit() {
    unprivileged("a_command_that_ignores_term_is_killed_at_its_limit", async || {
        let bench = Bench::new("timeout");
        let limits = Limits { command_seconds: 1, ..Limits::default() };
        let start = Instant::now();
        let plan = RunPlan { limits, ..bench.shell("trap '' TERM; echo on; while :; do sleep 31.4159; done") };
        let exit = bench.run(plan).await.exit.unwrap();
        let took = start.elapsed();
        assert!(exit.timed_out && !exit.cancelled && exit.proven_gone, "{exit:?}");
        assert_eq!(exit.signal, Some(9));
        assert!((Duration::from_millis(2900)..Duration::from_secs(5)).contains(&took), "{took:?}");
        assert_eq!(Bench::alive("31.4159"), [] as [String; 0]);
    });
}

#[test]
fn a_command_that_heeds_term_ends_at_once_with_its_own_code() {
    unprivileged("a_command_that_heeds_term_ends_at_once_with_its_own_code", async || {
        let bench = Bench::new("term");
        let start = Instant::now();
        let plan = bench.shell("trap 'echo ended; exit 3' TERM; echo on; sleep 60 & wait");
        let outcome = bench.run_with(plan, b"", Some(Duration::from_millis(300))).await;
        assert!(start.elapsed() < Duration::from_secs(2));
        assert_eq!(outcome.out(), "on\nended");
        let exit = outcome.exit.unwrap();
        assert_eq!((exit.exit_code, exit.cancelled, exit.timed_out), (Some(3), true, false));
    });
}

#[test]
fn what_a_command_leaves_behind_is_counted_and_ended() {
    unprivileged("what_a_command_leaves_behind_is_counted_and_ended", async || {
        let bench = Bench::new("survivors");
        let start = Instant::now();
        let outcome = bench.sh("sleep 299.25 & setsid sh -c 'setsid sleep 299.25 &' ; sleep 0.1; echo hi").await;
        assert!(start.elapsed() < Duration::from_secs(3));
        assert_eq!((outcome.out().as_str(), outcome.code()), ("hi", Some(0)));
        let exit = outcome.exit.unwrap();
        assert_eq!((exit.left_processes, exit.proven_gone), (2, true));
        assert_eq!(Bench::alive("299.25"), [] as [String; 0]);
    });
}

#[test]
fn a_survivor_that_holds_the_pipes_does_not_hold_the_result() {
    unprivileged("a_survivor_that_holds_the_pipes_does_not_hold_the_result", async || {
        let bench = Bench::new("holder");
        let start = Instant::now();
        let outcome = bench
            .run(
                bench.plan(Command::Argv(
                    [
                        "bash",
                        "-c",
                        "exec > >(tee log); (trap '' TERM HUP; while :; do sleep 1; done) & echo hi; exit 4",
                    ]
                    .map(|word| word.as_bytes().to_vec())
                    .to_vec(),
                )),
            )
            .await;
        assert!(start.elapsed() < Duration::from_secs(3));
        assert_eq!(outcome.code(), Some(4));
    });
}

#[test]
fn job_control_and_signals_are_the_same_while_a_command_is_held() {
    unprivileged("job_control_and_signals_are_the_same_while_a_command_is_held", async || {
        let bench = Bench::new("held-signals");
        std::fs::write(bench.path.join("later.sh"), "echo later\n").unwrap();
        let body = "(sleep 0.2; echo ran) & p=$!; kill -STOP $p; sleep 0.5; echo stopped; kill -CONT $p; wait $p; \
                    n=0; trap 'n=$((n+1))' USR1 TRAP; for i in 1 2 3; do kill -USR1 $$; kill -TRAP $$; done; echo $n;";
        let free = bench.sh(body).await;
        let command = Command::shell(format!("{body} sh later.sh")).unwrap();
        let operation = common::fresh();
        let asked = salaam_core::bridge::Prepare {
            operation,
            workspace: bench.workspace,
            command: command.clone(),
            hold: true,
        };
        let files = bench.runner.prepare(asked).await.unwrap().files;
        assert_eq!(files.len(), 1);
        let held = bench.run(RunPlan { operation, files, ..bench.plan(command) }).await;
        assert_eq!(free.out(), "stopped\nran\n6");
        assert_eq!(held.out(), "stopped\nran\n6\nlater");
    });
}

#[test]
fn where_memory_runs_out_the_command_goes_before_the_executor() {
    unprivileged("where_memory_runs_out_the_command_goes_before_the_executor", async || {
        let bench = Bench::new("oom");
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        assert!(own.trim().parse::<i32>().unwrap() < 1000);
        assert_eq!(bench.sh("cat /proc/self/oom_score_adj").await.out(), "1000");
    });
}

#[test]
fn a_dropped_run_leaves_no_process() {
    unprivileged("a_dropped_run_leaves_no_process", async || {
        let bench = Bench::new("dropped");
        let (events, mut received) = tokio::sync::mpsc::channel(8);
        let (_ask, cancel) = tokio::sync::oneshot::channel();
        let plan = bench.shell("echo on; sleep 297.5");
        let run = bench.runner.run(plan, Vec::new(), events, cancel);
        tokio::select! {
            () = run => panic!("it ended"),
            () = async { while !matches!(received.recv().await, Some(salaam_core::bridge::RunEvent::Output(..))) {} } => {}
        }
        tokio::time::timeout(Duration::from_secs(2), bench.runner.shutdown()).await.unwrap();
        assert_eq!(Bench::alive("297.5"), [] as [String; 0]);
    });
}

#[test]
fn a_cancel_at_any_moment_of_the_start_leaves_nothing_and_is_told_truly() {
    unprivileged("a_cancel_at_any_moment_of_the_start_leaves_nothing_and_is_told_truly", async || {
        let bench = Bench::new("cancelled-early");
        for round in 0..80u64 {
            let began = bench.path.join(round.to_string());
            let plan = bench.shell(&format!(": >{round}; sleep 295.5"));
            let outcome = bench.run_with(plan, b"", Some(Duration::from_micros(round * 250))).await;
            match outcome.exit {
                Some(exit) => assert!(exit.cancelled && exit.proven_gone, "{exit:?}"),
                None => assert!(!began.exists(), "it had begun: {:?}", outcome.failure),
            }
        }
        // A prober's sandbox counts like any other.
        for round in 0..20 {
            let probe = bench.runner.probe_sandbox(salaam_core::policy::Landlock::Required, Proof::Short);
            drop(tokio::time::timeout(Duration::from_micros(round * 700), probe).await);
        }
        let until = Instant::now() + Duration::from_secs(5);
        while !Bench::children().is_empty() {
            assert!(Instant::now() < until, "left behind: {:?}", Bench::children());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_shutdown_ends_every_command_and_refuses_later_ones() {
    unprivileged("a_shutdown_ends_every_command_and_refuses_later_ones", async || {
        let bench = Bench::new("shutdown");
        let (first, second) = (bench.sh("trap '' TERM; sleep 296.5"), bench.sh("sleep 296.5"));
        let stop = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let start = Instant::now();
            bench.runner.shutdown().await;
            start.elapsed()
        };
        let (first, second, took) = tokio::join!(first, second, stop);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(first.exit.unwrap().proven_gone && second.exit.unwrap().proven_gone);
        assert_eq!(Bench::alive("296.5"), [] as [String; 0]);
        assert_eq!(bench.sh("true").await.failure.unwrap().id, "cancelled-early");
    });
}

#[test]
fn an_operation_runs_once() {
    unprivileged("an_operation_runs_once", async || {
        let bench = Bench::new("once");
        let plan = bench.shell("echo x >>log");
        assert_eq!(bench.run(plan.clone()).await.code(), Some(0));
        assert_eq!(bench.run(plan).await.failure.unwrap().id, "operation-repeated");
        assert_eq!(std::fs::read_to_string(bench.path.join("log")).unwrap(), "x\n");
    });
}

#[test]
fn no_more_commands_run_at_once_than_the_limit_says() {
    unprivileged("no_more_commands_run_at_once_than_the_limit_says", async || {
        let bench = Bench::new("slots");
        let limits = Limits { concurrent_commands: 2, ..Limits::default() };
        let one = || bench.run(RunPlan { limits, ..bench.shell("sleep 0.4") });
        let start = Instant::now();
        let outcomes = tokio::join!(one(), one(), one());
        assert!(start.elapsed() >= Duration::from_millis(800));
        assert_eq!([outcomes.0.code(), outcomes.1.code(), outcomes.2.code()], [Some(0); 3]);
    });
}

#[test]
fn what_changed_and_what_was_used_is_told() {
    unprivileged("what_changed_and_what_was_used_is_told", async || {
        let bench = Bench::new("told");
        std::fs::create_dir(bench.path.join("src")).unwrap();
        std::fs::write(bench.path.join("src/old"), "1").unwrap();
        std::fs::write(bench.path.join("same"), "1").unwrap();
        // The clock of changes goes in ticks; what was made in this one would count.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let exit =
            bench.sh("echo 2 >src/old; : >new; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").await.exit.unwrap();
        let mut paths = exit.changed.paths.clone();
        paths.sort();
        assert_eq!(paths, [b"new".to_vec(), b"src/old".to_vec()]);
        assert!(exit.changed.complete);
        assert!(exit.usage.cpu_ms > 5 && exit.usage.wall_ms >= exit.usage.cpu_ms / 2, "{:?}", exit.usage);
        assert!(exit.usage.peak_memory_bytes > 1 << 19, "{:?}", exit.usage);
    });
}

#[test]
fn limits_on_files_memory_descriptors_and_growth_hold() {
    unprivileged("limits_on_files_memory_descriptors_and_growth_hold", async || {
        let bench = Bench::new("limits");
        let limits = Limits {
            file_bytes: 1 << 20,
            memory_bytes: 64 << 20,
            open_files: 32,
            tmp_bytes: 2 << 20,
            workspace_growth_bytes: 8 << 20,
            ..Limits::default()
        };
        let with = |text: &str| bench.run(RunPlan { limits, ..bench.shell(text) });
        assert_eq!(with("trap '' XFSZ; head -c 2000000 /dev/zero >big; stat -c %s big").await.out(), "1048576");
        assert_eq!(with("python3 -c 'bytearray(200<<20)' 2>&1 | tail -1").await.out(), "MemoryError");
        assert_eq!(with("ulimit -n; ulimit -c").await.out(), "32\n0");
        assert_eq!(
            with("for i in 1 2 3; do head -c 900000 /dev/zero >/tmp/f$i || echo full; done 2>/dev/null").await.out(),
            "full"
        );
        let grows = "i=0; while :; do i=$((i+1)); head -c 500000 /dev/zero >f$i; done";
        let exit = with(grows).await.exit.unwrap();
        assert_eq!(exit.limit.as_deref(), Some("workspace_growth_bytes"), "{exit:?}");
        assert!(exit.proven_gone);
    });
}

#[test]
fn bare_commands_run_only_where_plan_and_floor_allow_and_say_so() {
    unprivileged("bare_commands_run_only_where_plan_and_floor_allow_and_say_so", async || {
        let closed = Bench::new("bare-closed");
        let refused = closed.run(closed.bare("true")).await.failure.unwrap();
        assert_eq!(refused.id, "unsandboxed-refused");
        let open = Bench::with_floor("bare-open", Unsandboxed::Allow);
        std::fs::write(open.outside.join("beside"), "seen").unwrap();
        let outcome =
            open.run(open.bare(&format!("cat {}/beside; sleep 295.5 & exit 5", open.outside.display()))).await;
        assert_eq!((outcome.out().as_str(), outcome.code()), ("seen", Some(5)));
        let sandbox = outcome.sandbox.unwrap();
        assert_eq!((sandbox.backend.as_str(), sandbox.seccomp, sandbox.landlock_abi), ("none", false, 0));
        assert!(sandbox.namespaces.contains(&"pid".to_owned()));
        assert_eq!(outcome.exit.unwrap().left_processes, 1);
        assert_eq!(Bench::alive("295.5"), [] as [String; 0]);
        let mixed = RunPlan { network: Network::None, profile: Profile::FullAccess, ..open.bare("true") };
        assert_eq!(open.run(mixed).await.failure.unwrap().id, "plan-refused");
    });
}

#[test]
fn a_command_outlives_the_threads_of_the_runtimes_blocking_pool() {
    unprivileged("a_command_outlives_the_threads_of_the_runtimes_blocking_pool", async || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_keep_alive(Duration::from_millis(50))
            .enable_all()
            .build()
            .unwrap();
        let ran = std::thread::spawn(move || {
            runtime.block_on(async {
                let bench = Bench::new("threads");
                // Blocking threads come, and go after 50 ms, while it sleeps.
                let busy = tokio::spawn(async {
                    for _ in 0..10 {
                        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(20))).await.unwrap();
                        tokio::time::sleep(Duration::from_millis(80)).await;
                    }
                });
                let outcome = bench.sh("sleep 1.5; echo done").await;
                busy.await.unwrap();
                (outcome.out(), outcome.code())
            })
        });
        assert_eq!(ran.join().unwrap(), ("done".to_owned(), Some(0)));
    });
}

#[test]
fn a_hardened_executor_runs_commands_all_the_same() {
    unprivileged("a_hardened_executor_runs_commands_all_the_same", async || {
        // As toolsd is: its own /proc entries are root's then.
        nix::sys::prctl::set_dumpable(false).unwrap();
        nix::sys::prctl::set_no_new_privs().unwrap();
        let bench = Bench::new("hardened");
        std::fs::write(bench.path.join("run.sh"), "touch made && chmod 2755 made && echo ran\n").unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let command = Command::shell("sh run.sh".into()).unwrap();
        let operation = common::fresh();
        let asked = salaam_core::bridge::Prepare {
            operation,
            workspace: bench.workspace,
            command: command.clone(),
            hold: true,
        };
        let files = bench.runner.prepare(asked).await.unwrap().files;
        assert_eq!(files.len(), 1);
        let outcome = bench.run(RunPlan { operation, files, ..bench.plan(command) }).await;
        assert_eq!(outcome.out(), "ran", "{outcome:?}");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(bench.path.join("made").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(outcome.exit.unwrap().changed.paths, [b"made".to_vec()]);
        let status = bench.runner.probe_sandbox(salaam_core::policy::Landlock::Required, Proof::Short).await;
        assert!(status.sandbox.is_some(), "{status:?}");
    });
}
