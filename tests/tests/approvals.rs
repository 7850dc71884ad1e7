//! What an operator approved is, byte for byte, what runs, once, in time, and never because of silence.

use std::{fs, time::Duration};

use salaam_tests::{
    Host, Pair, Pending, eventually, limit,
    pair::{inside, text},
    process,
};
use serde_json::json;

#[test]
fn a_grant_must_name_the_binding_that_is_stored() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({"argv": ["echo", "ran"]}));
    let wrong = asked.binding.chars().rev().collect::<String>();
    for binding in [wrong.as_str(), &"0".repeat(64), &asked.binding[..11], &format!("{}0", &asked.binding[..12])] {
        let refused = pair.grant(&asked.approval, binding);
        assert_eq!(refused.code, Some(5), "{refused}");
        assert_eq!(refused.error_id().as_deref(), Some("binding-mismatch"), "{refused}");
    }
    let path = format!("/v1/approvals/{}/grant", asked.approval);
    for body in [json!({}), json!({"binding": ""}), json!({"binding": &asked.binding[..12]})] {
        let reply = pair.http("POST", &path, Some(&body));
        assert!((400..500).contains(&reply.status), "{body} was taken: {}", reply.status);
    }
    assert_eq!(pair.pending().len(), 1, "it still waits");
    assert_eq!(pair.events_of("approval.granted", &asked.operation).len(), 0);
    pair.grant(&asked.approval, &asked.binding[..12]).ok();
    let (operation, reply) = (asked.operation.clone(), asked.reply().json());
    assert_eq!((&reply["state"], &reply["output"]["stdout"]["text"]), (&json!("completed"), &json!("ran\n")));
    assert_eq!(pair.events_of("approval.granted", &operation).len(), 1);
}

#[test]
fn a_second_grant_is_refused_and_runs_nothing() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({"command": "echo once >> f"}));
    let (approval, operation, binding) = (asked.approval.clone(), asked.operation.clone(), asked.binding.clone());
    pair.grant(&approval, &binding).ok();
    assert_eq!(asked.reply().json()["state"], "completed");
    let again = pair.grant(&approval, &binding);
    assert_eq!(again.code, Some(5), "{again}");
    assert_eq!(fs::read_to_string(inside(&pair, "f")).expect("it ran"), "once\n");
    assert_eq!(pair.events_of("operation.dispatched", &operation).len(), 1);
    pair.salaam(&["journal", "verify"]).ok();
}

#[test]
fn a_denial_ends_it_with_who_and_why() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({"command": "echo ran > f"}));
    pair.salaam(&["approval", "deny", &asked.approval, "--comment", "not today"]).ok();
    assert_eq!(pair.final_state(&asked.operation), "denied");
    let event = pair.events_of("approval.denied", &asked.operation).pop().expect("recorded");
    assert_eq!(event["data"]["by"]["uid"], pair.host.service.uid);
    assert!(event["data"].to_string().contains("not today"), "{event}");
    let late = pair.grant(&asked.approval, &asked.binding);
    assert_eq!(late.code, Some(5), "{late}");
    assert!(!inside(&pair, "f").exists());
}

/// A4: a lapse is a lapse, not somebody's no.
#[test]
fn silence_expires_and_never_runs() {
    let _turn = limit!(60);
    let pair = Pair::started_with(Host::shared(), "approval_ttl_seconds = 2\n");
    let asked = pair.propose(json!({"command": "echo ran > f", "detach": true}));
    assert_eq!(pair.final_state(&asked.operation), "expired");
    let late = pair.grant(&asked.approval, &asked.binding);
    assert_eq!(late.code, Some(5), "{late}");
    assert!(late.says("expired"), "{late}");
    assert_eq!(pair.events_of("approval.expired", &asked.operation).len(), 1);
    assert_eq!(pair.events_of("approval.denied", &asked.operation).len(), 0);
    assert_eq!(pair.events_of("operation.dispatched", &asked.operation).len(), 0);
    assert!(!inside(&pair, "f").exists());
}

