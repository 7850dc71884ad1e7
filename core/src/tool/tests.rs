//! Every call of the inventory, everything that is not one, and answers that fit.

use super::*;
use crate::{command::Command, edit::Change, id::OperationId, operation::State, reader::Place};

fn workspace(arguments: &str) -> Result<Call, String> {
    parse("salaam_workspace", arguments).map_err(|e| e.to_string())
}

fn local(arguments: &str) -> Result<Call, String> {
    parse("salaam_local", arguments).map_err(|e| e.to_string())
}

fn edit(edits: &str) -> Result<Vec<Change>, String> {
    match local(&format!("{{\"action\":\"edit\",\"edits\":[{edits}]}}"))? {
        Call::Edit { edits } => Ok(edits),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_call_of_the_inventory_is_read() {
    let list = |path: &[u8], after: Option<&[u8]>| Call::List { path: path.into(), after: after.map(Into::into) };
    for (given, call) in [
        (r#"{"action":"list","path":"src"}"#, list(b"src", None)),
        (r#"{"action":"list"}"#, list(b"", None)),
        (r#"{"action":"list","path":".","after":"a.rs"}"#, list(b"", Some(b"a.rs"))),
        (r#"{"action":"list","path":{"base64":"/w=="},"after":null}"#, list(b"\xff", None)),
        (
            r#"{"action":"read","path":"a.rs"}"#,
            Call::Read { path: b"a.rs".to_vec(), from_line: 1, lines: DEFAULT_LINES },
        ),
        (
            r#"{"lines":200,"from_line":7,"path":"a.rs","action":"read"}"#,
            Call::Read { path: b"a.rs".to_vec(), from_line: 7, lines: 200 },
        ),
        (
            r#"{"action":"search","pattern":"re","path":"."}"#,
            Call::Search { pattern: "re".into(), path: Vec::new(), after: None },
        ),
        (
            r#"{"action":"search","pattern":"re","after":{"path":"b","line":3}}"#,
            Call::Search {
                pattern: "re".into(),
                path: Vec::new(),
                after: Some(Place { path: b"b".to_vec(), line: 3 }),
            },
        ),
    ] {
        assert_eq!(workspace(given), Ok(call), "{given}");
    }
    let operation = OperationId::new(1, [7; 10]);
    let command = |text: &str, timeout_seconds| Call::Command { command: Command::Shell(text.into()), timeout_seconds };
    for (given, call) in [
        (
            r#"{"action":"command","command":"cargo test","timeout_seconds":600}"#.to_owned(),
            command("cargo test", Some(600)),
        ),
        (r#"{"action":"command","command":"ls\n"}"#.to_owned(), command("ls\n", None)),
        (format!(r#"{{"action":"undo","operation":"{operation}"}}"#), Call::Undo { operation }),
    ] {
        assert_eq!(local(&given), Ok(call), "{given}");
    }
    let path = |text: &str| text.as_bytes().to_vec();
    assert_eq!(
        edit(
            r#"{"path":"a.rs","old":"x","new":"y","all":true}, {"path":"b","create":"t"}, {"path":"b.bin","create_base64":"AP8="},
               {"path":"c.rs","delete":true}, {"path":"d","rename":"e"}, {"path":"f","mode":"0755"}, {"path":"g","mode":"644"}"#
        ),
        Ok(vec![
            Change::Replace { path: path("a.rs"), old: path("x"), new: path("y"), all: true },
            Change::Create { path: path("b"), content: path("t") },
            Change::Create { path: path("b.bin"), content: vec![0, 255] },
            Change::Delete { path: path("c.rs") },
            Change::Rename { path: path("d"), to: path("e") },
            Change::Mode { path: path("f"), mode: 0o755 },
            Change::Mode { path: path("g"), mode: 0o644 },
        ])
    );
}

#[test]
fn what_is_not_exactly_a_call_is_refused() {
    for (given, said) in [
        ("", "EOF"),
        ("null", "invalid type"),
        ("[]", "invalid type"),
        (r#"["list","src"]"#, "invalid type"),
        ("{}", "missing field `action`"),
        (r#"{"action":"List"}"#, "unknown variant `List`"),
        (r#"{"action":"list","path":"a","x":1}"#, "unknown field `x`"),
        (r#"{"action":"list","path":"a","path":"b"}"#, "duplicate field `path`"),
        (r#"{"action":"list","action":"read","path":"a"}"#, "duplicate field `action`"),
        (r#"{"action":"list","path":7}"#, "a path is a string"),
        (r#"{"action":"list","path":{"base64":"!"}}"#, "a path is a string"),
        (r#"{"action":"list","path":"/etc"}"#, "must be relative"),
        (r#"{"action":"list","path":""}"#, "is empty"),
        (r#"{"action":"list","path":"a/.."}"#, "`..`"),
        (r#"{"action":"list","after":"../x"}"#, "`..`"),
        (r#"{"action":"read"}"#, "missing field `path`"),
        (r#"{"action":"read","path":"."}"#, "must not hold `.`"),
        (r#"{"action":"read","path":"a","from_line":0}"#, "`from_line` must be from 1"),
        (r#"{"action":"read","path":"a","from_line":-1}"#, "invalid value"),
        (r#"{"action":"read","path":"a","lines":1.5}"#, "invalid type"),
        (r#"{"action":"read","path":"a","lines":10001}"#, "`lines` must be from 1 to 10000"),
        (r#"{"action":"search","pattern":""}"#, "`pattern` must have"),
        (r#"{"action":"search","pattern":"a","after":{"path":"a","line":0}}"#, "`line` must be from 1"),
        (r#"{"action":"search","pattern":"a","after":{"path":"a","line":1,"x":2}}"#, "unknown field `x`"),
        (r#"{"action":"list"} {}"#, "trailing characters"),
        (r#"{"action":"search","pattern":"\ud800"}"#, "hex escape"),
    ] {
        let found = workspace(given).unwrap_err();
        assert!(found.contains(said), "{given}: {found}");
    }
    for (given, said) in [
        (r#"{"action":"command","command":""}"#, "an empty command"),
        (r#"{"action":"command","command":" \n"}"#, "an empty command"),
        (r#"{"action":"command","command":"a\u0000b"}"#, "NUL"),
        (r#"{"action":"command","command":["ls"]}"#, "invalid type"),
        (r#"{"action":"command","command":"ls","timeout_seconds":0}"#, "`timeout_seconds` must be from 1 to 604800"),
        (
            r#"{"action":"command","command":"ls","timeout_seconds":604801}"#,
            "`timeout_seconds` must be from 1 to 604800",
        ),
        (r#"{"action":"command","command":"ls","grant":true}"#, "unknown field `grant`"),
        (r#"{"action":"command","command":"ls","stdin":"x"}"#, "unknown field `stdin`"),
        (r#"{"action":"command","command":"ls","profile":"full-access"}"#, "unknown field `profile`"),
        (r#"{"action":"edit","edits":[]}"#, "the edit has no changes"),
        (r#"{"action":"edit"}"#, "missing field `edits`"),
        (r#"{"action":"undo","operation":"op_1"}"#, "not an id"),
        (r#"{"action":"undo"}"#, "missing field `operation`"),
        (r#"{"action":"list"}"#, "unknown variant `list`"),
    ] {
        let found = local(given).unwrap_err();
        assert!(found.contains(said), "{given}: {found}");
    }
    for (given, said) in [
        (r#"{"path":"a"}"#, "edit 0: it needs `path` and one of"),
        (r#"{"old":"a","new":"b"}"#, "missing field `path`"),
        (r#"{"path":"a","old":"x"}"#, "it needs"),
        (r#"{"path":"a","new":"x"}"#, "it needs"),
        (r#"{"path":"a","create":"x","all":true}"#, "it needs"),
        (r#"{"path":"a","create":"x","create_base64":"eA=="}"#, "it needs"),
        (r#"{"path":"a","delete":false}"#, "it needs"),
        (r#"{"path":"a","delete":true,"rename":"b"}"#, "it needs"),
        (r#"{"path":"a","create_base64":"?"}"#, "not base64"),
        (r#"{"path":"a","mode":"755 "}"#, "four octal digits"),
        (r#"{"path":"a","mode":"0o755"}"#, "four octal digits"),
        (r#"{"path":"a","mode":"00755"}"#, "four octal digits"),
        (r#"{"path":"a","mode":"4755"}"#, "the mode 4755 is refused"),
        (r#"{"path":"a","mode":493}"#, "invalid type"),
        (r#"["a","x","y"]"#, "invalid type"),
        (r#"{"path":"a","write":"x"}"#, "unknown field `write`"),
        (r#"{"path":"../a","delete":true}"#, "`..`"),
        (r#"{"path":"a","rename":"/b"}"#, "relative"),
        (r#"{"path":"a","old":"","new":"b"}"#, "the text to replace is empty"),
        (r#"{"path":"a","old":"b","new":"b"}"#, "no change"),
        (r#"{"path":"a","delete":true},{"path":"a"}"#, "edit 1: it needs"),
    ] {
        let found = edit(given).unwrap_err();
        assert!(found.contains(said), "{given}: {found}");
    }
    assert_eq!(
        parse("bash", "{}").unwrap_err().to_string(),
        "there is no tool `bash`; the tools are salaam_workspace and salaam_local"
    );
}

#[test]
fn an_error_quotes_no_more_than_a_short_visible_excerpt() {
    let long = format!("\u{1b}]52;c;{}\u{202e}", "a".repeat(1 << 20));
    let key = format!("{{\"action\":\"list\",\"{}\":1}}", "b".repeat(1 << 20));
    let deep = format!("{{\"action\":\"list\",\"path\":{}", "[".repeat(1 << 20));
    let escapes = format!("{{\"action\":\"list\",\"{}\":1}}", "\u{200b}".repeat(1000));
    let value = format!("{{\"action\":\"list\",\"path\":\"{}\"}}", "../".repeat(100_000));
    for (tool, arguments) in [
        (long.as_str(), "{}"),
        ("salaam_workspace", &key),
        ("salaam_workspace", &deep),
        ("salaam_workspace", &escapes),
        ("salaam_workspace", &value),
    ] {
        let said = parse(tool, arguments).unwrap_err().to_string();
        assert!(said.len() < 1000 && !said.chars().any(crate::show::is_hidden), "{said}");
    }
    assert!(matches!(parse("salaam_local", &" ".repeat(MAX_ARGUMENTS_BYTES + 1)), Err(ToolError::TooLong(_))));
}

#[test]
fn the_answer_has_its_documented_form() {
    let mut answer = Answer::new(State::Completed);
    answer.exit_code = Some(0);
    answer.stdout = "hi\n".into();
    answer.operation = Some(OperationId::new(1, [7; 10]));
    assert_eq!(
        answer.to_json(),
        r#"{"comment":null,"exit_code":0,"operation":"op_00000000000177078707070707070707","outcome":"completed","signal":null,"stderr":"","stdout":"hi\n","truncated":false}"#
    );
    assert_eq!(answer.clone().cut(), answer);
}

#[test]
fn every_answer_fits_is_cut_between_characters_and_keeps_both_ends() {
    let texts = [
        "",
        "short",
        &"a".repeat(40_000),
        &"\u{e9}".repeat(40_000),
        &"\u{1}".repeat(40_000),
        &"\n".repeat(9_000),
        &format!("begin{}end", "\u{1f600}\"".repeat(50_000)),
    ];
    for stdout in texts {
        for stderr in texts {
            for comment in [texts[0], texts[2], texts[4]] {
                let answer = Answer {
                    stdout: stdout.into(),
                    stderr: stderr.into(),
                    comment: Some(comment.into()),
                    operation: Some(OperationId::new(1, [7; 10])),
                    exit_code: Some(i32::MIN),
                    signal: Some(i32::MIN),
                    ..Answer::new(State::Completed)
                };
                let json = answer.to_json();
                assert!(json.len() <= MAX_ANSWER_BYTES, "{}", json.len());
                let cut = answer.clone().cut();
                assert_eq!(json, cut.to_json());
                assert_eq!(cut.clone().cut(), cut, "cutting twice is cutting once");
                assert_eq!(cut.truncated, cut != answer);
                for (cut, whole) in [(&cut.stdout, stdout), (&cut.stderr, stderr)] {
                    let (head, tail) = match cut.find("\n[") {
                        Some(at) if cut.as_str() != whole => (&cut[..at], &cut[cut.find("here]\n").unwrap() + 6..]),
                        Some(_) | None => (cut.as_str(), ""),
                    };
                    assert!(whole.starts_with(head) && whole.ends_with(tail));
                }
                if stdout.len() + stderr.len() > MAX_ANSWER_BYTES {
                    assert!(json.len() > MAX_ANSWER_BYTES / 4, "no more is left out than must be: {}", json.len());
                }
            }
        }
    }
    let answer = Answer { stdout: "x".repeat(100_000), stderr: "the error".into(), ..Answer::new(State::Failed) };
    let cut = answer.cut();
    assert_eq!(cut.stderr, "the error", "a short stream loses nothing to a long one");
    assert!(cut.stdout.contains("bytes are left out here]") && cut.stdout.len() > 30_000);
}
