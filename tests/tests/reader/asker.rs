//! A workspace with something secret beside it, and the service's adapter at work on it as the service account.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use salaam_tests::{
    Host, eventually,
    process::Process,
    ran::{self, Ran},
};
use serde_json::{Value, json};

/// What is in every file that must not be read.
pub(crate) const KEY: &str = "secret-d41d8cd98f00b204";

/// The service's side, running.
pub(crate) struct Asker {
    pub(crate) workspace: PathBuf,
    /// The service's own: nobody else may enter.
    pub(crate) outside: PathBuf,
    pub(crate) child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Asker {
    pub(crate) fn new(name: &str) -> Self {
        let host = Host::shared();
        let workspace = host.workspace(&format!("reader-{name}"));
        let outside = host.prefix.join(format!("reader-{name}"));
        fs::create_dir(&outside).expect("the prefix is root's");
        let account = &host.service;
        let owner = format!("{}:{}", account.name, account.name);
        salaam_tests::host::chown(&outside, &owner);
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let secret = outside.join("secret");
        fs::write(&secret, format!("{KEY}\n")).expect("it is new");
        salaam_tests::host::chown(&secret, &owner);
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
        // Where the account can start it: a build directory may be anybody's.
        let program = host.prefix.join("reader-driver");
        if !program.exists() {
            fs::copy(std::env::current_exe().expect("/proc is mounted"), &program).expect("there is room");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        let version = Ran::of(account.command(host.salaam()).arg("--version")).ok().out();
        let build = version.trim().strip_prefix("salaam ").expect("its name and its build").to_owned();
        let groups = ran::run(&["id", "-G", &host.tools.name]).out().trim().replace(' ', ",");
        let mut child = account
            .command(program)
            .args(["--exact", "the_service_side", "--nocapture"])
            .env("DRIVER_ROOT", &workspace)
            .env("DRIVER_PROGRAM", host.libexec().join("salaam-reader"))
            .env("DRIVER_STATE", &outside)
            .env("DRIVER_BUILD", build)
            .env("DRIVER_UID", host.tools.uid.to_string())
            .env("DRIVER_GROUPS", groups)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv is there");
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { workspace, outside, child, questions, answers }
    }

    /// One question and its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, question: Value) -> Value {
        self.send(question);
        self.answer()
    }

    pub(crate) fn send(&mut self, question: Value) {
        let questions = self.questions.as_mut().expect("it is running");
        writeln!(questions, "{question}").expect("the driver reads");
    }

    #[track_caller]
    pub(crate) fn answer(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).expect("text") > 0, "the driver ended");
            // The runner's own words about its test stand before the first one.
            if let Some((_, answer)) = line.split_once('@') {
                return serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {line}"));
            }
        }
    }

    #[track_caller]
    pub(crate) fn read(&mut self, path: &str) -> Value {
        self.ask(json!({"do": "read", "path": path}))
    }

    #[track_caller]
    pub(crate) fn search(&mut self, pattern: &str) -> Value {
        self.ask(json!({"do": "search", "pattern": pattern}))
    }

    /// The word of a refusal by `read`.
    #[track_caller]
    pub(crate) fn refused(&mut self, path: &str) -> String {
        let answer = self.read(path);
        answer["refused"].as_str().unwrap_or_else(|| panic!("{path}: {answer}")).to_owned()
    }

    /// The reader itself; there is one once something was asked.
    pub(crate) fn reader(&self) -> Process {
        let uid = Host::shared().service.uid;
        let driver = self.driver();
        let ours = |process: &Process| process.name == "salaam-reader" && process.parent == driver;
        eventually("a reader of the driver", Duration::from_secs(10), || {
            Process::of_uid(uid).into_iter().find(|process| ours(process))
        })
    }

    /// setpriv execs, so the driver has the number of what was started.
    fn driver(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// What plain code of the service account prints: the same reach without the reader.
    pub(crate) fn plain(&self, script: &str) -> Ran {
        let mut command = Host::shared().service.command("timeout");
        command.args(["2", "sh", "-c", script]).current_dir(&self.workspace);
        Ran::of(&mut command)
    }

    /// Runs a script of root's in the workspace.
    pub(crate) fn root(&self, script: &str) {
        ran::run(&["sh", "-c", &format!("cd '{}' && {script}", self.workspace.display())]);
    }

    /// A file as the service user's edits leave it: the work group may read it.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        Host::shared().write(&self.workspace.join(path), content);
    }

    pub(crate) fn secret(&self) -> PathBuf {
        self.outside.join("secret")
    }
}

/// Tells a racing thread that the race is over, also when the test fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Its end is the end of its questions.
        drop(self.questions.take());
        drop(self.child.wait());
        remove(&self.workspace);
        remove(&self.outside);
    }
}

fn remove(directory: &Path) {
    // rm walks deeper than the standard library does.
    let mut command = Command::new("rm");
    drop(Ran::with_input(command.arg("-rf").arg(directory), b"", Duration::from_secs(600)));
}
