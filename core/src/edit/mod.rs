//! Changes of files: what a model may ask for, what comes of it, how it is shown, and how it is taken back.
//!
//! Both sides of the bridge compute the same from the same bytes: [`apply()`] knows nothing but its arguments.
//! Only the bytes that a change names are touched, so encoding, byte order mark, line endings and a missing
//! final newline stay. All of an edit is applied or none of it.

mod apply;
mod bounds;
mod change;
mod diff;
mod error;
mod find;
mod image;
mod lines;
mod path;
mod restore;

pub use apply::apply;
pub use bounds::{
    CREATED_MODE, MAX_CHANGES, MAX_DIFF_BYTES, MAX_EDIT_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_MODE, MAX_PATH_BYTES,
    MAX_SCANNED_BYTES,
};
pub use change::{Change, Named, Text, paths};
pub use diff::diff;
pub use error::{EditError, PathFault};
pub use image::{EditedFile, Expected, FileChange, Image, Method, Stamp, expected};
pub use path::check_path;
pub use restore::{restore, reverse};

#[cfg(test)]
mod tests;
