//! The reader's messages there and back, and one over each bound.

use salaam_core::reader::{ALL_LINES, EntryKind, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Refused};

use super::*;
use crate::{MAX_PATH_BYTES, frame};

fn place() -> Place {
    Place { path: b"a/\xff".to_vec(), line: ALL_LINES }
}

fn answers() -> Vec<Answer> {
    let image = Image { content: b"\0\xff".to_vec(), mode: 0o640 };
    vec![
        Answer::Listed(Listed {
            entries: vec![Entry {
                name: b"\xfe".to_vec(),
                kind: EntryKind::Link,
                size: 0,
                mode: 0o777,
                closed: true,
                target: b"../x".to_vec(),
            }],
            more: true,
        }),
        Answer::Lines(Lines {
            lines: vec![Line { bytes: b"\xff\n".to_vec(), cut: 3 }, Line::default()],
            more: false,
            total: Some(0),
            size: 7,
            binary: true,
        }),
        Answer::Found(Found {
            matches: vec![Match { place: place(), column: 1, text: b"x".to_vec(), cut_before: 2, cut_after: 3 }],
            next: Some(place()),
            files: 4,
            skipped: Skipped { binary: 1, closed: 2, large: 3, deep: 4 },
        }),
        Answer::Whole(Whole { image, device: 1, inode: u64::MAX, links: 2 }),
        Answer::Refused(NotRead { why: Refused::Pattern, detail: "unclosed group".into() }),
    ]
}

#[test]
fn every_message_comes_back_as_it_was() {
    for answer in answers() {
        let message = FromReader::Answer(answer);
        assert_eq!(FromReader::try_from(wire::FromReader::from(message.clone())).unwrap(), message);
    }
    let requests = [
        Request::List { path: Vec::new(), after: Some(b"\xff".to_vec()), most: 1 },
        Request::Read { path: b"a".to_vec(), from_line: 1, lines: MAX_LINES },
        Request::Search { pattern: "x".into(), path: Vec::new(), after: Some(place()), most: 3 },
        Request::Whole { path: b"a".to_vec(), most_bytes: 0 },
    ];
    let begin = ToReader::Begin(Begin { uid: 0, groups: vec![7] });
    for message in requests.map(ToReader::Ask).into_iter().chain([begin]) {
        assert_eq!(ToReader::try_from(wire::ToReader::from(message.clone())).unwrap(), message);
    }
}

#[test]
fn a_reader_that_answers_more_than_a_page_is_not_believed() {
    let line = Line { bytes: vec![b'x'; MAX_LINE_BYTES], cut: 0 };
    let lines = |count| Answer::Lines(Lines { lines: vec![line.clone(); count], ..Lines::default() });
    let long = Line { bytes: vec![b'x'; MAX_LINE_BYTES + 1], cut: 0 };
    let entry = |name: &[u8]| Entry {
        name: name.to_vec(),
        kind: EntryKind::File,
        size: 0,
        mode: 0,
        closed: false,
        target: Vec::new(),
    };
    let listed = |name: &[u8], count| Answer::Listed(Listed { entries: vec![entry(name); count], more: false });
    let most = MAX_PAGE_BYTES / MAX_LINE_BYTES;
    for (answer, believed) in [
        (lines(most), true),
        (lines(most + 1), false),
        (Answer::Lines(Lines { lines: vec![long], ..Lines::default() }), false),
        (listed(b"a", MAX_ENTRIES), true),
        (listed(b"a", MAX_ENTRIES + 1), false),
        (listed(b"a/b", 1), false),
        (listed(b"..", 1), false),
        (listed(b"", 1), false),
    ] {
        let wire = wire::FromReader::from(FromReader::Answer(answer));
        assert_eq!(FromReader::try_from(wire).is_ok(), believed);
    }
}

#[test]
fn the_largest_honest_messages_fit_their_frames() {
    let long = vec![b'a'; MAX_PATH_BYTES];
    let request = Request::Search {
        pattern: "p".repeat(MAX_PATTERN_BYTES),
        path: long.clone(),
        after: Some(Place { path: long.clone(), line: u64::MAX }),
        most: 1,
    };
    assert!(frame::framed(&wire::ToReader::from(ToReader::Ask(request)), MAX_REQUEST_BYTES).is_ok());
    let groups = ToReader::Begin(Begin { uid: u32::MAX, groups: vec![u32::MAX; MAX_GROUPS] });
    assert!(frame::framed(&wire::ToReader::from(groups), MAX_REQUEST_BYTES).is_ok());
    let image = Image { content: vec![0; MAX_FILE_BYTES], mode: 0o777 };
    let whole = Answer::Whole(Whole { image, device: u64::MAX, inode: u64::MAX, links: u64::MAX });
    let place = Place { path: long, line: 1 };
    let text = vec![0; MAX_MATCH_BYTES];
    let found = Match { place, column: u64::MAX, text, cut_before: u64::MAX, cut_after: u64::MAX };
    let found = Answer::Found(Found { matches: vec![found; MAX_MATCHES], ..Found::default() });
    let entry = Entry {
        name: vec![b'a'; MAX_NAME_BYTES],
        kind: EntryKind::Link,
        size: u64::MAX,
        mode: 0o777,
        closed: true,
        target: vec![b'a'; MAX_TARGET_BYTES],
    };
    let listed = Answer::Listed(Listed { entries: vec![entry; MAX_ENTRIES], more: true });
    for answer in [whole, found, listed] {
        assert!(frame::framed(&wire::FromReader::from(FromReader::Answer(answer)), MAX_ANSWER_BYTES).is_ok());
    }
}

