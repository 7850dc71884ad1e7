//! Which paths beside the system's a command may read: expanded, resolved through links, and refused where
//! they would expose a credential, a home, Salaam's own, or something that the tools user could exchange.
//!
//! What is judged is the resolved path, and against the resolved form of every credential location too: a
//! link on either side changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use salaam_core::credential;

use super::{HostError, acl};

/// What the word `toolchain` stands for, below the service user's home: named parts, never a whole directory
/// that also holds credentials (`~/.cargo/credentials.toml`). Beside them the node that runs here.
const TOOLCHAIN: [&str; 13] = [
    ".cargo/bin",
    ".cargo/git",
    ".cargo/registry",
    ".config/git/attributes",
    ".config/git/config",
    ".config/git/ignore",
    ".gitconfig",
    ".npm/_cacache",
    ".npm/_npx",
    ".nvm",
    ".rustup",
    "go/bin",
    "go/pkg",
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
    let linked = linked_credentials(around);
    let mut paths = Vec::new();
    for entry in entries {
        for path in expand(entry, around.home)? {
            let one = resolve_one(entry, &path, &forbidden, around);
            // Of the toolchain only what may be shown: a configuration of git with a token in it is left out.
            if entry == WORD && matches!(one, Err(HostError::ReadPath { .. })) && is_optional(&path) {
                continue;
            }
            let one = one?;
            if let Some(name) = linked.as_ref().and_then(|linked| linked.below(Path::new(&one))) {
                let why = format!("would expose a credential by another name: {}", name.display());
                return Err(HostError::ReadPath { given: entry.clone(), why });
            }
            paths.push(one);
        }
    }
    paths.sort_unstable();
    paths.dedup();
    Ok(paths)
}

/// The word for the toolchains that are found.
const WORD: &str = "toolchain";

/// What each of `paths` is now: how the manifest names it, and the executor knows it again.
pub(crate) fn identities(paths: &[String]) -> Result<BTreeMap<String, String>, HostError> {
    let identity = |path: &String| {
        let place =
            fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH | nix::libc::O_NOFOLLOW).open(path);
        let identity = place.and_then(salaam_sys::file::identity);
        identity
            .map(|identity| (path.clone(), identity))
            .map_err(|e| HostError::ReadPath { given: path.clone(), why: format!("cannot be examined: {e}") })
    };
    paths.iter().map(identity).collect()
}

/// Of the toolchain, what is left out instead of refused.
fn is_optional(path: &Path) -> bool {
    path.ends_with(".gitconfig") || path.ends_with(".config/git/config") || path.join("bin/node").exists()
}

/// Where the node lies that runs here: the first of PATH that is not the system's, or else nvm's newest.
fn running_node(home: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let found = named.filter_map(|directory| directory.join("node").canonicalize().ok());
    let prefix = |program: PathBuf| program.parent()?.parent().map(Path::to_owned);
    if let Some(found) =
        found.filter_map(prefix).find(|prefix| !prefix.starts_with("/usr") && prefix.parent().is_some())
    {
        return Some(found);
    }
    let versions =
        fs::read_dir(home.join(".nvm/versions/node")).into_iter().flatten().flatten().map(|entry| entry.path());
    let number = |path: &PathBuf| -> Vec<u32> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or(0)).collect()
    };
    versions.filter(|path| path.join("bin/node").exists()).max_by_key(number)
}

/// Credential files that have more than one name: a read path must not hold another of them.
#[derive(Debug)]
struct Linked(BTreeSet<(u64, u64)>);

fn linked_credentials(around: &Surroundings<'_>) -> Option<Linked> {
    let places = around.homes.iter().flat_map(|home| credential::PLACES.iter().map(move |place| home.join(place)));
    let mut found = BTreeSet::new();
    for place in places {
        let inside = fs::read_dir(&place).into_iter().flatten().flatten().take(MOST_LINKED).map(|entry| entry.path());
        let files = inside.chain([place.clone()]).filter_map(|path| fs::metadata(path).ok());
        found.extend(files.filter(|file| file.is_file() && file.nlink() > 1).map(|file| (file.dev(), file.ino())));
    }
    (!found.is_empty()).then_some(Linked(found))
}

/// Entries of one credential directory that are looked at.
const MOST_LINKED: usize = 1000;
/// Entries below one read path among which another name is searched for.
const MOST_SEARCHED: usize = 200_000;

impl Linked {
    fn below(&self, path: &Path) -> Option<PathBuf> {
        let mut waiting = VecDeque::from([path.to_owned()]);
        let mut left = MOST_SEARCHED;
        while let Some(path) = waiting.pop_front() {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if self.0.contains(&(meta.dev(), meta.ino())) {
                return Some(path);
            }
            if meta.is_dir() {
                let inside = fs::read_dir(&path).into_iter().flatten().flatten().take(left);
                let before = waiting.len();
                waiting.extend(inside.map(|entry| entry.path()));
                left = left.saturating_sub(waiting.len() - before);
            }
        }
        None
    }
}

fn expand(entry: &str, home: &Path) -> Result<Vec<PathBuf>, HostError> {
    if entry == WORD {
        let parts = TOOLCHAIN.iter().map(|part| home.join(part)).filter(|path| path.exists());
        return Ok(parts.chain(running_node(home)).collect());
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
    if let Some(place) = credential::place_of(text.as_bytes()) {
        let place = String::from_utf8_lossy(place);
        return Err(refuse(format!("resolves to {text}, which is or lies in {place}, a credential location")));
    }
    if let Some(why) = exposed(&real, forbidden) {
        return Err(refuse(format!("resolves to {text}, which {why}")));
    }
    if (real.ends_with(".gitconfig") || real.ends_with(".config/git/config"))
        && let Some(setting) = fs::read(&real).ok().and_then(|text| credential::secret_in(&text))
    {
        return Err(refuse(format!("resolves to {text}, which holds a secret ({setting})")));
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
        for credential in credential::PLACES {
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
