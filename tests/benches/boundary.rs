//! What the walls cost, held against the same work without Salaam: ratios taken in turn, in one run. Never a timed test.
//!
//! `cargo bench -p salaam-tests --bench boundary` as root, after a release build; with `-- ROW…` only those rows
//! (`cold`, `eight`, `status`, `stream`, `workspace`), with `--rounds N` another number than 200.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use salaam_core::{
    bridge::{RunEvent, RunPlan},
    command::Command,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile, Unsandboxed},
};
use salaam_tests::{Host, Pair, bare, bare::Bare, http, ran::Ran};
use salaam_toolsd::command::{Runner, RunnerConfig};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// Rounds of what takes milliseconds; what takes longer names its share of it.
const ROUNDS: usize = 200;
const AT_ONCE: usize = 8;
/// Commands have this priority; on a machine that does something else, too, it would count against them.
const NICE: [&str; 3] = ["nice", "-n", "5"];
/// Commands of one measurement of a rate.
const BATCH: usize = 40;
const FILES: usize = 20_000;
const STREAMED: u64 = 1 << 30;
/// What a workspace may hold without a command in it starting slower.
const AUTO_RUN_FILES: usize = 5_000;
const LINKED: usize = 300;
const READ_PATHS: usize = 40;

/// Measures on a host in so many rounds, and prints.
type Row = fn(&'static Host, usize);

fn main() {
    if bare::serve(executor) {
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benches, too, with this absent.
    if !words.iter().any(|word| word == "--bench") {
        return;
    }
    let rounds = words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1));
    let rounds: usize = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let rows: [(&str, Row); 5] =
        [("cold", cold), ("eight", eight), ("status", status), ("stream", stream), ("workspace", workspace)];
    let asked = |name: &str| words.iter().any(|word| word == name);
    let all = !rows.iter().any(|(name, _)| asked(name));
    println!("| what | Salaam | without | ratio | allowed |");
    println!("|---|---|---|---|---|");
    for (name, measure) in rows {
        if all || asked(name) {
            measure(Host::shared(), rounds);
        }
    }
}

/// One granted command to its receipt.
fn post(socket: &Path, workspace: &str, argv: &[&str]) -> Value {
    let body = json!({"workspace": workspace, "argv": argv, "grant": true});
    let reply = http::send(socket, "POST", "/v1/operations", Some(&body)).json();
    assert_eq!((&reply["state"], &reply["exit_code"]), (&json!("completed"), &json!(0)), "{reply}");
    reply
}

/// From one step of an operation to another.
fn span(reply: &Value, from: &str, to: &str) -> Duration {
    let at =
        |step: &str| reply["timing_us"][step].as_u64().unwrap_or_else(|| panic!("no {step} in {}", reply["timing_us"]));
    Duration::from_micros(at(to) - at(from))
}

fn cold(host: &'static Host, rounds: usize) {
    let pair = Pair::started(host);
    let (socket, workspace) = (pair.socket(), pair.workspace_id());
    let mut bare = Bare::walls(host, &pair.workspace);
    let (mut ours, mut up, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let reply = post(&socket, &workspace, &["true"]);
        ours.push(span(&reply, "granted", "exited"));
        up.push(span(&reply, "granted", "spawned"));
        without.push(bare.once());
    }
    let (ours, up, without) = (median(ours), median(up), median(without));
    row(&format!("cold `true`, granted to exit, median of {rounds}"), ours, without, "1.5");
    println!("| of it: granted to all layers in force | {:.2} ms | - | - | - |", ms(up));
}