#[test]
fn an_empty_message_never_means_allow() {
    let missing = |field| WireError::Missing { field };
    assert_eq!(ToReader::try_from(wire::ToReader::default()), Err(missing("message")));
    assert_eq!(FromReader::try_from(wire::FromReader::default()), Err(missing("message")));
    use wire::to_reader::Message as Form;
    let to = |message| ToReader::try_from(wire::ToReader { message: Some(message) });
    assert!(to(Form::List(wire::List::default())).is_err());
    assert!(to(Form::Read(wire::Read::default())).is_err());
    assert!(to(Form::Search(wire::Search::default())).is_err());
    assert!(to(Form::Whole(wire::Whole::default())).is_err());
    assert!(Entry::try_from(wire::Entry::default()).is_err());
    assert!(Place::try_from(wire::Place::default()).is_err());
}

#[test]
fn hostile_requests_are_refused() {
    let refused = |request| ToReader::try_from(wire::ToReader::from(ToReader::Ask(request))).is_err();
    for bad in ["/etc", "../x", "a//b", "a/", "./a", "a\0b"] {
        let path = bad.as_bytes().to_vec();
        assert!(refused(Request::List { path: path.clone(), after: None, most: 1 }), "{bad}");
        assert!(refused(Request::Read { path: path.clone(), from_line: 1, lines: 1 }), "{bad}");
        assert!(refused(Request::Whole { path: path.clone(), most_bytes: 1 }), "{bad}");
        assert!(refused(Request::Search { pattern: "p".into(), path, after: None, most: 1 }), "{bad}");
    }
    let list = |after: Option<&[u8]>, most| Request::List { path: Vec::new(), after: after.map(Into::into), most };
    assert!(refused(list(None, 0)) && refused(list(None, MAX_ENTRIES as u32 + 1)));
    assert!(refused(list(Some(b"a/b"), 1)) && refused(list(Some(&[b'a'; 256]), 1)));
    let read = |from_line, lines| Request::Read { path: b"a".to_vec(), from_line, lines };
    assert!(refused(read(0, 1)) && refused(read(1, 0)) && refused(read(1, MAX_LINES + 1)));
    let search = |pattern: String, after, most| Request::Search { pattern, path: Vec::new(), after, most };
    assert!(refused(search("p".repeat(MAX_PATTERN_BYTES + 1), None, 1)));
    assert!(refused(search("p".into(), None, MAX_MATCHES as u32 + 1)));
    assert!(refused(search("p".into(), Some(Place { line: 0, ..place() }), 1)));
    assert!(refused(Request::Whole { path: b"a".to_vec(), most_bytes: MAX_FILE_BYTES as u64 + 1 }));
    let begin = ToReader::Begin(Begin { uid: 0, groups: vec![0; MAX_GROUPS + 1] });
    assert!(ToReader::try_from(wire::ToReader::from(begin)).is_err());
}

#[test]
fn hostile_answers_are_refused() {
    let refused = |answer| FromReader::try_from(wire::FromReader::from(FromReader::Answer(answer))).is_err();
    let found = Match { place: place(), column: 1, text: Vec::new(), cut_before: 0, cut_after: 0 };
    let page = |found: &Match, count| Answer::Found(Found { matches: vec![found.clone(); count], ..Found::default() });
    assert!(!refused(page(&found, MAX_MATCHES)) && refused(page(&found, MAX_MATCHES + 1)));
    assert!(refused(page(&Match { text: vec![0; MAX_MATCH_BYTES + 1], ..found }, 1)));
    let whole = |size, mode| {
        let image = Image { content: vec![0; size], mode };
        Answer::Whole(Whole { image, device: 0, inode: 0, links: 1 })
    };
    assert!(refused(whole(MAX_FILE_BYTES + 1, 0)) && refused(whole(0, 0o1000)));
    let detail = "d".repeat(MAX_DETAIL_BYTES + 1);
    assert!(refused(Answer::Refused(NotRead { why: Refused::Pattern, detail })));
    let mut wire = wire::FromReader::from(FromReader::Answer(answers().remove(0)));
    if let Some(wire::from_reader::Message::Listed(listed)) = &mut wire.message {
        listed.entries[0].kind = "socket".into();
    }
    assert!(FromReader::try_from(wire).is_err());
}
