//! Hosts on which something is missing or different: each is told apart, and named with its one knob.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{path::Path, process::Command as Process};

use common::{Bench, launch, unprivileged};
use salaam_core::{
    bridge::RunPlan,
    check::Status,
    policy::{Landlock, Unsandboxed},
};
use salaam_toolsd::command::{Proof, Runner, RunnerConfig};

/// Runs `test` again inside `wrapper`, a host with something switched off.
fn on_a_host(name: &str, wrapper: &[&str], test: impl AsyncFnOnce()) {
    if std::env::var_os("SALAAM_TEST_HOST").is_some() {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        // In a user namespace of an ordinary account root's bwrap belongs to nobody, and is not used.
        println!("{name}: this host can only be built by root; nothing shown");
        return;
    }
    let (launch, own) = (launch(), std::env::current_exe().unwrap());
    let mut words = wrapper.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    words.extend([own.to_str().unwrap(), "--exact", name, "--nocapture", "--test-threads", "1"].map(str::to_owned));
    let mut process = Process::new(&words[0]);
    let status =
        process.args(&words[1..]).env("SALAAM_TEST_HOST", "1").env("SALAAM_TEST_LAUNCH", launch).status().unwrap();
    assert!(status.success(), "{name}");
}

const WITHOUT_USER_NAMESPACES: &[&str] =
    &["unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_user_namespaces; exec \"$@\"", "sh"];
const WITHOUT_NETWORK_NAMESPACES: &[&str] =
    &["unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_net_namespaces; exec \"$@\"", "sh"];

#[test]
fn without_user_namespaces_the_setting_is_named_and_nothing_runs() {
    on_a_host("without_user_namespaces_the_setting_is_named_and_nothing_runs", WITHOUT_USER_NAMESPACES, async || {
        let bench = Bench::with_floor("nouser", Unsandboxed::Allow);
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        assert!(status.sandbox.is_none());
        let failed = status.checks.iter().find(|check| check.status == Status::Fail).unwrap();
        assert_eq!(failed.id, "sandbox-userns", "{status:?}");
        assert!(failed.fix.contains("user.max_user_namespaces"), "{failed:?}");
        let failure = bench.sh("true").await.failure.unwrap();
        assert_eq!(failure.id, "sandbox-userns", "{failure:?}");
        // Bare where it is allowed, and kept together all the same.
        for plan in [
            RunPlan { allow_unsandboxed: true, ..bench.shell("sleep 293.5 & echo ran") },
            bench.bare("sleep 293.5 & echo ran"),
        ] {
            let outcome = bench.run(plan).await;
            assert_eq!((outcome.out().as_str(), outcome.code()), ("ran", Some(0)), "{outcome:?}");
            assert_eq!(outcome.sandbox.unwrap().backend, "none");
            let exit = outcome.exit.unwrap();
            assert!(exit.proven_gone && exit.left_processes == 1, "{exit:?}");
            assert_eq!(Bench::alive("293.5"), [] as [String; 0]);
        }
    });
}

#[test]
fn without_network_namespaces_another_setting_is_named_and_bare_runs_where_allowed() {
    on_a_host(
        "without_network_namespaces_another_setting_is_named_and_bare_runs_where_allowed",
        WITHOUT_NETWORK_NAMESPACES,
        async || {
            let bench = Bench::with_floor("nonet", Unsandboxed::Allow);
            let refused = bench.sh("true").await.failure.unwrap();
            assert_eq!(refused.id, "sandbox-net", "{refused:?}");
            assert!(refused.message.contains("max_net_namespaces"), "{refused:?}");
            let outcome = bench.run(RunPlan { allow_unsandboxed: true, ..bench.shell("echo bare") }).await;
            assert_eq!(outcome.out(), "bare", "{outcome:?}");
            assert_eq!(outcome.sandbox.unwrap().backend, "none");
        },
    );
}

#[test]
fn without_bubblewrap_commands_are_refused_and_the_package_is_named() {
    unprivileged("without_bubblewrap_commands_are_refused_and_the_package_is_named", async || {
        let config = RunnerConfig {
            launch: Some(launch()),
            bwrap: Some("/nowhere/bwrap".into()),
            cgroups: None,
            unsandboxed: Unsandboxed::Refuse,
        };
        let status = Runner::new(config).unwrap().probe_sandbox(Landlock::Required, Proof::Short).await;
        assert_eq!(status.checks.iter().map(|check| check.id.as_str()).collect::<Vec<_>>(), ["sandbox-missing"]);
        assert!(status.checks[0].evidence.contains("bubblewrap"), "{status:?}");
    });
}

