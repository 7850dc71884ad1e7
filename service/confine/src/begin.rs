//! From exec to a confined process that has shown what it can no longer do: the first lines of worker and reader.
//! Nothing is read on the way.

use std::{
    env,
    fmt::Display,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    path::PathBuf,
    process::ExitCode,
};

use salaam_core::canary::Canary;
use salaam_sys::descriptors;

use crate::{ConfineError, Keep, Limits, Role, belong_to_creator, canary, confine};

/// The service has nothing more to say, or went away.
const OVER: u8 = 0;
/// Not started as the service does it, or not confined: nothing was read.
const NOT_CONFINED: u8 = 70;
/// The link broke, or the service said something that it never says.
const BROKEN: u8 = 72;

/// What the service starts with a link as descriptor 0, a log as 1 and 2, and one descriptor more.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name, for who starts it by hand.
    pub name: &'static str,
    /// What it may do.
    pub role: Role,
    /// The number of the descriptor that it is given. A reader's is its root.
    pub given: RawFd,
    /// What it may use up.
    pub limits: Limits,
}

/// A confined process.
#[derive(Debug)]
pub struct Begun {
    /// The link to the service. A file, not a socket: read(2) and write(2) are all that is left of it.
    pub link: File,
    /// The descriptor that it was given.
    pub given: OwnedFd,
    /// The state directory: only a name to be refused, nothing is ever read there.
    pub state: PathBuf,
    /// What was tried in vain, or not.
    pub canary: Vec<Canary>,
}

#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error("descriptor {number} is missing ({source}): the service starts {name}, nobody else")]
    Descriptor { name: &'static str, number: RawFd, source: io::Error },
    #[error("the state directory is missing: the service starts {name}, nobody else")]
    Usage { name: &'static str },
    #[error(transparent)]
    Confine(#[from] ConfineError),
}

impl Program {
    /// The whole of `main`: confines this process, then serves until the service has had enough.
    #[must_use]
    pub fn run<E: Display>(&self, serve: impl FnOnce(Begun) -> Result<(), E>) -> ExitCode {
        let begun = match self.begin() {
            Ok(begun) => begun,
            Err(error) => {
                eprintln!("not confined: {error}");
                return ExitCode::from(NOT_CONFINED);
            }
        };
        match serve(begun) {
            Ok(()) => ExitCode::from(OVER),
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(BROKEN)
            }
        }
    }

    fn begin(&self) -> Result<Begun, BeginError> {
        let name = self.name;
        let mut words = env::args_os().skip(1);
        let (Some(state), None) = (words.next().map(PathBuf::from), words.next()) else {
            return Err(BeginError::Usage { name });
        };
        let missing = |number| move |source| BeginError::Descriptor { name, number, source };
        let link = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(missing(0))?);
        let given = descriptors::take_inherited(self.given).map_err(missing(self.given))?;
        belong_to_creator(&link)?;
        let root = match self.role {
            Role::Worker => None,
            Role::Reader => Some(given.as_fd()),
        };
        confine(self.role, &Keep { descriptors: &[self.given, link.as_raw_fd()], root, limits: self.limits })?;
        let canary = canary::sing(&state);
        Ok(Begun { link, given, state, canary })
    }
}
