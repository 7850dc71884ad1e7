//! Reads a session's events and the output of its commands as they come, and prints what the story makes of them.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    time::Duration,
};

use hyper::Method;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use salaam_core::id::{OperationId, SessionId};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use super::story::{Story, Told};
use crate::{
    cli::{
        client::{Client, Stream},
        screens,
        terminal::{Decoder, Out, visible_json, write_stdout},
        trouble::Trouble,
    },
    clock::Clock,
};

/// How long a service that went away is waited for: a restart takes no longer.
const AWAY: Duration = Duration::from_secs(30);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(300);
/// How long the rest of a command's output may take once its receipt is there.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The longest line of output that is held back until its end comes, in bytes.
const LONGEST_LINE: usize = 4096;
/// Pieces of output that may wait to be printed.
const PIECES: usize = 64;

/// Prints the session from its beginning until it ends; anything but `completed` is a failure.
pub(in crate::cli) async fn session(client: &Client, out: Out, id: SessionId) -> Result<(), Trouble> {
    // Asked first, so that a session that does not exist is said to be none.
    client.fetch(&format!("/v1/sessions/{id}")).await?;
    let mut view = View::new(client, out, id);
    let ended = view.whole().await;
    view.clear()?;
    match ended?.as_str() {
        "completed" => Ok(()),
        outcome => Err(Trouble::refused(
            outcome,
            format!("the session ended as {outcome}"),
            format!("salaam session show {id}; salaam journal list --session {id}"),
        )),
    }
}

struct View<'a> {
    client: &'a Client,
    out: Out,
    id: SessionId,
    story: Story,
    /// The number of the last event that was told.
    after: u64,
    /// The output of the command that runs, if it is followed.
    running: Option<Running>,
    /// Characters of the progress line that stands on the terminal.
    progress: Option<usize>,
}

/// One command's output, both streams as they come.
struct Running {
    operation: OperationId,
    pieces: mpsc::Receiver<(&'static str, Vec<u8>)>,
    lines: [Lines; 2],
}

impl<'a> View<'a> {
    fn new(client: &'a Client, out: Out, id: SessionId) -> Self {
        let progress = (!out.json && io::stdout().is_terminal()).then_some(0);
        Self { client, out, id, story: Story::default(), after: 0, running: None, progress }
    }

    async fn whole(&mut self) -> Result<String, Trouble> {
        loop {
            let path = format!("/v1/events?after={}&session={}&follow=true", self.after, self.id);
            let mut events = self.reach(&path).await?;
            if let Some(outcome) = self.read(&mut events).await? {
                return Ok(outcome);
            }
            self.note("the service went away; waiting for it")?;
        }
    }

    /// Opens the stream of events; a service that is just restarting is waited for.
    async fn reach(&self, path: &str) -> Result<Stream, Trouble> {
        let until = Instant::now() + AWAY;
        loop {
            match self.client.open(Method::GET, path, None).await {
                Err(Trouble::NotRunning { .. } | Trouble::Connection { .. }) if Instant::now() < until => {
                    time::sleep(LOOK).await;
                }
                other => return other,
            }
        }
    }

    /// The outcome, or nothing where the connection ended before it.
    async fn read(&mut self, events: &mut Stream) -> Result<Option<String>, Trouble> {
        let mut tick = time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            let piece = async {
                match &mut self.running {
                    Some(running) => running.pieces.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                piece = piece => match piece {
                    Some((stream, bytes)) => self.output(stream, &bytes)?,
                    None => self.finish_output()?,
                },
                event = events.object() => match event {
                    Ok(Some(event)) => {
                        if let Some(outcome) = self.event(&event).await? {
                            return Ok(Some(outcome));
                        }
                    }
                    Ok(None) | Err(Trouble::Connection { .. }) => return Ok(None),
                    Err(why) => return Err(why),
                },
                _ = tick.tick() => {
                    // A pipe without a reader tells it to a writer only, and a session may be quiet for long.
                    if deserted() {
                        return Err(Trouble::BrokenPipe);
                    }
                    self.status()?;
                }
            }
        }
    }

    async fn event(&mut self, event: &Value) -> Result<Option<String>, Trouble> {
        self.after = event.get("seq").and_then(Value::as_u64).unwrap_or(self.after).max(self.after);
        let Told { lines, begun, over, ended } = self.story.tell(event);
        if self.out.json {
            self.out.text(&visible_json(&event.to_string()))?;
            return Ok(ended);
        }
        if let (Some(over), Some(running)) = (over, &self.running)
            && over == running.operation
        {
            self.rest_of_output().await?;
        }
        for line in lines {
            self.print(&line)?;
        }
        if let Some(begun) = begun {
            self.running = Some(Running::follow(self.client, begun));
        }
        self.status()?;
        Ok(ended)
    }

