//! What a command may take, and who stops it: every limit by name, and another command beside it runs as ever.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::time::Duration;

use common::{Bench, Outcome, unprivileged, unprivileged_through};
use salaam_core::{bridge::RunPlan, command::Command, limits::Limits, policy::Unsandboxed};

const START: &str =
    "import ctypes, fcntl, mmap, os, resource, signal, time\nlibc = ctypes.CDLL(None, use_errno=True)\n";

fn python(text: &str) -> Command {
    Command::Argv(["python3", "-c", &format!("{START}{text}")].map(|word| word.as_bytes().to_vec()).to_vec())
}

const MIB: u64 = 1 << 20;

/// Below what the texts take, and above what a shell needs.
const TIGHT: Limits = Limits {
    processes: 512,
    memory_bytes: 64 * MIB,
    file_bytes: 1 << 30,
    tmp_bytes: 16 * MIB,
    open_files: 4096,
    output_bytes: MIB,
    workspace_growth_bytes: 16 * MIB,
    command_seconds: 20,
    concurrent_commands: 4,
};

#[rustfmt::skip]
const TAKEN: &[(&str, &str, &str)] = &[
    ("a file that has no name any more", "f = os.open('x', 66); os.unlink('x')\nfor i in range(60): os.write(f, bytes(1 << 20)); time.sleep(.02)", "workspace_growth_bytes"),
    ("one that never had a name", "f = os.open('.', os.O_TMPFILE | 2)\nfor i in range(60): os.write(f, bytes(1 << 20)); time.sleep(.02)", "workspace_growth_bytes"),
    ("one of a process that hides", "libc.prctl(4, 0); f = os.open('x', 66); os.unlink('x')\nfor i in range(60): os.write(f, bytes(1 << 20)); time.sleep(.02)", "workspace_growth_bytes"),
    ("one in a directory that is closed", "os.mkdir('d'); f = os.open('d/x', 66); os.chmod('d', 0)\nfor i in range(60): os.write(f, bytes(1 << 20)); time.sleep(.02)", "workspace_growth_bytes"),
    ("space that is only reserved", "os.posix_fallocate(os.open('x', 66), 0, 60 << 20); time.sleep(1)", "workspace_growth_bytes"),
    ("files with nothing in them", "os.mkdir('d'); os.chdir('d')\nfor i in range(20000): os.close(os.open(str(i), 65))\ntime.sleep(1)", "workspace_growth_bytes"),
    ("the same in /tmp", "os.mkdir('/tmp/d'); os.chdir('/tmp/d')\nfor i in range(20000): os.close(os.open(str(i), 65))\ntime.sleep(1)", "tmp_bytes"),
    ("the same in /dev/shm", "os.mkdir('/dev/shm/d'); os.chdir('/dev/shm/d')\nfor i in range(20000): os.close(os.open(str(i), 65))\ntime.sleep(1)", "tmp_bytes"),
    ("memory that is shared", "m = mmap.mmap(-1, 200 << 20)\nfor i in range(0, 200 << 20, 4096): m[i] = 1\ntime.sleep(1)", "memory_bytes"),
    ("files in memory", "for f in [os.memfd_create('x') for i in range(8)]: os.write(f, bytes(20 << 20))\nkept = [os.memfd_create('x') for i in range(8)]\nfor f in kept: os.write(f, bytes(20 << 20))\ntime.sleep(1)", "memory_bytes"),
];

#[test]
fn what_no_limit_of_a_process_stops_is_watched_and_named() {
    unprivileged("what_no_limit_of_a_process_stops_is_watched_and_named", async || {
        for (what, text, limit) in TAKEN {
            let bench = Bench::new("taken");
            let run = async |limits| bench.run(RunPlan { command: python(text), limits, ..bench.shell("true") }).await;
            // With the usual limits it is nothing unusual.
            let free: Outcome = run(Limits { command_seconds: 60, ..Limits::default() }).await;
            assert_eq!(free.code(), Some(0), "{what}: {free:?}");
            bench.sh("chmod -R u+rwx . 2>/dev/null; rm -rf -- ./*").await;
            let (stopped, beside) = tokio::join!(run(TIGHT), async {
                tokio::time::sleep(Duration::from_millis(150)).await;
                bench.run(RunPlan { limits: TIGHT, ..bench.shell("echo well >/tmp/f; cat /tmp/f") }).await
            });
            let exit = stopped.exit.as_ref().unwrap();
            assert_eq!((exit.limit.as_deref(), exit.proven_gone), (Some(*limit), true), "{what}: {stopped:?}");
            assert_eq!(beside.out(), "well", "{what}: {beside:?}");
        }
    });
}

#[test]
fn memory_that_several_have_together_counts_once() {
    unprivileged("memory_that_several_have_together_counts_once", async || {
        let bench = Bench::new("together");
        // Eight have the same 40 MiB, by memory and by file: 320 MiB if one adds up.
        let text = "f = os.memfd_create('x'); os.ftruncate(f, 40 << 20); m = mmap.mmap(f, 40 << 20)\n\
                    for i in range(0, 40 << 20, 4096): m[i] = 1\n\
                    for k in range(7):\n if os.fork() == 0:\n  sum(m[i] for i in range(0, 40 << 20, 4096)); time.sleep(1.5); os._exit(0)\n\
                    keep = mmap.mmap(-1, 70 << 20)\nfor i in range(0, 70 << 20, 4096): keep[i] = 1\nkeep.close(); time.sleep(1)\nfor k in range(7): os.wait()";
        let outcome = bench.run(RunPlan { command: python(text), limits: TIGHT, ..bench.shell("true") }).await;
        assert_eq!((outcome.code(), outcome.exit.as_ref().unwrap().limit.as_deref()), (Some(0), None), "{outcome:?}");
    });
}

