//! One service with its executor, in directories of its own, and everything a test asks of it.

use std::{
    fs,
    io::Write,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    account::Account,
    eventually,
    host::{Host, chown},
    http::{self, Reply},
    process::Process,
    ran::{LIMIT, Ran, Started},
};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A pair that may be running or not.
#[derive(Debug)]
pub struct Pair {
    /// The host that it is on.
    pub host: &'static Host,
    /// host.toml and the manifest.
    pub config: PathBuf,
    /// Database, blobs, log.
    pub state: PathBuf,
    /// The operator socket.
    pub runtime: PathBuf,
    /// A registered workspace, if [`Pair::started`] or [`Pair::with_workspace`] made one.
    pub workspace: PathBuf,
    /// More variables for the service.
    pub variables: Vec<(String, String)>,
    base: PathBuf,
}

/// An operation that waits for an operator, with the connection that proposed it still open.
#[derive(Debug)]
pub struct Pending {
    /// The approval's id.
    pub approval: String,
    /// The operation's id.
    pub operation: String,
    /// What a grant must name.
    pub binding: String,
    /// The approval as `approval list` gave it.
    pub object: Value,
    /// The proposer's connection.
    pub stream: UnixStream,
}

impl Pending {
    /// Waits for the answer to the proposal.
    #[track_caller]
    pub fn reply(mut self) -> Reply {
        Reply::read(&mut self.stream).expect("a proposal is answered")
    }
}

