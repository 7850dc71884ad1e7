//! What could hold a reader up, fill it, or kill it.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use salaam_tests::{Host, eventually, limit, process::is_alive};
use serde_json::{Value, json};

use crate::asker::{Asker, Over};

/// The exit code of timeout(1).
const TIMED_OUT: Option<i32> = Some(124);

#[test]
fn fifos_devices_and_sockets_are_never_opened() {
    let _turn = limit!(60);
    let mut asker = Asker::new("special");
    asker.root("mkfifo -m 666 fifo; mknod -m 666 zero c 1 5; mknod -m 666 null c 1 3; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"");
    assert_eq!(asker.plain("cat fifo").code, TIMED_OUT);
    assert_eq!(asker.plain("cat zero | grep -c x").code, TIMED_OUT);
    for path in ["fifo", "zero", "null", "socket"] {
        assert_eq!(asker.refused(path), "not-regular", "{path}");
        assert_eq!(asker.ask(json!({"do": "whole", "path": path}))["refused"], "not-regular", "{path}");
        symlink(path, asker.workspace.join(format!("to-{path}"))).expect("it is new");
        assert_eq!(asker.refused(&format!("to-{path}")), "not-regular", "{path}");
    }
    // An ignore file is a file that is read unasked.
    asker.root("mkfifo -m 666 .gitignore; mknod -m 666 .ignore c 1 5; echo hit >x; chmod 644 x");
    assert_eq!(asker.search("hit")["matches"], json!([["x", 1, "hit"]]));
    assert_eq!(asker.ask(json!({"do": "search", "pattern": "x", "path": "fifo"}))["refused"], "not-regular");
}

#[test]
fn a_lease_is_not_waited_for() {
    let _turn = limit!(60);
    let host = Host::shared();
    let mut asker = Asker::new("lease");
    asker.write("held", "x\n");
    asker.root(&format!("chown {} held", host.tools.name));
    let path = asker.workspace.join("held");
    // F_SETLEASE is 1024, F_WRLCK 1; the signal that asks for it back is ignored.
    let script = "import fcntl, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN)
f = open(sys.argv[1]); fcntl.fcntl(f, 1024, 1); print('held', flush=True); sys.stdin.read()";
    let mut holder = host
        .tools
        .command("python3")
        .args(["-c", script])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there");
    let mut said = [0; 5];
    holder.stdout.as_mut().expect("piped").read_exact(&mut said).expect("it holds the lease");
    assert_eq!(asker.refused("held"), "busy");
    assert_eq!(asker.plain("cat held").code, TIMED_OUT);
    assert_eq!(asker.refused("held"), "busy");
    assert_eq!(asker.search("x")["closed"], 1);
    end(&mut holder);
    assert_eq!(asker.read("held")["text"], "x\n");
}

fn end(child: &mut Child) {
    drop(child.kill());
    drop(child.wait());
}

#[test]
fn a_file_of_a_terabyte_of_nothing_is_read_as_far_as_files_are() {
    let _turn = limit!(120);
    let mut asker = Asker::new("sparse");
    asker.root("truncate -s 1T big; chmod 644 big; (echo hit; echo hit) >text; truncate -s 1T text; chmod 644 text");
    assert_eq!(asker.plain("cat big | grep -c x").code, TIMED_OUT);
    let read = asker.read("big");
    assert_eq!((&read["binary"], &read["more"], &read["total"]), (&json!(true), &json!(true), &Value::Null), "{read}");
    assert_eq!(asker.ask(json!({"do": "read", "path": "text", "most": 2}))["text"], "hit\nhit\n");
    assert_eq!(asker.ask(json!({"do": "read", "path": "text", "from": 4}))["refused"], "too-large");
    assert_eq!(asker.ask(json!({"do": "whole", "path": "big", "most": 16 << 20}))["refused"], "too-large");
    let found = asker.search("hit");
    assert_eq!((&found["binary"], &found["next"]), (&json!(2), &Value::Null), "{found}");
}

#[test]
fn a_file_that_shrinks_and_grows_while_it_is_read_kills_nothing() {
    let _turn = limit!(120);
    let mut asker = Asker::new("truncate");
    let content = "0123456789abcde\n".repeat(768 << 10);
    asker.write("moving", &content);
    let path = asker.workspace.join("moving");
    // Plain code that maps it dies.
    let mapped = asker.plain(
        "python3 -c 'import mmap, os
f = os.open(\"moving\", os.O_RDWR); m = mmap.mmap(f, 0); os.ftruncate(f, 0); print(m[0])'",
    );
    assert_eq!(mapped.signal.or(mapped.code.map(|code| code - 128)), Some(7), "SIGBUS: {mapped}");
    let reader = {
        asker.read("moving");
        asker.reader().pid
    };
    let over = AtomicBool::new(false);
    let mut states = BTreeSet::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
                file.set_len(0).expect("it shrinks");
                file.write_all(content.as_bytes()).expect("it grows");
            }
        });
        let _over = Over(&over);
        for round in 0..150 {
            let answer = match round % 3 {
                0 => asker.ask(json!({"do": "whole", "path": "moving", "most": 16 << 20})),
                1 => asker.ask(json!({"do": "read", "path": "moving", "from": 60_000})),
                _ => asker.search("nothing"),
            };
            assert!(answer["error"].is_null(), "round {round}: {answer}");
            if let Some(text) = answer["text"].as_str().filter(|_| round % 3 == 0) {
                assert!(content.starts_with(text), "round {round}: no state of the file");
            }
            states.insert((
                answer["refused"].to_string(),
                answer["size"].as_u64(),
                answer["text"].as_str().map(str::len),
            ));
        }
    });
    assert!(states.len() > 3, "it hardly changed under the reader: {states:?}");
    assert_eq!(asker.reader().pid, reader, "the same reader all the time");
}

