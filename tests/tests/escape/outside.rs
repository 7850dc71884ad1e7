//! What is attacked, outside, and the runs of many attacks at once: one program, a process for each.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use salaam_tests::{
    Account, Pair, eventually,
    host::chown,
    process::Process,
    ran::{self, Ran, Started},
};
use serde_json::json;

use crate::attack::{Attack, Control};

const PRELUDE: &str = include_str!("prelude.py");
/// What a person's account has lying about.
const CREDENTIALS: &[&str] = &[".ssh/id_ed25519", ".netrc", ".aws/credentials", ".git-credentials", ".npmrc"];

/// Everything that is attacked.
pub struct Outside {
    /// All of it lies in here.
    pub directory: PathBuf,
    /// A process of the tools user, as an unconfined one would be.
    pub victim: i32,
    variables: String,
    insides: String,
    children: Vec<Child>,
    other: Started,
    _streams: Vec<UnixListener>,
    _ports: Vec<TcpListener>,
    _log: UnixDatagram,
}

/// What came of one attack: `done`, or why not.
pub type Outcome = String;

impl Outside {
    /// Makes it. `pair` runs, and its workspace becomes one that is made like the controls'.
    pub fn new(pair: &mut Pair) -> Self {
        let host = pair.host;
        let tag = format!("{}-escape", host.tag);
        let directory = PathBuf::from(format!("/var/tmp/{tag}"));
        drop(fs::remove_dir_all(&directory));
        fs::create_dir(&directory).expect("root can make it");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("it is root's");
        let at = directory.display();
        Ran::of(
            host.tools
                .command("sh")
                .args(["-c", &format!("cd {at} && mkdir home work && : >launch && umask 077 && echo secret >secret")]),
        )
        .ok();
        credentials(&host.service);

        let streams = ["docker.sock", "bus"].map(|name| UnixListener::bind(directory.join(name)).expect("it is new"));
        let log = UnixDatagram::bind(directory.join("log.sock")).expect("it is new");
        for name in ["docker.sock", "bus", "log.sock"] {
            fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o666)).expect("it is ours");
        }
        let name = SocketAddr::from_abstract_name(&tag).expect("it is short");
        let mut streams = Vec::from(streams);
        streams.push(UnixListener::bind_addr(&name).expect("nobody has it"));
        let ports = ["127.0.0.1:0", "[::1]:0"].map(|at| TcpListener::bind(at).expect("there is a loopback"));
        let port = |number: usize| ports[number].local_addr().expect("it is bound").port();

        // Another command of the pair, in a workspace of its own.
        let text = format!("echo other >/tmp/{tag}-other; exec sleep 594.25");
        let other = pair.run_started(&[], &["sh", "-c", &text]);
        let other_pid = eventually("another command runs", Duration::from_secs(20), || {
            Process::of_uid(host.tools.uid).into_iter().find(|process| process.words.trim() == "sleep 594.25")
        })
        .pid;
        pair.with_workspace();

        let key = 0x5a1a_0000 + (std::process::id() & 0xffff);
        let (victim, first) = held(&host.tools, &victim_program(&tag, key, &directory));
        let (service_victim, second) = held(
            &host.service,
            "import os, time; os.chdir(os.environ['HOME']); print(os.getpid(), flush=True); time.sleep(600)",
        );
        let device = ["/dev/fuse", "/dev/net/tun", "/dev/vsock", "/dev/kvm"]
            .into_iter()
            .find(|path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006));
        let variables = format!(
            "SECRET, DIR, HOME, TAG = '{at}/secret', '{at}', '{at}/home', '{tag}'\n\
             VICTIM, SVICTIM, KEY = {victim}, {service_victim}, {key}\n\
             PORT, PORT6, UDP, UDP6, UDPALL, HOSTIP = {}, {}, {}, {}, {}, {:?}\n\
             SHOME, SUID, SGID, STATE, CONFIG, OPERATOR = {:?}, '{}', '{}', {:?}, {:?}, {:?}\n\
             DEVICE = {:?}\n",
            port(0),
            port(1),
            echo("127.0.0.1:0"),
            echo("[::1]:0"),
            echo("0.0.0.0:0"),
            own_address(),
            host.service.home,
            host.service.uid,
            host.service.gid,
            pair.state,
            pair.config,
            pair.socket(),
            device.unwrap_or("/dev/none"),
        );
        let executor = pair.executors().first().expect("it runs").pid;
        let insides = format!(
            "INIT, LAUNCH, LAUNCHFD, LAUNCHFILE = 1, 2, 4, '/.salaam/launch'\nOTHER, EXECUTOR = {other_pid}, {executor}\n"
        );
        Self {
            directory,
            victim,
            variables,
            insides,
            children: vec![first, second],
            other,
            _streams: streams,
            _ports: Vec::from(ports),
            _log: log,
        }
    }

    /// The program that tries `attacks`, each in its workspace.
    pub fn script(&self, attacks: &[(usize, &Attack, &Path)], inside: bool) -> String {
        let tries: Vec<_> = attacks.iter().map(|(number, attack, at)| json!([number, attack.code, at])).collect();
        self.program(&json!(tries), inside)
    }

    fn program(&self, tries: &serde_json::Value, inside: bool) -> String {
        let stand_ins = "INIT = LAUNCH = OTHER = EXECUTOR = VICTIM\nLAUNCHFD, LAUNCHFILE = 7, DIR + '/launch'\n";
        let own = if inside { &self.insides } else { stand_ins };
        // JSON text is a text of Python, too.
        let list = json!(tries.to_string()).to_string();
        format!("{PRELUDE}{}{own}for one in json.loads({list}): attempt(*one)\n", self.variables)
    }

    /// What `attacks` did, after what they left was looked at.
    pub fn judge(&self, ran: &Ran, attacks: &[(usize, &Attack, &Path)]) -> Vec<Outcome> {
        let proofs: Vec<_> = attacks.iter().filter(|(_, attack, _)| !attack.proof.is_empty()).collect();
        let tries: Vec<_> = proofs.iter().map(|(number, attack, at)| json!([number, attack.proof, at])).collect();
        let program = self.program(&json!(tries), false);
        let file = self.directory.join("proof.py");
        fs::write(&file, program).expect("it is root's");
        let proven = Ran::of(Account::root().command("python3").arg(&file)).ok().out();
        let said = ran.out();
        attacks
            .iter()
            .map(|(number, attack, _)| {
                let of = |text: &str| {
                    let mark = format!("@{number} ");
                    let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(&mark));
                    line.map(str::to_owned)
                };
                let tried = of(&said).unwrap_or_else(|| panic!("{}: nothing was said: {ran}", attack.name));
                // What was left counts, whatever the attempt said.
                let left = if attack.proof.is_empty() { None } else { of(&proven) };
                match left {
                    Some(left) if left == "done" => left,
                    Some(left) if tried == "done" => format!("left nothing: {left}"),
                    _ => tried,
                }
            })
            .collect()
    }

    /// Shows the attacks outside, each as its own control says.
    pub fn controls(&self, pair: &Pair, all: &[Attack]) -> Vec<Outcome> {
        let work = self.directory.join("work");
        prepare(pair, &work);
        let mut places = Vec::new();
        for (number, attack) in all.iter().enumerate() {
            places.push(if attack.fresh {
                let own = self.directory.join(format!("c{number}"));
                ran::run(&["cp", "-a", &work.display().to_string(), &own.display().to_string()]);
                own
            } else {
                work.clone()
            });
        }
        let mut outcomes = vec![String::new(); all.len()];
        for control in [Control::Tools, Control::Service, Control::Root] {
            let with = all.iter().enumerate().zip(&places).map(|((number, attack), at)| (number, attack, at.as_path()));
            let mine: Vec<_> = with.filter(|(_, attack, _)| attack.control == control).collect();
            let file = self.directory.join("control.py");
            fs::write(&file, self.script(&mine, false)).expect("it is root's");
            let ran = self.control(pair, control, &file);
            for ((number, ..), outcome) in mine.iter().zip(self.judge(&ran, &mine)) {
                outcomes[*number] = outcome;
            }
        }
        outcomes
    }

    fn control(&self, pair: &Pair, control: Control, file: &Path) -> Ran {
        let at = file.display();
        let careless =
            format!("umask 0; ulimit -c unlimited 2>/dev/null; exec 9</dev/null; CARELESS_SECRET=x exec python3 {at}");
        let rooms = "for d in /var/spool /var/lib/systemd /etc/cron.d; do mkdir -p $d; mount -t tmpfs none $d; done; \
                     mkdir -p /var/spool/cron/crontabs /var/spool/cron/atjobs /var/lib/systemd/linger; exec python3 ";
        Ran::of(&mut match control {
            Control::Tools => {
                let mut command = pair.host.tools.command("script");
                command.args(["-qec", &format!("sh -c '{careless}'"), "/dev/null"]);
                command
            }
            Control::Service => {
                let mut command = pair.host.service.command("python3");
                command.arg(file);
                command
            }
            Control::Root => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc", "sh", "-c"]);
                command.arg(format!("{rooms}{at}"));
                command
            }
        })
        .ok()
    }
}

