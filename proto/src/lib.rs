//! The contracts between the processes: generated wire types, and the one place where they become domain values.
//!
//! Past `TryFrom` there are no wire types, before it there is no action. Every string and list has a bound,
//! and what is absent is refused: it never means "allow".

#![forbid(unsafe_code)]

mod bounds;
mod command;
mod edit;
mod event;
pub mod frame;
mod hello;
mod part;
mod plan;
mod probe;
mod reader;
mod refusal;
mod worker;
mod workspace;

pub use bounds::{MAX_ATTEMPTS, MAX_CHECKS, MAX_PATH_BYTES, MAX_SENTENCE_BYTES, WireError, message_bytes};
pub use command::{close_request, operation_of, release_request, workspace_of};
pub use part::{MAX_PARTED_BYTES, Parts, parted};
pub use refusal::{refusal_details, refusal_of};

/// Generated from `proto/bridge.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::pedantic,
    reason = "generated; the .proto file is the documentation"
)]
pub mod wire {
    tonic::include_proto!("salaam.bridge.v1");
}

/// Generated from `proto/worker.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::pedantic,
    reason = "generated; the .proto file is the documentation"
)]
pub mod worker_wire {
    tonic::include_proto!("salaam.worker.v1");
}

/// Generated from `proto/reader.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::pedantic,
    reason = "generated; the .proto file is the documentation"
)]
pub mod reader_wire {
    tonic::include_proto!("salaam.reader.v1");
}

/// The file descriptor set of the contract, for tests that hold the two ends together.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bridge.bin"));

#[cfg(test)]
mod tests;
