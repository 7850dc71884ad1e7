//! Two throw-away accounts with everything that the bridge needs, taken away again on drop.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Pair {
    pub(crate) service: String,
    pub(crate) tools: String,
    pub(crate) service_uid: u32,
    pub(crate) tools_uid: u32,
    pub(crate) tools_gid: u32,
    pub(crate) drop_in: PathBuf,
    pub(crate) instance_file: PathBuf,
    prefix: PathBuf,
}

impl Pair {
    pub(crate) fn new(name: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root: they make accounts and a sudoers drop-in");
        let (service, tools) = (format!("sbridge-{name}-s"), format!("sbridge-{name}-t"));
        let prefix = std::env::temp_dir().join(format!("salaam-bridge-{name}-{}", std::process::id()));
        // What a run that was killed left behind.
        forget(&service);
        forget(&tools);
        let (service_uid, _) = account(&service);
        let (tools_uid, tools_gid) = account(&tools);
        let pair = Self {
            drop_in: PathBuf::from(format!("/etc/sudoers.d/sbridge-{name}")),
            instance_file: PathBuf::from(format!("/etc/salaam/{service}.toml")),
            service,
            tools,
            service_uid,
            tools_uid,
            tools_gid,
            prefix,
        };
        let libexec = pair.prefix.join("libexec");
        fs::create_dir_all(&libexec).unwrap();
        chmod(&pair.prefix, 0o755);
        chmod(&libexec, 0o755);
        install(&toolsd_binary(), &pair.toolsd(), 0o711);
        // No command is run here, so that an executor finds one is enough.
        fs::write(libexec.join("salaam-launch"), "").unwrap();
        chmod(&libexec.join("salaam-launch"), 0o755);
        install(&std::env::current_exe().unwrap(), &pair.prefix.join("driver"), 0o755);
        pair.sudoers(&format!("{} ALL=({}) NOPASSWD: {} \"\"\n", pair.service, pair.tools, pair.toolsd().display()));
        pair.instance(pair.service_uid, pair.tools_uid);
        pair
    }

    pub(crate) fn toolsd(&self) -> PathBuf {
        self.prefix.join("libexec/salaam-toolsd")
    }

    pub(crate) fn sudoers(&self, text: &str) {
        // Under a name that sudo skips first: it must never see half a file.
        let dotted = self.drop_in.with_extension("new");
        fs::write(&dotted, text).unwrap();
        chmod(&dotted, 0o440);
        let checked = Command::new("visudo").args(["-c", "-q", "-f"]).arg(&dotted).status().unwrap();
        assert!(checked.success(), "{text}");
        fs::rename(&dotted, &self.drop_in).unwrap();
    }

    pub(crate) fn instance(&self, service_uid: u32, tools_uid: u32) {
        let directory = Path::new("/etc/salaam");
        if !directory.exists() {
            fs::create_dir_all(directory).unwrap();
            chmod(directory, 0o755);
        }
        let text = format!(
            "version = 1\nservice_user = \"{}\"\nservice_uid = {service_uid}\ntools_user = \"{}\"\n\
             tools_uid = {tools_uid}\ngroup = \"work\"\ngroup_gid = {}\n[directories]\nconfig = \"{p}/config\"\n\
             state = \"{p}/state\"\nruntime = \"{p}/run\"\nlibexec = \"{p}/libexec\"\n[floor]\n\
             unsandboxed_commands = \"refuse\"\n[added]\n",
            self.service,
            self.tools,
            self.tools_gid,
            p = self.prefix.display()
        );
        // Executors of other tests read every file here: none may see half of one.
        let dotted = self.instance_file.with_extension("new");
        fs::write(&dotted, text).unwrap();
        chmod(&dotted, 0o644);
        fs::rename(&dotted, &self.instance_file).unwrap();
    }

    /// Puts a program in the executor's place: `b` is the bridge, `hello()` says the right thing and reads
    /// the answer, `V` is the version.
    pub(crate) fn fake(&self, script: &str) {
        let text = format!(
            "#!/usr/bin/python3 -I\nimport os, socket, sys, time\nb = socket.socket(fileno=0)\nV = ({version}).to_bytes(4, 'little')\n\
             def hello():\n    b.send(b'SALAAMTOOLSD' + V)\n    b.recv(16)\n{script}\ntry:\n    b.recv(1)\n    while b.recv(65536): pass\nexcept OSError:\n    pass\n",
            version = salaam_core::bridge::VERSION,
        );
        fs::remove_file(self.toolsd()).unwrap();
        fs::write(self.toolsd(), text).unwrap();
        chmod(&self.toolsd(), 0o755);
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver_with(&[], &[])
    }

