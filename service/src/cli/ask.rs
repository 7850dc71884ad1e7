//! The question on the terminal: what was typed before it stood there does not count, and only digits of the
//! binding that was shown are a yes.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{FlushArg, tcflush},
};
use salaam_core::digest::Digest;
use tokio::sync::oneshot;

use super::screens;

/// Digits that a person types for a yes.
const DIGITS: usize = 4;
/// The longest line that is an answer; all of a binding and some blanks.
const LONGEST_ANSWER: usize = 256;
/// Wrong answers before the question is left open.
const ATTEMPTS: u32 = 3;

/// What a person said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The digits of the binding.
    Yes,
    /// `n`, and why.
    No(Option<String>),
    /// Nothing that decides: end of input, or no right answer.
    Open,
}

/// A line that was typed.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Answer(Answer),
    Wrong,
}

/// The terminal of the caller.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(super) fn open() -> Option<Self> {
        OpenOptions::new().read(true).write(true).open("/dev/tty").ok().map(|tty| Self { tty })
    }

    /// Shows `text` and asks in a thread of its own; the thread ends with the answer, when the receiver is
    /// dropped, or with the process.
    pub(super) fn ask(self, text: String, binding: Digest) -> oneshot::Receiver<Answer> {
        let (mut sender, receiver) = oneshot::channel();
        std::thread::spawn(move || {
            let answer = self.put(&text, binding, &mut sender).unwrap_or(Answer::Open);
            // Nobody waits any more where the operation ended meanwhile.
            let _ = sender.send(answer);
        });
        receiver
    }

    fn put(mut self, text: &str, binding: Digest, sender: &mut oneshot::Sender<Answer>) -> io::Result<Answer> {
        if !self.turn(text, Some(sender))? {
            writeln!(self.tty, "Nothing is decided: not all of it was shown.")?;
            return Ok(Answer::Open);
        }
        for _ in 0..ATTEMPTS {
            // Typed before the question was there: meant for something else.
            tcflush(&self.tty, FlushArg::TCIFLUSH)?;
            write!(self.tty, "Grant? Type the first {DIGITS} digits of the binding, or n and why to deny: ")?;
            let Some(line) = self.line(Some(sender))? else {
                writeln!(self.tty)?;
                return Ok(Answer::Open);
            };
            match judge(&line, binding) {
                Line::Answer(answer) => return Ok(answer),
                Line::Wrong => writeln!(self.tty, "That is neither n nor the binding's beginning.")?,
            }
        }
        writeln!(self.tty, "Nothing is decided.")?;
        Ok(Answer::Open)
    }

    /// Shows `text` a screenful at a time; whether all of it was shown.
    pub(super) fn turn(&mut self, text: &str, sender: Option<&oneshot::Sender<Answer>>) -> io::Result<bool> {
        let screens = screens::screens(text, screens::size());
        for (at, screen) in screens.iter().enumerate() {
            if at > 0 && !self.goes_on(at, screens.len(), sender)? {
                return Ok(false);
            }
            self.tty.write_all(screen.as_bytes())?;
        }
        Ok(true)
    }

    /// Whether the reader wants the next screen.
    fn goes_on(&mut self, at: usize, of: usize, sender: Option<&oneshot::Sender<Answer>>) -> io::Result<bool> {
        tcflush(&self.tty, FlushArg::TCIFLUSH)?;
        write!(self.tty, "-- page {at} of {of}: Enter for more, q to stop --")?;
        let line = self.line(sender)?;
        Ok(line.is_some_and(|line| line.trim_ascii().is_empty()))
    }

    /// One line; None at the end of input or when nobody waits for the answer any more.
    fn line(&mut self, sender: Option<&oneshot::Sender<Answer>>) -> io::Result<Option<Vec<u8>>> {
        let unwanted = || sender.is_some_and(oneshot::Sender::is_closed);
        let mut line = Vec::new();
        loop {
            let mut ready = [PollFd::new(std::os::fd::AsFd::as_fd(&self.tty), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(LOOK_MILLISECONDS)) {
                Ok(0) | Err(nix::errno::Errno::EINTR) if unwanted() => return Ok(None),
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(why) => return Err(why.into()),
            }
            let mut byte = [0];
            if self.tty.read(&mut byte)? == 0 {
                // An unfinished line decides nothing either.
                return Ok(None);
            }
            match byte {
                [b'\n'] => return Ok(Some(line)),
                [other] if line.len() < LONGEST_ANSWER => line.push(other),
                [_] => {}
            }
        }
    }
}

/// How often the thread looks whether the question is still open.
const LOOK_MILLISECONDS: u16 = 200;

fn judge(line: &[u8], binding: Digest) -> Line {
    let Ok(text) = std::str::from_utf8(line) else { return Line::Wrong };
    let text = text.trim();
    let (first, why) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if matches!(first, "n" | "N" | "no") {
        let why = why.trim();
        return Line::Answer(Answer::No((!why.is_empty()).then(|| why.to_owned())));
    }
    if text.len() >= DIGITS && binding.to_string().starts_with(text) {
        return Line::Answer(Answer::Yes);
    }
    Line::Wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_of_this_binding_are_a_yes() {
        let binding = Digest::of(b"x");
        let all = binding.to_string();
        for yes in [&all[..4], &all[..12], &all, &format!(" {} ", &all[..4])] {
            assert_eq!(judge(yes.as_bytes(), binding), Line::Answer(Answer::Yes));
        }
        for (no, why) in [("n", None), (" no ", None), ("N", None), ("n not this one", Some("not this one"))] {
            assert_eq!(judge(no.as_bytes(), binding), Line::Answer(Answer::No(why.map(str::to_owned))));
        }
        for wrong in
            ["", "y", "nope", "never mind", "yes", &all[..3], &all[1..6], &all.to_uppercase(), &format!("{all}0")]
        {
            assert_eq!(judge(wrong.as_bytes(), binding), Line::Wrong, "{wrong}");
        }
        assert_eq!(judge(b"\xff\xfe\xfd\xfc", binding), Line::Wrong);
    }
}
