//! What read paths show and what they do not, whatever the service asks for.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{Bench, unprivileged, unprivileged_after};
use salaam_core::{bridge::RunPlan, id::WorkspaceId, policy::Unsandboxed};
use salaam_toolsd::command::{Runner, RunnerConfig};

/// What root grants, in a mount namespace of the test's own.
const GRANT: &str = "mount -t tmpfs none /mnt; mkdir -p /mnt/grant/a/.ssh /mnt/grant/later /mnt/secret/.aws; \
    mkdir /mnt/grant/b; echo token-1 >/mnt/grant/b/.npmrc; echo token-2 >/mnt/grant/a/.ssh/id; echo token-3 >/mnt/secret/.aws/credentials; \
    echo token-4 >/mnt/grant/a/real; ln -s real /mnt/grant/a/.netrc; ln -s /mnt/secret/.aws/credentials /mnt/grant/a/link; \
    echo plain >/mnt/grant/a/plain; mkfifo -m 666 /mnt/grant/a/fifo; chown 64217 /mnt/grant/later";

#[test]
fn credentials_below_a_read_path_are_covered_also_those_made_later() {
    unprivileged_after("credentials_below_a_read_path_are_covered_also_those_made_later", GRANT, async || {
        let grant = Path::new("/mnt/grant");
        let open = Bench::with_floor("cover-open", Unsandboxed::Allow);
        let all = "cat /mnt/grant/b/.npmrc /mnt/grant/a/.ssh/id /mnt/grant/a/.netrc /mnt/grant/a/real /mnt/grant/a/link; cat /mnt/grant/later/.git-credentials";
        let seen = open.run(open.bare(all)).await.out();
        assert_eq!(seen.lines().count(), 5, "all can be read where nothing covers them: {seen}");

        let bench = Bench::new("cover");
        let outcome = bench.run(bench.reading([grant], all)).await;
        assert_eq!((outcome.out().as_str(), outcome.code()), ("", Some(1)), "{outcome:?}");
        let outcome = bench.run(bench.reading([grant], "cat /mnt/grant/a/plain; ls -A /mnt/grant/a/.ssh; chmod 700 /mnt/grant/a/.ssh; echo x >/mnt/grant/a/.ssh/x; cat /mnt/secret/.aws/credentials")).await;
        assert_eq!(outcome.out(), "plain", "what is none of these is shown: {outcome:?}");
        for text in ["timeout 2 sh -c 'echo x >/mnt/grant/a/fifo'", "test -p /mnt/grant/a/fifo"] {
            let outcome = bench.run(bench.reading([grant], text)).await;
            assert_ne!(outcome.code(), Some(0), "a pipe below a read-only mount leads out: {text}: {outcome:?}");
        }

        fs::write("/mnt/grant/later/.git-credentials", "token-5\n").unwrap();
        for _ in 0..2 {
            let outcome = bench.run(bench.reading([grant], all)).await;
            assert_eq!((outcome.out().as_str(), outcome.code()), ("", Some(1)), "{outcome:?}");
        }
        tokio::time::sleep(Duration::from_millis(3100)).await;
        assert_eq!(bench.run(bench.reading([grant], all)).await.out(), "");
        fs::rename("/mnt/grant/later/.git-credentials", "/mnt/grant/later/.PGPASS").unwrap();
        assert_eq!(bench.run(bench.reading([grant], "cat /mnt/grant/later/.PGPASS")).await.out(), "");
    });
}

#[test]
fn a_read_path_that_is_not_the_one_that_was_pinned_is_refused() {
    unprivileged_after("a_read_path_that_is_not_the_one_that_was_pinned_is_refused", GRANT, async || {
        let bench = Bench::new("pinned");
        let plan = bench.reading([Path::new("/mnt/grant")], "true");
        assert_eq!(bench.run(RunPlan { operation: common::fresh(), ..plan.clone() }).await.code(), Some(0));
        for identity in ["", "1:00", &bench.reading([Path::new("/mnt/secret")], "true").read_identities[0]] {
            let other = RunPlan { operation: common::fresh(), read_identities: vec![identity.into()], ..plan.clone() };
            let failure = bench.run(other).await.failure.unwrap();
            assert_eq!(failure.id, "read-path-refused", "{failure:?}");
            assert!(failure.message.contains("--pin"), "{failure:?}");
        }
        let none = RunPlan { operation: common::fresh(), read_identities: vec![], ..plan };
        assert_eq!(bench.run(none).await.failure.unwrap().id, "plan-refused");
    });
}

