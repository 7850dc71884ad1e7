//! Edits and undos through the real pair: shown whole, done as shown, all of them or none, and taken back.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    time::Duration,
};

use salaam_tests::{
    Host, Pair, eventually, http, limit,
    pair::{inside, text},
    ran::LIMIT,
};
use serde_json::{Value, json};

fn write(pair: &Pair, name: &str, content: &str) {
    let path = inside(pair, name);
    let parent = path.parent().expect("it has one");
    if !parent.exists() {
        fs::create_dir_all(parent).expect("root can write there");
        let owner = format!("{}:{}", pair.host.service.name, pair.host.name("work"));
        salaam_tests::host::chown(parent, &owner);
    }
    pair.host.write(&path, content);
}

fn read(pair: &Pair, name: &str) -> Option<String> {
    fs::read_to_string(inside(pair, name)).ok()
}

fn replace(path: &str, old: &str, new: &str) -> Value {
    json!({ "path": path, "old": old, "new": new })
}

/// Proposes and grants in one call, and gives the result.
#[track_caller]
fn done(pair: &Pair, mut body: Value) -> Value {
    body["grant"] = json!(true);
    let reply = pair.post(body);
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()
}

/// Where it is not refused after all it is done, so that nobody waits.
#[track_caller]
fn refused(pair: &Pair, mut body: Value) -> (String, String) {
    body["grant"] = json!(true);
    let reply = pair.post(body);
    assert!(reply.status >= 400, "{}", reply.json());
    let error = reply.json()["error"].clone();
    (text(&error, "id"), text(&error, "message"))
}

/// No file that an edit made on the way is left.
#[track_caller]
fn nothing_is_left_behind(directory: &Path) {
    for entry in fs::read_dir(directory).expect("it is readable").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!name.starts_with(".salaam"), "{name} is left in {}", directory.display());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            nothing_is_left_behind(&entry.path());
        }
    }
}

#[test]
fn what_was_shown_is_what_is_done_and_the_journal_holds_digests_only() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    write(&pair, "src/a.rs", "fn main() {\r\n    old();\r\n}\r\n");
    fs::set_permissions(inside(&pair, "src/a.rs"), fs::Permissions::from_mode(0o775)).expect("root can");
    let edits = json!([replace("src/a.rs", "old()", "new()"), { "path": "b.txt", "create": "secret-word\n" }]);
    let asked = pair.propose(json!({ "edits": edits }));
    let display = text(&asked.object, "display");
    for line in ["-    old();", "+    new();", "+secret-word", "src/a.rs", "b.txt"] {
        assert!(display.contains(line), "{line} is not in {display}");
    }
    let bound = &asked.object["bound"];
    assert_eq!(bound["kind"], "edit");
    assert_eq!(bound["arguments"]["files"].as_array().map(Vec::len), Some(2), "{bound:#}");
    assert_eq!(bound["files"].as_object().map(serde_json::Map::len), Some(2), "the pre-images: {bound:#}");
    assert_eq!(read(&pair, "b.txt"), None, "nothing before the grant");
    pair.grant(&asked.approval, &asked.binding).ok();
    let operation = asked.operation.clone();
    let result = asked.reply().json();
    assert_eq!(result["state"], "completed", "{result:#}");
    assert_eq!(read(&pair, "src/a.rs").as_deref(), Some("fn main() {\r\n    new();\r\n}\r\n"));
    assert_eq!(read(&pair, "b.txt").as_deref(), Some("secret-word\n"));
    assert_eq!(fs::metadata(inside(&pair, "src/a.rs")).expect("it is there").mode() & 0o777, 0o775);
    let files = result["files"].as_array().expect("an edit has files");
    assert_eq!(files.iter().map(|file| text(file, "path")).collect::<Vec<_>>(), ["b.txt", "src/a.rs"]);
    assert!(files[0]["pre"].is_null() && files[0]["post"].is_string(), "{files:?}");
    let dispatched = pair.events_of("operation.dispatched", &operation).pop().expect("recorded");
    assert_eq!(dispatched["data"]["files"].as_array().map(Vec::len), Some(2));
    let all: String = pair.events().iter().map(Value::to_string).collect();
    assert!(!all.contains("secret-word") && !all.contains("new()"), "text of a file is in the journal");
    nothing_is_left_behind(&pair.workspace);
}

