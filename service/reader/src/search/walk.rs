//! The way through a tree: directories before what lies behind them in the order of names, links not followed,
//! ignored entries and `.git` left out.

use std::{ops::Bound, time::Instant};

use salaam_core::reader::{ALL_LINES, Found, MAX_MATCHES, Place};

use super::{
    file::{End, Page},
    ignore::{Rules, Said},
    pattern,
};
use crate::{
    chunks::fill,
    limits::{LEAST_NAMES, MAX_DEPTH, MAX_IGNORE_BYTES, MAX_NAMES, READ_TIME, SEARCH_TIME},
    names::names,
    refusal::Refusal,
    root::{Directory, File, Kind, Links, Root},
};

/// The files with rules, the later ones winning.
const IGNORE_FILES: [&[u8]; 2] = [b".gitignore", b".ignore"];

/// At most `most` lines that match `text` in the file or directory at `path`, behind the place `after`.
///
/// # Errors
/// A pattern that is none, a path that may not be searched, a place that does not lie beneath it.
pub fn search(root: &Root<'_>, text: &str, path: &[u8], after: Option<&Place>, most: usize) -> Result<Found, Refusal> {
    let regex = pattern::compile(text)?;
    let until = Instant::now() + SEARCH_TIME;
    let most = most.clamp(1, MAX_MATCHES);
    let page = Page { regex: &regex, most, until, last: until + READ_TIME, found: Found::default(), text_bytes: 0 };
    let mut walk = Walk { root, page, above: Vec::new(), names: components(path), held: 0, reached: None };
    let resume = match after {
        None => Vec::new(),
        Some(place) => {
            let components = components(&place.path);
            let below = components.strip_prefix(walk.names.as_slice()).ok_or(Refusal::Missing)?;
            below.to_vec()
        }
    };
    let line = after.map_or(0, |place| place.line);
    if resume.is_empty() && line == ALL_LINES {
        return Ok(walk.page.found);
    }
    let flow = match root.directory(path, Links::Inside) {
        Ok(directory) => {
            // What may not be listed is an error here, and is counted further down.
            drop(directory.reopen()?);
            walk.rules_above()?;
            walk.directory(&directory, &resume, line)
        }
        Err(Refusal::NotDirectory) => {
            let file = root.file(path, Links::Inside)?;
            walk.file(path.to_vec(), &file, line)
        }
        Err(refusal) => return Err(refusal),
    };
    if flow == Flow::Stop {
        walk.page.found.next = walk.reached;
    }
    Ok(walk.page.found)
}

/// Whether the page goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Stop,
}

struct Walk<'a> {
    root: &'a Root<'a>,
    page: Page<'a>,
    /// Rules of the directories from the root down, with how many components each lies below it.
    above: Vec<(usize, Rules)>,
    /// The components of the directory that is walked.
    names: Vec<Vec<u8>>,
    /// Names that are held, of all directories on the way.
    held: usize,
    /// Everything up to here was searched.
    reached: Option<Place>,
}

