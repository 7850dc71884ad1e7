//! Whoever is killed or stopped, in whatever phase of a command: nothing of it is left, it has one end, it did not run
//! twice, and the next one runs. And nothing piles up: descriptors, threads, files, keys.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use salaam_tests::{
    Host, Pair, eventually, limit,
    pair::{inside, text},
    process::Process,
    ran::{Ran, Started},
    random::Seeded,
};

/// Between the end of a process and the end of all that hangs on it.
const GONE: Duration = Duration::from_secs(20);
/// The same each time.
const SEED: u64 = 20_261_130;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Service,
    Sudo,
    Executor,
    Prober,
    /// bwrap as the executor started it.
    Outer,
    /// The first process of the namespace.
    Init,
    Launch,
}

const ALL: [Who; 7] = [Who::Service, Who::Sudo, Who::Executor, Who::Prober, Who::Outer, Who::Init, Who::Launch];

impl Who {
    fn find(self, pair: &Pair) -> Option<Process> {
        let tools = || Process::of_uid(pair.host.tools.uid);
        let executor = || pair.executors().pop();
        let child = |parent: Option<Process>, name: &str| {
            let parent = parent?.pid;
            tools().into_iter().find(|process| process.parent == parent && process.name == name)
        };
        match self {
            Self::Service => pair.service_process(),
            Self::Sudo => pair.sudo_process(),
            Self::Executor => executor(),
            Self::Prober => tools().into_iter().find(|process| process.words.trim_end().ends_with("toolsd prober")),
            Self::Outer => child(executor(), "bwrap"),
            Self::Init => child(Self::Outer.find(pair), "bwrap"),
            Self::Launch => child(Self::Init.find(pair), "launch"),
        }
    }
}

/// When in the life of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// From the proposal to the first line of it, by chance.
    Starting,
    /// It runs, with a child in a session of its own.
    Running,
    /// It was asked to end, and does not.
    Ending,
    /// It has left many files, and they are being looked at, or its receipt is being written.
    After,
}

const PHASES: [When; 4] = [When::Starting, When::Running, When::Ending, When::After];

impl When {
    /// Starts a command that says `mark` once, and waits for the moment.
    fn reach(self, pair: &Pair, mark: &str, random: &mut Seeded) -> Started {
        let (options, text): (&[&str], String) = match self {
            // Bound content: it is held until it was opened.
            Self::Starting => {
                pair.host.write(&inside(pair, "held.sh"), format!("echo {mark} >>log; sleep 280.5"));
                // Where nobody is met yet it ends by itself.
                (&["--json", "--timeout", "5"], "sh ./held.sh".into())
            }
            Self::Running => {
                (&["--json", "--timeout", "8"], format!("echo {mark} >>log; setsid sleep 280.5 & sleep 280.5"))
            }
            Self::Ending => (
                &["--json", "--timeout", "1"],
                format!(
                    "trap '' TERM; echo {mark} >>log; (trap '' TERM; setsid sleep 280.5) & sleep 280.5; sleep 280.5"
                ),
            ),
            Self::After => (
                &["--json"],
                format!(
                    "echo {mark} >>log; mkdir {mark}; cd {mark}; for n in $(seq 3000); do : >$n; done; : >../{mark}-made"
                ),
            ),
        };
        let started = pair.run_started(options, &["sh", "-c", &text]);
        let said = || fs::read_to_string(inside(pair, "log")).is_ok_and(|log| log.contains(mark)).then_some(());
        match self {
            Self::Starting => thread::sleep(Duration::from_millis(random.below(90))),
            Self::Running => eventually("it runs", Duration::from_secs(15), said),
            Self::Ending => {
                eventually("it runs", Duration::from_secs(15), said);
                thread::sleep(Duration::from_millis(1400));
            }
            Self::After => {
                let made = || inside(pair, format!("{mark}-made")).exists().then_some(());
                eventually("it has made its files", Duration::from_secs(30), made);
                thread::sleep(Duration::from_millis(random.below(40)));
            }
        }
        started
    }
}

fn again(pair: &Pair) {
    if pair.service_process().is_none() {
        pair.start_after_kill();
    }
    eventually("the next command runs", Duration::from_secs(20), || {
        (pair.run(&["echo", "well"]).out() == "well\n").then_some(())
    });
}

