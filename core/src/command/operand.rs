//! Which words of a command name content that a grant must bind: a program given by path, and the script
//! that an interpreter is asked to run. Not every file argument: `sed -i x f` must still work.
//!
//! These are candidates. The executor resolves them; only those that are regular files inside the workspace
//! are bound.

use super::{Command, shell};

/// A word that may name content to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// The path as written, relative to the workspace root unless absolute.
    pub path: Vec<u8>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operands {
    /// In order of appearance, without repetition; at most [`Operands::MOST`].
    pub found: Vec<Operand>,
    /// Something runs that cannot be seen from the text (an expansion, a changed directory, too many): the
    /// approval is flagged `operand-unpinned`.
    pub unseen: bool,
}

impl Operands {
    /// How many are bound at the most.
    pub const MOST: usize = 32;
}

/// Finds the operands of `command`.
pub fn operands(command: &Command) -> Operands {
    let mut search = Search::default();
    match command {
        Command::Argv(argv) => {
            let words: Vec<_> = argv.iter().map(|word| Seen { bytes: word, opaque: false }).collect();
            search.simple(&words, None, 0);
        }
        Command::Shell(text) => search.text(text, 0),
    }
    search.operands
}

/// The options by which a shell takes its program from elsewhere than a file.
const SHELL_INLINE: &[&str] = &["-c", "-s"];

/// Interpreters: options that mean "the program is an argument", and options that take a value.
const INTERPRETERS: &[(&str, &[&str], &[&str])] = &[
    ("sh", SHELL_INLINE, &["-o", "+o"]),
    ("bash", SHELL_INLINE, &["-o", "+o", "-O", "+O", "--rcfile", "--init-file"]),
    ("dash", SHELL_INLINE, &["-o", "+o"]),
    ("zsh", SHELL_INLINE, &["-o", "+o"]),
    ("ksh", SHELL_INLINE, &["-o", "+o"]),
    ("busybox", &[], &[]),
    ("python", &["-c", "-m"], &["-W", "-X", "--check-hash-based-pycs"]),
    ("perl", &["-e", "-E"], &["-I", "-M", "-m", "-x"]),
    ("ruby", &["-e"], &["-I", "-r", "-E", "-C"]),
    ("node", &["-e", "-p", "--eval", "--print"], &["-r", "--require", "--import", "--loader", "-C"]),
    ("php", &["-r"], &["-d", "-c", "-z"]),
    ("lua", &["-e"], &["-l"]),
    ("tclsh", &[], &["-encoding"]),
    ("Rscript", &["-e"], &[]),
    ("awk", &[], &[]),
    ("make", &[], &["-C", "-j", "-l", "-o", "-W", "-I"]),
];

/// Programs that run the rest of their arguments, with options that take a value and how many plain words
/// come before the program.
const WRAPPERS: &[(&str, &[&str], usize)] = &[
    ("env", &["-u", "-C", "--unset", "--chdir"], 0),
    ("exec", &["-a"], 0),
    ("command", &[], 0),
    ("builtin", &[], 0),
    ("nohup", &[], 0),
    ("setsid", &[], 0),
    ("time", &["-f", "-o"], 0),
    ("nice", &["-n"], 0),
    ("ionice", &["-c", "-n", "-p"], 0),
    ("stdbuf", &["-i", "-o", "-e"], 0),
    ("timeout", &["-s", "-k", "--signal", "--kill-after"], 1),
];

/// Shell words that a command may follow directly.
const PREFIXES: &[&str] = &["if", "then", "else", "elif", "while", "until", "do", "{", "!"];

/// How deep wrappers may wrap.
const DEEPEST: usize = 8;

#[derive(Clone, Copy)]
struct Seen<'a> {
    bytes: &'a [u8],
    opaque: bool,
}

fn seen(word: &shell::Word) -> Seen<'_> {
    Seen { bytes: word.text.as_bytes(), opaque: word.opaque }
}

#[derive(Default)]
struct Search {
    operands: Operands,
    moved: bool,
}

impl Search {
    fn text(&mut self, text: &str, depth: usize) {
        for simple in shell::read(text).commands {
            let words: Vec<_> = simple.words.iter().map(seen).collect();
            self.simple(&words, simple.input.as_ref().map(seen), depth);
        }
    }

