//! A question that outlived the service that asked it: asked again as it is, or stale.
//!
//! Promise: the same binding and the same expiry. Whatever is bound is looked at; what differs makes it stale, so
//! that an operator never grants something else than what stands in the record.

use std::sync::Arc;

use salaam_core::{bound::Bound, operation::State};
use serde_json::{Map, Value, json};

use super::{
    decide::unseen,
    dispatch::is_edit,
    look::{Look, Place},
    owner::{Case, Owner, Stop},
    propose::Proposed,
    session,
};
use crate::{
    operation::{Progress, Refusal, Work, view},
    store::OperationRow,
};

/// Whether a start goes on with what an earlier service left open, instead of settling it.
pub(crate) fn may_go_on(row: &OperationRow) -> bool {
    match row.state {
        State::Dispatched => is_edit(row.kind),
        State::Pending => row.again.as_ref().and_then(Work::from_again).is_some(),
        State::Proposed
        | State::Granted
        | State::Completed
        | State::Failed
        | State::TimedOut
        | State::Cancelled
        | State::Unknown
        | State::Refused
        | State::Denied
        | State::Expired
        | State::Stale => false,
    }
}

impl Owner {
    pub(super) async fn ask_again(&mut self, row: OperationRow, work: Work) -> Result<Proposed, Stop> {
        if self.context.executor.up().await.is_none() {
            return Err(Stop::Left);
        }
        match self.same(&row, &work).await {
            Ok(bound) => {
                drop(self.progress.send(Progress::Proposed(view::approval(&row))).await);
                Ok(Proposed::Pending(Case { row, bound, work }))
            }
            Err(changed) => Ok(Proposed::Over(self.stale(row, changed).await?)),
        }
    }

    /// What the row binds, if it still comes to the same; an error is what differs.
    async fn same(&self, row: &OperationRow, work: &Work) -> Result<Bound, Vec<Value>> {
        let context = Arc::clone(&self.context);
        let refused = |refusal: Refusal| unseen(refusal.into());
        let workspace = session::workspace_row(&context, row.workspace).await.map_err(refused)?;
        let found = context.store.session(row.session).await.map_err(|e| refused(Refusal::journal(e)))?;
        let Some(found) = found else { return Err(vec![json!({ "field": "session" })]) };
        let profile = row.bound.pointer("/policy/profile").and_then(Value::as_str).and_then(|word| word.parse().ok());
        let place = Place { row: &workspace, session: &found, profile: profile.unwrap_or_default() };
        let Look { identity, policy, arguments, files, flags, forbidden, .. } =
            self.look(&place, work, false, None).await.map_err(unseen)?;
        let bound = Bound {
            operation: row.id,
            kind: row.kind,
            workspace: identity,
            arguments,
            files,
            policy,
            worker_epoch: 0,
            expires: row.expires,
        };
        let mut changed = match bound.to_value() {
            Ok(now) if bound.binding() == Ok(row.binding) => {
                drop(now);
                Vec::new()
            }
            Ok(now) => differences(&row.bound, &now),
            Err(error) => vec![json!({ "field": "arguments", "evidence": error.to_string() })],
        };
        if flags != row.flags {
            changed.push(json!({ "field": "flags", "was": row.flags, "is": flags }));
        }
        if let Some(refusal) = forbidden {
            changed.push(json!({ "field": "sandbox", "id": refusal.id, "evidence": refusal.message }));
        }
        if changed.is_empty() { Ok(bound) } else { Err(changed) }
    }
}

/// Names what differs between two forms of what is bound: the policy by its parts, files one by one.
fn differences(was: &Value, is: &Value) -> Vec<Value> {
    let mut changed = Vec::new();
    for field in keys(was, is) {
        let (before, now) = (was.get(field), is.get(field));
        if before == now {
            continue;
        }
        let (Some(before), Some(now)) = (before, now) else {
            changed.push(json!({ "field": field }));
            continue;
        };
        match field {
            "files" => {
                changed.extend(parts(before, now).map(
                    |path| json!({ "field": "files", "path": path, "was": before.get(path), "is": now.get(path) }),
                ))
            }
            "policy" => changed.extend(parts(before, now).map(|part| json!({ "field": format!("policy.{part}") }))),
            _ => changed.push(json!({ "field": field })),
        }
    }
    changed
}

fn parts<'a>(was: &'a Value, is: &'a Value) -> impl Iterator<Item = &'a str> {
    keys(was, is).into_iter().filter(|key| was.get(*key) != is.get(*key))
}

fn keys<'a>(was: &'a Value, is: &'a Value) -> Vec<&'a str> {
    let of = |value: &'a Value| value.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    let mut keys: Vec<_> = of(was).chain(of(is)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_part_by_part() {
        let was = json!({
            "expires": 1, "files": {"/w/a": "1", "/w/b": "2"}, "policy": {"limits": {"processes": 4}, "profile": "x"},
            "workspace": {"inode": 1},
        });
        let is = json!({
            "expires": 1, "files": {"/w/a": "1", "/w/b": "3"}, "other_files": [], "policy": {"limits": {"processes": 5}, "profile": "x"},
            "workspace": {"inode": 2},
        });
        assert_eq!(differences(&was, &was), Vec::<Value>::new());
        assert_eq!(
            differences(&was, &is),
            [
                json!({"field": "files", "path": "/w/b", "was": "2", "is": "3"}),
                json!({"field": "other_files"}),
                json!({"field": "policy.limits"}),
                json!({"field": "workspace"}),
            ]
        );
    }
}
