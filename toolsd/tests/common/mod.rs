//! A runner, a workspace, and one command in it, for tests that really run commands.
//!
//! As root every test runs itself again as an account that owns nothing: root passes most walls.

#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "clippy knows tests by #[test] only")]

use std::{
    path::{Path, PathBuf},
    process::Command as Process,
    sync::OnceLock,
    time::Duration,
};

use salaam_core::{
    bridge::{Beyond, Exit, RunEvent, RunPlan, Stream},
    command::Command,
    digest::Digest,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile, Unsandboxed},
    result::{Failure, Sandbox},
};
use salaam_toolsd::command::{Runner, RunnerConfig};
use tokio::sync::{mpsc, oneshot};

/// An account number that no distribution gives out.
const NOBODY: &str = "64217";

/// Runs `test` as an unprivileged account.
pub(crate) fn unprivileged(name: &str, test: impl AsyncFnOnce()) {
    unprivileged_through(name, &[], test);
}

/// The same, as root started through these words: what is left to a process by its parent.
pub(crate) fn unprivileged_through(name: &str, parent: &[&str], test: impl AsyncFnOnce()) {
    let launch = launch();
    if nix::unistd::geteuid().is_root() {
        let own = std::env::current_exe().unwrap();
        let account = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"];
        let words: Vec<&str> = parent.iter().copied().chain(account).collect();
        let status = Process::new(words[0])
            .args(&words[1..])
            .arg(own)
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env("SALAAM_TEST_LAUNCH", &launch)
            .status()
            .unwrap();
        assert!(status.success(), "{name} as uid {NOBODY}");
        return;
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test());
}

/// The same, after `prepare`, a shell script that root runs in a mount namespace of this test: `$AT` is a directory that
/// is handed to the account and removed afterwards, and where benches then lie.
pub(crate) fn unprivileged_after(name: &str, prepare: &str, test: impl AsyncFnOnce()) {
    if nix::unistd::geteuid().is_root() && std::env::var_os("SALAAM_TEST_PREPARED").is_none() {
        let own = std::env::current_exe().unwrap();
        let at = std::env::temp_dir().join(format!("salaam-at-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&at).unwrap();
        let text = format!(
            "set -e; mount --make-rprivate /; chown {NOBODY}:{NOBODY} $AT; {prepare}\n\
             exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups -- \"$0\" --exact {name} --nocapture --test-threads 1"
        );
        let status = Process::new("unshare")
            .args(["-m", "sh", "-c", &text])
            .arg(own)
            .env("AT", &at)
            .env("TMPDIR", &at)
            .env("SALAAM_TEST_PREPARED", "1")
            .env("SALAAM_TEST_LAUNCH", launch())
            .status()
            .unwrap();
        drop(std::fs::remove_dir_all(&at));
        assert!(status.success(), "{name} as uid {NOBODY}");
        return;
    }
    if std::env::var_os("SALAAM_TEST_PREPARED").is_none() {
        println!("only root can prepare what this is about");
        return;
    }
    unprivileged(name, test);
}

/// The static salaam-launch, built once: a dynamic one finds no loader in an empty root.
pub(crate) fn launch() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if let Some(path) = std::env::var_os("SALAAM_TEST_LAUNCH") {
                return path.into();
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            let built = Process::new(env!("CARGO"))
                .args(["build", "--release", "-p", "salaam-launch", "--target", &host])
                .current_dir(root)
                .env("RUSTFLAGS", "-C target-feature=+crt-static")
                .status()
                .unwrap();
            assert!(built.success());
            let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
            target.join(host).join("release/salaam-launch")
        })
        .clone()
}

/// A runner with an empty workspace, removed when dropped.
pub(crate) struct Bench {
    pub(crate) runner: std::sync::Arc<Runner>,
    pub(crate) workspace: WorkspaceId,
    pub(crate) path: PathBuf,
    /// Beside the workspace, not in it.
    pub(crate) outside: PathBuf,
}

/// What came of a command.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) beyond: Vec<Beyond>,
    pub(crate) exit: Option<Exit>,
    pub(crate) failure: Option<Failure>,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.exit.as_ref().unwrap_or_else(|| panic!("no exit: {self:?}")).exit_code
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end().to_owned()
    }
}

