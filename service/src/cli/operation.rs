//! `salaam operation …`

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::Method;
use salaam_core::{canon, id::OperationId};
use serde_json::{Value, json};

use super::{
    args::{OperationVerb, StreamName},
    client::{Client, rows},
    page,
    question::{Question, summary},
    terminal::{Out, Passage, at, columns, fields, word},
    trouble::Trouble,
};

/// Carries out one verb on operations.
pub(super) async fn run(verb: OperationVerb, client: &Client, out: Out) -> Result<(), Trouble> {
    match verb {
        OperationVerb::List { limit } => {
            let path = limit.map_or_else(|| "/v1/operations".into(), |n| format!("/v1/operations?limit={n}"));
            out.listing(
                &rows(client.fetch(&path).await?, "operations")?,
                &["OPERATION", "STATE", "KIND", "EXIT", "COMMAND"],
                |row| {
                    let ended = ending(row);
                    vec![
                        at(row, "/operation"),
                        at(row, "/state"),
                        at(row, "/kind"),
                        ended,
                        summary(&at(row, "/display")),
                    ]
                },
                "no operation was proposed yet",
            )
        }
        OperationVerb::Show { operation } => {
            let value = client.fetch(&format!("/v1/operations/{}", id(&operation)?)).await?;
            page::result(out, &value, render)
        }
        OperationVerb::Output { operation, stream } => output(client, out, id(&operation)?, stream).await,
        OperationVerb::Cancel { operation } => {
            let id = id(&operation)?;
            let value = client.post(&format!("/v1/operations/{id}/cancel"), &json!({})).await?;
            out.result(&value, |value| {
                format!("{id} is {}; effects outside this host are not undone", at(value, "/state"))
            })
        }
    }
}

/// An operation for a person: its question where it has one, and its result.
fn render(value: &Value) -> String {
    let mut text = match Question::of(value) {
        Ok(question) => question.render(),
        Err(_) => {
            let mut plain = value.clone();
            if let Some(map) = plain.as_object_mut() {
                map.remove("result");
            }
            fields(&plain)
        }
    };
    if let Some(result @ Value::Object(_)) = value.get("result") {
        text += "\n";
        text += &columns(&[vec!["ended".into(), ending(value)]]);
        text += &fields(result);
    }
    text
}

/// How it ended in one word.
fn ending(row: &Value) -> String {
    let field = |name: &str| row.get("result").and_then(|result| result.get(name)).or_else(|| row.get(name));
    match (field("exit_code"), field("signal")) {
        (Some(code @ Value::Number(_)), _) => word(Some(code)),
        (_, Some(signal @ Value::Number(_))) => format!("signal {}", word(Some(signal))),
        (_, _) => "-".into(),
    }
}

async fn output(client: &Client, out: Out, id: OperationId, stream: StreamName) -> Result<(), Trouble> {
    let path = format!("/v1/operations/{id}/output?stream={}", stream.as_str());
    let mut bytes = match client.open(Method::GET, &path, None).await {
        Ok(bytes) => Some(bytes),
        // A stream without a byte keeps nothing.
        Err(why) if why.id() == "no-output" => None,
        Err(why) => return Err(why),
    };
    if out.json {
        let all = match &mut bytes {
            Some(bytes) => bytes.whole().await?,
            None => Vec::new(),
        };
        let (key, text) = match canon::bytes(&all) {
            Value::String(text) => ("text", text),
            _ => ("base64", STANDARD.encode(&all)),
        };
        return out.object(&json!({ "operation": id, "stream": stream.as_str(), key: text }));
    }
    let Some(mut bytes) = bytes else { return Ok(()) };
    let mut passage = Passage::stdout();
    while let Some(piece) = bytes.next().await? {
        passage.pass(&piece)?;
    }
    passage.finish()
}

/// An operation's id, as it was given on the command line.
pub(super) fn id(given: &str) -> Result<OperationId, Trouble> {
    given.parse().map_err(|why: salaam_core::id::NotAnId| Trouble::usage(why.to_string(), "salaam operation list"))
}
