//! How long `true` takes behind all walls, as a ratio to bwrap with the same arguments, and how fast output
//! comes through. Prints medians of one run; run it with --release.

use std::{
    error::Error,
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{fcntl::OFlag, sys::stat::Mode};
use salaam_core::{
    bridge::{RunEvent, RunPlan},
    command::Command,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile, Unsandboxed},
};
use salaam_toolsd::{
    command::{Runner, RunnerConfig},
    sandbox::{self, Descriptors, LAUNCH_INSIDE, Launch, Walls},
};
use tokio::sync::{mpsc, oneshot};

const ROUNDS: u64 = 200;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let launch = std::env::args_os().nth(1).ok_or("usage: speed SALAAM-LAUNCH (the static one)")?;
    let workspace = std::env::temp_dir().join(format!("salaam-speed-{}", std::process::id()));
    std::fs::create_dir(&workspace)?;
    let measured = measure(Path::new(&launch), &workspace).await;
    std::fs::remove_dir_all(&workspace)?;
    measured
}

async fn measure(launch: &Path, workspace: &Path) -> Result<(), Box<dyn Error>> {
    let config =
        RunnerConfig { launch: Some(launch.to_owned()), bwrap: None, cgroups: None, unsandboxed: Unsandboxed::Refuse };
    let runner = Runner::new(config)?;
    let id = WorkspaceId::new(1, [1; 10]);
    runner.open_workspace(id, workspace.as_os_str().as_encoded_bytes()).map_err(|failure| failure.message)?;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = Instant::now();
        bwrap_alone(launch, workspace)?;
        bare.push(start.elapsed());
        let start = Instant::now();
        run(&runner, plan(id, round, Command::Argv(vec![b"/bin/true".to_vec()]))).await;
        ours.push(start.elapsed());
    }
    let (bare, ours) = (median(bare), median(ours));
    println!(
        "bwrap alone {bare:?}, true behind all walls {ours:?}, ratio {:.2}",
        ours.as_secs_f64() / bare.as_secs_f64()
    );

    const MEBIBYTES: u32 = 1024;
    let text = format!("head -c {}M /dev/zero", MEBIBYTES);
    let start = Instant::now();
    let bytes = run(&runner, plan(id, ROUNDS, Command::Shell(text))).await;
    println!("{:.0} MiB/s of output", bytes as f64 / 1048576.0 / start.elapsed().as_secs_f64());
    Ok(())
}

async fn run(runner: &Runner, plan: RunPlan) -> u64 {
    let (events, mut received) = mpsc::channel(8);
    let (_ask, cancel) = oneshot::channel();
    let count = async {
        let mut bytes = 0;
        while let Some(event) = received.recv().await {
            match event {
                RunEvent::Output(_, output) => bytes += output.len() as u64,
                RunEvent::Failed(failure) => println!("failed: {}", failure.message),
                RunEvent::Spawned(_) | RunEvent::Exited(_) => {}
            }
        }
        bytes
    };
    tokio::join!(runner.run(plan, Vec::new(), events, cancel), count).1
}

fn plan(workspace: WorkspaceId, round: u64, command: Command) -> RunPlan {
    RunPlan {
        operation: OperationId::new(round, [1; 10]),
        epoch: 1,
        workspace,
        command,
        stdin: None,
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock: Landlock::Required,
        allow_unsandboxed: false,
        limits: Limits::default(),
        files: Vec::new(),
        read_paths: Vec::new(),
        protected_paths: Vec::new(),
        environment: Vec::new(),
    }
}

/// The same arguments, with `true` in place of salaam-launch.
fn bwrap_alone(launch: &Path, workspace: &Path) -> Result<(), Box<dyn Error>> {
    let open = |path: &Path| -> nix::Result<Arc<OwnedFd>> {
        nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map(Arc::new)
    };
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::options().read(true).write(true).open("/dev/null")?.into());
    let limits = Limits::default();
    let mut descriptors = Descriptors::from(4);
    for number in 0..=3 {
        descriptors.put(Arc::clone(&null), number);
    }
    let walls = Walls {
        workspace,
        root: open(workspace)?,
        writable: true,
        protected: Vec::new(),
        read_paths: &[],
        bound: Vec::new(),
        launch: Launch::Place(open(launch)?),
        limits: &limits,
    };
    let mut argv = sandbox::walled(walls, 3, &mut descriptors).into_vec();
    for word in argv.iter_mut().rev().take(1) {
        debug_assert_eq!(word.to_bytes(), LAUNCH_INSIDE.as_bytes());
        *word = c"/bin/true".to_owned();
    }
    let list = descriptors.into_list();
    let list: Vec<_> = list.iter().map(|(fd, number)| (fd.as_fd(), *number)).collect();
    let none: &[CString] = &[];
    let child = salaam_sys::spawn::spawn(c"/usr/bin/bwrap", &argv, none, &list, true)?;
    nix::sys::wait::waitpid(child, None)?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
