//! What the executor may still send of a command's two streams: decided here, without effects.

use salaam_core::{
    bridge::{Beyond, Exit, Stream},
    kept::Kept,
};

/// Both streams of one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    /// Absent = all is to be sent.
    kept: Option<Kept>,
    stdout: Course,
    stderr: Course,
}

/// How far one stream has come.
#[derive(Debug, Clone, Copy)]
enum Course {
    /// All of it so far was sent.
    Sent { bytes: u64 },
    /// It is longer than what is kept, and goes on.
    Counted { bytes: u64 },
    /// It has ended; so many of its last bytes may still come.
    Ending { left: u64 },
}

impl Streams {
    pub(super) const fn new(kept: Option<Kept>) -> Self {
        let none = Course::Sent { bytes: 0 };
        Self { kept, stdout: none, stderr: none }
    }

    /// Takes so many bytes of a stream.
    pub(super) fn sent(&mut self, stream: Stream, more: usize) -> Result<(), &'static str> {
        let (more, kept) = (more as u64, self.kept);
        let course = self.of(stream);
        *course = match *course {
            Course::Sent { bytes } => {
                let bytes = bytes.saturating_add(more);
                if kept.is_some_and(|kept| bytes > kept.whole()) {
                    return Err("more output was sent than is kept");
                }
                Course::Sent { bytes }
            }
            Course::Counted { .. } => return Err("output of a stream that was only to be counted"),
            Course::Ending { left } => {
                let left = left.checked_sub(more).ok_or("more was sent of a stream's end than is kept")?;
                Course::Ending { left }
            }
        };
        Ok(())
    }

    /// Takes what a stream comes to.
    pub(super) fn beyond(&mut self, beyond: &Beyond) -> Result<(), &'static str> {
        let kept = self.kept.ok_or("output was kept back of which all was to be sent")?;
        let course = self.of(beyond.stream);
        let possible = match *course {
            Course::Sent { bytes } => bytes == kept.head && beyond.bytes > kept.whole(),
            Course::Counted { bytes } => beyond.bytes >= bytes,
            Course::Ending { .. } => false,
        };
        if !possible {
            return Err("a stream comes to what it cannot come to");
        }
        *course = match beyond.sha256 {
            Some(_) => Course::Ending { left: kept.tail },
            None => Course::Counted { bytes: beyond.bytes },
        };
        Ok(())
    }

    /// Whether the command may be over: a stream that goes on belongs to one that is not.
    pub(super) const fn may_end(&self, exit: &Exit) -> Result<(), &'static str> {
        match (exit.proven_gone, self.stdout, self.stderr) {
            (true, Course::Counted { .. }, _) | (true, _, Course::Counted { .. }) => {
                Err("a command ended and its output did not")
            }
            (true | false, _, _) => Ok(()),
        }
    }

    const fn of(&mut self, stream: Stream) -> &mut Course {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use salaam_core::digest::Digest;

    use super::*;

    /// One step of standard output, of which 6 and 4 bytes are kept.
    enum Step {
        Sent(usize),
        Goes(u64),
        Ends(u64),
        Exit,
    }
    use Step::{Ends, Exit as Over, Goes, Sent};

    fn first_impossible(kept: Option<Kept>, steps: &[Step]) -> Option<usize> {
        let mut streams = Streams::new(kept);
        let beyond = |bytes, sha256| Beyond { stream: Stream::Stdout, bytes, sha256 };
        steps.iter().position(|step| {
            let taken = match step {
                Sent(bytes) => streams.sent(Stream::Stdout, *bytes),
                Goes(bytes) => streams.beyond(&beyond(*bytes, None)),
                Ends(bytes) => streams.beyond(&beyond(*bytes, Some(Digest::ZERO))),
                Step::Exit => streams.may_end(&Exit { proven_gone: true, ..Exit::default() }),
            };
            taken.is_err()
        })
    }

    #[test]
    fn a_stream_comes_whole_or_as_head_count_and_tail() {
        let kept = Some(Kept { head: 6, tail: 4 });
        for (steps, impossible) in [
            (vec![Sent(6), Sent(4), Over], None),
            (vec![Sent(6), Sent(5)], Some(1)),
            (vec![Sent(6), Ends(11), Sent(1), Sent(3), Over], None),
            (vec![Sent(6), Goes(20), Goes(20), Ends(21), Sent(4), Over], None),
            (vec![Sent(5), Ends(11)], Some(1)),
            (vec![Sent(7), Ends(11)], Some(1)),
            (vec![Sent(6), Ends(10)], Some(1)),
            (vec![Sent(6), Goes(20), Ends(19)], Some(2)),
            (vec![Sent(6), Goes(20), Sent(1)], Some(2)),
            (vec![Sent(6), Goes(20), Over], Some(2)),
            (vec![Sent(6), Ends(11), Sent(5)], Some(2)),
            (vec![Sent(6), Ends(11), Ends(12)], Some(2)),
        ] {
            assert_eq!(first_impossible(kept, &steps), impossible);
        }
        assert_eq!(first_impossible(None, &[Sent(1 << 30), Sent(1 << 30), Over]), None);
        assert_eq!(first_impossible(None, &[Sent(1), Ends(2)]), Some(1));
    }

    #[test]
    fn an_output_cut_off_is_possible_only_where_nobody_says_that_all_is_gone() {
        let mut streams = Streams::new(Some(Kept { head: 0, tail: 0 }));
        streams.beyond(&Beyond { stream: Stream::Stderr, bytes: 1, sha256: None }).unwrap();
        assert!(streams.may_end(&Exit { proven_gone: true, ..Exit::default() }).is_err());
        assert!(streams.may_end(&Exit::default()).is_ok());
    }
}
