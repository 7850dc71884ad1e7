//! A workspace with files, edits of it, and this program run again as another account or to be killed.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::errno::Errno;
use salaam_core::{
    edit::{self, Change, FileChange},
    id::OperationId,
};
use salaam_toolsd::edit::{Refusal, Settled, Step, Work, apply, read_files, settle};

/// Account numbers that no distribution gives out.
pub(crate) const TOOLS: u32 = 64_218;
pub(crate) const OTHER: u32 = 64_219;
pub(crate) const GROUP: u32 = 64_220;

/// A directory to edit in, removed when dropped.
pub(crate) struct Bench {
    /// Beside the workspace, not in it.
    pub(crate) outside: PathBuf,
    pub(crate) root: PathBuf,
    /// A copy of this program for another account.
    program: PathBuf,
}

/// Before which step something goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fail {
    /// The n-th swap.
    Swap(usize),
    /// The n-th step of all.
    Nth(usize),
}

/// What this program does when it is run again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job {
    /// Edits run.sh, renames plain and back.
    Attributes,
    /// Takes the edit of run.sh back.
    AttributesBack,
    /// Applies the sample edit; kills itself before the step with that number.
    Apply(usize),
    /// Settles the sample edit.
    Settle,
    /// Makes `b` larger than its quota.
    Quota,
}

impl Job {
    fn to_text(self) -> String {
        match self {
            Self::Attributes => "attributes".into(),
            Self::AttributesBack => "attributes-back".into(),
            Self::Apply(step) => format!("apply:{step}"),
            Self::Settle => "settle".into(),
            Self::Quota => "quota".into(),
        }
    }

    fn of(text: &str) -> Self {
        match text.split_once(':') {
            Some(("apply", step)) => Self::Apply(step.parse().unwrap()),
            _ if text == "attributes" => Self::Attributes,
            _ if text == "quota" => Self::Quota,
            _ if text == "attributes-back" => Self::AttributesBack,
            _ => Self::Settle,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.program);
        fs::remove_dir_all(&self.outside).unwrap();
    }
}

impl Bench {
    pub(crate) fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    pub(crate) fn below(directory: &Path, name: &str) -> Self {
        let outside = directory.join(format!("salaam-edits-{name}-{}", std::process::id()));
        let root = outside.join("workspace");
        fs::create_dir_all(&root).unwrap();
        let program = std::env::temp_dir().join(format!("salaam-edits-{name}-{}-child", std::process::id()));
        Self { outside, root, program }
    }

