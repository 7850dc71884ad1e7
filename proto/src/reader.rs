//! Between service and reader.

use salaam_core::{
    edit::{Image, MAX_FILE_BYTES, MAX_MODE},
    reader::{
        Answer, Begin, Entry, Found, FromReader, Line, Lines, Listed, MAX_DETAIL_BYTES, MAX_ENTRIES, MAX_GROUPS,
        MAX_LINE_BYTES, MAX_LINES, MAX_MATCH_BYTES, MAX_MATCHES, MAX_PAGE_BYTES, MAX_PATTERN_BYTES, MAX_TARGET_BYTES,
        Match, NotRead, Place, Request, Skipped, ToReader, Whole,
    },
};

use crate::{
    bounds::{self, WireError},
    reader_wire as wire, worker,
};

/// NAME_MAX of Linux.
const MAX_NAME_BYTES: usize = 255;
/// All that chmod(2) sets.
const MAX_ENTRY_MODE: u32 = 0o7777;

impl From<ToReader> for wire::ToReader {
    fn from(message: ToReader) -> Self {
        use wire::to_reader::Message as Form;
        let form = match message {
            ToReader::Begin(begin) => Form::Begin(wire::Begin { uid: begin.uid, groups: begin.groups }),
            ToReader::Ask(Request::List { path, after, most }) => {
                Form::List(wire::List { path: path.into(), after: after.map(Into::into), most })
            }
            ToReader::Ask(Request::Read { path, from_line, lines }) => {
                Form::Read(wire::Read { path: path.into(), from_line, lines })
            }
            ToReader::Ask(Request::Search { pattern, path, after, most }) => {
                Form::Search(wire::Search { pattern, path: path.into(), after: after.map(Into::into), most })
            }
            ToReader::Ask(Request::Whole { path, most_bytes }) => {
                Form::Whole(wire::Whole { path: path.into(), most_bytes })
            }
        };
        Self { message: Some(form) }
    }
}

impl TryFrom<wire::ToReader> for ToReader {
    type Error = WireError;

    fn try_from(message: wire::ToReader) -> Result<Self, WireError> {
        use wire::to_reader::Message as Form;
        Ok(Self::Ask(match bounds::present("message", message.message)? {
            Form::Begin(begin) => {
                let groups = bounds::list("begin.groups", begin.groups, MAX_GROUPS, Ok)?;
                return Ok(Self::Begin(Begin { uid: begin.uid, groups }));
            }
            Form::List(list) => Request::List {
                path: below("list.path", &list.path)?,
                after: list.after.map(|name| entry_name("list.after", &name)).transpose()?,
                most: page("list.most", list.most, MAX_ENTRIES)?,
            },
            Form::Read(read) => Request::Read {
                path: bounds::relative_path("read.path", &read.path)?,
                from_line: line("read.from_line", read.from_line)?,
                lines: match read.lines {
                    lines @ 1..=MAX_LINES => lines,
                    _ => return Err(WireError::Form { field: "read.lines", form: "from 1 to MAX_LINES" }),
                },
            },
            Form::Search(search) => Request::Search {
                pattern: bounds::text("search.pattern", search.pattern, MAX_PATTERN_BYTES)?,
                path: below("search.path", &search.path)?,
                after: search.after.map(Place::try_from).transpose()?,
                most: page("search.most", search.most, MAX_MATCHES)?,
            },
            Form::Whole(whole) => {
                if whole.most_bytes > MAX_FILE_BYTES as u64 {
                    return Err(WireError::Form { field: "whole.most_bytes", form: "at most MAX_FILE_BYTES" });
                }
                Request::Whole { path: bounds::relative_path("whole.path", &whole.path)?, most_bytes: whole.most_bytes }
            }
        }))
    }
}

impl From<Place> for wire::Place {
    fn from(place: Place) -> Self {
        Self { path: place.path.into(), line: place.line }
    }
}

impl TryFrom<wire::Place> for Place {
    type Error = WireError;

    fn try_from(place: wire::Place) -> Result<Self, WireError> {
        Ok(Self { path: bounds::relative_path("place.path", &place.path)?, line: line("place.line", place.line)? })
    }
}

impl From<FromReader> for wire::FromReader {
    fn from(message: FromReader) -> Self {
        use wire::from_reader::Message as Form;
        let form = match message {
            FromReader::Ready { build, canary } => {
                let canary = canary.into_iter().map(|c| wire::Canary { attack: c.attack, errno: c.errno }).collect();
                Form::Ready(wire::Ready { build, canary })
            }
            FromReader::Answer(Answer::Listed(Listed { entries, more })) => {
                Form::Listed(wire::Listed { entries: entries.into_iter().map(Into::into).collect(), more })
            }
            FromReader::Answer(Answer::Lines(Lines { lines, more, total, size, binary })) => {
                let line = |line: Line| wire::Line { bytes: line.bytes.into(), cut: line.cut };
                Form::Lines(wire::Lines { lines: lines.into_iter().map(line).collect(), more, total, size, binary })
            }
            FromReader::Answer(Answer::Found(Found { matches, next, files, skipped })) => Form::Found(wire::Found {
                matches: matches.into_iter().map(Into::into).collect(),
                next: next.map(Into::into),
                files,
                skipped: Some(wire::Skipped {
                    binary: skipped.binary,
                    closed: skipped.closed,
                    large: skipped.large,
                    deep: skipped.deep,
                }),
            }),
            FromReader::Answer(Answer::Whole(whole)) => Form::Whole(wire::WholeFile {
                content: whole.image.content.into(),
                mode: whole.image.mode,
                device: whole.device,
                inode: whole.inode,
                links: whole.links,
            }),
            FromReader::Answer(Answer::Refused(NotRead { why, detail })) => {
                Form::Refused(wire::Refused { why: why.as_str().into(), detail })
            }
        };
        Self { message: Some(form) }
    }
}

