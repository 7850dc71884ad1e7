//! What a child writes on its standard output and error: drained always, so that it never blocks; bounded, made
//! visible, and logged as its own.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use salaam_core::show;
use tokio::{io::AsyncReadExt as _, net::unix::pipe, task::JoinHandle};

/// Of one line this much is kept; the rest is counted.
const LINE_BYTES: usize = 1024;
/// Lines that are logged in any second; the rest is counted.
const LINES_PER_SECOND: u32 = 50;
/// Of a child that is not trusted so much is read in any second; then it waits on its own full pipe, and costs the
/// service no more time than this.
const HELD_BYTES_PER_SECOND: usize = 64 << 10;
/// Lines kept for the evidence of a failed start.
const TAIL_LINES: usize = 16;

/// The readers of a child's pipes. Dropping them stops reading.
#[derive(Debug)]
pub struct Lines {
    tail: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Lines {
    /// Reads the pipes until they end, as fast as the child writes. `who` names the child in the log, `pipes` are
    /// named as they are there.
    ///
    /// # Errors
    /// A descriptor that is no pipe.
    pub fn read(
        pipes: impl IntoIterator<Item = (&'static str, OwnedFd)>,
        who: &'static str,
        id: u32,
    ) -> io::Result<Self> {
        Self::paced(pipes, who, id, usize::MAX)
    }

    /// The same for a child that may write only to keep the service busy: it is read slowly, and blocks itself.
    ///
    /// # Errors
    /// A descriptor that is no pipe.
    pub fn read_slowly(
        pipes: impl IntoIterator<Item = (&'static str, OwnedFd)>,
        who: &'static str,
        id: u32,
    ) -> io::Result<Self> {
        Self::paced(pipes, who, id, HELD_BYTES_PER_SECOND)
    }

    fn paced(
        pipes: impl IntoIterator<Item = (&'static str, OwnedFd)>,
        who: &'static str,
        id: u32,
        bytes_per_second: usize,
    ) -> io::Result<Self> {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        for (stream, fd) in pipes {
            let pipe = pipe::Receiver::from_owned_fd(fd)?;
            let sink = Sink { who, id, stream, tail: Arc::clone(&tail), rate: Rate::new(Instant::now()) };
            readers.push(tokio::spawn(drain(pipe, sink, bytes_per_second)));
        }
        Ok(Self { tail, readers })
    }

    /// The last lines, after the pipes have ended or `limit` has passed.
    pub async fn last(&mut self, limit: Duration) -> String {
        let _ = tokio::time::timeout(limit, async {
            for reader in &mut self.readers {
                // A reader neither panics nor is cancelled here; whatever it kept is what there is.
                let _ = reader.await;
            }
        })
        .await;
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(String::as_str).collect::<Vec<_>>().join(" / ")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.readers.iter().for_each(JoinHandle::abort);
    }
}

async fn drain(mut pipe: pipe::Receiver, mut sink: Sink, bytes_per_second: usize) {
    let mut buffer = [0; 4096];
    let mut line = Line::default();
    let mut allowance = bytes_per_second;
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                allowance = allowance.saturating_sub(read);
                if allowance == 0 {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    allowance = bytes_per_second;
                }
                for byte in buffer.iter().take(read) {
                    if let Some(whole) = line.push(*byte) {
                        sink.take(whole);
                    }
                }
            }
        }
    }
    if let Some(rest) = line.finish() {
        sink.take(rest);
    }
}

/// A line being read.
#[derive(Debug, Default)]
struct Line {
    kept: Vec<u8>,
    dropped: usize,
}

impl Line {
    fn push(&mut self, byte: u8) -> Option<String> {
        match byte {
            b'\n' => self.finish(),
            _ if self.kept.len() < LINE_BYTES => {
                self.kept.push(byte);
                None
            }
            _ => {
                self.dropped += 1;
                None
            }
        }
    }