fn eight(host: &'static Host, rounds: usize) {
    let pair = Pair::started_with(host, &format!("[limits]\nconcurrent_commands = {AT_ONCE}\n"));
    let (socket, workspace) = (pair.socket(), pair.workspace_id());
    let mut bares: Vec<Bare> = (0..AT_ONCE).map(|_| Bare::walls(host, &pair.workspace)).collect();
    let launch = host.libexec().join("salaam-launch");
    let words = [OsStr::new("executor"), pair.workspace.as_os_str(), launch.as_os_str()];
    let mut alone = Bare::doing(host, &pair.workspace, &words);
    let (mut ours, mut engine, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let batches = rounds.div_ceil(5);
    for _ in 0..batches {
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| (0..BATCH / AT_ONCE).for_each(|_| _ = post(&socket, &workspace, &["true"])));
            }
        });
        ours.push(start.elapsed());
        engine.push(alone.once());
        let start = Instant::now();
        thread::scope(|scope| {
            for bare in &mut bares {
                scope.spawn(|| (0..BATCH / AT_ONCE).for_each(|_| _ = bare.once()));
            }
        });
        without.push(start.elapsed());
    }
    let rate = |took: Duration| BATCH as f64 / took.as_secs_f64();
    let (ours, engine, without) = (rate(median(ours)), rate(median(engine)), rate(median(without)));
    for (what, ours, allowed) in
        [("granted to exit, the executor alone", engine, "at least 0.85"), ("proposal to receipt", ours, "-")]
    {
        println!(
            "| `true`, {AT_ONCE} at once, {what}, median of {batches} batches of {BATCH} | {ours:.0}/s | {without:.0}/s | {:.2} | {allowed} |",
            ours / without
        );
    }
}

/// A batch of commands in an executor without a service before it.
fn executor(words: &[OsString]) -> Box<dyn FnMut()> {
    let [kind, workspace, launch] = words else { panic!("nothing to do: {words:?}") };
    assert_eq!(kind, "executor");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let config =
        RunnerConfig { launch: Some(launch.into()), bwrap: None, cgroups: None, unsandboxed: Unsandboxed::Refuse };
    let _inside = runtime.enter();
    let runner = Arc::new(Runner::new(config).expect("all is there"));
    let id = WorkspaceId::new(1, [1; 10]);
    runtime.block_on(async { runner.open_workspace(id, workspace.as_encoded_bytes()) }).expect("it is a workspace");
    let mut number = 0;
    Box::new(move || {
        runtime.block_on(async {
            let mut lanes = JoinSet::new();
            for _ in 0..AT_ONCE {
                let (runner, first) = (Arc::clone(&runner), number);
                number += (BATCH / AT_ONCE) as u64;
                lanes.spawn(async move {
                    for number in first..first + (BATCH / AT_ONCE) as u64 {
                        run(&runner, plan(id, number)).await;
                    }
                });
            }
            lanes.join_all().await;
        });
    })
}

async fn run(runner: &Runner, plan: RunPlan) {
    let (events, mut received) = mpsc::channel(8);
    let (_ask, cancel) = oneshot::channel();
    let last = async {
        let mut last = None;
        while let Some(event) = received.recv().await {
            last = Some(event);
        }
        last
    };
    let ((), last) = tokio::join!(runner.run(plan, Vec::new(), events, cancel), last);
    assert!(matches!(&last, Some(RunEvent::Exited(exit)) if exit.exit_code == Some(0)), "{last:?}");
}

fn plan(workspace: WorkspaceId, number: u64) -> RunPlan {
    RunPlan {
        operation: OperationId::new(number, [1; 10]),
        epoch: 1,
        workspace,
        command: Command::Argv(vec![b"true".to_vec()]),
        stdin: None,
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock: Landlock::Required,
        allow_unsandboxed: false,
        limits: Limits { concurrent_commands: AT_ONCE as u64, ..Limits::default() },
        files: Vec::new(),
        read_paths: Vec::new(),
        read_identities: Vec::new(),
        protected_paths: Vec::new(),
        environment: Vec::new(),
        whole_output: false,
    }
}

