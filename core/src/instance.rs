//! The instance file: what root wrote down about one service, its accounts, directories and floor.
//!
//! `salaam host setup` writes it; the service, the command line and the executor each read it and check that
//! it is root's. Parsing is strict: an unknown key, another version or an impossible account is an error, so
//! that no reader ever acts on a file that it only half understands.
//!
//! Invariant: nothing here opens a file; who owns it is the caller's to check.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::policy::Unsandboxed;

/// The largest instance file that a reader takes in: a hundred workspaces with long paths fit ten times.
pub const MAX_BYTES: u64 = 256 << 10;

/// What useradd(8) accepts at the most.
pub const MAX_NAME_BYTES: usize = 32;

/// One installed instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The form of this file.
    pub version: u32,
    /// The account that holds credentials and state; it also names the file.
    pub service_user: String,
    /// Its uid.
    pub service_uid: u32,
    /// The account that runs commands.
    pub tools_user: String,
    /// Its uid.
    pub tools_uid: u32,
    /// The group that both accounts share for workspaces.
    pub group: String,
    /// Its gid.
    pub group_gid: u32,
    /// The group whose members are operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators_group: Option<String>,
    /// Where the instance lives.
    pub directories: Directories,
    /// What the service may at most ask of the executor.
    #[serde(default)]
    pub floor: Floor,
    /// Exactly what set-up created, for `--undo`.
    #[serde(default)]
    pub added: Added,
}

/// Where an instance lives: absolute paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directories {
    /// `host.toml` and the manifest; 0700, the service user's.
    pub config: PathBuf,
    /// Journal, state, log; 0700, the service user's.
    pub state: PathBuf,
    /// The operator socket; 0700, or 0710 with the operators group.
    pub runtime: PathBuf,
    /// The executor's binaries; root's.
    pub libexec: PathBuf,
}

/// What the service may at most ask of the executor, whatever its own configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Floor {
    /// Whether a command may run bare where no sandbox is usable.
    pub unsandboxed_commands: Unsandboxed,
}

/// What set-up created. Only what stands here is removed by `--undo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Added {
    /// Accounts.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Memberships, each `user:group`.
    pub members: Vec<String>,
    /// Files.
    pub files: Vec<PathBuf>,
    /// Directories, parents first.
    pub directories: Vec<PathBuf>,
    /// Workspaces that did not exist before. They hold work: `--undo` removes them only when empty.
    pub workspaces: Vec<PathBuf>,
    /// Directories above a workspace that got an ACL entry which lets the tools user pass through.
    pub traverse: Vec<PathBuf>,
    /// Lines added to files of others (`/etc/cron.deny`), each `path:line`.
    pub lines: Vec<String>,
}

/// An instance file that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Not TOML, an unknown key or a wrong type; the text names key, line and column.
    #[error("{0}")]
    Syntax(String),
    /// Written by another version.
    #[error("version {0} is not known here; this build reads version {known}", known = Instance::VERSION)]
    Version(u32),
    /// A name that is no account name.
    #[error("`{key}` is `{name}`, which is no account name")]
    Name {
        /// The key.
        key: &'static str,
        /// What stands there, cut to 64 characters.
        name: String,
    },
    /// A uid or gid that cannot be meant.
    #[error("`{key}` is {id}: {why}")]
    Id {
        /// The key.
        key: &'static str,
        /// What stands there.
        id: u32,
        /// Why it cannot be.
        why: &'static str,
    },
    /// A directory that is not an absolute path without `.` and `..`.
    #[error("`directories.{key}` is `{path}`; it must be an absolute path without `.` and `..`", path = .path.display())]
    Directory {
        /// The key below `directories`.
        key: &'static str,
        /// What stands there.
        path: PathBuf,
    },
}

impl Instance {
    /// The form written today.
    pub const VERSION: u32 = 1;

    /// Parses and checks the text of an instance file.
    pub fn parse(text: &str) -> Result<Self, InstanceError> {
        let instance: Self = toml::from_str(text).map_err(|e| InstanceError::Syntax(e.to_string()))?;
        instance.validate()?;
        Ok(instance)
    }

    /// The text of the file, which [`Instance::parse`] reads back as the same value.
    pub fn to_text(&self) -> Result<String, InstanceError> {
        self.validate()?;
        let body = toml::to_string(self).map_err(|e| InstanceError::Syntax(e.to_string()))?;
        Ok(format!("# Written by `salaam host setup`, which also takes it away (--undo). Keep it root's.\n{body}"))
    }