    fn finish(&mut self) -> Option<String> {
        let Self { kept, dropped } = std::mem::take(self);
        let shown = show::line(kept.trim_ascii_end());
        match (shown.is_empty(), dropped) {
            (true, 0) => None,
            (_, 0) => Some(shown),
            (_, dropped) => Some(format!("{shown} (and {dropped} bytes)")),
        }
    }
}

struct Sink {
    who: &'static str,
    /// The account or process that tells it from others of its kind.
    id: u32,
    stream: &'static str,
    tail: Arc<Mutex<VecDeque<String>>>,
    rate: Rate,
}

impl Sink {
    fn take(&mut self, line: String) {
        match self.rate.admit(Instant::now()) {
            Admitted::No => return,
            Admitted::Yes { dropped: 0 } => {}
            Admitted::Yes { dropped } => {
                tracing::warn!(id = self.id, stream = self.stream, dropped, "the {} wrote too many lines", self.who);
            }
        }
        tracing::info!(id = self.id, stream = self.stream, line, "the {} says", self.who);
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Admitted {
    Yes {
        /// Lines left out since the last one that was admitted.
        dropped: u64,
    },
    No,
}

/// Counts lines in windows of a second.
#[derive(Debug)]
struct Rate {
    window: Instant,
    lines: u32,
    dropped: u64,
}

impl Rate {
    const fn new(now: Instant) -> Self {
        Self { window: now, lines: 0, dropped: 0 }
    }

    fn admit(&mut self, now: Instant) -> Admitted {
        if now.duration_since(self.window) >= Duration::from_secs(1) {
            (self.window, self.lines) = (now, 0);
        }
        if self.lines == LINES_PER_SECOND {
            self.dropped += 1;
            return Admitted::No;
        }
        self.lines += 1;
        Admitted::Yes { dropped: std::mem::take(&mut self.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_flood_is_counted_not_logged() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let admitted = (0..1000).filter(|_| rate.admit(start) != Admitted::No).count();
        assert_eq!(admitted, 50);
        assert_eq!(rate.admit(start + Duration::from_secs(1)), Admitted::Yes { dropped: 950 });
    }

    #[test]
    fn a_line_is_cut_and_made_visible() {
        let mut line = Line::default();
        let text = [b"\x1b[2J".as_slice(), &[b'x'; 2000], b"\n"].concat();
        let whole: Vec<_> = text.iter().filter_map(|byte| line.push(*byte)).collect();
        assert_eq!(whole.len(), 1);
        assert!(whole[0].starts_with("\\e[2Jxxx") && whole[0].ends_with("(and 980 bytes)"), "{}", whole[0]);
        assert_eq!(line.finish(), None);
    }

    #[tokio::test]
    async fn the_last_lines_are_kept_and_a_writer_never_blocks() {
        let (out, mut to_out) = io::pipe().unwrap();
        let (err, to_err) = io::pipe().unwrap();
        let mut lines = Lines::read([("stdout", out.into()), ("stderr", err.into())], "child", 1).unwrap();
        let writer = tokio::task::spawn_blocking(move || {
            for number in 0..100_000 {
                writeln!(to_out, "line {number}").unwrap();
            }
            drop(to_err);
        });
        writer.await.unwrap();
        let last = lines.last(Duration::from_secs(10)).await;
        assert!(last.starts_with("line ") && last.matches(" / ").count() == TAIL_LINES - 1, "{last}");
    }

    #[tokio::test]
    async fn a_writer_that_is_not_trusted_waits_on_its_own_pipe() {
        let (log, mut to_log) = io::pipe().unwrap();
        let lines = Lines::read_slowly([("log", log.into())], "child", 1).unwrap();
        let flags = nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&to_log, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        let mut taken = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            match to_log.write(&[b'x'; 4096]) {
                Ok(bytes) => taken += bytes,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        // What may be read in a second, and what a pipe holds.
        assert!(taken <= HELD_BYTES_PER_SECOND + (64 << 10) + 4096, "{taken} bytes");
        drop(lines);
    }
}