fn status(host: &'static Host, rounds: usize) {
    let pair = Pair::started(host);
    let git = |words: &[&str]| {
        let name = ["-c", "user.name=bench", "-c", "user.email=bench@bench.invalid", "-C"];
        Ran::of(host.tools.command("git").args(name).arg(&pair.workspace).args(words)).ok();
    };
    git(&["init", "--quiet"]);
    for number in 0..FILES {
        let directory = pair.workspace.join(format!("d{}", number / 100));
        if number % 100 == 0 {
            fs::create_dir(&directory).expect("it is new");
        }
        fs::write(directory.join(format!("f{number}")), format!("{number}\n")).expect("there is room");
    }
    Ran::of(std::process::Command::new("chown").arg("-R").arg(&host.tools.name).arg(&pair.workspace)).ok();
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "all of it"]);
    let (socket, workspace) = (pair.socket(), pair.workspace_id());
    let mut bare = Bare::program(host, &pair.workspace, &[&NICE, &["git", "status", "--porcelain"][..]].concat());
    for _ in 0..3 {
        post(&socket, &workspace, &["git", "status", "--porcelain"]);
        bare.once();
    }
    let (mut ours, mut whole, mut fixed, mut fixed_whole, mut without) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let reply = post(&socket, &workspace, &["git", "status", "--porcelain"]);
        ours.push(command(&reply));
        whole.push(span(&reply, "granted", "exited"));
        without.push(bare.once());
        let reply = post(&socket, &workspace, &["true"]);
        fixed.push(command(&reply));
        fixed_whole.push(span(&reply, "granted", "exited"));
    }
    let (ours, whole, fixed, fixed_whole, without) =
        (median(ours), median(whole), median(fixed), median(fixed_whole), median(without));
    println!(
        "| `git status` in {FILES} files, start to end of its processes, median of {rounds} | {:.1} ms | {:.1} + {:.1} ms (`true` there) | {:.2} | 1.15 x outside + the start |",
        ms(ours),
        ms(without),
        ms(fixed),
        ours.saturating_sub(fixed).as_secs_f64() / without.as_secs_f64()
    );
    println!(
        "| the same, granted to exit: with the look at {FILES} files that follows every command | {:.1} ms | {:.1} + {:.1} ms | {:.2} | - |",
        ms(whole),
        ms(without),
        ms(fixed_whole),
        whole.saturating_sub(fixed_whole).as_secs_f64() / without.as_secs_f64()
    );
}

/// From the start of bwrap until nothing of the command is left, as the executor saw it.
fn command(reply: &Value) -> Duration {
    Duration::from_millis(reply["usage"]["wall_ms"].as_u64().expect("a result tells"))
}

fn stream(host: &'static Host, rounds: usize) {
    let pair = Pair::started(host);
    let (socket, workspace) = (pair.socket(), pair.workspace_id());
    let count = STREAMED.to_string();
    let argv = ["head", "-c", &count, "/dev/zero"];
    let mut bare = Bare::pipe(host, &[&NICE, &argv[..]].concat());
    let (service, executor) = (pair.service_process().expect("it runs"), pair.executors().pop().expect("it runs"));
    let (mut ours, mut without) = (Vec::new(), Vec::new());
    let (mut largest, mut largest_executor) = (0, 0);
    let used = [service.cpu(), executor.cpu()];
    let mut command_ms = 0;
    let streams = rounds.div_ceil(5);
    for _ in 0..streams {
        let reply = thread::scope(|scope| {
            let streaming = scope.spawn(|| post(&socket, &workspace, &argv));
            while !streaming.is_finished() {
                largest = largest.max(service.memory().map_or(0, |memory| memory.0));
                largest_executor = largest_executor.max(executor.memory().map_or(0, |memory| memory.0));
                thread::sleep(Duration::from_millis(100));
            }
            streaming.join().expect("it ends")
        });
        assert_eq!(reply["output"]["stdout"]["bytes"], json!(STREAMED), "{reply}");
        ours.push(span(&reply, "spawned", "exited"));
        command_ms += reply["usage"]["cpu_ms"].as_u64().unwrap_or_default();
        without.push(bare.once());
    }
    let used = [service.cpu() - used[0], executor.cpu() - used[1]].map(|all| all.as_millis() / streams as u128);
    let rate = |took: Duration| (STREAMED >> 20) as f64 / took.as_secs_f64();
    let (ours, without) = (rate(median(ours)), rate(median(without)));
    println!(
        "| 1 GiB of output, counted and hashed, median of {streams} | {ours:.0} MiB/s | {without:.0} MiB/s | {:.2} | at least 0.5 |",
        ours / without
    );
    println!(
        "| processor time for each GiB: service, executor, the command | {}, {}, {} ms | - | - | - |",
        used[0],
        used[1],
        command_ms / streams as u64
    );
    println!(
        "| meanwhile at most, resident: service, executor | {:.1}, {:.1} MiB | - | - | 64, 64 MiB |",
        largest as f64 / 1024.0,
        largest_executor as f64 / 1024.0
    );
}

