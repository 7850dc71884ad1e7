//! Whole sessions through the command line: each script is a promise, and its `expect` holds it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
};

use salaam_tests::{
    Host, Pair,
    host::chown,
    limit,
    pair::inside,
    ran,
    session::{Answer, Played, play, script},
};
use serde_json::{Value, json};

/// A file of the workspace, as its owner would have made it.
fn put(pair: &Pair, name: &str, content: &str, mode: u32) {
    let path = inside(pair, name);
    fs::write(&path, content).expect("root can write there");
    chown(&path, &format!("{}:{}", pair.host.service.name, pair.host.name("work")));
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

fn granted(_: &Value, _: usize) -> Answer {
    Answer::Grant
}

#[track_caller]
fn completed(pair: &Pair, played: &Played) {
    assert_eq!(played.outcome(pair), ("ended".into(), json!("completed")), "{}", played.ran);
    assert_eq!(played.ran.code, Some(0), "{}", played.ran);
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
}

#[track_caller]
fn plays(pair: &Pair, name: &str) -> Played {
    let state = pair.state.display().to_string();
    let played = play(pair, &script(pair, name, &[("@STATE@", &state)]), granted, |_| {});
    completed(pair, &played);
    played
}

fn three_files(pair: &Pair) {
    put(pair, "a.txt", "one two\n", 0o664);
    put(pair, "b.txt", "three\n", 0o664);
}

#[test]
fn the_sample_session_looks_tests_mends_undoes_and_redoes() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let examples = format!("{}/../docs/examples", env!("CARGO_MANIFEST_DIR"));
    ran::run(&["cp", "-r", &format!("{examples}/tally/."), &pair.workspace.display().to_string()]);
    let owner = format!("{}:{}", pair.host.service.name, pair.host.name("work"));
    ran::run(&["chown", "-R", &owner, &pair.workspace.display().to_string()]);
    ran::run(&["chmod", "-R", "g+rwX", &pair.workspace.display().to_string()]);
    for words in [
        &["init", "-q"][..],
        &["add", "-A"],
        &["-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-qm", "x"],
    ] {
        let mut git = pair.host.service.command("git");
        ran::Ran::of(git.arg("-C").arg(&pair.workspace).args(words)).ok();
    }
    ran::run(&["chmod", "-R", "g+rwX", &pair.workspace.display().to_string()]);
    let before = fs::read_to_string(inside(&pair, "src/tally.c")).expect("it is there");
    let played = play(&pair, &session_script(&pair, &examples), granted, |_| {});
    completed(&pair, &played);
    let after = fs::read_to_string(inside(&pair, "src/tally.c")).expect("it is there");
    assert!(before.contains("int in_word = 0;") && !after.contains("int in_word = 0;"), "{after}");
    let kinds: Vec<&Value> = played.approvals.iter().map(|one| &one["bound"]["kind"]).collect();
    assert_eq!(kinds, ["command", "edit", "command", "undo", "command", "undo", "command"]);
    for one in &played.approvals {
        assert!(one["flags"].to_string().contains("in-place"), "{one}");
    }
}

fn session_script(pair: &Pair, examples: &str) -> String {
    let text = fs::read_to_string(format!("{examples}/mend-tally.json")).expect("it is in the tree");
    salaam_tests::session::written(pair, "mend-tally", &text)
}

#[test]
fn what_a_session_looks_at_stays_inside_and_is_what_the_tools_user_may_read() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    put(&pair, "poem.txt", "the first line\nthe second line\nthe third line\n", 0o644);
    put(&pair, "hay.txt", "hay hay needle hay\n", 0o644);
    put(&pair, "secret.env", "KEY=needle\n", 0o600);
    symlink("/etc/passwd", inside(&pair, "way-out")).expect("root can link there");
    ran::run(&["mkfifo", &inside(&pair, "pipe").display().to_string()]);
    // Each could be read by the service user without the reader's rules, but for the pipe.
    let mut cat = pair.host.service.command("cat");
    ran::Ran::of(cat.arg(inside(&pair, "secret.env")).arg(inside(&pair, "way-out"))).ok();
    let played = plays(&pair, "look");
    assert!(played.approvals.is_empty(), "looking asks nobody");
    let told = played.ran.out();
    assert!(!told.contains("KEY=") && !told.contains("root:x:"), "{told}");
}

#[test]
fn an_edit_of_many_kinds_happens_whole_and_is_undone_whole() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    three_files(&pair);
    put(&pair, "gone.txt", "was gone\n", 0o664);
    put(&pair, "old-name.txt", "renamed content\n", 0o664);
    put(&pair, "run.sh", "#!/bin/sh\n", 0o664);
    plays(&pair, "edits");
}

#[test]
fn one_edit_that_does_not_fit_leaves_all_as_it_was() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    three_files(&pair);
    plays(&pair, "all-or-none");
    assert_eq!(fs::read_to_string(inside(&pair, "a.txt")).expect("it is there"), "one two\n");
}

#[test]
fn an_undo_never_overwrites_what_came_later() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    three_files(&pair);
    plays(&pair, "moved-on");
}