#[test]
fn a_pattern_made_to_explode_does_not() {
    let _turn = limit!(240);
    let mut asker = Asker::new("bombs");
    let line = "x".repeat(4000) + "\n";
    asker.write("x", line.repeat(8000));
    let backtracking = "python3 -c 'import re; re.search(\"(x+x+)+y\", \"x\" * 40)'";
    assert_eq!(asker.plain(backtracking).code, TIMED_OUT);
    asker.read("x");
    let reader = asker.reader().pid;
    for pattern in [
        "(x+x+)+y",
        "(x*)*y",
        "(x|x)*y",
        "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)y",
        "(x?){200}x{200}y",
        "x{0,900}x{0,900}x{0,900}y",
        r"(\w{1,30}\s?){1,30}y",
        r"(?i)(x|X|\pL){1,90}[^\pL]y",
    ] {
        let (mut answer, mut pages) = (asker.search(pattern), 1);
        assert!(answer["error"].is_null(), "{pattern}: {answer}");
        while !answer["next"].is_null() && pages < 3 {
            let next = answer["next"].clone();
            answer = asker.ask(json!({"do": "search", "pattern": pattern, "after": next}));
            assert!(answer["error"].is_null(), "{pattern}: {answer}");
            assert_ne!(answer["next"], next, "{pattern}: a page goes on");
            pages += 1;
        }
    }
    for pattern in ["((x{1,100}){1,100}){1,100}", r"\pL{900}", &"(".repeat(1000), &"x".repeat(1024), &"[".repeat(900)] {
        let answer = asker.search(pattern);
        assert!(answer["error"].is_null(), "{pattern}: {answer}");
    }
    assert_eq!(asker.reader().pid, reader, "none of them cost a reader");
}

