//! Sets the stage for one command: the plan for launch, the arguments for bwrap, the pipes between.

use std::{
    ffi::CString,
    fs::File,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    fcntl::{OFlag, open},
    libc,
    sys::stat::{Mode, fstat},
};
use salaam_core::{
    bridge::RunPlan,
    command::{Command, MAX_ARGUMENT_BYTES},
    policy::Landlock,
    result::Failure,
};
use salaam_launch::{
    descriptor,
    plan::{Action, Bound, Canary, Keeper, Plan, Rules},
};

use super::{Refusal, hold::HeldFile, memory, vigil::Guarded, workspace::Workspace};
use crate::{
    output,
    sandbox::{
        Bwrap, Descriptors, Diagnosis, GIT_SETTINGS, GIT_SETTINGS_INSIDE, Launch, Masks, Protection, ReadPath, Reading,
        Walls, bare, environment, knobs, open_read_path, protected, walled,
    },
    supervise::{Cgroups, Leaf, Order, Start, pipe},
};

/// bwrap's own descriptors come after those of launch.
const STATUS: i32 = descriptor::CGROUP + 1;
/// What the kernel takes as arguments of bwrap; beyond it are only long lists of long paths.
const MAX_WALL_BYTES: usize = 1 << 20;

/// salaam-launch as it was found at start.
#[derive(Debug)]
pub(super) struct LaunchFile {
    path: PathBuf,
    place: Arc<OwnedFd>,
    content: Option<File>,
}

impl LaunchFile {
    /// Takes hold of it, so that an upgrade does not change what runs.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let place = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { path: path.to_owned(), place: Arc::new(place), content: File::open(path).ok() })
    }

    fn way_in(&self) -> Result<Launch, Refusal> {
        let stat = fstat(&self.place).map_err(|e| Refusal::kernel("looking at salaam-launch")(e.into()))?;
        if stat.st_nlink > 0 {
            return Ok(Launch::Place(Arc::clone(&self.place)));
        }
        let mut bytes = Vec::new();
        let mut copy = |content: &File| -> std::io::Result<OwnedFd> {
            use std::os::unix::fs::FileExt;
            let mut part = vec![0; 1 << 16];
            loop {
                match content.read_at(&mut part, bytes.len() as u64)? {
                    0 => return memory::sealed("salaam-launch", &bytes),
                    got => bytes.extend(part.iter().take(got)),
                }
            }
        };
        let missing = || {
            let (id, fix) = knobs(salaam_launch::report::Step::Plan);
            Refusal::Sandbox(Diagnosis { id, evidence: "salaam-launch was replaced meanwhile".into(), fix })
        };
        let content = self.content.as_ref().ok_or_else(missing)?;
        let content = copy(content).map_err(Refusal::kernel("copying salaam-launch"))?;
        Ok(Launch::Content(Arc::new(content)))
    }
}

/// What is the same for every command of this process.
#[derive(Debug)]
pub(super) struct Kit {
    /// Or why there is none that can be used.
    pub(super) bwrap: Result<Bwrap, Failure>,
    pub(super) launch: LaunchFile,
    pub(super) seccomp: Vec<u8>,
    /// For a command that has neither walls nor a pid namespace.
    pub(super) bare_seccomp: Vec<u8>,
    /// The control groups that commands are put into.
    pub(super) cgroups: Option<Cgroups>,
    /// What is hidden below read paths.
    pub(super) masks: Masks,
    /// In service-user mode this account is the service user itself.
    pub(super) as_service_user: bool,
}

impl Kit {
    fn leaf(&self) -> Result<Option<Leaf>, Refusal> {
        let taken = self.cgroups.as_ref().map(Cgroups::leaf).transpose();
        taken.map_err(Refusal::kernel("taking a control group for the command"))
    }

    pub(super) fn bwrap(&self) -> Result<&Bwrap, Refusal> {
        self.bwrap.as_ref().map_err(|failure| Refusal::NoSandbox(failure.clone()))
    }
}

/// A stage that is set.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) start: Start,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// How protected paths are kept; absent = none is.
    pub(super) guarded: Option<Guarded>,
    /// The control group that launch goes into.
    pub(super) leaf: Option<Leaf>,
}

/// Everything of one command that the stage needs.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) plan: &'a RunPlan,
    pub(super) stdin: &'a [u8],
    pub(super) workspace: &'a Workspace,
    /// Where all open workspaces are.
    pub(super) workspaces: &'a [PathBuf],
    pub(super) held: &'a [HeldFile],
    pub(super) immovable: &'a [PathBuf],
    pub(super) guard_to_the_end: bool,
}