#[test]
fn an_upgrade_of_launch_under_a_running_executor_does_no_harm() {
    unprivileged("an_upgrade_of_launch_under_a_running_executor_does_no_harm", async || {
        let copy = std::env::temp_dir().join(format!("salaam-launch-copy-{}", std::process::id()));
        std::fs::copy(launch(), &copy).unwrap();
        let mut bench = Bench::new("upgrade");
        let config =
            RunnerConfig { launch: Some(copy.clone()), bwrap: None, cgroups: None, unsandboxed: Unsandboxed::Refuse };
        let runner = Runner::new(config).unwrap();
        runner.open_workspace(bench.workspace, bench.path.as_os_str().as_encoded_bytes()).unwrap();
        bench.runner = runner.into();
        std::fs::remove_file(copy).unwrap();
        assert_eq!(bench.sh("echo still").await.out(), "still");
    });
}

#[test]
fn git_cc_make_and_python_work_inside() {
    unprivileged("git_cc_make_and_python_work_inside", async || {
        let bench = Bench::new("tools");
        std::fs::write(bench.path.join("Makefile"), "t: t.c\n\tcc -o t t.c\n").unwrap();
        std::fs::write(bench.path.join("t.c"), "#include <stdio.h>\nint main(){puts(\"built\");}\n").unwrap();
        let text = "set -e; git init -q .; git add .; git -c user.name=a -c user.email=a@example.org commit -qm m; \
                    git status --porcelain; make -s; ./t; python3 -c 'import ssl, json, subprocess; print(1)'; \
                    perl -e 'print 2'";
        for tool in ["git", "cc", "make", "python3", "perl"] {
            if !Path::new("/usr/bin").join(tool).exists() {
                println!("{tool} is not on this host; nothing shown");
                return;
            }
        }
        let outcome = bench.sh(text).await;
        assert_eq!((outcome.out().as_str(), outcome.code()), ("built\n1\n2", Some(0)), "{}", outcome.err());
    });
}

#[test]
fn cargo_builds_and_tests_a_crate_with_the_toolchain_of_another_account() {
    let Some(toolchain) = std::env::var_os("SALAAM_TEST_TOOLCHAIN") else {
        println!("set SALAAM_TEST_TOOLCHAIN to a directory with .cargo/bin and .rustup that this account can read");
        return;
    };
    let toolchain = std::path::PathBuf::from(toolchain);
    unprivileged("cargo_builds_and_tests_a_crate_with_the_toolchain_of_another_account", async || {
        let bench = Bench::new("cargo");
        std::fs::create_dir(bench.path.join("src")).unwrap();
        std::fs::write(
            bench.path.join("Cargo.toml"),
            "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
        )
        .unwrap();
        std::fs::write(bench.path.join("src/lib.rs"), "#[test]\nfn it_holds() {}\n").unwrap();
        let paths = [".cargo/bin", ".rustup"].map(|part| toolchain.join(part));
        let text = "cargo test 2>&1 | grep -E '^test '; cargo --version";
        let plan = bench.reading(paths.iter().map(|path| path.as_path()), text);
        let outcome = bench.run(plan).await;
        assert!(outcome.out().starts_with("test it_holds ... ok\n"), "{} {:?}", outcome.out(), outcome.failure);
    });
}

#[test]
fn a_masked_proc_is_told_apart_and_never_replaced_by_the_hosts() {
    const MASKED: &[&str] = &[
        "unshare",
        "-m",
        "sh",
        "-c",
        "mount --make-rprivate / && mount -t tmpfs none /proc/irq && \
         exec setpriv --reuid 64217 --regid 64217 --clear-groups -- \"$@\"",
        "sh",
    ];
    on_a_host("a_masked_proc_is_told_apart_and_never_replaced_by_the_hosts", MASKED, async || {
        let bench = Bench::new("proc");
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        let failed = status.checks.iter().find(|check| check.status == Status::Fail).unwrap();
        assert_eq!(failed.id, "sandbox-mount", "{status:?}");
        assert!(failed.fix.contains("/proc"), "{failed:?}");
        assert_eq!(bench.sh("true").await.failure.unwrap().id, "sandbox-mount");
    });
}

