//! Ends that a command, or somebody else of its account, tries to put off: by stopping, by tracing, by stopping what
//! watches over it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::time::{Duration, Instant};

use common::{Bench, unprivileged};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use salaam_core::{bridge::RunPlan, command::Command, limits::Limits, policy::Unsandboxed};

/// For what ends by itself at once, on a machine that does much beside.
const LONG: u64 = 30;

/// Every way to run a command for at most so many seconds: behind walls, in a pid namespace, kept together by launch.
fn ways(name: &str, command: &Command, seconds: u64) -> [(&'static str, Bench, RunPlan); 3] {
    let limits = Limits { command_seconds: seconds, ..Limits::default() };
    let (walled, bare) =
        (Bench::new(&format!("{name}-walled")), Bench::with_floor(&format!("{name}-bare"), Unsandboxed::Allow));
    let alone = Bench::without_bwrap(&format!("{name}-alone"));
    let plans = [walled.shell("true"), bare.bare("true"), alone.bare("true")];
    let [first, second, third] = plans.map(|plan| RunPlan { command: command.clone(), limits, ..plan });
    [("walled", walled, first), ("bare", bare, second), ("alone", alone, third)]
}

fn shell(text: &str) -> Command {
    Command::shell(text.to_owned()).unwrap()
}

fn python(text: &str) -> Command {
    let text = format!("import ctypes, os, signal, time\nlibc = ctypes.CDLL(None)\n{text}");
    Command::Argv(["python3", "-c", &text].map(|word| word.as_bytes().to_vec()).to_vec())
}

/// The parent of the process with this in its command line.
fn parent_of(mark: &str) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: std::fs::DirEntry| {
        let words = std::fs::read(entry.path().join("cmdline")).ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
        (String::from_utf8_lossy(&words).replace('\0', " ").trim() == mark).then(|| Pid::from_raw(parent))
    };
    entries.filter_map(of).next()
}

