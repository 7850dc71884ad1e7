//! What a request may say, and what is answered to the rest.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

const WORKSPACE: &str = "ws_00000000000070008000000000000000";

#[test]
fn garbage_is_answered_in_json() {
    let stage = Stage::new();
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n"[..],
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/who HTTP/9.9\r\n\r\n",
        b"GET /v1/who HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/operations HTTP/1.1\r\nhost: s\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/operations HTTP/1.1\r\nhost: s\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcde",
    ] {
        let answer = stage.say(garbage);
        assert_eq!(answer.0, 400, "{}", garbage.escape_ascii());
        let (status, id, _) = error_of(&answer);
        assert_eq!((status, id), (400, "bad-request"), "{}", garbage.escape_ascii());
        stage.is_well();
    }
}

/// An HTTP/1.1 answer would be garbage to that client.
#[test]
fn http_2_is_closed_without_an_answer() {
    let stage = Stage::new();
    assert_eq!(stage.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (0, Value::Null));
    stage.is_well();
}

#[test]
fn unknown_paths_methods_and_types_are_named() {
    let stage = Stage::new();
    for (method, path, content_type, body, expected) in [
        ("GET", "/", "", "", (404, "not-found", "there is nothing at /")),
        ("GET", "/v2/who", "", "", (404, "not-found", "there is nothing at /v2/who")),
        ("GET", "/v1/who/", "", "", (404, "not-found", "there is nothing at /v1/who/")),
        ("GET", "/v1/../v1/who", "", "", (404, "not-found", "there is nothing at /v1/../v1/who")),
        ("PUT", "/v1/who", "", "", (405, "method-not-allowed", "/v1/who does not take PUT")),
        ("BREW", "/v1/operations", "", "", (405, "method-not-allowed", "/v1/operations does not take BREW")),
        (
            "POST",
            "/v1/operations",
            "text/plain",
            "{}",
            (415, "unsupported-media-type", "the body is declared as `text/plain`; only application/json is taken"),
        ),
        (
            "POST",
            "/v1/operations",
            "application/x-www-form-urlencoded",
            "a=b",
            (
                415,
                "unsupported-media-type",
                "the body is declared as `application/x-www-form-urlencoded`; only application/json is taken",
            ),
        ),
    ] {
        let answer = stage.ask(method, path, content_type, body.as_bytes());
        assert_eq!(error_of(&answer), expected);
    }
}

#[test]
fn a_method_that_is_not_taken_names_those_that_are() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    stream.write_all(b"DELETE /v1/who HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("allow: GET,HEAD"), "{text}");
}

#[test]
fn a_proposal_is_understood() {
    let stage = Stage::new();
    let words = json!(["printf", {"base64": STANDARD.encode(b"caf\xe9")}, "a b"]);
    for (extra, expected) in [
        (json!({"argv": words}), json!({"command": "printf '\\xe9 a b'", "stdin": null})),
        (json!({"command": "ls | wc"}), json!({"command": "ls | wc", "stdin": null})),
        (
            json!({"argv": ["true"], "stdin_base64": "AAEC", "profile": "read-only", "timeout_seconds": 5,
                   "grant": true, "detach": true, "request_id": "r-1", "follow": true}),
            json!({"command": "true", "stdin": 3}),
        ),
    ] {
        let (status, body) = stage.post("/v1/operations", &proposal(&extra));
        assert_eq!(status, 200, "{body}");
        if extra["argv"] == words {
            assert_eq!(body["command"], json!("printf 'caf\\xe9' 'a b'"));
        } else {
            assert_eq!(body, expected);
        }
    }
}

#[test]
fn what_is_wrong_with_a_proposal_is_said_with_its_field() {
    let stage = Stage::new();
    for (extra, said) in [
        (json!({}), "exactly one of `argv`, `command`, `edits` and `undo` is needed"),
        (json!({"argv": ["a"], "command": "a"}), "exactly one of"),
        (json!({"argv": ["a"], "edits": []}), "exactly one of"),
        (json!({"edits": [], "undo": "op_00000000000070008000000000000000"}), "exactly one of"),
        (json!({"edits": []}), "edits: "),
        (json!({"edits": "a"}), "edits: "),
        (json!({"edits": [{"path": "a", "delete": true, "sudo": true}]}), "edits: "),
        (json!({"edits": [{"path": "../a", "delete": true}]}), "edits: "),
        (json!({"edits": [{"path": "a", "create": "x".repeat(3 << 20)}]}), "edits: "),
        (json!({"edits": [{"path": "a", "delete": true}], "stdin_base64": ""}), "are for commands only"),
        (json!({"undo": "op_00000000000070008000000000000000", "timeout_seconds": 5}), "are for commands only"),
        (json!({"undo": "last"}), "undo"),
        (json!({"argv": ["a"], "approved": true}), "unknown field `approved`"),
        (json!({"argv": []}), "an empty command cannot be approved"),
        (json!({"argv": [""]}), "an empty command cannot be approved"),
        (json!({"command": " \n"}), "an empty command cannot be approved"),
        (json!({"argv": ["a\u{0}b"]}), "argument 0 holds a NUL byte"),
        (json!({"argv": "ls"}), "argv: invalid type"),
        (json!({"argv": ["a", 7]}), "argv[1]: invalid type"),
        (json!({"argv": [{"base64": "AA==", "more": 1}]}), "argv[0]"),
        (json!({"argv": [{"hex": "00"}]}), "unknown field `hex`"),
        (json!({"argv": [{"base64": "@"}]}), "not base64"),
        (json!({"argv": ["x".repeat(128 * 1024)]}), "argument 0 has 131072 bytes"),
        (json!({"argv": vec!["x"; 65_537]}), "more than 65536 arguments"),
        (json!({"command": "x".repeat((1 << 20) + 1)}), "the command text has 1048577 bytes"),
        (json!({"argv": ["a"], "timeout_seconds": -1}), "timeout_seconds"),
        (json!({"argv": ["a"], "timeout_seconds": 0}), "timeout_seconds: must be at least 1"),
        (json!({"argv": ["a"], "timeout_seconds": 1.5}), "timeout_seconds"),
        (json!({"argv": ["a"], "profile": "Read-Only"}), "profile"),
        (json!({"argv": ["a"], "grant": "yes"}), "grant"),
        (json!({"argv": ["a"], "request_id": ""}), "request_id"),
        (json!({"argv": ["a"], "request_id": "a b"}), "request_id"),
        (json!({"argv": ["a"], "request_id": "r".repeat(129)}), "request_id"),
        (json!({"argv": ["a"], "workspace": "../ws"}), "workspace"),
        (json!({"argv": ["a"], "stdin_base64": "not base64"}), "stdin_base64"),
    ] {
        let answer = stage.post("/v1/operations", &proposal(&extra));
        let (status, id, message) = error_of(&answer);
        assert_eq!((status, id), (400, "bad-request"), "{message}");
        assert!(message.contains(said), "`{message}` does not say `{said}`");
    }
}

