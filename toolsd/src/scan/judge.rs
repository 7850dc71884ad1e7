//! What of that which a walk found would run, and is new.
//!
//! New is what has a new change time. A directory that is not the one that was known at its place was made or moved
//! there: all in it counts as new, since a rename does not stamp what lies in it.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use nix::{errno::Errno, libc, sys::stat::FileStat};
use salaam_core::{
    git_config::{self, Setting},
    protect,
};

use super::{
    guard::{Known, MAX_SEEN, Mark, Seen, Watch},
    quarantine::Find,
    walk::{Closed, Moment, Reach, list, stamp},
};
use crate::beneath;

/// The judgement of one look.
pub(super) struct Judge<'a> {
    watch: &'a Watch<'a>,
    since: Moment,
    before: &'a Known,
    seen: &'a Seen,
    judged: Judged,
    /// Paths that configs name.
    targets: BTreeSet<PathBuf>,
}

/// What was judged.
pub(super) struct Judged {
    /// What is to be taken away.
    pub(super) finds: Vec<Find>,
    /// What is known from now on.
    pub(super) known: Known,
    /// Whether everything could be looked at.
    pub(super) complete: bool,
}

impl<'a> Judge<'a> {
    pub(super) fn new(watch: &'a Watch<'a>, since: Moment, before: &'a Known, seen: &'a Seen) -> Self {
        let judged = Judged { finds: Vec::new(), known: Known::default(), complete: true };
        Self { watch, since, before, seen, judged, targets: BTreeSet::new() }
    }

    /// Judges everything.
    pub(super) fn judge(mut self) -> Judged {
        for (path, mark) in &self.seen.repositories {
            self.repository(path, *mark);
        }
        for (path, mark) in &self.seen.leads {
            self.lead(path, *mark);
        }
        for (path, mark) in &self.seen.links {
            self.link_in_a_repository(path, *mark);
        }
        for (path, mark) in &self.seen.auto {
            self.follow(path, false);
            if !mark.is_directory && mark.changed < self.since {
                continue;
            }
            let whole = mark.is_directory && self.is_fresh(path, *mark);
            self.tree(path, whole);
        }
        for path in std::mem::take(&mut self.targets) {
            if let Some(stat) = self.stat(&path) {
                let whole = self.is_fresh(&path, Mark::of(&stat));
                self.tree(&path, whole);
            }
        }
        for (path, existed) in self.watch.unmounted {
            // Judged as a link or a repository, which may be harmless.
            if path.file_name().is_some_and(|name| name == ".git") || self.is_in_a_repository(path) {
                continue;
            }
            let Some(mark) = self.stat(path).as_ref().map(Mark::of) else { continue };
            if path == Path::new(protect::OWN) && self.before.inodes.get(path) == Some(&mark.inode) {
                // Made here, for what was taken before.
                self.learn(path, mark);
                continue;
            }
            self.tree(path, !existed && self.is_fresh(path, mark));
        }
        self.judged
    }

    fn repository(&mut self, path: &Path, mark: Mark) {
        let fresh = self.is_fresh(path, mark);
        self.learn(path, mark);
        self.hooks(&path.join("hooks"), fresh);
        for name in ["hooks", "config", "config.worktree"] {
            self.follow(&path.join(name), fresh);
        }
        for name in ["config", "config.worktree"] {
            self.config(path, &path.join(name), fresh);
        }
        let commondir = path.join("commondir");
        if let Some(stat) = self.stat(&commondir)
            && self.counts(&commondir, &stat, fresh)
        {
            let text = self.content(&commondir).unwrap_or_default();
            self.keep_if_it_leads_to_a_repository(&commondir, path, protect::redirection(&text));
        }
        // A link in the place of `info` would lead to attributes elsewhere.
        for name in ["info", "info/attributes"] {
            let attributes = path.join(name);
            if let Some(stat) = self.stat(&attributes)
                && beneath::kind(&stat) != libc::S_IFDIR
                && self.counts(&attributes, &stat, fresh)
            {
                self.take(attributes);
            }
        }
    }

    fn hooks(&mut self, path: &Path, fresh: bool) {
        let Some(stat) = self.stat(path) else { return };
        if beneath::kind(&stat) != libc::S_IFDIR {
            if self.counts(path, &stat, fresh) {
                self.take(path.to_owned());
            }
            return;
        }
        let mark = Mark::of(&stat);
        let fresh = fresh || self.is_fresh(path, mark);
        self.learn(path, mark);
        for (name, stat) in self.entries(path) {
            // git's own examples; it runs none of them.
            let example = name.as_bytes().ends_with(b".sample") && beneath::kind(&stat) == libc::S_IFREG;
            let path = path.join(name);
            if !example && self.counts(&path, &stat, fresh) {
                self.take(path);
            }
        }
    }

