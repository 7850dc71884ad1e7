//! Speed and size of the pair, as ratios taken in one run on one machine. Never a timed test.
//!
//! `cargo bench -p salaam-tests` as root, after a release build.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use salaam_tests::{Host, Pair, http, process::Process};
use serde_json::{Value, json};

const ROUNDS: usize = 200;
const STARTS: usize = 11;
const STREAMED: u64 = 1 << 30;
/// So much crosses the bridge and is kept on the disk.
const KEPT: u64 = 512 << 20;

fn main() {
    // `cargo test --all-targets` runs benches, too, with this absent.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let host = Host::shared();
    let pair = Pair::started(host);
    thread::sleep(Duration::from_secs(1));
    let idle = (resident(pair.service_process()), resident(pair.executors().pop()));
    println!("| what | measured | allowed |");
    println!("|---|---|---|");
    round_trip(&pair);
    throughput(
        &pair,
        "1 GiB of output at the default limits: counted and hashed, 64 MiB of it sent and kept",
        STREAMED,
    );
    println!("| idle: service, toolsd (resident, proportional; MiB) | {}, {} | 20, 8 |", mib(idle.0), mib(idle.1));
    drop(pair);
    let keeping = Pair::started_with(host, &format!("[limits]\noutput_bytes = {KEPT}\n"));
    throughput(&keeping, "512 MiB from a child's pipe to the service, all sent, hashed and kept", KEPT);
    drop(keeping);
    starts(host);
}

fn round_trip(pair: &Pair) {
    let body = json!({"workspace": pair.workspace_id(), "argv": ["true"], "grant": true});
    let disk = pair.state.with_file_name("fsync");
    let (mut paired, mut bare, mut synced) = (Vec::new(), Vec::new(), Vec::new());
    let (mut intent, mut receipt) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let reply = http::send(&pair.socket(), "POST", "/v1/operations", Some(&body)).json();
        paired.push(start.elapsed());
        assert_eq!(reply["state"], "completed", "{reply}");
        let at = |step: &str| reply["timing_us"][step].as_u64().unwrap_or_default();
        intent.push(Duration::from_micros(at("dispatched")));
        receipt.push(Duration::from_micros(at("receipt").saturating_sub(at("exited"))));
        let start = Instant::now();
        bare_bwrap(pair);
        bare.push(start.elapsed());
        let start = Instant::now();
        two_fsyncs(&disk);
        synced.push(start.elapsed());
    }
    let (paired, bare, synced) = (median(paired), median(bare), median(synced));
    println!(
        "| approved `true`, POST to receipt, median of {ROUNDS} | {:.2} ms = {:.2} x (bare bwrap {:.2} ms + two fsyncs {:.2} ms) | 1.8 x |",
        ms(paired),
        paired.as_secs_f64() / (bare + synced).as_secs_f64(),
        ms(bare),
        ms(synced)
    );
    println!(
        "| of it: proposal to durable intent, exit to durable receipt | {:.2} ms, {:.2} ms | - |",
        ms(median(intent)),
        ms(median(receipt))
    );
}

/// The same profile by hand: the same namespaces and mounts, without landlock, seccomp and the report.
fn bare_bwrap(pair: &Pair) {
    let mut command = pair.host.tools.command("bwrap");
    command.args(["--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]);
    for path in ["/usr", "/bin", "/sbin", "/lib", "/lib64"] {
        match fs::read_link(path) {
            Ok(target) => command.arg("--symlink").arg(target).arg(path),
            Err(_) => command.args(["--ro-bind-try", path, path]),
        };
    }
    for path in ["/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/ssl", "/etc/nsswitch.conf"]
    {
        command.args(["--ro-bind-try", path, path]);
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/tmp/home", "--bind"]);
    command.arg(&pair.workspace).arg(&pair.workspace).args(["--remount-ro", "/", "--chdir"]).arg(&pair.workspace);
    let status = command.args(["--", "true"]).stdin(Stdio::null()).status().expect("bwrap is there");
    assert!(status.success(), "bare bwrap works for the tools user");
}

fn two_fsyncs(path: &Path) {
    let mut file = fs::File::options().append(true).create(true).open(path).expect("the prefix is root's");
    for _ in 0..2 {
        file.write_all(&[b'x'; 4096]).expect("there is room");
        file.sync_data().expect("it is a disk");
    }
}

fn throughput(pair: &Pair, what: &str, bytes: u64) {
    let (service, executor) = (pair.service_process().expect("it runs"), pair.executors().pop().expect("it runs"));
    let flood = format!("head -c {bytes} /dev/zero");
    let body = json!({"workspace": pair.workspace_id(), "command": flood, "grant": true});
    let socket = pair.socket();
    let start = Instant::now();
    let streaming = thread::spawn(move || http::send(&socket, "POST", "/v1/operations", Some(&body)));
    let (mut largest, mut largest_executor) = ((0, 0), (0, 0));
    while !streaming.is_finished() {
        largest = larger(largest, service.memory());
        largest_executor = larger(largest_executor, executor.memory());
        thread::sleep(Duration::from_millis(20));
    }
    let reply = streaming.join().expect("it ends").json();
    let wall = start.elapsed();
    assert_eq!(reply["output"]["stdout"]["bytes"], json!(bytes), "{reply}");
    let at = |step: &str| reply["timing_us"][step].as_u64().unwrap_or_default();
    let streamed = Duration::from_micros(at("exited").saturating_sub(at("spawned")));
    let rate = |took: Duration| (bytes >> 20) as f64 / took.as_secs_f64();
    let plain = plain_pipe(&flood);
    println!(
        "| {what} | {:.0} MiB/s ({:.0} with proposal and receipt) = {:.2} x a plain pipe ({:.0}) | 500 MiB/s |",
        rate(streamed),
        rate(wall),
        rate(streamed) / rate(plain),
        rate(plain)
    );
    println!(
        "| meanwhile at most: service, toolsd (resident, proportional; MiB) | {}, {} | 64, 64 |",
        mib(largest),
        mib(largest_executor)
    );
}

fn plain_pipe(flood: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new("sh").args(["-c", flood]).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut pipe = child.stdout.take().expect("piped");
    let mut buffer = vec![0; 64 << 10];
    while pipe.read(&mut buffer).expect("a pipe") > 0 {}
    drop(child.wait());
    start.elapsed()
}

fn starts(host: &'static Host) {
    let pair = Pair::new(host);
    let times = (0..STARTS)
        .map(|_| {
            let start = Instant::now();
            pair.start().ok();
            let took = start.elapsed();
            let health: Value = pair.health();
            assert_eq!(health["status"], "ok");
            pair.stop().ok();
            took
        })
        .collect();
    println!("| `service start` to healthy, median of {STARTS} | {:.0} ms | 500 ms |", ms(median(times)));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn mib((resident, proportional): (u64, u64)) -> String {
    format!("{:.1} ({:.1})", resident as f64 / 1024.0, proportional as f64 / 1024.0)
}

fn resident(process: Option<Process>) -> (u64, u64) {
    process.and_then(|process| process.memory()).expect("it runs")
}

fn larger(before: (u64, u64), now: Option<(u64, u64)>) -> (u64, u64) {
    now.map_or(before, |now| (before.0.max(now.0), before.1.max(now.1)))
}
