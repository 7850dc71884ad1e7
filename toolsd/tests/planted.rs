//! Ways around the mounts over protected paths and around the look after a command, each first shown to lead to a
//! program of the command's being run by somebody else, or to bytes outside the workspace.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command as Process, Stdio},
    time::Duration,
};

use common::{Bench, Outcome, unprivileged, unprivileged_after};
use salaam_core::policy::Unsandboxed;

/// A file that the planted program makes when an operator runs it, or that git writes through a link.
const RAN: &str = "salaam-planted-ran";

fn mark(bench: &Bench) -> String {
    bench.outside.join(RAN).display().to_string()
}

fn ran(bench: &Bench) -> bool {
    let mark = bench.outside.join(RAN);
    let there = mark.exists();
    drop(fs::remove_file(mark));
    there
}

/// git as an operator outside runs it, with the tools user's trees declared safe, which is the worst case.
fn operator(bench: &Bench, directory: &str, arguments: &[&str]) -> bool {
    Process::new("git")
        .args(["-c", "safe.directory=*", "-c", "user.name=o", "-c", "user.email=o@x"])
        .args(arguments)
        .current_dir(bench.path.join(directory))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &bench.outside)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn names(outcome: &Outcome) -> Vec<String> {
    let quarantined = &outcome.exit.as_ref().unwrap().quarantined;
    let mut names: Vec<_> = quarantined.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    names.sort();
    names
}

fn looked_at_all(outcome: &Outcome) -> bool {
    outcome.exit.as_ref().unwrap().changed.guard.complete
}

