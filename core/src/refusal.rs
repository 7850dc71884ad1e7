//! Why an executor ended before it served: one exit code each, so that the service can name the reason even
//! when nothing could be said over the bridge. All are between 64 and 78, where sudo and shells have none.

/// The executor's start refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartRefusal {
    /// It was given an argument.
    Usage,
    /// The process could not be hardened (descriptors, umask, dumpable, no_new_privs).
    Harden,
    /// It was started as root.
    Root,
    /// It holds a capability.
    Capabilities,
    /// Descriptor 0 is no unix stream socket: it was started by hand, or sudo logs input.
    NoBridge,
    /// The creator of the bridge is not the account that called sudo.
    WrongCreator,
    /// SUDO_UID is not a number.
    WrongSudoUid,
    /// An instance file is damaged, not root's, or writable by others.
    InstanceFile,
    /// The instance file names other accounts.
    InstanceAccounts,
    /// The service did not answer the hello as it must.
    Handshake,
    /// The service speaks another bridge version.
    Version,
    /// The prober child could not be made.
    Prober,
    /// The executor's own engine (sandbox, runtime) could not be set up.
    Engine,
}

impl StartRefusal {
    /// Every reason.
    pub const ALL: &'static [Self] = &[
        Self::Usage,
        Self::Harden,
        Self::Root,
        Self::Capabilities,
        Self::NoBridge,
        Self::WrongCreator,
        Self::WrongSudoUid,
        Self::InstanceFile,
        Self::InstanceAccounts,
        Self::Handshake,
        Self::Version,
        Self::Prober,
        Self::Engine,
    ];

    /// The exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Usage => 64,
            Self::Harden => 65,
            Self::Root => 66,
            Self::Capabilities => 67,
            Self::NoBridge => 70,
            Self::WrongSudoUid => 71,
            Self::WrongCreator => 72,
            Self::InstanceFile => 73,
            Self::InstanceAccounts => 74,
            Self::Handshake => 75,
            Self::Version => 76,
            Self::Prober => 77,
            Self::Engine => 78,
        }
    }

    /// The reason behind an exit code.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|refusal| i32::from(refusal.code()) == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_code_of_its_own_in_the_range() {
        for refusal in StartRefusal::ALL {
            assert!((64..=78).contains(&refusal.code()));
            assert_eq!(StartRefusal::from_code(i32::from(refusal.code())), Some(*refusal));
        }
        assert_eq!(StartRefusal::from_code(1), None);
    }
}
