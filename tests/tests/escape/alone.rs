//! Attacks that need a command to themselves: on resources, and what would outlive the command.

use std::{path::Path, time::Duration};

use salaam_tests::{Host, Pair, eventually, limit, process::Process, ran::Ran};
use serde_json::Value;

use crate::{
    attack::Layer::{self, Executor, Landlock, Limits, Pid},
    tight,
};

/// One of them.
pub struct Alone {
    /// What must not happen. Unique.
    pub name: &'static str,
    /// A shell's text: it says `escaped` where it did more than it may. `$AT` is a place outside, in the control.
    pub text: &'static str,
    /// More options of `run`.
    pub options: &'static [&'static str],
    /// Whether it must hold without a sandbox, too.
    pub everywhere: bool,
    /// What shows afterwards that it escaped, beside the word.
    pub after: After,
    /// What stops it.
    pub layers: &'static [Layer],
}

/// Where to look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The word tells.
    Nothing,
    /// Processes that sleep for 595.5 seconds.
    Sleepers,
    /// More bytes than are kept.
    Output,
    /// It went on for more than 20 s, so that the control is not waited for.
    Time,
}

const fn alone(name: &'static str, text: &'static str, layers: &'static [Layer]) -> Alone {
    Alone { name, text, options: &[], everywhere: false, after: After::Nothing, layers }
}

const fn survivor(name: &'static str, text: &'static str) -> Alone {
    Alone { everywhere: true, after: After::Sleepers, ..alone(name, text, &[Pid, Executor]) }
}

#[rustfmt::skip]
pub const TABLE: &[Alone] = &[
    survivor("a child goes on in the background", "sleep 595.5 & exit 0"),
    survivor("a child in a session of its own goes on", "setsid sleep 595.5 & exit 0"),
    survivor("a child of a child that ended goes on", "(setsid sh -c 'sleep 595.5 & exit 0' &) ; exit 0"),
    survivor("a child that ignores signals goes on", "setsid sh -c 'trap \"\" TERM HUP INT; sleep 595.5; sleep 595.5' & sleep 0.2"),
    survivor("a child that holds the output goes on", "nohup sleep 595.5 2>/dev/null & echo started"),
    Alone { options: &["--timeout", "1"], after: After::Time, everywhere: true, ..alone("it runs for ever", "sleep 20 && echo escaped", &[Executor]) },
    Alone { options: &["--timeout", "1"], after: After::Time, everywhere: true, ..alone("it runs for ever and ignores signals", "trap '' TERM INT HUP; sleep 10; sleep 10 && echo escaped", &[Executor]) },
    alone("200 processes at once", "python3 -c 'import os, time\nfor i in range(200):\n  if os.fork() == 0: time.sleep(1); os._exit(0)\nprint(\"escaped\")'", &[Limits]),
    alone("4 GiB of memory", "python3 -c 'import mmap\nm = bytearray(4 << 30) if 0 else mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nprint(\"escaped\")'", &[Limits]),
    alone("4 GiB of memory from the heap", "python3 -c 'import ctypes\nc = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.malloc.argtypes = [ctypes.c_size_t]\nprint(\"escaped\" if c.malloc(4 << 30) else \"no\")'", &[Limits]),
    alone("one file of 64 MiB", "head -c 67108864 /dev/zero >$AT/big && echo escaped", &[Limits]),
    alone("one file of 4 GiB with a hole", "truncate -s 4G $AT/hole && echo escaped", &[Limits]),
    alone("a terminal's worth of space in /tmp", "t=$(mktemp -d); for i in 1 2 3 4; do head -c 16777216 /dev/zero >$t/$i || exit 1; done; echo escaped; rm -r $t", &[Limits]),
    alone("shared memory without end", "t=/dev/shm/$$; mkdir $t; for i in 1 2 3 4; do head -c 16777216 /dev/zero >$t/$i || exit 1; done; echo escaped; rm -r $t", &[Limits]),
    alone("400 descriptors at once", "python3 -c 'import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\nfor i in range(400): os.open(\"/dev/null\", 0)\nprint(\"escaped\")'", &[Limits]),
    alone("the limits are raised again", "python3 -c 'import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1] or 1))\nresource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)\nprint(\"escaped\")'", &[Limits]),
    alone("the workspace grows by 128 MiB", "cd $AT && for i in 1 2 3 4 5 6 7 8; do head -c 16777216 /dev/zero >part$i; sleep 0.5; done; echo escaped", &[Executor]),
    alone("40,000 files with nothing in them", "cd $AT && mkdir many && cd many && python3 -c 'import os, time\nfor i in range(40000): os.close(os.open(str(i), 65))\ntime.sleep(2)' && echo escaped; cd .. && rm -rf many", &[Executor]),
    alone("40,000 files with nothing in them in /tmp", "t=$(mktemp -d); cd $t && python3 -c 'import os, time\nfor i in range(40000): os.close(os.open(str(i), 65))\ntime.sleep(2)' && echo escaped; rm -rf $t", &[Executor]),
    alone("the workspace grows by 128 MiB in a file without a name", "cd $AT && python3 -c 'import os, time\nfs = []\nfor i in range(8):\n  f = os.open(\"x\", 66); os.unlink(\"x\"); fs.append(f)\n  os.write(f, bytes(16 << 20)); time.sleep(.4)' && echo escaped", &[Executor]),
    alone("the workspace grows by 128 MiB in a closed directory", "cd $AT && python3 -c 'import os, time\nos.mkdir(\"shut\"); fs = [os.open(f\"shut/{i}\", 66) for i in range(8)]; os.chmod(\"shut\", 0)\nfor f in fs: os.write(f, bytes(16 << 20)); time.sleep(.4)' && echo escaped; chmod 700 shut; rm -rf shut", &[Executor]),
    alone("shared memory of 1.5 GiB", "python3 -c 'import mmap, time\nm = mmap.mmap(-1, 1536 << 20)\nfor i in range(0, 1536 << 20, 4096): m[i] = 1\ntime.sleep(1)' && echo escaped", &[Executor]),
    alone("files in memory of 1.5 GiB", "python3 -c 'import os, time\nfs = [os.memfd_create(str(i)) for i in range(48)]\nfor f in fs: os.write(f, bytes(32 << 20)[:33554431])\ntime.sleep(1)' && echo escaped", &[Executor]),
    alone("10,000 signals wait", "python3 -c 'import ctypes, os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40]); l = ctypes.CDLL(None); l.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]\nif all(l.sigqueue(os.getpid(), 40, None) == 0 for i in range(10000)): print(\"escaped\")'", &[Limits]),
    alone("it is no longer the first to go when memory ends", "echo 500 >/proc/self/oom_score_adj; s=$(cat /proc/self/oom_score_adj); echo 0 >/proc/self/oom_score_adj && [ $(cat /proc/self/oom_score_adj) -lt $s ] && echo escaped", &[Landlock]),
    Alone { after: After::Output, everywhere: true, ..alone("300 MiB of output are kept", "head -c 314572800 /dev/zero", &[Executor]) },
    Alone { after: After::Output, everywhere: true, ..alone("output in writes of one byte is kept past the limit", "dd if=/dev/zero bs=1 count=1500000 2>/dev/null", &[Executor]) },
];

