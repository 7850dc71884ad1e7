//! `salaam approval …`

use std::time::Duration;

use salaam_core::{
    approval::{self, LEAST_BINDING_DIGITS},
    id::ApprovalId,
    operation::State,
    show,
};
use serde_json::{Value, json};

use super::{
    args::ApprovalVerb,
    ask::{Answer, Terminal},
    client::{Client, rows},
    page,
    question::{Question, summary},
    terminal::{Out, at},
    trouble::Trouble,
};

/// How often `watch` looks for a new question.
const LOOK: Duration = Duration::from_millis(500);

/// Carries out one verb.
pub(super) async fn run(verb: ApprovalVerb, client: &Client, out: Out) -> Result<(), Trouble> {
    match verb {
        ApprovalVerb::List { all } => list(client, out, all).await,
        ApprovalVerb::Show { approval } => {
            let value = fetch(client, &approval).await?;
            let question = Question::of(&value)?;
            page::result(out, &value, |_| question.render())
        }
        ApprovalVerb::Grant { approval, binding, comment } => {
            let question = Question::of(&fetch(client, &approval).await?)?;
            named(&binding, &question)?;
            let value = grant(client, &question, comment).await?;
            out.result(&value, |_| format!("granted {} ({})", question.approval, question.operation))
        }
        ApprovalVerb::Deny { approval, comment } => {
            let id = id(&approval)?;
            let value = deny(client, id, comment).await?;
            out.result(&value, |_| format!("denied {id}"))
        }
        ApprovalVerb::Watch => watch(client, out).await,
    }
}

/// `approval list`: the open ones, or all.
pub(super) async fn list(client: &Client, out: Out, all: bool) -> Result<(), Trouble> {
    let path = if all { "/v1/approvals?pending=false" } else { "/v1/approvals" };
    let mut list = rows(client.fetch(path).await?, "approvals")?;
    if !all {
        list.retain(is_pending);
    }
    out.listing(
        &list,
        &["APPROVAL", "STATE", "EXPIRES", "BINDING", "COMMAND"],
        |row| {
            let text = Question::of(row)
                .map_or_else(|why| show::line(why.to_string().as_bytes()), |question| question.summary());
            let binding: String = at(row, "/binding").chars().take(LEAST_BINDING_DIGITS).collect();
            vec![at(row, "/approval"), at(row, "/state"), at(row, "/expires"), binding, summary(&text)]
        },
        "no approval is pending",
    )
}

/// Grants exactly what `question` shows: all 64 digits of its binding.
pub(super) async fn grant(client: &Client, question: &Question, comment: Option<String>) -> Result<Value, Trouble> {
    let mut body = json!({ "binding": question.binding });
    add(&mut body, comment);
    client.post(&format!("/v1/approvals/{}/grant", question.approval), &body).await
}

/// Denies.
pub(super) async fn deny(client: &Client, id: ApprovalId, comment: Option<String>) -> Result<Value, Trouble> {
    let mut body = json!({});
    add(&mut body, comment);
    client.post(&format!("/v1/approvals/{id}/deny"), &body).await
}

fn add(body: &mut Value, comment: Option<String>) {
    if let (Some(comment), Some(map)) = (comment, body.as_object_mut()) {
        map.insert("comment".into(), comment.into());
    }
}

/// Refuses a binding that is too short or another one's.
fn named(given: &str, question: &Question) -> Result<(), Trouble> {
    if approval::completes(given, question.binding) {
        return Ok(());
    }
    let why = if given.len() < LEAST_BINDING_DIGITS {
        format!("a grant names at least {LEAST_BINDING_DIGITS} digits of the binding")
    } else {
        format!("{} does not have the binding {given}", question.approval)
    };
    let fix = format!("read it again: salaam approval show {}", question.approval);
    Err(Trouble::refused("binding-mismatch", why, fix))
}

async fn fetch(client: &Client, given: &str) -> Result<Value, Trouble> {
    client.fetch(&format!("/v1/approvals/{}", id(given)?)).await
}

fn id(given: &str) -> Result<ApprovalId, Trouble> {
    given.parse().map_err(|why: salaam_core::id::NotAnId| Trouble::usage(why.to_string(), "salaam approval list"))
}

fn is_pending(row: &Value) -> bool {
    row.get("state").and_then(Value::as_str) == Some(State::Pending.as_str())
}

/// Shows each open question once, oldest first, and asks. With `--json`, or without a terminal, it prints
/// them and asks nothing. A service that goes away after it had answered is waited for.
async fn watch(client: &Client, out: Out) -> Result<(), Trouble> {
    let mut seen: Vec<ApprovalId> = Vec::new();
    let (mut answered, mut away) = (false, false);
    loop {
        let mut open = match client.fetch("/v1/approvals").await {
            Ok(list) => rows(list, "approvals")?,
            Err(Trouble::NotRunning { .. } | Trouble::Connection { .. }) if answered => {
                if !away {
                    out.note("the service went away; waiting for it");
                }
                away = true;
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(why) => return Err(why),
        };
        (answered, away) = (true, false);
        open.retain(is_pending);
        open.sort_by_key(|row| at(row, "/approval"));
        let mut still = Vec::new();
        for row in &open {
            let question = Question::of(row)?;
            still.push(question.approval);
            if !seen.contains(&question.approval) {
                put(client, out, row, &question).await?;
            }
        }
        seen = still;
        tokio::time::sleep(LOOK).await;
    }
}

async fn put(client: &Client, out: Out, row: &Value, question: &Question) -> Result<(), Trouble> {
    if out.json {
        return out.object(row);
    }
    let Some(terminal) = Terminal::open() else {
        out.text(&question.render())?;
        return out.text(&question.grant_line());
    };
    let decided = match terminal.ask(format!("\n{}", question.render()), question.binding).await {
        Ok(Answer::Yes) => grant(client, question, None).await.map(|_| "granted"),
        Ok(Answer::No(why)) => deny(client, question.approval, why).await.map(|_| "denied"),
        Ok(Answer::Open) | Err(_) => Ok("left open:"),
    };
    match decided {
        Ok(word) => out.text(&format!("{word} {}", question.approval)),
        // Decided or lapsed meanwhile: the next question is no worse for it.
        Err(why @ Trouble::Refused { .. }) => {
            out.complain(&why);
            Ok(())
        }
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_names_at_least_twelve_digits_of_the_binding_shown() {
        let approval = crate::cli::question::tests::sample(json!({"argv": ["true"], "timeout_seconds": 1}));
        let question = Question::of(&approval).unwrap();
        let all = question.binding.to_string();
        assert!(named(&all, &question).is_ok() && named(&all[..12], &question).is_ok());
        let other = if all.starts_with('0') { "1".repeat(12) } else { "0".repeat(12) };
        for given in [&all[..11], "", &all.to_uppercase(), &other, &format!("{all}0")] {
            let trouble = named(given, &question).unwrap_err();
            assert_eq!((trouble.id(), trouble.exit()), ("binding-mismatch", 5), "{given}");
        }
    }
}