/// The same command in a workspace that holds nothing, and in three that hold much.
fn workspace(host: &'static Host, rounds: usize) {
    let plain = Pair::started(host);
    let mut others = Vec::new();
    // Each is held against the first, or another that holds the same otherwise.
    for (what, against, fill) in [
        (format!("{AUTO_RUN_FILES} files of a protected name"), 0, fill_auto_run as fn(&Path)),
        ("a repository".to_owned(), 0, fill_repository),
        (format!("a repository with {LINKED} linked worktrees"), 2, fill_linked),
    ] {
        let path = host.workspace(&format!("much-{}", others.len()));
        fill(&path);
        Ran::of(std::process::Command::new("chown").arg("-R").arg(&host.service.name).arg(&path)).ok();
        let path = path.display().to_string();
        plain.salaam(&["workspace", "add", &path]).ok();
        let shown = plain.salaam(&["workspace", "show", &path, "--json"]).ok().json();
        let id = shown["workspace"].as_str().expect("a workspace has an id").to_owned();
        others.push((what, against, plain.socket(), id));
    }
    let reads = host.prefix.join("reads");
    fs::create_dir(&reads).expect("the prefix is root's");
    let list = (0..READ_PATHS).map(|number| reads.join(number.to_string()).display().to_string());
    let list: Vec<String> = list.inspect(|path| fs::write(path, "read me\n").expect("there is room")).collect();
    let reading = Pair::started_with(host, &format!("local_sandbox_read_paths = {list:?}\n"));
    others.push((format!("{READ_PATHS} read paths"), 0, reading.socket(), reading.workspace_id()));

    let (socket, id) = (plain.socket(), plain.workspace_id());
    let mut none = Times::default();
    let mut much: Vec<Times> = others.iter().map(|_| Times::default()).collect();
    // Before the first command in a workspace all of it is looked at.
    for (_, _, socket, id) in &others {
        post(socket, id, &["true"]);
    }
    for _ in 0..rounds {
        none.take(&post(&socket, &id, &["true"]));
        for ((_, _, socket, id), times) in others.iter().zip(&mut much) {
            times.take(&post(socket, id, &["true"]));
        }
    }
    let mut medians = vec![none.medians()];
    medians.extend(much.into_iter().map(Times::medians));
    for ((what, against, ..), (up, whole)) in others.iter().zip(&medians[1..]) {
        let (up_against, whole_against) = medians[*against];
        let what = format!("`true` beside {what}");
        row(&format!("{what}, granted to all layers in force, median of {rounds}"), *up, up_against, "about 1");
        row(&format!("{what}, granted to exit, with the look that follows"), *whole, whole_against, "-");
    }
}

#[derive(Default)]
struct Times {
    up: Vec<Duration>,
    whole: Vec<Duration>,
}

impl Times {
    fn take(&mut self, reply: &Value) {
        self.up.push(span(reply, "granted", "spawned"));
        self.whole.push(span(reply, "granted", "exited"));
    }

    fn medians(self) -> (Duration, Duration) {
        (median(self.up), median(self.whole))
    }
}

fn fill_auto_run(root: &Path) {
    for number in 0..AUTO_RUN_FILES {
        put(&root.join(format!("d{}/{number}/.envrc", number % 50)), "");
    }
}

fn fill_repository(root: &Path) {
    put(&root.join(".git/config"), "[core]\n\tbare = false\n");
    put(&root.join(".git/HEAD"), "ref: refs/heads/main\n");
    for directory in ["objects", "refs"] {
        fs::create_dir(root.join(".git").join(directory)).expect("it is new");
    }
    put(&root.join(".git/hooks/pre-commit.sample"), "");
}

fn fill_linked(root: &Path) {
    fill_repository(root);
    for number in 0..LINKED {
        let tree = root.join(format!(".git/worktrees/{number}"));
        put(&tree.join("commondir"), "../..\n");
        put(&tree.join("HEAD"), "ref: refs/heads/main\n");
        put(&tree.join("gitdir"), &format!("{}/trees/{number}/.git\n", root.display()));
        put(&root.join(format!("trees/{number}/.git")), &format!("gitdir: {}\n", tree.display()));
    }
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
    fs::write(path, text).expect("there is room");
}

fn row(what: &str, ours: Duration, without: Duration, allowed: &str) {
    let ratio = ours.as_secs_f64() / without.as_secs_f64();
    println!("| {what} | {:.2} ms | {:.2} ms | {ratio:.2} | {allowed} |", ms(ours), ms(without));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
