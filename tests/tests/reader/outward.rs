//! Ways out of the workspace, and to what only the service user may read.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use salaam_tests::{Host, limit};
use serde_json::json;

use crate::asker::{Asker, KEY, Over};

const ROUNDS: usize = 500;

#[test]
fn no_link_leads_out_of_the_workspace() {
    let _turn = limit!(60);
    let mut asker = Asker::new("links");
    let secret = asker.secret();
    let outside = asker.outside.clone();
    let up = format!("{}{}", "../".repeat(20), secret.display().to_string().trim_start_matches('/'));
    for (name, target) in [
        ("absolute", secret.display().to_string()),
        ("relative", up.clone()),
        ("through-proc", format!("/proc/self/root{}", secret.display())),
        ("directory", outside.display().to_string()),
        ("own-memory", "/proc/self/maps".into()),
    ] {
        symlink(&target, asker.workspace.join(name)).expect("it is new");
    }
    for path in ["absolute", "relative", "through-proc", "directory/secret"] {
        assert!(asker.plain(&format!("cat {path}")).says(KEY), "{path} leads out for plain code");
        assert_eq!(asker.refused(path), "link", "{path}");
        let whole = asker.ask(json!({"do": "whole", "path": path}));
        assert_eq!(whole["refused"], "link", "{path}");
    }
    assert!(asker.plain("cat own-memory").says("[stack]"));
    assert_eq!(asker.refused("own-memory"), "link");
    assert!(asker.plain(&format!("cat {up}")).says(KEY));
    for path in [up.as_str(), "a/../../x", "/etc/passwd"] {
        assert_eq!(asker.read(path)["error"], "reader-question", "{path}");
    }
    let listed = asker.ask(json!({"do": "list"}));
    assert_eq!(listed["kinds"].as_array().expect("a list").len(), 5, "{listed}");
    assert!(listed["kinds"].as_array().expect("a list").iter().all(|kind| kind == "link"), "{listed}");
    assert_eq!(asker.ask(json!({"do": "list", "path": "directory"}))["refused"], "link");
    let found = asker.search(KEY);
    assert_eq!((&found["matches"], &found["files"]), (&json!([]), &json!(0)), "{found}");
}

#[test]
fn what_only_the_service_user_may_read_stays_secret() {
    let _turn = limit!(60);
    let host = Host::shared();
    let mut asker = Asker::new("modes");
    let (service, work, tools) = (&host.service.name, host.name("work"), &host.tools.name);
    asker.root(&format!(
        "umask 077
         for f in own group open closed-by-mask by-acl; do echo {KEY} >$f; chown {service}:{work} $f; setfacl -b $f; done
         chmod 600 own; chgrp {service} group; chmod 640 group; chmod 640 open
         chmod 600 by-acl; setfacl -m u:{tools}:r by-acl
         chmod 660 closed-by-mask; setfacl -m g:{work}:rw,m::--- closed-by-mask
         mkdir private; echo {KEY} >private/file; chmod 644 private/file; setfacl -b private; chown -R {service}:{work} private; chmod 700 private"
    ));
    for (path, expected) in [
        ("own", Some("closed")),
        ("group", Some("closed")),
        ("closed-by-mask", Some("closed")),
        ("private/file", Some("closed")),
        ("open", None),
        ("by-acl", None),
    ] {
        let tools = host.tools.command("cat").arg(asker.workspace.join(path)).output().expect("cat is there");
        assert_eq!(tools.status.success(), expected.is_none(), "{path} for the tools user itself");
        assert!(asker.plain(&format!("cat {path}")).says(KEY), "{path} for plain code of the service user");
        let answer = asker.read(path);
        assert_eq!(answer["refused"].as_str(), expected, "{path}: {answer}");
        assert_eq!(answer["text"].as_str().is_some_and(|text| text.contains(KEY)), expected.is_none(), "{path}");
    }
    let found = asker.search(KEY);
    assert_eq!(found["matches"], json!([["by-acl", 1, KEY], ["open", 1, KEY]]));
    assert_eq!(found["closed"], 4, "{found}");
    let listed = asker.ask(json!({"do": "list"}));
    assert_eq!(listed["names"], json!(["by-acl", "closed-by-mask", "group", "open", "own", "private"]));
    assert_eq!(listed["closed"], json!([false, true, true, false, true, true]));
    // What a command left to itself.
    asker.root(&format!("echo x >tools-own; chown {tools} tools-own; setfacl -b tools-own; chmod 600 tools-own"));
    assert_eq!(asker.refused("tools-own"), "tools-only");
}