async fn pause() {
    // The clock of changes goes in ticks; what was made in this one would count as the command's.
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[test]
fn a_mounted_file_that_has_another_name_is_looked_at() {
    unprivileged("a_mounted_file_that_has_another_name_is_looked_at", async || {
        let bench = Bench::new("names");
        assert_eq!(names(&bench.sh("git init -q . && ln .git/config other").await), [] as [&str; 0]);
        pause().await;
        let outcome =
            bench.sh(&format!("printf '[core]\\n\\tfsmonitor = touch {}; false\\n' >>other", mark(&bench))).await;
        assert_eq!(names(&outcome), [".git/config"], "{outcome:?}");
        operator(&bench, "", &["status"]);
        assert!(!ran(&bench));
    });
}

#[test]
fn a_command_that_began_before_the_mounts_of_another_cannot_take_them_away_unseen() {
    const NAME: &str = "a_command_that_began_before_the_mounts_of_another_cannot_take_them_away_unseen";
    unprivileged(NAME, async || {
        let bench = Bench::new("detached");
        let wait = |name: &str| format!("while [ ! -e {name} ]; do sleep 0.02; done");
        // What is mounted on a directory in one namespace moves away with it when another renames it.
        let older = format!(
            "git init -q . && touch one; {}; cp -r .git g && mv .git old && mv g .git && touch three",
            wait("two")
        );
        let younger = format!(
            "touch two; {}; printf '#!/bin/sh\\ntouch {}\\n' >.git/hooks/pre-commit && chmod 755 .git/hooks/pre-commit",
            wait("four"),
            mark(&bench)
        );
        let older = async {
            let outcome = bench.sh(&older).await;
            fs::write(bench.path.join("four"), "").unwrap();
            outcome
        };
        let younger = async {
            while !bench.path.join("one").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            bench.sh(&younger).await
        };
        let (older, younger) = tokio::join!(older, younger);
        assert_eq!((older.code(), younger.code()), (Some(0), Some(0)), "it did take them away: {older:?} {younger:?}");
        assert_eq!(names(&younger), [".git/hooks/pre-commit"], "{younger:?}");
        operator(&bench, "", &["commit", "--allow-empty", "-m", "x"]);
        assert!(!ran(&bench));
    });
}

#[test]
fn a_link_in_a_repository_leads_no_git_out_of_it() {
    unprivileged("a_link_in_a_repository_leads_no_git_out_of_it", async || {
        for (name, plant, taken, git) in [
            (
                "the message",
                "ln -sf MARK .git/COMMIT_EDITMSG",
                ".git/COMMIT_EDITMSG",
                &["commit", "--allow-empty", "-m", "x"][..],
            ),
            (
                "the log",
                "mkdir -p .git/logs && rm -f .git/logs/HEAD && ln -s MARK .git/logs/HEAD",
                ".git/logs/HEAD",
                &["commit", "--allow-empty", "-m", "x"],
            ),
            ("what was fetched", "ln -sf MARK .git/FETCH_HEAD", ".git/FETCH_HEAD", &["fetch", "."]),
            (
                "a chain",
                "ln -s MARK .git/b && ln -sf b .git/COMMIT_EDITMSG",
                ".git/b",
                &["commit", "--allow-empty", "-m", "x"],
            ),
        ] {
            let open = Bench::with_floor("gitlink-open", Unsandboxed::Allow);
            let set_up = |bench: &Bench| {
                assert!(operator(bench, "", &["init", "-q"]));
                assert!(operator(bench, "", &["commit", "--allow-empty", "-qm", "0"]));
            };
            set_up(&open);
            assert_eq!(open.run(open.bare(&plant.replace("MARK", &mark(&open)))).await.code(), Some(0), "{name}");
            operator(&open, "", git);
            assert!(ran(&open), "{name}: git writes through it where it stays");

            let bench = Bench::new("gitlink");
            set_up(&bench);
            pause().await;
            let outcome = bench.sh(&plant.replace("MARK", &mark(&bench))).await;
            assert_eq!(names(&outcome), [taken], "{name}: {outcome:?}");
            assert!(operator(&bench, "", git), "{name}: git goes on");
            assert!(!ran(&bench), "{name}");
        }
        let bench = Bench::new("gitlink-inside");
        let outcome = bench.sh("git init -q n && ln -sf refs/heads/x n/.git/HEAD && ln -s n/.git there").await;
        assert_eq!(names(&outcome), [] as [&str; 0], "what stays inside stays: {outcome:?}");
    });
}

#[test]
fn names_that_some_file_systems_take_for_protected_ones_are_taken_away_too() {
    unprivileged("names_that_some_file_systems_take_for_protected_ones_are_taken_away_too", async || {
        let bench = Bench::new("case");
        let text = "mkdir .VSCode a b c d && echo x >.VSCode/tasks.json && echo x >a/.EnvRC && echo 'gitdir: /tmp/x' >b/.GIT \
                    && printf x >\"$(printf 'c/.v\\305\\277code')\" && printf x >\"$(printf 'd/.en\\342\\200\\214vrc')\" && echo x >'d/.envrc. ' && echo x >vscode";
        let outcome = bench.sh(text).await;
        let expected = [".VSCode", "a/.EnvRC", "b/.GIT", "c/.v\u{17f}code", "d/.envrc. ", "d/.en\u{200c}vrc"];
        let mut found = names(&outcome);
        found.sort();
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(found, expected, "{outcome:?}");
    });
}

#[test]
fn what_is_mounted_in_a_workspace_is_not_taken_for_looked_at() {
    let prepare = "mkdir -p $AT/w/workspace/mine $AT/w/workspace/other; mount -t tmpfs -o mode=777 none $AT/w/workspace/other; \
                   chown -R 64217 $AT/w/workspace";
    unprivileged_after("what_is_mounted_in_a_workspace_is_not_taken_for_looked_at", prepare, async || {
        let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
        let outcome = bench.sh("echo x >other/.envrc").await;
        assert_eq!(outcome.code(), Some(0), "it is there, and can be written: {outcome:?}");
        assert!(!looked_at_all(&outcome), "{outcome:?}");
    });
}

#[test]
fn a_repository_on_a_mount_of_its_own_is_protected_whole() {
    let prepare = "mkdir -p $AT/w/workspace/.git; mount -t tmpfs -o mode=777 none $AT/w/workspace/.git; chown -R 64217 $AT/w/workspace";
    unprivileged_after("a_repository_on_a_mount_of_its_own_is_protected_whole", prepare, async || {
        let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
        assert!(operator(&bench, "", &["init", "-q"]));
        pause().await;
        for attack in ["echo x >.git/hooks/pre-commit", "git config alias.x '!y'", "echo x >.git/config.worktree"] {
            let outcome = bench.sh(attack).await;
            assert_ne!(outcome.code(), Some(0), "{attack}: {outcome:?}");
        }
        assert_eq!(bench.sh("git status --porcelain && echo ok").await.out(), "ok");
    });
}

#[test]
fn a_directory_of_another_account_hides_nothing_that_a_command_could_put_there() {
    let prepare = "mkdir -p $AT/w/workspace/closed $AT/w/workspace/drop; chown 64217 $AT/w $AT/w/workspace; \
                   chmod 700 $AT/w/workspace/closed";
    unprivileged_after(
        "a_directory_of_another_account_hides_nothing_that_a_command_could_put_there",
        &format!("{prepare}; chmod 711 $AT/w/workspace/drop; rmdir $AT/w/workspace/drop"),
        async || {
            let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
            let outcome = bench.sh("ls closed; true").await;
            assert!(looked_at_all(&outcome), "where nobody may go, nothing was put: {outcome:?}");
        },
    );
}

#[test]
fn a_directory_that_may_be_entered_and_not_listed_is_not_taken_for_looked_at() {
    let prepare = "mkdir -p $AT/w/workspace/drop; chown 64217 $AT/w $AT/w/workspace; chmod 733 $AT/w/workspace/drop";
    unprivileged_after(
        "a_directory_that_may_be_entered_and_not_listed_is_not_taken_for_looked_at",
        prepare,
        async || {
            let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
            let outcome = bench.sh("echo x >drop/.envrc").await;
            assert_eq!(outcome.code(), Some(0), "{outcome:?}");
            assert!(!looked_at_all(&outcome), "{outcome:?}");
        },
    );
}

#[test]
fn a_file_system_without_room_keeps_nothing_where_it_would_run() {
    for (number, (option, fill)) in [
        ("size=256k", "head -c 1000000 /dev/zero >fill 2>/dev/null"),
        ("nr_inodes=64", "for i in $(seq 100); do : >f$i || break; done 2>/dev/null"),
    ]
    .into_iter()
    .enumerate()
    {
        const NAME: &str = "a_file_system_without_room_keeps_nothing_where_it_would_run";
        if std::env::var("NUMBER").is_ok_and(|wanted| wanted != number.to_string()) {
            continue;
        }
        let prepare = format!(
            "export NUMBER={number}; mkdir -p $AT/w/workspace; mount -t tmpfs -o mode=777,{option} none $AT/w/workspace; chown 64217 $AT/w"
        );
        unprivileged_after(NAME, &prepare, async || {
            let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
            let plant = format!(
                "git init -q --template= n && mkdir n/.git/hooks && printf '#!/bin/sh\\ntouch {0}\\n' >n/.git/hooks/pre-commit && chmod 755 n/.git/hooks/pre-commit; \
                 git -C n config core.fsmonitor 'touch {0}; false'; echo x >.envrc; {fill}; true",
                mark(&bench)
            );
            let outcome = bench.sh(&plant).await;
            assert_eq!(
                names(&outcome),
                [".envrc", "n/.git/config", "n/.git/hooks/pre-commit"],
                "{option}: {outcome:?}"
            );
            assert!(!bench.path.join(".envrc").exists());
            drop(Process::new("sh").args(["-c", "rm -f fill f*"]).current_dir(&bench.path).status());
            operator(&bench, "n", &["status"]);
            operator(&bench, "n", &["commit", "--allow-empty", "-m", "x"]);
            assert!(!ran(&bench), "{option}");
        });
    }
}

#[test]
fn nothing_in_the_quarantine_runs_and_all_of_it_can_be_put_back() {
    unprivileged("nothing_in_the_quarantine_runs_and_all_of_it_can_be_put_back", async || {
        let bench = Bench::new("back");
        let text = format!(
            "git init -q .vscode/x && git -C .vscode/x config core.fsmonitor 'touch {}; false' && echo 1 >.envrc && chmod 755 .envrc",
            mark(&bench)
        );
        let outcome = bench.sh(&text).await;
        assert_eq!(names(&outcome), [".envrc", ".vscode", ".vscode/x/.git/config"], "{outcome:?}");
        let own = bench.path.join(".salaam/quarantine");
        let operation = fs::read_dir(own).unwrap().next().unwrap().unwrap().path();
        let relative = operation.strip_prefix(&bench.path).unwrap().to_str().unwrap().to_owned();
        for entry in fs::read_dir(&operation).unwrap().map(|entry| entry.unwrap().path()) {
            for inner in [entry.clone(), entry.join("x")].into_iter().filter(|inner| inner.is_dir()) {
                let inner = inner.strip_prefix(&bench.path).unwrap().to_str().unwrap().to_owned();
                operator(&bench, &inner, &["status"]);
            }
        }
        operator(&bench, &relative, &["status"]);
        assert!(!ran(&bench), "a look at what was taken runs nothing");
        let index = fs::read_to_string(operation.join("index")).unwrap();
        let line = index.lines().find(|line| line.ends_with(" .envrc")).unwrap();
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words.len(), words[1]), (3, "0755"), "{index}");
        fs::rename(operation.join(words[0]), bench.path.join(".envrc")).unwrap();
        assert_eq!(fs::read_to_string(bench.path.join(".envrc")).unwrap(), "1\n");
    });
}

