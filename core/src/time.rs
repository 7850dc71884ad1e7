//! A moment, in microseconds since 1970-01-01T00:00:00Z, written with six decimals (RFC 3339).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, de};

/// A moment in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(jiff::Timestamp);

/// Text that is not a time as Salaam writes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a time is written as 2026-01-02T03:04:05.678901Z")]
pub struct NotATime;

impl Timestamp {
    /// A moment from microseconds since the epoch; what lies outside years 1 to 9999 is clamped there.
    pub fn from_micros(micros: i64) -> Self {
        let fallback = if micros < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        Self(jiff::Timestamp::from_microsecond(micros).unwrap_or(fallback))
    }

    /// Microseconds since the epoch.
    pub fn as_micros(self) -> i64 {
        self.0.as_microsecond()
    }

    /// Milliseconds since the epoch, zero before it: the time part of an id.
    pub fn unix_millis(self) -> u64 {
        u64::try_from(self.0.as_millisecond()).unwrap_or(0)
    }

    /// This moment plus `seconds`.
    pub fn plus_seconds(self, seconds: u64) -> Self {
        let micros = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        Self::from_micros(self.as_micros().saturating_add(micros))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let time = Self(text.parse().map_err(|_| NotATime)?);
        // One moment has one spelling: anything else would hash differently.
        if time.to_string() == text { Ok(time) } else { Err(NotATime) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_decimals_always() {
        assert_eq!(Timestamp::from_micros(1_767_323_045_678_901).to_string(), "2026-01-02T03:04:05.678901Z");
        assert_eq!(Timestamp::from_micros(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert!("2026-01-02T03:04:05Z".parse::<Timestamp>().is_err());
        assert!("2026-01-02T03:04:05.678901+00:00".parse::<Timestamp>().is_err());
    }
}