#[test]
fn a_hard_link_is_read_only_by_what_its_file_allows() {
    let _turn = limit!(60);
    let mut asker = Asker::new("hard");
    let secret = asker.secret();
    fs::hard_link(&secret, asker.workspace.join("hard")).expect("one file system");
    assert!(asker.plain("cat hard").says(KEY));
    assert_eq!(asker.refused("hard"), "closed");
    assert_eq!(asker.search(KEY)["matches"], json!([]));
}

#[test]
fn an_ignore_file_that_leads_to_a_key_is_neither_obeyed_nor_quoted() {
    let _turn = limit!(60);
    let mut asker = Asker::new("ignore");
    asker.write(KEY, "hit\n");
    let secret = asker.secret();
    for (name, way) in [(".gitignore", "link"), (".ignore", "hard")] {
        let path = asker.workspace.join(name);
        if way == "link" {
            symlink(&secret, &path).expect("it is new");
        } else {
            fs::hard_link(&secret, &path).expect("one file system");
        }
        assert!(asker.plain(&format!("cat {name}")).says(KEY), "a parser that opens it by its path has the key");
    }
    let found = asker.search("hit");
    assert_eq!(found["matches"], json!([[KEY, 1, "hit"]]), "the key, as a rule, would have hidden the file: {found}");
    let wrong = asker.search("(");
    assert_eq!((wrong["refused"].as_str(), wrong["detail"].as_str()), (Some("pattern"), Some("unclosed group")));
    // A rule file that may be read is obeyed.
    asker.root("rm .gitignore .ignore");
    asker.write(".gitignore", format!("{KEY}\n"));
    assert_eq!(asker.search("hit")["matches"], json!([]));
}

#[test]
fn a_directory_that_turns_into_a_link_is_never_followed() {
    let _turn = limit!(120);
    let mut asker = Asker::new("race");
    fs::create_dir(asker.workspace.join("d")).expect("it is new");
    asker.root(&format!("chown {} d; chmod 2775 d", Host::shared().service.name));
    asker.write("d/secret", "inside\n");
    symlink(&asker.outside, asker.workspace.join("l")).expect("it is new");
    let (d, l) = (asker.workspace.join("d"), asker.workspace.join("l"));
    let over = AtomicBool::new(false);
    let (mut inside, mut plain) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &d, AT_FDCWD, &l, RenameFlags::RENAME_EXCHANGE).expect("both are there");
                thread::yield_now();
            }
        });
        let _over = Over(&over);
        for round in 0..ROUNDS {
            plain += usize::from(fs::read_to_string(d.join("secret")).is_ok_and(|text| text.contains(KEY)));
            let answer = match round % 3 {
                0 => asker.read("d/secret"),
                1 => asker.ask(json!({"do": "whole", "path": "d/secret"})),
                _ => asker.search(KEY),
            };
            let text = answer.to_string();
            assert!(!text.contains(KEY), "round {round}: {text}");
            inside += usize::from(text.contains("inside"));
        }
    });
    assert!(plain > 0, "plain code was never led out: the race was none");
    assert!(inside > 0, "nothing was ever read");
}

#[test]
fn nobody_of_the_same_account_looks_into_a_reader() {
    let _turn = limit!(60);
    let mut asker = Asker::new("memory");
    asker.write("x", "x\n");
    asker.read("x");
    let reader = asker.reader();
    let mut victim = Host::shared().service.command("sleep").arg("60").spawn().expect("it is there");
    let look = |pid: String| {
        asker.plain(&format!("head -c1 /proc/{pid}/environ; readlink /proc/{pid}/fd/0; : </proc/{pid}/mem"))
    };
    let seen = look(victim.id().to_string());
    assert_eq!(seen.code, Some(0), "{seen}");
    let seen = look(reader.pid.to_string());
    assert!(seen.code != Some(0) && seen.err().matches("denied").count() >= 2, "{seen}");
    drop(victim.kill());
    drop(victim.wait());
}
