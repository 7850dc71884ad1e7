//! The host plan: the configuration resolved against this host, and the manifest that was pinned of it.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use salaam_core::{
    manifest::Manifest,
    policy::{Mode, Network, Unsandboxed},
};
use serde_json::Value;

use super::{Flags, Host, HostError, groups_of, read_path};

/// The manifest's name in the configuration directory.
const MANIFEST: &str = "manifest.json";

/// A manifest with every list full stays far below.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// What a start does with the manifest that it resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It is the pinned one.
    Keep,
    /// It is to be pinned: none was, or flags of this very start account for every difference (journalled as
    /// `host.planned`).
    Pin {
        /// `[{"key","before","after"}]`.
        difference: Vec<Value>,
    },
    /// Something else changed; the start refuses as `plan-changed`.
    Changed {
        /// The keys, flattened.
        keys: Vec<String>,
    },
}

/// Judges `resolved` against what was pinned. Flags re-pin what they name and nothing beside it: an edit of
/// `host.toml` does not slip in with a flag that a unit file gives at each start.
pub fn verdict(pinned: Option<&Manifest>, resolved: &Manifest, flags: &Flags) -> Verdict {
    let difference = resolved.difference(pinned);
    if pinned.is_none() {
        return Verdict::Pin { difference };
    }
    if difference.is_empty() {
        return Verdict::Keep;
    }
    let keys: Vec<String> =
        difference.iter().filter_map(|entry| entry.get("key")?.as_str()).map(str::to_owned).collect();
    let flagged = keys.iter().all(|key| match key.as_str() {
        "mode" | "tools_user" | "tools_uid" => flags.tools_user.is_some(),
        "local_sandbox_read_paths" => !flags.local_sandbox_read.is_empty(),
        key if key.starts_with("local_sandbox_read_identities.") => !flags.local_sandbox_read.is_empty(),
        "unsandboxed_commands" => flags.unsandboxed_commands.is_some(),
        _ => false,
    });
    if flagged { Verdict::Pin { difference } } else { Verdict::Changed { keys } }
}

impl Host {
    /// The manifest of the configuration as it stands, without a look at registered workspaces.
    pub fn plan(&self) -> Result<Manifest, HostError> {
        self.plan_beside(&[])
    }

    /// The same; a read path that overlaps one of `workspaces` is refused.
    pub fn plan_beside(&self, workspaces: &[PathBuf]) -> Result<Manifest, HostError> {
        let (tools_user, tools_uid) = match (self.mode, &self.tools) {
            (Mode::ServiceUser, _) => (self.service_user.clone(), self.service_uid),
            (Mode::ToolsUser, Some(account)) => (account.name.clone(), account.uid),
            (Mode::ToolsUser, None) => {
                let who = self.config.tools_user.clone().unwrap_or_default();
                let fix = format!("`sudo salaam host setup --service-user {}` makes it", self.service_user);
                return Err(HostError::NoAccount { who, fix });
            }
        };
        let config = &self.config;
        let read_paths = read_path::resolve(&config.local_sandbox_read_paths, &self.surroundings(workspaces)?)?;
        let mut protected_paths = config.protected_paths.clone();
        protected_paths.sort_unstable();
        protected_paths.dedup();
        Ok(Manifest {
            version: Manifest::VERSION,
            mode: self.mode,
            tools_user,
            tools_uid,
            operators_group: config.operators_group.clone(),
            local_sandbox_read_identities: read_path::identities(&read_paths)?,
            local_sandbox_read_paths: read_paths,
            unsandboxed_commands: config.unsandboxed_commands,
            command_network: config.command_network,
            landlock: config.landlock,
            protected_paths,
            approval_ttl_seconds: config.approval_ttl_seconds,
            required_isolation: config.required_isolation,
            environment: config.environment.clone(),
            limits: config.limits,
        })
    }

