//! What can be wrong with a host's configuration. All of it is exit code 2.

use std::{io, path::PathBuf};

use salaam_core::{canon::CanonError, check::Check, instance::InstanceError, policy::UnknownWord};

/// A host configuration that cannot be used, with the place and the reason.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or directory could not be read or made.
    #[error("{doing} {path}: {source}", path = .path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The configuration lies behind a directory that is closed to the service itself: failed start checks, not a
    /// matter of a key.
    #[error("the configuration cannot be read: {}", .0.iter().map(|check| check.evidence.as_str()).collect::<Vec<_>>().join("; "))]
    Closed(Vec<Check>),
    /// A file that others could have written.
    #[error("{path} is not taken: {why}; {fix}", path = .path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// The command that mends it.
        fix: String,
    },
    /// `host.toml` is not TOML, has an unknown key or a wrong type; the text has line, column and key.
    #[error("{path}: {why}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        why: String,
    },
    /// A variable that names no key.
    #[error("{variable} names no key of host.toml; unset it")]
    UnknownVariable {
        /// The variable.
        variable: String,
    },
    /// A value of the wrong type or outside its set.
    #[error("{key} in {place}: {why}")]
    Value {
        /// The key, dotted.
        key: String,
        /// The file, variable or flag.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// A word outside a closed set.
    #[error(transparent)]
    Word(#[from] UnknownWord),
    /// An instance file that does not hold.
    #[error("{path}: {source}", path = .path.display())]
    Instance {
        /// The file.
        path: PathBuf,
        /// Why.
        source: InstanceError,
    },
    /// Two instance files name one uid.
    #[error("both {first} and {second} name uid {uid}; root must remove one", first = .first.display(), second = .second.display())]
    Ambiguous {
        /// The uid.
        uid: u32,
        /// One file.
        first: PathBuf,
        /// Another one.
        second: PathBuf,
    },
    /// The configuration asks for something that the instance file rules out.
    #[error("`{key}` is `{given}`, and {file} allows only `{allowed}`; root changes it there (salaam host setup)", file = .file.display())]
    Floor {
        /// The key.
        key: &'static str,
        /// What the configuration says.
        given: String,
        /// What the instance file says.
        allowed: String,
        /// The instance file.
        file: PathBuf,
    },
    /// No account of that name or uid.
    #[error("there is no account {who}; {fix}")]
    NoAccount {
        /// Name or uid.
        who: String,
        /// What makes one.
        fix: String,
    },
    /// No group of that name.
    #[error("operators_group names `{name}`, and there is no such group; `groupadd --system {name}` makes it")]
    NoGroup {
        /// The name.
        name: String,
    },
    /// A read path that would expose something.
    #[error("the read path `{given}` is refused: it {why}")]
    ReadPath {
        /// As it was written.
        given: String,
        /// What speaks against it, with the resolved path.
        why: String,
    },
    /// The pinned manifest is not one.
    #[error("{path} is no manifest: {why}; `salaam host plan --pin` writes a new one", path = .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The manifest has no canonical form.
    #[error("the host configuration has no canonical form: {0}")]
    Canon(#[from] CanonError),
}

impl HostError {
    /// Every one of these is a matter of configuration.
    pub const EXIT_CODE: u8 = 2;

    /// The stable id, as in `{"error":{"id":…}}`.
    pub const fn id(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Closed(_) => "host-io",
            Self::Untrusted { .. } => "config-untrusted",
            Self::File { .. } | Self::UnknownVariable { .. } | Self::Value { .. } | Self::Word(_) => "config-invalid",
            Self::Instance { .. } | Self::Ambiguous { .. } => "instance-invalid",
            Self::Floor { .. } => "config-above-floor",
            Self::NoAccount { .. } => "account-missing",
            Self::NoGroup { .. } => "group-missing",
            Self::ReadPath { .. } => "read-path-refused",
            Self::Manifest { .. } | Self::Canon(_) => "manifest-invalid",
        }
    }

    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
