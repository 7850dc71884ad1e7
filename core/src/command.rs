//! A command as it was proposed, its limits, and which of its words name content that must be bound.

use serde_json::Value;

use crate::{canon, show};

/// MAX_ARG_STRLEN of Linux less its terminator: one argument of exec (execve(2)).
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;
/// All arguments together; Linux allows a quarter of the stack limit, 2 MiB by default, with the environment.
pub const MAX_ARGV_BYTES: usize = 1536 * 1024;
/// Arguments at the most.
pub const MAX_ARGUMENTS: usize = 65_536;
/// Shell text; above [`MAX_ARGUMENT_BYTES`] it reaches the shell as a file instead of an argument.
pub const MAX_SHELL_BYTES: usize = 1024 * 1024;

/// What is exec'd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program and its arguments, without a shell; a name without a slash is looked up inside.
    Argv(Vec<Vec<u8>>),
    /// Text for `/bin/sh -c`.
    Shell(String),
}

/// Why a command is refused before anybody is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Nothing to run.
    #[error("an empty command cannot be approved")]
    Empty,
    /// exec ends arguments at NUL.
    #[error("argument {0} holds a NUL byte, which no program can receive")]
    Nul(usize),
    /// One argument is too long for the kernel.
    #[error(
        "argument {index} has {bytes} bytes; the kernel takes {MAX_ARGUMENT_BYTES}; send it as a file or as standard input"
    )]
    ArgumentTooLong {
        /// Its position, the program being 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// All together are too long.
    #[error("the arguments have {0} bytes together; {MAX_ARGV_BYTES} is the most")]
    ArgvTooLong(usize),
    /// Too many.
    #[error("{0} arguments; {MAX_ARGUMENTS} is the most")]
    TooMany(usize),
    /// The text is too long.
    #[error("the command text has {0} bytes; {MAX_SHELL_BYTES} is the most; put it into a file")]
    ShellTooLong(usize),
    /// Not a string and not `{"base64":"…"}`.
    #[error("argument {0} is neither a string nor {{\"base64\":\"…\"}}")]
    NotBytes(usize),
}

impl Command {
    /// Checks `argv` as it stands in JSON.
    pub fn from_json_argv(argv: &[Value]) -> Result<Self, CommandError> {
        let words = argv.iter().enumerate().map(|(i, word)| canon::to_bytes(word).ok_or(CommandError::NotBytes(i)));
        Self::argv(words.collect::<Result<_, _>>()?)
    }

    /// A checked argument vector.
    pub fn argv(argv: Vec<Vec<u8>>) -> Result<Self, CommandError> {
        if argv.first().is_none_or(Vec::is_empty) {
            return Err(CommandError::Empty);
        }
        if argv.len() > MAX_ARGUMENTS {
            return Err(CommandError::TooMany(argv.len()));
        }
        for (index, word) in argv.iter().enumerate() {
            if word.contains(&0) {
                return Err(CommandError::Nul(index));
            }
            if word.len() > MAX_ARGUMENT_BYTES {
                return Err(CommandError::ArgumentTooLong { index, bytes: word.len() });
            }
        }
        let total = argv.iter().map(|word| word.len() + 1).sum();
        if total > MAX_ARGV_BYTES {
            return Err(CommandError::ArgvTooLong(total));
        }
        Ok(Self::Argv(argv))
    }

    /// Checked shell text.
    pub fn shell(text: String) -> Result<Self, CommandError> {
        if text.trim().is_empty() {
            return Err(CommandError::Empty);
        }
        if text.contains('\0') {
            return Err(CommandError::Nul(0));
        }
        if text.len() > MAX_SHELL_BYTES {
            return Err(CommandError::ShellTooLong(text.len()));
        }
        Ok(Self::Shell(text))
    }

    /// What a person is shown: complete, every hidden character visible, words quoted so that their borders
    /// are seen.
    pub fn display(&self) -> String {
        match self {
            Self::Shell(text) => show::block(text.as_bytes()),
            Self::Argv(argv) => argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        }
    }

    /// Whether a person should look twice.
    pub fn flags(&self) -> Vec<&'static str> {
        let (hidden, compound) = match self {
            Self::Shell(text) => (!show::is_plain(text.as_bytes()), shell::read(text).compound),
            Self::Argv(argv) => (argv.iter().any(|word| !show::is_plain(word)), false),
        };
        [(compound, "compound"), (hidden, "hidden-characters")]
            .into_iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| name)
            .collect()
    }
}

fn quoted(word: &[u8]) -> String {
    let shown = show::line(word);
    let plain = |c: char| c.is_alphanumeric() || "_-+=./:,@%^".contains(c);
    if !shown.is_empty() && shown.chars().all(plain) { shown } else { format!("'{}'", shown.replace('\'', "'\\''")) }
}

mod operand;
mod shell;

pub use operand::{Operand, Operands, operands};

#[cfg(test)]
mod tests;
