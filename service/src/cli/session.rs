//! `salaam session …`

use std::{fs::File, io::Read, path::Path};

use salaam_core::{
    id::{NotAnId, SessionId},
    script::MAX_SCRIPT_BYTES,
    show,
};
use serde_json::{Value, json};

use super::{
    args::{Create, SessionVerb},
    client::{Client, rows},
    follow, operation, run,
    terminal::{Out, at, fields, word},
    trouble::Trouble,
    workspace,
};

/// Carries out one verb.
pub(super) async fn run(verb: SessionVerb, client: &Client, out: Out) -> Result<(), Trouble> {
    match verb {
        SessionVerb::Create(create) => self::create(create, client, out).await,
        SessionVerb::List => out.listing(
            &rows(client.fetch("/v1/sessions").await?, "sessions")?,
            &["SESSION", "KIND", "STATE", "WORKSPACE", "CREATED"],
            |row| {
                let state = standing(row);
                vec![at(row, "/session"), at(row, "/kind"), state, at(row, "/workspace"), at(row, "/created")]
            },
            "there is no session yet",
        ),
        SessionVerb::Show { session } => out.result(&client.fetch(&path(&session, "")?).await?, fields),
        SessionVerb::Follow { session } => follow::session(client, out, id(&session)?).await,
        SessionVerb::Message { session, text } => {
            let value = client.post(&path(&session, "/message")?, &json!({ "text": text })).await?;
            out.result(&value, |value| format!("told {}, which is {}", at(value, "/session"), standing(value)))
        }
        SessionVerb::Cancel { session } => {
            let value = client.post(&path(&session, "/cancel")?, &json!({})).await?;
            out.result(&value, |value| {
                let state = standing(value);
                format!("{} is {state}; effects outside this host are not undone", at(value, "/session"))
            })
        }
        SessionVerb::Reconcile { session, operation, verdict, comment } => {
            let mut body = json!({ "operation": operation::id(&operation)?, "verdict": verdict.as_str() });
            if let (Some(comment), Some(map)) = (comment, body.as_object_mut()) {
                map.insert("comment".into(), comment.into());
            }
            let value = client.post(&path(&session, "/reconcile")?, &body).await?;
            out.result(&value, |value| format!("recorded; {} is {}", at(value, "/session"), standing(value)))
        }
        SessionVerb::Undo { session, operation, yes } => {
            let mut body = json!({ "grant": yes });
            if let (Some(given), Some(map)) = (operation, body.as_object_mut()) {
                map.insert("operation".into(), json!(operation::id(&given)?));
            }
            let result = run::propose(client, out, &path(&session, "/undo")?, &body, yes).await?;
            out.result(&result, undone)
        }
    }
}

async fn create(create: Create, client: &Client, out: Out) -> Result<(), Trouble> {
    let row = workspace::meant(client, create.workspace.as_deref()).await?;
    let mut body = json!({
        "workspace": workspace::id(&row), "task": create.task, "provider": create.provider,
        "in_place": create.in_place,
    });
    if let Some(map) = body.as_object_mut() {
        if let Some(script) = &create.script {
            map.insert("script".into(), read(script)?);
        }
        if let Some(profile) = create.profile {
            map.insert("profile".into(), profile.as_str().into());
        }
    }
    let session = client.post("/v1/sessions", &body).await?;
    if !create.follow {
        return out.result(&session, |session| at(session, "/session"));
    }
    let id = session.get("session").and_then(Value::as_str).unwrap_or_default();
    follow::session(client, out, self::id(id)?).await
}

/// The script, as JSON; refused above [`MAX_SCRIPT_BYTES`]. What it says is checked by the service.
fn read(path: &Path) -> Result<Value, Trouble> {
    let local = |source| Trouble::Local { attempted: "reading", path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let limit = MAX_SCRIPT_BYTES as u64;
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(local)?;
    let wrong = |why: String| {
        Trouble::usage(
            format!("the script {}: {why}", show::line(path.as_os_str().as_encoded_bytes())),
            "docs/script-format.md describes a script",
        )
    };
    if bytes.len() as u64 > limit {
        return Err(wrong(format!("it has more than {limit} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|why| wrong(format!("it is no JSON: {why}")))
}

/// State and what it waits for or how it ended, in one word.
fn standing(session: &Value) -> String {
    let reason = ["/waiting_for", "/outcome"].map(|key| at(session, key)).into_iter().find(|reason| reason != "-");
    let state = at(session, "/state");
    reason.map_or_else(|| state.clone(), |reason| format!("{state} ({reason})"))
}

fn undone(result: &Value) -> String {
    let mut text = format!("{} is {}", at(result, "/operation"), at(result, "/state"));
    for file in result.get("files").and_then(Value::as_array).into_iter().flatten() {
        text += &format!("\n  {} {}", word(file.get("method")), word(file.get("path")));
    }
    text
}

fn path(session: &str, verb: &str) -> Result<String, Trouble> {
    Ok(format!("/v1/sessions/{}{verb}", id(session)?))
}

fn id(given: &str) -> Result<SessionId, Trouble> {
    given.parse().map_err(|why: NotAnId| Trouble::usage(why.to_string(), "salaam session list"))
}
