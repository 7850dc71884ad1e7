//! Why nothing took effect: as the last event of a command, and as the details of a refused call.

use prost::Message as _;
use salaam_core::result::Failure;

use crate::{
    bounds::{self, MAX_SENTENCE_BYTES, WireError},
    wire,
};

impl From<Failure> for wire::Failure {
    fn from(failure: Failure) -> Self {
        Self { id: failure.id, message: bounds::cut(failure.message) }
    }
}

impl TryFrom<wire::Failure> for Failure {
    type Error = WireError;

    fn try_from(failure: wire::Failure) -> Result<Self, WireError> {
        Ok(Self {
            id: bounds::name("failure.id", failure.id)?,
            message: bounds::text("failure.message", failure.message, MAX_SENTENCE_BYTES)?,
        })
    }
}

/// The failure as the details of a refused call's status.
pub fn refusal_details(failure: Failure) -> Vec<u8> {
    wire::Failure::from(failure).encode_to_vec()
}

/// The failure in the details of a refused call's status.
///
/// # Errors
/// The details are no failure.
pub fn refusal_of(details: &[u8]) -> Result<Failure, WireError> {
    wire::Failure::decode(details)
        .map_err(|_| WireError::Form { field: "status.details", form: "a failure" })?
        .try_into()
}
