//! Lines that match, in a fixed order, a page at a time, with a place from which to go on.
//!
//! Promise: a search ends. The pattern is matched in time linear in the text, each line, file and page has its
//! limit, and a page that runs out of time says where it stopped, further on than where it began.

mod file;
mod glob;
mod ignore;
mod pattern;
mod walk;

pub use walk::search;

#[cfg(test)]
mod tests;