#[test]
fn a_hundred_thousand_files_are_listed_and_searched_page_by_page() {
    let _turn = limit!(240);
    const FILES: usize = 100_000;
    let mut asker = Asker::new("many");
    // Names are what there are many of; most are links to two files, of which each takes 65,000.
    asker.root("setfacl -bk . && chmod 755 .");
    let name = |number: usize| asker.workspace.join(format!("f{number:06}"));
    for number in 0..FILES {
        match number {
            _ if number % 10_000 == 7 => fs::write(name(number), "hit\n").expect("there is room"),
            0 | 50_000 => fs::write(name(number), "x\n").expect("there is room"),
            _ => fs::hard_link(name(number / 50_000 * 50_000), name(number)).expect("there is room"),
        }
    }
    let (mut names, mut after) = (Vec::new(), Value::Null);
    loop {
        let page = asker.ask(json!({"do": "list", "after": after, "most": 1000}));
        names.extend(page["names"].as_array().unwrap_or_else(|| panic!("{page}")).clone());
        if page["more"] == false {
            break;
        }
        after = names.last().expect("a page has names").clone();
    }
    let expected: Vec<Value> = (0..FILES).map(|number| json!(format!("f{number:06}"))).collect();
    assert!(names == expected, "each name once, in order: {} of them", names.len());
    let (mut matches, mut after, mut files) = (Vec::new(), Value::Null, 0);
    loop {
        let page = asker.ask(json!({"do": "search", "pattern": "hit", "after": after, "most": 3}));
        matches.extend(page["matches"].as_array().unwrap_or_else(|| panic!("{page}")).clone());
        files += page["files"].as_u64().expect("a number");
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    let expected: Vec<Value> = (0..10).map(|n| json!([format!("f{:06}", n * 10_000 + 7), 1, "hit"])).collect();
    assert_eq!(matches, expected);
    assert!(files >= u64::try_from(FILES).expect("small"), "{files}");
}

#[test]
fn deep_trees_and_names_of_any_bytes_are_walked() {
    let _turn = limit!(120);
    let mut asker = Asker::new("deep");
    asker.root(
        "python3 -c '
import os
os.umask(0o022)
open(b\"\\xff\\xfe\", \"w\").write(\"hit\")
open(b\"new\\nline\", \"w\").write(\"hit\")
for n in range(3000):
    os.mkdir(\"d\"); os.chdir(\"d\")
open(\"bottom\", \"w\").write(\"hit\")'",
    );
    let found = asker.search("hit");
    let shown = |bytes: &[u8]| salaam_core::show::line(bytes);
    assert_eq!(
        found["matches"],
        json!([
            [shown(b"new\nline"), 1, "hit"],
            [shown(std::ffi::OsStr::from_bytes(b"\xff\xfe").as_bytes()), 1, "hit"]
        ])
    );
    assert_eq!((&found["deep"], &found["next"]), (&json!(1), &Value::Null));
    let listed = asker.ask(json!({"do": "list", "path": "d/".repeat(500).trim_end_matches('/')}));
    assert_eq!(listed["names"], json!(["d"]), "{listed}");
    let deeper = ["d"; 1500].join("/");
    assert_eq!(asker.ask(json!({"do": "list", "path": deeper}))["refused"], "steps");
}

#[test]
fn a_reader_that_dies_is_replaced_and_its_question_is_not_asked_again() {
    let _turn = limit!(120);
    let mut asker = Asker::new("death");
    asker.write("x", "x\n");
    assert_eq!(asker.read("x")["text"], "x\n");
    let first = asker.reader();
    first.kill();
    eventually("its end", Duration::from_secs(5), || (!is_alive(first.pid)).then_some(()));
    assert_eq!(asker.read("x")["text"], "x\n", "it died while nobody asked");
    assert_ne!(asker.reader().pid, first.pid);
    // Killed with a question; how long that takes to arrive is the scheduler's.
    let lost = (1..20).any(|attempt| {
        let reader = asker.reader();
        signal(reader.pid, Signal::SIGSTOP);
        asker.send(json!({"do": "read", "path": "x"}));
        thread::sleep(Duration::from_millis(100 * attempt));
        reader.kill();
        asker.answer()["error"] == "reader-lost"
    });
    assert!(lost, "no reader ever died of its question");
    assert_eq!(asker.read("x")["text"], "x\n");
    // One that is late is ended.
    let third = asker.reader();
    signal(third.pid, Signal::SIGSTOP);
    assert_eq!(asker.read("x")["error"], "time");
    eventually("its end", Duration::from_secs(5), || (!is_alive(third.pid)).then_some(()));
    assert_eq!(asker.read("x")["text"], "x\n");
}

#[test]
fn a_reader_ends_with_the_service() {
    let _turn = limit!(60);
    let mut asker = Asker::new("orphan");
    asker.write("x", "x\n");
    asker.read("x");
    let reader = asker.reader();
    signal(reader.pid, Signal::SIGSTOP);
    asker.child.kill().expect("it is ours");
    eventually("its end", Duration::from_secs(5), || (!is_alive(reader.pid)).then_some(()));
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is running");
}
