//! What a command may touch: profile, network, isolation; closed sets written as the operator sees them.

use serde::{Deserialize, Serialize};

macro_rules! word {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $name {
            /// Every value, in documentation order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it is written in commands, JSON and configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::policy::UnknownWord;

            fn from_str(text: &str) -> Result<Self, crate::policy::UnknownWord> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    other => Err(crate::policy::UnknownWord {
                        given: crate::show::excerpt(other.as_bytes(), 64),
                        known: &[$($text),+],
                    }),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use word;

/// A word outside a closed set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not one of {}", known.join(", "))]
pub struct UnknownWord {
    /// What was given, made visible and cut to 64 characters: it may be another process's word.
    pub given: String,
    /// The words that there are.
    pub known: &'static [&'static str],
}

/// What of the host a command sees and may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Profile {
    /// System and workspace readable, only a private /tmp writable, no network.
    ReadOnly,
    /// The same, and the workspace is writable except for protected paths.
    #[default]
    WorkspaceWrite,
    /// As the tools user is; only when the operator chose it.
    FullAccess,
}
word!(Profile { ReadOnly = "read-only", WorkspaceWrite = "workspace-write", FullAccess = "full-access" });

/// What network a command has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Network {
    /// A private network namespace with a loopback of its own.
    #[default]
    None,
    /// The broker's relay (a later backend).
    Broker,
    /// The host's network: only with `full-access` or unsandboxed.
    Host,
}
word!(Network { None = "none", Broker = "broker", Host = "host" });

/// Which account runs what a model asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The service user itself: no second account.
    ServiceUser,
    /// A separate tools user, through sudo.
    ToolsUser,
}
word!(Mode { ServiceUser = "service-user", ToolsUser = "tools-user" });

/// What stood between a command and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// The service user, nothing else.
    ServiceUserNoOsSandbox,
    /// The service user in bubblewrap.
    ServiceUserBubblewrap,
    /// The service user under Seatbelt (macOS).
    ServiceUserSeatbelt,
    /// The tools user, nothing else.
    ToolsUserNoOsSandbox,
    /// The tools user in bubblewrap.
    ToolsUserBubblewrap,
    /// A container.
    Docker,
}
word!(Isolation {
    ServiceUserNoOsSandbox = "service-user-no-os-sandbox",
    ServiceUserBubblewrap = "service-user-bubblewrap",
    ServiceUserSeatbelt = "service-user-seatbelt",
    ToolsUserNoOsSandbox = "tools-user-no-os-sandbox",
    ToolsUserBubblewrap = "tools-user-bubblewrap",
    Docker = "docker",
});

impl Isolation {
    /// The name for an account and whether bubblewrap holds.
    pub const fn of(mode: Mode, bubblewrap: bool) -> Self {
        match (mode, bubblewrap) {
            (Mode::ServiceUser, false) => Self::ServiceUserNoOsSandbox,
            (Mode::ServiceUser, true) => Self::ServiceUserBubblewrap,
            (Mode::ToolsUser, false) => Self::ToolsUserNoOsSandbox,
            (Mode::ToolsUser, true) => Self::ToolsUserBubblewrap,
        }
    }

    /// Whether this is at least as strong as `required`. Account and sandbox are two axes; both must hold.
    pub const fn meets(self, required: Self) -> bool {
        let (tools, sandbox) = self.axes();
        let (want_tools, want_sandbox) = required.axes();
        (tools || !want_tools) && (sandbox || !want_sandbox)
    }

    /// Whether more than the account stands between a command and the host.
    pub const fn has_sandbox(self) -> bool {
        self.axes().1
    }

    const fn axes(self) -> (bool, bool) {
        match self {
            Self::ServiceUserNoOsSandbox => (false, false),
            Self::ServiceUserBubblewrap | Self::ServiceUserSeatbelt => (false, true),
            Self::ToolsUserNoOsSandbox => (true, false),
            Self::ToolsUserBubblewrap | Self::Docker => (true, true),
        }
    }
}

/// What happens to a command when no sandbox holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unsandboxed {
    /// It is refused.
    #[default]
    Refuse,
    /// It runs as the account has things, and every approval says `unsandboxed`.
    Allow,
}
word!(Unsandboxed { Refuse = "refuse", Allow = "allow" });

/// How much landlock is demanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Landlock {
    /// Everything the kernel's ABI offers, or the command does not start.
    #[default]
    Required,
    /// The operator's choice: what there is, shown in every approval.
    IfAvailable,
}
word!(Landlock { Required = "required", IfAvailable = "if-available" });

/// Network, profile, limits and manifest: what an approval binds as `policy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The pinned host configuration.
    pub manifest: crate::digest::Digest,
    /// What of the host the command sees.
    pub profile: Profile,
    /// What stands between it and the host.
    pub isolation: Isolation,
    /// Its network.
    pub network: Network,
    /// Its limits.
    pub limits: crate::limits::Limits,
    /// The controllers that hold it to them as a whole, whatever it starts; none = each process is held by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub control_group: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for profile in Profile::ALL {
            assert_eq!(profile.as_str().parse::<Profile>().unwrap(), *profile);
        }
        for isolation in Isolation::ALL {
            assert_eq!(isolation.as_str().parse::<Isolation>().unwrap(), *isolation);
        }
        assert_eq!(
            "Read-Only".parse::<Profile>().unwrap_err().to_string(),
            "`Read-Only` is not one of read-only, workspace-write, full-access"
        );
    }

    #[test]
    fn an_unknown_word_is_named_visibly_and_cut() {
        let said = "\u{1b}[2J".parse::<Profile>().unwrap_err().to_string();
        assert!(said.starts_with("`\\e[2J` is not one of"), "{said}");
        let long = "a".repeat(1000).parse::<Profile>().unwrap_err();
        assert_eq!(long.given.chars().count(), 65);
    }

    #[test]
    fn a_weaker_axis_never_meets_a_stronger_demand() {
        use Isolation::{ServiceUserBubblewrap as S, ToolsUserBubblewrap as TB, ToolsUserNoOsSandbox as T};
        assert!(TB.meets(S) && TB.meets(T) && TB.meets(TB));
        assert!(!S.meets(T) && !T.meets(S) && !S.meets(TB) && !T.meets(TB));
    }
}
