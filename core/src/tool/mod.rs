//! The model's tools: one call parsed into a [`Call`], and the [`Answer`] that goes back.
//!
//! Everything here was written by a model or by whoever took a worker over. Unknown keys are refused, every quantity
//! has a limit, and an error quotes no more than a short excerpt, made visible.

mod answer;
mod parse;

pub use answer::{Answer, MAX_ANSWER_BYTES};
pub use parse::{Call, DEFAULT_LINES, MAX_ARGUMENTS_BYTES, TOOLS, ToolError, parse};

#[cfg(test)]
mod tests;
