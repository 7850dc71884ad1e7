//! What a command plants for a later git, editor or shell is gone before anybody is told of its end; what the owner
//! had there stays, and git works.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

mod common;

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command as Process, Stdio},
    time::Duration,
};

use common::{Bench, Outcome, unprivileged};
use salaam_core::{bridge::RunPlan, policy::Unsandboxed};

/// Its name, what the command does (MARK is what would run), what is named, where the operator runs which git.
type Attack = (&'static str, &'static str, &'static [&'static str], &'static str, &'static [&'static str]);

/// A file that the planted program makes when an operator runs it.
const RAN: &str = "salaam-guard-ran";

fn ran(bench: &Bench) -> bool {
    let mark = bench.outside.join(RAN);
    let there = mark.exists();
    drop(std::fs::remove_file(mark));
    there
}

/// git as an operator outside runs it, with the tools user's trees declared safe, which is the worst case.
fn operator(bench: &Bench, directory: &str, arguments: &[&str]) {
    let directory = bench.path.join(directory);
    let status = Process::new("git")
        .args(["-c", "safe.directory=*", "-c", "user.name=o", "-c", "user.email=o@x"])
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &bench.outside)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    drop(status);
}

fn names(outcome: &Outcome) -> Vec<String> {
    let quarantined = &outcome.exit.as_ref().unwrap().quarantined;
    let mut names: Vec<_> = quarantined.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    names.sort();
    names
}

