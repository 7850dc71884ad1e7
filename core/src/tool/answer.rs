//! What the model is told about one call.

use serde_json::json;

use crate::{id::OperationId, operation::State};

/// The whole answer as JSON: what a model can be expected to read of one call.
pub const MAX_ANSWER_BYTES: usize = 32 << 10;
/// What is kept of the comment: an operator's sentence, or a reason.
const COMMENT_BYTES: usize = 4 << 10;
/// Everything in the JSON but the three texts: keys, an outcome, an id, two numbers.
const FRAME_BYTES: usize = 512;
/// A stream that is longer than its share is cut, but never below this for the other's sake.
const LEAST_BYTES: usize = 8 << 10;

/// The answer to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Where the operation ended; `refused` for a call that never became one.
    pub outcome: State,
    /// The code that a command left with.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote, or what was listed, read or found.
    pub stdout: String,
    /// What it wrote beside.
    pub stderr: String,
    /// Whether some was left out.
    pub truncated: bool,
    /// What an operator or Salaam says about it.
    pub comment: Option<String>,
    /// The operation, if there is one.
    pub operation: Option<OperationId>,
}

impl Answer {
    /// An answer with an outcome and nothing else.
    pub const fn new(outcome: State) -> Self {
        Self {
            outcome,
            exit_code: None,
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            comment: None,
            operation: None,
        }
    }

    /// The answer cut so that its JSON has at most [`MAX_ANSWER_BYTES`]: head and tail of what is long stay, with a
    /// line between them that says how much is gone. An answer that fits stays as it is, and cutting twice is
    /// cutting once.
    #[must_use]
    pub fn cut(mut self) -> Self {
        if self.json_bytes() <= MAX_ANSWER_BYTES {
            return self;
        }
        self.truncated = true;
        if let Some(comment) = self.comment.take() {
            self.comment = Some(ends(&comment, COMMENT_BYTES));
        }
        let comment = self.comment.as_deref().map_or(0, escaped_bytes);
        let both = MAX_ANSWER_BYTES - FRAME_BYTES - comment;
        // The stream that needs less leaves the rest of its share to the other.
        let (out, err) = (escaped_bytes(&self.stdout), escaped_bytes(&self.stderr));
        let err_share = err.min((both - out.min(both)).max(LEAST_BYTES));
        self.stderr = ends(&self.stderr, err_share);
        self.stdout = ends(&self.stdout, both - escaped_bytes(&self.stderr));
        self
    }

    /// The JSON that the model reads, at most [`MAX_ANSWER_BYTES`].
    pub fn to_json(&self) -> String {
        if self.json_bytes() <= MAX_ANSWER_BYTES { self.whole() } else { self.clone().cut().whole() }
    }

    fn json_bytes(&self) -> usize {
        let texts = [self.stdout.as_str(), &self.stderr, self.comment.as_deref().unwrap_or_default()];
        FRAME_BYTES + texts.into_iter().map(escaped_bytes).sum::<usize>()
    }

    fn whole(&self) -> String {
        json!({
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "truncated": self.truncated,
            "comment": self.comment,
            "operation": self.operation,
        })
        .to_string()
    }
}

/// What a character takes in a JSON string.
const fn escaped(c: char) -> usize {
    match c {
        '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
        '\u{0}'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

fn escaped_bytes(text: &str) -> usize {
    text.chars().map(escaped).sum()
}

/// Head and tail of a text, cut between characters, so that it takes at most `most` bytes in JSON. The tail is where
/// a command says what came of it, so it gets two thirds.
fn ends(text: &str, most: usize) -> String {
    let whole = escaped_bytes(text);
    if whole <= most {
        return text.to_owned();
    }
    // What is left out has no more digits than the whole.
    let line = |gone: usize| format!("\n[{gone} bytes are left out here]\n");
    let room = most.saturating_sub(escaped_bytes(&line(text.len())));
    let head = taken(text.char_indices().map(|(at, c)| (at + c.len_utf8(), c)), room / 3).unwrap_or(0);
    let tail = taken(text.char_indices().rev(), room - room / 3).unwrap_or(text.len());
    let (begin, end) = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
    [begin, &line(tail.saturating_sub(head)), end].concat()
}

/// The last border that is reached within `room`.
fn taken(characters: impl Iterator<Item = (usize, char)>, room: usize) -> Option<usize> {
    characters
        .scan(0, |used, (border, c)| {
            *used += escaped(c);
            (*used <= room).then_some(border)
        })
        .last()
}