    fn validate(&self) -> Result<(), InstanceError> {
        if self.version != Self::VERSION {
            return Err(InstanceError::Version(self.version));
        }
        let operators = self.operators_group.iter().map(|name| ("operators_group", name));
        let names = [("service_user", &self.service_user), ("tools_user", &self.tools_user), ("group", &self.group)];
        for (key, name) in names.into_iter().chain(operators) {
            if !is_account_name(name) {
                return Err(InstanceError::Name { key, name: name.chars().take(64).collect() });
            }
        }
        let ids = [("service_uid", self.service_uid), ("tools_uid", self.tools_uid), ("group_gid", self.group_gid)];
        for (key, id) in ids {
            if id == 0 {
                return Err(InstanceError::Id { key, id, why: "root takes no part in an instance" });
            }
            if id == u32::MAX {
                return Err(InstanceError::Id { key, id, why: "the kernel reads it as `no change`" });
            }
        }
        if self.tools_uid == self.service_uid {
            let why = "the tools user must be another account than the service user";
            return Err(InstanceError::Id { key: "tools_uid", id: self.tools_uid, why });
        }
        for (key, path) in self.directories.named() {
            if !is_plain_absolute(path) {
                return Err(InstanceError::Directory { key, path: path.to_owned() });
            }
        }
        Ok(())
    }
}

impl Directories {
    /// Every directory with its key, in the order of the documentation.
    pub fn named(&self) -> [(&'static str, &Path); 4] {
        [("config", &self.config), ("state", &self.state), ("runtime", &self.runtime), ("libexec", &self.libexec)]
    }
}

/// Whether `name` can be an account or a group: what useradd(8) accepts, and nothing that sudoers(5), a shell
/// or a file name would read as something else. A name of digits alone would be taken for a uid.
pub fn is_account_name(name: &str) -> bool {
    let first = name.bytes().next();
    name.len() <= MAX_NAME_BYTES
        && first.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        && name.bytes().any(|b| b.is_ascii_lowercase())
}

/// Whether `path` is absolute, is more than `/`, and has neither `.` nor `..` nor a control character in it.
pub fn is_plain_absolute(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let mut parts = path.components();
    let rooted = matches!(parts.next(), Some(Component::RootDir));
    // `components` swallows inner `.`, so the bytes are looked at too.
    let dotted = bytes.split(|b| *b == b'/').any(|part| matches!(part, b"." | b".."));
    rooted && parts.next().is_some() && !dotted && !bytes.iter().any(u8::is_ascii_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        version = 1
        service_user = "salaam"
        service_uid = 1001
        tools_user = "salaam-tools"
        tools_uid = 997
        group = "salaam-work"
        group_gid = 995
        operators_group = "salaam-operators"
        [directories]
        config = "/var/lib/salaam/config"
        state = "/var/lib/salaam/state"
        runtime = "/var/lib/salaam/run"
        libexec = "/usr/local/libexec/salaam"
        [floor]
        unsandboxed_commands = "refuse"
        [added]
        users = ["salaam"]
        members = ["salaam:salaam-work"]
    "#;

    #[test]
    fn the_written_form_reads_back_as_itself() {
        let instance = Instance::parse(TEXT).unwrap();
        assert_eq!(instance.added.users, ["salaam"]);
        assert_eq!(Instance::parse(&instance.to_text().unwrap()).unwrap(), instance);
    }

    #[test]
    fn an_absent_floor_is_the_refusing_one() {
        let text = TEXT.replace("[floor]", "").replace("unsandboxed_commands = \"refuse\"", "");
        assert_eq!(Instance::parse(&text).unwrap().floor.unsandboxed_commands, Unsandboxed::Refuse);
    }

    #[test]
    fn what_is_not_understood_whole_is_refused() {
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("version = 1", ""),
            ("version = 1", "version = 1\nextra = 1"),
            ("config = ", "confg = "),
            ("service_uid = 1001", "service_uid = \"1001\""),
            ("service_uid = 1001", "service_uid = 0"),
            ("service_uid = 1001", "service_uid = 997"),
            ("service_uid = 1001", "service_uid = -1"),
            ("tools_uid = 997", "tools_uid = 0"),
            ("tools_uid = 997", "tools_uid = 4294967295"),
            ("group_gid = 995", "group_gid = 0"),
            ("\"salaam-tools\"", "\"-tools\""),
            ("\"salaam-tools\"", "\"a b\""),
            ("\"salaam-tools\"", "\"../x\""),
            ("\"salaam-tools\"", "\"997\""),
            ("\"salaam-tools\"", "\"\""),
            ("\"salaam-operators\"", "\"ALL,x\""),
            ("\"salaam-operators\"", "\"ALL\""),
            ("/var/lib/salaam/state", "var/lib"),
            ("/var/lib/salaam/state", "/var/../etc"),
            ("/var/lib/salaam/state", "/"),
            ("= \"refuse\"", "= \"maybe\""),
        ] {
            assert!(TEXT.contains(from), "{from}");
            assert!(Instance::parse(&TEXT.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}
