//! The bridge's contract: generated wire types, and the one place where they become domain values.
//!
//! Past `TryFrom` there are no wire types, before it there is no action. Every string and list has a bound.

#![forbid(unsafe_code)]

/// Generated from `proto/bridge.proto`.
#[expect(missing_docs, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
pub mod wire {
    tonic::include_proto!("salaam.bridge.v1");
}

/// The file descriptor set of the contract, for tests that hold the two ends together.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bridge.bin"));
