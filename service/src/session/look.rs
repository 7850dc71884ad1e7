//! What a reader saw, as text for an agent.
//!
//! Names and lines of a workspace are data: they are told as they are, with bad bytes replaced; a page that does not
//! fit says where to go on.

use std::fmt::Write as _;

use salaam_core::{
    canon,
    operation::State,
    reader::{Answer as Seen, EntryKind, Found, Lines, Listed, MAX_ENTRIES, Request},
    tool::{Answer, Call},
};

/// Text of one answer, so that its JSON stays below the limit of answers in all but odd cases.
const MOST_TEXT: usize = 24 << 10;
/// Matches of one answer.
const MOST_MATCHES: u32 = 200;

/// What a call asks of a reader; absent = it asks for something else.
pub(super) fn request(call: &Call) -> Option<Request> {
    match call {
        Call::List { path, after } => {
            let most = u32::try_from(MAX_ENTRIES).unwrap_or(u32::MAX);
            Some(Request::List { path: path.clone(), after: after.clone(), most })
        }
        Call::Read { path, from_line, lines } => {
            Some(Request::Read { path: path.clone(), from_line: *from_line, lines: *lines })
        }
        Call::Search { pattern, path, after } => Some(Request::Search {
            pattern: pattern.clone(),
            path: path.clone(),
            after: after.clone(),
            most: MOST_MATCHES,
        }),
        Call::Command { .. } | Call::Edit { .. } | Call::Undo { .. } => None,
    }
}

/// What was seen, as an answer to `request`.
pub(super) fn answer(request: &Request, seen: &Seen) -> Answer {
    match (request, seen) {
        (Request::List { .. }, Seen::Listed(listed)) => entries(listed),
        (Request::Read { from_line, .. }, Seen::Lines(read)) => lines(*from_line, read),
        (Request::Search { .. }, Seen::Found(found)) => matches(found),
        (_, Seen::Refused(refused)) => {
            let comment = if refused.detail.is_empty() {
                format!("{}: {}", refused.why, refused.why.words())
            } else {
                format!("{}: {}: {}", refused.why, refused.why.words(), refused.detail)
            };
            Answer { comment: Some(comment), ..Answer::new(State::Failed) }.cut()
        }
        (_, Seen::Listed(_) | Seen::Lines(_) | Seen::Found(_) | Seen::Whole(_)) => {
            let comment = "the reader answered something else than was asked".to_owned();
            Answer { comment: Some(comment), ..Answer::new(State::Failed) }
        }
    }
}

fn done(stdout: String, truncated: bool, comment: Option<String>) -> Answer {
    Answer { stdout, truncated, comment, ..Answer::new(State::Completed) }.cut()
}

/// One entry a line: directories end in `/`, files have their size.
fn entries(listed: &Listed) -> Answer {
    let mut text = String::new();
    let mut last = None;
    let mut more = listed.more;
    for entry in &listed.entries {
        let name = String::from_utf8_lossy(&entry.name);
        let line = match entry.kind {
            EntryKind::Directory => format!("{name}/\n"),
            EntryKind::File if entry.closed => format!("{name} {} (closed)\n", entry.size),
            EntryKind::File => format!("{name} {}\n", entry.size),
            EntryKind::Link => format!("{name} -> {}\n", String::from_utf8_lossy(&entry.target)),
            EntryKind::Other => format!("{name} (special)\n"),
        };
        if text.len() + line.len() > MOST_TEXT {
            more = true;
            break;
        }
        text.push_str(&line);
        last = Some(&entry.name);
    }
    let comment = match last {
        // As a call takes it, also where the name is not UTF-8.
        Some(last) if more => Some(format!("there are more: go on with \"after\": {}", canon::bytes(last))),
        Some(_) | None => None,
    };
    done(text, more, comment)
}

