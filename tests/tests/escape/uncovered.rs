//! What the walls do not cover, shown to be so: a table that says less than is true is no better than one that says
//! more.

use std::{fs, os::unix::fs::PermissionsExt, os::unix::net::UnixListener};

use salaam_tests::{Host, Pair, limit, ran::Ran};

/// One gap.
pub struct Gap {
    /// What a command can do.
    pub name: &'static str,
    /// Python that does it; empty where nothing can be run.
    pub code: &'static str,
    /// What is still denied, and by what.
    pub still: &'static str,
}

#[rustfmt::skip]
pub const TABLE: &[Gap] = &[
    Gap { name: "connect to a socket that lies in the workspace, where another program listens on it", code: "socket.socket(socket.AF_UNIX).connect('lying.sock')", still: "one whose mode excludes the tools user and the work group; keep sockets of services out of workspaces" },
    Gap { name: "write a file that has another name outside the workspace (a hard link that was there before)", code: "open('hard', 'a').write('x')", still: "a file that the tools user may not write: the second account's permissions hold for every name; edits refuse files with more than one name" },
    Gap { name: "read everything that the workspace holds, also keys that were left in it", code: "open('.env').read()", still: "files whose mode excludes the work group; there is no network to send them to, but the answer reaches the model" },
    Gap { name: "change what a person later builds or runs on purpose (Makefile, package scripts, sources)", code: "open('Makefile', 'a').write('x')", still: "what runs unasked: hooks, configuration of git, start-up files of editors and shells" },
    Gap { name: "read the system that every account can read: programs, libraries, account names", code: "open('/etc/passwd').read(); os.listdir('/usr/lib')", still: "writing any of it" },
    Gap { name: "use the memory limit once for each process, where no control group is delegated", code: "kids = [os.fork() for _ in range(2)]", still: "more for one process, or shared, for longer than a moment (it is watched); the kernel ends commands before the executor and the service, and in a sandbox none can change that" },
    Gap { name: "use what another command in the same workspace hands over at the same time: an open file, a connection of one in `full-access`", code: "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); assert socket.recv_fds(b, 1, 1)[1]", still: "anything that would have to be opened by it: files below a directory that is handed over, the other's process (landlock)" },
    Gap { name: "take all inotify instances and pipe pages that the account has, until it ends", code: "for i in range(80): os.pipe()", still: "processes, descriptors, signals and timers of others; other commands run, with small pipes and without watches" },
    Gap { name: "use processors and disks as much as others (niceness 5, no quota)", code: "", still: "running for longer than its time, growing the workspace past its limit" },
    Gap { name: "find an error in the kernel itself, or measure others by shared caches", code: "", still: "the calls that the filter takes away; nothing else stands between two accounts of one kernel" },
    Gap { name: "in `full-access`: all that the tools user can, network and other files included", code: "", still: "credentials, state, operator socket, memory and signals of executor and service, other commands, outliving its end" },
];

#[test]
fn what_is_not_covered_is_as_the_table_says() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let at = &pair.workspace;
    let outside = pair.host.prefix.join("hard-outside");
    fs::write(&outside, "1").expect("root can");
    salaam_tests::host::chown(&outside, &pair.host.tools.name);
    // Both on one file system, or there is nothing to show.
    let linked = fs::hard_link(&outside, at.join("hard")).is_ok();
    let closed = pair.host.prefix.join("hard-closed");
    fs::write(&closed, "1").expect("root can");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o600)).expect("it is ours");
    drop(fs::hard_link(&closed, at.join("closed")));
    let _listener = UnixListener::bind(at.join("lying.sock")).expect("it is new");
    fs::set_permissions(at.join("lying.sock"), fs::Permissions::from_mode(0o777)).expect("it is ours");
    pair.host.write(&at.join(".env"), "KEY=1");
    pair.host.write(&at.join("Makefile"), "all:\n");
    for gap in TABLE.iter().filter(|gap| !gap.code.is_empty()) {
        if gap.code.contains("'hard'") && !linked {
            println!("not shown: {}", gap.name);
            continue;
        }
        let ran = pair.run(&["python3", "-c", &format!("import os, socket\n{}", gap.code)]);
        assert_eq!(ran.code, Some(0), "{}: {ran}", gap.name);
    }
    // The last column of the first rows: another account's file stays closed under every name.
    let ran: Ran = pair.run(&["sh", "-c", "cat closed; echo x >>closed"]);
    assert_ne!(ran.code, Some(0), "{ran}");
    drop((fs::remove_file(outside), fs::remove_file(closed)));
}
