//! The host as the service finds it: configuration, directories, instance file, manifest, and the set-up that
//! root runs once.
//!
//! Promise: configuration comes from `host.toml` in the configuration directory, `SALAAM_*` variables and
//! flags, and from nowhere else; no file of a workspace or above one is ever read. What is not understood
//! whole is refused with the key and the place.

pub(crate) mod account;
pub(crate) mod acl;
mod config;
mod dirs;
mod error;
pub(crate) mod instance;
mod load;
pub(crate) mod plan;
mod read_path;
pub mod setup;
mod trust;

pub use account::{Account, account, account_of, group_gid, groups_of, operator_home, people_homes};
pub use config::{Config, Flags, MAX_CONFIG_BYTES, Variables};
pub use dirs::{Dirs, SOCKET_NAME, SOCKET_PATH_MAX, libexec};
pub use error::HostError;
pub use instance::{ETC, Found, for_service_uid, list};
pub use load::{Host, load, load_from};
pub use plan::{Verdict, verdict};
pub use trust::{Trust, untrusted};

#[cfg(test)]
mod tests;
