//! The parts of the host's own system that every sandbox shows, read-only.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// How one path of the host appears inside.
#[derive(Debug)]
pub(super) enum Shown {
    /// A symbolic link with this target.
    Link(Vec<u8>, &'static str),
    /// The directory itself, read-only.
    Bound(&'static str),
    /// A copy of a small file: a mount costs ten times as much, and the root is read-only in the end anyway.
    Copied(File, &'static str),
}

/// Files larger than this are bound instead; the loader's cache has about 100 kB.
const MAX_COPIED_BYTES: u64 = 512 << 10;

/// Top-level directories; on merged systems most are links into /usr.
const ROOTS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What programs read of /etc: accounts by name, name services, the loader, certificates, alternatives,
/// time zone, and the configuration that language packages keep there. No host keys, no mail, no services.
const CONFIGURATION: &[&str] = &[
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/java-25-openjdk",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/perl",
    "/etc/pki",
    "/etc/protocols",
    "/etc/python3",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/timezone",
];

/// What there is of it now. A link into /usr stays a link (a mount would cost more and show the same); a link
/// to elsewhere, such as /etc/resolv.conf to /run, shows its target; one that leads nowhere, or
/// to what this account cannot read, is left out.
pub(super) fn shown() -> Vec<Shown> {
    ROOTS.iter().chain(CONFIGURATION).filter_map(|path| look(path).ok().flatten()).collect()
}

fn look(path: &'static str) -> io::Result<Option<Shown>> {
    if fs::symlink_metadata(path)?.is_symlink() {
        let target = fs::read_link(path)?;
        let parent = Path::new(path).parent().unwrap_or(Path::new("/"));
        let lexical = plain(&parent.join(&target));
        if lexical.starts_with("/usr/") {
            return Ok(Some(Shown::Link(target.into_os_string().into_encoded_bytes(), path)));
        }
    }
    // Follows: what cannot be reached is not shown. Opening proves more than a stat, which an unreadable
    // file passes.
    let Ok(file) = File::open(path) else { return Ok(None) };
    let metadata = file.metadata()?;
    Ok(match (metadata.is_dir(), metadata.is_file()) {
        (true, _) => Some(Shown::Bound(path)),
        (false, true) if metadata.len() <= MAX_COPIED_BYTES => Some(Shown::Copied(file, path)),
        (false, true) => Some(Shown::Bound(path)),
        (false, false) => None,
    })
}

/// The path without `.` and `..`, by its text alone: whether it *says* /usr is all that is asked here.
fn plain(path: &Path) -> std::path::PathBuf {
    let mut plain = std::path::PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            std::path::Component::Prefix(_) | std::path::Component::RootDir | std::path::Component::Normal(_) => {
                plain.push(part)
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usr_is_bound_and_nothing_secret_is_shown() {
        let shown = shown();
        assert!(shown.iter().any(|part| matches!(part, Shown::Bound("/usr"))));
        for part in shown {
            let (Shown::Bound(path) | Shown::Link(_, path) | Shown::Copied(_, path)) = part;
            assert!(!["/etc", "/etc/shadow", "/etc/ssh", "/home", "/root", "/var", "/run"].contains(&path), "{path}");
        }
    }
}
