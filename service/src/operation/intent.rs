//! The intent of an edit as the record has it: enough to say, without its owner, what was to become of each file.

use salaam_core::{
    canon,
    edit::{Expected, MAX_FILES, Stamp},
    id::OperationId,
};
use serde_json::Value;

use crate::store::OperationRow;

/// What was to become of each file; absent = the row is of no edit or undo.
pub(super) fn files(row: &OperationRow) -> Option<Vec<Expected>> {
    let files = row.bound.pointer("/arguments/files")?.as_array()?;
    if files.is_empty() || files.len() > MAX_FILES {
        return None;
    }
    files.iter().map(expected).collect()
}

/// The operation that the row takes back.
pub(super) fn undoes(row: &OperationRow) -> Option<OperationId> {
    row.bound.pointer("/arguments/undo")?.as_str()?.parse().ok()
}

/// Directories that the operation made, by its receipt.
pub(super) fn made(row: &OperationRow) -> Vec<Vec<u8>> {
    let listed = row.result.as_ref().and_then(|result| result.get("made")).and_then(Value::as_array);
    listed.map_or_else(Vec::new, |paths| paths.iter().filter_map(canon::to_bytes).collect())
}

fn expected(value: &Value) -> Option<Expected> {
    Some(Expected {
        path: canon::to_bytes(value.get("path")?)?,
        pre: stamp(value.get("pre")?)?,
        post: stamp(value.get("post")?)?,
    })
}

/// The outer absence: it does not read; the inner: there is no file.
fn stamp(value: &Value) -> Option<Option<Stamp>> {
    if value.is_null() {
        return Some(None);
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    Some(Some(Stamp {
        sha256: text("sha256")?.parse().ok()?,
        bytes: value.get("bytes")?.as_u64()?,
        mode: u32::from_str_radix(text("mode")?, 8).ok()?,
    }))
}

#[cfg(test)]
mod tests {
    use salaam_core::digest::Digest;
    use serde_json::json;

    use super::*;
    use crate::operation::orphan::tests::row_that_binds;

    #[test]
    fn what_was_bound_is_read_back_whole() {
        let stamp = |n: u8, mode| Some(Stamp { sha256: Digest::of(&[n]), bytes: 1, mode });
        let files = vec![
            Expected { path: b"a\xff".to_vec(), pre: stamp(1, 0o644), post: stamp(2, 0o600) },
            Expected { path: b"b/c".to_vec(), pre: None, post: stamp(3, 0o775) },
            Expected { path: b"d".to_vec(), pre: stamp(4, 0), post: None },
        ];
        let undo = OperationId::new(1, [7; 10]);
        let listed: Vec<_> = files.iter().map(Expected::to_value).collect();
        let row = row_that_binds(json!({ "arguments": { "undo": undo, "files": listed } }));
        assert_eq!(super::files(&row), Some(files));
        assert_eq!(undoes(&row), Some(undo));
        let command =
            super::super::orphan::tests::row_that_binds(serde_json::json!({ "arguments": { "argv": ["ls"] } }));
        assert_eq!((super::files(&command), undoes(&command)), (None, None));
    }
}
