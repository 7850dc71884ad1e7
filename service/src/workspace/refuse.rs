//! Which directories are never a workspace, as a pure function over resolved paths.

use std::path::{Path, PathBuf};

/// Directories of the system: a workspace is neither one of them nor above or inside one.
const SYSTEM: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/lost+found",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/cache",
];

/// Directories that hold workspaces but are none themselves.
const PARENTS: &[&str] = &["/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp"];

/// What the judgement needs to know of the host.
#[derive(Debug, Default)]
pub struct Place {
    /// Home directories of accounts.
    pub homes: Vec<PathBuf>,
    /// Config, state, runtime and LIBEXEC directories, and the tools user's home.
    pub own: Vec<PathBuf>,
    /// Roots of the workspaces that are registered.
    pub workspaces: Vec<PathBuf>,
    /// What the pinned plan lets commands read: one could change it in a workspace, and the executor refuses both.
    pub read_paths: Vec<PathBuf>,
}

/// Why a directory cannot be a workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `/`.
    #[error("`/` cannot be a workspace: everything on the host would be in it")]
    Root,
    /// A home directory itself.
    #[error("{0} is a home directory; its credentials and start-up files would be in the workspace")]
    Home(PathBuf),
    /// A system directory.
    #[error("{path} is, holds or lies in the system directory {system}")]
    System {
        /// What was asked for.
        path: PathBuf,
        /// The directory that it meets.
        system: PathBuf,
    },
    /// One of Salaam's own directories.
    #[error("{path} is, holds or lies in Salaam's own directory {own}")]
    Own {
        /// What was asked for.
        path: PathBuf,
        /// The directory that it meets.
        own: PathBuf,
    },
    /// What commands may read elsewhere.
    #[error("{path} is, holds or lies in the read path {read}: take that out of local_sandbox_read_paths first")]
    Read {
        /// What was asked for.
        path: PathBuf,
        /// The read path that it meets.
        read: PathBuf,
    },
    /// Another workspace.
    #[error("{path} is, holds or lies in the workspace {other}")]
    Overlap {
        /// What was asked for.
        path: PathBuf,
        /// The workspace that it meets.
        other: PathBuf,
    },
}

/// Judges `path`, which is absolute with all links resolved.
pub fn judge_place(path: &Path, place: &Place) -> Result<(), Refused> {
    if path == Path::new("/") {
        return Err(Refused::Root);
    }
    // Own directories first: they may lie below a system directory, and the reason should be the nearer one.
    if let Some(own) = place.own.iter().find(|own| meets(path, own)) {
        return Err(Refused::Own { path: path.into(), own: own.clone() });
    }
    if let Some(other) = place.workspaces.iter().find(|other| meets(path, other)) {
        return Err(Refused::Overlap { path: path.into(), other: other.clone() });
    }
    if let Some(read) = place.read_paths.iter().find(|read| meets(path, read)) {
        return Err(Refused::Read { path: path.into(), read: read.clone() });
    }
    let above_a_home = |home: &&PathBuf| home.as_path() != Path::new("/") && home.starts_with(path);
    if let Some(home) = place.homes.iter().find(above_a_home) {
        return Err(Refused::Home(home.clone()));
    }
    let meets_system = SYSTEM.iter().map(Path::new).find(|system| meets(path, system));
    let is_parent = PARENTS.iter().map(Path::new).find(|parent| path == *parent);
    match meets_system.or(is_parent) {
        Some(system) => Err(Refused::System { path: path.into(), system: system.into() }),
        None => Ok(()),
    }
}

fn meets(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_or_lies_in_something_that_is_not_a_workspace_is_refused() {
        let place = Place {
            homes: vec!["/home/ann".into(), "/root".into(), "/".into(), "/nonexistent".into()],
            own: vec!["/var/lib/salaam/state".into(), "/home/ann/.config/salaam".into()],
            workspaces: vec!["/srv/demo/ws".into()],
            read_paths: vec!["/srv/tools/bin".into()],
        };
        let judge = |path: &str| judge_place(Path::new(path), &place);
        for fine in ["/srv/demo/other", "/home/ann/src/project", "/srv/demo/ws2", "/opt/x", "/tmp/x"] {
            assert_eq!(judge(fine), Ok(()), "{fine}");
        }
        assert_eq!(judge("/"), Err(Refused::Root));
        for read in ["/srv/tools", "/srv/tools/bin", "/srv/tools/bin/x"] {
            assert!(matches!(judge(read), Err(Refused::Read { .. })), "{read}");
        }
        assert!(matches!(judge("/home/ann"), Err(Refused::Own { .. } | Refused::Home(_))));
        assert_eq!(judge("/root"), Err(Refused::Home("/root".into())));
        for system in ["/etc", "/etc/x", "/usr/local/src", "/home", "/srv", "/var", "/proc/self", "/tmp", "/var/lib/x"]
        {
            assert!(judge(system).is_err(), "{system}");
        }
        for overlap in ["/srv/demo/ws", "/srv/demo/ws/sub", "/srv/demo"] {
            assert!(matches!(judge(overlap), Err(Refused::Overlap { .. })), "{overlap}");
        }
        assert!(matches!(judge("/var/lib/salaam/state/x"), Err(Refused::Own { .. })));
    }
}
