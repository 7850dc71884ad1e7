//! Ways out of a command, each tried as the tools user outside first, where it must work, and then inside,
//! where it must not; and what a command may leave behind to hurt the next.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use salaam_tests::{
    Host, Pair, eventually, limit,
    process::Process,
    ran::{self, Ran},
};
use serde_json::Value;

/// One way out.
struct Attack {
    /// What must not happen.
    name: &'static str,
    /// Python that does it, or raises.
    code: &'static str,
    /// Whether it works outside the sandbox: there it is a proof that the attempt itself is sound.
    outside: bool,
}

const fn works(name: &'static str, code: &'static str) -> Attack {
    Attack { name, code, outside: true }
}

/// Where nothing like the target is outside.
const fn inside_only(name: &'static str, code: &'static str) -> Attack {
    Attack { name, code, outside: false }
}

#[rustfmt::skip]
const ATTACKS: &[Attack] = &[
    // Files.
    works("a file outside is read", "open(SECRET).read()"),
    works("a file outside is written", "open(SECRET, 'a').write('x')"),
    works("a file outside is read through a link in the workspace", "os.symlink(SECRET, 'way'); open('way').read()"),
    works("a file outside gets a name in the workspace", "os.link(SECRET, 'hard')"),
    works("the way up leads out", "open('../' * 20 + SECRET).read()"),
    works("/proc/self/root leads out", "open('/proc/self/root' + SECRET).read()"),
    works("another process's root leads out", "open(f'/proc/{VICTIM}/root' + SECRET).read()"),
    works("the home of the account is written", "open(HOME + '/.profile', 'a').write('x')"),
    works("shared memory is left for later", "open('/dev/shm/' + TAG, 'w'); os.stat('/dev/shm/' + TAG); outlives('/dev/shm/' + TAG)"),
    works("/tmp is shared with others", "open('/tmp/' + TAG, 'w'); outlives('/tmp/' + TAG)"),
    inside_only("init's root leads out", "open('/proc/1/root' + SECRET).read()"),
    inside_only("the system is written", "open('/usr/bin/' + TAG, 'w')"),
    inside_only("accounts are added", "open('/etc/passwd', 'a')"),
    inside_only("launch is replaced", "open('/.salaam/launch', 'r+')"),
    // Other processes of the same account.
    works("a process outside is signalled", "os.kill(VICTIM, 0)"),
    works("a process outside is held", "os.pidfd_open(VICTIM)"),
    works("a process outside is traced", "call(101, 0x4206, VICTIM, 0, 0)"),
    works("a process outside loses its limits", "resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0))"),
    works("a process outside is slowed down", "os.sched_setaffinity(VICTIM, os.sched_getaffinity(VICTIM)); os.setpriority(os.PRIO_PROCESS, VICTIM, 1)"),
    works("the environment outside is read", "open(f'/proc/{VICTIM}/environ').read()"),
    works("the memory outside is opened", "open(f'/proc/{VICTIM}/mem', 'rb')"),
    inside_only("launch is killed", "os.kill(2, 9)"),
    inside_only("launch is stopped", "os.kill(2, 19)"),
    inside_only("launch is traced", "call(101, 0x4206, 2, 0, 0)"),
    inside_only("launch loses its limits", "resource.prlimit(2, resource.RLIMIT_CPU, (1, 1))"),
    inside_only("the report is forged through launch's descriptors", "open('/proc/2/fd/4', 'wb')"),
    inside_only("launch is commanded through its descriptors", "open('/proc/2/fd/5', 'wb')"),
    inside_only("launch's memory is opened", "open('/proc/2/mem', 'r+b')"),
    inside_only("init is traced", "call(101, 0x4206, 1, 0, 0)"),
    inside_only("init's descriptors are opened", "os.readlink('/proc/1/fd/1')"),
    inside_only("init loses its limits", "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))"),
    // Sockets.
    works("a port of the host is reached", "socket.create_connection(('127.0.0.1', PORT), 2)"),
    works("an abstract socket of the host is reached", "socket.socket(socket.AF_UNIX).connect('\\0' + TAG)"),
    works("a socket of the host is reached by its path", "socket.socket(socket.AF_UNIX).connect(SOCKET)"),
    works("the machine's host is reached by vsock", "socket.socket(40, socket.SOCK_STREAM)"),
    inside_only("packets are sniffed", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    inside_only("raw packets are sent", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    // The kernel.
    works("a namespace of one's own is made", "call(272, 0x10000000)"),
    works("a setuid file is made", "os.close(os.open('s', os.O_CREAT | os.O_WRONLY, 0o4755)); os.chmod('s', 0o4755)"),
    works("a setuid file is made by openat2", "call(437, -100, b's2', numbers(0o101, 0o4755, 0), 24)"),
    works("rings do calls that no filter sees", "call(425, 1, ctypes.create_string_buffer(120))"),
    inside_only("a privilege is gained", "os.setuid(0)"),
    inside_only("sudo is used", "subprocess.run(['/usr/bin/sudo', '-n', 'true'], check=True)"),
    inside_only("a device is made", "os.mknod('d', 0o020666, os.makedev(1, 3))"),
    inside_only("a mount is taken away", "call(166, b'/proc', 2)"),
    inside_only("the machine is told to crash", "open('/proc/sysrq-trigger', 'w').write('c')"),
    inside_only("the kernel's settings are written", "open('/proc/sys/kernel/core_pattern', 'w').write('|/x')"),
    inside_only("a terminal is typed into", "fcntl.ioctl(os.openpty()[1], 0x5412, b'x')"),
];

const HELP: &str = "
import ctypes, errno, fcntl, os, resource, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    if libc.syscall(*words) < 0: raise OSError(ctypes.get_errno(), 'syscall')
def numbers(*all): return ctypes.create_string_buffer(struct.pack('Q' * len(all), *all))
def outlives(path):
    if PRIVATE: raise OSError(errno.EROFS, 'gone with the command')
";

/// The outside: what is attacked.
struct Outside {
    directory: PathBuf,
    victim: Child,
    help: String,
    _port: TcpListener,
    _abstract: UnixListener,
    _socket: UnixListener,
}

impl Outside {
    fn new(pair: &Pair) -> Self {
        let host = pair.host;
        let tag = format!("{}-escape", host.tag);
        let directory = PathBuf::from(format!("/var/tmp/{tag}"));
        drop(fs::remove_dir_all(&directory));
        fs::create_dir(&directory).expect("root can make it");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("it is root's");
        Ran::of(host.tools.command("sh").args([
            "-c",
            &format!("umask 077; cd {0} && echo secret >secret && mkdir home work", directory.display()),
        ]))
        .ok();
        let socket = directory.join("socket");
        let port = TcpListener::bind(("127.0.0.1", 0)).expect("there is a loopback");
        let listener = UnixListener::bind(&socket).expect("it is new");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("it is ours");
        let name = SocketAddr::from_abstract_name(&tag).expect("it is short");
        // A process of the account that may be traced, as another command would be.
        let mut victim = host
            .tools
            .command("sh")
            .args(["-c", "echo $$; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh is there");
        let mut pid = String::new();
        BufReader::new(victim.stdout.take().expect("piped")).read_line(&mut pid).expect("it says its number");
        let help = format!(
            "{HELP}SECRET = {secret:?}\nHOME = {home:?}\nVICTIM = {pid}\nPORT = {port}\nTAG = {tag:?}\nSOCKET = {socket:?}\n",
            secret = directory.join("secret"),
            home = directory.join("home"),
            pid = pid.trim(),
            port = port.local_addr().expect("it is bound").port(),
        );
        Self {
            directory,
            victim,
            help,
            _port: port,
            _abstract: UnixListener::bind_addr(&name).expect("nobody has it"),
            _socket: listener,
        }
    }

    /// Tries every one of `attacks` in one process each; `done` or the error, in order.
    fn script(&self, attacks: &[&Attack], private: bool) -> String {
        let private = if private { "True" } else { "False" };
        let mut script = format!("{}PRIVATE = {private}\n", self.help);
        for attack in attacks {
            script += &format!(
                "sys.stdout.flush()\nif (p := os.fork()) == 0:\n    try:\n        {}\n        print('done')\n    \
                 except Exception as e: print(type(e).__name__, e)\n    sys.stdout.flush()\n    os._exit(0)\n\
                 if os.waitpid(p, 0)[1] != 0: print('died')\n",
                attack.code
            );
        }
        script
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.victim.kill());
        drop(self.victim.wait());
        drop(fs::remove_dir_all(&self.directory));
        let tag = self.directory.file_name().expect("it has a name");
        for shared in ["/dev/shm", "/tmp"] {
            drop(fs::remove_file(Path::new(shared).join(tag)));
        }
    }
}

fn lines(ran: &Ran) -> Vec<String> {
    ran.out().lines().map(str::to_owned).collect()
}

#[test]
fn what_works_outside_does_not_work_inside() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let outside = Outside::new(&pair);
    let sound: Vec<&Attack> = ATTACKS.iter().filter(|attack| attack.outside).collect();
    let script = outside.script(&sound, false);
    let bare =
        Ran::of(pair.host.tools.command("python3").current_dir(outside.directory.join("work")).args(["-c", &script]));
    let did = lines(&bare);
    assert_eq!(did.len(), sound.len(), "{bare}");
    let mut proven = 0;
    for (attack, did) in sound.iter().zip(&did) {
        if did == "done" {
            proven += 1;
        } else {
            // A kernel without vsock, say, or with namespaces switched off.
            println!("not shown outside: {}: {did}", attack.name);
        }
    }
    assert!(proven + 4 >= sound.len(), "the attempts themselves are broken: {bare}");

    let all: Vec<&Attack> = ATTACKS.iter().collect();
    let script = outside.script(&all, true);
    let ran = pair.run(&["python3", "-c", &script]).ok();
    let did = lines(&ran);
    assert_eq!(did.len(), all.len(), "{ran}");
    let broke: Vec<String> = all
        .iter()
        .zip(&did)
        .filter(|(_, did)| *did == "done" || !did.contains("Error"))
        .map(|(attack, did)| format!("{}: {did}", attack.name))
        .collect();
    assert_eq!(broke, [] as [String; 0], "{ran}");
    // A mistake in a snippet would look like a denial.
    let mistaken =
        |did: &&String| ["NameError", "TypeError", "AttributeError"].iter().any(|kind| did.starts_with(kind));
    assert_eq!(did.iter().find(mistaken), None, "{ran}");
    assert!(outside.directory.join("secret").metadata().expect("it is there").len() <= 8, "written once, from outside");
    pair.assert_sound();
}

#[test]
fn a_command_starts_with_three_descriptors_and_no_word_of_its_makers() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let ran = pair.run(&["sh", "-c", "echo /proc/self/fd/*; env; cat /proc/self/status"]).ok();
    let out = ran.out();
    assert!(
        out.starts_with("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/10 /proc/self/fd/2\n")
            || out.starts_with("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3\n"),
        "{out}"
    );
    for word in ["SUDO", "SALAAM", "LD_", "SSH_AUTH", "XDG", "DBUS"] {
        assert!(!out.lines().any(|line| line.starts_with(word)), "{word}: {out}");
    }
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[test]
fn files_are_copied_with_all_that_they_have() {
    let _turn = limit!(60);
    let mut pair = Pair::started(Host::shared());
    // The one that `host setup` prepared.
    pair.workspace.clone_from(&pair.host.workspace);
    pair.salaam(&["workspace", "add", &pair.workspace.display().to_string()]).ok();
    let text = "set -e; mkdir -p d/e; echo 1 >d/e/f; cp -a d d2; cp -p d/e/f f; install -p -m 755 f g; \
                tar cpf - d | tar xpf - -C /tmp; mv /tmp/d d3; test -g d3/e; rm -r d d2 d3 f g";
    pair.run(&["sh", "-c", text]).ok();
}

/// What a command leaves or does, and then the pair must be as it was.
#[rustfmt::skip]
const NUISANCES: &[(&str, &str)] = &[
    ("it kills all that it can", "kill -9 -1; true"),
    ("it kills its own process group", "kill -9 0"),
    ("daemons that left their session", "for i in 1 2 3 4 5; do setsid sh -c 'trap \"\" TERM HUP; sleep 593.5' & done; exit 0"),
    ("a fork bomb", "b() { b | b & }; b 2>/dev/null; sleep 0.5"),
    ("100 MB of output", "head -c 100000000 /dev/zero"),
    ("20 000 files and more", "mkdir many && cd many && python3 -c 'for i in range(25000): open(str(i), \"w\")'"),
    ("directories deeper than a path is long", "python3 -c 'import os\nfor i in range(2000): os.mkdir(\"deep\"); os.chdir(\"deep\")'"),
    ("a FIFO, a socket, loops of links, names that are no text", "python3 -c 'import os, socket\nos.mkfifo(\"fifo\"); socket.socket(socket.AF_UNIX).bind(\"sock\")\nos.symlink(\"loop\", \"loop\"); os.symlink(\".\", \"here\"); open(b\"\\xff\\n\\x1b[31m\", \"w\"); open(\"-rf\", \"w\")'"),
    ("closed directories", "mkdir -p closed/in && touch closed/in/f && chmod 0 closed/in && chmod 0 closed"),
    ("every descriptor open", "python3 -c 'import os\ntry:\n  while True: os.open(\"/dev/null\", 0)\nexcept OSError: pass'"),
    ("a full /tmp", "head -c 2000000000 /dev/zero >/tmp/full 2>/dev/null; true"),
    ("closed streams", "exec <&- >&- 2>&-; true"),
    ("the workspace emptied and made unreadable", "rm -rf -- ./* ; chmod 0 . 2>/dev/null; true"),
];

#[test]
fn whatever_a_command_leaves_behind_the_next_one_runs_as_ever() {
    let _turn = limit!(120);
    let pair =
        Pair::started_with(Host::shared(), "[limits]\nprocesses = 128\ntmp_bytes = 67108864\ncommand_seconds = 30\n");
    pair.run(&["true"]).ok();
    let executor = pair.executors().first().expect("it runs").clone();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", executor.pid)).expect("it runs").count();
    let before = descriptors();
    for (what, text) in NUISANCES {
        let result: Value = pair.result(&[], &["sh", "-c", text]);
        assert!(result["state"] == "completed", "{what}: {result:#}");
        assert_eq!(pair.run(&["echo", "well"]).ok().out(), "well\n", "{what}");
    }
    eventually("nothing of them is left", Duration::from_secs(5), || pair.commands().is_empty().then_some(()));
    assert_eq!(unreaped(executor.pid), 0);
    assert_eq!(pair.executors().first().map(|now| now.pid), Some(executor.pid), "the same executor all along");
    eventually("its descriptors are those it had", Duration::from_secs(5), || {
        (descriptors() <= before + 2).then_some(())
    });
    let (resident, _) = executor.memory().expect("it runs");
    assert!(resident < 32 << 10, "{resident} KiB");
    assert_eq!(pair.health()["status"], "ok");
    pair.assert_sound();
}

/// Children of a process that have ended and that it has not reaped.
fn unreaped(parent: i32) -> usize {
    let all = ran::run(&["ps", "-e", "-o", "ppid=,stat="]).out();
    let of = |line: &&str| line.trim().starts_with(&format!("{parent} ")) && line.contains('Z');
    all.lines().filter(of).count()
}

#[test]
fn a_client_that_goes_at_any_moment_leaves_no_process() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let executor = pair.executors().first().expect("it runs").pid;
    for round in 0..40u64 {
        let mut client = pair
            .command_as(&pair.host.service)
            .args(["run", "--yes", "--workspace"])
            .arg(&pair.workspace)
            .args(["--", "sleep", "592.5"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        std::thread::sleep(Duration::from_micros(round * 1500));
        client.kill().expect("it is ours");
        client.wait().expect("it is ours");
    }
    eventually("every command is gone and reaped", Duration::from_secs(10), || {
        (pair.commands().is_empty() && unreaped(executor) == 0).then_some(())
    });
    assert!(Process::of(executor).is_some(), "the same executor all along");
    pair.assert_sound();
}