#[test]
fn whoever_is_killed_in_whatever_phase_nothing_is_left_and_nothing_runs_twice() {
    let _turn = limit!(560);
    let pair = Pair::started(Host::shared());
    pair.run(&["true"]).ok();
    let mut random = Seeded::new(SEED);
    let mut struck = Vec::new();
    for who in ALL {
        for when in PHASES {
            let mark = format!("{who:?}-{when:?}").to_lowercase();
            let started = when.reach(&pair, &mark, &mut random);
            if let Some(victim) = who.find(&pair) {
                struck.push((who, when));
                victim.kill();
            }
            let ran = started.wait(Duration::from_secs(30));
            assert!(ran.signal.is_some() || ran.code.is_some(), "{mark}: {ran}");
            eventually(&format!("{mark}: nothing is left"), GONE, || pair.commands().is_empty().then_some(()));
            if who == Who::Prober {
                // Only another executor can make one.
                eventually("there is a prober", Duration::from_secs(20), || who.find(&pair));
            }
            again(&pair);
            let log = fs::read_to_string(inside(&pair, "log")).unwrap_or_default();
            assert!(log.lines().filter(|line| *line == mark).count() <= 1, "{mark} ran twice");
        }
    }
    for who in ALL {
        assert!(struck.contains(&(who, When::Running)), "{who:?} was not met: {struck:?}");
    }
    let operations = pair.salaam(&["operation", "list", "--json"]).ok().json_lines();
    let definite = ["completed", "failed", "timed-out", "cancelled", "unknown", "refused"];
    for one in &operations {
        assert!(definite.contains(&text(one, "state").as_str()), "{one}");
    }
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
}

#[test]
fn whoever_is_stopped_a_command_has_an_end() {
    let _turn = limit!(300);
    let pair = Pair::started(Host::shared());
    let signal = |process: &Process, signal| {
        // Of what was stopped some are gone when they are to go on.
        let _ = kill(Pid::from_raw(process.pid), signal);
    };
    for who in [Who::Sudo, Who::Prober, Who::Outer, Who::Init, Who::Launch] {
        let mark = format!("stopped-{who:?}").to_lowercase();
        let command = format!("echo {mark} >>log; setsid sleep 279.5 & sleep 279.5");
        let started = pair.run_started(&["--json", "--timeout", "2"], &["sh", "-c", &command]);
        let victim = eventually("it runs", Duration::from_secs(15), || {
            fs::read_to_string(inside(&pair, "log")).ok().filter(|log| log.contains(&mark))?;
            who.find(&pair)
        });
        signal(&victim, Signal::SIGSTOP);
        let begin = Instant::now();
        let result = started.wait(Duration::from_secs(60)).json();
        assert_eq!(result["state"], "timed-out", "{mark}: {result:#}");
        assert!(begin.elapsed() < Duration::from_secs(25), "{mark}: {:?}", begin.elapsed());
        eventually(&format!("{mark}: nothing is left"), GONE, || {
            let left = pair.commands().into_iter().filter(|process| process.words.contains("279.5"));
            (left.count() == 0).then_some(())
        });
        signal(&victim, Signal::SIGCONT);
        again(&pair);
    }
    // A stopped service answers nobody, and goes on where it was.
    let started = pair.run_started(&["--json"], &["sh", "-c", "sleep 1; echo through"]);
    thread::sleep(Duration::from_millis(500));
    let service = Who::Service.find(&pair).expect("it runs");
    signal(&service, Signal::SIGSTOP);
    thread::sleep(Duration::from_secs(2));
    signal(&service, Signal::SIGCONT);
    assert_eq!(started.wait(Duration::from_secs(30)).json()["state"], "completed");
    // A stopped executor enforces nothing: the service notices that it does not answer, says that it does not know, and
    // starts no other before that one is gone.
    let started = pair.run_started(&["--json", "--timeout", "1"], &["sh", "-c", "sleep 279.5"]);
    eventually("it runs", Duration::from_secs(15), || {
        pair.commands().into_iter().find(|process| process.words.contains("279.5"))
    });
    let executor = Who::Executor.find(&pair).expect("it runs");
    signal(&executor, Signal::SIGSTOP);
    let ran = started.wait(Duration::from_secs(100));
    assert!(ran.says("unknown"), "{ran}");
    assert_eq!(pair.executors().len(), 1, "no second one beside it");
    signal(&executor, Signal::SIGCONT);
    eventually("nothing is left", Duration::from_secs(10), || pair.commands().is_empty().then_some(()));
    eventually("another executor serves", Duration::from_secs(40), || {
        (pair.run(&["echo", "well"]).out() == "well\n").then_some(())
    });
    pair.assert_sound();
}

