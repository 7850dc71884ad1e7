//! The landlock domain: no file, or one tree read-only; no TCP, no abstract socket and no signal outward where
//! the kernel's ABI has those.
//!
//! Landlock does not stop a connect(2) to a socket that lies in the file system (measured: a landlocked process
//! of the service user reached the operator socket), nor UDP, nor metadata; the system call filter does.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, RestrictionStatus, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use crate::error::ConfineError;

/// A domain that was entered, fully enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Domain {
    /// The kernel's landlock ABI.
    pub abi: i32,
    /// Whether signals and abstract sockets outside the domain are out of reach (ABI 6 and later).
    pub scoped: bool,
}

/// Enters a domain in which nothing can be opened but, read-only, what lies beneath `root`.
///
/// # Errors
/// No landlock, or any rule that is not fully enforced.
pub fn enter(root: Option<BorrowedFd<'_>>) -> Result<Domain, ConfineError> {
    let offered = salaam_sys::landlock::abi();
    let abi = match ABI::from(offered) {
        ABI::Unsupported => return Err(ConfineError::NoLandlock),
        abi => abi,
    };
    let scopes = Scope::from_all(abi);
    let status =
        restrict(abi, root).map_err(|source| ConfineError::Landlock { abi: offered, source: Box::new(source) })?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(Domain { abi: offered, scoped: !scopes.is_empty() }),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
            Err(ConfineError::LandlockPartial { abi: offered })
        }
    }
}

fn restrict(abi: ABI, root: Option<BorrowedFd<'_>>) -> Result<RestrictionStatus, RulesetError> {
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::from_all(abi))?;
    let net = AccessNet::from_all(abi);
    if !net.is_empty() {
        ruleset = ruleset.handle_access(net)?;
    }
    let scopes = Scope::from_all(abi);
    if !scopes.is_empty() {
        ruleset = ruleset.scope(scopes)?;
    }
    let mut created = ruleset.create()?;
    if let Some(root) = root {
        // Not AccessFs::from_read: that has Execute.
        created = created.add_rule(PathBeneath::new(root, AccessFs::ReadFile | AccessFs::ReadDir))?;
    }
    created.restrict_self()
}