impl Bench {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_floor(name, Unsandboxed::Refuse)
    }

    pub(crate) fn with_floor(name: &str, unsandboxed: Unsandboxed) -> Self {
        let outside = std::env::temp_dir().join(format!("salaam-toolsd-{name}-{}", std::process::id()));
        Self::at(outside, unsandboxed)
    }

    /// In `workspace` of this directory, which need not be there.
    pub(crate) fn at(outside: PathBuf, unsandboxed: Unsandboxed) -> Self {
        let path = outside.join("workspace");
        std::fs::create_dir_all(&path).unwrap();
        let config = RunnerConfig { launch: Some(launch()), bwrap: None, cgroups: None, unsandboxed };
        let runner = Runner::new(config).unwrap();
        let workspace = WorkspaceId::new(1, [1; 10]);
        runner.open_workspace(workspace, path.as_os_str().as_encoded_bytes()).unwrap();
        Self { runner: runner.into(), workspace, path, outside }
    }

    /// On a host without bubblewrap, where a bare command is kept together by salaam-launch.
    pub(crate) fn without_bwrap(name: &str) -> Self {
        let mut bench = Self::with_floor(name, Unsandboxed::Allow);
        let bwrap = Some("/nowhere/bwrap".into());
        let config = RunnerConfig { launch: Some(launch()), bwrap, cgroups: None, unsandboxed: Unsandboxed::Allow };
        let runner = Runner::new(config).unwrap();
        runner.open_workspace(bench.workspace, bench.path.as_os_str().as_encoded_bytes()).unwrap();
        bench.runner = runner.into();
        bench
    }

    pub(crate) fn plan(&self, command: Command) -> RunPlan {
        RunPlan {
            operation: fresh(),
            epoch: 1,
            workspace: self.workspace,
            command,
            stdin: None,
            profile: Profile::WorkspaceWrite,
            network: Network::None,
            landlock: Landlock::Required,
            allow_unsandboxed: false,
            limits: Limits { command_seconds: 60, ..Limits::default() },
            files: Vec::new(),
            read_paths: Vec::new(),
            read_identities: Vec::new(),
            protected_paths: Vec::new(),
            environment: Vec::new(),
            whole_output: false,
        }
    }

    pub(crate) fn shell(&self, text: &str) -> RunPlan {
        self.plan(Command::shell(text.to_owned()).unwrap())
    }

    /// With read paths, as they are now.
    pub(crate) fn reading<'a>(&self, paths: impl IntoIterator<Item = &'a Path>, text: &str) -> RunPlan {
        let paths: Vec<_> = paths.into_iter().collect();
        let identity = |path: &&Path| {
            let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_NOFOLLOW;
            let place = nix::fcntl::open(*path, flags, nix::sys::stat::Mode::empty());
            place.map(|place| salaam_sys::file::identity(place).unwrap()).unwrap_or_default()
        };
        RunPlan {
            read_identities: paths.iter().map(identity).collect(),
            read_paths: paths.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect(),
            ..self.shell(text)
        }
    }

    pub(crate) fn bare(&self, text: &str) -> RunPlan {
        RunPlan { profile: Profile::FullAccess, network: Network::Host, allow_unsandboxed: true, ..self.shell(text) }
    }

    pub(crate) async fn sh(&self, text: &str) -> Outcome {
        self.run(self.shell(text)).await
    }

    pub(crate) async fn run(&self, plan: RunPlan) -> Outcome {
        self.run_with(plan, b"", None).await
    }

    pub(crate) async fn run_with(&self, mut plan: RunPlan, stdin: &[u8], cancel_after: Option<Duration>) -> Outcome {
        if !stdin.is_empty() {
            plan.stdin = Some((Digest::of(stdin), stdin.len() as u64));
        }
        let (events, received) = mpsc::channel(8);
        let (ask, cancel) = oneshot::channel();
        let canceller = tokio::spawn(async move {
            match cancel_after {
                Some(after) => {
                    tokio::time::sleep(after).await;
                    ask.send(()).unwrap();
                }
                None => {
                    std::future::pending::<()>().await;
                    drop(ask);
                }
            }
        });
        let (outcome, ()) = tokio::join!(collect(received), self.runner.run(plan, stdin.to_vec(), events, cancel));
        canceller.abort();
        outcome
    }

    /// What this process has started or inherited and not reaped.
    pub(crate) fn children() -> Vec<String> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let parent = format!(" {} ", std::process::id());
        stats.filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest[2..].starts_with(&parent))).collect()
    }

    /// Processes of this account whose command line holds `mark`.
    pub(crate) fn alive(mark: &str) -> Vec<String> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .filter(|line| line.contains(mark) && !line.contains("--exact"))
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.outside));
    }
}

pub(crate) async fn collect(mut events: mpsc::Receiver<RunEvent>) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some(event) = events.recv().await {
        assert!(outcome.exit.is_none() && outcome.failure.is_none(), "nothing follows the last event");
        match event {
            RunEvent::Spawned(sandbox) => outcome.sandbox = Some(sandbox),
            RunEvent::Output(Stream::Stdout, bytes) => outcome.stdout.extend(bytes),
            RunEvent::Output(Stream::Stderr, bytes) => outcome.stderr.extend(bytes),
            RunEvent::Beyond(beyond) => outcome.beyond.push(beyond),
            RunEvent::Failed(failure) => outcome.failure = Some(failure),
            RunEvent::Exited(exit) => outcome.exit = Some(*exit),
        }
    }
    outcome
}

pub(crate) fn fresh() -> OperationId {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    OperationId::new(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed), [7; 10])
}