/// The stage behind all walls.
pub(super) fn full(kit: &Kit, scene: &Scene<'_>, writable: bool) -> Result<Staged, Refusal> {
    let (plan, workspace) = (scene.plan, scene.workspace);
    let reading = Reading { workspaces: scene.workspaces, as_service_user: kit.as_service_user };
    let named = plan.read_paths.iter().zip(&plan.read_identities);
    let read_paths = named.map(|(path, identity)| open_read_path(path, identity, reading));
    let read_paths: Vec<ReadPath> = read_paths.collect::<Result<_, _>>().map_err(Refusal::ReadPath)?;
    let hidden = kit.masks.over(&read_paths).map_err(Refusal::ReadPath)?;
    let sealed = |bytes: &[u8]| memory::sealed("salaam-shown", bytes).map(Arc::new);
    let nothing = sealed(b"").map_err(Refusal::kernel("making what covers a credential"))?;
    // In a read-only workspace there is nothing to protect from.
    let protection = if writable {
        protected(workspace.root.as_fd(), &workspace.path, &plan.protected_paths, scene.immovable)
            .map_err(|e| Refusal::kernel("opening what is protected in the workspace")(e.into()))?
    } else {
        Protection::default()
    };
    let guarded = writable.then(|| Guarded::by(&protection));
    let mut write = vec![c"/tmp".to_owned(), c"/dev/shm".to_owned()];
    if writable {
        write.push(text(workspace.path.as_os_str().as_encoded_bytes())?);
    }
    let launch_plan = Plan {
        action: exec(plan, &read_paths)?,
        directory: text(workspace.path.as_os_str().as_encoded_bytes())?,
        limits: limits(plan, Counted::Apart),
        landlock: Some(rules(plan.landlock, write)),
        seccomp: kit.seccomp.clone(),
        bound: bound(scene.held)?,
        guard_to_the_end: scene.guard_to_the_end,
        script: script(plan).is_some(),
        keeper: Keeper::Namespace,
        cgroup: false,
    };
    let mut descriptors = Descriptors::from(STATUS + 1);
    let settings = sealed(GIT_SETTINGS).map_err(Refusal::kernel("writing down git's settings"))?;
    let mut shown = Vec::new();
    for read in &read_paths {
        let Some(content) = &read.content else { continue };
        let content = sealed(content).map_err(Refusal::kernel("keeping what a read path holds"))?;
        shown.push((read.path.as_path(), 0o444, content));
    }
    let held = scene.held.iter().map(|file| (file.path.as_path(), file.mode, Arc::clone(&file.content)));
    let walls = Walls {
        workspace: &workspace.path,
        root: Arc::clone(&workspace.root),
        writable,
        protected: protection.mounts,
        read_paths: &read_paths,
        hidden: &hidden,
        nothing: Some(nothing),
        bound: held.chain(shown).collect(),
        files: vec![(Path::new(GIT_SETTINGS_INSIDE), settings)],
        launch: kit.launch.way_in()?,
        limits: &plan.limits,
    };
    let argv = walled(walls, STATUS, &mut descriptors).into_vec();
    let staged =
        assemble(kit.bwrap()?.program.clone(), argv, descriptors, launch_plan, kit.leaf()?, scene.stdin, script(plan))?;
    Ok(Staged { guarded, ..staged })
}

/// The stage without walls but a pid namespace.
pub(super) fn without_walls(kit: &Kit, scene: &Scene<'_>) -> Result<Staged, Refusal> {
    let (plan, workspace) = (scene.plan, scene.workspace);
    let launch_plan = Plan {
        action: exec(plan, &[])?,
        directory: text(workspace.path.as_os_str().as_encoded_bytes())?,
        limits: limits(plan, Counted::Apart),
        script: script(plan).is_some(),
        ..Plan::default()
    };
    let mut descriptors = Descriptors::from(STATUS + 1);
    let root = Arc::clone(&workspace.root);
    let argv = bare(&kit.launch.path, &workspace.path, root, STATUS, &mut descriptors).into_vec();
    assemble(kit.bwrap()?.program.clone(), argv, descriptors, launch_plan, kit.leaf()?, scene.stdin, script(plan))
}

/// The stage without a namespace, where there are none to be had: launch keeps the command's processes together, a
/// landlock domain its signals, and a filter what else would reach the executor.
pub(super) fn alone(kit: &Kit, scene: &Scene<'_>) -> Result<Staged, Refusal> {
    let (plan, workspace) = (scene.plan, scene.workspace);
    let launch_plan = Plan {
        action: exec(plan, &[])?,
        directory: text(workspace.path.as_os_str().as_encoded_bytes())?,
        limits: limits(plan, Counted::Together),
        landlock: Some(Rules { required: true, signals_only: true, ..Rules::default() }),
        seccomp: kit.bare_seccomp.clone(),
        script: script(plan).is_some(),
        keeper: Keeper::Launch,
        ..Plan::default()
    };
    alone_with(kit, launch_plan, kit.leaf()?, scene.stdin, script(plan))
}

