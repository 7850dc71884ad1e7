//! `host.toml`, layered: defaults ← file ← `SALAAM_*` ← flags. Strict in every layer.
//!
//! The file is parsed twice: once into [`Config`] for errors that name key, line and column, once as a table,
//! so that only what it says overrides the layer below. Variables are typed by the key that they name, never
//! by their look: `SALAAM_TOOLS_USER=123` is the text `123`.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::Serialized,
    value::{Dict, Map, Value},
};
use salaam_core::{
    bridge::MAX_PLAN_LIST,
    instance::is_account_name,
    limits::{LimitOutOfRange, Limits},
    policy::{Isolation, Landlock, Network, Unsandboxed},
};
use serde::{Deserialize, Serialize};

use super::HostError;

/// The largest `host.toml`: every list full of long paths fits.
pub const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// A question that stays open longer than a week has been forgotten.
const MAX_TTL_SECONDS: u64 = 7 * 24 * 3600;

/// A right that was given by mistake is found within an hour.
const MAX_PROBE_SECONDS: u64 = 3600;

/// One declared environment value; the kernel's limit for one string is 128 KiB.
const MAX_VALUE_BYTES: usize = 32 << 10;

/// PATH_MAX.
const MAX_PATH_BYTES: usize = 4096;

/// Variables with our prefix that are no keys: they say where things are, not what is wanted.
const NOT_KEYS: [&str; 5] =
    ["SALAAM_CONFIG_DIR", "SALAAM_STATE_DIR", "SALAAM_RUNTIME_DIR", "SALAAM_LIBEXEC_DIR", "SALAAM_INSTANCE"];

const PREFIX: &str = "SALAAM_";

/// The host's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The account that runs commands; absent = the service user itself.
    pub tools_user: Option<String>,
    /// The group whose members are operators.
    pub operators_group: Option<String>,
    /// What commands may read beside the system: absolute paths, `~/…`, or `toolchain`.
    pub local_sandbox_read_paths: Vec<String>,
    /// What happens to a command where no sandbox is usable.
    pub unsandboxed_commands: Unsandboxed,
    /// The network of commands.
    pub command_network: Network,
    /// Paths below a workspace's root that commands may not change, beside the built-in ones.
    pub protected_paths: Vec<String>,
    /// Seconds until an unanswered question lapses.
    pub approval_ttl_seconds: u64,
    /// Seconds between two looks of the probes at the host; the service's own care, no part of the plan.
    pub probe_interval_seconds: u64,
    /// Start refuses below this.
    pub required_isolation: Option<Isolation>,
    /// How much landlock is demanded.
    pub landlock: Landlock,
    /// Environment entries of commands.
    pub environment: BTreeMap<String, String>,
    /// What one command may use.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tools_user: None,
            operators_group: None,
            local_sandbox_read_paths: Vec::new(),
            unsandboxed_commands: Unsandboxed::Refuse,
            command_network: Network::None,
            protected_paths: Vec::new(),
            approval_ttl_seconds: 900,
            probe_interval_seconds: 300,
            required_isolation: None,
            landlock: Landlock::Required,
            environment: BTreeMap::new(),
            limits: Limits::default(),
        }
    }
}

/// What an operator said on the command line, and nothing that came from elsewhere: flags may re-pin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--tools-user`.
    pub tools_user: Option<String>,
    /// `--local-sandbox-read`; empty = not given.
    pub local_sandbox_read: Vec<PathBuf>,
    /// `--unsandboxed-commands`.
    pub unsandboxed_commands: Option<Unsandboxed>,
}

/// The environment variables of a process, taken once.
#[derive(Debug, Clone, Default)]
pub struct Variables(BTreeMap<OsString, OsString>);

impl Variables {
    /// Those of this process.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// A variable that holds a path; set and empty counts as unset, as XDG has it.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// A variable that holds a number; anything else counts as unset.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(OsStr::new(name))?.to_str()?.parse().ok()
    }

    /// The first directory of a variable of systemd's, where it is named `salaam…`.
    pub(crate) fn unit_path(&self, name: &str) -> Option<PathBuf> {
        let listed = self.0.get(OsStr::new(name))?;
        let first = listed.as_bytes().split(|b| *b == b':').next()?;
        let path = Path::new(OsStr::from_bytes(first));
        let ours = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"salaam"));
        (path.is_absolute() && ours).then(|| path.to_owned())
    }
}

