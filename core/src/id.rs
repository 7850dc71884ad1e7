//! Identities: a prefix and the 32 hex digits of a UUIDv7 (RFC 9562), one type per noun.
//!
//! An id is built from a time and random bytes that the caller passes in.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, de};
use uuid::Uuid;

/// Text that is not an id of the expected noun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not an id of the form {prefix} followed by 32 lower-case hex digits")]
pub struct NotAnId {
    /// What was given, made visible and cut to 64 characters.
    pub given: String,
    /// The prefix that the noun has.
    pub prefix: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// What every id of this noun starts with.
            pub const PREFIX: &'static str = $prefix;

            /// Builds a UUIDv7 from milliseconds since the epoch and ten random bytes.
            pub fn new(unix_millis: u64, random: [u8; 10]) -> Self {
                Self(uuid::Builder::from_unix_timestamp_millis(unix_millis, &random).into_uuid())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                let refuse = || NotAnId { given: crate::show::excerpt(text.as_bytes(), 64), prefix: $prefix };
                let hex = text.strip_prefix($prefix).ok_or_else(refuse)?;
                let plain = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if !plain {
                    return Err(refuse());
                }
                Uuid::try_parse(hex).map(Self).map_err(|_| refuse())
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A registered workspace.
    WorkspaceId = "ws_";
    /// A session: an agent's, or the operator session of a workspace.
    SessionId = "ses_";
    /// One proposed effect, from proposal to receipt.
    OperationId = "op_";
    /// The question put to an operator about one operation.
    ApprovalId = "ap_";
    /// A saved set of owned changes.
    CheckpointId = "cp_";
    /// A patch taken from an owned copy.
    PatchId = "pat_";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_sort_by_time() {
        let early = OperationId::new(1_000, [0xff; 10]);
        let late = OperationId::new(1_001, [0; 10]);
        assert!(early < late);
        assert_eq!(early.to_string().parse::<OperationId>().unwrap(), early);
        assert_eq!(serde_json::from_str::<OperationId>(&serde_json::to_string(&late).unwrap()).unwrap(), late);
    }

    #[test]
    fn what_is_not_exactly_an_id_is_refused() {
        let good = WorkspaceId::new(1, [7; 10]).to_string();
        for bad in [
            "",
            "ws_",
            &good[1..],
            &good[..good.len() - 1],
            &format!("{good}0"),
            &good.to_uppercase(),
            &good.replace("ws_", "op_"),
            &format!(" {good}"),
        ] {
            assert!(bad.parse::<WorkspaceId>().is_err(), "{bad}");
        }
    }
}