/// The stage for the canary, behind all walls, in a workspace of its own.
pub(super) fn canary(kit: &Kit, workspace: &Workspace, plan: &RunPlan, canary: Canary) -> Result<Staged, Refusal> {
    let path = text(workspace.path.as_os_str().as_encoded_bytes())?;
    let protection = protected(workspace.root.as_fd(), &workspace.path, &[], &[])
        .map_err(|e| Refusal::kernel("opening what is protected for the canary")(e.into()))?;
    let launch_plan = Plan {
        action: Action::Canary(canary),
        directory: path.clone(),
        limits: limits(plan, Counted::Apart),
        landlock: Some(rules(plan.landlock, vec![c"/tmp".to_owned(), c"/dev/shm".to_owned(), path])),
        seccomp: kit.seccomp.clone(),
        ..Plan::default()
    };
    let mut descriptors = Descriptors::from(STATUS + 1);
    let walls = Walls {
        workspace: &workspace.path,
        root: Arc::clone(&workspace.root),
        writable: true,
        protected: protection.mounts,
        read_paths: &[],
        hidden: &[],
        nothing: None,
        bound: Vec::new(),
        files: Vec::new(),
        launch: kit.launch.way_in()?,
        limits: &plan.limits,
    };
    let argv = walled(walls, STATUS, &mut descriptors).into_vec();
    // In a group like a command: that launch gets in is tried with the rest.
    assemble(kit.bwrap()?.program.clone(), argv, descriptors, launch_plan, kit.leaf()?, b"", None)
}

/// The stage for the same canary without any walls.
pub(super) fn canary_outside(kit: &Kit, directory: PathBuf, canary: Canary) -> Result<Staged, Refusal> {
    let launch_plan = Plan {
        action: Action::Canary(canary),
        directory: text(directory.as_os_str().as_encoded_bytes())?,
        keeper: Keeper::Launch,
        ..Plan::default()
    };
    alone_with(kit, launch_plan, None, b"", None)
}

fn alone_with(
    kit: &Kit,
    plan: Plan,
    leaf: Option<Leaf>,
    stdin: &[u8],
    script: Option<&str>,
) -> Result<Staged, Refusal> {
    let program = text(kit.launch.path.as_os_str().as_encoded_bytes())?;
    let argv = vec![c"salaam-launch".to_owned()];
    let staged = assemble(program, argv, Descriptors::from(STATUS + 1), plan, leaf, stdin, script)?;
    Ok(Staged { start: Start { keeper: Keeper::Launch, ..staged.start }, ..staged })
}

fn assemble(
    program: CString,
    argv: Vec<CString>,
    mut descriptors: Descriptors,
    plan: Plan,
    leaf: Option<Leaf>,
    stdin: &[u8],
    script: Option<&str>,
) -> Result<Staged, Refusal> {
    if argv.iter().map(|word| word.as_bytes().len() + 1).sum::<usize>() > MAX_WALL_BYTES {
        return Err(Refusal::Plan("its paths have more than 1 MiB together"));
    }
    let failed = Refusal::kernel;
    let null = |flags| open("/dev/null", flags | OFlag::O_CLOEXEC, Mode::empty());
    let stdin = if stdin.is_empty() {
        null(OFlag::O_RDONLY).map_err(|e| failed("opening /dev/null")(e.into()))?
    } else {
        memory::sealed("salaam-stdin", stdin).map_err(failed("keeping the standard input"))?
    };
    let pipes = || -> std::io::Result<_> { Ok((pipe()?, pipe()?, pipe()?, pipe()?, pipe()?)) };
    let ((stdout, out), (stderr, err), (status, status_in), (report, report_in), (control_out, control)) =
        pipes().map_err(failed("making pipes"))?;
    output::enlarge(&stdout);
    output::enlarge(&stderr);
    if let Some(leaf) = &leaf {
        descriptors.put(leaf.door().map_err(failed("opening the command's control group"))?, descriptor::CGROUP);
    }
    let plan = Plan { cgroup: leaf.is_some(), ..plan };
    let sealed = memory::sealed("salaam-plan", &plan.encode()).map_err(failed("keeping the plan"))?;
    descriptors.put(Arc::new(stdin), 0);
    descriptors.put(out, 1);
    descriptors.put(err, 2);
    descriptors.put(Arc::new(sealed), descriptor::PLAN);
    descriptors.put(report_in, descriptor::REPORT);
    descriptors.put(Arc::new(control_out), descriptor::CONTROL);
    descriptors.put(status_in, STATUS);
    if let Some(script) = script {
        let script = memory::sealed("salaam-script", script.as_bytes()).map_err(failed("keeping the command text"))?;
        descriptors.put(Arc::new(script), descriptor::SCRIPT);
    }
    let order = Order { program, argv, descriptors: descriptors.into_list() };
    Ok(Staged {
        start: Start { order, status, report, control, keeper: Keeper::Namespace },
        stdout,
        stderr,
        guarded: None,
        leaf,
    })
}

