//! The executor as if the service were hostile, and strangers who start it themselves: it serves nobody but the
//! account that made the bridge, ends with the bridge, and is unmoved by what it cannot read.

use std::time::{Duration, Instant};

use salaam_tests::{Account, Host, eventually, limit, process::Process, ran::Ran};

/// Makes a socketpair as the account that it runs as, starts the executor through sudo on one end, and speaks
/// on the other. Prints what it read first, and how the executor ended.
const SPEAKER: &str = r#"
import os, socket, struct, subprocess, sys, time
tools, toolsd, what = sys.argv[1:4]
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
start = ["sudo", "-n", "-u", tools, "--", toolsd] if tools != "-" else [toolsd]
child = subprocess.Popen(start + sys.argv[4:], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
theirs.close()
ours.settimeout(8)
try: hello = ours.recv(16)
except OSError: hello = b""
print(repr(hello))
answer = lambda magic, version: ours.sendall(magic + struct.pack("<I", version))
good = lambda: answer(b"SALAAMSERVIC", int.from_bytes(hello[12:16], "little"))
frame = lambda kind, stream, body: len(body).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + body
preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
try:
    if what == "wrong-magic": answer(b"SALAAMSERVER", 1)
    if what == "wrong-version": answer(b"SALAAMSERVIC", 99)
    if what == "half-an-answer": ours.sendall(b"SALAAM"); ours.shutdown(socket.SHUT_WR)
    if what == "nothing": ours.shutdown(socket.SHUT_WR)
    if what == "hang-up": ours.close()
    if what == "garbage": good(); ours.sendall(os.urandom(1 << 20))
    if what == "no-http2": good(); ours.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    if what == "huge-frame": good(); ours.sendall(preface + frame(4, 0, b"") + (0xffffff).to_bytes(3, "big") + b"\0\0\0\0\0\1" + b"x" * (1 << 20))
    if what == "bad-order": good(); ours.sendall(preface + frame(4, 0, b"") + frame(0, 1, b"data before headers"))
    if what == "idle": good(); time.sleep(1); ours.close()
    if what == "flood":
        good(); ours.sendall(preface + frame(4, 0, b""))
        for n in range(20000): ours.sendall(frame(6, 0, b"12345678"))
except OSError as e:
    print("cut off:", e)
if what not in ("hang-up", "idle"):
    time.sleep(0.2)
    try: ours.shutdown(socket.SHUT_WR)
    except OSError: pass
    while True:
        try:
            if not ours.recv(1 << 16): break
        except OSError: break
ours.close()
try: out, err = child.communicate(timeout=10)
except subprocess.TimeoutExpired: print("STILL THERE"); child.kill(); sys.exit(1)
print("code", child.returncode)
sys.stderr.write(err.decode(errors="replace"))
"#;

fn speak(account: &Account, tools: &str, what: &str, arguments: &[&str]) -> (Option<i32>, Ran) {
    let toolsd = Host::shared().libexec().join("salaam-toolsd");
    let mut command = account.command("/usr/bin/python3");
    command.args(["-c", SPEAKER, tools]).arg(toolsd).arg(what).args(arguments);
    let ran = Ran::with_input(&mut command, b"", Duration::from_secs(40));
    let code = ran.out().lines().find_map(|line| line.strip_prefix("code ")?.parse().ok());
    (code, ran)
}

fn nobody_left(host: &Host) {
    eventually("no executor is left", Duration::from_secs(3), || {
        Process::of_uid(host.tools.uid).is_empty().then_some(())
    });
}

#[test]
fn an_executor_says_hello_and_ends_with_its_bridge() {
    let _turn = limit!(60);
    let host = Host::shared();
    let start = Instant::now();
    let (code, ran) = speak(&host.service, &host.tools.name, "idle", &[]);
    assert!(ran.out().starts_with("b'SALAAMTOOLSD"), "{ran}");
    assert_eq!(code, Some(0), "the end of the bridge is a normal end: {ran}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    nobody_left(host);
}

#[test]
fn whoever_does_not_answer_as_the_service_does_is_left() {
    let _turn = limit!(120);
    let host = Host::shared();
    for what in ["wrong-magic", "wrong-version", "half-an-answer", "nothing", "hang-up"] {
        let (code, ran) = speak(&host.service, &host.tools.name, what, &[]);
        assert!(code.is_some_and(|code| (64..=78).contains(&code)), "{what}: {ran}");
        assert!(ran.err().contains("salaam-toolsd"), "{what}: it says why: {ran}");
        nobody_left(host);
    }
    let (_, ran) = speak(&host.service, &host.tools.name, "wrong-version", &[]);
    let ours = format!("speaks {}", salaam_core::bridge::VERSION);
    assert!(ran.err().contains("99") && ran.err().contains(&ours), "both versions are named: {ran}");
}

#[test]
fn what_is_no_call_ends_the_bridge_and_nothing_else() {
    let _turn = limit!(180);
    let host = Host::shared();
    for what in ["garbage", "no-http2", "huge-frame", "bad-order", "flood"] {
        let (code, ran) = speak(&host.service, &host.tools.name, what, &[]);
        assert!(code.is_some(), "{what}: it did not end: {ran}");
        assert!(!ran.says("panicked"), "{what}: {ran}");
        nobody_left(host);
    }
}

/// A process of the tools user that starts the executor itself has no service behind it.
#[test]
fn an_executor_serves_only_the_account_that_may_call_it() {
    let _turn = limit!(60);
    let host = Host::shared();
    let toolsd = host.libexec().join("salaam-toolsd");
    for account in [&host.tools, &host.stranger, &host.operator] {
        for forged in [host.service.uid, account.uid, 0] {
            let mut command = account.command("/usr/bin/python3");
            command.args(["-c", SPEAKER, "-"]).arg(&toolsd).arg("idle").env("SUDO_UID", forged.to_string());
            let ran = Ran::with_input(&mut command, b"", Duration::from_secs(40));
            let code: Option<i32> = ran.out().lines().find_map(|line| line.strip_prefix("code ")?.parse().ok());
            // An account may be its own executor (service-user mode), but never as somebody whom it names.
            if forged != account.uid {
                assert!(code.is_some_and(|code| (64..=78).contains(&code)), "{} as {forged}: {ran}", account.name);
            }
        }
    }
    let by_hand = Ran::of(&mut host.service.command(&toolsd));
    assert!(by_hand.code.is_some_and(|code| (64..=78).contains(&code)), "no bridge: {by_hand}");
    let as_root = Ran::of(&mut std::process::Command::new(&toolsd));
    assert!(as_root.code.is_some_and(|code| (64..=78).contains(&code)), "root: {as_root}");
    let argument = Ran::of(host.service.command(&toolsd).arg("--help"));
    assert!(argument.code.is_some_and(|code| (64..=78).contains(&code)), "an argument: {argument}");
}

/// The claim is the kernel's, not a variable's: the tools user cannot pose as the executor of a service, for
/// there is no path to connect to, and no other process has the other end.
#[test]
fn a_running_executor_cannot_be_read_traced_or_stopped_from_a_command() {
    let _turn = limit!(60);
    let host = Host::shared();
    let pair = salaam_tests::Pair::started(host);
    let toolsd = pair.executors().pop().expect("it runs").pid;
    let attack = format!(
        "for f in environ mem maps fd/0 root cwd; do cat /proc/{toolsd}/$f >/dev/null 2>&1 && echo read-$f; done; \
         kill -STOP {toolsd} 2>/dev/null && echo stopped; kill -9 {toolsd} 2>/dev/null && echo killed; \
         prlimit --pid {toolsd} --nofile=1 2>/dev/null && echo limited; ls /proc | grep -c '^[0-9]'"
    );
    // Outside the sandbox the same account can signal it; that is why the process namespace is there.
    let outside = Ran::of(host.tools.command("kill").args(["-0", &toolsd.to_string()]));
    assert_eq!(outside.code, Some(0), "the attack works without the layer: {outside}");
    let ran = pair.run(&["sh", "-c", &attack]).ok();
    let out = ran.out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 1, "{ran}");
    assert!(lines[0].parse::<u32>().is_ok_and(|count| count < 12), "only its own processes are seen: {ran}");
    assert!(salaam_tests::process::is_alive(toolsd));
    for part in ["environ", "mem", "maps"] {
        let ran = Ran::of(host.tools.command("head").args(["-c", "1", &format!("/proc/{toolsd}/{part}")]));
        assert_ne!(ran.code, Some(0), "not dumpable, so its {part} is not even its own account's: {ran}");
    }
}