#[test]
fn what_an_old_link_leads_to_is_looked_at() {
    unprivileged("what_an_old_link_leads_to_is_looked_at", async || {
        let bench = Bench::new("old-links");
        let nested = bench.path.join("v/n");
        fs::create_dir_all(&nested).unwrap();
        for directory in ["v/hooks", "v/cfg"] {
            fs::create_dir_all(bench.path.join(directory)).unwrap();
        }
        assert!(operator(&bench, "v/n", &["init", "-q"]));
        fs::remove_dir_all(nested.join(".git/hooks")).unwrap();
        symlink("../../hooks", nested.join(".git/hooks")).unwrap();
        symlink("../cfg", nested.join(".vscode")).unwrap();
        fs::write(bench.path.join("v/mine"), "[core]\n\tbare = false\n").unwrap();
        fs::rename(nested.join(".git/config"), bench.path.join("v/config")).unwrap();
        symlink("../../config", nested.join(".git/config")).unwrap();
        fs::write(bench.path.join("v/hooks/post-commit"), "#!/bin/sh\n").unwrap();
        pause().await;
        assert_eq!(names(&bench.sh("true").await), [] as [&str; 0]);
        pause().await;
        let text = format!(
            "printf '#!/bin/sh\\ntouch {0}\\n' >v/hooks/pre-commit && chmod 755 v/hooks/pre-commit && echo x >v/cfg/tasks.json && \
             printf '[core]\\n\\tfsmonitor = touch {0}; false\\n' >>v/config",
            mark(&bench)
        );
        let outcome = bench.sh(&text).await;
        assert_eq!(names(&outcome), ["v/cfg/tasks.json", "v/config", "v/hooks/pre-commit"], "{outcome:?}");
        operator(&bench, "v/n", &["commit", "--allow-empty", "-m", "x"]);
        assert!(!ran(&bench));
        assert!(bench.path.join("v/hooks/post-commit").exists());
    });
}