/// A2: the changed script does not run, whoever changed it and however it is named.
#[test]
fn a_script_that_changed_while_the_question_was_open_is_stale() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let script = inside(&pair, "deploy.sh");
    let cases: [(&str, &str, &str); 5] = [
        ("sh ./deploy.sh", "echo 'echo changed >> ran' > deploy.sh", "in place, by another command"),
        ("./deploy.sh", "printf '#!/bin/sh\\necho changed >> ran\\n' > n; chmod 755 n; mv n deploy.sh", "by rename"),
        ("sh link.sh", "echo 'echo changed >> ran' > deploy.sh", "behind a link"),
        ("sh link.sh", "echo 'echo changed >> ran' > other.sh; ln -sfn other.sh link.sh", "by another link"),
        ("sh ./deploy.sh", "rm deploy.sh", "by taking it away"),
    ];
    for (command, change, how) in cases {
        pair.run(&["sh", "-c", "rm -f deploy.sh link.sh other.sh ran; ln -s deploy.sh link.sh"]).ok();
        pair.host.write(&script, "#!/bin/sh\necho shown >> ran\n");
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o775)).expect("it is ours");
        let asked = pair.propose(json!({"command": command}));
        assert_eq!(
            asked.object["bound"]["files"].as_object().map(serde_json::Map::len),
            Some(1),
            "{how}: {}",
            asked.object
        );
        pair.run(&["sh", "-c", change]).ok();
        let granted = pair.grant(&asked.approval, &asked.binding);
        assert_eq!(granted.code, Some(5), "{how}: {granted}");
        assert_eq!(pair.final_state(&asked.operation), "stale", "{how}");
        let event = pair.events_of("approval.stale", &asked.operation).pop().expect("recorded");
        assert!(event["data"]["changed"].to_string().contains("files"), "{how}: {event}");
        assert_eq!(pair.events_of("operation.dispatched", &asked.operation).len(), 0, "{how}");
        assert!(!inside(&pair, "ran").exists(), "{how}");
    }
    pair.host.write(&script, "echo shown >> ran\n");
    let asked = pair.propose(json!({"command": "sh ./deploy.sh"}));
    pair.grant(&asked.approval, &asked.binding).ok();
    let reply = asked.reply().json();
    assert_eq!(reply["state"], "completed", "an unchanged script does run: {reply:#}");
}

#[test]
fn a_cancelled_question_cannot_be_granted() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({"command": "echo ran > f"}));
    pair.salaam(&["operation", "cancel", &asked.operation]).ok();
    assert_eq!(pair.final_state(&asked.operation), "cancelled");
    assert_eq!(pair.grant(&asked.approval, &asked.binding).code, Some(5));
    assert!(!inside(&pair, "f").exists());
    assert!(pair.pending().is_empty());
}

/// A3: what somebody waited for when the service died is void, with the reason, and its id has a definite answer. What
/// was detached outlives a restart: see the suite `edits`.
#[test]
fn a_restart_voids_what_was_open_and_says_so() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let asked = pair.propose(json!({"command": "echo ran > f"}));
    pair.service_process().expect("it runs").kill();
    eventually("the service is gone", Duration::from_secs(5), || pair.service_process().is_none().then_some(()));
    pair.start_after_kill();
    assert!(pair.pending().is_empty(), "nothing stays pending for ever");
    assert_eq!(text(&pair.operation(&asked.operation), "state"), "cancelled");
    let refused = pair.grant(&asked.approval, &asked.binding);
    assert_eq!(refused.code, Some(5), "{refused}");
    let shown = pair.salaam(&["approval", "show", &asked.approval, "--json"]).ok().json();
    assert_eq!(shown["state"], "cancelled", "{shown:#}");
    let told = pair.events().into_iter().any(|event| {
        event["data"]["operation"] == asked.operation.as_str() && event.to_string().contains("service-restarted")
    });
    assert!(told, "the journal says why");
    assert!(!inside(&pair, "f").exists());
    pair.salaam(&["journal", "verify"]).ok();
}

