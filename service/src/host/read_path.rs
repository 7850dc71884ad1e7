//! Which paths beside the system's a command may read: expanded, resolved through links, and refused where
//! they would expose a credential, a home, Salaam's own, or something that the tools user could exchange.
//!
//! What is judged is the resolved path, and against the resolved form of every credential location too: a
//! link on either side changes nothing.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{HostError, acl};

/// What the word `toolchain` stands for, below the service user's home: named parts, never a whole directory
/// that also holds credentials (`~/.cargo/credentials.toml`).
const TOOLCHAIN: [&str; 6] = [".cargo/bin", ".cargo/git", ".cargo/registry", ".nvm", ".rustup", "go"];

/// Credential locations below a home.
const CREDENTIALS: [&str; 36] = [
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude",
    ".codex",
    ".config/anthropic",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/hub",
    ".config/op",
    ".config/opencode",
    ".config/salaam",
    ".docker",
    ".gem/credentials",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/opencode",
    ".local/state/salaam",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".ssh",
    ".terraform.d",
];

/// What is nobody's to hand out, whoever owns it: secrets of the host, and trees that name processes or devices.
const SYSTEM: [&str; 16] = [
    "/boot",
    "/dev",
    "/etc/gshadow",
    "/etc/krb5.keytab",
    "/etc/salaam",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/proc",
    "/run",
    "/sys",
    "/var/lib/systemd",
    "/var/run",
    "/var/spool",
];

/// Against what a read path is judged.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    /// The service user's home: what `~` and `toolchain` stand for.
    pub home: &'a Path,
    /// Every home of a person, root's and both accounts' among them.
    pub homes: Vec<PathBuf>,
    /// Salaam's own directories.
    pub own: Vec<PathBuf>,
    /// Registered workspaces.
    pub workspaces: Vec<PathBuf>,
    /// Who runs commands: uid and groups. None in service-user mode, where nobody else could exchange a path.
    pub tools: Option<(u32, Vec<u32>)>,
}

/// The read paths of `entries`, expanded, resolved, judged, sorted, each once.
pub(crate) fn resolve(entries: &[String], around: &Surroundings<'_>) -> Result<Vec<String>, HostError> {
    let forbidden = forbidden(around);
    let mut paths = Vec::new();
    for entry in entries {
        for path in expand(entry, around.home)? {
            paths.push(resolve_one(entry, &path, &forbidden, around)?);
        }
    }
    paths.sort_unstable();
    paths.dedup();
    Ok(paths)
}

fn expand(entry: &str, home: &Path) -> Result<Vec<PathBuf>, HostError> {
    if entry == "toolchain" {
        return Ok(TOOLCHAIN.iter().map(|part| home.join(part)).filter(|path| path.exists()).collect());
    }
    let path = match entry.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None if entry == "~" => home.to_owned(),
        None => PathBuf::from(entry),
    };
    if path.is_absolute() {
        return Ok(vec![path]);
    }
    let why = "is neither absolute, nor below `~/`, nor the word `toolchain`".to_owned();
    Err(HostError::ReadPath { given: entry.to_owned(), why })
}

fn resolve_one(
    given: &str,
    path: &Path,
    forbidden: &[Forbidden],
    around: &Surroundings<'_>,
) -> Result<String, HostError> {
    let refuse = |why: String| HostError::ReadPath { given: given.to_owned(), why };
    let real = path.canonicalize().map_err(|e| refuse(format!("cannot be resolved ({}): {e}", path.display())))?;
    let text = real.to_str().ok_or_else(|| refuse("is not UTF-8, and the manifest could not name it".into()))?;
    if let Some(why) = exposed(&real, forbidden) {
        return Err(refuse(format!("resolves to {text}, which {why}")));
    }
    if let Some((uid, groups)) = &around.tools
        && let Some(above) =
            exchangeable(&real, *uid, groups).map_err(|e| refuse(format!("cannot be examined ({text}): {e}")))?
    {
        let above = above.display();
        return Err(refuse(format!("resolves to {text}, which the tools user could exchange: it can write {above}")));
    }
    Ok(text.to_owned())
}

/// A place that no read path may touch, and what it is called in the refusal.
#[derive(Debug)]
struct Forbidden {
    place: PathBuf,
    what: &'static str,
    /// Whether what lies inside is forbidden too. Not for homes: a project in one may be read.
    inside: bool,
}

fn forbidden(around: &Surroundings<'_>) -> Vec<Forbidden> {
    let mut all = Vec::new();
    // Both forms: the location may itself be a link to where the secret lies.
    let mut add = |place: PathBuf, what, inside| {
        if let Ok(real) = place.canonicalize()
            && real != place
        {
            all.push(Forbidden { place: real, what, inside });
        }
        all.push(Forbidden { place, what, inside });
    };
    for home in &around.homes {
        for credential in CREDENTIALS {
            add(home.join(credential), "a credential location", true);
        }
        add(home.clone(), "a home", false);
    }
    for own in &around.own {
        add(own.clone(), "a directory of Salaam's own", true);
    }
    for workspace in &around.workspaces {
        add(workspace.clone(), "a registered workspace", true);
    }
    for place in SYSTEM {
        add(place.into(), "the system's own", true);
    }
    all
}

/// Why `path` may not be read, if anything: it is such a place, lies in one, or is above one.
fn exposed(path: &Path, forbidden: &[Forbidden]) -> Option<String> {
    if path.parent().is_none() {
        return Some("is the whole host".into());
    }
    forbidden.iter().find_map(|Forbidden { place, what, inside }| {
        let shown = place.display();
        if path == place {
            Some(format!("is {what}"))
        } else if *inside && path.starts_with(place) {
            Some(format!("lies in {shown}, {what}"))
        } else if place.starts_with(path) {
            Some(format!("would expose {shown}, {what}"))
        } else {
            None
        }
    })
}

/// The first directory above `path` in which an account could put another object in its place. In a sticky
/// directory it can do so only with entries of its own.
fn exchangeable(path: &Path, uid: u32, groups: &[u32]) -> io::Result<Option<PathBuf>> {
    let mut entry_uid = fs::symlink_metadata(path)?.uid();
    for above in path.ancestors().skip(1) {
        let meta = fs::symlink_metadata(above)?;
        let may = may_write(above, &meta, uid, groups);
        let sticky = meta.mode() & 0o1000 != 0;
        if may && (!sticky || entry_uid == uid || meta.uid() == uid) {
            return Ok(Some(above.to_owned()));
        }
        entry_uid = meta.uid();
    }
    Ok(None)
}

/// Whether an account can make and rename entries in a directory, by owner, ACL and mode.
fn may_write(directory: &Path, meta: &fs::Metadata, uid: u32, groups: &[u32]) -> bool {
    // An owner can give itself the right back, so ownership is enough.
    if meta.uid() == uid || meta.mode() & 0o002 != 0 {
        return true;
    }
    // The group bits are the most that any ACL entry of another account can have.
    if meta.mode() & 0o020 == 0 {
        return false;
    }
    match fs::File::open(directory).and_then(acl::of) {
        Ok(list) => list.unwrap_or_else(|| acl::Acl::of_mode(meta.mode())).permits(
            (meta.uid(), meta.gid()),
            uid,
            groups,
            acl::WRITE,
        ),
        // Somebody may, and who it is cannot be seen.
        Err(_) => true,
    }
}