    fn surroundings(&self, workspaces: &[PathBuf]) -> Result<read_path::Surroundings<'_>, HostError> {
        const PASSWD: &str = "/etc/passwd";
        let passwd = std::fs::read_to_string(PASSWD).map_err(HostError::io("cannot read", PASSWD))?;
        let mut homes = super::account::homes(&passwd);
        homes.push(self.home.clone());
        homes.extend(self.tools.iter().map(|account| account.home.clone()));
        homes.retain(|home| home.is_absolute() && home.parent().is_some());
        Ok(read_path::Surroundings {
            home: &self.home,
            homes,
            own: [&self.dirs.config, &self.dirs.state, &self.dirs.runtime, &self.dirs.libexec].map(Clone::clone).into(),
            workspaces: workspaces.to_vec(),
            tools: self.tools.as_ref().map(|account| (account.uid, groups_of(account))),
        })
    }

    /// The pinned manifest, or none. It must be the service user's own and readable by nobody else.
    pub fn pinned(&self) -> Result<Option<Manifest>, HostError> {
        let path = self.manifest_path();
        let mut file = match File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(HostError::io("cannot open", &path))?,
        };
        let meta = file.metadata().map_err(HostError::io("cannot examine", &path))?;
        if !meta.is_file() || meta.uid() != self.service_uid || meta.mode() & 0o077 != 0 {
            let why = format!("uid {} and mode {:04o}, not a private file of ours", meta.uid(), meta.mode() & 0o7777);
            let fix = format!("look at who wrote it, then `rm {}` and pin again", path.display());
            return Err(HostError::Untrusted { path, why, fix });
        }
        let mut bytes = Vec::new();
        (&mut file).take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).map_err(HostError::io("cannot read", &path))?;
        let broken = |why: String| HostError::Manifest { path: path.clone(), why };
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| broken(e.to_string()))?;
        if manifest.to_canonical()? != bytes {
            return Err(broken("its bytes are not the canonical ones".into()));
        }
        Ok(Some(manifest))
    }

    /// Pins `manifest`: written beside, fsynced, moved into place, the directory fsynced. After an error the old
    /// one still stands.
    pub fn pin(&self, manifest: &Manifest) -> Result<(), HostError> {
        self.dirs.create_missing(self.operators_gid)?;
        write_durably(&self.manifest_path(), &manifest.to_canonical()?, 0o600)
    }

    fn manifest_path(&self) -> PathBuf {
        self.dirs.config.join(MANIFEST)
    }

    /// The resolved configuration as `salaam host plan` shows it, beside what is pinned.
    pub fn plan_report(&self, resolved: &Manifest, pinned: Option<&Manifest>) -> Result<Value, HostError> {
        let canonical = resolved.to_canonical()?;
        let plan: Value = serde_json::from_slice(&canonical).unwrap_or_default();
        let digest = pinned.map(Manifest::digest).transpose()?;
        Ok(serde_json::json!({
            "manifest": resolved.digest()?,
            "pinned": digest,
            "difference": if pinned.is_some() { resolved.difference(pinned) } else { Vec::new() },
            "floor": self.floor,
            "plan": plan,
            "warnings": self.plan_warnings(resolved),
        }))
    }

    fn plan_warnings(&self, resolved: &Manifest) -> Vec<String> {
        let mut warnings = Vec::new();
        if resolved.mode == Mode::ServiceUser {
            warnings.push("no tools user: commands run as the service user, behind the sandbox alone".into());
        }
        if resolved.unsandboxed_commands == Unsandboxed::Allow {
            warnings.push("unsandboxed_commands is `allow`: without a usable sandbox, commands run bare".into());
        }
        if resolved.command_network == Network::Host {
            warnings.push("command_network is `host`: commands reach the host's network".into());
        }
        warnings
    }
}

/// Replaces `path` atomically and durably.
pub(crate) fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> Result<(), HostError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = directory.join(name);
    match std::fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(HostError::io("cannot remove", &beside)(e)),
        Ok(()) | Err(_) => {}
    }
    let write = || -> io::Result<()> {
        // create_new: nobody else's file, and no link, is written through.
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&beside)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(HostError::io("cannot write", path))
}