/// The lines as they stand.
fn lines(from: u64, read: &Lines) -> Answer {
    let (mut text, mut taken) = (String::new(), 0_u64);
    let mut said = Vec::new();
    for line in &read.lines {
        let shown = String::from_utf8_lossy(&line.bytes);
        if text.len() + shown.len() > MOST_TEXT && taken > 0 {
            break;
        }
        text.push_str(&shown);
        if line.cut > 0 {
            text.push('\n');
            said.push(format!("line {} goes on for {} bytes", from + taken, line.cut));
        }
        taken += 1;
    }
    let more = read.more || taken < read.lines.len() as u64;
    if let Some(total) = read.total {
        said.push(format!("the file has {total} lines"));
    }
    if more {
        said.push(format!("there are more: go on with \"from_line\": {}", from + taken));
    }
    if read.binary {
        said.push("the file has NUL bytes".to_owned());
    }
    let cut = read.lines.iter().any(|line| line.cut > 0);
    done(text, more || cut, if said.is_empty() { None } else { Some(said.join("; ")) })
}

/// `path:line:text`, a match a line.
fn matches(found: &Found) -> Answer {
    let mut text = String::new();
    let mut next = found.next.clone();
    // Counted, not read off the text: a path may hold line breaks.
    let mut shown_matches = 0;
    for one in &found.matches {
        let mut line = String::new();
        let path = String::from_utf8_lossy(&one.place.path);
        let shown = String::from_utf8_lossy(&one.text);
        let (before, after) = (cut_mark(one.cut_before), cut_mark(one.cut_after));
        // Writing to a string cannot fail.
        let _ = writeln!(line, "{path}:{}:{before}{shown}{after}", one.place.line);
        if text.len() + line.len() > MOST_TEXT && !text.is_empty() {
            break;
        }
        text.push_str(&line);
        shown_matches += 1;
        if text.len() > MOST_TEXT {
            next = Some(one.place.clone());
        }
    }
    if shown_matches < found.matches.len() {
        next = found.matches.get(..shown_matches).and_then(<[_]>::last).map(|last| last.place.clone());
    }
    let mut said = vec![format!("{} files searched", found.files)];
    let skipped = &found.skipped;
    for (count, what) in [
        (skipped.binary, "with NUL bytes"),
        (skipped.closed, "closed"),
        (skipped.large, "only in part"),
        (skipped.deep, "too deep"),
    ] {
        if count > 0 {
            said.push(format!("{count} {what}"));
        }
    }
    if let Some(next) = &next {
        let path = canon::bytes(&next.path);
        said.push(format!("there are more: go on with \"after\": {{\"path\": {path}, \"line\": {}}}", next.line));
    }
    done(text, next.is_some(), Some(said.join("; ")))
}

const fn cut_mark(bytes: u64) -> &'static str {
    if bytes > 0 { "…" } else { "" }
}

#[cfg(test)]
mod tests {
    use salaam_core::reader::{Entry, Line, Match, NotRead, Place, Refused, Skipped};

    use super::*;

    const LIST: Request = Request::List { path: Vec::new(), after: None, most: 9 };
    const SEARCH: Request = Request::Search { pattern: String::new(), path: Vec::new(), after: None, most: 9 };