    fn simple(&mut self, words: &[Seen<'_>], input: Option<Seen<'_>>, depth: usize) {
        if depth > DEEPEST {
            self.operands.unseen = true;
            return;
        }
        let Some((program, rest)) = after_assignments(words) else { return };
        let text = String::from_utf8_lossy(program.bytes).into_owned();
        if PREFIXES.contains(&text.as_str()) {
            return self.simple(rest, input, depth + 1);
        }
        if program.opaque {
            self.operands.unseen = true;
            return;
        }
        if text.contains('/') {
            self.candidate(program);
        }
        let name = text.rsplit('/').next().unwrap_or_default();
        match name {
            "cd" | "pushd" | "popd" | "chroot" => self.moved = true,
            "." | "source" => {
                if let Some(word) = rest.first() {
                    self.candidate(*word);
                }
            }
            "eval" => self.operands.unseen = true,
            _ => {
                if let Some((_, valued, plain)) = WRAPPERS.iter().find(|(wrapper, ..)| *wrapper == name) {
                    let inner = after_options(rest, valued).get(*plain..).unwrap_or_default();
                    self.simple(inner, input, depth + 1);
                } else {
                    self.interpreter(name, rest, input, depth);
                }
            }
        }
    }

    fn interpreter(&mut self, name: &str, rest: &[Seen<'_>], input: Option<Seen<'_>>, depth: usize) {
        let versionless = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        let known = |(interpreter, ..): &&(&str, _, _)| {
            *interpreter == name || *interpreter == versionless || (versionless == "nodejs" && *interpreter == "node")
        };
        let Some((interpreter, inline, valued)) = INTERPRETERS.iter().find(known) else { return };
        if matches!(*interpreter, "awk" | "make") {
            return self.after_f(rest);
        }
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            let text = String::from_utf8_lossy(word.bytes);
            if text == "--" {
                if let Some(script) = words.next() {
                    self.candidate(*script);
                }
                return;
            }
            let bundled_c = text.len() > 1
                && text.starts_with('-')
                && !text.starts_with("--")
                && text.ends_with('c')
                && inline.contains(&"-c");
            let is_shell = *inline == SHELL_INLINE;
            if is_shell && (text == "-c" || bundled_c) {
                // `sh -c TEXT` runs what TEXT says, as if TEXT had been proposed.
                match words.find(|word| !word.bytes.starts_with(b"-")) {
                    Some(Seen { opaque: false, bytes }) if depth < DEEPEST => match std::str::from_utf8(bytes) {
                        Ok(text) => self.text(text, depth + 1),
                        Err(_) => self.operands.unseen = true,
                    },
                    Some(_) => self.operands.unseen = true,
                    None => {}
                }
                return;
            }
            if inline.contains(&text.as_ref()) || bundled_c {
                return;
            }
            if valued.contains(&text.as_ref()) {
                words.next();
                continue;
            }
            if !text.starts_with(['-', '+']) || text == "-" {
                if text != "-" {
                    self.candidate(*word);
                }
                return;
            }
        }
        if let Some(script) = input {
            self.candidate(script);
        }
    }

    /// `awk -f FILE`, `make -f FILE`.
    fn after_f(&mut self, rest: &[Seen<'_>]) {
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            if word.bytes == b"-f" {
                if let Some(file) = words.next() {
                    self.candidate(*file);
                }
            } else if let Some(file) = word.bytes.strip_prefix(b"-f") {
                self.candidate(Seen { bytes: file, opaque: word.opaque });
            }
        }
    }

    fn candidate(&mut self, word: Seen<'_>) {
        let relative_after_cd = self.moved && !word.bytes.starts_with(b"/");
        if word.opaque || relative_after_cd || self.operands.found.len() >= Operands::MOST {
            self.operands.unseen = true;
            return;
        }
        if word.bytes.is_empty() || self.operands.found.iter().any(|known| known.path == word.bytes) {
            return;
        }
        self.operands.found.push(Operand { path: word.bytes.to_vec() });
    }
}

fn after_assignments<'a, 'w>(words: &'a [Seen<'w>]) -> Option<(Seen<'w>, &'a [Seen<'w>])> {
    let at = words.iter().position(|word| !is_assignment(word.bytes))?;
    let (program, rest) = words.get(at..)?.split_first()?;
    Some((*program, rest))
}

fn is_assignment(word: &[u8]) -> bool {
    let Some(at) = word.iter().position(|b| *b == b'=') else { return false };
    let name = word.get(..at).unwrap_or_default();
    name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn after_options<'a, 'w>(words: &'a [Seen<'w>], valued: &[&str]) -> &'a [Seen<'w>] {
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        if word.bytes == b"--" {
            return after;
        }
        if !word.bytes.starts_with(b"-") {
            break;
        }
        let takes_value = valued.iter().any(|option| option.as_bytes() == word.bytes);
        rest = if takes_value { after.get(1..).unwrap_or_default() } else { after };
    }
    rest
}