    fn config(&mut self, repository: &Path, path: &Path, fresh: bool) {
        let Some(stat) = self.stat(path) else { return };
        let counts = self.counts(path, &stat, fresh);
        let settings = self.content(path).and_then(|text| git_config::parse(&text).ok());
        let Some(settings) = settings else {
            // A link, a directory, too large, or not what git would take.
            if counts {
                self.take(path.to_owned());
            }
            return;
        };
        let stays_inside = |setting: &Setting| {
            setting.worktree().is_some_and(|worktree| {
                protect::inside(self.workspace(), repository.as_os_str().as_bytes(), worktree.as_bytes()).is_some()
            })
        };
        let nothing = BTreeSet::new();
        let known = self.before.settings.get(path).unwrap_or(&nothing);
        let runs = |setting: &Setting| !setting.is_harmless() && !stays_inside(setting);
        let added = |setting: &Setting| runs(setting) && !known.contains(setting);
        let taken = counts && settings.iter().any(added);
        let kept: Vec<Setting> = settings.into_iter().filter(|setting| !taken || !added(setting)).collect();
        let run: BTreeSet<Setting> = kept.iter().filter(|setting| runs(setting)).cloned().collect();
        let base = repository.parent().unwrap_or(Path::new("")).to_owned();
        for named in run.iter().filter_map(Setting::names) {
            let bases = if named.beside_config { [repository, repository] } else { [base.as_path(), repository] };
            for (base, word) in bases.iter().flat_map(|base| named.words.iter().map(move |word| (base, word))) {
                let word = word.trim_start_matches('!').as_bytes();
                let target = protect::inside(self.workspace(), base.as_os_str().as_bytes(), word);
                let target = target.map(|target| PathBuf::from(OsStr::from_bytes(&target)));
                // A directory that a command works on is not what runs.
                let directory = |stat: FileStat| beneath::kind(&stat) == libc::S_IFDIR;
                let is_one = |path: &PathBuf| {
                    let stat = beneath::stat(self.watch.root, path).ok().flatten();
                    !named.is_command || !stat.is_some_and(directory)
                };
                self.targets.extend(target.filter(is_one));
            }
        }
        self.judged.known.settings.insert(path.to_owned(), run);
        if taken {
            let find = Find { path: path.to_owned(), instead: Some(git_config::write(&kept)) };
            self.judged.finds.push(find);
        }
    }

    /// An old link stays, and what it leads to is looked at as if it lay there. A new one is taken away itself.
    fn follow(&mut self, path: &Path, fresh: bool) {
        if fresh || !beneath::stat(self.watch.root, path).is_ok_and(|s| s.is_some_and(|s| stamp(&s) < self.since)) {
            return;
        }
        let Ok(Some(target)) = beneath::link(self.watch.root, path) else { return };
        let base = path.parent().unwrap_or(Path::new("")).as_os_str().as_bytes();
        let target = protect::inside(self.workspace(), base, &target);
        self.targets.extend(target.map(|target| PathBuf::from(OsStr::from_bytes(&target))));
    }

    /// git writes logs, messages and what it fetched through a link, and makes none itself that leads out: a new one that
    /// does would have it write a file of whoever runs it.
    fn link_in_a_repository(&mut self, path: &Path, mark: Mark) {
        let above = path.ancestors().skip(1).find(|above| self.seen.repositories.contains_key(*above));
        let (Some(repository), Ok(Some(target))) = (above, beneath::link(self.watch.root, path)) else { return };
        let base = path.parent().unwrap_or(Path::new("")).as_os_str().as_bytes();
        let target = protect::inside(self.workspace(), base, &target);
        let stays = target.is_some_and(|target| Path::new(OsStr::from_bytes(&target)).starts_with(repository));
        let fresh = self.is_fresh(path, mark);
        self.learn(path, mark);
        if !stays && (fresh || mark.changed >= self.since) && !self.is_kept(path, mark.names) {
            self.take(path.to_owned());
        }
    }