impl FromIterator<(OsString, OsString)> for Variables {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl Config {
    /// Lays the layers over each other and checks the result. `base` holds the defaults (with the instance's
    /// accounts), `file` the path and text of `host.toml`.
    pub fn layered(
        base: &Self,
        file: Option<(&Path, &str)>,
        variables: &Variables,
        flags: &Flags,
    ) -> Result<Self, HostError> {
        let mut figment = Figment::from(Serialized::defaults(base));
        if let Some((path, text)) = file {
            figment = figment.merge(Serialized::defaults(strict_table(path, text)?));
        }
        let figment = figment.merge(Layer::of_variables(variables)?).merge(Layer::of_flags(flags)?);
        let config: Self = figment.extract().map_err(|e| named(&e, file.map(|(path, _)| path)))?;
        config.validate(file.map(|(path, _)| path))?;
        Ok(config)
    }

    fn validate(&self, file: Option<&Path>) -> Result<(), HostError> {
        let place = file.map_or_else(|| "the host configuration".into(), |path| path.display().to_string());
        let wrong = |key: &str, why: String| HostError::Value { key: key.into(), place: place.clone(), why };
        for (key, name) in [("tools_user", &self.tools_user), ("operators_group", &self.operators_group)] {
            if let Some(name) = name
                && !is_account_name(name)
            {
                return Err(wrong(key, format!("`{}` is no account name", name.escape_debug())));
            }
        }
        for (key, length) in [
            ("local_sandbox_read_paths", self.local_sandbox_read_paths.len()),
            ("protected_paths", self.protected_paths.len()),
            ("environment", self.environment.len()),
        ] {
            if length > MAX_PLAN_LIST {
                return Err(wrong(key, format!("it has {length} entries, at most {MAX_PLAN_LIST} are taken")));
            }
        }
        if let Some(path) = self.protected_paths.iter().find(|path| !is_plain_relative(path)) {
            let path = path.escape_debug();
            return Err(wrong("protected_paths", format!("`{path}` is no path relative to a workspace's root")));
        }
        if !(1..=MAX_TTL_SECONDS).contains(&self.approval_ttl_seconds) {
            let given = self.approval_ttl_seconds;
            return Err(wrong("approval_ttl_seconds", format!("{given} is not from 1 to {MAX_TTL_SECONDS}")));
        }
        if !(1..=MAX_PROBE_SECONDS).contains(&self.probe_interval_seconds) {
            let given = self.probe_interval_seconds;
            return Err(wrong("probe_interval_seconds", format!("{given} is not from 1 to {MAX_PROBE_SECONDS}")));
        }
        if self.command_network == Network::Broker {
            return Err(wrong("command_network", "`broker` is not offered by this build; take `none`".into()));
        }
        for (name, value) in &self.environment {
            if !is_variable_name(name) {
                return Err(wrong("environment", format!("`{}` is no variable name", name.escape_debug())));
            }
            if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
                return Err(wrong(&format!("environment.{name}"), "too long, or it holds a NUL".into()));
            }
        }
        self.limits.validate().map_err(|outside| match outside.into_iter().next() {
            Some(LimitOutOfRange { name, given, least, most }) => {
                wrong(&format!("limits.{name}"), format!("{given} is not from {least} to {most}"))
            }
            None => wrong("limits", "a limit is outside its range".into()),
        })
    }
}

/// What kind of value a key takes in a variable.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Text,
    List,
    Number,
}

fn shape(key: &str) -> Option<Shape> {
    if let Some(limit) = key.strip_prefix("limits__") {
        return Limits::default().named().iter().any(|(name, _)| *name == limit).then_some(Shape::Number);
    }
    match key {
        "tools_user"
        | "operators_group"
        | "unsandboxed_commands"
        | "command_network"
        | "required_isolation"
        | "landlock" => Some(Shape::Text),
        "local_sandbox_read_paths" | "protected_paths" => Some(Shape::List),
        "approval_ttl_seconds" | "probe_interval_seconds" => Some(Shape::Number),
        // Not a match on requests or states: any other text is no key, and says so to the caller.
        _ => None,
    }
}

/// A layer above the file.
struct Layer {
    name: &'static str,
    values: Dict,
}

const VARIABLES: &str = "environment variables";
const FLAGS: &str = "flags";

impl Layer {
    fn of_variables(variables: &Variables) -> Result<Self, HostError> {
        let mut tables = Tables::default();
        for (name, value) in &variables.0 {
            if !name.as_bytes().starts_with(PREFIX.as_bytes()) || NOT_KEYS.iter().any(|other| name == other) {
                continue;
            }
            let (Some(variable), Some(value)) = (name.to_str(), value.to_str()) else {
                return Err(HostError::Value {
                    key: name.to_string_lossy().into_owned(),
                    place: "the environment".into(),
                    why: "it is not UTF-8".into(),
                });
            };
            tables.set(variable, value)?;
        }
        Ok(Self { name: VARIABLES, values: tables.into_dict() })
    }