#[test]
fn a_launch_that_somebody_has_stopped_holds_nothing_up() {
    unprivileged("a_launch_that_somebody_has_stopped_holds_nothing_up", async || {
        for (way, bench, plan) in ways("stopped", &shell("setsid sleep 286.25 & exec sleep 286.75"), 2) {
            let start = Instant::now();
            let (outcome, ()) = tokio::join!(bench.run(plan), async {
                let launch = loop {
                    match parent_of("sleep 286.75") {
                        Some(launch) => break launch,
                        None => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                };
                kill(launch, Signal::SIGSTOP).unwrap();
            });
            let exit = outcome.exit.unwrap();
            assert_eq!((exit.timed_out, exit.signal, exit.proven_gone), (true, Some(9), true), "{way}: {exit:?}");
            assert!(start.elapsed() < Duration::from_secs(20), "{way}: {:?}", start.elapsed());
            assert_eq!(Bench::alive("sleep 286."), [] as [String; 0], "{way}");
            assert_eq!(Bench::children().len(), 0, "{way}");
        }
    });
}

#[test]
fn what_has_stopped_hears_that_it_shall_end() {
    unprivileged("what_has_stopped_hears_that_it_shall_end", async || {
        for (way, bench, plan) in
            ways("asleep", &shell("trap 'echo asked; exit 7' TERM; kill -STOP $$; sleep 285.5"), 2)
        {
            let outcome = bench.run(plan).await;
            assert_eq!((outcome.out().as_str(), outcome.code()), ("asked", Some(7)), "{way}: {outcome:?}");
            assert!(outcome.exit.unwrap().timed_out, "{way}");
        }
    });
}

#[test]
fn a_tracer_that_does_not_listen_hides_no_end() {
    unprivileged("a_tracer_that_does_not_listen_hides_no_end", async || {
        let text = "me = os.getpid()\nif os.fork() == 0:\n os.setsid()\n signal.signal(15, signal.SIG_IGN)\n \
                    assert libc.ptrace(0x4206, me, 0, 0) == 0\n time.sleep(284.5)\ntime.sleep(0.5)\nos._exit(4)";
        for (way, bench, plan) in ways("tracer", &python(text), LONG) {
            let exit = bench.run(plan).await.exit.unwrap();
            assert_eq!((exit.exit_code, exit.timed_out, exit.left_processes), (Some(4), false, 1), "{way}: {exit:?}");
            assert!(exit.proven_gone && Bench::alive("284.5").is_empty(), "{way}");
        }
    });
}

#[test]
fn what_a_limit_ends_is_counted() {
    unprivileged("what_a_limit_ends_is_counted", async || {
        // Three children, one of them traced and stopped, one ended and not reaped, and the command ignores TERM.
        let text = "signal.signal(15, signal.SIG_IGN)\nif os.fork() == 0: time.sleep(283.5)\n\
                    if os.fork() == 0:\n libc.ptrace(0, 0, 0, 0)\n os.kill(os.getpid(), 19)\n time.sleep(283.5)\n\
                    if os.fork() == 0: os._exit(0)\ntime.sleep(283.5)";
        for (way, bench, plan) in ways("counted", &python(text), 2) {
            let exit = bench.run(plan).await.exit.unwrap();
            let got = (exit.timed_out, exit.signal, exit.left_processes, exit.proven_gone);
            assert_eq!(got, (true, Some(9), 3, true), "{way}: {exit:?}");
            assert!(exit.usage.cpu_ms > 0, "{way}: {exit:?}");
        }
    });
}

/// Takes one descriptor from a socket in the workspace and writes into it for some seconds, whoever is gone meanwhile.
const HOLDER: &str = "import array, os, signal, socket, sys, time\nsignal.signal(13, signal.SIG_DFL)\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n\
    os.chmod(sys.argv[1], 0o777)\nprint('up', flush=True)\nc = s.accept()[0]\nfds = array.array('i')\n\
    for l, t, d in c.recvmsg(1, socket.CMSG_SPACE(4))[1]: fds.frombytes(d)\n\
    end = time.time() + float(sys.argv[2])\nwhile time.time() < end: os.write(fds[0], b'mine ' * 3000); time.sleep(0.005)\ntime.sleep(90)";

#[test]
fn output_ends_with_the_command_although_somebody_outside_holds_it_and_writes_on() {
    use std::{io::BufRead, process::Stdio};
    unprivileged("output_ends_with_the_command_although_somebody_outside_holds_it_and_writes_on", async || {
        let give = "import array, socket\nc = socket.socket(socket.AF_UNIX); c.connect('lying.sock')\n\
                    c.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))])\nprint('given', flush=True)";
        // Writing on, and silent: in the second case nothing but the end itself could end it.
        for seconds in ["60", "0"] {
            for (way, bench, plan) in ways("held-output", &python(give), LONG) {
                let socket = bench.path.join("lying.sock");
                let mut holder = std::process::Command::new("python3");
                holder.args(["-c", HOLDER]).arg(&socket).arg(seconds).stdout(Stdio::piped()).stderr(Stdio::null());
                let mut holder = holder.spawn().unwrap();
                let mut up = String::new();
                std::io::BufReader::new(holder.stdout.take().unwrap()).read_line(&mut up).unwrap();
                assert_eq!(up, "up\n");
                let start = Instant::now();
                let outcome = bench.run(plan).await;
                let took = start.elapsed();
                drop(holder.kill());
                holder.wait().unwrap();
                assert!(outcome.out().contains("given"), "{way}: {:?}", outcome.exit);
                let exit = outcome.exit.unwrap();
                assert_eq!((exit.exit_code, exit.proven_gone), (Some(0), true), "{way}: {exit:?}");
                assert!(took < Duration::from_secs(LONG), "{way}: {took:?}");
            }
        }
    });
}