#[test]
fn two_hundred_commands_leave_no_descriptor_no_thread_and_no_file() {
    let _turn = limit!(240);
    let pair = Pair::started(Host::shared());
    let run = |n: u32| {
        // A tenth of them end otherwise than by themselves.
        let (options, words): (&[&str], &[&str]) = match n % 10 {
            0 => (&["--timeout", "1"], &["sleep", "30"]),
            1 => (&[], &["sh", "-c", "setsid sleep 30 & exit 3"]),
            2 => (&[], &["/nowhere"]),
            _ => (&[], &["true"]),
        };
        drop(pair.run_with(options, words));
    };
    (0..20).for_each(run);
    let executor = pair.executors().pop().expect("it runs").pid;
    let service = pair.service_process().expect("it runs").pid;
    let count = |pid: i32, what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("it runs").count();
    let lying = || {
        let of = |directory: &str| {
            let all = fs::read_dir(directory).expect("it is there").flatten();
            let uid = pair.host.tools.uid;
            all.filter(|entry| {
                use std::os::unix::fs::MetadataExt;
                entry.metadata().is_ok_and(|metadata| metadata.uid() == uid)
            })
            .count()
        };
        ["/tmp", "/var/tmp", "/dev/shm"].map(of)
    };
    let before = (count(executor, "fd"), count(service, "fd"), lying());
    (0..200).for_each(run);
    assert_eq!(pair.executors().pop().expect("it runs").pid, executor, "the same executor all along");
    eventually("descriptors and files are what they were", Duration::from_secs(10), || {
        let now = (count(executor, "fd"), count(service, "fd"), lying());
        (now.0 <= before.0 + 1 && now.1 <= before.1 + 2 && now.2 == before.2).then_some(())
    });
    // The runtime keeps threads for blocking work for some seconds.
    eventually("threads go", Duration::from_secs(40), || (count(executor, "task") <= 16).then_some(()));
    pair.assert_sound();
}

/// Joins a session keyring, puts a key into it, and becomes what follows.
const WITH_A_KEY: &str = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    assert libc.syscall(250, 1, None) > 0\nassert libc.syscall(248, b'user', b'salaam-test', b'token', 5, -3) > 0\n\
    os.execvp(sys.argv[1], sys.argv[1:])";
/// Reads every key of that name that it finds in its session keyring.
const READ_THE_KEY: &str = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nbuffer = ctypes.create_string_buffer(64)\n\
    key = libc.syscall(250, 10, -3, b'user', b'salaam-test', 0)\n\
    print('token' if key > 0 and libc.syscall(250, 11, key, buffer, 64) > 0 else 'none')";

#[test]
fn a_key_of_the_session_that_the_service_was_started_in_reaches_no_command() {
    let _turn = limit!(60);
    let host = Host::shared();
    let instance = fs::read_to_string(host.instance()).expect("host setup wrote it");
    let open = instance.replace("unsandboxed_commands = \"refuse\"", "unsandboxed_commands = \"allow\"");
    fs::write(host.instance(), open).expect("it is root's");
    let mut pair = Pair::new(host);
    pair.configure("unsandboxed_commands = \"allow\"\n");
    let mut start = host.service.command("python3");
    start.args(["-c", WITH_A_KEY]).arg(host.salaam()).args(["service", "start", "--tools-user", &host.tools.name]);
    pair.environment(&mut start);
    Ran::of(&mut start).ok();
    pair.with_workspace();
    // Without the executor in between: a change of account does not take the key away.
    let mut plain = host.service.command("python3");
    let sudo = ["setpriv", "--no-new-privs", "python3", "-c", READ_THE_KEY];
    plain.args(["-c", WITH_A_KEY]).args(sudo);
    assert_eq!(Ran::of(&mut plain).ok().out(), "token\n", "it passes through exec");
    for profile in ["workspace-write", "full-access"] {
        let ran = pair.run_with(&["--profile", profile], &["python3", "-c", READ_THE_KEY]).ok();
        assert_eq!(ran.out(), "none\n", "{profile}");
    }
    fs::write(host.instance(), instance).expect("it is root's");
}
