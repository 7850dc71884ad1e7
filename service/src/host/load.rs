//! Putting the host together: who we are, where things are, what is wanted.

use std::path::{Path, PathBuf};

use salaam_core::{
    instance::Instance,
    policy::{Mode, Unsandboxed},
};

use super::{
    Account, Config, Dirs, ETC, Flags, HostError, MAX_CONFIG_BYTES, Trust, Variables, account, account_of,
    for_service_uid, group_gid, instance::read_trusted,
};

/// The host, as this service sees it. Nothing was created or changed to learn it.
#[derive(Debug, Clone)]
pub struct Host {
    /// Where the instance lives.
    pub dirs: Dirs,
    /// What is wanted.
    pub config: Config,
    /// What the command line said.
    pub flags: Flags,
    /// What root wrote down, where `host setup` was run.
    pub instance: Option<Instance>,
    /// The uid of this process.
    pub service_uid: u32,
    /// Its account's name.
    pub service_user: String,
    /// Which account runs commands.
    pub mode: Mode,
    /// The tools user; none in service-user mode, and none where the account does not exist (the check
    /// `tools-user-missing`).
    pub tools: Option<Account>,
    /// The operators group, where one is configured.
    pub operators_gid: Option<u32>,
    /// `instance` where an instance file stands behind the executor's floor, else `builtin`.
    pub floor: &'static str,
    /// The service user's home.
    pub(crate) home: PathBuf,
}

/// Loads the host for this process: its uid, its variables, its executable.
pub fn load(flags: Flags) -> Result<Host, HostError> {
    let executable = std::env::current_exe().map_err(HostError::io("cannot find", "/proc/self/exe"))?;
    load_from(flags, &Variables::of_process(), Path::new(ETC), nix::unistd::geteuid().as_raw(), &executable)
}

/// The same with everything given; `etc` is where instance files are.
pub fn load_from(
    flags: Flags,
    variables: &Variables,
    etc: &Path,
    service_uid: u32,
    executable: &Path,
) -> Result<Host, HostError> {
    let service = account_of(service_uid).ok_or_else(|| HostError::NoAccount {
        who: format!("uid {service_uid}"),
        fix: "give it an entry in the host's account database".into(),
    })?;
    let found = for_service_uid(etc, service_uid)?;
    let instance = found.as_ref().map(|(_, instance)| instance);
    let dirs = Dirs::choose(variables, instance, &service, executable)?;
    let path = dirs.config.join("host.toml");
    let text = match read_config(&path, service_uid) {
        Err(error) => return Err(closed(&dirs, service_uid).unwrap_or(error)),
        Ok(text) => text,
    };
    let base = instance.map_or_else(Config::default, |instance| Config {
        tools_user: Some(instance.tools_user.clone()),
        operators_group: instance.operators_group.clone(),
        ..Config::default()
    });
    let file = text.as_deref().map(|text| (path.as_path(), text));
    let config = Config::layered(&base, file, variables, &flags)?;
    if let Some((file, instance)) = &found {
        within_floor(&config, instance, file)?;
    }
    let operators_gid = match &config.operators_group {
        None => None,
        Some(name) => Some(group_gid(name).ok_or_else(|| HostError::NoGroup { name: name.clone() })?),
    };
    Ok(Host {
        mode: if config.tools_user.is_some() { Mode::ToolsUser } else { Mode::ServiceUser },
        tools: config.tools_user.as_deref().and_then(account),
        floor: if found.is_some() { "instance" } else { "builtin" },
        dirs,
        config,
        flags,
        instance: found.map(|(_, instance)| instance),
        service_uid,
        service_user: service.name,
        operators_gid,
        home: service.home,
    })
}

impl Host {
    /// Makes the directories that are missing, and returns them.
    pub fn create_directories(&self) -> Result<Vec<PathBuf>, HostError> {
        self.dirs.create_missing(self.operators_gid)
    }
}

/// The text of `host.toml`, or none where there is none.
fn read_config(path: &Path, service_uid: u32) -> Result<Option<String>, HostError> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Ok(_) | Err(_) => read_trusted(path, Trust { uid: service_uid }, MAX_CONFIG_BYTES).map(Some),
    }
}

/// Where it is a directory that keeps us out, that is the reason, with every other one that is not as it must be.
fn closed(dirs: &Dirs, service_uid: u32) -> Option<HostError> {
    let shut = dirs.config.read_dir().is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    let checks: Vec<_> =
        dirs.checks(service_uid, None).into_iter().filter(salaam_core::check::Check::refuses).collect();
    (shut && !checks.is_empty()).then_some(HostError::Closed(checks))
}

/// What root wrote down is the most that a configuration may ask for. It is said here, at once and by name; the
/// executor, which reads the same file, would refuse it later.
fn within_floor(config: &Config, instance: &Instance, file: &Path) -> Result<(), HostError> {
    let refuse = |key, given: &str, allowed: &str| {
        Err(HostError::Floor { key, given: given.to_owned(), allowed: allowed.to_owned(), file: file.to_owned() })
    };
    let tools = config.tools_user.as_deref().unwrap_or_default();
    if tools != instance.tools_user {
        return refuse("tools_user", tools, &instance.tools_user);
    }
    if let (Some(given), Some(allowed)) = (&config.operators_group, &instance.operators_group)
        && given != allowed
    {
        return refuse("operators_group", given, allowed);
    }
    match (config.unsandboxed_commands, instance.floor.unsandboxed_commands) {
        (given @ Unsandboxed::Allow, allowed @ Unsandboxed::Refuse) => {
            refuse("unsandboxed_commands", given.as_str(), allowed.as_str())
        }
        (Unsandboxed::Allow, Unsandboxed::Allow) | (Unsandboxed::Refuse, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_cannot_ask_for_more_than_the_instance_allows() {
        let text = "version = 1\nservice_user = \"s\"\nservice_uid = 1\ntools_user = \"t\"\ntools_uid = 2\ngroup = \"w\"\ngroup_gid = 3\noperators_group = \"o\"\n[directories]\nconfig = \"/v/c\"\nstate = \"/v/s\"\nruntime = \"/v/r\"\nlibexec = \"/v/l\"\n";
        let instance = Instance::parse(text).unwrap();
        let base = Config { tools_user: Some("t".into()), operators_group: Some("o".into()), ..Config::default() };
        let refused = |config: Config| match within_floor(&config, &instance, Path::new("/etc/salaam/s.toml")) {
            Err(HostError::Floor { key, .. }) => Some(key),
            Ok(()) | Err(_) => None,
        };
        assert_eq!(refused(base.clone()), None);
        assert_eq!(refused(Config { tools_user: None, ..base.clone() }), Some("tools_user"));
        assert_eq!(refused(Config { tools_user: Some("x".into()), ..base.clone() }), Some("tools_user"));
        assert_eq!(refused(Config { operators_group: Some("x".into()), ..base.clone() }), Some("operators_group"));
        let allow = Config { unsandboxed_commands: Unsandboxed::Allow, ..base };
        assert_eq!(refused(allow), Some("unsandboxed_commands"));
    }
}
