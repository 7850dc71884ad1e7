//! Why the executor does not serve, and the exit code that says so.

use salaam_core::refusal::StartRefusal;

use crate::{bridge::BridgeError, command::RunnerError, floor::FloorError, harden::HardenError};

/// Why the executor does not serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An argument was given.
    #[error("salaam-toolsd takes no arguments; the service starts it")]
    Usage,
    /// The process could not be made what it must be.
    #[error(transparent)]
    Harden(#[from] HardenError),
    /// Descriptor 0 is not the bridge, or who is behind it is not who may be.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The instance files do not allow this pair.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The prober child was not made.
    #[error("starting the prober from /proc/self/exe failed: {0}")]
    Prober(#[source] std::io::Error),
    /// The engine was not made.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// The runtime was not made, or did not take the bridge.
    #[error("setting up {step} failed: {source}")]
    Engine {
        /// Which part.
        step: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl StartError {
    /// The reason as the service will read it from the exit code.
    pub const fn refusal(&self) -> StartRefusal {
        match self {
            Self::Usage => StartRefusal::Usage,
            Self::Harden(error) => error.refusal(),
            Self::Bridge(error) => error.refusal(),
            Self::Floor(error) => error.refusal(),
            Self::Prober(_) => StartRefusal::Prober,
            Self::Runner(_) | Self::Engine { .. } => StartRefusal::Engine,
        }
    }
}
