//! One call of a model, from its JSON.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::{
    canon,
    command::{Command, CommandError},
    edit::{Change, EditError, check_path, paths},
    id::OperationId,
    limits::Limits,
    object::Object,
    reader::{MAX_LINES, MAX_PATTERN_BYTES, Place},
    show,
};

/// The tools that there are.
pub const TOOLS: &[&str] = &["salaam_workspace", "salaam_local"];
/// The JSON of one call: a large file to create, as base64.
pub const MAX_ARGUMENTS_BYTES: usize = 2 << 20;
/// Lines that are read where a call does not say.
pub const DEFAULT_LINES: u64 = 500;
/// What of a call an error quotes.
const QUOTED_CHARS: usize = 80;

/// What a model asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The entries of a directory.
    List {
        /// Relative to the root; empty = the root.
        path: Vec<u8>,
        /// Only names after this one.
        after: Option<Vec<u8>>,
    },
    /// Lines of a file.
    Read {
        /// Relative to the root.
        path: Vec<u8>,
        /// From 1.
        from_line: u64,
        /// How many.
        lines: u64,
    },
    /// Lines that match.
    Search {
        /// A regular expression.
        pattern: String,
        /// Relative to the root; empty = the root.
        path: Vec<u8>,
        /// Only matches after this place.
        after: Option<Place>,
    },
    /// A program is run.
    Command {
        /// Shell text.
        command: Command,
        /// Its time limit; absent = the policy's.
        timeout_seconds: Option<u64>,
    },
    /// Files are changed.
    Edit {
        /// In order.
        edits: Vec<Change>,
    },
    /// An edit is taken back.
    Undo {
        /// Which.
        operation: OperationId,
    },
}

/// Why a call is refused, in words for the model. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// No such tool.
    #[error("there is no tool `{name}`; the tools are {}", TOOLS.join(" and "))]
    Unknown {
        /// Its beginning, made visible.
        name: String,
    },
    /// The JSON is too long.
    #[error("the arguments have {0} bytes; {MAX_ARGUMENTS_BYTES} is the most; make several calls")]
    TooLong(usize),
    /// Not the JSON of this tool.
    #[error("the arguments are not those of the tool: {0}")]
    Form(String),
    /// A path that is not one.
    #[error(transparent)]
    Path(EditError),
    /// A number outside its range.
    #[error("`{name}` must be from 1 to {most}")]
    Range {
        /// The key.
        name: &'static str,
        /// The most.
        most: u64,
    },
    /// A search without a pattern, or with an endless one.
    #[error("`pattern` must have from 1 to {MAX_PATTERN_BYTES} bytes")]
    Pattern,
    /// A command that cannot be run.
    #[error(transparent)]
    Command(CommandError),
    /// An entry of `edits` that is none.
    #[error("edit {index}: {why}")]
    Edit {
        /// Its place, from 0.
        index: usize,
        /// What it lacks or has too much.
        why: &'static str,
    },
    /// Edits that cannot be one.
    #[error(transparent)]
    Edits(EditError),
}

/// Parses one call.
///
/// # Errors
/// What is wrong with it, in words for the model.
pub fn parse(tool: &str, arguments: &str) -> Result<Call, ToolError> {
    if arguments.len() > MAX_ARGUMENTS_BYTES {
        return Err(ToolError::TooLong(arguments.len()));
    }
    match tool {
        "salaam_workspace" => look(json(arguments)?),
        "salaam_local" => act(json(arguments)?),
        other => Err(ToolError::Unknown { name: quoted(other) }),
    }
}

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
enum Look {
    List { path: Option<Bytes>, after: Option<Bytes> },
    Read { path: Bytes, from_line: Option<u64>, lines: Option<u64> },
    Search { pattern: String, path: Option<Bytes>, after: Option<Object<RawPlace>> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlace {
    path: Bytes,
    line: u64,
}

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
enum Act {
    Command { command: String, timeout_seconds: Option<u64> },
    Edit { edits: Vec<Object<RawEdit>> },
    Undo { operation: OperationId },
}

/// All that an entry of `edits` may hold; [`change`] says what goes together.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEdit {
    path: Bytes,
    old: Option<String>,
    new: Option<String>,
    all: Option<bool>,
    create: Option<String>,
    create_base64: Option<String>,
    delete: Option<bool>,
    rename: Option<Bytes>,
    mode: Option<String>,
}

/// A name that may not be UTF-8: a string, or `{"base64":"…"}`, as answers write it.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        canon::to_bytes(&value).map(Self).ok_or_else(|| de::Error::custom("a path is a string or {\"base64\":\"...\"}"))
    }
}

