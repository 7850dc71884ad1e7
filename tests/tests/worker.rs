//! A worker that was taken over: it has the service's uid and runs what it likes. Each attack is first shown to work
//! without the layers; then it is tried behind landlock alone, behind the filter alone, and behind both, as a worker
//! lives. Then what such a worker may say to the service.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    net::{TcpListener, UdpSocket},
    os::{
        fd::{AsFd as _, BorrowedFd},
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{FileExt as _, PermissionsExt as _},
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    libc,
    sys::wait::{WaitStatus, waitpid},
};
use salaam_core::{
    canary::{self, Canary},
    worker::{EndedBy, FromWorker, RawCall, Turn},
};
use salaam_proto::{frame, worker_wire as wire};
use salaam_sys::handed;
use salaam_tests::{
    Account, Host, Pair, eventually, limit,
    pair::text,
    process::Process,
    session::{Answer, play, written},
};
use serde_json::{Value, json};

/// What stops an attack beside the filter, which stops them all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Landlock, from that ABI on.
    Landlock(i32),
    /// Nothing: the filter is the only wall.
    Nothing,
    /// It was closed at start, before any other layer.
    Closed,
}
use Beside::{Closed, Landlock, Nothing};

/// What is attacked.
struct Targets {
    state: PathBuf,
    config: PathBuf,
    socket: PathBuf,
    service: i32,
    worker: i32,
    victim: Child,
    /// An address in the victim's memory.
    address: u64,
    tcp: TcpListener,
    udp: UdpSocket,
    tag: String,
    _abstract: UnixListener,
}

type Code = fn(&Targets) -> String;