/// A kernel without a call, as far as every thread of this process and its children can tell; with `first`, only where
/// its first argument is that.
fn kernel_without(call: nix::libc::c_long, first: Option<u64>, errno: i32) {
    use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
    let condition = |value| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap();
    let rules = first.map(|value| SeccompRule::new(vec![condition(value)]).unwrap()).into_iter().collect();
    let rules = [(call, rules)].into_iter().collect();
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let absent = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, architecture).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

#[test]
fn a_landlock_domain_that_is_not_whole_is_none() {
    unprivileged("a_landlock_domain_that_is_not_whole_is_none", async || {
        // The kernel says that it has landlock; the last step does nothing.
        kernel_without(nix::libc::SYS_landlock_restrict_self, None, nix::libc::EOPNOTSUPP);
        let bench = Bench::new("parted");
        assert_eq!(bench.sh("true").await.failure.unwrap().id, "sandbox-landlock");
        let chosen = RunPlan { landlock: Landlock::IfAvailable, ..bench.shell("true") };
        assert_eq!(bench.run(chosen).await.failure.unwrap().id, "sandbox-landlock", "there, and not enforced");
    });
}

#[test]
fn a_landlock_rule_that_is_not_taken_is_a_failure() {
    unprivileged("a_landlock_rule_that_is_not_taken_is_a_failure", async || {
        kernel_without(nix::libc::SYS_landlock_add_rule, None, nix::libc::EOPNOTSUPP);
        let bench = Bench::new("ruleless");
        assert_eq!(bench.sh("true").await.failure.unwrap().id, "sandbox-landlock");
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        assert!(
            status.sandbox.is_none()
                && status.checks.iter().any(|check| check.id == "sandbox-landlock" && check.status == Status::Fail)
        );
    });
}

#[test]
fn without_seccomp_nothing_runs() {
    unprivileged("without_seccomp_nothing_runs", async || {
        kernel_without(nix::libc::SYS_prctl, Some(nix::libc::PR_SET_SECCOMP as u64), nix::libc::EINVAL);
        let bench = Bench::with_floor("noseccomp", Unsandboxed::Allow);
        for landlock in [Landlock::Required, Landlock::IfAvailable] {
            let failure = bench.run(RunPlan { landlock, ..bench.shell("true") }).await.failure.unwrap();
            assert_eq!(failure.id, "sandbox-seccomp");
        }
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        assert!(
            status.sandbox.is_none()
                && status.checks.iter().any(|check| check.id == "sandbox-seccomp" && check.status == Status::Fail)
        );
        // Where a pid namespace is to be had, a bare command needs no filter; alone it does.
        assert_eq!(bench.run(bench.bare("true")).await.code(), Some(0));
        let alone = Bench::without_bwrap("noseccomp-alone");
        assert_eq!(alone.run(alone.bare("true")).await.failure.unwrap().id, "sandbox-seccomp");
    });
}

#[test]
fn without_namespaces_and_landlock_not_even_a_bare_command_runs() {
    unprivileged("without_namespaces_and_landlock_not_even_a_bare_command_runs", async || {
        kernel_without(nix::libc::SYS_landlock_create_ruleset, None, nix::libc::ENOSYS);
        let bench = Bench::without_bwrap("nothing");
        assert_eq!(bench.run(bench.bare("true")).await.failure.unwrap().id, "sandbox-landlock");
    });
}

#[test]
fn without_landlock_nothing_runs_unless_the_operator_chose_so() {
    unprivileged("without_landlock_nothing_runs_unless_the_operator_chose_so", async || {
        kernel_without(nix::libc::SYS_landlock_create_ruleset, None, nix::libc::ENOSYS);
        let bench = Bench::new("nolandlock");
        assert_eq!(bench.sh("true").await.failure.unwrap().id, "sandbox-landlock");
        let status = bench.runner.probe_sandbox(Landlock::Required, Proof::Short).await;
        assert!(status.checks.iter().any(|check| check.id == "sandbox-landlock" && check.status == Status::Fail));
        let chosen = RunPlan { landlock: Landlock::IfAvailable, ..bench.shell("echo on") };
        let outcome = bench.run(chosen).await;
        assert_eq!(outcome.out(), "on");
        let sandbox = outcome.sandbox.unwrap();
        assert_eq!((sandbox.landlock_abi, sandbox.landlock.as_str()), (0, "not-enforced"));
    });
}
