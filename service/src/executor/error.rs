//! What can come of a call over the bridge beside its answer.

/// A call without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BridgeError {
    /// The executor refused the request; nothing took effect.
    #[error("{message}")]
    Refused {
        /// A stable id such as `stale-operand`.
        id: String,
        /// What was attempted, on what, and why not.
        message: String,
    },
    /// No executor, or it was lost on the way.
    #[error("the executor is gone: {reason}")]
    Lost {
        /// What was seen.
        reason: String,
    },
    /// No answer in time; the bridge is closed as impossible.
    #[error("the executor did not answer {call} in time")]
    Deadline {
        /// Which call.
        call: &'static str,
    },
}