/// How much is kept: `tight` says so.
const KEPT: usize = 1 << 20;

/// The most bytes that are kept of a stream, wherever a result says so.
fn kept(value: &Value) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("kept").and_then(|kept| kept.as_u64().or_else(|| kept.as_str()?.parse().ok()));
            own.into_iter().chain(fields.values().filter_map(kept)).max()
        }
        Value::Array(all) => all.iter().filter_map(kept).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn sleepers(uid: u32) -> Vec<Process> {
    Process::of_uid(uid).into_iter().filter(|process| process.words.contains("sleep 595.5")).collect()
}

fn outside(pair: &Pair, one: &Alone, at: &Path) -> bool {
    let tools = &pair.host.tools;
    // Survivors keep streams open: nobody reads them.
    let text = format!("exec >{0}/said 2>&1; AT={0}; {1}", at.display(), one.text);
    let started = std::time::Instant::now();
    let mut child = tools.command("sh").args(["-c", &text]).spawn().expect("sh is there");
    if one.after == After::Time {
        std::thread::sleep(Duration::from_secs(3));
        let runs = child.try_wait().expect("it is ours").is_none();
        for left in Process::all().into_iter().filter(|process| process.parent == child.id().cast_signed()) {
            left.kill();
        }
        drop(child.kill());
        drop(child.wait());
        return runs && started.elapsed() > Duration::from_secs(2);
    }
    child.wait().expect("it is ours");
    match one.after {
        After::Sleepers => {
            // A child of a child may come to be only after its first parent's end.
            let until = std::time::Instant::now() + Duration::from_secs(5);
            let mut left = sleepers(tools.uid);
            while left.is_empty() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
                left = sleepers(tools.uid);
            }
            left.iter().for_each(Process::kill);
            !left.is_empty()
        }
        After::Output => std::fs::metadata(at.join("said")).expect("it is there").len() > KEPT as u64,
        After::Nothing | After::Time => {
            std::fs::read_to_string(at.join("said")).expect("it is there").contains("escaped")
        }
    }
}

#[test]
fn what_one_command_takes_or_leaves_is_bounded() {
    let _turn = limit!(400);
    let pair = tight(Host::shared());
    let mut broke = Vec::new();
    for one in TABLE {
        let at = pair.host.prefix.join("alone");
        std::fs::create_dir(&at).expect("it is new");
        salaam_tests::host::chown(&at, &pair.host.tools.name);
        let shown = outside(&pair, one, &at);
        std::fs::remove_dir_all(&at).expect("it is ours");
        assert!(shown, "it does not even work outside: {}", one.name);
        for profile in ["workspace-write", "full-access"] {
            if profile == "full-access" && !one.everywhere {
                continue;
            }
            let mut options = [&["--profile", profile], one.options].concat();
            // The proposer sees it all go by; what is kept of it is bounded.
            if one.after == After::Output {
                options.push("--json");
            }
            let text = format!("AT=.; {}", one.text);
            let ran: Ran = pair.run_with(&options, &["sh", "-c", &text]);
            let late = ran.wall > Duration::from_secs(15) && one.after == After::Time;
            if ran.says("escaped")
                || late
                || (one.after == After::Output && kept(&ran.json()).is_none_or(|kept| kept == 0 || kept > KEPT as u64))
            {
                broke.push(format!("{profile}: {}: {ran}", one.name));
            }
            let gone = || sleepers(pair.host.tools.uid).is_empty().then_some(());
            if one.after == After::Sleepers {
                eventually(one.name, Duration::from_secs(3), gone);
            }
            pair.run(&["sh", "-c", "chmod 700 shut 2>/dev/null; rm -rf -- ./part* ./big ./hole ./many ./shut; exit 0"])
                .ok();
        }
    }
    assert_eq!(broke, [] as [String; 0]);
    eventually("nothing is left", Duration::from_secs(5), || pair.commands().is_empty().then_some(()));
    pair.assert_sound();
}
