//! What a script may say, what it may not, and what its expectations mean.

use serde_json::json;

use super::*;

fn parse(value: &Value) -> Result<Script, String> {
    Script::parse(value.to_string().as_bytes()).map_err(|e| e.to_string())
}

fn command(text: &str) -> Value {
    json!({"tool": "salaam_local", "arguments": {"action": "command", "command": text}})
}

#[test]
fn the_documented_example_is_a_script() {
    let script = Script::parse(
        br#"{"turns":[{"text":"I look first.","calls":[{"tool":"salaam_local","arguments":{"action":"command","command":"ls"}}]},
              {"expect":[{"call":0,"outcome":"completed","exit_code":0,"contains":"README"}],"text":"Done."}]}"#,
    )
    .unwrap();
    assert_eq!(script.turns.len(), 2);
    assert_eq!(script.turns[1].expect[0].outcome, Some(State::Completed));
    let turn = script.turns[0].proposed(0, |_, _| None).unwrap();
    assert_eq!(turn.calls[0].arguments, r#"{"action":"command","command":"ls"}"#);
    assert_eq!((turn.number, turn.text.as_str(), turn.awaits), (0, "I look first.", false));
}

#[test]
fn what_is_not_exactly_of_the_form_is_refused() {
    let cases = [
        (json!({"turns": []}), "the script has no turns"),
        (json!({"turns": [{"call": []}]}), "the script is not of its form: unknown field `call`"),
        (json!({"turns": [{}], "x": 1}), "the script is not of its form: unknown field `x`"),
        (json!({"turns": [{"await": "approval"}]}), "turn 0: `await` must be \"message\""),
        (json!({"turns": [{"await": true}]}), "the script is not of its form: invalid type"),
        (json!({"turns": [{"calls": [{"tool": "t"}]}]}), "the script is not of its form: missing field `arguments`"),
        (
            json!({"turns": [{"calls": [{"tool": "t", "arguments": []}]}]}),
            "the script is not of its form: invalid type",
        ),
        (json!({"turns": [{"expect": [{"call": 0, "exit_code": 0}]}]}), "turn 0: it expects something of call 0"),
        (
            json!({"turns": [{"calls": [command("a")]}, {"expect": [{"call": 1, "exit_code": 0}]}]}),
            "turn 1: it expects something of call 1",
        ),
        (json!({"turns": [{"calls": [command("a")]}, {"expect": [{"call": 0}]}]}), "turn 1: an expectation needs"),
        (
            json!({"turns": [{"calls": [command("a")]}, {"expect": [{"call": 0, "outcome": "done"}]}]}),
            "turn 1: expect: `done` is not one of",
        ),
        (
            json!({"turns": [{"calls": [command("a")]}, {"expect": [{"call": -1, "exit_code": 0}]}]}),
            "the script is not of its form",
        ),
    ];
    for (script, said) in cases {
        let found = parse(&script).unwrap_err();
        assert!(found.starts_with(said), "{found}");
    }
    assert!(Script::parse(b"{\"turns\":[{}],\"turns\":[{}]}").is_err(), "a key twice");
    for array in ["[[{}]]", r#"{"turns":[[]]}"#, r#"{"turns":[{"calls":[["t",{}]]}]}"#] {
        assert!(Script::parse(array.as_bytes()).is_err(), "{array}");
    }
    assert!(Script::parse(b"").is_err() && Script::parse(b"\xff").is_err() && Script::parse(b"null").is_err());
    let hostile = parse(&json!({"\u{1b}[2J": 1})).unwrap_err();
    assert!(hostile.contains("\\e[2J") && !hostile.contains('\u{1b}'), "{hostile}");
}

