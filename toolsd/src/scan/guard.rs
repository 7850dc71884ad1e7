//! The walk that finds repositories and files that run by themselves, and what was there before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use nix::{libc, sys::stat::FileStat};
use salaam_core::{
    git_config::Setting,
    id::OperationId,
    protect::{self, OWN},
    result::{Changed, Guard},
};

use super::{
    changed::{Changes, MAX_ENTRIES as MAX_ENTRIES_LOOKED_AT},
    judge::Judge,
    quarantine,
    walk::{Closed, Entry, Moment, Reach, stamp, walk},
};

/// Entries among which repositories and the like are searched for. A command that leaves more is told of as one
/// whose look was not complete.
const MAX_ENTRIES: usize = 500_000;
/// Repositories, links and directories that one look remembers.
pub(super) const MAX_SEEN: usize = 50_000;

/// What the owner of a workspace had in it, so that only what is new is taken for a command's.
#[derive(Debug)]
pub struct Known {
    /// Directories of git and of editors, by place.
    pub(super) inodes: HashMap<PathBuf, u64>,
    /// What configs run, by place.
    pub(super) settings: HashMap<PathBuf, BTreeSet<Setting>>,
    /// Whether the look that found these reached everything. Where it did not, what is not known counts as new.
    pub(super) complete: bool,
}

impl Default for Known {
    fn default() -> Self {
        Self { inodes: HashMap::new(), settings: HashMap::new(), complete: true }
    }
}

/// What is to be looked at, and what need not be.
#[derive(Debug)]
pub struct Watch<'a> {
    /// The workspace's root.
    pub root: BorrowedFd<'a>,
    /// Its absolute path.
    pub workspace: &'a Path,
    /// Paths over which read-only mounts were.
    pub read_only: &'a [PathBuf],
    /// Whether no other command ran at the same time. One that did could move the place of a mount away, and the mount
    /// with it: then what the command has changed there counts like anything else.
    pub alone: bool,
    /// Protected paths without a mount, each with whether it was there before.
    pub unmounted: &'a [(PathBuf, bool)],
}

/// What came of a look after a command.
#[derive(Debug, Default)]
pub struct Settled {
    /// What changed.
    pub changed: Changed,
    /// What was taken out of the way.
    pub quarantined: Vec<Vec<u8>>,
}

/// Looks at a workspace before the first command in it: all that is there is the owner's.
pub fn survey(watch: &Watch<'_>) -> Known {
    const NEVER: Moment = (i64::MAX, 0);
    let mut seen = Seen::default();
    let reached = walk(watch.root, reach(0), |path, own, entries| seen.directory(path, own, entries));
    let judged = Judge::new(watch, NEVER, &Known::default(), &seen).judge();
    Known { complete: reached.all && !seen.full && judged.complete, ..judged.known }
}

/// Looks at a workspace after a command that began at `since`: names what changed, takes away what would run.
/// `earliest` is when the earliest began that has run beside it; `known` is brought up to date.
pub fn settle(
    watch: &Watch<'_>,
    since: Moment,
    earliest: Moment,
    known: &mut Known,
    operation: OperationId,
) -> Settled {
    let mut seen = Seen::default();
    let mut changes = Changes { root: watch.root, since, found: Changed::default() };
    let reached = walk(watch.root, reach(MAX_ENTRIES_LOOKED_AT), |path, own, entries| {
        changes.directory(path, own, entries);
        seen.directory(path, own, entries)
    });
    let mut changed = changes.found;
    changed.complete = reached.looked_at_all;
    let judged = Judge::new(watch, earliest.min(since), known, &seen).judge();
    let taken = quarantine::take(watch.root, operation, judged.finds);
    *known = judged.known;
    known.complete = reached.all && !seen.full && judged.complete && taken.all;
    known.inodes.extend(taken.own.map(|inode| (PathBuf::from(OWN), inode)));
    changed.guard = Guard { complete: known.complete, ..Guard::default() };
    Settled { changed, quarantined: taken.paths }
}

fn reach(looked_at: usize) -> Reach {
    Reach { entries: MAX_ENTRIES, looked_at, closed: Closed::Opened, always: protect::may_matter }
}

/// Something that a walk met.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) inode: u64,
    pub(super) changed: Moment,
    pub(super) is_directory: bool,
    /// Of a file; a directory has one.
    pub(super) names: u64,
}

impl Mark {
    pub(super) fn of(stat: &FileStat) -> Self {
        let is_directory = crate::beneath::kind(stat) == libc::S_IFDIR;
        let names = if is_directory { 1 } else { stat.st_nlink };
        Self { inode: stat.st_ino, changed: stamp(stat), is_directory, names }
    }
}

/// What a walk has found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Directories that git takes for a repository, or would after `git init`.
    pub(super) repositories: BTreeMap<PathBuf, Mark>,
    /// `.git` that is a file or a link.
    pub(super) leads: Vec<(PathBuf, Mark)>,
    /// What runs by itself.
    pub(super) auto: Vec<(PathBuf, Mark)>,
    /// Links in a git directory: git writes through them.
    pub(super) links: Vec<(PathBuf, Mark)>,
    /// There was more than is remembered.
    full: bool,
}

impl Seen {
    /// Takes one directory; whether what lies in it matters.
    fn directory(&mut self, path: &Path, own: &FileStat, entries: &[Entry]) -> bool {
        if path == Path::new(OWN) {
            return false;
        }
        let has = |name: &str| {
            entries.iter().map(|entry| entry.name().as_bytes()).any(|is| {
                is.eq_ignore_ascii_case(name.as_bytes())
                    || !is.is_ascii() && protect::folded(is).eq_ignore_ascii_case(name.as_bytes())
            })
        };
        let git = path.file_name().is_some_and(|name| protect::is_git(name.as_bytes()));
        // As git itself looks: a HEAD, and objects and refs of its own or another's.
        if git || (has("HEAD") && (has("objects") && has("refs") || has("commondir"))) {
            self.repositories.insert(path.to_owned(), Mark::of(own));
        }
        let inside = !path.as_os_str().is_empty()
            && path.ancestors().any(|above| !above.as_os_str().is_empty() && self.repositories.contains_key(above));
        for entry in entries {
            let Some(mark) = entry.stat.as_ref().map(Mark::of) else { continue };
            let name = entry.name().as_bytes();
            if protect::is_git(name) && !mark.is_directory {
                self.leads.push((path.join(entry.name()), mark));
            } else if protect::runs_by_itself(path.as_os_str().as_bytes(), name) {
                self.auto.push((path.join(entry.name()), mark));
            } else if inside && entry.is(libc::S_IFLNK) {
                self.links.push((path.join(entry.name()), mark));
            }
        }
        self.full |= self.repositories.len() + self.leads.len() + self.auto.len() + self.links.len() > MAX_SEEN;
        !self.full
    }
}
