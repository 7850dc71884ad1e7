//! The life of an agent's session: one owner task each, which alone moves it from its first worker to its end.
//!
//! Promises: nothing is done before what it follows from is recorded; whatever is killed whenever, the record says
//! where to go on, no call is carried out twice, and every call gets an answer; a worker can propose and nothing else.
//!
//! What may follow on what is decided by `course`, which is pure; the rest performs.

mod answer;
mod ask;
mod carry;
mod course;
mod error;
mod heard;
mod look;
mod order;
mod owner;
mod record;
mod register;
mod staff;
mod step;
pub(crate) mod view;

#[cfg(test)]
mod tests;

pub use error::SessionError;
pub(crate) use record::reconciled;
pub use register::Sessions;
use register::Shared;
pub use staff::{Colleague, Staff};
