//! Reads shell text just far enough to see its simple commands (POSIX Shell Command Language, 2.3 and 2.10).
//!
//! It never decides what runs: the shell does. It finds words whose files should be bound and says when the
//! text holds more than one plain command.

/// A word of a simple command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// Its text after quote removal.
    pub text: String,
    /// Whether the shell would expand it to something that is not seen here.
    pub opaque: bool,
}

/// One simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Simple {
    /// Its words, assignments included.
    pub words: Vec<Word>,
    /// The target of `<`.
    pub input: Option<Word>,
}

/// Shell text, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Script {
    /// In order of appearance.
    pub commands: Vec<Simple>,
    /// More than one plain command: operators, redirections, expansions, several lines.
    pub compound: bool,
}

/// Reads `text`.
pub(super) fn read(text: &str) -> Script {
    let mut reader =
        Reader { script: Script::default(), current: Simple::default(), word: None, redirect: Redirect::None };
    let mut chars = text.trim_end().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = reader.word();
                for c in chars.by_ref().take_while(|c| *c != '\'') {
                    word.text.push(c);
                }
            }
            '"' => reader.double_quoted(&mut chars),
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c) => reader.word().text.push(c),
            },
            ' ' | '\t' => reader.end_word(),
            '#' if reader.word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\n' | ';' | '&' | '|' | '(' | ')' => reader.end_command(),
            '<' | '>' => reader.redirect(c, &mut chars),
            '$' | '`' | '*' | '?' | '[' | '{' | '}' | '~' | '!' => {
                if matches!(c, '$' | '`') {
                    reader.script.compound = true;
                }
                let word = reader.word();
                word.opaque = true;
                word.text.push(c);
            }
            c => reader.word().text.push(c),
        }
    }
    reader.end_word();
    if !reader.current.words.is_empty() || reader.current.input.is_some() {
        reader.script.commands.push(reader.current);
    }
    reader.script.compound |= reader.script.commands.len() > 1;
    reader.script
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Redirect {
    None,
    Input,
    Other,
}

struct Reader {
    script: Script,
    current: Simple,
    word: Option<Word>,
    redirect: Redirect,
}

impl Reader {
    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_with(|| Word { text: String::new(), opaque: false })
    }

    fn double_quoted(&mut self, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        self.word();
        while let Some(c) = chars.next() {
            match c {
                '"' => break,
                '\\' if chars.peek().is_some_and(|next| "$`\"\\\n".contains(*next)) => {
                    if let Some(next) = chars.next().filter(|next| *next != '\n') {
                        self.word().text.push(next);
                    }
                }
                c => {
                    if matches!(c, '$' | '`') {
                        self.script.compound = true;
                        self.word().opaque = true;
                    }
                    self.word().text.push(c);
                }
            }
        }
    }

    fn redirect(&mut self, c: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        // A word of digits right before the sign is a descriptor number, not an argument.
        if self.word.as_ref().is_some_and(|word| word.text.bytes().all(|b| b.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        self.script.compound = true;
        let plain = c == '<' && chars.next_if(|next| matches!(next, '<' | '&' | '>')).is_none();
        while chars.next_if(|next| matches!(next, '>' | '&' | '|' | '-' | '<')).is_some() {}
        self.redirect = if plain { Redirect::Input } else { Redirect::Other };
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.redirect, Redirect::None) {
            Redirect::None => self.current.words.push(word),
            Redirect::Input => self.current.input = Some(word),
            Redirect::Other => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirect = Redirect::None;
        self.script.compound = true;
        if !self.current.words.is_empty() || self.current.input.is_some() {
            self.script.commands.push(std::mem::take(&mut self.current));
        }
    }
}
