//! The checks that every conversion shares, and the numbers behind them.

use salaam_core::{bridge::MAX_PLAN_LIST, digest::Digest, policy::UnknownWord};

/// PATH_MAX of Linux: no system call takes a longer path.
pub const MAX_PATH_BYTES: usize = 4096;
/// A sentence for a person: evidence, a fix, a message. Enough for a path and the words around it.
pub const MAX_SENTENCE_BYTES: usize = 2 * MAX_PATH_BYTES;
/// Steps of one sandbox probe.
pub const MAX_CHECKS: usize = 64;
/// Attempts in one `Try`: one for each place that must be out of reach.
pub const MAX_ATTEMPTS: usize = 256;

/// Ids such as `sandbox-userns`, names of namespaces, limits, environment variables.
pub(crate) const MAX_WORD_BYTES: usize = 128;
/// NGROUPS_MAX of Linux.
pub(crate) const MAX_GROUPS: usize = 65_536;
/// Kinds of namespaces: Linux has eight.
pub(crate) const MAX_NAMESPACES: usize = 16;
/// One value of the operator's environment: a quarter of the longest argument of exec.
pub(crate) const MAX_VALUE_BYTES: usize = 32 * 1024;
/// The type (4 bytes) and MAX_HANDLE_SZ (128 bytes) in hex.
pub(crate) const MAX_HANDLE_DIGITS: usize = 264;
/// The largest errno of Linux (MAX_ERRNO, include/linux/err.h).
pub(crate) const MAX_ERRNO: i32 = 4095;
/// The largest signal number of Linux (SIGRTMAX).
pub(crate) const MAX_SIGNAL: i32 = 64;
/// Changed paths that a result names.
pub(crate) const MAX_CHANGED_PATHS: usize = 100;

/// A message that no honest peer sends. It closes the bridge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// The field, as the contract names it.
        field: &'static str,
    },
    /// A string or byte field is longer than it may be.
    #[error("{field} has {given} bytes; {most} is the most")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length in bytes.
        given: usize,
        /// The most that is taken.
        most: usize,
    },
    /// A list is longer than it may be.
    #[error("{field} has {given} entries; {most} is the most")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its length.
        given: usize,
        /// The most that is taken.
        most: usize,
    },
    /// A word is none of its closed set.
    #[error("{field}: {source}")]
    Word {
        /// The field.
        field: &'static str,
        /// What was given and what there is.
        source: UnknownWord,
    },
    /// A value is outside its range or not of its form.
    #[error("{field} is not {form}")]
    Form {
        /// The field.
        field: &'static str,
        /// What it must be.
        form: &'static str,
    },
}

/// A field that must be there.
pub(crate) fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

/// Our own sentence, cut on a character to what the other side takes: it may quote a path that somebody
/// chose, and an honest executor must not send what the service has to take for an attack.
pub(crate) fn cut(sentence: String) -> String {
    cut_to(sentence, MAX_SENTENCE_BYTES)
}

/// Our own sentence, cut on a character to at most `most` bytes.
pub(crate) fn cut_to(mut sentence: String, most: usize) -> String {
    if sentence.len() > most {
        let end = (0..=most).rev().find(|end| sentence.is_char_boundary(*end)).unwrap_or(0);
        sentence.truncate(end);
    }
    sentence
}

/// A byte field of at most `most` bytes.
pub(crate) fn bytes(field: &'static str, value: &[u8], most: usize) -> Result<Vec<u8>, WireError> {
    length(field, value.len(), most)?;
    Ok(value.to_vec())
}

/// Text of at most `most` bytes; may be empty.
pub(crate) fn text(field: &'static str, value: String, most: usize) -> Result<String, WireError> {
    length(field, value.len(), most)?;
    Ok(value)
}

/// A non-empty word of letters, digits, `-` and `_`.
pub(crate) fn name(field: &'static str, value: String) -> Result<String, WireError> {
    if value.is_empty() {
        return Err(WireError::Missing { field });
    }
    length(field, value.len(), MAX_WORD_BYTES)?;
    if value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        Ok(value)
    } else {
        Err(WireError::Form { field, form: "a word of letters, digits, `-` and `_`" })
    }
}

/// A word of a closed set.
pub(crate) fn word<T: std::str::FromStr<Err = UnknownWord>>(field: &'static str, value: &str) -> Result<T, WireError> {
    if value.is_empty() {
        return Err(WireError::Missing { field });
    }
    value.parse().map_err(|source| WireError::Word { field, source })
}

/// An id.
pub(crate) fn id<T: std::str::FromStr>(field: &'static str, value: &str) -> Result<T, WireError> {
    if value.is_empty() {
        return Err(WireError::Missing { field });
    }
    value.parse().map_err(|_| WireError::Form { field, form: "an id of its noun" })
}

/// A SHA-256.
pub(crate) fn digest(field: &'static str, value: &[u8]) -> Result<Digest, WireError> {
    let bytes = value.try_into().map_err(|_| WireError::Form { field, form: "the 32 bytes of a SHA-256" })?;
    Ok(Digest::from_bytes(bytes))
}

/// A path from the root: no NUL, no empty, `.` or `..` component. `/` itself is one.
pub(crate) fn absolute_path(field: &'static str, value: &[u8]) -> Result<Vec<u8>, WireError> {
    let path = bytes(field, value, MAX_PATH_BYTES)?;
    let rest = path.strip_prefix(b"/").ok_or(WireError::Form { field, form: "an absolute path" })?;
    if rest.is_empty() || is_plain(rest) { Ok(path) } else { Err(unresolved(field)) }
}

/// A path below some root, in the same plain form.
pub(crate) fn relative_path(field: &'static str, value: &[u8]) -> Result<Vec<u8>, WireError> {
    let path = bytes(field, value, MAX_PATH_BYTES)?;
    if is_plain(&path) { Ok(path) } else { Err(unresolved(field)) }
}

/// Every entry of a list of at most `most`.
pub(crate) fn list<W, T>(
    field: &'static str,
    values: Vec<W>,
    most: usize,
    each: impl FnMut(W) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    if values.len() > most {
        return Err(WireError::TooMany { field, given: values.len(), most });
    }
    values.into_iter().map(each).collect()
}

/// A list of a plan.
pub(crate) fn plan_list<W, T>(
    field: &'static str,
    values: Vec<W>,
    each: impl FnMut(W) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    list(field, values, MAX_PLAN_LIST, each)
}

fn length(field: &'static str, given: usize, most: usize) -> Result<(), WireError> {
    if given > most { Err(WireError::TooLong { field, given, most }) } else { Ok(()) }
}

fn is_plain(path: &[u8]) -> bool {
    !path.contains(&0) && path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

const fn unresolved(field: &'static str) -> WireError {
    WireError::Form { field, form: "a path without NUL and without empty, `.` or `..` components" }
}

/// The size of a message on the wire, to be held against
/// [`MAX_MESSAGE_BYTES`](salaam_core::bridge::MAX_MESSAGE_BYTES) before it is sent.
pub fn message_bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}
