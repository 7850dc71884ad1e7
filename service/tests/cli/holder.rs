//! `service status` and `stop` against a process that has the state lock of another version of Salaam.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::{
    fake::{Fake, workspaces},
    ran, text,
};

/// Takes the lock as it is fixed for all versions: an open file description lock on byte 0, a POSIX lock on
/// byte 1, and who it is in the file. It ends at SIGTERM.
const OLD_SERVICE: &str = r#"
import fcntl, json, os, struct, sys, time
lock = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
flock = lambda byte: struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
fcntl.fcntl(lock, 37, flock(0))
fcntl.fcntl(lock, fcntl.F_SETLK, flock(1))
os.write(lock, json.dumps({"pid": os.getpid(), "version": "0.0.1"}).encode())
print("locked", flush=True)
time.sleep(60)
"#;

fn old_service(fake: &Fake) -> Child {
    let state = fake.dir.join("state");
    std::fs::create_dir(&state).unwrap();
    let mut child =
        Command::new("python3").args(["-c", OLD_SERVICE]).arg(&state).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "locked\n");
    child
}

#[test]
fn an_old_service_is_found_and_stopped_by_its_lock() {
    let fake = Fake::serving(|asked, reply| match asked.what.as_str() {
        "GET /v1/health" => reply.json(200, &json!({"status": "ok", "odd": [1]})),
        _ => reply.json(404, &workspaces("/".as_ref())),
    });
    let mut child = old_service(&fake);
    let out = ran(&fake, "service status --json");
    let status: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((status["pid"].as_u64(), status["version"].as_str()), (Some(child.id().into()), Some("0.0.1")));
    assert_eq!((status["answers"].as_bool(), status["client_version"].as_str()), (Some(true), Some("0.1.0")));
    let shown = text(&ran(&fake, "service status").stdout);
    assert!(shown.contains("0.0.1 (this program: 0.1.0)"), "{shown}");

    // Reaped at once, as whoever started a service does: then the lock's holder is gone for everybody.
    let pid = child.id();
    let reaping = std::thread::spawn(move || child.wait().unwrap());
    let out = ran(&fake, "service stop");
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), format!("stopped (pid {pid})\n")));
    assert!(!reaping.join().unwrap().success());
    assert_eq!(ran(&fake, "service stop").status.code(), Some(6));
}

#[test]
fn a_service_that_has_the_lock_and_does_not_answer_is_running_and_its_journal_is_left_alone() {
    let fake = Fake::absent();
    let mut child = old_service(&fake);
    let out = ran(&fake, "service status --json");
    let status: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((status["running"].as_bool(), status["answers"].as_bool()), (Some(true), Some(false)));
    assert_eq!(out.status.code(), Some(1));
    for words in ["journal verify", "journal export"] {
        let out = ran(&fake, words);
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains("does not answer"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ran(&fake, "service status").status.code(), Some(6));
    assert_eq!(ran(&fake, "journal verify").status.code(), Some(4));
}