#[test]
fn what_a_config_names_is_protected_however_git_would_read_that_config() {
    unprivileged("what_a_config_names_is_protected_however_git_would_read_that_config", async || {
        for (name, config) in [
            (
                "lines that end as on Windows",
                &b"[core]\r\n\thooksPath = tools/hooks\r\n\tfsmonitor = sh tools/fs.sh\r\n"[..],
            ),
            (
                "a name that is no UTF-8",
                b"[user]\n\tname = J\xfcrgen\n[core]\n\thooksPath = tools/hooks\n\tfsmonitor = sh tools/fs.sh\n",
            ),
            (
                "a mark at its beginning",
                b"\xef\xbb\xbf[core]\n\thooksPath = tools/hooks\n\tfsmonitor = sh 'tools/fs.sh' x\n",
            ),
            ("several words", b"[core]\n\thooksPath = tools/hooks\n\tfsmonitor = \"env X=1 sh tools/fs.sh; true\"\n"),
        ] {
            let bench = Bench::new("named");
            fs::create_dir_all(bench.path.join("tools/hooks")).unwrap();
            fs::write(bench.path.join("tools/fs.sh"), "").unwrap();
            assert!(operator(&bench, "", &["init", "-q"]));
            fs::write(bench.path.join(".git/config"), config).unwrap();
            // That git takes it, and runs what it names.
            fs::write(bench.path.join("tools/fs.sh"), format!("touch {}\n", mark(&bench))).unwrap();
            operator(&bench, "", &["status"]);
            assert!(ran(&bench), "{name}: this is what git makes of it");
            pause().await;
            for attack in ["echo x >tools/hooks/pre-commit", "echo x >tools/fs.sh", "mv tools t"] {
                let outcome = bench.sh(attack).await;
                assert_ne!(outcome.code(), Some(0), "{name}: {attack}: {outcome:?}");
            }
        }
    });
}

#[test]
fn on_a_file_system_with_whole_seconds_nothing_is_missed() {
    let prepare = "truncate -s 16M $AT/image; mkfs.ext4 -q -I 128 $AT/image 2>/dev/null; mkdir -p $AT/w/workspace; \
                   mount -o loop $AT/image $AT/w/workspace; rm $AT/image; chown 64217 $AT/w $AT/w/workspace; chmod 755 $AT/w/workspace";
    unprivileged_after("on_a_file_system_with_whole_seconds_nothing_is_missed", prepare, async || {
        let bench = Bench::at(std::env::temp_dir().join("w"), Unsandboxed::Refuse);
        for round in 0..5 {
            let outcome = bench.sh("mkdir -p a && echo x >a/.envrc; echo x >file").await;
            assert_eq!(names(&outcome), ["a/.envrc"], "{round}: {outcome:?}");
            assert!(outcome.exit.unwrap().changed.paths.contains(&b"file".to_vec()));
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    });
}
