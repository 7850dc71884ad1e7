//! Processes that the service started: held by descriptor until they are proven gone, and what they write,
//! drained and logged as theirs.

mod lines;
mod process;

pub use lines::Lines;
pub use process::{Child, Exit, Watched};
