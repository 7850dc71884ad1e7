//! The command line: one operator's verbs over the operator socket.
//!
//! Promise: nothing is sent before the kernel has said that the right account listens; everything from a
//! workspace, a command or the service is made visible before a terminal sees it; exit codes are those of
//! [`exit`]. The state directory is never touched behind the service's back: `journal verify` and
//! `journal export` read it when the service is stopped, and `service stop` and `status` ask who holds its lock.

mod approval;
mod args;
mod ask;
mod client;
mod discover;
mod doctor;
mod entry;
pub mod exit;
mod follow;
mod health;
mod host;
mod journal;
mod operation;
mod page;
mod question;
mod run;
mod screens;
mod service;
mod session;
mod start;
mod terminal;
mod trouble;
mod workspace;

pub use entry::main;
