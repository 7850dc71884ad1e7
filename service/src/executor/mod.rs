//! The service's end of the bridge: starts toolsd through sudo, takes the kernel's word for who it is,
//! speaks to it, sees its loss, proves it gone, and starts the next one.
//!
//! What the executor says is the tools account's claim: bounded and typed, and what no honest executor says
//! closes the bridge. Invariant: at most one executor of an account lives at a time.

mod checks;
mod classify;
mod end;
mod error;
mod greet;
mod link;
mod notice;
mod running;
mod spawn;
mod start;
mod streams;
mod supervise;

pub use checks::reinstall;
pub use error::BridgeError;
pub use link::Link;
pub use notice::Notice;
pub use running::Running;
pub use spawn::Spawn;
pub use supervise::Executor;

#[cfg(test)]
mod tests;
