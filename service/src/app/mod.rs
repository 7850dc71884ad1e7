//! The composition: what every operator verb does, independent of HTTP, and how the service starts and stops.

mod detach;
mod examine;
mod health;
mod log;
mod notices;
mod notify;
mod recovery;
mod report;
mod serve;
mod service;
mod sessions;
mod staff;
mod start;
mod undo;
mod watch;
mod workspaces;

pub use crate::operation::{Attached, Flow, Origin, Progress, Proposal, Refusal, Who, Work};
pub use examine::examine;
pub use log::Log;
pub use serve::{ServeOptions, serve};
pub use service::App;
pub use sessions::Wanted;