    /// `.git` as a file or a link.
    fn lead(&mut self, path: &Path, mark: Mark) {
        if self.is_kept(path, mark.names) || !(mark.changed >= self.since || self.is_fresh(path, mark)) {
            self.learn(path, mark);
            return;
        }
        self.learn(path, mark);
        let base = path.parent().unwrap_or(Path::new(""));
        let target = match beneath::link(self.watch.root, path) {
            Ok(Some(target)) => target,
            Ok(None) => self.content(path).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        self.keep_if_it_leads_to_a_repository(path, base, protect::redirection(&target));
    }

    /// A repository that the walk has seen was judged itself; one outside, or none, may become anything.
    fn keep_if_it_leads_to_a_repository(&mut self, path: &Path, base: &Path, target: &[u8]) {
        let target = protect::inside(self.workspace(), base.as_os_str().as_bytes(), target);
        let target = target.map(|target| PathBuf::from(OsStr::from_bytes(&target)));
        if !target.is_some_and(|target| self.seen.repositories.contains_key(&target)) {
            self.take(path.to_owned());
        }
    }

    /// A protected file, or a directory of which everything counts: what is new of it is taken, or all at once.
    fn tree(&mut self, path: &Path, whole: bool) {
        let Some(stat) = self.stat(path) else { return };
        let mark = Mark::of(&stat);
        if !mark.is_directory {
            if mark.changed >= self.since && !self.is_kept(path, mark.names) {
                self.take(path.to_owned());
            }
            return;
        }
        if whole && mark.changed >= self.since && !self.is_kept(path, 1) {
            self.take(path.to_owned());
            return;
        }
        self.learn(path, mark);
        let mut waiting = vec![path.to_owned()];
        while let Some(directory) = waiting.pop() {
            for (name, stat) in self.entries(&directory) {
                let (path, mark) = (directory.join(name), Mark::of(&stat));
                let kept = self.is_kept(&path, mark.names);
                if mark.is_directory && (kept || !self.is_fresh(&path, mark)) {
                    self.learn(&path, mark);
                    waiting.push(path);
                } else if mark.changed >= self.since && !kept {
                    self.take(path);
                }
            }
            if waiting.len() > MAX_SEEN {
                self.judged.complete = false;
                return;
            }
        }
    }

    fn is_in_a_repository(&self, path: &Path) -> bool {
        let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        above.any(|above| self.seen.repositories.contains_key(above))
    }

    /// Not what was known at this place, and put there since.
    fn is_fresh(&self, path: &Path, mark: Mark) -> bool {
        let known = self.before.inodes.get(path) == Some(&mark.inode);
        !known && (mark.changed >= self.since || !self.before.complete)
    }

    fn counts(&self, path: &Path, stat: &FileStat, fresh: bool) -> bool {
        (fresh || stamp(stat) >= self.since) && !self.is_kept(path, Mark::of(stat).names)
    }

    /// Whether a mount kept the command from changing what is there: not if the file has another name, and not if
    /// another command could have moved the mount's place away.
    fn is_kept(&self, path: &Path, names: u64) -> bool {
        self.watch.alone && names <= 1 && self.watch.read_only.iter().any(|kept| path.starts_with(kept))
    }

    fn learn(&mut self, path: &Path, mark: Mark) {
        self.judged.known.inodes.insert(path.to_owned(), mark.inode);
    }

    fn take(&mut self, path: PathBuf) {
        self.judged.finds.push(Find { path, instead: None });
    }

    fn stat(&mut self, path: &Path) -> Option<FileStat> {
        beneath::stat(self.watch.root, path).unwrap_or_else(|_| {
            self.judged.complete = false;
            None
        })
    }

    fn content(&mut self, path: &Path) -> Option<Vec<u8>> {
        match beneath::content(self.watch.root, path, git_config::MAX_BYTES) {
            Ok(content) => content,
            // Its mode forbids reading; as a config it is then taken, if it is new.
            Err(Errno::EACCES) => None,
            Err(_) => {
                self.judged.complete = false;
                None
            }
        }
    }

    fn entries(&mut self, path: &Path) -> Vec<(std::ffi::OsString, FileStat)> {
        let reach = Reach { entries: MAX_SEEN, looked_at: MAX_SEEN, closed: Closed::Opened, always: |_| true };
        let Ok(listed) = list(self.watch.root, path, reach) else {
            self.judged.complete = false;
            return Vec::new();
        };
        self.judged.complete &= listed.all;
        listed.entries.into_iter().filter_map(|e| Some((e.name().to_owned(), e.stat?))).collect()
    }

    fn workspace(&self) -> &'a [u8] {
        self.watch.workspace.as_os_str().as_bytes()
    }
}
