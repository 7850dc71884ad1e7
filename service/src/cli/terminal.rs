//! What goes to the caller: text and JSON on standard output, complaints on standard error, bytes of
//! commands escaped where a terminal would obey them.

use std::io::{self, ErrorKind, IsTerminal, Write};

use salaam_core::show;
use serde_json::Value;

use super::trouble::Trouble;

/// How this call prints.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    /// Whether `--json` was given.
    pub json: bool,
}

impl Out {
    /// Prints text of our own and a line feed; what came from elsewhere in it was shown escaped before.
    pub(super) fn text(self, text: &str) -> Result<(), Trouble> {
        write_stdout(format!("{text}\n").as_bytes())
    }

    /// Prints one JSON object on one line.
    pub(super) fn object(self, value: &Value) -> Result<(), Trouble> {
        self.text(&visible_json(&value.to_string()))
    }

    /// Prints a result: the object with `--json`, else the text that `human` makes of it.
    pub(super) fn result(self, value: &Value, human: impl FnOnce(&Value) -> String) -> Result<(), Trouble> {
        if self.json { self.object(value) } else { self.text(human(value).trim_end()) }
    }

    /// Prints a listing: an object a line with `--json`, else a table.
    pub(super) fn listing(
        self,
        rows: &[Value],
        head: &[&str],
        human: impl Fn(&Value) -> Vec<String>,
        empty: &str,
    ) -> Result<(), Trouble> {
        if self.json {
            return rows.iter().try_for_each(|row| self.object(row));
        }
        if rows.is_empty() {
            return self.text(empty);
        }
        let mut table = vec![head.iter().map(|&word| word.to_owned()).collect()];
        table.extend(rows.iter().map(human));
        self.text(columns(&table).trim_end())
    }

    /// Says on standard error what is going on.
    pub(super) fn note(self, text: &str) {
        // Nobody can be told that nobody can be told.
        let _ = io::stderr().lock().write_all(format!("salaam: {}\n", show::block(text.as_bytes())).as_bytes());
    }

    /// Reports a failure: on standard error for a person, as an object on standard output with `--json`.
    pub(super) fn complain(self, trouble: &Trouble) {
        if matches!(trouble, Trouble::BrokenPipe | Trouble::Shown) {
            return;
        }
        if self.json {
            let _ = self.object(&trouble.to_value());
            return;
        }
        self.note(&complaint(trouble));
    }

    /// The same, and the id on standard error even with `--json`: what `run` promises.
    pub(super) fn complain_with_id(self, trouble: &Trouble) {
        self.complain(trouble);
        if self.json && !matches!(trouble, Trouble::BrokenPipe | Trouble::Shown) {
            self.note(&complaint(trouble));
        }
    }
}

fn complaint(trouble: &Trouble) -> String {
    let mut text = format!("{}: {}", show::line(trouble.id().as_bytes()), show::line(trouble.to_string().as_bytes()));
    if let Trouble::Refused { checks, .. } = trouble {
        for check in checks {
            text += &format!("\n  {}: {}", show::line(check.id.as_bytes()), show::line(check.evidence.as_bytes()));
            if !check.fix.is_empty() {
                text += &format!("\n    fix: {}", show::line(check.fix.as_bytes()));
            }
        }
    }
    let fix = trouble.fix();
    if !fix.is_empty() {
        text += &format!("\n  fix: {}", show::line(fix.as_bytes()));
    }
    text
}

/// The same JSON, every hidden character in it written as an escape: they stand in strings only.
pub(super) fn visible_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if show::is_hidden(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out += &format!("\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Writes bytes as they are.
pub(super) fn write_stdout(bytes: &[u8]) -> Result<(), Trouble> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|source| unwritable(source, "standard output"))
}

fn unwritable(source: io::Error, what: &str) -> Trouble {
    if source.kind() == ErrorKind::BrokenPipe {
        Trouble::BrokenPipe
    } else {
        Trouble::Local { attempted: "writing", path: what.into(), source }
    }
}

/// Text of JSON, safe to look at on one line; `-` where there is none. A path that is not UTF-8 arrives as
/// `{"base64":"…"}`.
pub(super) fn word(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::Bool(b)) => b.to_string(),
        Some(Value::Number(n)) => n.to_string(),
        Some(value @ (Value::String(_) | Value::Object(_))) => match salaam_core::canon::to_bytes(value) {
            Some(bytes) => show::line(&bytes),
            None => show::line(value.to_string().as_bytes()),
        },
        Some(Value::Array(list)) => list.iter().map(|item| word(Some(item))).collect::<Vec<_>>().join(", "),
    }
}

