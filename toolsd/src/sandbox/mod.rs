//! The walls around a command, as values: what bwrap is told, what launch is told, which paths are refused,
//! and what a failure of either means.
//!
//! Invariant: nothing here starts a command. Less than what was asked for is a refusal, never a weaker run.

mod arguments;
mod bwrap;
mod diagnose;
mod environment;
mod mask;
mod paths;
mod protect;
mod seccomp;
mod system;

pub use arguments::{Arguments, Descriptors, LAUNCH_INSIDE, Launch, Walls, bare, walled};
pub use bwrap::{Bwrap, find};
pub use diagnose::{Diagnosis, Host, diagnose, knobs};
pub use environment::{GIT_SETTINGS, GIT_SETTINGS_INSIDE, environment};
pub use mask::{Hidden, Masks};
pub(crate) use paths::open_plain;
pub use paths::{PathRefusal, ReadPath, Reading, absolute, open_read_path, refuse_workspace};
pub(crate) use protect::named_in;
pub use protect::{MAX_MOUNTS, Protected, Protection, Unmounted, protected};
pub use seccomp::{FilterError, bare_program, program};
