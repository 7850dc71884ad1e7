//! The service's side, in a process of the service account: its own adapter, and the installed reader behind it.
//! One JSON object a line is a question, one a line is its answer.

use std::{env, fs::File, io::BufRead as _, path::PathBuf};

use salaam_core::{
    id::WorkspaceId,
    reader::{Answer, Begin, Place, Request},
    show,
};
use salaam_service::readers::{Options, ReaderError, Readers};
use serde_json::{Value, json};

/// Does nothing unless a test started it: the test runner runs it as a test of its own.
pub(crate) fn main() {
    let Some(root) = env::var_os("DRIVER_ROOT") else { return };
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let options = Options {
        program: env::var_os("DRIVER_PROGRAM").map(PathBuf::from).expect("given"),
        build: env::var("DRIVER_BUILD").expect("given"),
        state_directory: env::var_os("DRIVER_STATE").map(PathBuf::from).expect("given"),
        account: Begin {
            uid: number(&env::var("DRIVER_UID").expect("given")),
            groups: env::var("DRIVER_GROUPS").expect("given").split(',').map(number).collect(),
        },
    };
    let root = File::open(root).expect("the service account opens its workspace");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let readers = Readers::new(options);
        let id = WorkspaceId::new(1, [1; 10]);
        for line in std::io::stdin().lock().lines() {
            let question: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
            let answer = match readers.ask(id, &root, request(&question)).await {
                Ok(answer) => shown(answer),
                Err(ReaderError::Refused(refused)) => {
                    json!({"refused": refused.why.as_str(), "detail": refused.detail})
                }
                Err(error) => json!({"error": error.id(), "message": error.to_string()}),
            };
            println!("@{answer}");
        }
        readers.stop().await;
    });
}

fn request(question: &Value) -> Request {
    let text = |key: &str| question[key].as_str().unwrap_or_default();
    let path = text("path").as_bytes().to_vec();
    let most = question["most"].as_u64().unwrap_or(500);
    let narrow = u32::try_from(most).expect("small");
    match text("do") {
        "list" => {
            let after = question["after"].as_str().map(|name| name.as_bytes().to_vec());
            Request::List { path, after, most: narrow }
        }
        "read" => Request::Read { path, from_line: question["from"].as_u64().unwrap_or(1), lines: most },
        "search" => {
            let place = |place: &Value| Place {
                path: place["path"].as_str().expect("a path").as_bytes().to_vec(),
                line: place["line"].as_u64().expect("a line"),
            };
            let after = question.get("after").filter(|after| !after.is_null()).map(place);
            Request::Search { pattern: text("pattern").into(), path, after, most: narrow }
        }
        "whole" => Request::Whole { path, most_bytes: question["most"].as_u64().unwrap_or(1 << 20) },
        other => panic!("{other}"),
    }
}

fn shown(answer: Answer) -> Value {
    let place = |place: Place| json!({"path": show::line(&place.path), "line": place.line});
    match answer {
        Answer::Listed(listed) => json!({
            "names": listed.entries.iter().map(|entry| show::line(&entry.name)).collect::<Vec<_>>(),
            "kinds": listed.entries.iter().map(|entry| entry.kind.as_str()).collect::<Vec<_>>(),
            "closed": listed.entries.iter().map(|entry| entry.closed).collect::<Vec<_>>(),
            "more": listed.more,
        }),
        Answer::Lines(lines) => {
            let text: Vec<u8> = lines.lines.iter().flat_map(|line| line.bytes.clone()).collect();
            json!({
                "text": String::from_utf8_lossy(&text),
                "lines": lines.lines.len(),
                "cut": lines.lines.iter().map(|line| line.cut).sum::<u64>(),
                "more": lines.more,
                "total": lines.total,
                "size": lines.size,
                "binary": lines.binary,
            })
        }
        Answer::Found(found) => json!({
            "matches": found.matches.into_iter().map(|found| {
                json!([show::line(&found.place.path), found.place.line, show::line(&found.text)])
            }).collect::<Vec<_>>(),
            "next": found.next.map(place),
            "files": found.files,
            "binary": found.skipped.binary,
            "closed": found.skipped.closed,
            "deep": found.skipped.deep,
            "large": found.skipped.large,
        }),
        Answer::Whole(whole) => json!({
            "text": String::from_utf8_lossy(&whole.image.content),
            "mode": whole.image.mode,
            "links": whole.links,
        }),
        Answer::Refused(_) => unreachable!("an error of the adapter"),
    }
}