#[test]
fn a_file_that_moves_on_before_the_grant_is_named_and_nothing_is_done() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    for (later, name) in [(Some("one\ntwo\nthree\n"), "content"), (None, "absence")] {
        write(&pair, "a", "one\ntwo\n");
        write(&pair, "b", "x\n");
        let asked = pair.propose(json!({ "edits": [replace("a", "one", "1"), replace("b", "x", "y")] }));
        match later {
            Some(later) => write(&pair, "a", later),
            None => fs::remove_file(inside(&pair, "a")).expect("it is there"),
        }
        let granted = pair.grant(&asked.approval, &asked.binding);
        assert_eq!(granted.code, Some(5), "{name}: {granted}");
        let stale = pair.events_of("approval.stale", &asked.operation).pop().expect("recorded");
        assert_eq!(stale["data"]["changed"][0]["path"], "a", "{name}: {stale}");
        assert_eq!(read(&pair, "b").as_deref(), Some("x\n"), "{name}: all or none");
        assert_eq!(read(&pair, "a").as_deref(), later);
        assert_eq!(asked.reply().json()["state"], "stale");
    }
    assert_eq!(fs::read_dir(pair.state.join("blobs")).expect("it is there").count(), 0, "nothing was kept");
}

#[test]
fn an_undo_gives_back_what_was_and_an_undo_of_it_what_was_done() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    write(&pair, "a", "one\n");
    write(&pair, "gone", "here\n");
    let edits = json!([
        replace("a", "one", "two"), { "path": "gone", "delete": true }, { "path": "deep/er/new", "create": "n\n" },
    ]);
    let edit = text(&done(&pair, json!({ "edits": edits })), "operation");
    let edited = || [read(&pair, "a"), read(&pair, "gone"), read(&pair, "deep/er/new")];
    let after = [Some("two\n".to_owned()), None, Some("n\n".to_owned())];
    let before = [Some("one\n".to_owned()), Some("here\n".to_owned()), None];
    assert_eq!(edited(), after);
    let asked = pair.propose(json!({ "undo": edit }));
    assert_eq!(asked.object["bound"]["kind"], "undo");
    assert!(text(&asked.object, "display").contains("+one"), "{}", asked.object["display"]);
    pair.grant(&asked.approval, &asked.binding).ok();
    let undo = asked.operation.clone();
    assert_eq!(asked.reply().json()["state"], "completed");
    assert_eq!(edited(), before);
    assert!(!inside(&pair, "deep").exists(), "directories that the edit made go with it");
    let redo = done(&pair, json!({ "undo": undo }));
    assert_eq!((redo["state"].as_str(), edited()), (Some("completed"), after));
    // Taken back once more, it is no longer what the first edit left.
    done(&pair, json!({ "undo": text(&redo, "operation") }));
    let (id, message) = refused(&pair, json!({ "undo": edit }));
    assert!(id == "moved-on" && message.starts_with("a "), "{id}: {message}");
    nothing_is_left_behind(&pair.workspace);
}

#[test]
fn only_what_completed_here_and_has_not_moved_on_is_taken_back() {
    let _turn = limit!(90);
    let pair = Pair::started(Host::shared());
    write(&pair, "a", "one\n");
    let command = text(&done(&pair, json!({ "command": "true" })), "operation");
    assert_eq!(refused(&pair, json!({ "undo": command })).0, "not-undoable");
    let nowhere = "op_00000000000070008000000000000000";
    assert_eq!(refused(&pair, json!({ "undo": nowhere })).0, "not-found");
    let denied = pair.propose(json!({ "edits": [replace("a", "one", "two")] }));
    let body = json!({ "comment": "not this file" });
    let answer = pair.http("POST", &format!("/v1/approvals/{}/deny", denied.approval), Some(&body));
    assert_eq!(answer.status, 200);
    assert_eq!(refused(&pair, json!({ "undo": denied.operation })).0, "not-undoable");
    let told = denied.reply().json();
    assert_eq!((text(&told, "state"), text(&told, "comment")), ("denied".into(), "not this file".into()));

    let edit = text(&done(&pair, json!({ "edits": [replace("a", "one", "two")] })), "operation");
    write(&pair, "a", "two\nand more\n");
    let (id, message) = refused(&pair, json!({ "undo": edit }));
    assert!(id == "moved-on" && message.starts_with("a "), "{id}: {message}");
    assert_eq!(read(&pair, "a").as_deref(), Some("two\nand more\n"));
    write(&pair, "a", "two\n");
    let asked = pair.propose(json!({ "undo": edit }));
    write(&pair, "a", "two\nlate\n");
    assert_eq!(pair.grant(&asked.approval, &asked.binding).code, Some(5));
    let stale = pair.events_of("approval.stale", &asked.operation).pop().expect("recorded");
    assert_eq!(stale["data"]["changed"][0]["path"], "a", "{stale}");
    assert_eq!(read(&pair, "a").as_deref(), Some("two\nlate\n"));

    let mut other = Pair::started(Host::shared());
    let there = other.workspace.clone();
    other.with_workspace();
    fs::write(there.join("a"), "one\n").expect("root can write there");
    let shown = other.salaam(&["workspace", "show", &there.display().to_string(), "--json"]).ok().json();
    let first = text(&shown, "workspace");
    let edit = done(&other, json!({ "workspace": first, "edits": [replace("a", "one", "two")] }));
    let (id, _) = refused(&other, json!({ "undo": text(&edit, "operation") }));
    assert_eq!(id, "not-undoable", "in another workspace");
}