impl TryFrom<wire::FromReader> for FromReader {
    type Error = WireError;

    fn try_from(message: wire::FromReader) -> Result<Self, WireError> {
        use wire::from_reader::Message as Form;
        Ok(Self::Answer(match bounds::present("message", message.message)? {
            Form::Ready(ready) => {
                let canary = ready.canary.into_iter().map(|c| (c.attack, c.errno)).collect();
                return Ok(Self::Ready { build: worker::build(ready.build)?, canary: worker::canaries(canary)? });
            }
            Form::Listed(listed) => Answer::Listed(Listed {
                entries: bounds::list("listed.entries", listed.entries, MAX_ENTRIES, Entry::try_from)?,
                more: listed.more,
            }),
            Form::Lines(lines) => Answer::Lines(page_of(lines)?),
            Form::Found(found) => Answer::Found(Found {
                matches: bounds::list("found.matches", found.matches, MAX_MATCHES, Match::try_from)?,
                next: found.next.map(Place::try_from).transpose()?,
                files: found.files,
                skipped: {
                    let skipped = bounds::present("found.skipped", found.skipped)?;
                    Skipped { binary: skipped.binary, closed: skipped.closed, large: skipped.large, deep: skipped.deep }
                },
            }),
            Form::Whole(whole) => {
                if whole.mode > MAX_MODE {
                    return Err(WireError::Form { field: "whole.mode", form: "from 0000 to 0777" });
                }
                let content = bounds::bytes("whole.content", &whole.content, MAX_FILE_BYTES)?;
                Answer::Whole(Whole {
                    image: Image { content, mode: whole.mode },
                    device: whole.device,
                    inode: whole.inode,
                    links: whole.links,
                })
            }
            Form::Refused(refused) => Answer::Refused(NotRead {
                why: bounds::word("refused.why", &refused.why)?,
                detail: bounds::text("refused.detail", refused.detail, MAX_DETAIL_BYTES)?,
            }),
        }))
    }
}

fn page_of(page: wire::Lines) -> Result<Lines, WireError> {
    let most = usize::try_from(MAX_LINES).unwrap_or(usize::MAX);
    let lines = bounds::list("lines.lines", page.lines, most, |line| {
        Ok(Line { bytes: bounds::bytes("line.bytes", &line.bytes, MAX_LINE_BYTES)?, cut: line.cut })
    })?;
    if lines.iter().map(|line| line.bytes.len()).sum::<usize>() > MAX_PAGE_BYTES {
        return Err(WireError::Form { field: "lines.lines", form: "at most MAX_PAGE_BYTES together" });
    }
    Ok(Lines { lines, more: page.more, total: page.total, size: page.size, binary: page.binary })
}

impl From<Match> for wire::Match {
    fn from(found: Match) -> Self {
        Self {
            place: Some(found.place.into()),
            column: found.column,
            text: found.text.into(),
            cut_before: found.cut_before,
            cut_after: found.cut_after,
        }
    }
}

impl TryFrom<wire::Match> for Match {
    type Error = WireError;

    fn try_from(found: wire::Match) -> Result<Self, WireError> {
        Ok(Self {
            place: bounds::present("match.place", found.place)?.try_into()?,
            column: line("match.column", found.column)?,
            text: bounds::bytes("match.text", &found.text, MAX_MATCH_BYTES)?,
            cut_before: found.cut_before,
            cut_after: found.cut_after,
        })
    }
}

impl From<Entry> for wire::Entry {
    fn from(entry: Entry) -> Self {
        Self {
            name: entry.name.into(),
            kind: entry.kind.as_str().into(),
            size: entry.size,
            closed: entry.closed,
            mode: entry.mode,
            target: entry.target.into(),
        }
    }
}

impl TryFrom<wire::Entry> for Entry {
    type Error = WireError;

    fn try_from(entry: wire::Entry) -> Result<Self, WireError> {
        if entry.mode > MAX_ENTRY_MODE {
            return Err(WireError::Form { field: "entry.mode", form: "from 0000 to 7777" });
        }
        Ok(Self {
            name: entry_name("entry.name", &entry.name)?,
            kind: bounds::word("entry.kind", &entry.kind)?,
            size: entry.size,
            mode: entry.mode,
            closed: entry.closed,
            target: bounds::bytes("entry.target", &entry.target, MAX_TARGET_BYTES)?,
        })
    }
}

/// A path below the root, or the root itself: empty.
fn below(field: &'static str, path: &[u8]) -> Result<Vec<u8>, WireError> {
    if path.is_empty() { Ok(Vec::new()) } else { bounds::relative_path(field, path) }
}

/// A path of one component.
fn entry_name(field: &'static str, name: &[u8]) -> Result<Vec<u8>, WireError> {
    let name = bounds::relative_path(field, name)?;
    if name.contains(&b'/') || name.len() > MAX_NAME_BYTES {
        return Err(WireError::Form { field, form: "the name of a directory entry" });
    }
    Ok(name)
}

const fn line(field: &'static str, line: u64) -> Result<u64, WireError> {
    if line == 0 { Err(WireError::Form { field, form: "a line, counted from 1" }) } else { Ok(line) }
}

fn page(field: &'static str, most: u32, limit: usize) -> Result<u32, WireError> {
    if most == 0 || usize::try_from(most).is_ok_and(|most| most > limit) {
        return Err(WireError::Form { field, form: "from 1 to the size of a page" });
    }
    Ok(most)
}

#[cfg(test)]
mod tests;