impl Pair {
    /// Directories for a pair that is not started.
    pub fn new(host: &'static Host) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = host.prefix.join(format!("pair-{number}"));
        fs::create_dir(&base).expect("the prefix is root's");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o711)).expect("it is ours");
        let made = |name: &str, mode: u32, group: &str| {
            let path = base.join(name);
            fs::create_dir(&path).expect("it is new");
            chown(&path, &format!("{}:{group}", host.service.name));
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            path
        };
        Self {
            config: made("config", 0o700, &host.service.name),
            state: made("state", 0o700, &host.service.name),
            runtime: made("run", 0o710, &host.name("ops")),
            workspace: PathBuf::new(),
            variables: Vec::new(),
            base,
            host,
        }
    }

    /// A running pair with a registered workspace.
    #[track_caller]
    pub fn started(host: &'static Host) -> Self {
        Self::started_with(host, "")
    }

    /// The same with a host.toml.
    #[track_caller]
    pub fn started_with(host: &'static Host, config: &str) -> Self {
        let mut pair = Self::new(host);
        if !config.is_empty() {
            pair.configure(config);
        }
        pair.start().ok();
        pair.with_workspace();
        pair
    }

    /// Makes a workspace directory of its own and registers it.
    #[track_caller]
    pub fn with_workspace(&mut self) {
        let name = format!("ws-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.workspace = self.host.workspace(&name);
        let path = self.workspace.display().to_string();
        self.salaam(&["workspace", "add", &path]).ok();
    }

    /// Writes host.toml.
    pub fn configure(&self, text: &str) {
        let path = self.config.join("host.toml");
        fs::write(&path, text).expect("root can write there");
        chown(&path, &format!("{0}:{0}", self.host.service.name));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }

    /// The operator socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("operator.sock")
    }

    /// `salaam` as `account`, with this pair's directories; arguments are still to come.
    pub fn command_as(&self, account: &Account) -> Command {
        self.command_through(account, &[])
    }

    /// The same with options of setpriv(1).
    pub fn command_through(&self, account: &Account, options: &[&str]) -> Command {
        let mut command = account.command_through(options, self.host.salaam());
        self.environment(&mut command);
        command
    }

    /// Gives `command` this pair's directories and variables.
    pub fn environment(&self, command: &mut Command) {
        command
            .env("SALAAM_CONFIG_DIR", &self.config)
            .env("SALAAM_STATE_DIR", &self.state)
            .env("SALAAM_RUNTIME_DIR", &self.runtime)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Runs `salaam` as the service user.
    pub fn salaam(&self, words: &[&str]) -> Ran {
        Ran::of(self.command_as(&self.host.service).args(words))
    }

    /// Runs `salaam` as `account`.
    pub fn salaam_as(&self, account: &Account, words: &[&str]) -> Ran {
        Ran::of(self.command_as(account).args(words))
    }

    /// `salaam service start --tools-user …`.
    pub fn start(&self) -> Ran {
        self.start_with(&[])
    }

    /// The same after a kill: a process that is not seen any more may hold the lock for another moment, as its last
    /// thread comes back from the disk.
    #[track_caller]
    pub fn start_after_kill(&self) {
        eventually("the lock of the killed service is free", Duration::from_secs(20), || {
            let started = self.start();
            if started.err().contains("state-locked") {
                return None;
            }
            started.ok();
            Some(())
        });
    }

    /// The same with more words.
    pub fn start_with(&self, words: &[&str]) -> Ran {
        let mut all = vec!["service", "start", "--tools-user", &self.host.tools.name];
        all.extend_from_slice(words);
        self.salaam(&all)
    }

    /// `salaam service stop`.
    pub fn stop(&self) -> Ran {
        self.salaam(&["service", "stop"])
    }

    /// `salaam health --json`.
    #[track_caller]
    pub fn health(&self) -> Value {
        self.salaam(&["health", "--json"]).ok().json()
    }

    /// One command in this pair's workspace, proposed and granted in one go.
    pub fn run(&self, words: &[&str]) -> Ran {
        self.run_with(&[], words)
    }

    /// The same with options of `run`.
    pub fn run_with(&self, options: &[&str], words: &[&str]) -> Ran {
        self.run_input(options, words, b"")
    }

    /// The same with standard input for the CLI.
    pub fn run_input(&self, options: &[&str], words: &[&str], input: &[u8]) -> Ran {
        Ran::with_input(&mut self.run_command(&self.host.service, options, words), input, LIMIT)
    }

    /// The same, and the result object.
    #[track_caller]
    pub fn result(&self, options: &[&str], words: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend_from_slice(options);
        self.run_with(&all, words).json()
    }

    /// The same, under way.
    pub fn run_started(&self, options: &[&str], words: &[&str]) -> Started {
        Started::new(&mut self.run_command(&self.host.service, options, words), b"")
    }

    fn run_command(&self, account: &Account, options: &[&str], words: &[&str]) -> Command {
        let mut command = self.command_as(account);
        command.args(["run", "--yes", "--workspace"]).arg(&self.workspace).args(options).arg("--").args(words);
        command
    }

    /// One request by hand, as root.
    #[track_caller]
    pub fn http(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        http::send(&self.socket(), method, path, body)
    }

    /// The id of this pair's workspace.
    #[track_caller]
    pub fn workspace_id(&self) -> String {
        let path = self.workspace.display().to_string();
        let shown = self.salaam(&["workspace", "show", &path, "--json"]).ok().json();
        let id = shown["workspace"].as_str().or_else(|| shown["id"].as_str());
        id.unwrap_or_else(|| panic!("a workspace has an id: {shown}")).to_owned()
    }

    /// POST /v1/operations with `body` completed by the workspace; waits for the receipt.
    #[track_caller]
    pub fn post(&self, body: Value) -> Reply {
        self.http("POST", "/v1/operations", Some(&self.completed(body)))
    }

    /// Proposes without a grant and waits until an operator can see it.
    #[track_caller]
    pub fn propose(&self, body: Value) -> Pending {
        let body = self.completed(body);
        let known: Vec<String> = self.pending().iter().map(|one| text(one, "approval")).collect();
        let mut stream = http::connect(&self.socket(), LIMIT).expect("the operator socket takes connections");
        stream.write_all(&http::request("POST", "/v1/operations", Some(&body))).expect("the service reads");
        let object = eventually("the proposal is listed", Duration::from_secs(10), || {
            self.pending().into_iter().find(|one| !known.contains(&text(one, "approval")))
        });
        Pending {
            approval: text(&object, "approval"),
            operation: text(&object, "operation"),
            binding: text(&object, "binding"),
            object,
            stream,
        }
    }

    fn completed(&self, mut body: Value) -> Value {
        if body.get("workspace").is_none() {
            body["workspace"] = json!(self.workspace_id());
        }
        body
    }

    /// The approvals that wait.
    #[track_caller]
    pub fn pending(&self) -> Vec<Value> {
        let all = self.salaam(&["approval", "list", "--json"]).ok().json_lines();
        all.into_iter().filter(|one| one["state"] == "pending").collect()
    }

    /// `salaam approval grant`.
    pub fn grant(&self, approval: &str, binding: &str) -> Ran {
        self.salaam(&["approval", "grant", approval, "--binding", binding, "--json"])
    }

    /// `salaam operation show --json`.
    #[track_caller]
    pub fn operation(&self, id: &str) -> Value {
        self.salaam(&["operation", "show", id, "--json"]).ok().json()
    }

    /// Waits until an operation has ended, and gives its state.
    #[track_caller]
    pub fn final_state(&self, id: &str) -> String {
        eventually(&format!("{id} ends"), Duration::from_secs(20), || {
            let state = text(&self.operation(id), "state");
            (!["proposed", "pending", "granted", "dispatched"].contains(&state.as_str())).then_some(state)
        })
    }

    /// Every event, from the journal's own export.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.salaam(&["journal", "export"]).ok().json_lines()
    }

    /// The events of one kind about one operation.
    #[track_caller]
    pub fn events_of(&self, kind: &str, operation: &str) -> Vec<Value> {
        let all = self.events().into_iter();
        all.filter(|event| event["kind"] == kind && event["data"]["operation"] == operation).collect()
    }

    /// The service, found by its account and its state directory.
    pub fn service_process(&self) -> Option<Process> {
        let state = self.state.display().to_string();
        let ours = |process: &Process| {
            process.words.contains("service start --foreground")
                && process.variable("SALAAM_STATE_DIR").as_ref() == Some(&state)
        };
        Process::of_uid(self.host.service.uid).into_iter().find(ours)
    }

    /// The executors of this host, without the child that each keeps for its probes.
    pub fn executors(&self) -> Vec<Process> {
        let toolsd = self.host.libexec().join("salaam-toolsd");
        let ours = |process: &Process| {
            process.program().as_ref() == Some(&toolsd) && !process.words.trim_end().ends_with(" prober")
        };
        Process::of_uid(self.host.tools.uid).into_iter().filter(ours).collect()
    }

    /// Processes of the tools user that are no executor's own.
    pub fn commands(&self) -> Vec<Process> {
        let toolsd = self.host.libexec().join("salaam-toolsd");
        let foreign = |process: &Process| process.program().as_ref() != Some(&toolsd);
        // Between the two looks it may have gone.
        let all = Process::of_uid(self.host.tools.uid).into_iter().filter(foreign);
        all.filter(|process| Process::of(process.pid).is_some()).collect()
    }

    /// The sudo that the service started.
    pub fn sudo_process(&self) -> Option<Process> {
        let service = self.service_process()?.pid;
        Process::all().into_iter().find(|process| process.name == "sudo" && process.parent == service)
    }

    /// What the service logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.state.join("log/service.log")).unwrap_or_default()
    }

    /// Nothing panicked.
    #[track_caller]
    pub fn assert_sound(&self) {
        let log = self.log();
        assert!(!log.contains("panicked"), "the log tells of a panic:\n{log}");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let Some(service) = self.service_process() else {
            drop(fs::remove_dir_all(&self.base));
            return;
        };
        if std::thread::panicking() {
            let log = self.log();
            let head: String = log.chars().take(3000).collect();
            eprintln!("--- service.log begins\n{head}\n--- and ends\n{}\n---", tail(&log, 3000));
        }
        drop(Ran::of(self.command_as(&self.host.service).args(["service", "stop"])));
        if let Some(left) = Process::of(service.pid).filter(|p| p.uid == self.host.service.uid) {
            eprintln!("the service did not stop; it is killed");
            left.kill();
        }
        drop(fs::remove_dir_all(&self.base));
    }
}

/// A field that must be a string.
#[track_caller]
pub fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("no string `{key}` in {value}")).to_owned()
}

/// A file below the pair's workspace.
pub fn inside(pair: &Pair, name: impl AsRef<Path>) -> PathBuf {
    pair.workspace.join(name)
}

fn tail(text: &str, bytes: usize) -> &str {
    let at = text.len().saturating_sub(bytes);
    let at = (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text.get(at..).unwrap_or_default()
}