#[test]
fn a_fork_bomb_meets_its_limit_in_every_profile() {
    unprivileged("a_fork_bomb_meets_its_limit_in_every_profile", async || {
        let text = "n = 0\ntry:\n for n in range(400):\n  if os.fork() == 0: time.sleep(3); os._exit(0)\n print('all', flush=True); time.sleep(1)\nexcept OSError as e: print('stopped')";
        // It stays for a second: where processes are counted, they are four times in one.
        let limits = Limits { processes: 100, ..TIGHT };
        for (host, bench) in [
            ("with a pid namespace", Bench::with_floor("bomb", Unsandboxed::Allow)),
            ("without one", Bench::without_bwrap("bomb-alone")),
        ] {
            let run = |plan| bench.run(RunPlan { command: python(text), ..plan });
            assert_eq!(run(bench.bare("true")).await.out(), "all", "{host}: with the usual limit");
            let outcome = run(RunPlan { limits, ..bench.bare("true") }).await;
            let ended = outcome.exit.as_ref().unwrap().limit.as_deref() == Some("processes");
            assert!(outcome.out() == "stopped" || ended, "{host}: {outcome:?}");
            assert!(outcome.exit.as_ref().unwrap().proven_gone, "{host}: {outcome:?}");
            assert_eq!(bench.run(bench.bare("echo well")).await.out(), "well", "{host}");
        }
    });
}

#[test]
fn signals_that_wait_are_each_commands_own() {
    unprivileged("signals_that_wait_are_each_commands_own", async || {
        let bench = Bench::with_floor("signals", Unsandboxed::Allow);
        let hoard = "signal.pthread_sigmask(signal.SIG_BLOCK, [40]); n = 0\n\
                     while libc.sigqueue(os.getpid(), 40, None) == 0 and n < 200000: n += 1\nprint(n, flush=True); time.sleep(1.5)";
        let use_one = "signal.pthread_sigmask(signal.SIG_BLOCK, [40]); time.sleep(.7)\nprint(libc.sigqueue(os.getpid(), 40, None), libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())))";
        for plan in [bench.shell("true"), bench.bare("true")] {
            let with = |text: &str, plan: RunPlan| bench.run(RunPlan { command: python(text), ..plan });
            let bare = plan.allow_unsandboxed;
            let other = if bare { bench.bare("true") } else { bench.shell("true") };
            let (first, second) = tokio::join!(with(hoard, plan), with(use_one, other));
            assert!(first.out().parse::<u64>().unwrap() <= 4096, "{first:?}");
            assert_eq!(second.out(), "0 0", "{second:?}");
        }
    });
}

/// What a careless parent leaves: no random addresses, lazy timers, a real-time class, signals ignored and held back,
/// and limits by which a command could take more than its turn.
const CARELESS: &str = "import ctypes, os, resource, signal, sys\nlibc = ctypes.CDLL(None)\n\
    libc.prctl(29, 7000000); libc.personality(0x40000); os.umask(0)\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
    try: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))\n\
    except OSError: pass\n\
    for r in (resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE):\n\
    \x20try: resource.setrlimit(r, (40, 40))\n\
    \x20except ValueError: pass\n\
    os.execvp(sys.argv[1], sys.argv[1:])";

#[test]
fn every_command_starts_alike_whoever_started_the_executor() {
    let parent = ["python3", "-c", CARELESS];
    unprivileged_through("every_command_starts_alike_whoever_started_the_executor", &parent, async || {
        let look = "print(hex(libc.personality(-1)), libc.prctl(30), os.sched_getscheduler(0), oct(os.umask(0)))\n\
                    print(*[resource.getrlimit(r) for r in (resource.RLIMIT_CORE, resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)])\n\
                    print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('SigIgn', 'SigBlk'))])";
        let own = std::process::Command::new("python3").args(["-c", &format!("{START}{look}")]).output().unwrap();
        let own = String::from_utf8_lossy(&own.stdout).into_owned();
        let bench = Bench::with_floor("alike", Unsandboxed::Allow);
        let alone = Bench::without_bwrap("alike-alone");
        // Python itself ignores two: PIPE and XFSZ.
        let wanted = "0x0 50000 0 0o2\n(1, 1) (0, 0) (0, 0)\n['0000000000000000', '0000000001001000']";
        for (bench, plan) in [(&bench, bench.shell("true")), (&bench, bench.bare("true")), (&alone, alone.bare("true"))]
        {
            let outcome = bench.run(RunPlan { command: python(look), ..plan }).await;
            assert_eq!(outcome.out(), wanted, "{outcome:?}");
        }
        // The real-time class and its limits only where root may give them; run by hand, nothing was left at all.
        println!("what a process that is not started so would have: {own}");
        let root = std::env::var_os("SALAAM_TEST_LAUNCH").is_some();
        // A real-time process has no slack.
        let left = own.starts_with("0x40000 7000000 0 0o0\n") || own.starts_with("0x40000 0 2 0o0\n");
        assert!(!root || left && own.contains("'0000000000000200'") && own.contains("5000'"), "{own}");
    });
}

#[test]
fn a_command_stays_the_one_that_goes_when_memory_ends() {
    unprivileged("a_command_stays_the_one_that_goes_when_memory_ends", async || {
        let lower = "cat /proc/self/oom_score_adj; echo 0 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj";
        let bench = Bench::with_floor("oom", Unsandboxed::Allow);
        assert_eq!(bench.run(bench.bare(lower)).await.out(), "1000\n0", "without walls it can be lowered");
        assert_eq!(bench.sh(lower).await.out(), "1000\n1000");
    });
}
