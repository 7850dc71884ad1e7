//! The manifest: the resolved host configuration, pinned and named by the SHA-256 of its canonical form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    canon::{self, CanonError},
    digest::Digest,
    limits::Limits,
    policy::{Isolation, Landlock, Mode, Network, Unsandboxed},
};

/// The resolved host configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of this object.
    pub version: u32,
    /// Which account runs commands.
    pub mode: Mode,
    /// The account's name.
    pub tools_user: String,
    /// The account's uid.
    pub tools_uid: u32,
    /// The group whose members are operators.
    pub operators_group: Option<String>,
    /// Read paths after expansion and link resolution, sorted.
    pub local_sandbox_read_paths: Vec<String>,
    /// What lay at each of them: inode and file handle. Another one there is not what was agreed to.
    pub local_sandbox_read_identities: BTreeMap<String, String>,
    /// What happens without a sandbox.
    pub unsandboxed_commands: Unsandboxed,
    /// The network of commands.
    pub command_network: Network,
    /// How much landlock is demanded.
    pub landlock: Landlock,
    /// What the operator protects beside the built-in list, sorted.
    pub protected_paths: Vec<String>,
    /// Seconds until a question lapses.
    pub approval_ttl_seconds: u64,
    /// Start refuses below this.
    pub required_isolation: Option<Isolation>,
    /// Environment entries of commands that the operator declared.
    pub environment: BTreeMap<String, String>,
    /// Limits of commands.
    pub limits: Limits,
}

impl Manifest {
    /// The form written today.
    pub const VERSION: u32 = 1;

    /// The canonical bytes, as they stand in CONFIG/manifest.json.
    pub fn to_canonical(&self) -> Result<Vec<u8>, CanonError> {
        canon::to_vec(&self.to_value())
    }

    /// Its name.
    pub fn digest(&self) -> Result<Digest, CanonError> {
        canon::digest(&self.to_value())
    }

    /// What differs from `before`: `[{"key","before","after"}]` in key order.
    pub fn difference(&self, before: Option<&Self>) -> Vec<Value> {
        let flat = |manifest: &Self| flatten(&manifest.to_value());
        let after = flat(self);
        let before = before.map(flat).unwrap_or_default();
        let mut keys: Vec<_> = before.iter().chain(&after).map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let value = |list: &[(String, Value)], key: &str| {
            list.iter().find(|(k, _)| k == key).map_or(Value::Null, |(_, v)| v.clone())
        };
        keys.into_iter()
            .map(|key| (key, value(&before, key), value(&after, key)))
            .filter(|(_, before, after)| before != after)
            .map(|(key, before, after)| json!({ "key": key, "before": before, "after": after }))
            .collect()
    }

    fn to_value(&self) -> Value {
        let limits: serde_json::Map<_, _> =
            self.limits.named().into_iter().map(|(name, n)| (name.to_owned(), canon::wide(n))).collect();
        json!({
            "version": self.version,
            "mode": self.mode,
            "tools_user": self.tools_user,
            "tools_uid": self.tools_uid,
            "operators_group": self.operators_group,
            "local_sandbox_read_paths": self.local_sandbox_read_paths,
            "local_sandbox_read_identities": self.local_sandbox_read_identities,
            "unsandboxed_commands": self.unsandboxed_commands,
            "command_network": self.command_network,
            "landlock": self.landlock,
            "protected_paths": self.protected_paths,
            "approval_ttl_seconds": canon::wide(self.approval_ttl_seconds),
            "required_isolation": self.required_isolation,
            "environment": self.environment,
            "limits": limits,
        })
    }
}

fn flatten(value: &Value) -> Vec<(String, Value)> {
    let Value::Object(map) = value else { return Vec::new() };
    map.iter()
        .flat_map(|(key, value)| match value {
            Value::Object(inner) => inner.iter().map(|(sub, value)| (format!("{key}.{sub}"), value.clone())).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                vec![(key.clone(), value.clone())]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            version: Manifest::VERSION,
            mode: Mode::ToolsUser,
            tools_user: "salaam-tools".into(),
            tools_uid: 997,
            operators_group: None,
            local_sandbox_read_paths: vec![],
            local_sandbox_read_identities: BTreeMap::new(),
            unsandboxed_commands: Unsandboxed::Refuse,
            command_network: Network::None,
            landlock: Landlock::Required,
            protected_paths: vec![],
            approval_ttl_seconds: 900,
            required_isolation: None,
            environment: BTreeMap::new(),
            limits: Limits::default(),
        }
    }

    #[test]
    fn the_stored_form_reads_back_as_itself() {
        let bytes = sample().to_canonical().unwrap();
        assert_eq!(serde_json::from_slice::<Manifest>(&bytes).unwrap(), sample());
    }

    #[test]
    fn a_difference_names_key_before_and_after() {
        let mut after = sample();
        after.limits.processes = 64;
        after.tools_user = "other".into();
        assert_eq!(
            after.difference(Some(&sample())),
            [
                json!({"key":"limits.processes","before":512,"after":64}),
                json!({"key":"tools_user","before":"salaam-tools","after":"other"}),
            ]
        );
        assert!(sample().difference(Some(&sample())).is_empty());
        assert!(!sample().difference(None).is_empty());
    }
}