    /// A workspace of the work group, as `host setup` leaves it; absent where this is not root.
    pub(crate) fn shared(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("needs root: not tried");
            return None;
        }
        let bench = Self::new(name);
        std::os::unix::fs::chown(&bench.root, Some(OTHER), Some(GROUP)).unwrap();
        fs::set_permissions(&bench.root, fs::Permissions::from_mode(0o2775)).unwrap();
        fs::set_permissions(&bench.outside, fs::Permissions::from_mode(0o755)).unwrap();
        Some(bench)
    }

    pub(crate) fn write(&self, path: &str, text: &str, mode: u32) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }

    /// Everything, to compare two states.
    pub(crate) fn whole(&self) -> Vec<String> {
        let mut all: Vec<String> = tree(&self.root)
            .into_iter()
            .map(
                |(path, content, mode)| {
                    if content == DIRECTORY { path + "/" } else { format!("{path} {mode:o} {content:?}") }
                },
            )
            .collect();
        all.sort();
        all
    }

    /// Every file and empty directory, the latter with a slash.
    pub(crate) fn names(&self) -> Vec<String> {
        listed(&self.root)
    }

    /// Every file in one line of text, to compare with what it should be.
    pub(crate) fn brief(&self) -> Vec<String> {
        let line = |(path, content, mode): (String, Vec<u8>, u32)| match mode {
            0 => format!("{path} {}", String::from_utf8_lossy(&content)),
            mode => format!("{path} {mode:o} {:?}", String::from_utf8_lossy(&content)),
        };
        tree(&self.root).into_iter().map(line).collect()
    }

    /// Two files of the tools account in a directory that it can write.
    pub(crate) fn put_quota(&self) {
        fs::set_permissions(&self.outside, fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["a", "b"] {
            self.write(name, "1", 0o664);
            std::os::unix::fs::chown(self.root.join(name), Some(TOOLS), Some(TOOLS)).unwrap();
        }
        std::os::unix::fs::chown(&self.root, Some(TOOLS), Some(TOOLS)).unwrap();
    }

    /// What the changes come to, from what is there now.
    pub(crate) fn files(&self, changes: &[Change]) -> Vec<FileChange> {
        self.try_files(changes).unwrap()
    }

    fn try_files(&self, changes: &[Change]) -> Result<Vec<FileChange>, Refusal> {
        let root = fs::File::open(&self.root).unwrap();
        let paths = edit::paths(changes).unwrap().into_iter().collect();
        let before: BTreeMap<_, _> = read_files(root.as_fd(), paths, &[])?.files.into_iter().collect();
        Ok(edit::apply(changes, &before)?)
    }

    pub(crate) fn work(&self, number: impl Into<Number>, changes: &[Change], directories: &[PathBuf]) -> Work {
        Work {
            operation: number.into().0,
            changes: changes.to_vec(),
            expected: edit::expected(&self.files(changes)),
            protected: Vec::new(),
            directories: directories.to_vec(),
        }
    }

    pub(crate) fn apply(&self, work: &Work) -> Result<Vec<PathBuf>, Refusal> {
        self.apply_with(work, &mut |_| Ok(()))
    }

    pub(crate) fn apply_with(
        &self,
        work: &Work,
        step: &mut dyn FnMut(Step) -> Result<(), Refusal>,
    ) -> Result<Vec<PathBuf>, Refusal> {
        let root = fs::File::open(&self.root).unwrap();
        apply(root.as_fd(), work, step)
    }

    pub(crate) fn apply_failing(&self, work: &Work, fail: Fail) -> Result<Vec<PathBuf>, Refusal> {
        let mut taken = 0;
        self.apply_with(work, &mut |step| {
            let now = match fail {
                Fail::Swap(number) => step == Step::Swap(number),
                Fail::Nth(number) => taken == number,
            };
            taken += 1;
            let failed = Refusal::Kernel { attempted: "trying", path: "it".into(), errno: Errno::EIO };
            if now { Err(failed) } else { Ok(()) }
        })
    }

    pub(crate) fn edit(&self, number: u8, changes: &[Change]) -> Result<Vec<PathBuf>, Refusal> {
        self.edit_with(number, changes, &[])
    }

    pub(crate) fn edit_with(
        &self,
        number: u8,
        changes: &[Change],
        directories: &[PathBuf],
    ) -> Result<Vec<PathBuf>, Refusal> {
        self.try_files(changes)?;
        self.apply(&self.work(number, changes, directories))
    }

    pub(crate) fn settle_work(&self, work: &Work) -> Result<Settled, Refusal> {
        let root = fs::File::open(&self.root).unwrap();
        settle(root.as_fd(), work.operation, &work.expected, &work.directories)
    }

    /// Runs a job as the tools account; the id of the refusal, or `done`.
    pub(crate) fn as_tools(&self, job: Job) -> String {
        // The program may lie where that account may not go.
        fs::copy(std::env::current_exe().unwrap(), &self.program).unwrap();
        let said = self.outside.join("said");
        fs::write(&said, "").unwrap();
        fs::set_permissions(&said, fs::Permissions::from_mode(0o666)).unwrap();
        let (uid, group) = (TOOLS.to_string(), GROUP.to_string());
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &uid, "--regid", &uid, "--groups", &group, "--bounding-set", "-all", "--"])
            .arg(&self.program);
        assert!(self.told(command, job).status().unwrap().success());
        fs::read_to_string(said).unwrap()
    }

    /// Starts a job in a process of its own.
    pub(crate) fn start(&self, job: Job) -> Child {
        self.told(Command::new(std::env::current_exe().unwrap()), job).spawn().unwrap()
    }

    fn told(&self, mut command: Command, job: Job) -> Command {
        command
            .args(["--exact", "bench::child", "--nocapture"])
            .env("SALAAM_EDITS_ROOT", &self.root)
            .env("SALAAM_EDITS_JOB", job.to_text())
            .current_dir("/")
            .stdout(Stdio::null());
        command
    }

    /// The files that the sample edit is of.
    pub(crate) fn put_sample(&self) {
        for (path, text, mode) in SAMPLE {
            self.write(path, text, mode);
        }
    }
}

const SAMPLE: [(&str, &str, u32); 5] = [
    ("a.txt", "one\n", 0o644),
    ("sub/b.sh", "exit 1\n", 0o755),
    ("sub/gone", "x", 0o640),
    ("from", "f", 0o600),
    ("bystander", "b", 0o600),
];

