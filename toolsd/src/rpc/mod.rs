//! The executor's calls over the one bridge.
//!
//! The peer was vouched for before the first byte of HTTP/2; here it is treated as if it were hostile. What
//! no honest service sends closes the bridge, and the end of the bridge is the end of every command.

mod calls;
mod edit;
mod gate;
mod run;
mod serve;

pub use calls::Executor;
pub use serve::{Ended, serve};