impl Walk<'_> {
    /// The rules of the directories above the one where the search begins.
    fn rules_above(&mut self) -> Result<(), Refusal> {
        for depth in 0..self.names.len() {
            let path = self.names.get(..depth).unwrap_or_default().join(&b'/');
            let directory = self.root.directory(&path, Links::Inside)?;
            self.add_rules(&directory, depth);
        }
        Ok(())
    }

    fn add_rules(&mut self, directory: &Directory, depth: usize) {
        let mut rules = Rules::default();
        for name in IGNORE_FILES {
            // Not to be had, for whatever reason, is the same as not there.
            if let Ok(file) = self.root.open_file(directory, name)
                && let Some(text) = whole(&file, self.page.last)
            {
                rules.add(&text);
            }
        }
        if !rules.is_empty() {
            self.above.push((depth, rules));
        }
    }

    /// Searches what is in `directory`, of which everything up to `resume` and line `line` of it was searched.
    fn directory(&mut self, directory: &Directory, resume: &[Vec<u8>], line: u64) -> Flow {
        let rules = self.above.len();
        self.add_rules(directory, self.names.len());
        let flow = self.entries(directory, resume, line);
        self.above.truncate(rules);
        flow
    }

    fn entries(&mut self, directory: &Directory, resume: &[Vec<u8>], line: u64) -> Flow {
        let mut from = resume.first().map_or(Bound::Unbounded, |name| Bound::Included(name.clone()));
        loop {
            // Deep in a tree fewer at a time: what is held has an end, whatever the shape of the tree.
            let most = (MAX_NAMES.saturating_sub(self.held) / 2).max(LEAST_NAMES);
            let Ok(batch) = names(directory, from.as_ref().map(Vec::as_slice), most, self.page.last) else {
                // Unreadable, or so large that its names alone take all the time: what lies behind it does not wait.
                self.page.found.skipped.closed += 1;
                return Flow::On;
            };
            let last = batch.names.last().cloned();
            let count = batch.names.len();
            self.held += count;
            for name in batch.names {
                let (resume, line) = match resume.split_first() {
                    Some((first, rest)) if *first == name => (rest, line),
                    _ => (&[][..], 0),
                };
                if self.entry(directory, name, resume, line) == Flow::Stop {
                    return Flow::Stop;
                }
            }
            self.held -= count;
            match last {
                Some(last) if batch.more => from = Bound::Excluded(last),
                _ => return Flow::On,
            }
        }
    }

    fn entry(&mut self, directory: &Directory, name: Vec<u8>, resume: &[Vec<u8>], line: u64) -> Flow {
        let path = self.path_of(&name);
        if (resume.is_empty() && line == ALL_LINES) || name == b".git" {
            return self.pass(path);
        }
        let kind = match directory.place(&name) {
            Ok(place) => Kind::of(place.stat.st_mode),
            Err(refusal) => return self.skip(&refusal, path),
        };
        match kind {
            Kind::Link | Kind::Other => self.pass(path),
            Kind::File | Kind::Directory if self.is_ignored(&name, kind == Kind::Directory) => self.pass(path),
            Kind::File => match self.root.open_file(directory, &name) {
                Ok(file) => self.file(path, &file, line),
                Err(refusal) => self.skip(&refusal, path),
            },
            Kind::Directory if self.names.len() >= MAX_DEPTH => {
                self.page.found.skipped.deep += 1;
                self.pass(path)
            }
            Kind::Directory => match self.root.open_directory(directory, &name) {
                Ok(below) => {
                    self.names.push(name);
                    let flow = self.directory(&below, resume, line);
                    self.names.pop();
                    if flow == Flow::Stop { Flow::Stop } else { self.pass(path) }
                }
                Err(refusal) => self.skip(&refusal, path),
            },
        }
    }

    fn file(&mut self, path: Vec<u8>, file: &File, after: u64) -> Flow {
        match self.page.file(&path, file, after) {
            Ok(End::Done) => self.pass(path),
            Ok(End::At(line)) => {
                self.reached = Some(Place { path, line });
                Flow::Stop
            }
            Err(refusal) => self.skip(&refusal, path),
        }
    }

    fn skip(&mut self, refusal: &Refusal, path: Vec<u8>) -> Flow {
        match refusal {
            // Gone, or another kind of thing since its name was read.
            Refusal::Missing | Refusal::NotDirectory | Refusal::NotRegular | Refusal::LeadsOut => {}
            Refusal::Mount
            | Refusal::TooManySteps
            | Refusal::Unreadable
            | Refusal::ToolsOnly
            | Refusal::SpecialMode
            | Refusal::Busy
            | Refusal::Changed
            | Refusal::TooLarge { .. }
            | Refusal::Slow
            | Refusal::Pattern { .. }
            | Refusal::Kernel { .. } => self.page.found.skipped.closed += 1,
        }
        self.pass(path)
    }

    /// This file or directory is done with, and everything before it.
    fn pass(&mut self, path: Vec<u8>) -> Flow {
        self.reached = Some(Place { path, line: ALL_LINES });
        if self.page.full() || Instant::now() >= self.page.until { Flow::Stop } else { Flow::On }
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.names.join(&b'/');
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    fn is_ignored(&self, name: &[u8], directory: bool) -> bool {
        self.above
            .iter()
            .rev()
            .map(|(depth, rules)| {
                let below = self.names.iter().skip(*depth).map(Vec::as_slice);
                rules.say(&below.chain([name]).collect::<Vec<_>>(), directory)
            })
            .find(|said| *said != Said::Nothing)
            == Some(Said::Ignore)
    }
}

/// The whole of an ignore file, if it is no longer than one may be.
fn whole(file: &File, until: Instant) -> Option<Vec<u8>> {
    let most = usize::try_from(MAX_IGNORE_BYTES).unwrap_or(usize::MAX);
    let mut text = vec![0; most.min(usize::try_from(file.stat.st_size).unwrap_or(most)) + 1];
    let got = fill(&file.fd, &mut text, until).ok()?;
    text.truncate(got);
    (got <= most).then_some(text)
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let named = |part: &&[u8]| !part.is_empty() && *part != b".";
    path.split(|byte| *byte == b'/').filter(named).map(<[u8]>::to_vec).collect()
}
