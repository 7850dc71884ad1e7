//! The instance files: root's word about which accounts belong together.
//!
//! Strict: an unknown key, a wrong type, a file that others can write is an error, never a default. Of another
//! instance's file only the accounts are read, so that its form may be newer than ours; where even they cannot
//! be trusted the start ends, because they could be ours.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;
use salaam_core::instance::{Instance, MAX_BYTES};
use serde::Deserialize;

use super::FloorError;

/// Instances on one host.
const MAX_FILES: usize = 256;

/// The part of every instance file that says whom it pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Accounts {
    /// The service account.
    pub(super) service_uid: u32,
    /// The tools account.
    pub(super) tools_uid: u32,
}

/// A file that only root can have written, and whom it pairs.
#[derive(Debug)]
pub(super) struct Paired {
    pub(super) path: PathBuf,
    pub(super) accounts: Accounts,
    text: String,
}

impl Paired {
    /// The whole of it, strictly.
    pub(super) fn instance(&self) -> Result<Instance, FloorError> {
        let malformed = |problem: String| FloorError::Malformed { path: self.path.clone(), problem };
        let instance = Instance::parse(&self.text).map_err(|error| malformed(error.to_string()))?;
        if self.path.file_stem().is_none_or(|stem| stem != instance.service_user.as_str()) {
            return Err(malformed("it is not named after its service_user".into()));
        }
        Ok(instance)
    }
}

/// Every instance in `directory`; none when there is no such directory.
pub(super) fn read_all(directory: &Path) -> Result<Vec<Paired>, FloorError> {
    let unreadable = |source| FloorError::Unreadable { path: directory.into(), source };
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() => roots_own(directory, &found)?,
        Ok(_) => return Err(untrusted(directory, "it is no directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            paths.push(path);
        }
        if paths.len() > MAX_FILES {
            return Err(untrusted(directory, "it holds more than 256 instance files"));
        }
    }
    paths.sort();
    // A file that vanished since is of an instance that was just taken away.
    paths.iter().filter_map(|path| read(path).transpose()).collect()
}

fn read(path: &Path) -> Result<Option<Paired>, FloorError> {
    let unreadable = |source| FloorError::Unreadable { path: path.into(), source };
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(untrusted(path, "it is no regular file"));
    }
    roots_own(path, &found)?;
    let text = read_bounded(&file, path)?;
    let accounts = toml::from_str(&text)
        .map_err(|error| FloorError::Malformed { path: path.into(), problem: error.to_string() })?;
    Ok(Some(Paired { path: path.into(), accounts, text }))
}

fn read_bounded(file: &File, path: &Path) -> Result<String, FloorError> {
    let mut text = String::new();
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|source| FloorError::Unreadable { path: path.into(), source })?;
    if text.len() as u64 > MAX_BYTES { Err(untrusted(path, "it has more than 256 KiB")) } else { Ok(text) }
}

fn roots_own(path: &Path, found: &fs::Metadata) -> Result<(), FloorError> {
    if found.uid() != owner() {
        return Err(untrusted(path, &format!("it belongs to uid {}", found.uid())));
    }
    if found.mode() & 0o022 != 0 {
        return Err(untrusted(path, &format!("its mode {:04o} lets others write", found.mode() & 0o7777)));
    }
    Ok(())
}

fn untrusted(path: &Path, problem: &str) -> FloorError {
    FloorError::Untrusted { path: path.into(), problem: problem.into() }
}

/// Root; in unit tests, who may not be root, the account that runs them.
#[cfg(not(test))]
const fn owner() -> u32 {
    0
}

#[cfg(test)]
fn owner() -> u32 {
    nix::unistd::geteuid().as_raw()
}
