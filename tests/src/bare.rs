//! The same work without Salaam, as the tools user: what a benchmark holds its figures against.
//!
//! A process of that account does it when told and says how long it took, so that no figure holds the time of
//! becoming the account. It is the benchmark's own program under another name, which must call [`serve`] first.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{fcntl::OFlag, sys::stat::Mode};
use salaam_core::limits::Limits;
use salaam_toolsd::sandbox::{self, Descriptors, LAUNCH_INSIDE, Launch, Walls};

use crate::host::Host;

/// The first argument of the process that does the work.
const BARE: &str = "--bare";
/// What a pipe holds unless somebody asks for more (pipe(7)), and what its readers mostly read at once.
const PIPE_BYTES: usize = 64 << 10;
/// bwrap's status goes here; its other descriptors follow.
const STATUS: i32 = 3;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A process of the tools user that does one thing again and again.
#[derive(Debug)]
pub struct Bare {
    child: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Bare {
    /// `true` in bwrap with exactly the arguments that the executor gives it for workspace-write.
    pub fn walls(host: &Host, workspace: &Path) -> Self {
        let launch = host.libexec().join("salaam-launch");
        Self::doing(host, workspace, &[OsStr::new("walls"), workspace.as_os_str(), launch.as_os_str()])
    }

    /// A program in `directory`, what it writes thrown away.
    pub fn program(host: &Host, directory: &Path, words: &[&str]) -> Self {
        let mut all = vec![OsStr::new("program")];
        all.extend(words.iter().map(OsStr::new));
        Self::doing(host, directory, &all)
    }

    /// A program whose standard output is read from a plain pipe to its end.
    pub fn pipe(host: &Host, words: &[&str]) -> Self {
        let mut all = vec![OsStr::new("pipe")];
        all.extend(words.iter().map(OsStr::new));
        Self::doing(host, Path::new("/"), &all)
    }

    /// What the benchmark itself gives to [`serve`] for these words.
    pub fn doing(host: &Host, directory: &Path, words: &[&OsStr]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let program = host.prefix.join(format!("bare-{number}"));
        let own = env::current_exe().expect("/proc is mounted");
        fs::copy(own, &program).expect("the prefix is root's");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let mut command = host.tools.command(program);
        command.arg(BARE).args(words).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("setpriv is there");
        let ask = child.stdin.take().expect("piped");
        let told = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, ask, told }
    }

    /// Does it once; how long it took.
    pub fn once(&mut self) -> Duration {
        self.ask.write_all(b"\n").expect("it listens");
        let mut line = String::new();
        self.told.read_line(&mut line).expect("it answers");
        Duration::from_nanos(line.trim().parse().expect("it answers with a number: does the program call serve()?"))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// In a process that was started by [`Bare`]: does its work until nobody asks any more, and is true then.
/// `more` knows what is done for words that are not known here.
pub fn serve(more: impl FnOnce(&[OsString]) -> Box<dyn FnMut()>) -> bool {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let Some((_, words)) = words.split_first().filter(|(first, _)| *first == BARE) else { return false };
    let mut once: Box<dyn FnMut()> = match words {
        [kind, workspace, launch] if kind == "walls" => {
            let (workspace, launch) = (workspace.clone(), launch.clone());
            Box::new(move || in_walls(Path::new(&workspace), Path::new(&launch)))
        }
        [kind, program, arguments @ ..] if kind == "program" || kind == "pipe" => {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            if kind == "pipe" {
                Box::new(move || read_to_end(&mut command))
            } else {
                Box::new(move || run(&mut command))
            }
        }
        other => more(other),
    };
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        once();
        println!("{}", start.elapsed().as_nanos());
    }
    true
}

fn run(command: &mut Command) {
    assert!(command.status().expect("it is there").success(), "{command:?}");
}

fn read_to_end(command: &mut Command) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it is there");
    let mut pipe = child.stdout.take().expect("piped");
    let mut buffer = vec![0; PIPE_BYTES];
    while pipe.read(&mut buffer).expect("a pipe") > 0 {}
    assert!(child.wait().expect("a child").success(), "{command:?}");
}

/// bwrap as the executor starts it, with `true` in the place of salaam-launch, reaped.
fn in_walls(workspace: &Path, launch: &Path) {
    let open = |path: &Path| -> Arc<OwnedFd> {
        let opened = nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        Arc::new(opened.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    };
    let null = fs::File::options().read(true).write(true).open("/dev/null").expect("it is there");
    let null: Arc<OwnedFd> = Arc::new(null.into());
    let limits = Limits::default();
    let mut descriptors = Descriptors::from(STATUS + 1);
    for number in 0..=STATUS {
        descriptors.put(Arc::clone(&null), number);
    }
    let walls = Walls {
        workspace,
        root: open(workspace),
        writable: true,
        protected: Vec::new(),
        read_paths: &[],
        hidden: &[],
        nothing: None,
        bound: Vec::new(),
        files: Vec::new(),
        launch: Launch::Place(open(launch)),
        limits: &limits,
    };
    let mut argv = sandbox::walled(walls, STATUS, &mut descriptors).into_vec();
    let last = argv.last_mut().expect("it has words");
    assert_eq!(last.to_bytes(), LAUNCH_INSIDE.as_bytes());
    *last = c"/bin/true".to_owned();
    let list = descriptors.into_list();
    let list: Vec<_> = list.iter().map(|(fd, number)| (fd.as_fd(), *number)).collect();
    let none: &[CString] = &[];
    let child = salaam_sys::spawn::spawn(c"/usr/bin/bwrap", &argv, none, &list, true).expect("bwrap is there");
    let ended = nix::sys::wait::waitpid(child, None).expect("a child");
    assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
}
