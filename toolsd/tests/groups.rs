//! A command's control group: handed over by the service, entered by launch, empty afterwards; and not the tools
//! account's in anything. Wherever there is a second hierarchy of control groups, and root to hand a part of it to an
//! account.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use common::{Bench, launch, unprivileged};
use salaam_core::policy::Unsandboxed;
use salaam_toolsd::{
    command::{Runner, RunnerConfig},
    supervise::Cgroups,
};

/// Where the second hierarchy is mounted.
fn hierarchy() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

/// The descriptors of the groups below `tools`, opened by root in the service's place.
fn doors(tools: &Path) -> Vec<OwnedFd> {
    let write = |path: PathBuf| OwnedFd::from(File::options().write(true).open(path).unwrap());
    let open = |name: &str| {
        let group = tools.join(name);
        let place = OwnedFd::from(File::open(&group).unwrap());
        [place, write(group.join("cgroup.procs")), write(group.join("cgroup.kill"))]
    };
    ["command-1", "command-2"].iter().flat_map(|name| open(name)).collect()
}

/// The account of the commands; what it can write at all is a failure.
fn attacks(tools: &Path) -> Vec<String> {
    let mut held = Vec::new();
    for group in ["", "executor", "command-1"] {
        let group = tools.join(group);
        let made = group.join("mine");
        if std::fs::create_dir(&made).is_ok() {
            held.push(format!("made {}", made.display()));
        }
        for file in std::fs::read_dir(&group).unwrap().flatten().filter(|file| file.path().is_file()) {
            if File::options().write(true).open(file.path()).is_ok() {
                held.push(format!("opened {}", file.path().display()));
            }
        }
        if std::fs::set_permissions(&group, std::os::unix::fs::PermissionsExt::from_mode(0o777)).is_ok() {
            held.push(format!("took {}", group.display()));
        }
        if std::fs::remove_dir(&group).is_ok() {
            held.push(format!("removed {}", group.display()));
        }
    }
    held
}

/// Root's part: the groups, as the service makes them, and beside them one that is the account's own.
struct Tree {
    mount: PathBuf,
    tools: PathBuf,
    own: PathBuf,
}

impl Tree {
    fn make(mount: PathBuf, account: u32) -> Self {
        let tools = mount.join(format!("salaam-test-{}", std::process::id()));
        for name in ["executor", "command-1", "command-2"] {
            std::fs::create_dir_all(tools.join(name)).unwrap();
        }
        let own = mount.join(format!("salaam-test-{}-own", std::process::id()));
        for name in ["executor", "command-1"] {
            std::fs::create_dir_all(own.join(name)).unwrap();
        }
        for group in [own.clone(), own.join("executor"), own.join("command-1")] {
            for file in std::fs::read_dir(&group).unwrap().flatten() {
                std::os::unix::fs::chown(file.path(), Some(account), Some(account)).unwrap();
            }
            std::os::unix::fs::chown(&group, Some(account), Some(account)).unwrap();
        }
        std::fs::write(tools.join("executor/cgroup.procs"), "0").unwrap();
        Self { mount, tools, own }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::write(self.mount.join("cgroup.procs"), "0").unwrap();
        for tree in [&self.tools, &self.own] {
            for group in ["executor/mine", "command-1/mine", "mine", "executor", "command-1", "command-2", ""] {
                drop(std::fs::remove_dir(tree.join(group)));
            }
            assert!(!tree.exists(), "{} is left", tree.display());
        }
    }
}

