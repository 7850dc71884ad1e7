//! Who is served, by the kernel's word, with real processes of other accounts.

use std::process::Command;

use super::*;

const STRANGER: u32 = 64_320;
const GROUP: u32 = 64_321;

#[test]
fn the_owner_is_served_by_name() {
    let stage = Stage::new();
    let (status, who) = stage.ask("GET", "/v1/who", "", b"");
    let uid = nix::unistd::geteuid().as_raw();
    let name = users::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned());
    assert_eq!(status, 200);
    assert_eq!(
        who,
        json!({"uid": uid, "pid": std::process::id(), "principal": name.unwrap_or(uid.to_string()), "via": "operator-socket"})
    );
}

#[test]
fn the_modes_keep_strangers_out_before_they_connect() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let outcome = curl(&stage, STRANGER, STRANGER, None, &["/v1/who"]);
    assert_eq!(outcome, (String::new(), false));
}

/// With the modes taken away the kernel's word alone still keeps them out.
#[test]
fn a_stranger_who_reaches_the_socket_is_told_who_it_is_whose_it_is_and_both_fixes() {
    if !is_root() {
        return;
    }
    for group in [None, Some(GROUP)] {
        let stage = Stage::with_group(group);
        wide_open(&stage);
        let (body, answered) = curl(&stage, STRANGER, STRANGER, None, &["/v1/who"]);
        assert!(answered);
        let answer = (403, serde_json::from_str(&body).unwrap());
        let (_, id, message) = error_of(&answer);
        assert_eq!(id, "not-an-operator");
        assert!(message.contains("64320 (uid 64320)") && message.contains("root's (uid 0)"), "{message}");
        let fix = answer.1["error"]["fix"].as_str().unwrap();
        assert!(fix.contains("sudo -u root salaam"), "{fix}");
        match group {
            Some(_) => assert!(fix.contains("usermod -aG 64321 64320"), "{fix}"),
            None => assert!(fix.contains("--operators-group"), "{fix}"),
        }
        stage.is_well();
    }
}

#[test]
fn a_strangers_garbage_and_floods_reach_nothing() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    wide_open(&stage);
    let big = stage.scratch.0.join("big");
    std::fs::write(&big, vec![b'x'; 8 << 20]).unwrap();
    std::fs::set_permissions(&big, std::fs::Permissions::from_mode(0o644)).unwrap();
    let upload = format!("@{}", big.display());
    let (body, _) = curl(&stage, STRANGER, STRANGER, None, &["/v1/operations", "--data-binary", &upload]);
    assert!(body.contains("not-an-operator"), "{body}");
    stage.is_well();
}

#[test]
fn members_are_admitted_by_primary_and_by_supplementary_group_and_others_are_not() {
    if !is_root() {
        return;
    }
    let stage = Stage::with_group(Some(GROUP));
    for (gid, supplementary) in [(GROUP, None), (STRANGER, Some(GROUP))] {
        let (body, answered) = curl(&stage, STRANGER, gid, supplementary, &["/v1/who"]);
        let who: Value = serde_json::from_str(&body).unwrap();
        assert!(answered);
        assert_eq!((&who["uid"], &who["principal"]), (&json!(STRANGER), &json!("64320")));
    }
    assert!(!curl(&stage, STRANGER, STRANGER, Some(GROUP + 1), &["/v1/who"]).1, "another group opens the socket");
}

fn wide_open(stage: &Stage) {
    std::fs::set_permissions(&stage.scratch.0, std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::set_permissions(stage.scratch.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
}

/// A request of another account; the body of the answer, and whether there was one.
fn curl(stage: &Stage, uid: u32, gid: u32, group: Option<u32>, rest: &[&str]) -> (String, bool) {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={gid}")]);
    match group {
        Some(group) => command.arg(format!("--groups={group}")),
        None => command.arg("--clear-groups"),
    };
    let (path, options) = rest.split_first().unwrap();
    command.args(["curl", "-q", "--silent", "--max-time", "10", "--unix-socket"]).arg(stage.scratch.socket());
    command.args(options).arg(format!("http://salaam{path}"));
    let output = command.output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), !output.stdout.is_empty())
}
