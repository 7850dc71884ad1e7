//! Two commands at once under one account: neither sees, signals, traces or starves the other.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    process::{Command as Process, Stdio},
    time::{Duration, Instant},
};

use common::{Bench, unprivileged};
use salaam_core::{bridge::RunPlan, id::WorkspaceId, limits::Limits, policy::Unsandboxed};

/// Looks for a process with this word in its command line, for one that is not its own.
const LOOK: &str = "import os, signal, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = 0\nfor p in filter(str.isdigit, os.listdir('/proc')):\n try:\n  line = open('/proc/' + p + '/cmdline').read()\n  if 'MARK' not in line or 'listdir' in line: continue\n  found += 1\n  print('sees', 'environ' if 'SECRET' in open('/proc/' + p + '/environ').read() else '', 'traces' if libc.ptrace(0x4206, int(p), 0, 0) == 0 else '')\n  os.kill(int(p), signal.SIGKILL)\n  print('signals')\n except OSError: pass\nprint('looked', found)";

#[test]
fn commands_at_once_neither_see_nor_signal_nor_trace_each_other() {
    unprivileged("commands_at_once_neither_see_nor_signal_nor_trace_each_other", async || {
        let look = LOOK.replace("MARK", "289.75");
        let mut victim = Process::new("sleep").arg("289.75").env("SECRET", "1").stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let seen = Process::new("python3").args(["-c", &look]).output().unwrap();
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        drop(victim.kill());
        victim.wait().unwrap();
        assert!(seen.contains("sees environ traces") && seen.contains("signals"), "without walls: {seen}");

        let bench = Bench::with_floor("beside", Unsandboxed::Allow);
        let argv = |text: &str| {
            salaam_core::command::Command::Argv(["python3", "-c", text].map(|w| w.as_bytes().to_vec()).to_vec())
        };
        for bare in [false, true] {
            let base = || if bare { bench.bare("true") } else { bench.shell("true") };
            let environment = vec![("SECRET".to_owned(), "1".to_owned())];
            let first = RunPlan {
                environment,
                command: bench.shell("sleep 289.75 & sleep 1; kill -0 $! && echo alive").command,
                ..base()
            };
            let second = RunPlan { command: argv(&look), ..base() };
            let (first, second) = tokio::join!(bench.run(first), async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                bench.run(second).await
            });
            assert_eq!(first.out(), "alive", "bare {bare}: {first:?}");
            assert_eq!(second.out(), "looked 0", "bare {bare}: {second:?}");
        }
    });
}

#[test]
fn shared_memory_and_temporary_files_are_each_commands_own() {
    unprivileged("shared_memory_and_temporary_files_are_each_commands_own", async || {
        let bench = Bench::new("own");
        let first = "python3 -c \"import ctypes; print(ctypes.CDLL(None).shmget(4711, 4096, 0o1666) >= 0)\"; echo x >/tmp/mark; echo x >/dev/shm/mark; sleep 0.8";
        let second = "ls /tmp/mark /dev/shm/mark 2>/dev/null; ipcs -m | grep -c 0x00001267";
        let (first, second) = tokio::join!(bench.sh(first), async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            bench.sh(second).await
        });
        assert_eq!((first.out().as_str(), second.out().as_str()), ("True", "0"), "{second:?}");
    });
}