    fn of_flags(flags: &Flags) -> Result<Self, HostError> {
        let mut values = Dict::new();
        if let Some(name) = &flags.tools_user {
            values.insert("tools_user".into(), Value::from(name.as_str()));
        }
        if let Some(word) = flags.unsandboxed_commands {
            values.insert("unsandboxed_commands".into(), Value::from(word.as_str()));
        }
        if !flags.local_sandbox_read.is_empty() {
            let text = |path: &PathBuf| {
                path.to_str().map(str::to_owned).ok_or_else(|| HostError::ReadPath {
                    given: path.display().to_string(),
                    why: "is not UTF-8, and the manifest could not name it".into(),
                })
            };
            let paths: Vec<String> = flags.local_sandbox_read.iter().map(text).collect::<Result<_, _>>()?;
            values.insert("local_sandbox_read_paths".into(), Value::from(paths));
        }
        Ok(Self { name: FLAGS, values })
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// What variables set: the keys at the top, and the two tables below it.
#[derive(Default)]
struct Tables {
    top: Dict,
    limits: Dict,
    environment: Dict,
}

impl Tables {
    fn set(&mut self, variable: &str, value: &str) -> Result<(), HostError> {
        let rest = variable.strip_prefix(PREFIX).unwrap_or(variable);
        // The flag's own variable is documented by the flag's name, without `_PATHS`.
        let rest = if rest == "LOCAL_SANDBOX_READ" { "LOCAL_SANDBOX_READ_PATHS" } else { rest };
        // Names in `environment` keep their case; keys of our own are lower-case.
        if let Some(name) = rest.strip_prefix("ENVIRONMENT__") {
            self.environment.insert(name.to_owned(), Value::from(value));
            return Ok(());
        }
        let unknown = || HostError::UnknownVariable { variable: variable.escape_debug().to_string() };
        if rest.bytes().any(|b| b.is_ascii_lowercase()) {
            return Err(unknown());
        }
        let key = rest.to_ascii_lowercase();
        let wrong = |why: String| HostError::Value {
            key: key.replace("__", "."),
            place: format!("the variable {variable}"),
            why,
        };
        let typed = match shape(&key).ok_or_else(unknown)? {
            Shape::Text => Value::from(value),
            Shape::List => Value::from(value.split(':').filter(|part| !part.is_empty()).collect::<Vec<_>>()),
            Shape::Number => value
                .parse::<u64>()
                .map(Value::from)
                .map_err(|e| wrong(format!("`{}` is no number: {e}", value.escape_debug())))?,
        };
        let previous = match key.strip_prefix("limits__") {
            Some(limit) => self.limits.insert(limit.to_owned(), typed),
            None => self.top.insert(key.clone(), typed),
        };
        match previous {
            None => Ok(()),
            Some(_) => Err(wrong("SALAAM_LOCAL_SANDBOX_READ sets it too; unset one of them".into())),
        }
    }

    fn into_dict(self) -> Dict {
        let mut dict = self.top;
        for (name, table) in [("limits", self.limits), ("environment", self.environment)] {
            if !table.is_empty() {
                dict.insert(name.into(), Value::from(table));
            }
        }
        dict
    }
}

/// The file as a table, after a parse into [`Config`] that refuses unknown keys and wrong types.
fn strict_table(path: &Path, text: &str) -> Result<toml::Table, HostError> {
    let wrong = |e: toml::de::Error| HostError::File { path: path.to_owned(), why: e.to_string() };
    toml::from_str::<Config>(text).map_err(wrong)?;
    toml::from_str(text).map_err(wrong)
}

/// An error of figment's with the key and the place where the operator set it.
fn named(error: &figment::Error, file: Option<&Path>) -> HostError {
    let key = error.path.join(".");
    let layer = error.metadata.as_ref().map(|metadata| metadata.name.as_ref());
    let place = match layer {
        Some(VARIABLES) => format!("the variable {PREFIX}{}", error.path.join("__").to_uppercase()),
        Some(FLAGS) => "the flags".to_owned(),
        Some(_) | None => file.map_or_else(|| "the defaults".into(), |path| path.display().to_string()),
    };
    HostError::Value { key, place, why: error.kind.to_string() }
}

fn is_plain_relative(path: &str) -> bool {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    !path.is_empty() && path.len() <= MAX_PATH_BYTES && plain && !path.chars().any(char::is_control)
}

fn is_variable_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.len() <= 256 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
