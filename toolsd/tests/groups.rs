//! Control groups, where a subtree is to be had: each command is in one of its own before anything of it is.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::path::{Path, PathBuf};

use common::{Bench, launch, unprivileged};
use salaam_core::policy::Unsandboxed;
use salaam_toolsd::command::{Runner, RunnerConfig};

/// Where the whole second hierarchy is mounted, with or without controllers.
fn hierarchy() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

#[test]
fn a_command_is_in_a_group_of_its_own_which_is_gone_afterwards() {
    let name = "a_command_is_in_a_group_of_its_own_which_is_gone_afterwards";
    let given = std::env::var_os("SALAAM_TEST_CGROUP").map(PathBuf::from);
    let made = match (&given, hierarchy()) {
        (Some(_), _) => None,
        (None, Some(mount)) if nix::unistd::geteuid().is_root() => {
            // As a unit that delegates and a service that has set it up: the account may make leaves, and is in one.
            let tools = mount.join(format!("salaam-test-{}", std::process::id()));
            std::fs::create_dir_all(tools.join("executor")).unwrap();
            for path in [tools.clone(), tools.join("cgroup.procs"), tools.join("executor/cgroup.procs")] {
                std::os::unix::fs::chown(path, Some(64217), Some(64217)).unwrap();
            }
            std::fs::write(tools.join("executor/cgroup.procs"), "0").unwrap();
            Some((mount, tools))
        }
        (None, _) => {
            println!("no second hierarchy of control groups that this account may write; nothing shown");
            return;
        }
    };
    let above = given.or_else(|| made.as_ref().map(|(_, tools)| tools.clone())).unwrap();
    if let Some((mount, tools)) = made {
        let own = std::env::current_exe().unwrap();
        let status = std::process::Command::new("setpriv")
            .args(["--reuid", "64217", "--regid", "64217", "--clear-groups", "--"])
            .arg(own)
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env("SALAAM_TEST_LAUNCH", launch())
            .env("SALAAM_TEST_CGROUP", &tools)
            .status()
            .unwrap();
        std::fs::write(mount.join("cgroup.procs"), "0").unwrap();
        std::fs::remove_dir(tools.join("executor")).unwrap();
        std::fs::remove_dir(tools).unwrap();
        assert!(status.success());
        return;
    }
    unprivileged(name, async || {
        let mut bench = Bench::with_floor("groups", Unsandboxed::Allow);
        let config =
            RunnerConfig { launch: Some(launch()), bwrap: None, cgroups: None, unsandboxed: Unsandboxed::Allow };
        let runner = Runner::new(config).unwrap();
        runner.open_workspace(bench.workspace, bench.path.as_os_str().as_encoded_bytes()).unwrap();
        bench.runner = runner.into();
        let leaves = |above: &Path| std::fs::read_dir(above).unwrap().flatten().filter(|e| e.path().is_dir()).count();
        assert_eq!(leaves(&above), 1, "the executor's own");
        let (outcome, seen) = tokio::join!(bench.sh("sleep 0.5 & sleep 0.5; grep 0:: /proc/self/cgroup"), async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let leaf = std::fs::read_dir(&above)
                .unwrap()
                .flatten()
                .find(|e| e.file_name().to_string_lossy().starts_with("op_"));
            std::fs::read_to_string(leaf.unwrap().path().join("cgroup.procs")).unwrap().lines().count()
        });
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        assert!(seen >= 4, "launch, the shell and two that sleep: {seen}");
        assert_eq!(leaves(&above), 1, "and gone");
        // Without walls as well.
        assert_eq!(bench.run(bench.bare("setsid sleep 288.5 & true")).await.code(), Some(0));
        assert_eq!((leaves(&above), Bench::alive("288.5").len()), (1, 0));
    });
}