#[test]
fn a_denial_and_its_comment_reach_the_agent() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let answer = |_: &Value, number| if number == 0 { Answer::Deny("use the other file") } else { Answer::Grant };
    let played = play(&pair, &script(&pair, "denied", &[]), answer, |_| {});
    completed(&pair, &played);
    assert!(!inside(&pair, "not-wanted").exists() && inside(&pair, "wanted").exists());
}

#[test]
fn protected_paths_links_and_unknown_words_are_refused_before_anybody_is_asked() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    three_files(&pair);
    ran::Ran::of(Command::new("git").args(["init", "-q"]).arg(&pair.workspace)).ok();
    ran::run(&["chown", "-R", &pair.host.service.name, &inside(&pair, ".git").display().to_string()]);
    symlink("/etc/passwd", inside(&pair, "way-out")).expect("root can link there");
    let played = plays(&pair, "protected");
    assert_eq!(played.approvals.len(), 0);
    assert_eq!(played.events("approval.requested").len(), 0);
}

#[test]
fn a_session_that_asks_goes_on_with_the_answer() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let mut told = false;
    let played = play(&pair, &script(&pair, "message", &[]), granted, |id| {
        if told {
            return;
        }
        let session = pair.salaam(&["session", "show", id, "--json"]).ok().json();
        if session["state"] == "waiting" && session["waiting_for"] == "message" {
            assert!(!inside(&pair, "answered").exists());
            pair.salaam_as(&pair.host.operator, &["session", "message", id, "the second"]).ok();
            told = true;
        }
    });
    completed(&pair, &played);
    let message = played.events("session.message").pop().expect("it is recorded");
    assert_eq!(message["data"]["by"]["uid"], pair.host.operator.uid);
}

#[test]
fn a_script_that_is_not_met_ends_as_a_mismatch_and_does_nothing_more() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let played = play(&pair, &script(&pair, "mismatch", &[]), granted, |_| {});
    assert_eq!(played.outcome(&pair), ("ended".into(), json!("script-mismatch")));
    assert_eq!(played.ran.code, Some(1), "{}", played.ran);
    assert!(!inside(&pair, "after-the-mismatch").exists());
}

#[test]
fn commands_of_a_session_are_confined_limited_and_answered_exactly() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    plays(&pair, "confined");
    assert!(!std::path::Path::new("/etc/was-here").exists());
}

/// S10: policy is never read from a workspace or above it.
#[test]
fn configuration_that_an_agent_writes_decides_nothing() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let before = pair.health()["manifest"].clone();
    let played = plays(&pair, "policy");
    assert_eq!(pair.health()["manifest"], before);
    for one in &played.approvals {
        // An edit is made by the executor itself, beside the sandbox; a command is in it as before.
        let command = one["bound"]["kind"] == "command";
        let isolation = if command { "tools-user-bubblewrap" } else { "tools-user-no-os-sandbox" };
        assert_eq!(one["bound"]["policy"]["isolation"], isolation);
        assert_eq!(one["bound"]["policy"]["manifest"], before);
    }
}

#[test]
fn a_file_that_changes_under_a_question_makes_the_grant_stale() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    three_files(&pair);
    let played = play(
        &pair,
        &script(&pair, "stale", &[]),
        |_, _| {
            put(&pair, "a.txt", "one, and somebody was faster\n", 0o664);
            Answer::Grant
        },
        |_| {},
    );
    completed(&pair, &played);
    let stale = played.events("approval.stale").pop().expect("it is recorded");
    assert!(stale["data"]["changed"].to_string().contains("a.txt"), "{stale}");
}

#[test]
fn what_hides_is_flagged() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let played = plays(&pair, "visible");
    assert_eq!(played.approvals.len(), 2);
    for one in &played.approvals {
        assert!(one["flags"].to_string().contains("hidden-characters"), "{one}");
    }
}

/// J3: after a crash nothing is run again; a person says what became of what nobody saw.
#[test]
fn what_nobody_saw_end_waits_for_a_persons_word_and_the_agent_is_told() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    let (mut killed, mut said) = (false, false);
    let played = play(&pair, &script(&pair, "unknown", &[]), granted, |id| {
        let started = fs::read_to_string(inside(&pair, "log")).unwrap_or_default() == "begun\n";
        if !killed && started {
            killed = true;
            pair.executors().pop().expect("it runs the command").kill();
        }
        let session = pair.salaam(&["session", "show", id, "--json"]).ok().json();
        if !said && session["waiting_for"] == "reconcile" {
            said = true;
            let unknown = pair.salaam(&["operation", "list", "--json"]).ok().json_lines();
            let unknown = unknown.iter().find(|one| one["state"] == "unknown").expect("nobody saw it end");
            let operation = unknown["operation"].as_str().expect("an id");
            let words =
                ["session", "reconcile", id, operation, "--verdict", "took-effect", "--comment", "it had begun"];
            pair.salaam_as(&pair.host.operator, &words).ok();
        }
    });
    assert!(killed && said, "{}", played.ran);
    completed(&pair, &played);
    assert_eq!(fs::read_to_string(inside(&pair, "log")).expect("it ran"), "begun\n", "it ran once");
}
