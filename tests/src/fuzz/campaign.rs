//! One target for a while: mutate, read, keep what answers anew, note what breaks.

use std::{
    collections::BTreeSet,
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::time::{ClockId, clock_gettime};

use super::{Target, mutate::mutated};
use crate::Seeded;

/// Processor time that one input may cost in a build without optimisation; inputs have at most 64 KiB.
const MOST_CPU: Duration = Duration::from_secs(5);
/// An input that has not come back by then never will: the whole run is ended.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Inputs that are mutated further.
const MAX_KEPT: usize = 4096;
/// Findings of one target after which it is left alone.
const MAX_FINDINGS: usize = 10;

/// How long a target is fuzzed.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// For so long.
    Time(Duration),
    /// So many inputs.
    Inputs(u64),
}

/// Something that broke.
#[derive(Clone)]
pub struct Finding {
    /// What it was: the panic's message, or how long it took.
    pub what: String,
    /// The input.
    pub input: Vec<u8>,
}

/// The input as base64, so that it can be put into a file and replayed.
impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on base64 {}", self.what, STANDARD.encode(&self.input))
    }
}

/// What came of one target.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Inputs that were read.
    pub inputs: u64,
    /// Different answers.
    pub answers: usize,
    /// The processor time of the slowest input.
    pub slowest: Duration,
    /// What broke, each kind once.
    pub findings: Vec<Finding>,
}

/// Fuzzes one target. Panics are caught and reported, not printed.
pub fn run(target: &Target, until: Until, seed: u64) -> Outcome {
    let before = panic::take_hook();
    let said = Arc::new(Mutex::new(String::new()));
    let hook = Arc::clone(&said);
    panic::set_hook(Box::new(move |info| *lock(&hook) = info.to_string()));
    let alive = watch(target.name);
    let outcome = fuzz(target, until, seed, &said, &alive);
    drop(alive);
    panic::set_hook(before);
    outcome
}

/// Reads one input of `target` again, with whatever panic there was.
pub fn replay(target: &Target, input: &[u8]) -> String {
    (target.read)(input)
}

fn fuzz(target: &Target, until: Until, seed: u64, said: &Mutex<String>, alive: &mpsc::Sender<Vec<u8>>) -> Outcome {
    let mut seeded = Seeded::new(seed);
    let mut corpus = (target.samples)();
    let samples = corpus.len();
    let start = Instant::now();
    let mut outcome = Outcome::default();
    let mut answers = BTreeSet::new();
    let mut broken = BTreeSet::new();
    loop {
        let over = match until {
            Until::Time(time) => start.elapsed() >= time,
            Until::Inputs(inputs) => outcome.inputs >= inputs,
        };
        if over || outcome.findings.len() >= MAX_FINDINGS {
            outcome.answers = answers.len();
            return outcome;
        }
        // The samples themselves come first: they must be read as what they are.
        let number = usize::try_from(outcome.inputs).unwrap_or(usize::MAX);
        let input = if number < samples { corpus[number].clone() } else { mutated(&mut seeded, &corpus, target.words) };
        outcome.inputs += 1;
        drop(alive.send(input.clone()));
        let began = cpu();
        let read = panic::catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
        let took = cpu().saturating_sub(began);
        outcome.slowest = outcome.slowest.max(took);
        let what = match read {
            Err(_) => Some(lock(said).clone()),
            Ok(_) if took > MOST_CPU => Some(format!("too slow: {} ms", took.as_millis())),
            Ok(answer) => {
                if answers.insert(kind(&answer)) && corpus.len() < MAX_KEPT {
                    corpus.push(input.clone());
                }
                None
            }
        };
        if let Some(what) = what
            && broken.insert(kind(&what))
        {
            outcome.findings.push(Finding { what, input });
        }
    }
}

/// Ends the process if one input never comes back; a thread cannot be ended alone.
fn watch(name: &'static str) -> mpsc::Sender<Vec<u8>> {
    let (alive, heard) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        let mut latest = Vec::new();
        loop {
            match heard.recv_timeout(HANGS_AFTER) {
                Ok(input) => latest = input,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("{name}: hangs on {:?}", String::from_utf8_lossy(&latest));
                    std::process::exit(1);
                }
            }
        }
    });
    alive
}

/// An answer without what differs from input to input: numbers, what stands between quotes, lines of a shown file.
fn kind(answer: &str) -> String {
    const QUOTES: [char; 2] = ['`', '"'];
    let said = answer.lines().filter(|line| !line.contains(" |")).collect::<Vec<_>>().join(" ");
    let before = said.split(QUOTES).next().unwrap_or_default();
    let after = if before.len() < said.len() { said.rsplit(QUOTES).next().unwrap_or_default() } else { "" };
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).take(80).collect::<String>();
    format!("{} {}", words(before), words(after))
}

/// Processor time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