    pub(crate) fn driver_with(&self, setpriv: &[&str], environment: &[(&str, &str)]) -> Driver {
        let mut command = self.as_user(self.service_uid, setpriv);
        command
            .arg(self.prefix.join("driver"))
            .args(["--exact", "driver", "--nocapture"])
            .env("DRIVER_TOOLSD", self.toolsd())
            .env("DRIVER_TOOLS_USER", &self.tools)
            .env("DRIVER_TOOLS_UID", self.tools_uid.to_string())
            .envs(environment.iter().copied())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Driver::start(command)
    }

    pub(crate) fn as_tools(&self, argv: &[&str]) -> Output {
        self.as_user(self.tools_uid, &[]).args(argv).current_dir("/").output().unwrap()
    }

    fn as_user(&self, uid: u32, setpriv: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={}", gid_of(uid)), "--clear-groups".into()]);
        command.args(setpriv).arg("--").env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    /// Live processes of the tools account that run the executor itself: not the prober.
    pub(crate) fn executors(&self) -> Vec<i32> {
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|_| !dead(*pid)))
            .filter(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let ours = status.lines().any(|line| line.starts_with(&format!("Uid:\t{}\t", self.tools_uid)));
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                ours && line == [self.toolsd().to_str().unwrap().as_bytes(), b"\0"].concat()
            })
            .collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.drop_in);
        let _ = fs::remove_file(&self.instance_file);
        let _ = fs::remove_dir("/etc/salaam");
        let _ = fs::remove_dir_all(&self.prefix);
        forget(&self.service);
        forget(&self.tools);
    }
}

/// What the driver said when its executor was up.
pub(crate) struct Up {
    pub(crate) epoch: u64,
    pub(crate) pid: i32,
    pub(crate) sudo_pid: i32,
    pub(crate) uid: u32,
    pub(crate) floor: String,
    pub(crate) groups: Vec<u32>,
}

pub(crate) struct Driver {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Driver {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (lines, received) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The runner prints the test's name without a line feed before the first line.
                if let Some(at) = line.find('@') {
                    let _ = lines.send(line[at..].to_owned());
                }
            }
        });
        Self { orders: child.stdin.take(), child, lines: received, seen: Vec::new() }
    }

    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    /// The first line that begins so; lines in between are kept for later.
    pub(crate) fn expect(&mut self, start: &str) -> String {
        if let Some(at) = self.seen.iter().position(|line| line.starts_with(start)) {
            return self.seen.remove(at);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(start) => return line,
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("no `{start}` ({error}); the driver said {:?}", self.seen),
            }
        }
    }

    pub(crate) fn started(&mut self) -> Up {
        let line = self.expect("@started");
        let words: Vec<_> = line.split(' ').collect();
        Up {
            epoch: words[1].parse().unwrap(),
            pid: words[2].parse().unwrap(),
            sudo_pid: words[3].parse().unwrap(),
            uid: words[4].parse().unwrap(),
            floor: words[5].into(),
            groups: words[6].split(',').map(|gid| gid.parse().unwrap()).collect(),
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Everything that it said and nobody expected, once it has ended.
    pub(crate) fn finish(mut self) -> Vec<String> {
        drop(self.orders.take());
        self.child.wait().unwrap();
        self.seen.drain(..).chain(self.lines.iter()).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Gone, or a zombie that somebody else has to reap.
pub(crate) fn dead(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

/// Stops a process and waits until every thread of it stands.
pub(crate) fn stop(pid: i32) {
    signal(pid, "STOP");
    wait_until("it stands", || {
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|thread| {
            let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    });
}

pub(crate) fn signal(pid: i32, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn install(from: &Path, to: &Path, mode: u32) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    chmod(to, mode);
}

/// Built beside this test by `cargo build -p salaam-toolsd`.
fn toolsd_binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).unwrap().join("salaam-toolsd");
    assert!(binary.exists(), "{} is missing: cargo build -p salaam-toolsd", binary.display());
    binary
}

fn account(name: &str) -> (u32, u32) {
    // Another test may hold the lock of the password file.
    wait_until(name, || {
        let made = Command::new("useradd")
            .args(["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name])
            .output()
            .unwrap();
        if !made.status.success() {
            thread::sleep(Duration::from_millis(200));
        }
        made.status.success() || made.status.code() == Some(9)
    });
    let user = users::get_user_by_name(name).unwrap();
    (user.uid(), user.primary_group_id())
}

fn gid_of(uid: u32) -> u32 {
    users::get_user_by_uid(uid).unwrap().primary_group_id()
}

fn forget(name: &str) {
    let until = Instant::now() + PATIENCE;
    while users::get_user_by_name(name).is_some() && Instant::now() < until {
        let _ = Command::new("userdel").args(["--force", name]).output();
        if users::get_user_by_name(name).is_some() {
            thread::sleep(Duration::from_millis(200));
        }
    }
}
