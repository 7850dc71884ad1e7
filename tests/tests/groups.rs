//! The control group that a unit delegates: who is where in it, that nothing of it is the tools user's, and what its one
//! lever ends. In a group that root makes and hands to the service account, as systemd does; on a host without a second
//! hierarchy of control groups nothing of it can be shown, and each test says so.
//!
//! What the controllers hold (memory, processes) needs a host that has them: tests/vm.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use salaam_tests::{Account, Host, Pair, eventually, limit, pair::inside, process, ran::Started};
use serde_json::Value;

/// For the service to be up, on a busy machine.
const UP: Duration = Duration::from_secs(60);
/// For a killed or stopped executor to be replaced: 45 s until a stopped one is missed, 5 s in which it may end itself.
const REPLACED: Duration = Duration::from_secs(90);

/// A group as systemd delegates one.
struct Unit {
    path: PathBuf,
}

impl Unit {
    /// Absent, and said, where there is no hierarchy to make it in.
    fn delegated(name: &str, to: &Account) -> Option<Self> {
        let unit = Self::roots(name)?;
        // As systemd does for `User=` and `Delegate=`.
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(unit.path.join(file), Some(to.uid), Some(to.gid)).unwrap();
        }
        Some(unit)
    }

    /// One that nobody was given.
    fn roots(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let Some(mount) = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")) else {
            println!("no second hierarchy of control groups; nothing shown");
            return None;
        };
        let mount = PathBuf::from(mount.split(' ').nth(1).unwrap());
        let path = mount.join(format!("salaam-groups-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Some(Self { path })
    }

    /// `command`, started in it.
    fn inside(&self, command: &Command) -> Command {
        let mut moved = Command::new("sh");
        moved.args(["-c", "echo 0 >\"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.path);
        moved.arg(command.get_program()).args(command.get_args()).env_clear();
        for (name, value) in command.get_envs() {
            moved.env(name, value.unwrap_or_default());
        }
        moved
    }

    /// The service in it, as a unit starts it.
    fn start(&self, pair: &Pair) -> Started {
        let mut salaam = pair.command_as(&pair.host.service);
        salaam.args(["service", "start", "--foreground", "--tools-user", &pair.host.tools.name]);
        let started = Started::new(&mut self.inside(&salaam), b"");
        eventually("the service is up", UP, || pair.salaam(&["health"]).code.filter(|code| *code == 0));
        started
    }

    fn pids(&self, group: &str) -> BTreeSet<i32> {
        let procs = fs::read_to_string(self.path.join(group).join("cgroup.procs")).unwrap_or_default();
        procs.lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Everything in the groups of commands.
    fn commands(&self) -> BTreeSet<i32> {
        let groups = fs::read_dir(self.path.join("tools")).into_iter().flatten().flatten();
        let groups = groups.filter_map(|group| group.file_name().into_string().ok());
        groups
            .filter(|name| name.starts_with("command-"))
            .flat_map(|name| self.pids(&format!("tools/{name}")))
            .collect()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        drop(fs::write(self.path.join("cgroup.kill"), "1"));
        for _ in 0..500 {
            if fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default().contains("populated 0") {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        remove(&self.path);
    }
}

fn remove(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        remove(&below.path());
    }
    drop(fs::remove_dir(group));
}

fn group(pair: &Pair) -> Value {
    pair.health()["tool_execution"]["control_group"].clone()
}

fn executor(pair: &Pair) -> (i32, i32) {
    let executor = &pair.health()["tool_execution"]["executors"][0];
    let number = |key: &str| i32::try_from(executor[key].as_i64().unwrap_or(0)).unwrap();
    (number("pid"), number("sudo_pid"))
}

/// A command that runs until it is ended, and its operation.
fn begin(pair: &Pair) -> String {
    // Detached: that whoever asked is gone ends nothing.
    let asked = pair.run_started(&["--detach"], &["sh", "-c", "echo began >began; sleep 1000"]);
    let began = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(20));
        inside(pair, "began").exists()
    });
    assert!(began, "the command does not run: {}", asked.wait(UP));
    fs::remove_file(inside(pair, "began")).unwrap();
    let rows = pair.salaam(&["operation", "list", "--json"]).ok().json_lines();
    let running: Vec<_> = rows.into_iter().filter(|row| row["state"] == "dispatched").collect();
    assert_eq!(running.len(), 1, "{running:#?}");
    running[0]["operation"].as_str().unwrap().to_owned()
}

/// Tries to write everything in the tree below the first argument, prints what it could.
const ATTACKS: &str = r#"
import os, subprocess, sys
top = sys.argv[1]
won = []
other = subprocess.Popen(['sleep', '60'])
# By name: what is closed cannot be listed, and everybody knows what is in it.
names = [name for name in os.listdir(top) if os.path.isfile(os.path.join(top, name))]
every = [os.path.join(top, name) for name in ('tools/command-1', 'tools/command-2', 'tools/executor', 'tools', 'service', '')]
for where in every:
    for name in names:
        try:
            os.close(os.open(os.path.join(where, name), os.O_WRONLY))
            won.append('opened ' + os.path.join(where, name))
        except OSError:
            pass
    for name, attempt in (
        ('made a group in', lambda: os.mkdir(os.path.join(where, 'mine'))),
        ('changed', lambda: os.chmod(where, 0o777)),
        ('moved itself to', lambda: open(os.path.join(where, 'cgroup.procs'), 'w').write('0')),
        ('moved another to', lambda: open(os.path.join(where, 'cgroup.procs'), 'w').write(str(other.pid))),
        ('lifted the memory of', lambda: open(os.path.join(where, 'memory.max'), 'w').write('max')),
        ('made threaded', lambda: open(os.path.join(where, 'cgroup.type'), 'w').write('threaded')),
        ('froze', lambda: open(os.path.join(where, 'cgroup.freeze'), 'w').write('0')),
        ('renamed', lambda: os.rename(where, where + '-mine')),
    ):
        try:
            attempt()
            won.append(name + ' ' + where)
        except OSError:
            pass
other.kill()
other.wait()
for where in every:
    for name in ('mine', ''):
        try:
            os.rmdir(os.path.join(where, name))
            won.append('removed ' + os.path.join(where, name))
        except OSError:
            pass
print('\n'.join(won))
"#;

fn attack(unit: &Unit, from: &str, by: &Account) -> Vec<String> {
    let mut python = by.command("python3");
    python.args(["-c", ATTACKS]).arg(&unit.path);
    let at = Unit { path: unit.path.join(from) };
    let said = Started::new(&mut at.inside(&python), b"").wait(UP).ok().out();
    std::mem::forget(at);
    said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn service_executor_and_each_command_have_a_group_and_none_is_the_tools_users() {
    let _turn = limit!(180);
    let mut pair = Pair::new(Host::shared());
    let Some(unit) = Unit::delegated("places", &pair.host.service) else { return };
    let _service = unit.start(&pair);
    pair.with_workspace();
    let held = group(&pair);
    assert!(held["held"] == true && held["name"].as_str().is_some_and(|name| name.ends_with("-places")), "{held}");
    let (toolsd, sudo) = executor(&pair);
    let service = pair.service_process().unwrap().pid;
    assert!(unit.pids("service").contains(&service) && unit.pids("").is_empty());
    let inside = unit.pids("tools/executor");
    assert!(inside.contains(&toolsd) && inside.contains(&sudo), "{inside:?} without {toolsd} or {sudo}");
    assert_eq!(unit.commands(), BTreeSet::new());
    let operation = begin(&pair);
    let running = unit.commands();
    assert!(running.len() >= 3, "launch, the shell, sleep: {running:?}");
    assert!(running.iter().all(|pid| process::Process::of(*pid).is_some_and(|of| of.uid == pair.host.tools.uid)));

    // The attacks work where a group is one's own.
    let own = Unit::delegated("own", &pair.host.tools).unwrap();
    for name in ["service", "tools", "tools/executor", "tools/command-1", "tools/command-2"] {
        fs::create_dir(own.path.join(name)).unwrap();
        for file in fs::read_dir(own.path.join(name)).unwrap().flatten() {
            chown(file.path(), Some(pair.host.tools.uid), None).unwrap();
        }
        chown(own.path.join(name), Some(pair.host.tools.uid), None).unwrap();
    }
    let won = attack(&own, "tools/executor", &pair.host.tools);
    for wanted in ["opened", "made a group in", "changed", "moved itself to", "moved another to", "froze", "removed"] {
        assert!(won.iter().any(|line| line.starts_with(wanted)), "{wanted} does not work at all: {won:#?}");
    }
    // Here nothing does, neither from the executor's group nor from a command's.
    for from in ["tools/executor", "tools/command-5"] {
        assert_eq!(attack(&unit, from, &pair.host.tools), [] as [&str; 0], "from {from}");
    }
    // A command sees none of it; one without walls can look, and no more.
    let look = format!("ls {0} 2>/dev/null; find /sys/fs/cgroup -writable 2>/dev/null; true", unit.path.display());
    assert_eq!(pair.result(&[], &["sh", "-c", &look])["output"]["stdout"]["text"], "");
    pair.salaam(&["operation", "cancel", &operation]).ok();
    eventually("the group is empty again", UP, || unit.commands().is_empty().then_some(()));
    pair.assert_sound();
}

#[test]
fn a_wedged_executor_is_ended_with_all_it_runs_and_the_next_one_starts() {
    let _turn = limit!(360);
    let mut pair = Pair::new(Host::shared());
    let Some(unit) = Unit::delegated("wedged", &pair.host.service) else { return };
    let _service = unit.start(&pair);
    pair.with_workspace();
    for lose_sudo in [true, false] {
        let operation = begin(&pair);
        let (toolsd, sudo) = executor(&pair);
        let running = unit.commands();
        kill(Pid::from_raw(toolsd), Signal::SIGSTOP).unwrap();
        if lose_sudo {
            kill(Pid::from_raw(sudo), Signal::SIGKILL).unwrap();
        }
        eventually("the next executor is there", REPLACED, || {
            let (next, _) = executor(&pair);
            // Nothing runs before its sandbox was tried.
            let tried = !pair.health()["tool_execution"]["sandbox"].is_null();
            (next != 0 && next != toolsd && tried).then_some(())
        });
        assert_eq!(pair.final_state(&operation), "unknown");
        let left: Vec<_> = running.iter().chain([&toolsd, &sudo]).filter(|pid| process::is_alive(**pid)).collect();
        assert!(left.is_empty(), "of the old one are left: {left:?}");
        assert_eq!(unit.commands(), BTreeSet::new());
        assert_eq!(pair.result(&[], &["echo", "again"])["output"]["stdout"]["text"], "again\n");
    }
    let failed: Vec<_> = pair.events().into_iter().filter(|event| event["kind"] == "control.failed").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    pair.assert_sound();
}

/// The control of the test above: the same stopped executor, where the service has no group.
#[test]
fn without_a_group_a_wedged_executor_is_the_last_one() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    assert_eq!(group(&pair)["held"], false);
    let (toolsd, sudo) = executor(&pair);
    kill(Pid::from_raw(toolsd), Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(sudo), Signal::SIGKILL).unwrap();
    let failed =
        eventually("it is given up", UP, || pair.events().into_iter().find(|event| event["kind"] == "control.failed"));
    assert_eq!(failed["data"]["id"], "executor-not-gone");
    assert!(process::is_alive(toolsd) && executor(&pair).0 == 0);
    kill(Pid::from_raw(toolsd), Signal::SIGKILL).unwrap();
    eventually("it is gone", UP, || (!process::is_alive(toolsd)).then_some(()));
}

#[test]
fn a_start_ends_what_an_earlier_run_left_in_its_group() {
    let _turn = limit!(240);
    let mut pair = Pair::new(Host::shared());
    let Some(unit) = Unit::delegated("again", &pair.host.service) else { return };
    let _first = unit.start(&pair);
    pair.with_workspace();
    let operation = begin(&pair);
    let (toolsd, sudo) = executor(&pair);
    let running = unit.commands();
    // Stopped, it does not see the end of its bridge; nobody watches over it.
    kill(Pid::from_raw(toolsd), Signal::SIGSTOP).unwrap();
    pair.service_process().unwrap().kill();
    thread::sleep(Duration::from_secs(3));
    assert!(process::is_alive(toolsd) && running.iter().all(|pid| process::is_alive(*pid)), "it would stay");
    let second = unit.start(&pair);
    let left: Vec<_> = running.iter().chain([&toolsd, &sudo]).filter(|pid| process::is_alive(**pid)).collect();
    assert!(left.is_empty(), "of the earlier run are left: {left:?}");
    assert_eq!(pair.final_state(&operation), "unknown");
    assert_eq!(pair.result(&[], &["echo", "again"])["output"]["stdout"]["text"], "again\n");
    // An orderly stop leaves nobody either, and a third start finds its way.
    pair.stop().ok();
    drop(second.wait(UP));
    assert!(unit.pids("tools/executor").is_empty() && unit.commands().is_empty() && unit.pids("service").is_empty());
    let _third = unit.start(&pair);
    assert_eq!(group(&pair)["held"], true);
    pair.assert_sound();
}

#[test]
fn a_group_that_is_shared_or_somebody_elses_is_left_alone() {
    let _turn = limit!(180);
    let host = Host::shared();
    let pair = Pair::new(host);
    let Some(shared) = Unit::delegated("shared", &host.service) else { return };
    let mut sleep = host.service.command("sleep");
    let _other = Started::new(&mut shared.inside(sleep.arg("1000")), b"");
    eventually("somebody is in it", UP, || (!shared.pids("").is_empty()).then_some(()));
    let service = shared.start(&pair);
    let seen = group(&pair);
    assert!(seen["held"] == false && seen["evidence"].as_str().unwrap().contains("others work in"), "{seen}");
    assert_eq!(fs::read_dir(&shared.path).unwrap().flatten().filter(|entry| entry.path().is_dir()).count(), 0);
    let warned = pair.health()["warnings"].to_string();
    assert!(warned.contains("control-group") && pair.health()["status"] == "ok", "{warned}");
    pair.stop().ok();
    drop(service.wait(UP));

    let roots = Unit::roots("roots").unwrap();
    let service = roots.start(&pair);
    let seen = group(&pair);
    assert!(seen["held"] == false && seen["evidence"].as_str().unwrap().contains("not delegated"), "{seen}");
    pair.stop().ok();
    drop(service.wait(UP));
}