#[test]
fn a_git_configuration_is_shown_without_its_file_and_never_with_a_secret() {
    let prepare = "mount -t tmpfs none /mnt; mkdir -p /mnt/good /mnt/bad; printf '[user]\\n\\tname = Somebody\\n' >/mnt/good/.gitconfig; \
        printf '[github]\\n\\ttoken = s3cret\\n' >/mnt/bad/.gitconfig";
    unprivileged_after("a_git_configuration_is_shown_without_its_file_and_never_with_a_secret", prepare, async || {
        let bench = Bench::new("gitconfig");
        let good = bench.run(bench.reading([Path::new("/mnt/good/.gitconfig")], "git config user.name")).await;
        assert_eq!(good.out(), "Somebody", "{good:?}");
        let bad = bench.run(bench.reading([Path::new("/mnt/bad/.gitconfig")], "true")).await.failure.unwrap();
        assert_eq!(bad.id, "read-path-refused");
        assert!(bad.message.contains("github.token") && !bad.message.contains("s3cret"), "{bad:?}");
    });
}

#[test]
fn no_workspace_is_a_read_path_of_another_and_only_the_service_user_reads_what_it_owns() {
    const NAME: &str = "no_workspace_is_a_read_path_of_another_and_only_the_service_user_reads_what_it_owns";
    unprivileged_after(NAME, "mount -t tmpfs none /mnt; mkdir -p /mnt/ws/sub", async || {
        let bench = Bench::new("overlap");
        let sub = Path::new("/mnt/ws/sub");
        assert_eq!(bench.run(bench.reading([sub], "true")).await.code(), Some(0));
        bench.runner.open_workspace(WorkspaceId::new(2, [2; 10]), b"/mnt/ws").unwrap();
        assert_eq!(bench.run(bench.reading([sub], "true")).await.failure.unwrap().id, "read-path-refused");

        let own = bench.outside.join("own");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("f"), "mine").unwrap();
        let text = format!("cat {0}/f; touch {0}/g", own.display());
        assert_eq!(bench.run(bench.reading([own.as_path()], &text)).await.failure.unwrap().id, "read-path-refused");
        let config = RunnerConfig {
            launch: Some(common::launch()),
            bwrap: None,
            cgroups: None,
            unsandboxed: Unsandboxed::Refuse,
        };
        let runner = Runner::new(config).unwrap().in_service_user_mode();
        runner.open_workspace(bench.workspace, bench.path.as_os_str().as_encoded_bytes()).unwrap();
        let bench = Bench {
            runner: runner.into(),
            workspace: bench.workspace,
            path: bench.path.clone(),
            outside: bench.outside.clone(),
        };
        let outcome = bench.run(bench.reading([own.as_path()], &text)).await;
        assert_eq!((outcome.out().as_str(), outcome.code()), ("mine", Some(1)), "never writable: {outcome:?}");
    });
}

#[test]
fn a_home_of_the_account_is_no_place_for_anything() {
    unprivileged("a_home_of_the_account_is_no_place_for_anything", async || {
        let bench = Bench::new("refusals");
        for path in [
            "/home",
            "/home/somebody",
            "/root",
            "/",
            "/etc",
            "/opt/x/.NetRC",
            "/srv/a/.ssh/known_hosts",
            "/proc/1",
            "/nowhere",
        ] {
            let plan = RunPlan {
                read_paths: vec![path.as_bytes().to_vec()],
                read_identities: vec!["1:".into()],
                ..bench.shell("true")
            };
            assert_eq!(bench.run(plan).await.failure.unwrap().id, "read-path-refused", "{path}");
        }
    });
}