#[test]
fn what_no_edit_may_touch_is_refused_before_anybody_is_asked() {
    let _turn = limit!(90);
    let pair = Pair::started_with(Host::shared(), "protected_paths = [\"locked\"]\n");
    write(&pair, "a", "one\n");
    write(&pair, "locked/b", "one\n");
    let outside = pair.workspace.with_extension("outside");
    fs::write(&outside, "one\n").expect("root can write there");
    std::os::unix::fs::symlink(&outside, inside(&pair, "link")).expect("root can");
    fs::hard_link(inside(&pair, "a"), inside(&pair, "second")).expect("root can");
    for (edits, ids) in [
        (json!([{ "path": ".git/hooks/pre-commit", "create": "#!/bin/sh\n" }]), &["protected-path"][..]),
        (json!([{ "path": "sub/.GIT/config", "create": "x" }]), &["protected-path"]),
        (json!([{ "path": ".envrc", "create": "x" }]), &["protected-path"]),
        (json!([replace("locked/b", "one", "two")]), &["protected-path"]),
        (json!([replace("link", "one", "two")]), &["link", "not-regular"]),
        (json!([replace("second", "one", "two")]), &["linked", "several-links", "differs"]),
        (json!([replace("a", "absent", "x")]), &["edit-refused", "linked"]),
        (json!([{ "path": "a", "create": "x" }]), &["edit-refused", "linked"]),
    ] {
        let (id, message) = refused(&pair, json!({ "edits": edits }));
        assert!(ids.contains(&id.as_str()), "{edits}: {id}: {message}");
        assert!(!message.contains("one"), "text of a file is quoted: {message}");
    }
    assert!(pair.pending().is_empty());
    let read_only = pair.post(json!({ "edits": [{ "path": "new", "create": "x" }], "profile": "read-only" })).json();
    assert_eq!(
        (read_only["state"].as_str(), read_only["error"]["id"].as_str()),
        (Some("refused"), Some("profile-read-only"))
    );
    assert_eq!(fs::read_to_string(&outside).expect("it is there"), "one\n");
    fs::remove_file(&outside).expect("it is ours");
}

#[test]
fn hidden_characters_are_flagged_and_shown() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    write(&pair, "a", "one\n");
    let asked = pair.propose(json!({ "edits": [replace("a", "one", "o\u{202e}ne\u{1b}[2J")] }));
    assert_eq!(asked.object["flags"], json!(["hidden-characters"]), "{:#}", asked.object);
    let display = text(&asked.object, "display");
    assert!(display.contains("\\u{202e}") && !display.contains('\u{1b}'), "{display}");
    let plain = pair.propose(json!({ "edits": [replace("a", "one", "two")] }));
    assert_eq!(plain.object["flags"], json!([]));
    for asked in [asked, plain] {
        pair.salaam(&["operation", "cancel", &asked.operation]).ok();
    }
}