    async fn rest_of_output(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + LAST_WORDS;
        while let Some(running) = &mut self.running {
            match time::timeout_at(until, running.pieces.recv()).await {
                Ok(Some((stream, bytes))) => self.output(stream, &bytes)?,
                Ok(None) | Err(_) => self.finish_output()?,
            }
        }
        Ok(())
    }

    fn output(&mut self, stream: &'static str, bytes: &[u8]) -> Result<(), Trouble> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let [stdout, stderr] = &mut running.lines;
        let lines = if stream == "stdout" { stdout.next(bytes) } else { stderr.next(bytes) };
        for line in lines {
            self.print(&line)?;
        }
        Ok(())
    }

    fn finish_output(&mut self) -> Result<(), Trouble> {
        if let Some(running) = self.running.take() {
            for rest in running.lines.into_iter().filter_map(Lines::rest) {
                self.print(&rest)?;
            }
        }
        Ok(())
    }

    fn print(&mut self, line: &str) -> Result<(), Trouble> {
        self.clear()?;
        self.out.text(line)
    }

    fn note(&mut self, text: &str) -> Result<(), Trouble> {
        self.clear()?;
        self.out.note(text);
        Ok(())
    }

    /// Shows what is going on in the last line of a terminal.
    fn status(&mut self) -> Result<(), Trouble> {
        if self.progress.is_none() {
            return Ok(());
        }
        let (_, columns) = screens::size();
        let text: String = self.story.status(Clock.now()).chars().take(columns.saturating_sub(1)).collect();
        self.clear()?;
        write_stdout(text.as_bytes())?;
        self.progress = Some(text.chars().count());
        Ok(())
    }

    /// Wipes the progress line.
    fn clear(&mut self) -> Result<(), Trouble> {
        match self.progress {
            Some(characters) if characters > 0 => {
                write_stdout(format!("\r{}\r", " ".repeat(characters)).as_bytes())?;
                self.progress = Some(0);
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether nobody reads standard output any more.
fn deserted() -> bool {
    let stdout = io::stdout();
    let mut ends = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let seen = poll(&mut ends, PollTimeout::ZERO).is_ok_and(|seen| seen > 0);
    seen && ends.iter().any(|end| end.revents().is_some_and(|of| of.contains(PollFlags::POLLERR)))
}

impl Running {
    fn follow(client: &Client, operation: OperationId) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES);
        for stream in ["stdout", "stderr"] {
            let (client, sender) = (Client::clone(client), sender.clone());
            tokio::spawn(async move {
                let path = format!("/v1/operations/{operation}/output?stream={stream}&follow=true");
                // An edit prints nothing, and what cannot be followed is in the record all the same.
                let Ok(mut output) = client.open(Method::GET, &path, None).await else { return };
                while let Ok(Some(bytes)) = output.next().await {
                    if sender.send((stream, bytes.to_vec())).await.is_err() {
                        return;
                    }
                }
            });
        }
        Self { operation, pieces, lines: [Lines::behind("  | "), Lines::behind("  ! ")] }
    }
}

/// One stream in whole lines, each behind a bar.
#[derive(Debug)]
struct Lines {
    bar: &'static str,
    decoder: Decoder,
    line: String,
}

impl Lines {
    fn behind(bar: &'static str) -> Self {
        Self { bar, decoder: Decoder::default(), line: String::new() }
    }

    fn next(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for piece in self.decoder.next(bytes).split_inclusive('\n') {
            self.line.push_str(piece);
            if self.line.ends_with('\n') || self.line.len() >= LONGEST_LINE {
                let line = std::mem::take(&mut self.line);
                whole.push(format!("{}{}", self.bar, line.trim_end_matches('\n')));
            }
        }
        whole
    }

    fn rest(mut self) -> Option<String> {
        let rest = self.decoder.rest();
        self.line.push_str(&rest);
        (!self.line.is_empty()).then(|| format!("{}{}", self.bar, self.line.trim_end_matches('\n')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_comes_in_lines_behind_a_bar_however_it_was_cut() {
        let text = "one\ntwo \u{20ac}\n\nfour\u{1b}[2J\nlast".as_bytes();
        for cut in 0..=text.len() {
            let mut lines = Lines::behind("  | ");
            let mut shown = lines.next(&text[..cut]);
            shown.extend(lines.next(&text[cut..]));
            shown.extend(lines.rest());
            assert_eq!(shown, ["  | one", "  | two \u{20ac}", "  | ", "  | four\\e[2J", "  | last"], "{cut}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_held_for_ever() {
        let mut lines = Lines::behind("| ");
        let shown: usize = (0..100).map(|_| lines.next(&[b'x'; 1000]).len()).sum();
        assert!(shown >= 19, "{shown}");
    }
}
