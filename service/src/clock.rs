//! The only place where time and randomness come from.

use salaam_core::time::Timestamp;

/// Reads the host's clock and random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock;

impl Clock {
    /// Now.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
    pub fn now(self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// Ten bytes for an id (getrandom(2)).
    pub fn random(self) -> Result<[u8; 10], getrandom::Error> {
        let mut bytes = [0; 10];
        getrandom::fill(&mut bytes)?;
        Ok(bytes)
    }
}
