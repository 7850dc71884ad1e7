//! `salaam session follow`: a session as a person watches it.
//!
//! Promise: every word of a model, a command or a workspace is made visible before it is printed; nothing is
//! decided here.

mod story;
mod watch;

pub(super) use watch::session;