/// Name, code, what else stops it. What changes the attacker itself comes last.
#[rustfmt::skip]
const ATTACKS: &[(&str, Code, Beside)] = &[
    // First, while its number is nobody else's.
    ("what was inherited by mistake is read", |_| format!("call {} 9 +16 16 0", libc::SYS_pread64), Closed),
    // Files.
    ("the state database is read", |t| open_read(&t.state.join("salaam.db")), Landlock(1)),
    ("the state directory is listed", |t| format!("{}\ncall {} $0 +512 512", open(&t.state, libc::O_DIRECTORY), libc::SYS_getdents64), Landlock(1)),
    ("the configuration is listed", |t| format!("{}\ncall {} $0 +512 512", open(&t.config, libc::O_DIRECTORY), libc::SYS_getdents64), Landlock(1)),
    ("the accounts are read", |_| open_read(Path::new("/etc/passwd")), Landlock(1)),
    ("a file is read past a link in /proc", |t| open_read(&Path::new("/proc/self/root").join(t.state.strip_prefix("/").unwrap()).join("salaam.db")), Landlock(1)),
    ("a file is opened by openat2", |_| format!("call {} -100 {} ={} 24", libc::SYS_openat2, path(Path::new("/etc/passwd")), "00".repeat(24)), Landlock(1)),
    ("a directory is made in the state", |t| format!("call {} -100 {} 448\ncall {} -100 {} 512", libc::SYS_mkdirat, path(&t.state.join("planted")), libc::SYS_unlinkat, path(&t.state.join("planted"))), Landlock(1)),
    ("a file is made in the state", |t| format!("call {} -100 {} 65 384\ncall {} -100 {} 0", libc::SYS_openat, path(&t.state.join("planted")), libc::SYS_unlinkat, path(&t.state.join("planted"))), Landlock(1)),
    ("the mode of the state is changed", |t| format!("call {} -100 {} 448", libc::SYS_fchmodat, path(&t.state)), Nothing),
    ("what is in the state is learned", |t| format!("call {} -100 {} +256 0", libc::SYS_newfstatat, path(&t.state.join("salaam.db"))), Nothing),
    ("where a process works is learned", |t| format!("call {} -100 {} +256 256", libc::SYS_readlinkat, path(Path::new(&format!("/proc/{}/cwd", t.victim.id())))), Landlock(1)),
    ("the working directory is moved into the state", |t| format!("call {} {}", libc::SYS_chdir, path(&t.state)), Nothing),
    // Sockets.
    ("the operator socket is asked by its path", |t| format!("{}\n{}\ncall {} $0 +64 64", connect_unix(t.socket.as_os_str().as_bytes()), write("$0", b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"), libc::SYS_read), Nothing),
    ("an abstract socket is reached", |t| connect_unix(&[b"\0", t.tag.as_bytes()].concat()), Landlock(6)),
    ("an abstract socket is offered", |t| format!("call {} 1 1 0\ncall {} $0 ={} {}", libc::SYS_socket, libc::SYS_bind, hex(&unix(&[b"\0by-", t.tag.as_bytes()].concat())), 2 + 4 + t.tag.len()), Nothing),
    ("a port is reached", |t| format!("call {} 2 1 0\ncall {} $0 ={} 16", libc::SYS_socket, libc::SYS_connect, hex(&inet(t.tcp.local_addr().unwrap().port()))), Landlock(4)),
    ("a port is opened", |_| format!("call {} 2 1 0\ncall {} $0 ={} 16\ncall {} $0 1", libc::SYS_socket, libc::SYS_bind, hex(&inet(0)), libc::SYS_listen), Landlock(4)),
    ("a datagram is sent", |t| format!("call {} 2 2 0\ncall {} $0 =6162 2 0 ={} 16", libc::SYS_socket, libc::SYS_sendto, hex(&inet(t.udp.local_addr().unwrap().port()))), Nothing),
    ("the machine's host is asked by vsock", |_| format!("call {} 40 1 0", libc::SYS_socket), Nothing),
    ("the kernel is asked by netlink", |_| format!("call {} 16 3 0", libc::SYS_socket), Nothing),
    ("a pair of sockets is made", |_| format!("call {} 1 1 0 +8", libc::SYS_socketpair), Nothing),
    ("a ring does what no filter sees", |_| format!("call {} 1 +128", libc::SYS_io_uring_setup), Nothing),
    // Processes.
    ("the service is signalled", |t| format!("call {} {} 0", libc::SYS_kill, t.service), Landlock(6)),
    ("the service is signalled by descriptor", |t| format!("call {} {} 0\ncall {} $0 0 0 0", libc::SYS_pidfd_open, t.service, libc::SYS_pidfd_send_signal), Landlock(6)),
    ("the service's limits are read", |t| prlimit(t.service), Nothing),
    ("the service is moved to another processor", |t| affinity(t.service), Nothing),
    ("another worker is signalled", |t| format!("call {} {} 0", libc::SYS_kill, t.worker), Landlock(6)),
    ("another worker's limits are read", |t| prlimit(t.worker), Nothing),
    ("another worker is slowed down", |t| format!("call {} 0 {} 19", libc::SYS_setpriority, t.worker), Nothing),
    ("a process of the account is held", |t| format!("call {} {} 0", libc::SYS_pidfd_open, t.victim.id()), Nothing),
    ("a descriptor of a process is taken", |t| format!("call {} {} 0\ncall {} $0 0 0", libc::SYS_pidfd_open, t.victim.id(), libc::SYS_pidfd_getfd), Landlock(1)),
    ("the memory of a process is read", |t| format!("call {} {} ^16 1 ={} 1 0", libc::SYS_process_vm_readv, t.victim.id(), hex(&[t.address.to_le_bytes(), 16_u64.to_le_bytes()].concat())), Landlock(1)),
    ("the memory of a process is written", |t| format!("call {} {} ^8 1 ={} 1 0", libc::SYS_process_vm_writev, t.victim.id(), hex(&[t.address.to_le_bytes(), 8_u64.to_le_bytes()].concat())), Landlock(1)),
    ("the memory of a process is opened", |t| open(Path::new(&format!("/proc/{}/mem", t.victim.id())), 0), Landlock(1)),
    ("the environment of a process is read", |t| open_read(Path::new(&format!("/proc/{}/environ", t.victim.id()))), Landlock(1)),
    ("a process is traced", |t| format!("call {} 16902 {} 0 0", libc::SYS_ptrace, t.victim.id()), Landlock(1)),
    ("a process is made", |_| format!("call {} 17 0 0 0 0", libc::SYS_clone), Nothing),
    ("a process is made by clone3", |_| format!("call {} ={} 64", libc::SYS_clone3, hex(&[&[0; 32][..], &17_u64.to_le_bytes(), &[0; 24]].concat())), Nothing),
    // Itself.
    ("memory is made to hold code", |_| format!("call {} 0 4096 7 34 -1 0", libc::SYS_mmap), Nothing),
    ("data is made to be code", |_| format!("call {} 0 4096 3 34 -1 0\ncall {} $0 4096 5", libc::SYS_mmap, libc::SYS_mprotect), Nothing),
    ("it shows itself to others", |_| format!("call {} 4 1 0 0 0", libc::SYS_prctl), Nothing),
    ("the account's keyring is asked", |_| format!("call {} 0 -3 1", libc::SYS_keyctl), Nothing),
    ("a namespace of its own is made", |_| format!("call {} {}", libc::SYS_unshare, libc::CLONE_NEWUSER), Nothing),
    ("a program is run", |_| format!("call {} {} *6563686f,{},30 0", libc::SYS_execve, path(Path::new("/bin/echo")), hex((ATTACKS.len() - 1).to_string().as_bytes())), Landlock(1)),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn path(path: &Path) -> String {
    format!("={}00", hex(path.as_os_str().as_bytes()))
}

fn open(path: &Path, flags: i32) -> String {
    format!("call {} -100 {} {flags} 0", libc::SYS_openat, self::path(path))
}

fn open_read(path: &Path) -> String {
    format!("{}\ncall {} $0 +16 16", open(path, 0), libc::SYS_read)
}

fn write(to: &str, bytes: &[u8]) -> String {
    format!("call {} {to} ={} {}", libc::SYS_write, hex(bytes), bytes.len())
}

fn unix(name: &[u8]) -> Vec<u8> {
    [&1_u16.to_le_bytes(), name, b"\0"].concat()
}

fn inet(port: u16) -> Vec<u8> {
    [&2_u16.to_le_bytes()[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat()
}

fn connect_unix(name: &[u8]) -> String {
    // An abstract name has no end of its own.
    let length = if name.starts_with(b"\0") { 2 + name.len() } else { 3 + name.len() };
    format!("call {} 1 1 0\ncall {} $0 ={} {length}", libc::SYS_socket, libc::SYS_connect, hex(&unix(name)))
}

fn prlimit(pid: i32) -> String {
    format!("call {} {pid} 4 0 +16", libc::SYS_prlimit64)
}

fn affinity(pid: i32) -> String {
    format!("call {} {pid} 8 ={}", libc::SYS_sched_setaffinity, "ff".repeat(8))
}

impl Targets {
    fn new(pair: &Pair, worker: i32) -> Self {
        let service = pair.service_process().expect("it runs").pid;
        let mut victim = pair
            .host
            .service
            .command("sh")
            .args(["-c", "echo; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(victim.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let maps = || fs::read_to_string(format!("/proc/{}/maps", victim.id())).unwrap();
        let maps =
            eventually("the victim sleeps", Duration::from_secs(5), || Some(maps()).filter(|m| m.contains("sleep")));
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let (_, top) = stack.split_once(' ').unwrap().0.split_once('-').unwrap();
        let tag = format!("{}-taken", pair.host.tag);
        Self {
            state: pair.state.clone(),
            config: pair.config.clone(),
            socket: pair.socket(),
            service,
            worker,
            address: u64::from_str_radix(top, 16).unwrap() - 4096,
            victim,
            tcp: TcpListener::bind(("127.0.0.1", 0)).unwrap(),
            udp: UdpSocket::bind(("127.0.0.1", 0)).unwrap(),
            _abstract: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&tag).unwrap()).unwrap(),
            tag,
        }
    }

    fn code(&self) -> String {
        ATTACKS.iter().enumerate().map(|(n, (_, code, _))| format!("attack {n}\n{}\n", code(self))).collect()
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        drop(self.victim.kill());
        drop(self.victim.wait());
    }
}

/// The worker that was taken over, where the service account can run it.
fn program(host: &Host) -> PathBuf {
    let program = host.prefix.join("taken");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_salaam-tests-taken"), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    program
}

/// Runs `code` as `account` behind those layers; its end, and what it reported.
fn run(host: &Host, account: &Account, layers: &[&str], code: &str) -> (WaitStatus, BTreeMap<usize, i32>) {
    let (_link, theirs) = UnixStream::pair().unwrap();
    let (handing, handed_over) = UnixStream::pair().unwrap();
    let memory = nix_memory(code);
    handed::send(&handing, b'S', &memory).unwrap();
    let (mut out, their_out) = io::pipe().unwrap();
    let secret = File::open("/etc/shadow").unwrap();
    let fds: [(BorrowedFd<'_>, i32); 5] = [
        (theirs.as_fd(), 0),
        (their_out.as_fd(), 1),
        (their_out.as_fd(), 2),
        (handed_over.as_fd(), 3),
        (secret.as_fd(), 9),
    ];
    let (uid, gid, program) = (account.uid.to_string(), account.gid.to_string(), program(host).display().to_string());
    let words = ["setpriv", "--reuid", &uid, "--regid", &gid, "--init-groups", "--", &program];
    let argv: Vec<CString> = words.iter().chain(layers).map(|word| CString::new(*word).unwrap()).collect();
    let pid = salaam_sys::spawn::spawn(c"/usr/bin/setpriv", &argv, &[] as &[CString], &fds, true).unwrap();
    drop((theirs, their_out, handed_over));
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let results = said.lines().filter_map(|line| {
        let (number, errno) = line.rsplit_once(' ')?;
        Some((number.parse().ok()?, errno.parse().ok()?))
    });
    let results: BTreeMap<usize, i32> = results.collect();
    let status = waitpid(pid, None).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    (status, results)
}

fn nix_memory(code: &str) -> File {
    let path = PathBuf::from(format!("/dev/shm/salaam-taken-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(code.as_bytes(), 0).unwrap();
    file
}

const EVERY: &[&str] = &["descriptors", "limits", "landlock", "seccomp"];

const fn denied(errno: i32) -> bool {
    errno == libc::EPERM || errno == libc::EACCES
}

/// A session whose worker waits for a message, and that worker.
fn waiting(pair: &Pair) -> (String, Process) {
    let script = written(pair, "waiting", r#"{"turns":[{"text":"Which?","await":"message"},{"text":"That."}]}"#);
    let workspace = pair.workspace.display().to_string();
    let words = ["session", "create", "--workspace", &workspace, "--in-place", "--script", &script, "--json", "a task"];
    let id = text(&pair.salaam(&words).ok().json(), "session");
    let worker = eventually("its worker lives", Duration::from_secs(20), || {
        let shown = pair.salaam(&["session", "show", &id, "--json"]).ok().json();
        (shown["state"] == "waiting").then(|| workers(pair).into_iter().next()).flatten()
    });
    (id, worker)
}

fn workers(pair: &Pair) -> Vec<Process> {
    let program = pair.host.libexec().join("salaam-worker");
    let ours = |process: &Process| process.program().as_ref() == Some(&program);
    Process::of_uid(pair.host.service.uid).into_iter().filter(ours).collect()
}

#[test]
fn a_worker_that_was_taken_over_reaches_nothing() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let (_, worker) = waiting(&pair);
    let targets = Targets::new(&pair, worker.pid);
    let code = targets.code();
    let abi = salaam_sys::landlock::abi();
    let tried = |layers: &[&str]| {
        let (status, results) = run(pair.host, &pair.host.service, layers, &code);
        assert_eq!(results.len(), ATTACKS.len(), "{layers:?}: it ended as {status:?} after {results:?}");
        results
    };

    let bare = tried(&["none"]);
    let unproven: Vec<_> = ATTACKS.iter().zip(bare.values()).filter(|(_, errno)| **errno != 0).collect();
    for ((name, ..), errno) in &unproven {
        // A kernel without vsock, say, or with rings switched off.
        println!("not shown without layers: {name}: errno {errno}");
    }
    assert!(unproven.len() <= 3, "the attempts themselves are broken");

    let landlock = tried(&["descriptors", "landlock"]);
    let filter = tried(&["descriptors", "seccomp"]);
    let both = tried(EVERY);
    let mut wrong = Vec::new();
    for (n, (name, _, beside)) in ATTACKS.iter().enumerate() {
        let stopped = |results: &BTreeMap<usize, i32>| match beside {
            Closed => results[&n] == libc::EBADF,
            Landlock(_) | Nothing => denied(results[&n]),
        };
        let by_landlock = match beside {
            Landlock(from) => abi >= *from,
            Closed => true,
            Nothing => false,
        };
        println!("{name}: landlock {}, filter {}, both {}", landlock[&n], filter[&n], both[&n]);
        if stopped(&landlock) != by_landlock && bare[&n] == 0 {
            wrong.push(format!("{name}: landlock alone should {}stop it", if by_landlock { "" } else { "not " }));
        }
        if !stopped(&filter) {
            wrong.push(format!("{name}: the filter alone does not stop it ({})", filter[&n]));
        }
        if !stopped(&both) {
            wrong.push(format!("{name}: it goes through ({})", both[&n]));
        }
    }
    assert_eq!(wrong, [] as [String; 0]);
    assert!(Process::of(worker.pid).is_some(), "the other worker lives");
    pair.assert_sound();
}

#[test]
fn calls_by_another_gate_do_not_get_past_the_filter() {
    let _turn = limit!(60);
    let host = Host::shared();
    // 20 is getpid there; it harms nobody, and is on no list here.
    let (status, results) = run(host, &host.service, &["descriptors"], "attack 0\ni386 20 0\n");
    if results.get(&0) != Some(&0) {
        println!("no 32-bit gate here: {status:?} {results:?}");
        return;
    }
    let (status, results) = run(host, &host.service, EVERY, "attack 0\ni386 20 0\n");
    assert!(matches!(status, WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGSYS, _)), "{status:?} {results:?}");
}

#[test]
fn a_worker_lives_with_four_descriptors_and_nothing_of_its_makers() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let (id, worker) = waiting(&pair);
    let proc = |name: &str| PathBuf::from(format!("/proc/{}/{name}", worker.pid));
    let held: Vec<String> = {
        let all = fs::read_dir(proc("fd")).unwrap().flatten();
        let mut all: Vec<_> = all.map(|entry| (entry.file_name(), fs::read_link(entry.path()).unwrap())).collect();
        all.sort();
        all.into_iter()
            .map(|(number, what)| {
                let what = what.display().to_string();
                format!("{} {}", number.display(), what.split(':').next().unwrap_or_default())
            })
            .collect()
    };
    assert_eq!(held, ["0 socket", "1 pipe", "2 pipe", "4 socket"], "the script and its socket are done with");
    assert_eq!(fs::read(proc("environ")).unwrap(), b"");
    let status = fs::read_to_string(proc("status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let limits = fs::read_to_string(proc("limits")).unwrap();
    for name in ["Max core file size", "Max processes", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line.split_whitespace().rev().nth(1), Some("0"), "{line}");
    }
    // Nobody of the account can look into it.
    let environ = proc("environ").display().to_string();
    let looked = salaam_tests::Ran::of(pair.host.service.command("cat").arg(&environ));
    assert_ne!(looked.code, Some(0), "{looked}");
    pair.salaam(&["session", "cancel", &id]).ok();
    eventually("it is gone", Duration::from_secs(10), || Process::of(worker.pid).is_none().then_some(()));
    pair.assert_sound();
}

#[test]
fn a_worker_ends_with_the_service_even_if_it_was_taken_over() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let _taken = Taken::installed(&pair);
    let ready = frames(&pair).ready;
    let code = format!("say {ready}\nhear\nrest\n");
    let id = create(&pair, &code);
    let worker = eventually("it lives", Duration::from_secs(20), || workers(&pair).into_iter().next());
    eventually("it is told its session", Duration::from_secs(20), || {
        let shown = pair.salaam(&["session", "show", &id, "--json"]).ok().json();
        (shown["state"] == "running").then_some(())
    });
    pair.service_process().expect("it runs").kill();
    eventually("the worker is gone", Duration::from_secs(10), || Process::of(worker.pid).is_none().then_some(()));
    pair.start().ok();
    pair.salaam(&["session", "cancel", &id]).ok();
    pair.assert_sound();
}

/// The program in the worker's place, until it is dropped.
struct Taken {
    place: PathBuf,
    kept: PathBuf,
}

impl Taken {
    fn installed(pair: &Pair) -> Self {
        let place = pair.host.libexec().join("salaam-worker");
        let kept = pair.host.prefix.join("salaam-worker.kept");
        fs::rename(&place, &kept).unwrap();
        fs::copy(program(pair.host), &place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o711)).unwrap();
        Self { place, kept }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        fs::rename(&self.kept, &self.place).unwrap();
    }
}

/// Frames as a worker sends them, in hex.
struct Frames {
    ready: String,
}

fn framed(message: FromWorker) -> String {
    hex(&frame::framed(&wire::FromWorker::from(message), usize::MAX).unwrap())
}

fn frames(pair: &Pair) -> Frames {
    let version = pair.salaam(&["--version"]).ok().out();
    let build = version.trim().strip_prefix("salaam ").unwrap().to_owned();
    let tried = |attack: &&str| Canary { attack: (*attack).to_owned(), errno: libc::EPERM };
    let canary = canary::ALL.iter().map(tried).collect();
    Frames { ready: framed(FromWorker::Ready { build, canary }) }
}

fn turn(number: u64, calls: &[(&str, Value)]) -> String {
    let call = |(tool, arguments): &(&str, Value)| RawCall { tool: (*tool).into(), arguments: arguments.to_string() };
    let calls = calls.iter().map(call).collect();
    framed(FromWorker::Turn(Turn { number, text: "mine".into(), calls, awaits: false }))
}

/// Creates a session whose worker runs `code`.
fn create(pair: &Pair, code: &str) -> String {
    let script = written(pair, "taken", &json!({"turns": [{"text": code}]}).to_string());
    let workspace = pair.workspace.display().to_string();
    let words = ["session", "create", "--workspace", &workspace, "--in-place", "--script", &script, "--json", "a task"];
    text(&pair.salaam(&words).ok().json(), "session")
}

#[test]
fn what_no_worker_says_ends_it_and_is_in_the_journal() {
    let _turn = limit!(180);
    let pair = Pair::started(Host::shared());
    let _taken = Taken::installed(&pair);
    let ready = frames(&pair).ready;
    // What it would most like to have.
    let open = pair.propose(json!({ "command": "true" }));
    let grant =
        format!("POST /v1/approvals/{}/grant HTTP/1.1\r\n\r\n{{\"binding\":\"{}\"}}", open.approval, open.binding);
    let call = |tool: &'static str, arguments: Value| (tool, arguments);
    let many: Vec<_> = (0..10_000).map(|_| call("t", json!({}))).collect();
    let asks = call("salaam_local", json!({"action": "command", "command": "touch it"}));
    let granted = framed(FromWorker::Ended { outcome: EndedBy::Completed, reason: "granted".into() });
    let unready = |attack: &str, errno: i32| {
        let tried = |name: &&str| Canary {
            attack: (*name).to_owned(),
            errno: if *name == attack { errno } else { libc::EPERM },
        };
        let version = pair.salaam(&["--version"]).ok().out();
        let build = version.trim().strip_prefix("salaam ").unwrap().to_owned();
        framed(FromWorker::Ready { build, canary: canary::ALL.iter().map(tried).collect() })
    };
    // After it was told its session, unless it says otherwise; then it would go on as if nothing had been.
    let told = |hostile: &str| format!("say {ready}\nhear\nsay {hostile}\nrest\n");
    let cases = [
        ("a grant in the operator's words", told(&hex(grant.as_bytes())), "no worker sends"),
        ("four gigabytes", told("ffffffff"), "no worker sends"),
        ("ten thousand calls", told(&turn(0, &many)), "no worker sends"),
        ("the last turn first", told(&turn(9_999, &[])), "no worker sends"),
        ("ready once more", told(&ready), "no worker sends"),
        ("an end while a call waits", told(&format!("{}{granted}", turn(0, &[asks]))), "no worker sends"),
        ("a turn before it knows its session", format!("say {}\nrest\n", turn(0, &[])), "no worker sends"),
        ("an open file", format!("say {}\nrest\n", unready("open-state", 0)), "not confined: open-state went through"),
        ("a socket that was not tried for", format!("say {}\nrest\n", unready("socket-unix", 97)), "proves nothing"),
        ("a flood", format!("say {ready}\nhear\nflood {}\nrest\n", turn(0, &[])), "no worker sends"),
    ];
    for (what, code, reason) in cases {
        let id = create(&pair, &code);
        let lost = eventually(&format!("{what}: the loss is in the journal"), Duration::from_secs(30), || {
            let events = pair.events();
            let ours = |event: &&Value| event["kind"] == "worker.lost" && event["session"] == json!(id);
            events.iter().find(ours).cloned()
        });
        let said = lost["data"]["reason"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains(reason), "{what}: {lost}");
        pair.salaam(&["session", "cancel", &id]).ok();
        eventually(&format!("{what}: the worker is gone"), Duration::from_secs(10), || {
            workers(&pair).is_empty().then_some(())
        });
    }
    let kinds: Vec<String> = pair.events().iter().map(|event| text(event, "kind")).collect();
    assert!(!kinds.iter().any(|kind| kind == "approval.granted" || kind == "operation.dispatched"), "{kinds:?}");
    let still = pair.pending();
    assert!(still.len() == 1 && still[0]["approval"] == json!(open.approval), "{still:?}");
    // Everybody else is served as ever.
    assert_eq!(pair.run(&["echo", "well"]).ok().out(), "well\n");
    pair.salaam(&["journal", "verify"]).ok();
    pair.assert_sound();
}

#[test]
fn what_it_proposes_under_another_name_is_still_asked_of_a_person() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let _taken = Taken::installed(&pair);
    let ready = frames(&pair).ready;
    let other = create(&pair, &format!("say {ready}\nhear\nrest\n"));
    // It knows the session of somebody else, and the words of an operator.
    let arguments = [
        json!({"action": "command", "command": "touch by-grant", "grant": true}),
        json!({"action": "command", "command": "touch by-session", "session": other}),
        json!({"action": "command", "command": "touch by-origin", "origin": "operator", "profile": "full-access"}),
    ];
    let calls: Vec<(&str, Value)> = arguments.iter().map(|one| ("salaam_local", one.clone())).collect();
    let honest = json!({"action": "command", "command": "touch plain"});
    let calls = [calls, vec![("salaam_local", honest)]].concat();
    let end = framed(FromWorker::Ended { outcome: EndedBy::Completed, reason: "done".into() });
    let code = format!("say {ready}\nhear\nsay {}\nhear\nsay {end}\nrest\n", turn(0, &calls));
    let script = written(&pair, "names", &json!({"turns": [{"text": code}]}).to_string());
    let played = play(&pair, &script, |_, _| Answer::Deny("no"), |_| {});
    assert_eq!(played.outcome(&pair), ("ended".into(), json!("completed")), "{}", played.ran);
    // The three are refused for what they carry beside; the one that is a proposal was asked about, and denied.
    assert_eq!(played.approvals.len(), 1, "{:?}", played.approvals);
    assert!(text(&played.approvals[0], "display").contains("touch plain"), "{:?}", played.approvals);
    for name in ["by-grant", "by-session", "by-origin", "plain"] {
        assert!(!pair.workspace.join(name).exists(), "{name}");
    }
    let of_other = pair.events().into_iter().filter(|event| event["session"] == json!(other));
    assert!(!of_other.into_iter().any(|event| text(&event, "kind").starts_with("operation.")));
    pair.salaam(&["session", "cancel", &other]).ok();
    pair.assert_sound();
}