#[test]
fn a_detached_question_outlives_the_service_as_it_is_and_one_that_changed_is_stale() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    write(&pair, "a", "one\n");
    write(&pair, "b", "one\n");
    write(&pair, "run.sh", "echo ran > c\n");
    let detached = |mut body: Value| {
        body["detach"] = json!(true);
        pair.propose(body)
    };
    let kept = [
        detached(json!({ "command": "echo ran > d" })),
        detached(json!({ "edits": [replace("a", "one", "two")] })),
        detached(json!({ "argv": ["sh", "run.sh"] })),
    ];
    let moved = detached(json!({ "edits": [replace("b", "one", "two")] }));
    let fed = detached(json!({ "argv": ["cat"], "stdin_base64": "eA==" }));
    let attached = pair.propose(json!({ "command": "true" }));
    for orderly in [false, true] {
        if orderly {
            pair.stop().ok();
        } else {
            pair.service_process().expect("it runs").kill();
        }
        eventually("the service is gone", Duration::from_secs(5), || pair.service_process().is_none().then_some(()));
        write(&pair, "b", "one\nmore\n");
        pair.start_after_kill();
        let pending = eventually("the questions are asked again", Duration::from_secs(10), || {
            let pending = pair.pending();
            (pending.len() == kept.len()).then_some(pending)
        });
        for one in &kept {
            let now = pending.iter().find(|now| now["approval"] == one.approval.as_str()).expect("it is asked");
            for field in ["binding", "bound", "display", "flags", "expires", "requested"] {
                assert_eq!(now[field], one.object[field], "{field}");
            }
        }
        let state = |id: &str| text(&pair.operation(id), "state");
        assert_eq!(state(&moved.operation), "stale");
        assert_eq!(state(&fed.operation), "cancelled", "its input is gone");
        assert_eq!(state(&attached.operation), "cancelled", "whoever asked is gone");
    }
    let stale = pair.events_of("approval.stale", &moved.operation).pop().expect("recorded");
    let changed = stale["data"]["changed"].as_array().expect("a list");
    assert!(changed.iter().any(|one| one["path"].as_str().is_some_and(|path| path.ends_with("/b"))), "{stale}");
    let [command, edit, script] = &kept;
    write(&pair, "run.sh", "echo other > c\n");
    assert_eq!(pair.grant(&script.approval, &script.binding).code, Some(5), "looked at again at dispatch");
    for one in [command, edit] {
        pair.grant(&one.approval, &one.binding).ok();
        assert_eq!(pair.final_state(&one.operation), "completed");
    }
    assert_eq!((read(&pair, "d").as_deref(), read(&pair, "a").as_deref()), (Some("ran\n"), Some("two\n")));
    assert!(!inside(&pair, "c").exists());
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
}

#[test]
fn output_is_followed_while_the_command_runs_and_ends_with_its_receipt() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let command = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last; echo error >&2";
    let asked = pair.propose(json!({ "command": command, "detach": true }));
    pair.grant(&asked.approval, &asked.binding).ok();
    let path = format!("/v1/operations/{}/output?stream=stdout&follow=true", asked.operation);
    let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
    stream.write_all(&http::request("GET", &path, None)).expect("the service reads");
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("first\n") {
        let count = stream.read(&mut buffer).expect("the answer goes on");
        assert_ne!(count, 0, "it ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(text(&pair.operation(&asked.operation), "state"), "dispatched");
    write(&pair, "go", "");
    stream.read_to_end(&mut seen).expect("it ends");
    assert!(String::from_utf8_lossy(&seen).contains("last\n"));
    assert_eq!(text(&pair.operation(&asked.operation), "state"), "completed", "it ended before the receipt");
    let over = pair.http("GET", &path, None);
    assert_eq!(String::from_utf8_lossy(&over.body), "first\nlast\n", "the same once it is over");
}

#[test]
fn open_questions_take_a_bounded_amount_of_memory() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let workspace = pair.workspace_id();
    // 12 MiB each, and what goes with them.
    let body =
        json!({ "workspace": workspace, "argv": ["cat"], "stdin_base64": "AAAA".repeat(4 << 20), "detach": true });
    let request = http::request("POST", "/v1/operations", Some(&body));
    let mut open = Vec::new();
    let refused = loop {
        let mut stream = http::connect(&pair.socket(), LIMIT).expect("the operator socket takes connections");
        stream.write_all(&request).expect("the service reads");
        let asked = open.len() + 1;
        let waiting = eventually("it is asked or refused", Duration::from_secs(20), || {
            let mut probe = [0; 1];
            stream.set_nonblocking(true).expect("it is a socket");
            let answered = stream.read(&mut probe).is_ok_and(|count| count > 0);
            stream.set_nonblocking(false).expect("it is a socket");
            if answered { Some(false) } else { (pair.pending().len() == asked).then_some(true) }
        });
        if !waiting {
            let mut rest = String::new();
            drop(stream.read_to_string(&mut rest));
            break rest;
        }
        open.push(stream);
        assert!(open.len() < 40, "40 questions of 12 MiB are open");
    };
    assert!(refused.contains("too-many-open") && refused.contains("429"), "{refused}");
    assert!(open.len() > 2, "{} were open", open.len());
    let first = pair.pending().pop().expect("they are listed");
    pair.salaam(&["operation", "cancel", &text(&first, "operation")]).ok();
    let again = pair.propose(json!({ "argv": ["cat"], "stdin_base64": "AAAA".repeat(1 << 20), "detach": true }));
    for one in pair.pending() {
        pair.salaam(&["operation", "cancel", &text(&one, "operation")]).ok();
    }
    assert_eq!(pair.final_state(&again.operation), "cancelled");
}