/// The word at a JSON pointer (RFC 6901).
pub(super) fn at(value: &Value, pointer: &str) -> String {
    word(value.pointer(pointer))
}

/// Every field of an object on a line of its own, what lies deeper with its path.
pub(super) fn fields(value: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    columns(&rows)
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(map) if salaam_core::canon::to_bytes(value).is_none() => {
            for (key, item) in map {
                let key = show::line(key.as_bytes());
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                flatten(&name, item, rows);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            rows.push(vec![name.to_owned(), word(Some(value))]);
        }
    }
}

/// Rows in columns, two blanks apart.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let wide = cell.chars().count();
            match widths.get_mut(i) {
                Some(width) => *width = (*width).max(wide),
                None => widths.push(wide),
            }
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Where the bytes of one output stream of a command go.
#[derive(Debug)]
pub(super) struct Passage {
    stream: Target,
    /// Some where a terminal reads: then everything is escaped.
    decoder: Option<Decoder>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Stdout,
    Stderr,
}

impl Passage {
    /// To standard output.
    pub(super) fn stdout() -> Self {
        Self { stream: Target::Stdout, decoder: io::stdout().is_terminal().then(Decoder::default) }
    }

    /// To standard error.
    pub(super) fn stderr() -> Self {
        Self { stream: Target::Stderr, decoder: io::stderr().is_terminal().then(Decoder::default) }
    }

    /// Passes on the next bytes.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        match &mut self.decoder {
            Some(decoder) => {
                let text = decoder.next(bytes);
                self.write(text.as_bytes())
            }
            None => self.write(bytes),
        }
    }

    /// Passes on what was held back of a character that never became whole.
    pub(super) fn finish(&mut self) -> Result<(), Trouble> {
        let rest = self.decoder.as_mut().map(Decoder::rest).unwrap_or_default();
        self.write(rest.as_bytes())
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Trouble> {
        match self.stream {
            Target::Stdout => write_stdout(bytes),
            Target::Stderr => {
                io::stderr().lock().write_all(bytes).map_err(|source| unwritable(source, "standard error"))
            }
        }
    }
}

/// Escapes a stream piece by piece; a character that is split over two pieces is shown whole.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// The escaped text of what is complete by now.
    pub(super) fn next(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let rest = self.held.split_off(self.held.len() - unfinished(&self.held));
        let whole = std::mem::replace(&mut self.held, rest);
        show::block(&whole)
    }

    /// The escaped text of what is left at the end.
    pub(super) fn rest(&mut self) -> String {
        show::block(&std::mem::take(&mut self.held))
    }
}

/// How many bytes at the end begin a character and could still become one: at most three.
fn unfinished(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // `error_len` is None exactly where more bytes could complete the character.
        Some(last) if std::str::from_utf8(last.invalid()).is_err_and(|e| e.error_len().is_none()) => {
            last.invalid().len()
        }
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_character_split_at_any_byte_is_shown_whole() {
        let text = "a€\u{1f600}é漢";
        for cut in 0..=text.len() {
            for again in cut..=text.len() {
                let mut decoder = Decoder::default();
                let bytes = text.as_bytes();
                let shown = decoder.next(&bytes[..cut])
                    + &decoder.next(&bytes[cut..again])
                    + &decoder.next(&bytes[again..])
                    + &decoder.rest();
                assert_eq!(shown, text);
            }
        }
    }

    #[test]
    fn bytes_that_never_become_a_character_are_visible_and_not_held() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.next(b"\xff\xc3("), "\\xff\\xc3(");
        assert_eq!(decoder.next(b"\xe2\x80"), "");
        assert_eq!(decoder.rest(), "\\xe2\\x80");
        assert_eq!(decoder.next(b"\x1b]0;title\x07\0"), "\\e]0;title\\u{7}\\u{0}");
    }

    #[test]
    fn words_from_elsewhere_cannot_drive_the_terminal() {
        let value = json!({"name": "a\u{1b}[2K\nb", "raw": {"base64": "/w=="}, "list": ["x", "\u{202e}y"]});
        assert_eq!(at(&value, "/name"), "a\\e[2K\\nb");
        assert_eq!(at(&value, "/raw"), "\\xff");
        assert_eq!(at(&value, "/list"), "x, \\u{202e}y");
        assert_eq!(at(&value, "/missing"), "-");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["ID".into(), "NAME".into()], vec!["ws_1".into(), "é".into()]];
        assert_eq!(columns(&rows), "ID    NAME\nws_1  é\n");
    }
}
