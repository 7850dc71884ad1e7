//! The composition: what every operator verb does, independent of HTTP, and how the service starts and stops.

mod detach;
mod examine;
mod health;
mod notices;
mod notify;
mod recovery;
mod report;
mod serve;
mod service;
mod start;
mod watch;
mod workspaces;

pub use crate::operation::{Attached, Progress, Proposal, Refusal, Who};
pub use examine::examine;
pub use serve::{ServeOptions, serve};
pub use service::App;
