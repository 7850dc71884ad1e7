//! An agent's session that is driven through the command line, with an operator who answers.

use std::{fs, path::Path, thread, time::Duration};

use serde_json::Value;

use crate::{
    pair::{Pair, text},
    ran::{Ran, Started},
};

/// What the operator does about one approval.
pub enum Answer {
    /// Grants it.
    Grant,
    /// Denies it with a word.
    Deny(&'static str),
    /// Looks away.
    Wait,
}

/// A session that ended.
#[derive(Debug)]
pub struct Played {
    /// Its id.
    pub id: String,
    /// `session create --follow --json`: an event a line.
    pub ran: Ran,
    /// Each approval that was answered, as it was listed.
    pub approvals: Vec<Value>,
}

impl Played {
    /// Its last state, and how it ended.
    #[track_caller]
    pub fn outcome(&self, pair: &Pair) -> (String, Value) {
        let session = pair.salaam(&["session", "show", &self.id, "--json"]).ok().json();
        (text(&session, "state"), session["outcome"].clone())
    }

    /// The events of one kind.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        self.ran.json_lines().into_iter().filter(|event| event["kind"] == kind).collect()
    }
}

/// A script of `tests/scripts`, with `@NAME@` replaced, in a file that everybody may read.
pub fn script(pair: &Pair, name: &str, replaced: &[(&str, &str)]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(format!("{name}.json"));
    let mut text = fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    for (from, to) in replaced {
        text = text.replace(from, to);
    }
    written(pair, name, &text)
}

/// The text of a script in a file that everybody may read.
pub fn written(pair: &Pair, name: &str, text: &str) -> String {
    let path = pair.host.prefix.join(format!("{name}-{}.json", std::process::id()));
    fs::write(&path, text).expect("the prefix is root's");
    path.display().to_string()
}

/// Plays a script to its end. The operator is asked about each approval once, by `answer`, with its number; `told`
/// sees every look at the session, and may act.
#[track_caller]
pub fn play(
    pair: &Pair,
    script: &str,
    mut answer: impl FnMut(&Value, usize) -> Answer,
    mut look: impl FnMut(&str),
) -> Played {
    let workspace = pair.workspace.display().to_string();
    let words = ["session", "create", "--workspace", &workspace, "--in-place", "--script", script, "--json", "a task"];
    let id = text(&pair.salaam(&words).ok().json(), "session");
    let mut follow = Started::new(pair.command_as(&pair.host.operator).args(["session", "follow", &id, "--json"]), b"");
    let mut approvals: Vec<Value> = Vec::new();
    while follow.child.try_wait().expect("it is our child").is_none() {
        let known = |one: &Value| approvals.iter().any(|known| known["approval"] == one["approval"]);
        let open: Vec<Value> = pair.pending().into_iter().filter(|one| !known(one)).collect();
        for one in open {
            let (approval, binding) = (text(&one, "approval"), text(&one, "binding"));
            match answer(&one, approvals.len()) {
                // It may have lapsed at the same moment; what became of it is in the record.
                Answer::Grant => drop(pair.grant(&approval, &binding)),
                Answer::Deny(why) => {
                    pair.salaam_as(&pair.host.operator, &["approval", "deny", &approval, "--comment", why]).ok();
                }
                Answer::Wait => {}
            }
            approvals.push(one);
        }
        look(&id);
        thread::sleep(Duration::from_millis(20));
    }
    Played { id, ran: follow.wait(Duration::from_secs(10)), approvals }
}