/// An edit with every kind of change, computed from the sample files as they were.
pub(crate) fn sample() -> Work {
    let changes = vec![
        replace("a.txt", "one", "two"),
        replace("sub/b.sh", "exit 1", "exit 0"),
        mode("sub/b.sh", 0o775),
        delete("sub/gone"),
        rename("from", "d/e/to"),
        create("d/f/new", "new\n"),
        create("top", "top\n"),
    ];
    let image = |text: &str, mode| Some(edit::Image { content: text.into(), mode });
    let mut before: BTreeMap<Vec<u8>, _> =
        SAMPLE.iter().map(|(path, text, mode)| (path.as_bytes().to_vec(), image(text, *mode))).collect();
    for path in edit::paths(&changes).unwrap() {
        before.entry(path).or_insert(None);
    }
    let files = edit::apply(&changes, &before).unwrap();
    Work {
        operation: operation(7),
        changes,
        expected: edit::expected(&files),
        protected: Vec::new(),
        directories: Vec::new(),
    }
}

/// Not a test: what [`Bench::start`] runs.
#[test]
fn child() {
    let Some(root) = std::env::var_os("SALAAM_EDITS_ROOT") else { return };
    let root = PathBuf::from(root);
    let bench = std::mem::ManuallyDrop::new(Bench {
        outside: root.parent().unwrap().to_owned(),
        root,
        program: PathBuf::new(),
    });
    let there = [replace("run.sh", "exit 1", "exit 0"), rename("plain", "moved")];
    let back = [replace("run.sh", "exit 0", "exit 1"), rename("moved", "plain")];
    let result = match Job::of(&std::env::var("SALAAM_EDITS_JOB").unwrap()) {
        Job::Attributes => bench.edit(1, &there).and_then(|_| {
            // There and back, as an undo writes it: by content, not by the rename.
            let files = bench.files(&back[1..]);
            bench.edit(2, &back[1..])?;
            let undo = edit::reverse(&files);
            let undone = bench.files(&undo);
            bench.edit(3, &undo)?;
            bench.edit(4, &edit::reverse(&undone))
        }),
        Job::AttributesBack => bench.edit(5, &back[..1]),
        Job::Apply(last) => {
            let mut taken = 0;
            bench.apply_with(&sample(), &mut |_| {
                if taken == last {
                    nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::SIGKILL).unwrap();
                }
                taken += 1;
                Ok(())
            })
        }
        Job::Quota => bench.edit(1, &[replace("a", "1", "2"), replace("b", "1", &"x".repeat(6 << 20))]),
        Job::Settle => bench.settle_work(&sample()).map(|_| Vec::new()),
    };
    let said = result.map_or_else(|refusal| refusal.id().to_owned(), |_| "done".to_owned());
    fs::write(bench.outside.join("said"), said).unwrap();
}

const DIRECTORY: &[u8] = b"\0directory";

/// Every file and empty directory with content and mode.
pub(crate) fn tree(root: &Path) -> Vec<(String, Vec<u8>, u32)> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let shown = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let stat = fs::symlink_metadata(&path).unwrap();
            let mode = stat.mode() & 0o7777;
            if stat.is_dir() {
                if fs::read_dir(&path).unwrap().next().is_none() {
                    found.push((shown, DIRECTORY.to_vec(), 0));
                }
                open.push(path);
            } else if stat.is_file() {
                found.push((shown, fs::read(&path).unwrap(), mode));
            } else {
                let kind = if stat.is_symlink() { "link" } else { "special" };
                found.push((shown, kind.as_bytes().to_vec(), 0));
            }
        }
    }
    found.sort();
    found
}

fn listed(root: &Path) -> Vec<String> {
    tree(root).into_iter().map(|(path, content, _)| if content == DIRECTORY { path + "/" } else { path }).collect()
}

/// An operation's number, or the operation.
pub(crate) struct Number(OperationId);

impl From<u8> for Number {
    fn from(number: u8) -> Self {
        Self(operation(number))
    }
}

impl From<OperationId> for Number {
    fn from(operation: OperationId) -> Self {
        Self(operation)
    }
}

pub(crate) fn operation(number: u8) -> OperationId {
    OperationId::new(1, [number; 10])
}

pub(crate) fn bytes_path(bytes: &[u8]) -> Vec<u8> {
    OsStr::from_bytes(bytes).as_bytes().to_vec()
}

pub(crate) fn replace(path: &str, old: &str, new: &str) -> Change {
    Change::Replace { path: path.into(), old: old.into(), new: new.into(), all: false }
}

pub(crate) fn create(path: &str, content: &str) -> Change {
    Change::Create { path: path.into(), content: content.into() }
}

pub(crate) fn delete(path: &str) -> Change {
    Change::Delete { path: path.into() }
}

pub(crate) fn rename(path: &str, to: &str) -> Change {
    Change::Rename { path: path.into(), to: to.into() }
}

pub(crate) fn mode(path: &str, mode: u32) -> Change {
    Change::Mode { path: path.into(), mode }
}