#[test]
fn a_command_is_in_a_group_of_its_own_of_which_its_account_can_change_nothing() {
    let name = "a_command_is_in_a_group_of_its_own_of_which_its_account_can_change_nothing";
    let given = std::env::var_os("SALAAM_TEST_CGROUP").map(PathBuf::from);
    let Some(tools) = given else {
        let root = nix::unistd::geteuid().is_root();
        let Some(mount) = hierarchy().filter(|_| root) else {
            println!("no second hierarchy of control groups that this account may write; nothing shown");
            return;
        };
        let tree = Tree::make(mount, 64217);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let doors = doors(&tree.tools);
        let doors: Vec<_> = doors.iter().map(std::os::fd::AsFd::as_fd).collect();
        salaam_sys::handed::send_all(&ours, b"doors", &doors).unwrap();
        let status = std::process::Command::new("setpriv")
            .args(["--reuid", "64217", "--regid", "64217", "--clear-groups", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env("SALAAM_TEST_LAUNCH", launch())
            .env("SALAAM_TEST_CGROUP", &tree.tools)
            .env("SALAAM_TEST_OWN", &tree.own)
            .stdin(OwnedFd::from(theirs))
            .status()
            .unwrap();
        drop(tree);
        assert!(status.success());
        return;
    };
    let own = PathBuf::from(std::env::var_os("SALAAM_TEST_OWN").unwrap());
    assert!(attacks(&own).len() > 10, "in groups of one's own every attack works");
    let (_, doors) = salaam_sys::handed::receive_all(std::io::stdin(), &mut [0; 5]).unwrap();
    let cgroups = Cgroups::handed(doors).unwrap();
    assert!(cgroups.is_some());
    unprivileged(name, async || {
        let mut bench = Bench::with_floor("groups", Unsandboxed::Allow);
        let config = RunnerConfig { launch: Some(launch()), bwrap: None, cgroups, unsandboxed: Unsandboxed::Allow };
        let runner = Runner::new(config).unwrap();
        runner.open_workspace(bench.workspace, bench.path.as_os_str().as_encoded_bytes()).unwrap();
        bench.runner = runner.into();
        let inside = |name: &str| -> Vec<String> {
            let procs = std::fs::read_to_string(tools.join(name).join("cgroup.procs")).unwrap();
            procs.lines().map(str::to_owned).collect()
        };
        let commands = || inside("command-1").len() + inside("command-2").len();
        assert_eq!(commands(), 0);
        // They go on as soon as they were all seen.
        let go = bench.path.join("go");
        let wait = "until [ -e go ]; do sleep 0.05; done";
        let seen = async |all: &dyn Fn() -> bool| {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !all() && std::time::Instant::now() < until {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            let seen = all();
            std::fs::write(&go, "").unwrap();
            seen
        };
        let several = format!("sleep 289.5 & {wait}");
        let four = || commands() >= 4;
        let (outcome, seen_all) = tokio::join!(bench.sh(&several), seen(&four));
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        assert!(seen_all, "launch, the shell and two that sleep");
        assert_eq!(commands(), 0, "and left");
        // Two at once are in two.
        std::fs::remove_file(&go).unwrap();
        let in_two = || inside("command-1").len() >= 2 && inside("command-2").len() >= 2;
        let (first, second, seen_two) = tokio::join!(bench.sh(wait), bench.sh(wait), seen(&in_two));
        assert_eq!((first.code(), second.code()), (Some(0), Some(0)));
        assert!(seen_two, "each in one");
        // Without walls too, and there the files can be seen; more than that they cannot.
        assert_eq!(bench.run(bench.bare("setsid sleep 288.5 & true")).await.code(), Some(0));
        assert_eq!((commands(), Bench::alive("288.5").len()), (0, 0));
        // Three, and the three that the attacks made.
        let tries = format!(
            "find {tools} -writable; for way in {tools} {tools}/executor {tools}/command-1 {tools}/command-2; do \
             (echo 0 >$way/cgroup.procs) 2>/dev/null && echo moved to $way; mkdir $way/new 2>/dev/null && echo made; \
             done; find {own} -name cgroup.procs -writable | wc -l; true",
            tools = tools.display(),
            own = own.display()
        );
        let outcome = bench.run(bench.bare(&tries)).await;
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "6\n", "{outcome:?}");
    });
    assert_eq!(attacks(&tools), [] as [&str; 0], "nothing of it is this account's");
}