async fn pause() {
    // The clock of changes goes in ticks; what was made in this one would count as the command's.
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[test]
fn what_is_planted_for_a_later_git_is_taken_away() {
    unprivileged("what_is_planted_for_a_later_git_is_taken_away", async || {
        let mark = |bench: &Bench| format!("touch {}/{RAN}", bench.outside.display());
        let attacks: &[Attack] = &[
            (
                "a hook in a new repository",
                "git init -q n && printf '#!/bin/sh\\nMARK\\n' >n/.git/hooks/pre-commit && chmod +x n/.git/hooks/pre-commit",
                &["n/.git/hooks/pre-commit"],
                "n",
                &["commit", "--allow-empty", "-m", "x"],
            ),
            (
                "a program in the config of a new repository",
                "git init -q n && git -C n config core.fsmonitor 'MARK; false'",
                &["n/.git/config"],
                "n",
                &["status"],
            ),
            (
                "a config that includes a file",
                "git init -q n && echo '[core] fsmonitor = \"MARK; false\"' >inc && git -C n config include.path ../../inc",
                &["n/.git/config"],
                "n",
                &["status"],
            ),
            (
                "hooks elsewhere",
                "git init -q n && mkdir h && printf '#!/bin/sh\\nMARK\\n' >h/post-commit && chmod +x h/post-commit && git -C n config core.hooksPath ../h",
                &["n/.git/config"],
                "n",
                &["commit", "--allow-empty", "-m", "x"],
            ),
            (
                "a filter and its attributes",
                "git init -q n && git -C n config filter.x.clean 'MARK; cat' && echo '* filter=x' >n/.gitattributes && echo x >n/f",
                &["n/.git/config"],
                "n",
                &["add", "f"],
            ),
            (
                "a link in the place of hooks",
                "git init -q n && mkdir h && printf '#!/bin/sh\\nMARK\\n' >h/pre-commit && chmod +x h/pre-commit && rm -r n/.git/hooks && ln -s ../../h n/.git/hooks",
                &["n/.git/hooks"],
                "n",
                &["commit", "--allow-empty", "-m", "x"],
            ),
            (
                "a repository elsewhere",
                "git init -q --separate-git-dir=s n && git -C n config core.fsmonitor 'MARK; false'",
                &["s/config"],
                "n",
                &["status"],
            ),
            (
                "a directory that is a repository without a work tree",
                "git init -q --bare b && git -C b config core.bare false && git -C b config core.worktree . && git -C b config core.fsmonitor 'MARK; false'; true",
                &["b/config"],
                "b",
                &["status"],
            ),
            (
                "the workspace itself made one",
                "git init -q . && git config core.fsmonitor 'MARK; false'",
                &[".git/config"],
                "",
                &["status"],
            ),
            (
                "a hook moved in from a directory that is closed",
                "git init -q c/n && printf '#!/bin/sh\\nMARK\\n' >c/n/.git/hooks/pre-commit && chmod 755 c/n/.git/hooks/pre-commit && chmod 500 c/n/.git/hooks && chmod 0 c",
                &["c/n/.git/hooks/pre-commit"],
                "c/n",
                &["commit", "--allow-empty", "-m", "x"],
            ),
        ];
        for (name, plant, taken, directory, arguments) in attacks {
            let open = Bench::with_floor("plant-open", Unsandboxed::Allow);
            let text = plant.replace("MARK", &mark(&open));
            assert_eq!(open.run(open.bare(&text)).await.code(), Some(0), "{name}");
            drop(Process::new("chmod").args(["-R", "u+rwX"]).arg(&open.path).status());
            operator(&open, directory, arguments);
            assert!(ran(&open), "{name}: this is what runs where nothing is taken away");

            let bench = Bench::new("plant");
            let outcome = bench.sh(&plant.replace("MARK", &mark(&bench))).await;
            assert_eq!(outcome.code(), Some(0), "{name}: {outcome:?}");
            assert_eq!(names(&outcome), *taken, "{name}");
            assert!(outcome.exit.as_ref().unwrap().changed.guard.complete, "{name}");
            operator(&bench, directory, arguments);
            assert!(!ran(&bench), "{name}");
            if directory != &"b" {
                // The repository is still one.
                operator(&bench, directory, &["commit", "--allow-empty", "-m", "y"]);
                let log = Process::new("git")
                    .args(["-c", "safe.directory=*", "log", "--oneline"])
                    .current_dir(bench.path.join(directory))
                    .output()
                    .unwrap();
                assert!(log.status.success() && !log.stdout.is_empty(), "{name}: {log:?}");
            }
        }
    });
}

#[test]
fn a_redirection_of_git_leads_to_a_repository_that_was_looked_at_or_is_taken_away() {
    unprivileged("a_redirection_of_git_leads_to_a_repository_that_was_looked_at_or_is_taken_away", async || {
        for (name, plant, taken) in [
            ("a file out of the workspace", "mkdir n && echo 'gitdir: /tmp/x' >n/.git", "n/.git"),
            ("a file to what is no repository", "mkdir n x && echo 'gitdir: ../x' >n/.git", "n/.git"),
            ("a link out of the workspace", "mkdir n && ln -s /tmp/x n/.git", "n/.git"),
            ("a file through a link", "mkdir n && ln -s /tmp l && echo 'gitdir: ../l/x' >n/.git", "n/.git"),
            ("another's common directory", "git init -q n && echo /tmp/x >n/.git/commondir", "n/.git/commondir"),
            ("attributes", "git init -q n && echo '* filter=x' >n/.git/info/attributes", "n/.git/info/attributes"),
        ] {
            let bench = Bench::new("redirect");
            let outcome = bench.sh(plant).await;
            assert_eq!(names(&outcome), [taken], "{name}: {outcome:?}");
            assert!(!bench.path.join(taken).exists() && bench.path.join(taken).symlink_metadata().is_err(), "{name}");
        }
        for keeps in ["git init -q n --separate-git-dir=s", "git init -q r && ln -s r/.git .git"] {
            let bench = Bench::new("redirect-inside");
            let outcome = bench.sh(keeps).await;
            assert_eq!((outcome.code(), names(&outcome)), (Some(0), vec![]), "{keeps}: {outcome:?}");
        }
    });
}

#[test]
fn what_an_editor_or_a_shell_would_run_is_taken_away_at_every_depth() {
    unprivileged("what_an_editor_or_a_shell_would_run_is_taken_away_at_every_depth", async || {
        let bench = Bench::new("editors");
        let text = "mkdir -p .vscode a/b/.vscode c/.idea d && echo '{}' >.vscode/tasks.json && echo x >a/b/.vscode/tasks.json \
                    && echo x >.envrc && ln -s /etc/passwd d/.envrc && mkdir .salaam && echo x >.salaam/x && echo x >Makefile.local";
        let plan = RunPlan { protected_paths: vec![b"Makefile.local".to_vec()], ..bench.shell(text) };
        let outcome = bench.run(plan).await;
        let expected = [".envrc", ".salaam", ".vscode", "Makefile.local", "a/b/.vscode", "c/.idea", "d/.envrc"];
        assert_eq!(names(&outcome), expected, "{outcome:?}");
        let left: Vec<_> = std::fs::read_dir(&bench.path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 4, "a, c, d and Salaam's own: {left:?}");
        let own = bench.path.join(".salaam/quarantine");
        let operation = std::fs::read_dir(own).unwrap().next().unwrap().unwrap().path();
        let index = std::fs::read_to_string(operation.join("index")).unwrap();
        assert!(expected.iter().all(|name| index.contains(name)), "{index}");
        for entry in std::fs::read_dir(&operation).unwrap().map(Result::unwrap) {
            let metadata = entry.path().symlink_metadata().unwrap();
            assert!(!metadata.is_file() || metadata.permissions().mode() & 0o111 == 0, "{entry:?}");
        }
        // The next command cannot change it, and takes nothing more away.
        let next =
            bench.sh("echo x >.salaam/x || echo kept; rm -rf .salaam/quarantine; ls .salaam/quarantine | wc -l").await;
        assert_eq!((next.out().as_str(), names(&next)), ("kept\n1", vec![]));
    });
}

#[test]
fn what_the_owner_had_there_stays() {
    unprivileged("what_the_owner_had_there_stays", async || {
        let bench = Bench::new("owner");
        let nested = bench.path.join("vendor/x");
        std::fs::create_dir_all(&nested).unwrap();
        operator(&bench, "vendor/x", &["init", "-q"]);
        operator(&bench, "vendor/x", &["config", "alias.st", "!echo mine"]);
        let hook = nested.join(".git/hooks/pre-commit");
        std::fs::write(&hook, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir_all(nested.join(".vscode/sub")).unwrap();
        std::fs::write(nested.join(".vscode/settings.json"), "{}").unwrap();
        pause().await;
        let works = "cd vendor/x && echo x >f && git add f && git -c user.name=a -c user.email=a@x commit -qm x && git remote add o ../y && echo ok";
        let outcome = bench.sh(works).await;
        assert_eq!((outcome.out().as_str(), names(&outcome)), ("ok", vec![]), "{outcome:?}");
        assert!(hook.exists());
        let config = std::fs::read_to_string(nested.join(".git/config")).unwrap();
        assert!(config.contains("echo mine") && config.contains("../y"), "{config}");

        pause().await;
        let adds = "cd vendor/x && git config alias.ls '!evil' && echo '#!/bin/sh' >.git/hooks/post-commit && echo x >.vscode/tasks.json && echo x >.vscode/sub/y";
        let outcome = bench.sh(adds).await;
        let expected = [
            "vendor/x/.git/config",
            "vendor/x/.git/hooks/post-commit",
            "vendor/x/.vscode/sub/y",
            "vendor/x/.vscode/tasks.json",
        ];
        assert_eq!(names(&outcome), expected, "{outcome:?}");
        let config = std::fs::read_to_string(nested.join(".git/config")).unwrap();
        assert!(config.contains("echo mine") && config.contains("../y") && !config.contains("evil"), "{config}");
        assert!(hook.exists() && nested.join(".vscode/settings.json").exists());
    });
}

#[test]
fn what_was_prepared_by_an_earlier_command_and_is_only_moved_into_place_is_taken_away() {
    unprivileged("what_was_prepared_by_an_earlier_command_and_is_only_moved_into_place_is_taken_away", async || {
        let bench = Bench::new("moved-in");
        let prepare = "mkdir -p n x/hooks && echo '#!/bin/sh' >x/hooks/pre-commit && chmod +x x/hooks/pre-commit && echo '[alias] x = !y' >x/config && git init -q r && mkdir h && echo '#!/bin/sh' >h/pre-push";
        assert_eq!(names(&bench.sh(prepare).await), [] as [&str; 0]);
        pause().await;
        let outcome = bench.sh("mv x n/.git; rm -r r/.git/hooks; mv h r/.git/hooks").await;
        assert_eq!(
            names(&outcome),
            ["n/.git/config", "n/.git/hooks/pre-commit", "r/.git/hooks/pre-push"],
            "{outcome:?}"
        );
    });
}

#[test]
fn git_works_inside() {
    unprivileged("git_works_inside", async || {
        let bench = Bench::new("git");
        let text = "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x
            git init -q -b main one && cd one && echo 1 >f && git add f && git commit -qm 1 && git status --porcelain
            cd .. && git clone -q one two && cd two && git checkout -q -b topic && echo 2 >>f && git commit -qam 2
            git worktree add -q ../three main && cd ../three && echo 3 >g && git add g && git commit -qm 3
            cd ../one && git -c protocol.file.allow=always submodule add -q ../two sub && git commit -qm sub
            cd ../two && git push -q origin topic && git worktree list | wc -l && git log --oneline topic | wc -l";
        let outcome = bench.sh(text).await;
        assert_eq!((outcome.code(), outcome.out().as_str()), (Some(0), "2\n2"), "{outcome:?}");
        assert_eq!(names(&outcome), [] as [&str; 0], "git's own files are left alone");

        // In the root repository, with its linked worktree, protected by mounts.
        let bench = Bench::new("git-root");
        operator(&bench, "", &["init", "-q", "-b", "main"]);
        operator(&bench, "", &["commit", "--allow-empty", "-qm", "0"]);
        operator(&bench, "", &["worktree", "add", "-q", "wt"]);
        pause().await;
        let text = "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x
            echo 1 >f && git add f && git commit -qm 1 && git checkout -q -b x && git merge -q main
            cd wt && echo 2 >g && git add g && git commit -qm 2 && cd ..
            git worktree add -q wt2 && git -C wt2 status --porcelain && git gc -q && git log --oneline | wc -l";
        let outcome = bench.sh(text).await;
        assert_eq!((outcome.code(), outcome.out().as_str()), (Some(0), "2"), "{outcome:?}");
        assert_eq!(names(&outcome), [] as [&str; 0]);
        let guard = outcome.exit.unwrap().changed.guard;
        assert!(guard.mounts >= 4 && guard.complete, "{guard:?}");
    });
}

#[test]
fn the_root_repository_is_protected_wherever_it_is() {
    unprivileged("the_root_repository_is_protected_wherever_it_is", async || {
        for (name, set_up, real) in [
            ("a file", &["init", "-q", "--separate-git-dir=real", "."][..], "real"),
            ("a directory", &["init", "-q"][..], ".git"),
        ] {
            let bench = Bench::new("where");
            operator(&bench, "", set_up);
            assert!(bench.path.join(real).join("config").exists(), "{name}");
            std::fs::create_dir_all(bench.path.join("tools")).unwrap();
            std::fs::write(bench.path.join("tools/fs"), "").unwrap();
            operator(&bench, "", &["config", "core.fsmonitor", "tools/fs"]);
            pause().await;
            for attack in [
                format!("echo x >>{real}/config"),
                format!("echo x >{real}/hooks/pre-commit"),
                format!("mv {real} away"),
                "mv .git away".into(),
                "echo x >tools/fs".into(),
                "mv tools t".into(),
            ] {
                let outcome = bench.sh(&attack).await;
                assert_ne!(outcome.code(), Some(0), "{name}: {attack}");
            }
            for (attack, taken) in [("commondir", "/tmp/x"), ("config.worktree", "[alias]\nx = !y")] {
                let outcome = bench.sh(&format!("printf '{taken}\\n' >{real}/{attack}")).await;
                assert_eq!(names(&outcome), [format!("{real}/{attack}")], "{name}: {outcome:?}");
            }
        }
        // A link cannot be covered by a mount: what it leads to is, and another one in its place is looked at.
        let bench = Bench::new("where-link");
        operator(&bench, "", &["init", "-q"]);
        std::fs::rename(bench.path.join(".git"), bench.path.join("real")).unwrap();
        std::os::unix::fs::symlink("real", bench.path.join(".git")).unwrap();
        pause().await;
        assert_ne!(bench.sh("echo x >>.git/config").await.code(), Some(0));
        let outcome = bench.sh("rm .git && git init -q . && git config alias.x '!y'").await;
        assert_eq!(names(&outcome), [".git/config"], "{outcome:?}");
        assert!(Path::new(&bench.path).join("real/config").exists());
    });
}

#[test]
fn setgid_is_gone_from_files_and_stays_on_directories_and_setuid_is_refused() {
    unprivileged("setgid_is_gone_from_files_and_stays_on_directories_and_setuid_is_refused", async || {
        let bench = Bench::new("modes");
        let outcome = bench
            .sh("touch f g && mkdir d && chmod 2755 f d && (chmod 4755 g || echo refused); stat -c %a f d g")
            .await;
        assert_eq!(outcome.out(), "refused\n2755\n2755\n644".replace("644", "664"), "{outcome:?}");
        let mode = |name| std::fs::metadata(bench.path.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("f"), mode("d"), mode("g")), (0o755, 0o2755, 0o664));
    });
}