fn look(look: Look) -> Result<Call, ToolError> {
    match look {
        Look::List { path, after } => {
            let after = match after {
                Some(Bytes(name)) => {
                    file(&name)?;
                    Some(name)
                }
                None => None,
            };
            Ok(Call::List { path: directory(path)?, after })
        }
        Look::Read { path: Bytes(path), from_line, lines } => {
            file(&path)?;
            Ok(Call::Read {
                path,
                from_line: within("from_line", from_line.unwrap_or(1), u64::from(u32::MAX))?,
                lines: within("lines", lines.unwrap_or(DEFAULT_LINES), MAX_LINES)?,
            })
        }
        Look::Search { pattern, path, after } => {
            if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
                return Err(ToolError::Pattern);
            }
            let after = match after {
                Some(Object(RawPlace { path: Bytes(path), line })) => {
                    file(&path)?;
                    Some(Place { path, line: within("line", line, u64::from(u32::MAX))? })
                }
                None => None,
            };
            Ok(Call::Search { pattern, path: directory(path)?, after })
        }
    }
}

fn act(act: Act) -> Result<Call, ToolError> {
    match act {
        Act::Command { command, timeout_seconds } => {
            let most = Limits::CEILING.command_seconds;
            let timeout_seconds = timeout_seconds.map(|s| within("timeout_seconds", s, most)).transpose()?;
            Ok(Call::Command { command: Command::shell(command).map_err(ToolError::Command)?, timeout_seconds })
        }
        Act::Edit { edits } => {
            let numbered = edits.into_iter().enumerate();
            let edits: Vec<Change> = numbered
                .map(|(index, Object(edit))| change(edit).map_err(|why| ToolError::Edit { index, why }))
                .collect::<Result<_, _>>()?;
            paths(&edits).map_err(ToolError::Edits)?;
            Ok(Call::Edit { edits })
        }
        Act::Undo { operation } => Ok(Call::Undo { operation }),
    }
}

/// Exactly one of the forms. `all` is only for a replacement, `delete` only true.
fn change(edit: RawEdit) -> Result<Change, &'static str> {
    const FORMS: &str = "it needs `path` and one of: `old` with `new` (and `all`), `create`, `create_base64`, `delete`: true, `rename`, `mode`";
    let RawEdit { path: Bytes(path), old, new, all, create, create_base64, delete, rename, mode } = edit;
    match (old, new, all, create, create_base64, delete, rename, mode) {
        (Some(old), Some(new), all, None, None, None, None, None) => {
            Ok(Change::Replace { path, old: old.into(), new: new.into(), all: all.unwrap_or(false) })
        }
        (None, None, None, Some(content), None, None, None, None) => {
            Ok(Change::Create { path, content: content.into() })
        }
        (None, None, None, None, Some(content), None, None, None) => {
            let content = STANDARD.decode(content).map_err(|_| "`create_base64` is not base64")?;
            Ok(Change::Create { path, content })
        }
        (None, None, None, None, None, Some(true), None, None) => Ok(Change::Delete { path }),
        (None, None, None, None, None, None, Some(Bytes(to)), None) => Ok(Change::Rename { path, to }),
        (None, None, None, None, None, None, None, Some(mode)) => Ok(Change::Mode { path, mode: octal(&mode)? }),
        _ => Err(FORMS),
    }
}

/// Three or four octal digits; what lies beyond 0777 is refused with the other changes.
fn octal(mode: &str) -> Result<u32, &'static str> {
    let digits = (3..=4).contains(&mode.len()) && mode.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    u32::from_str_radix(mode, 8)
        .ok()
        .filter(|_| digits)
        .ok_or("`mode` is written as four octal digits such as \"0755\"")
}

/// The root is written as `.`, or left out.
fn directory(path: Option<Bytes>) -> Result<Vec<u8>, ToolError> {
    match path {
        None => Ok(Vec::new()),
        Some(Bytes(path)) if path == b"." => Ok(Vec::new()),
        Some(Bytes(path)) => {
            file(&path)?;
            Ok(path)
        }
    }
}

fn file(path: &[u8]) -> Result<(), ToolError> {
    check_path(path).map_err(ToolError::Path)
}

const fn within(name: &'static str, given: u64, most: u64) -> Result<u64, ToolError> {
    if given == 0 || given > most { Err(ToolError::Range { name, most }) } else { Ok(given) }
}

fn json<'a, T: Deserialize<'a>>(arguments: &'a str) -> Result<T, ToolError> {
    let read = serde_json::from_str(arguments).map_err(|error| ToolError::Form(quoted(&error.to_string())))?;
    let Object(read) = read;
    Ok(read)
}

fn quoted(text: &str) -> String {
    show::excerpt(text.as_bytes(), QUOTED_CHARS)
}
