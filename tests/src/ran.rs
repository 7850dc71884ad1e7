//! A program that ran: how it ended and what it wrote, within a time limit.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// The most that any single program is waited for unless a test says otherwise.
pub const LIMIT: Duration = Duration::from_secs(120);

/// How it ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The words that were run, for messages.
    pub what: String,
    /// Its exit code; absent = a signal.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub wall: Duration,
}

impl Ran {
    /// Runs `command` to its end with empty standard input.
    pub fn of(command: &mut Command) -> Self {
        Self::with_input(command, b"", LIMIT)
    }

    /// Runs `command` with this standard input; panics when it takes longer than `limit`.
    pub fn with_input(command: &mut Command, input: &[u8], limit: Duration) -> Self {
        Started::new(command, input).wait(limit)
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Itself, if it left with `code`.
    #[track_caller]
    pub fn left_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "exit code of: {self}");
        self
    }

    /// Itself, if it left with 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.left_with(0)
    }

    /// The one JSON object that standard output must be.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("stdout is not one JSON value ({e}): {self}"))
    }

    /// One JSON value per line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.out()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}\nin: {self}")))
            .collect()
    }

    /// The error id, from `{"error":{"id"}}` on standard output or on standard error.
    pub fn error_id(&self) -> Option<String> {
        let value: Value =
            serde_json::from_slice(&self.stdout).or_else(|_| serde_json::from_slice(&self.stderr)).ok()?;
        Some(value["error"]["id"].as_str()?.to_owned())
    }

    /// Whether `text` stands anywhere in what it wrote.
    pub fn says(&self, text: &str) -> bool {
        self.out().contains(text) || self.err().contains(text)
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        write!(
            f,
            "`{}` left with {:?} signal {:?} after {:?}\n--- stdout\n{}\n--- stderr\n{}\n---",
            self.what,
            self.code,
            self.signal,
            self.wall,
            cut(&self.stdout),
            cut(&self.stderr)
        )
    }
}

/// A program that is running, with its output being read.
#[derive(Debug)]
pub struct Started {
    what: String,
    /// The process.
    pub child: Child,
    start: Instant,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
}

impl Started {
    /// Starts it; what it writes is read from the start on.
    pub fn new(command: &mut Command, input: &[u8]) -> Self {
        // The words; the environment and setpriv's part are the same for all.
        let words =
            std::iter::once(command.get_program()).chain(command.get_args()).map(std::ffi::OsStr::to_string_lossy);
        let what = words.collect::<Vec<_>>().join(" ");
        let what = what.split_once("--init-groups").map_or(what.as_str(), |(_, after)| after).trim();
        let what: String = what.chars().take(600).collect();
        let start = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        // A program may end without reading what it was given; that is its right.
        thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = reading(child.stdout.take().expect("piped"));
        let stderr = reading(child.stderr.take().expect("piped"));
        Self { what, child, start, stdout, stderr }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Ran {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            if self.start.elapsed() > limit {
                drop(self.child.kill());
                drop(self.child.wait());
                let out = self.stdout.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
                let err = self.stderr.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
                panic!(
                    "still running after {limit:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
                    self.what,
                    String::from_utf8_lossy(&out),
                    String::from_utf8_lossy(&err)
                );
            }
            thread::sleep(Duration::from_millis(2));
        };
        let wall = self.start.elapsed();
        let after = Duration::from_secs(10);
        let gone = |receiver: &mpsc::Receiver<Vec<u8>>, name: &str| {
            receiver
                .recv_timeout(after)
                .unwrap_or_else(|_| panic!("something still holds the {name} of {} {after:?} after its end", self.what))
        };
        Ran {
            stdout: gone(&self.stdout, "stdout"),
            stderr: gone(&self.stderr, "stderr"),
            what: self.what,
            code: status.code(),
            signal: status.signal(),
            wall,
        }
    }
}

fn reading(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        drop(from.read_to_end(&mut all));
        drop(sender.send(all));
    });
    receiver
}

/// Runs a program of the host as root; panics unless it leaves with 0.
#[track_caller]
pub fn run(words: &[&str]) -> Ran {
    Ran::of(Command::new(words[0]).args(&words[1..])).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_signal_and_both_streams_come_back() {
        let ran = Ran::with_input(Command::new("sh").args(["-c", "cat; echo err >&2; exit 7"]), b"in", LIMIT);
        assert_eq!((ran.code, ran.out().as_str(), ran.err().as_str()), (Some(7), "in", "err\n"));
        let ran = Ran::of(Command::new("sh").args(["-c", "kill -9 $$"]));
        assert_eq!((ran.code, ran.signal), (None, Some(9)));
    }

    #[test]
    #[should_panic(expected = "still running")]
    fn what_takes_too_long_fails_the_test() {
        Ran::with_input(Command::new("sleep").arg("30"), b"", Duration::from_millis(50));
    }
}
