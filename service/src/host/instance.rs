//! Finding and reading instance files: root's, in a directory of root's.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use salaam_core::instance::{Instance, MAX_BYTES};

use super::{HostError, Trust, account_of};

/// Where instance files are.
pub const ETC: &str = "/etc/salaam";

/// A host has few instances; more files than this in `etc` is somebody's mistake.
const MAX_FILES: usize = 256;

/// An instance file, and what it says or what is wrong with it.
pub type Found = (PathBuf, Result<Instance, HostError>);

/// Every instance file in `etc` (production: [`ETC`]) in order of name, each parsed or with what is wrong with
/// it. No directory, no instances.
pub fn list(etc: &Path) -> Result<Vec<Found>, HostError> {
    let entries = match std::fs::read_dir(etc) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(HostError::io("cannot list", etc))?,
    };
    let mut paths = Vec::new();
    for entry in entries.take(MAX_FILES) {
        let path = entry.map_err(HostError::io("cannot list", etc))?.path();
        if path.extension() == Some(OsStr::new("toml")) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths
        .into_iter()
        .map(|path| {
            let instance = read(&path);
            (path, instance)
        })
        .collect())
}

/// The instance of the service account `uid`, or none where no file names it. A damaged file counts when it
/// carries that account's name; those of others are theirs to mend.
pub fn for_service_uid(etc: &Path, uid: u32) -> Result<Option<(PathBuf, Instance)>, HostError> {
    let own_name = account_of(uid).map(|account| account.name);
    let mut found: Option<(PathBuf, Instance)> = None;
    for (path, read) in list(etc)? {
        match read {
            Ok(instance) if instance.service_uid == uid => match found {
                Some((first, _)) => return Err(HostError::Ambiguous { uid, first, second: path }),
                None => found = Some((path, instance)),
            },
            Ok(_) => {}
            Err(error) => {
                if own_name.is_some() && path.file_stem().and_then(OsStr::to_str) == own_name.as_deref() {
                    return Err(error);
                }
            }
        }
    }
    Ok(found)
}

/// Reads one instance file: a regular file of root's that nobody else could have written, named by the service
/// user that it describes.
pub(crate) fn read(path: &Path) -> Result<Instance, HostError> {
    let text = read_trusted(path, Trust::ROOT, MAX_BYTES)?;
    let instance = Instance::parse(&text).map_err(|source| HostError::Instance { path: path.to_owned(), source })?;
    if path.file_stem().and_then(OsStr::to_str) != Some(instance.service_user.as_str()) {
        let why = format!("it describes `{}` under another name", instance.service_user);
        return Err(HostError::Untrusted { path: path.to_owned(), why, fix: "run `salaam host setup` again".into() });
    }
    Ok(instance)
}

/// The text of a regular file that belongs to root or `trust`, that nobody else may write, and whose directories
/// are just as safe. A link at the end of `path` is refused: what it names could be anyone's choice.
pub(crate) fn read_trusted(path: &Path, trust: Trust, most: u64) -> Result<String, HostError> {
    let mut file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC)
        .open(path)
        .map_err(|e| match e.raw_os_error() {
            Some(nix::libc::ELOOP) => refuse(path, "it is a link".into(), "put the file itself there".into()),
            Some(_) | None => HostError::io("cannot open", path)(e),
        })?;
    let meta = file.metadata().map_err(HostError::io("cannot examine", path))?;
    if !meta.is_file() {
        return Err(refuse(path, "it is no regular file".into(), "put a file there".into()));
    }
    if let Some(why) = trust.fault(meta.uid(), meta.mode()) {
        let owner = account_of(trust.uid).map_or_else(|| trust.uid.to_string(), |account| account.name);
        let shown = path.display();
        return Err(refuse(path, why, format!("`chown {owner} {shown} && chmod go-w {shown}` mends it")));
    }
    if let Some(directory) = path.parent() {
        let fault = super::untrusted(directory, trust).map_err(HostError::io("cannot examine", directory))?;
        if let Some((above, why)) = fault {
            let why = format!("of {} above it: {why}", above.display());
            return Err(refuse(path, why, format!("`chmod go-w {}` mends it", above.display())));
        }
    }
    if meta.len() > most {
        return Err(refuse(path, format!("it has {} bytes, more than {most}", meta.len()), "shorten it".into()));
    }
    let mut text = String::new();
    let read = (&mut file).take(most + 1).read_to_string(&mut text).map_err(HostError::io("cannot read", path))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > most {
        return Err(refuse(path, format!("it grew beyond {most} bytes"), "shorten it".into()));
    }
    Ok(text)
}

fn refuse(path: &Path, why: String, fix: String) -> HostError {
    HostError::Untrusted { path: path.to_owned(), why, fix }
}