#[test]
fn who_asks_attached_and_leaves_takes_the_question_along_and_detached_leaves_it() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let detached = pair.propose(json!({"command": "echo ran > f", "detach": true}));
    let attached = pair.propose(json!({"command": "echo ran > g"}));
    let Pending { operation: gone, stream, approval, binding, .. } = attached;
    drop(stream);
    assert_eq!(pair.final_state(&gone), "cancelled");
    let event = pair.events_of("cancel.requested", &gone).pop().expect("recorded");
    assert_eq!(event["data"]["cause"], "client-gone");
    assert_eq!(pair.grant(&approval, &binding).code, Some(5));

    let Pending { operation, stream, approval, binding, .. } = detached;
    drop(stream);
    std::thread::sleep(Duration::from_secs(1));
    let still = pair.pending();
    assert_eq!(still.len(), 1);
    assert_eq!(text(&still[0], "approval"), approval, "the same id, nothing decided");
    pair.grant(&approval, &binding).ok();
    assert_eq!(pair.final_state(&operation), "completed");
    assert!(inside(&pair, "f").exists() && !inside(&pair, "g").exists());
}

#[test]
fn a_caller_that_leaves_ends_its_running_command() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let mut running = pair.run_started(&[], &["sh", "-c", "sleep 300; : client-leaves"]);
    let seen = || pair.commands().into_iter().find(|process| process.words.contains("sleep 300"));
    let process = eventually("it runs", Duration::from_secs(10), seen);
    running.child.kill().expect("it is our child");
    drop(running.child.wait());
    eventually("it is ended", Duration::from_secs(2), || (!process::is_alive(process.pid)).then_some(()));
    let operation =
        pair.events().iter().rfind(|e| e["kind"] == "operation.dispatched").map(|e| text(&e["data"], "operation"));
    assert_eq!(pair.final_state(&operation.expect("it was dispatched")), "cancelled");
}

/// A1: what looks almost the same is another question.
#[test]
fn every_variant_of_a_command_asks_anew() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let texts = [
        "git status",
        "git status && rm -r build",
        "git -c core.pager=x status",
        "GIT_SSH_COMMAND=x git status",
        "git status\nrm -r build",
        "git  status",
        " git status",
        "cd x && git status",
    ];
    let asked: Vec<Pending> = texts.iter().map(|text| pair.propose(json!({"command": text, "detach": true}))).collect();
    for (n, one) in asked.iter().enumerate() {
        assert!(asked[..n].iter().all(|other| other.binding != one.binding), "{}", texts[n]);
        assert_eq!(one.object["bound"]["arguments"]["command"], texts[n], "bound as written");
    }
    let first = &asked[0];
    for other in &asked[1..] {
        assert_eq!(pair.grant(&other.approval, &first.binding).code, Some(5));
    }
    let compound = |n: usize| asked[n].object["flags"].to_string().contains("compound");
    assert!(!compound(0) && compound(1) && compound(4) && compound(7));
}

/// A5: everything can be seen before deciding, and nothing cannot be approved.
#[test]
fn the_whole_of_a_long_command_is_shown() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let lines: String = (0..400).map(|n| format!("line {n}\n")).collect();
    let document = format!("cat <<'END'\n{lines}END\n");
    let asked = pair.propose(json!({"command": document, "detach": true}));
    let display = text(&asked.object, "display");
    assert!((0..400).all(|n| display.contains(&format!("line {n}\n"))), "{display}");
    let long = format!("echo {}; rm -r everything-of-mine", "a".repeat(10_000));
    let asked = pair.propose(json!({"command": long, "detach": true}));
    assert!(text(&asked.object, "display").contains("; rm -r everything-of-mine"));
    let shown = pair.salaam(&["approval", "show", &asked.approval]).ok();
    assert!(shown.out().contains("; rm -r everything-of-mine") && shown.says(&asked.binding[..12]), "{shown}");
}

#[test]
fn an_empty_command_is_refused_before_anybody_is_asked() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    for body in
        [json!({"argv": []}), json!({"argv": [""]}), json!({"command": ""}), json!({"command": " \n\t"}), json!({})]
    {
        let reply = pair.post(body.clone());
        assert!((400..500).contains(&reply.status), "{body}: {}", reply.status);
        assert!(reply.error_id().is_some() && reply.json()["error"]["fix"].is_string(), "{body}");
    }
    assert_eq!(pair.run(&[""]).code, Some(125));
    let reply = pair.post(json!({"argv": ["echo"], "command": "echo"}));
    assert!((400..500).contains(&reply.status), "one of the two, not both");
    assert!(pair.pending().is_empty());
}

