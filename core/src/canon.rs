//! Canonical JSON (RFC 8785), narrowed so that every canonicalizer agrees.
//!
//! Keys are ASCII, numbers are integers below 2^53 in magnitude, and there are no floats. What does not
//! fit is refused here; writers use [`wide`] for large integers and [`bytes`] for text of unknown encoding.

use std::io::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::digest::Digest;

/// The first magnitude that a double cannot tell from its neighbour.
pub const WIDE: u64 = 1 << 53;

/// How deep a value may nest. Our own records need six.
pub const MAX_DEPTH: usize = 32;

/// A value that has no canonical form here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonError {
    /// An object key with a character outside ASCII.
    #[error("the key `{0}` is not ASCII")]
    Key(String),
    /// A float, or an integer of 2^53 or more.
    #[error("the number {0} is not an integer below 2^53; larger ones are written as decimal strings")]
    Number(String),
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("a value nests deeper than {MAX_DEPTH}")]
    Depth,
}

/// The canonical bytes of `value`.
pub fn to_vec(value: &Value) -> Result<Vec<u8>, CanonError> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, value, 0)?;
    Ok(out)
}

/// The SHA-256 of the canonical form.
pub fn digest(value: &Value) -> Result<Digest, CanonError> {
    to_vec(value).map(|bytes| Digest::of(&bytes))
}

/// An integer as a number below 2^53, as a decimal string from there on.
pub fn wide(number: u64) -> Value {
    if number < WIDE { json!(number) } else { json!(number.to_string()) }
}

/// Bytes as a string where they are UTF-8, as `{"base64":"…"}` where not.
pub fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// The inverse of [`bytes`].
pub fn to_bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Object(map) if map.len() == 1 => STANDARD.decode(map.get("base64")?.as_str()?).ok(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn write(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), CanonError> {
    if depth > MAX_DEPTH {
        return Err(CanonError::Depth);
    }
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => {
            let small = number.as_i64().is_some_and(|n| n.unsigned_abs() < WIDE);
            if !small {
                return Err(CanonError::Number(number.to_string()));
            }
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(out, item, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(map) => write_object(out, map, depth)?,
    }
    Ok(())
}

fn write_object(out: &mut Vec<u8>, map: &Map<String, Value>, depth: usize) -> Result<(), CanonError> {
    // For ASCII keys the byte order is RFC 8785's UTF-16 order.
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| key.as_bytes());
    out.push(b'{');
    for (i, (key, item)) in entries.into_iter().enumerate() {
        if !key.is_ascii() {
            return Err(CanonError::Key(key.clone()));
        }
        if i > 0 {
            out.push(b',');
        }
        write_string(out, key);
        out.push(b':');
        write(out, item, depth + 1)?;
    }
    out.push(b'}');
    Ok(())
}

/// RFC 8785, section 3.2.2.2: two-character escapes where JSON has them, `\u00xx` for the other controls,
/// everything else as UTF-8.
fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x09 => out.extend_from_slice(b"\\t"),
            0x0a => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            0x0d => out.extend_from_slice(b"\\r"),
            // Writing to a Vec cannot fail.
            0x00..=0x1f => drop(write!(out, "\\u{byte:04x}")),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(to_vec(value).unwrap()).unwrap()
    }

    #[test]
    fn golden_vectors() {
        for (value, canonical) in [
            (json!({"b":1,"a":[true,null,-7]}), r#"{"a":[true,null,-7],"b":1}"#),
            (json!({"a":1,"A":2,"_":3,"10":4,"9":5}), r#"{"10":4,"9":5,"A":2,"_":3,"a":1}"#),
            (json!({"inode": wide(9_007_199_254_740_991)}), r#"{"inode":9007199254740991}"#),
            (json!({"inode": wide(9_007_199_254_740_992)}), r#"{"inode":"9007199254740992"}"#),
            (json!({"inode": wide(u64::MAX)}), r#"{"inode":"18446744073709551615"}"#),
            (json!({"path": bytes(b"caf\xe9")}), r#"{"path":{"base64":"Y2Fm6Q=="}}"#),
            (json!({"path": bytes("café".as_bytes())}), "{\"path\":\"café\"}"),
            (json!("\u{1f600}\u{10ffff}"), "\"\u{1f600}\u{10ffff}\""),
            (
                json!("\u{0}\u{1f}\u{7f}\u{2028}\"\\/\u{8}\t\n\u{c}\r"),
                "\"\\u0000\\u001f\u{7f}\u{2028}\\\"\\\\/\\b\\t\\n\\f\\r\"",
            ),
        ] {
            assert_eq!(text(&value), canonical);
        }
    }

    #[test]
    fn what_two_canonicalizers_could_write_differently_is_refused() {
        assert_eq!(to_vec(&json!(1.5)), Err(CanonError::Number("1.5".into())));
        assert!(matches!(to_vec(&json!(1.0)), Err(CanonError::Number(_))));
        assert!(matches!(to_vec(&json!(WIDE)), Err(CanonError::Number(_))));
        assert!(matches!(to_vec(&json!(-9_007_199_254_740_992_i64)), Err(CanonError::Number(_))));
        assert_eq!(to_vec(&json!({"é":1})), Err(CanonError::Key("é".into())));
    }

    #[test]
    fn nesting_has_a_limit() {
        let deep = |n| (0..n).fold(json!(1), |inner, _| json!([inner]));
        assert!(to_vec(&deep(MAX_DEPTH)).is_ok());
        assert_eq!(to_vec(&deep(MAX_DEPTH + 1)), Err(CanonError::Depth));
    }

    #[test]
    fn bytes_round_trip() {
        for case in [&b"plain"[..], b"\xff\xfe", b"", "\u{1f600}".as_bytes()] {
            assert_eq!(to_bytes(&bytes(case)).unwrap(), case);
        }
    }
}
