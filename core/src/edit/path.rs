//! The form of a path that an edit may name.

use super::{
    bounds::MAX_PATH_BYTES,
    error::{EditError, PathFault},
};

/// NAME_MAX of Linux: no file system takes a longer name.
const MAX_NAME_BYTES: usize = 255;

/// Refuses what is not the plain path of a file below a root: relative, no NUL, no empty, `.` or `..` component.
///
/// # Errors
/// Names the path and what is wrong with it.
pub fn check_path(path: &[u8]) -> Result<(), EditError> {
    let fault = if path.is_empty() {
        Some(PathFault::Empty)
    } else if path.len() > MAX_PATH_BYTES || path.split(|b| *b == b'/').any(|name| name.len() > MAX_NAME_BYTES) {
        Some(PathFault::TooLong)
    } else if path.contains(&0) {
        Some(PathFault::Nul)
    } else if path.starts_with(b"/") {
        Some(PathFault::Absolute)
    } else if path.split(|b| *b == b'/').any(|name| name == b"..") {
        Some(PathFault::Upwards)
    } else if path.split(|b| *b == b'/').any(|name| matches!(name, b"" | b".")) {
        Some(PathFault::NotPlain)
    } else {
        None
    };
    match fault {
        Some(fault) => Err(EditError::path(path, fault)),
        None => Ok(()),
    }
}