#[test]
fn a_reference_names_an_earlier_call_and_becomes_its_id() {
    let undo = |place: &str| json!({"tool": "salaam_local", "arguments": {"action": "undo", "operation": place, "deep": [{"x": place}]}});
    let script =
        |place: &str| json!({"turns": [{"calls": [command("a"), command("b")]}, {}, {"calls": [undo(place)]}]});
    let good = parse(&script("$op:0.1")).unwrap();
    let id = OperationId::new(1, [7; 10]);
    let known = |turn, call| (turn == 0 && call == 1).then_some(id);
    assert_eq!(
        good.turns[2].proposed(2, known).unwrap().calls[0].arguments,
        format!(r#"{{"action":"undo","deep":[{{"x":"{id}"}}],"operation":"{id}"}}"#)
    );
    let said = good.turns[2].proposed(2, |_, _| None).unwrap_err();
    assert_eq!(said, Mismatch::NoOperation { turn: 0, call: 1 });
    assert_eq!(said.to_string(), "`$op:0.1` has no operation: that call was refused before it became one");
    for bad in [
        "$op:",
        "$op:0",
        "$op:0.2",
        "$op:1.0",
        "$op:2.0",
        "$op:3.0",
        "$op:-0.1",
        "$op:00.1",
        "$op:0.1 ",
        "$op:0.1.1",
        "$op:+0.1",
    ] {
        let said = parse(&script(bad)).unwrap_err();
        assert_eq!(said, format!("turn 2: `{bad}` names no call of an earlier turn"));
    }
    // Only a whole string is a reference, and only a value.
    for plain in [" $op:0.1", "op:0.1", "$operation", "x$op:9.9"] {
        assert!(parse(&script(plain)).is_ok(), "{plain}");
    }
}

#[test]
fn expectations_hold_or_say_what_differs() {
    let answer = Answer {
        exit_code: Some(3),
        stdout: "out".into(),
        stderr: "err".into(),
        comment: Some("said".into()),
        ..Answer::new(State::Completed)
    };
    let expect = |outcome: Option<State>, exit_code: Option<i32>, contains: Option<&str>| {
        let expect = Expect { call: 0, outcome, exit_code, contains: contains.map(Into::into) };
        check(&[expect], std::slice::from_ref(&answer)).map_err(|e| e.to_string())
    };
    for text in ["out", "err", "said", ""] {
        assert_eq!(expect(Some(State::Completed), Some(3), Some(text)), Ok(()));
    }
    assert_eq!(
        expect(Some(State::Denied), None, None),
        Err("call 0: expected the outcome denied, found completed".into())
    );
    assert_eq!(expect(None, Some(0), None), Err("call 0: expected the exit code 0, found 3".into()));
    assert_eq!(
        expect(None, None, Some("\u{1b}]8;;")),
        Err("call 0: `\\e]8;;` is neither in stdout nor in stderr nor in the comment".into())
    );
    let denied = Answer::new(State::Denied);
    let code = Expect { call: 0, outcome: None, exit_code: Some(0), contains: None };
    assert_eq!(
        check(std::slice::from_ref(&code), &[denied]).unwrap_err().to_string(),
        "call 0: expected the exit code 0, found none"
    );
    assert_eq!(check(&[code], &[]), Err(Mismatch::NoAnswer { call: 0 }));
}

#[test]
fn one_more_than_each_bound_is_refused() {
    let turns = |n: usize| format!("{{\"turns\":[{}]}}", vec!["{}"; n].join(","));
    assert_eq!(Script::parse(turns(MAX_TURNS + 1).as_bytes()), Err(ScriptError::TooManyTurns(MAX_TURNS + 1)));
    assert_eq!(Script::parse(turns(MAX_TURNS).as_bytes()).unwrap().turns.len(), MAX_TURNS);
    let long = vec![b' '; MAX_SCRIPT_BYTES + 1];
    assert_eq!(Script::parse(&long), Err(ScriptError::TooLong(MAX_SCRIPT_BYTES + 1)));
    let fault = |turn: Value| parse(&json!({"turns": [turn]})).unwrap_err();
    assert!(fault(json!({"calls": vec![command("a"); MAX_CALLS + 1]})).contains("33 calls"));
    assert!(fault(json!({"text": "a".repeat(MAX_TEXT_BYTES + 1)})).contains("its text may have"));
    assert!(fault(json!({"calls": [command(&"a".repeat(MAX_ARGUMENTS_BYTES))]})).contains("call 0: a tool's name"));
    let tool = json!({"tool": "t".repeat(MAX_TOOL_BYTES + 1), "arguments": {}});
    assert!(fault(json!({"calls": [tool]})).contains("call 0: a tool's name"));
    assert!(
        fault(json!({"calls": vec![command(&"a".repeat(MAX_ARGUMENTS_BYTES - 100)); 3]})).contains("its text may have")
    );
    let many = vec![json!({"call": 0, "exit_code": 0}); MAX_EXPECT + 1];
    let script = json!({"turns": [{"calls": [command("a")]}, {"expect": many}]});
    assert!(parse(&script).unwrap_err().contains("expectations"));
    let deep = format!(
        "{{\"turns\":[{{\"calls\":[{{\"tool\":\"t\",\"arguments\":{{\"a\":{}}}}}]}}]}}",
        "[".repeat(200) + &"]".repeat(200)
    );
    assert!(Script::parse(deep.as_bytes()).is_err(), "nesting has a limit");
    let ids = json!({"calls": [{"tool": "t", "arguments": {"a": vec!["$op:0.0"; 80_000]}}]});
    let script = json!({"turns": [{"calls": [command("a")]}, ids]});
    assert!(parse(&script).unwrap_err().contains("its arguments"), "ids are longer than references");
}

#[test]
fn the_example_in_the_documentation_is_a_script_of_real_calls() {
    let document = include_str!("../../../docs/script-format.md");
    let example = document.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let script = Script::parse(example.as_bytes()).unwrap();
    let id = |_, _| Some(OperationId::new(1, [7; 10]));
    for (number, turn) in script.turns.iter().enumerate() {
        for call in turn.proposed(number as u64, id).unwrap().calls {
            assert!(crate::tool::parse(&call.tool, &call.arguments).is_ok(), "{call:?}");
        }
    }
    assert_eq!(script.turns.len(), 5);
}