/// Fills a directory as a person's workspace is: a repository with hooks, an included file, an editor's settings.
pub fn prepare(pair: &Pair, at: &Path) {
    let (service, group) = (&pair.host.service.name, pair.host.name("work"));
    let text = format!(
        "set -e; cd {at}; git init -q . ; mkdir -p .git/hooks .git/info conf .vscode; cp /usr/bin/id suid-id\n\
         printf '#!/bin/sh\\n' >.git/hooks/pre-commit; echo '{{}}' >.vscode/tasks.json; echo '[user]' >conf/shared.cfg\n\
         : >.git/info/attributes; echo 1 >file; rm -f .git/hooks/*.sample\n\
         printf '[include]\\n\\tpath = ../conf/shared.cfg\\n[extensions]\\n\\tworktreeConfig = true\\n' >>.git/config\n\
         chown -R {service}:{group} . ; chmod -R g+rwX,o+rX . ; find . -type d -exec chmod g+s {{}} +\n\
         chmod 775 .git/hooks/pre-commit; chown root:root suid-id; chmod 4755 suid-id",
        at = at.display(),
    );
    ran::run(&["sh", "-c", &text]);
}

fn credentials(account: &Account) {
    for name in CREDENTIALS {
        let path = account.home.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("root can make it");
        fs::write(&path, "token").expect("root can write it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    // The usual careless mode of a home: names in it can be reached.
    ran::run(&["chown", "-R", &account.name, &account.home.display().to_string()]);
    fs::set_permissions(&account.home, fs::Permissions::from_mode(0o700)).expect("it is ours");
    chown(&account.home, &account.name);
}

/// Starts Python that prints its number and stays.
fn held(account: &Account, program: &str) -> (i32, Child) {
    let mut child =
        account.command("python3").args(["-c", program]).stdout(Stdio::piped()).spawn().expect("python3 is there");
    let mut line = String::new();
    let mut from = BufReader::new(child.stdout.take().expect("piped"));
    from.read_line(&mut line).expect("it says its number");
    (line.trim().parse().expect("a number"), child)
}

/// What shares memory with whoever knows the key, and takes it along when it goes.
fn victim_program(tag: &str, key: u32, directory: &Path) -> String {
    format!(
        "import ctypes, os, signal\nlibc = ctypes.CDLL(None)\n\
         m, s, q = libc.shmget({key}, 1, 0o1666), libc.semget({key}, 1, 0o1666), libc.msgget({key}, 0o1666)\n\
         libc.mq_open(b'/{tag}', 0o102, 0o666, None)\nopen('/tmp/{tag}-other', 'w')\nos.dup2(os.open('{at}/launch', 2), 7)\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\nprint(os.getpid(), flush=True)\n\
         signal.sigwait([signal.SIGTERM])\nlibc.shmctl(m, 0, None); libc.semctl(s, 0, 0); libc.msgctl(q, 0, None)\n\
         libc.mq_unlink(b'/{tag}'); os.unlink('/tmp/{tag}-other')\n",
        at = directory.display()
    )
}

/// A UDP port that answers what it is asked.
fn echo(at: &str) -> u16 {
    let socket = UdpSocket::bind(at).expect("there is a loopback");
    let port = socket.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            drop(socket.send_to(&bytes[..length], from));
        }
    });
    port
}

/// An address of this host that is not the loopback's, or else that.
fn own_address() -> String {
    let all = ran::run(&["hostname", "-I"]).out();
    all.split_whitespace().next().unwrap_or("127.0.0.1").to_owned()
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.other.child.kill());
        drop(self.other.child.wait());
        // The first one takes its shared memory along; the second sleeps.
        for child in &mut self.children {
            let _ = kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGTERM);
            drop(child.wait());
        }
        drop(fs::remove_dir_all(&self.directory));
        let tag = self.directory.file_name().expect("it has a name").to_string_lossy().into_owned();
        for shared in ["/dev/shm", "/tmp", "/var/tmp"] {
            for entry in fs::read_dir(shared).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&tag) {
                    drop(fs::remove_file(entry.path()));
                }
            }
        }
    }
}