    fn read(from_line: u64) -> Request {
        Request::Read { path: b"a".to_vec(), from_line, lines: 9 }
    }

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { name: name.into(), kind, size: 3, mode: 0o644, closed: false, target: b"there".to_vec() }
    }

    #[test]
    fn a_directory_is_an_entry_a_line() {
        let closed = Entry { closed: true, ..entry("c", EntryKind::File) };
        let entries = vec![
            entry("a", EntryKind::File),
            entry("b", EntryKind::Directory),
            closed,
            entry("l", EntryKind::Link),
            entry("p", EntryKind::Other),
        ];
        let seen = answer(&LIST, &Seen::Listed(Listed { entries: entries.clone(), more: false }));
        assert_eq!(seen.stdout, "a 3\nb/\nc 3 (closed)\nl -> there\np (special)\n");
        assert_eq!((seen.outcome, seen.truncated, seen.comment), (State::Completed, false, None));
        let seen = answer(&LIST, &Seen::Listed(Listed { entries, more: true }));
        assert_eq!(seen.comment.as_deref(), Some("there are more: go on with \"after\": \"p\""));
    }

    #[test]
    fn a_page_that_does_not_fit_says_where_to_go_on() {
        let line = |bytes: usize| Line { bytes: [vec![b'x'; bytes], b"\n".to_vec()].concat(), cut: 0 };
        let lines = vec![line(MOST_TEXT / 2), line(MOST_TEXT / 2), line(3)];
        let seen = answer(&read(5), &Seen::Lines(Lines { lines, more: false, total: Some(7), size: 9, binary: false }));
        assert_eq!(seen.stdout.len(), MOST_TEXT / 2 + 1);
        assert!(seen.truncated);
        let comment = seen.comment.unwrap();
        assert_eq!(comment, "the file has 7 lines; there are more: go on with \"from_line\": 6");
        let cut = Line { bytes: b"abc".to_vec(), cut: 9 };
        let seen =
            answer(&read(1), &Seen::Lines(Lines { lines: vec![cut], more: true, binary: true, ..Lines::default() }));
        assert_eq!(seen.stdout, "abc\n");
        let comment = "line 1 goes on for 9 bytes; there are more: go on with \"from_line\": 2; the file has NUL bytes";
        assert_eq!(seen.comment.as_deref(), Some(comment));
    }

    #[test]
    fn matches_have_their_place_and_say_what_was_left_out() {
        let one = |line, bytes: usize| Match {
            place: Place { path: b"src/a.rs".to_vec(), line },
            column: 1,
            text: vec![b'x'; bytes],
            cut_before: 4,
            cut_after: 0,
        };
        let skipped = Skipped { binary: 2, ..Skipped::default() };
        let found = Found { matches: vec![one(3, 2)], next: None, files: 9, skipped };
        let seen = answer(&SEARCH, &Seen::Found(found));
        assert_eq!(seen.stdout, "src/a.rs:3:…xx\n");
        assert_eq!((seen.truncated, seen.comment.as_deref()), (false, Some("9 files searched; 2 with NUL bytes")));
        let found = Found { matches: vec![one(3, 20_000), one(4, 20_000)], ..Found::default() };
        let seen = answer(&SEARCH, &Seen::Found(found));
        let comment = "0 files searched; there are more: go on with \"after\": {\"path\": \"src/a.rs\", \"line\": 3}";
        assert_eq!((seen.truncated, seen.comment.as_deref()), (true, Some(comment)));
    }

    #[test]
    fn no_match_is_passed_over_for_a_line_break_in_a_path() {
        let one = |line| Match {
            place: Place { path: b"a\nb\nc".to_vec(), line },
            column: 1,
            text: vec![b'x'; 20_000],
            cut_before: 0,
            cut_after: 0,
        };
        let found = Found { matches: vec![one(1), one(2), one(3)], ..Found::default() };
        let seen = answer(&SEARCH, &Seen::Found(found));
        assert!(seen.truncated);
        assert!(seen.comment.unwrap().ends_with(r#""after": {"path": "a\nb\nc", "line": 1}"#));
    }

    #[test]
    fn where_to_go_on_is_written_as_a_call_takes_it() {
        let odd = Entry { name: b"a\xc0".to_vec(), ..entry("", EntryKind::File) };
        let seen = answer(&LIST, &Seen::Listed(Listed { entries: vec![odd], more: true }));
        assert_eq!(seen.comment.as_deref(), Some(r#"there are more: go on with "after": {"base64":"YcA="}"#));
        let seen =
            answer(&LIST, &Seen::Listed(Listed { entries: vec![entry("a\u{200c}", EntryKind::File)], more: true }));
        assert_eq!(seen.comment.as_deref(), Some("there are more: go on with \"after\": \"a\u{200c}\""));
    }

    #[test]
    fn what_is_refused_failed_and_says_why() {
        let refused = NotRead { why: Refused::Closed, detail: String::new() };
        let seen = answer(&LIST, &Seen::Refused(refused));
        assert_eq!(seen.outcome, State::Failed);
        assert!(seen.comment.unwrap().starts_with("closed: "));
        let other = answer(&LIST, &Seen::Found(Found::default()));
        assert_eq!((other.outcome, other.stdout.as_str()), (State::Failed, ""));
    }
}
