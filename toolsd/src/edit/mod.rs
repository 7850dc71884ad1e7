//! Edits of files in a workspace: computed again, applied whole or not at all, settled after a crash.
//!
//! Everything is reached beneath the root by descriptor, and nothing that somebody else wrote meanwhile is
//! overwritten. A file that is replaced becomes this account's; its group, ACL and mode stay.

mod apply;
mod attributes;
mod content;
mod decide;
mod directories;
mod editor;
mod guard;
mod place;
mod read;
mod refusal;
mod retreat;
mod settle;
mod slot;

pub use apply::{Step, Work, apply};
pub use editor::{Admission, Editor, Site};
pub use read::read_files;
pub use refusal::Refusal;
pub use settle::{Settled, settle};