#[test]
fn edits_and_undos_are_taken_in_the_form_that_a_model_writes() {
    let stage = Stage::new();
    let edits = json!([{"path": "a", "old": "x", "new": "y"}, {"path": "b", "create_base64": "/w=="}]);
    let (status, said) = stage.post("/v1/operations", &proposal(&json!({ "edits": edits })));
    assert_eq!(status, 200, "{said}");
    let said = said["edits"].as_str().unwrap();
    assert!(said.contains("\"replace\"") && said.contains("\"create\"") && said.contains("\"bytes\":1"), "{said}");
    let id = "op_00000000000070008000000000000000";
    assert_eq!(stage.post("/v1/operations", &proposal(&json!({ "undo": id }))), (200, json!({ "undo": id })));
}

#[test]
fn json_that_is_none_or_too_deep_is_refused() {
    let stage = Stage::new();
    let deep_edits =
        format!("{{\"workspace\":\"{WORKSPACE}\",\"edits\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!("{{\"argv\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_unknown = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{}{}",
        "{\"argv\":[\"a\"],\"argv\":[\"b\"]}",
        "\u{feff}{}",
        &deep,
        &deep_unknown,
        &deep_edits,
    ] {
        let answer = stage.ask("POST", "/v1/operations", "application/json; charset=utf-8", body.as_bytes());
        assert_eq!(error_of(&answer).0, 400, "{}", &body[..body.len().min(40)]);
    }
    let answer = stage.ask("POST", "/v1/operations", "application/json", b"{\"argv\":[\"\xff\"]}");
    assert_eq!(error_of(&answer).0, 400);
    stage.is_well();
}

#[test]
fn a_quoted_mistake_is_bounded_and_shows_its_escapes() {
    let stage = Stage::new();
    let name = format!("\u{1b}[2J\u{202e}{}", "x".repeat(100_000));
    let answer = stage.post("/v1/operations", &proposal(&json!({ name: 1 })));
    let (_, _, message) = error_of(&answer);
    assert!(message.contains("\\e[2J\\u{202e}xxx") && message.chars().count() <= 512, "{message}");
}

#[test]
fn a_body_that_may_be_left_out_is_checked_when_it_is_there() {
    let stage = Stage::new();
    assert_eq!(stage.ask("POST", "/v1/deny", "", b"").0, 200);
    assert_eq!(stage.post("/v1/deny", &json!({"comment": "no"})).0, 200);
    let answer = stage.post("/v1/deny", &json!({"comment": "no", "binding": "x"}));
    assert!(error_of(&answer).2.contains("unknown field `binding`"));
    assert_eq!(error_of(&stage.ask("POST", "/v1/deny", "text/plain", b"no")).0, 415);
}

#[test]
fn ids_and_queries_are_taken_exactly_or_refused_by_name() {
    let stage = Stage::new();
    let good = "/v1/asked/op_00000000000070008000000000000000";
    for query in ["", "?", "?after=7&kind=operation.result&session=ses_00000000000070008000000000000000&follow=true"] {
        assert_eq!(stage.ask("GET", &format!("{good}{query}"), "", b"").0, 200, "{query}");
    }
    for (path, said) in [
        ("/v1/asked/op_0".to_owned(), "`op_0` is not an id of the form op_"),
        ("/v1/asked/OP_00000000000070008000000000000000".to_owned(), "is not an id"),
        ("/v1/asked/op_00000000000070008000000000000000%00".to_owned(), "is not an id"),
        ("/v1/asked/op_%ff".to_owned(), "UTF-8"),
        (format!("{good}?since=7"), "unknown field `since`"),
        (format!("{good}?after=-1"), "after"),
        (format!("{good}?after=1&after=2"), "duplicate field `after`"),
        (format!("{good}?kind=operation.*"), "`operation.*` is not one of"),
        (format!("{good}?follow=yes"), "follow"),
        (format!("{good}?session=ws_00000000000070008000000000000000"), "is not an id of the form ses_"),
    ] {
        let answer = stage.ask("GET", &path, "", b"");
        let (status, id, message) = error_of(&answer);
        assert_eq!((status, id), (400, "bad-request"), "{path}");
        assert!(message.contains(said), "{path}: `{message}` does not say `{said}`");
    }
}

fn proposal(extra: &Value) -> Value {
    let mut proposal = json!({ "workspace": WORKSPACE });
    let fields = proposal.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    proposal
}