/// Shell text that is too long for one argument of exec.
fn script(plan: &RunPlan) -> Option<&str> {
    match &plan.command {
        Command::Shell(text) if text.len() > MAX_ARGUMENT_BYTES => Some(text),
        Command::Shell(_) | Command::Argv(_) => None,
    }
}

fn exec(plan: &RunPlan, read_paths: &[ReadPath]) -> Result<Action, Refusal> {
    let argv = match &plan.command {
        Command::Argv(argv) => argv.iter().map(|word| text(word)).collect::<Result<_, _>>()?,
        Command::Shell(_) if script(plan).is_some() => {
            vec![c"/bin/sh".to_owned(), text(format!("/proc/self/fd/{}", descriptor::SCRIPT).as_bytes())?]
        }
        Command::Shell(shell) => vec![c"/bin/sh".to_owned(), c"-c".to_owned(), text(shell.as_bytes())?],
    };
    Ok(Action::Exec { argv, env: environment(read_paths, &plan.environment) })
}

/// Whether what a limit counts is the command's own, or that of all processes of the account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// In a user namespace of its own.
    Apart,
    /// With the executor and other commands: a limit would be used up by them.
    Together,
}

/// The kernel's value for "nothing above 1 byte", which alone keeps a crash from a core_pattern that is a program as
/// well: 0 only forbids the file (core(5)). No file is that small, so there is none either.
const NO_CORE: u64 = 1;
/// What the kernel gives since Linux 5.16; keys of programs that sign fit.
const LOCKED_BYTES: u64 = 8 << 20;
/// What the kernel gives (mq_overview(7)).
const QUEUE_BYTES: u64 = 819_200;
/// Signals that wait, and timers: without a limit of its own one command takes those of the whole account.
const PENDING_SIGNALS: u64 = 4096;

fn limits(plan: &RunPlan, counted: Counted) -> Vec<(u32, u64)> {
    let limits = &plan.limits;
    let mut list = vec![
        (libc::RLIMIT_CORE, NO_CORE),
        (libc::RLIMIT_DATA, limits.memory_bytes),
        (libc::RLIMIT_FSIZE, limits.file_bytes),
        (libc::RLIMIT_NOFILE, limits.open_files),
        (libc::RLIMIT_MEMLOCK, LOCKED_BYTES),
        // Neither real-time nor a better priority, whatever whoever started the service may ask for.
        (libc::RLIMIT_RTPRIO, 0),
        (libc::RLIMIT_NICE, 0),
    ];
    if counted == Counted::Apart {
        list.extend([
            // The init of the namespace and launch count too.
            (libc::RLIMIT_NPROC, limits.processes + 2),
            (libc::RLIMIT_SIGPENDING, PENDING_SIGNALS),
            (libc::RLIMIT_MSGQUEUE, QUEUE_BYTES),
        ]);
    }
    list
}

fn rules(landlock: Landlock, write: Vec<CString>) -> Rules {
    Rules {
        required: match landlock {
            Landlock::Required => true,
            Landlock::IfAvailable => false,
        },
        signals_only: false,
        // What is not mounted is not there, and what is mounted read-only stays so; this is the second wall.
        read: vec![c"/".to_owned()],
        write,
        // Terminals of its own, /dev/null and the like. Not /proc: what a process may write about itself there is first
        // of all that it is not the one to go when memory ends.
        devices: vec![c"/dev".to_owned()],
    }
}

fn bound(held: &[HeldFile]) -> Result<Vec<Bound>, Refusal> {
    let each = held.iter().flat_map(|file| file.words.iter().map(move |word| (file, word)));
    each.map(|(file, word)| {
        Ok(Bound { path: text(word)?, size: file.bytes, placed: text(file.path.as_os_str().as_encoded_bytes())? })
    })
    .collect()
}

fn text(bytes: &[u8]) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(|_| Refusal::Plan("a NUL byte where none can be"))
}

/// What bwrap said on standard error before it gave up; a few lines at the most.
pub(super) fn said(stderr: OwnedFd) -> String {
    const MOST: u64 = 4096;
    let waiting = salaam_sys::file::waiting_bytes(&stderr).unwrap_or(0) as u64;
    let mut text = Vec::new();
    // Only what is there already: somebody may still hold the other end.
    match File::from(stderr).take(waiting.min(MOST)).read_to_end(&mut text) {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("its standard error could not be read: {error}"),
    }
}