#[test]
fn a_workspace_that_floods_does_not_hold_up_another() {
    unprivileged("a_workspace_that_floods_does_not_hold_up_another", async || {
        let bench = Bench::new("flood");
        let quiet = bench.outside.join("quiet");
        std::fs::create_dir(&quiet).unwrap();
        let other = WorkspaceId::new(1, [2; 10]);
        bench.runner.open_workspace(other, quiet.as_os_str().as_encoded_bytes()).unwrap();
        let limits = Limits { concurrent_commands: 2, output_bytes: 1 << 20, command_seconds: 1, ..Limits::default() };
        let flood = "while :; do (yes salaam & yes salaam >&2 & : ) ; dd if=/dev/zero bs=64k count=64 2>&1; done";
        let start = Instant::now();
        let floods = async {
            let all = (0..10).map(|_| bench.run(RunPlan { limits, ..bench.shell(flood) }));
            let mut ended = Vec::new();
            let mut all: Vec<_> = all.map(Box::pin).collect();
            // All at once, in one task.
            std::future::poll_fn(|context| {
                all.retain_mut(|one| match one.as_mut().poll(context) {
                    std::task::Poll::Ready(outcome) => {
                        ended.push((start.elapsed(), outcome));
                        false
                    }
                    std::task::Poll::Pending => true,
                });
                if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            ended
        };
        let answers = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let outcome = bench.run(RunPlan { workspace: other, limits, ..bench.shell("echo here") }).await;
            (start.elapsed(), outcome)
        };
        let (floods, (answered, outcome)) = tokio::join!(floods, answers);
        assert_eq!(outcome.out(), "here", "{outcome:?}");
        println!("answered after {answered:?}; the floods ended after {:?}", floods.last().unwrap().0);
        let before = floods.iter().filter(|(when, _)| *when < answered).count();
        assert!(before <= 4, "its turn came after those that ran already, not after all ten: {before}");
        assert!(floods.iter().all(|(_, outcome)| outcome.exit.as_ref().unwrap().proven_gone));
    });
}

/// Gives, through a socket in the workspace: the workspace's directory, a file open for writing, its root, its /tmp, a
/// socket of its network, itself by descriptor.
const GIVES: &str = "s = socket.socket(socket.AF_UNIX); s.bind('lying.sock'); os.chmod('lying.sock', 0o777); s.listen()\n\
    open('shared', 'w').write('w'); n = socket.socket()\n\
    give = [os.open('.', os.O_RDONLY), os.open('shared', os.O_RDWR), os.open('/', os.O_PATH), os.open('/tmp', os.O_RDONLY), n.fileno(), os.pidfd_open(os.getpid())]\n\
    s.accept()[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', give))]); time.sleep(2)";

/// Takes them, and says what each is good for.
const TAKES: &str = "c = socket.socket(socket.AF_UNIX)\n\
    for i in range(100):\n try: c.connect('lying.sock'); break\n except OSError: time.sleep(.05)\n\
    fds = array.array('i')\nfor l, t, d in c.recvmsg(1, socket.CMSG_SPACE(24))[1]: fds.frombytes(d)\n\
    at, file, root, tmp, net, process = fds\n\
    def say(what, f):\n try: f(); print(what, 'yes')\n except OSError as e: print(what, 'no')\n\
    say('makes', lambda: os.open('made', os.O_CREAT | os.O_WRONLY, dir_fd=at))\n\
    say('makes-there', lambda: os.open('made', os.O_CREAT | os.O_WRONLY, dir_fd=tmp))\n\
    say('reads-outside', lambda: os.open('etc/hostname', os.O_RDONLY, dir_fd=root))\n\
    say('lists-root', lambda: os.listdir(os.open('.', os.O_RDONLY, dir_fd=root)))\n\
    say('signals', lambda: signal.pidfd_send_signal(process, 0))\n\
    say('takes', lambda: 1 / (libc.syscall(438, process, 1, 0) >= 0) if libc.syscall(438, process, 1, 0) >= 0 else os.stat('/nowhere'))\n\
    say('writes', lambda: os.write(file, b'from another'))\n\
    say('connects', lambda: socket.socket(fileno=os.dup(net)).connect(('127.0.0.1', PORT)))";

#[test]
fn what_is_handed_over_opens_nothing_more_and_an_open_file_or_socket_is_what_it_was() {
    unprivileged("what_is_handed_over_opens_nothing_more_and_an_open_file_or_socket_is_what_it_was", async || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let start = format!(
            "import array, ctypes, os, signal, socket, time\nPORT = {}\nlibc = ctypes.CDLL(None)\n",
            port.local_addr().unwrap().port()
        );
        let command = |text: &str| {
            let words = ["python3", "-c", &format!("{start}{text}")].map(|word| word.as_bytes().to_vec());
            salaam_core::command::Command::Argv(words.to_vec())
        };
        let reads = |bench: &Bench| RunPlan {
            profile: salaam_core::policy::Profile::ReadOnly,
            command: command(TAKES),
            ..bench.shell("true")
        };
        // Who gives has walls, or none: nothing can be opened by what it gives, and what is open already is what it was
        // in the other's hands.
        for (bare, works) in [(false, "writes yes\nconnects no"), (true, "writes yes\nconnects yes")] {
            let bench = Bench::with_floor("handed", Unsandboxed::Allow);
            let base = if bare { bench.bare("true") } else { bench.shell("true") };
            let giving = RunPlan { command: command(GIVES), ..base };
            let (gave, took) = tokio::join!(bench.run(giving), bench.run(reads(&bench)));
            assert_eq!(gave.code(), Some(0), "{gave:?}");
            let denied = ["makes", "makes-there", "reads-outside", "lists-root", "signals", "takes"];
            let denied: Vec<_> = denied.iter().map(|what| format!("{what} no")).collect();
            assert_eq!(took.out(), format!("{}\n{works}", denied.join("\n")), "bare {bare}: {took:?}");
        }
        // Without walls all of it is good for something: the attempts are no broken ones.
        let bench = Bench::with_floor("handed-bare", Unsandboxed::Allow);
        let both = [GIVES, TAKES].map(|text| RunPlan { command: command(text), ..bench.bare("true") });
        let [gives, takes] = both;
        let (_, took) = tokio::join!(bench.run(gives), bench.run(takes));
        let works =
            ["makes yes", "makes-there yes", "reads-outside yes", "lists-root yes", "writes yes", "connects yes"];
        assert!(works.iter().all(|what| took.out().contains(what)), "{took:?}");
    });
}
