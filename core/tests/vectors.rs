//! The canonical form against golden vectors, which were made by another implementation (Python's `json`): what
//! Salaam hashes, anyone can hash.

use std::{io::Write as _, path::Path, process::Command};

use salaam_core::{
    canon,
    digest::Digest,
    event::{Draft, Event, Head},
};
use serde_json::Value;

const VECTORS: &str = include_str!("vectors.jsonl");

fn vectors(key: &'static str) -> impl Iterator<Item = Value> {
    let parsed = VECTORS.lines().filter_map(|line| serde_json::from_str(line).ok());
    parsed.filter(move |vector: &Value| vector.get(key).is_some())
}

fn text<'a>(vector: &'a Value, key: &str) -> &'a str {
    vector.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn every_vector_is_read() {
    let kinds = ["canonical", "refused", "event"];
    let read: usize = kinds.iter().map(|kind| vectors(kind).count()).sum();
    assert_eq!((read, VECTORS.lines().count()), (53, 53));
}

#[test]
fn values_have_the_golden_form_and_digest() {
    for vector in vectors("sha256") {
        let value: Value = serde_json::from_str(text(&vector, "text")).unwrap();
        let form = canon::to_vec(&value).unwrap();
        assert_eq!(String::from_utf8(form.clone()).unwrap(), text(&vector, "canonical"), "{}", vector["name"]);
        assert_eq!(Digest::of(&form).to_string(), text(&vector, "sha256"), "{}", vector["name"]);
        assert_eq!(canon::digest(&value).unwrap(), Digest::of(&form));
    }
}

#[test]
fn what_canonicalizers_disagree_on_is_refused() {
    for vector in vectors("refused") {
        let value: Value = serde_json::from_str(text(&vector, "text")).unwrap();
        assert!(canon::to_vec(&value).is_err(), "{}", vector["name"]);
    }
}

#[test]
fn wide_integers_and_raw_bytes_have_the_golden_form() {
    for vector in vectors("wide") {
        let form = canon::to_vec(&canon::wide(text(&vector, "wide").parse().unwrap())).unwrap();
        assert_eq!(form, text(&vector, "canonical").as_bytes(), "{}", vector["name"]);
    }
    for vector in vectors("bytes") {
        let hex = text(&vector, "bytes").as_bytes();
        let bytes: Vec<u8> =
            hex.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
        let value = canon::bytes(&bytes);
        assert_eq!(canon::to_vec(&value).unwrap(), text(&vector, "canonical").as_bytes(), "{}", vector["name"]);
        assert_eq!(canon::to_bytes(&value), Some(bytes));
    }
}

#[test]
fn the_golden_chain_verifies_and_is_sealed_the_same_again() {
    let mut head = Head::START;
    for vector in vectors("event") {
        let line = text(&vector, "event");
        let (next, event) = head.follow(line.as_bytes()).unwrap();
        let draft = Draft::new(event.kind, event.session, Value::Object(event.data.clone())).unwrap();
        let sealed = Event::seal(draft, head, event.time).unwrap();
        assert_eq!(String::from_utf8(sealed.to_line().unwrap()).unwrap(), line);
        head = next;
    }
    assert_eq!(head.seq, 11);
}

#[test]
fn python_agrees_on_every_value() {
    const SCRIPT: &str = r#"
import hashlib, json, sys
form = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
checked = 0
for vector in map(json.loads, open(sys.argv[1], encoding="utf-8")):
    if "sha256" in vector:
        assert form(json.loads(vector["text"])) == vector["canonical"], vector["name"]
        assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["sha256"], vector["name"]
        checked += 1
print(checked)
"#;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors.jsonl");
    let output = Command::new("python3").args(["-c", SCRIPT]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), vectors("sha256").count().to_string());
}

#[test]
fn the_ten_line_script_agrees_on_the_chain_and_names_the_first_bad_event() {
    let whole: Vec<String> = vectors("event").map(|vector| text(&vector, "event").to_owned()).collect();
    let (good, said) = run_script(&whole);
    assert!(good && said.starts_with("11 events"), "{said}");
    let damage = |at: usize, change: fn(&str) -> String| {
        let mut lines = whole.clone();
        lines[at - 1] = change(&whole[at - 1]);
        lines
    };
    let without = |at: usize| whole.iter().enumerate().filter(|(i, _)| i + 1 != at).map(|(_, l)| l.clone()).collect();
    let cases: Vec<(usize, Vec<String>)> = vec![
        (7, damage(7, |line| line.replace("printf", "printg"))),
        (5, damage(5, |line| line.replace("\"tool_uid\":997", "\"tool_uid\":997.0"))),
        (6, damage(6, |line| line.replace(":", ": "))),
        (3, damage(3, |line| line[..40].to_owned())),
        (2, damage(2, |_| String::new())),
        (4, damage(4, |line| line.replace("\"seq\":4", "\"seq\":5"))),
        (8, without(8)),
        (1, without(1)),
        (10, whole.iter().enumerate().map(|(i, line)| if i == 9 { whole[0].clone() } else { line.clone() }).collect()),
    ];
    for (at, lines) in cases {
        let (good, said) = run_script(&lines);
        assert!(!good && said.contains(&format!("event {at} ")), "{at}: {said}");
        let ours = lines.iter().try_fold(Head::START, |head, line| head.follow(line.as_bytes()).map(|(head, _)| head));
        assert!(ours.unwrap_err().to_string().contains(&format!("event {at} ")));
    }
}

/// Whether `tests/verify_export.py` accepts these lines, and what it says.
fn run_script(lines: &[String]) -> (bool, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = std::env::temp_dir().join(format!("salaam-vectors-{}.jsonl", std::process::id()));
    let written =
        std::fs::File::create(&path).and_then(|mut file| lines.iter().try_for_each(|line| writeln!(file, "{line}")));
    let output = Command::new("python3").arg(root.join("tests/verify_export.py")).arg(&path).output();
    let _gone = std::fs::remove_file(&path);
    match (written, output) {
        (Ok(()), Ok(output)) => {
            let said = [output.stdout, output.stderr].concat();
            (output.status.code() == Some(0), String::from_utf8_lossy(&said).into_owned())
        }
        (written, output) => (false, format!("{written:?} {output:?}")),
    }
}