/// A6: what hides, moves the cursor or turns the text round is shown as what it is, and flagged.
#[test]
fn hidden_characters_are_shown_escaped_and_flagged_and_run_as_they_are() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let hidden = format!("printf %s 'a\u{202e}b\u{200b}c\rd\u{1b}[2Ke{}f```g' | od -An -c", " ".repeat(600));
    let asked = pair.propose(json!({"command": hidden}));
    let display = text(&asked.object, "display");
    for shown in ["\\u{202e}", "\\u{200b}", "\\r", "\\e[2K", "600 blanks", "```"] {
        assert!(display.contains(shown), "{shown} in {display}");
    }
    assert!(!display.chars().any(|c| matches!(c, '\u{202e}' | '\u{200b}' | '\r' | '\u{1b}')), "{display:?}");
    assert!(asked.object["flags"].to_string().contains("hidden-characters"), "{}", asked.object);
    let printed = pair.salaam(&["approval", "show", &asked.approval]).ok();
    assert!(!printed.stdout.contains(&0x1b) && !printed.out().contains('\u{202e}'), "{printed}");
    let argv = pair.propose(json!({"argv": ["echo", "\u{2066}x"], "detach": true}));
    assert!(argv.object["flags"].to_string().contains("hidden-characters"));
    pair.grant(&asked.approval, &asked.binding).ok();
    let output = asked.reply().json()["output"]["stdout"]["text"].as_str().expect("text").to_owned();
    assert!(output.contains("033") && output.contains("\\r"), "the bytes themselves ran: {output}");
}

#[test]
fn the_binding_is_the_hash_of_what_is_served() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    pair.host.write(&inside(&pair, "s.sh"), "echo s\n");
    let asked = pair.propose(json!({"argv": ["sh", "s.sh", "\u{1f600}"], "detach": true}));
    let canonical = salaam_core::canon::digest(&asked.object["bound"]).expect("it has a canonical form");
    assert_eq!(canonical.to_string(), asked.binding);
    let requested = pair.events_of("approval.requested", &asked.operation).pop().expect("recorded");
    assert_eq!(requested["data"]["bound"], asked.object["bound"], "the journal has all that was bound");
    let bound = &asked.object["bound"];
    assert_eq!(bound["operation"], asked.operation.as_str());
    assert_eq!(bound["workspace"]["path"], pair.workspace.display().to_string());
    assert_eq!(bound["policy"]["isolation"], "tools-user-bubblewrap");
    assert_eq!(bound["policy"]["manifest"], pair.health()["manifest"]);
    assert_eq!(bound["expires"], asked.object["expires"]);
}

/// Without `--yes` and without a terminal the line to grant is printed, and nothing runs until somebody does.
#[test]
fn run_without_yes_prints_the_grant_line_and_waits() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let mut command = pair.command_as(&pair.host.service);
    command.args(["run", "--workspace"]).arg(&pair.workspace).args(["--", "echo", "ran"]);
    let running = salaam_tests::ran::Started::new(&mut command, b"");
    let asked = eventually("it asks", Duration::from_secs(10), || pair.pending().pop());
    let (approval, binding) = (text(&asked, "approval"), text(&asked, "binding"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pair.pending().len(), 1);
    pair.grant(&approval, &binding).ok();
    let ran = running.wait(Duration::from_secs(20)).ok();
    assert_eq!(ran.out(), "ran\n");
    assert!(ran.err().contains(&format!("salaam approval grant {approval} --binding {}", &binding[..12])), "{ran}");
}

#[test]
fn the_same_request_id_is_the_same_operation() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let body = json!({"command": "echo once >> f", "grant": true, "request_id": "r-1"});
    let first = pair.post(body.clone()).json();
    let second = pair.post(body).json();
    assert_eq!((&first["state"], &first["operation"]), (&json!("completed"), &second["operation"]));
    assert_eq!(fs::read_to_string(inside(&pair, "f")).expect("it ran"), "once\n");
    let other = pair.post(json!({"command": "echo twice >> f", "grant": true, "request_id": "r-1"}));
    assert!((400..500).contains(&other.status), "another body under the same id is refused: {}", other.status);
}
