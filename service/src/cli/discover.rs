//! Which service is meant, and who must be listening there.
//!
//! The choice is a function of what was asked, what is set up and what exists; only [`place`] and [`own_place`]
//! look at the host.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::Uid;
use salaam_core::instance::Instance;

use super::trouble::Trouble;
use crate::host::{self, Account, Dirs, HostError, SOCKET_NAME, Variables};

/// Where one service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Its instance, where it has one.
    pub instance: Option<String>,
    /// Its operator socket.
    pub socket: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// The uid that must be listening.
    pub owner: u32,
    /// The group of its operators.
    pub operators_group: Option<String>,
}

/// What the caller says and is.
#[derive(Debug, Clone, Default)]
struct Ask {
    /// `--instance`.
    flag: Option<String>,
    /// `SALAAM_INSTANCE`.
    instance: Option<String>,
    /// `SALAAM_RUNTIME_DIR`.
    runtime: Option<PathBuf>,
    /// `SALAAM_STATE_DIR`.
    state: Option<PathBuf>,
    /// The caller's own state directory, by XDG.
    own_state: PathBuf,
    /// The caller's own runtime directory, by XDG.
    own_runtime: PathBuf,
    /// The caller.
    uid: u32,
}

/// Finds the service that is meant.
pub(super) fn place(flag: Option<&str>) -> Result<Place, Trouble> {
    let ask = asked(flag)?;
    let instances = instances()?;
    let tools: Vec<u32> =
        instances.iter().filter_map(|(_, read)| read.as_ref().ok()).map(|instance| instance.tools_uid).collect();
    let mut place = choose(&ask, instances, |socket| fs::symlink_metadata(socket).is_ok())?;
    // Root may speak to anybody's service, and so may an operator of a host that was set up by hand, who names
    // its runtime directory. Only whoever owns a directory that nobody else can write can bind in it.
    if place.instance.is_none()
        && (ask.uid == 0 || ask.runtime.is_some())
        && let Some(dir) = place.socket.parent()
        && let Ok(directory) = fs::metadata(dir)
    {
        if directory.mode() & 0o022 != 0 || tools.contains(&directory.uid()) {
            return Err(Trouble::refused(
                "runtime-dir-mode",
                format!(
                    "whoever listens in {} (mode {:04o}, {}) may be anybody: nothing was sent",
                    dir.display(),
                    directory.mode() & 0o7777,
                    account(directory.uid())
                ),
                "name the runtime directory of a service; it has mode 0700 or 0710",
            ));
        }
        place.owner = directory.uid();
    }
    Ok(place)
}

/// The caller's own service: the one that `service start` starts.
pub(super) fn own_place(flag: Option<&str>) -> Result<Place, Trouble> {
    let ask = asked(flag)?;
    let me = caller()?;
    let mine = host::for_service_uid(Path::new(host::ETC), me.uid).map_err(misconfigured)?.map(|(_, mine)| mine);
    if let Some(name) = ask.flag.or(ask.instance)
        && mine.as_ref().is_none_or(|mine| mine.service_user != name)
    {
        return Err(Trouble::usage(
            format!("the service of `{name}` is started by that account, not by {}", account(me.uid)),
            format!("sudo -u {name} salaam service start"),
        ));
    }
    let dirs = Dirs::choose(&Variables::of_process(), mine.as_ref(), &me, &executable()?).map_err(misconfigured)?;
    Ok(Place {
        instance: mine.as_ref().map(|mine| mine.service_user.clone()),
        socket: dirs.socket(),
        state: dirs.state,
        owner: me.uid,
        operators_group: mine.and_then(|mine| mine.operators_group),
    })
}

/// The name of an account, with its uid.
pub(super) fn account(uid: u32) -> String {
    account_name(uid).map_or_else(|| format!("uid {uid}"), |name| format!("`{name}` (uid {uid})"))
}

/// The name of an account.
pub(super) fn account_name(uid: u32) -> Option<String> {
    host::account_of(uid).map(|account| account.name)
}

fn choose(ask: &Ask, mut instances: Instances, exists: impl Fn(&Path) -> bool) -> Result<Place, Trouble> {
    if let Some(name) = &ask.flag {
        return named(instances, name).map(|instance| place_of(&instance));
    }
    if let Some(runtime) = &ask.runtime {
        let of = match &ask.instance {
            Some(name) => Some(named(instances, name)?),
            None => instances
                .into_iter()
                .filter_map(|(_, read)| read.ok())
                .find(|instance| instance.directories.runtime == *runtime),
        };
        let place = of.as_ref().map(place_of);
        let state = place.as_ref().map(|place| place.state.clone());
        return Ok(Place {
            socket: runtime.join(SOCKET_NAME),
            state: ask.state.clone().or(state).unwrap_or_else(|| ask.own_state.clone()),
            owner: place.as_ref().map_or(ask.uid, |place| place.owner),
            instance: place.as_ref().and_then(|place| place.instance.clone()),
            operators_group: place.and_then(|place| place.operators_group),
        });
    }
    if let Some(name) = &ask.instance {
        return named(instances, name).map(|instance| place_of(&instance));
    }
    let own = Place {
        instance: None,
        socket: ask.own_runtime.join(SOCKET_NAME),
        state: ask.own_state.clone(),
        owner: ask.uid,
        operators_group: None,
    };
    // Whoever names a state directory means the service that has it.
    if ask.state.is_some() {
        return Ok(own);
    }
    // A service account speaks to its own service, wherever that is.
    let mine = |read: &Result<Instance, Trouble>| read.as_ref().is_ok_and(|instance| instance.service_uid == ask.uid);
    if let Some(mine) = instances.iter().position(|(_, read)| mine(read)) {
        return instances.swap_remove(mine).1.map(|instance| place_of(&instance));
    }
    if exists(&own.socket) {
        return Ok(own);
    }
    match (instances.pop(), instances.is_empty()) {
        (None, _) => Ok(own),
        (Some((_, one)), true) => one.map(|instance| place_of(&instance)),
        (Some((last, _)), false) => {
            let names = instances.into_iter().map(|(name, _)| name).chain([last]).collect();
            Err(Trouble::SeveralInstances { names })
        }
    }
}

fn named(instances: Instances, name: &str) -> Result<Instance, Trouble> {
    let known: Vec<String> = instances.iter().map(|(name, _)| name.clone()).collect();
    match instances.into_iter().find(|(other, _)| other == name) {
        Some((_, read)) => read,
        None => {
            let known = known.join(", ");
            let fix =
                if known.is_empty() { "sudo salaam host setup …".into() } else { format!("name one of: {known}") };
            Err(Trouble::usage(format!("there is no {}/{name}.toml", host::ETC), fix))
        }
    }
}

fn place_of(instance: &Instance) -> Place {
    Place {
        instance: Some(instance.service_user.clone()),
        socket: instance.directories.runtime.join(SOCKET_NAME),
        state: instance.directories.state.clone(),
        owner: instance.service_uid,
        operators_group: instance.operators_group.clone(),
    }
}

fn asked(flag: Option<&str>) -> Result<Ask, Trouble> {
    let variables = Variables::of_process();
    let me = caller()?;
    let own = Dirs::choose(&variables, None, &me, &executable()?).map_err(misconfigured)?;
    Ok(Ask {
        flag: flag.map(str::to_owned),
        instance: env::var("SALAAM_INSTANCE").ok().filter(|name| !name.is_empty()),
        runtime: variables.path("SALAAM_RUNTIME_DIR"),
        state: variables.path("SALAAM_STATE_DIR"),
        own_state: own.state,
        own_runtime: own.runtime,
        uid: me.uid,
    })
}

fn caller() -> Result<Account, Trouble> {
    let uid = Uid::effective().as_raw();
    let unknown = || Trouble::refused("account-missing", format!("there is no account with uid {uid}"), "");
    host::account_of(uid).ok_or_else(unknown)
}

fn executable() -> Result<PathBuf, Trouble> {
    env::current_exe().map_err(|source| Trouble::Local { attempted: "finding", path: "/proc/self/exe".into(), source })
}

/// The host's configuration cannot be used; its message holds the remedy.
pub(super) fn misconfigured(why: HostError) -> Trouble {
    Trouble::refused(why.id(), why.to_string(), "")
}

/// Every instance file by the name of its service account. One that is damaged counts when it is meant.
type Instances = Vec<(String, Result<Instance, Trouble>)>;

fn instances() -> Result<Instances, Trouble> {
    let found = host::list(Path::new(host::ETC)).map_err(misconfigured)?;
    let name = |path: PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(found.into_iter().map(|(path, read)| (name(path), read.map_err(misconfigured))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, uid: u32) -> Instance {
        let dir = |what| format!("{what} = \"/var/lib/{name}/{what}\"\n");
        let text = format!(
            "version = 1\nservice_user = \"{name}\"\nservice_uid = {uid}\ntools_user = \"t\"\ntools_uid = 9\ngroup = \"g\"\ngroup_gid = 9\n\
             operators_group = \"ops\"\n[directories]\n{}{}{}{}",
            dir("config"),
            dir("state"),
            dir("runtime"),
            dir("libexec"),
        );
        Instance::parse(&text).unwrap()
    }

    fn entry(name: &str, uid: u32) -> (String, Result<Instance, Trouble>) {
        (name.to_owned(), Ok(instance(name, uid)))
    }

    fn ask() -> Ask {
        Ask { own_state: "/home/u/state".into(), own_runtime: "/run/user/5/salaam".into(), uid: 5, ..Ask::default() }
    }

    #[test]
    fn the_order_of_the_contract() {
        let two = || vec![entry("a", 100), entry("b", 101)];
        let found = |ask: Ask, instances: Instances, own: bool| {
            choose(&ask, instances, |_| own).map(|place| (place.socket.display().to_string(), place.owner)).unwrap()
        };
        let own = || ("/run/user/5/salaam/operator.sock".to_owned(), 5);
        let of_a = || ("/var/lib/a/runtime/operator.sock".to_owned(), 100);
        let flag = Ask { flag: Some("a".into()), runtime: Some("/x".into()), ..ask() };
        let runtime = Ask { runtime: Some("/x".into()), ..ask() };
        let of_b = Ask { runtime: Some("/var/lib/b/runtime".into()), ..ask() };
        let named = Ask { instance: Some("a".into()), ..ask() };
        assert_eq!(found(flag, two(), true), of_a());
        assert_eq!(found(runtime, two(), true), ("/x/operator.sock".into(), 5));
        assert_eq!(found(of_b, two(), true), ("/var/lib/b/runtime/operator.sock".into(), 101));
        assert_eq!(found(named, two(), true), of_a());
        assert_eq!(found(ask(), two(), true), own());
        assert_eq!(found(ask(), vec![entry("a", 100)], false), of_a());
        assert_eq!(found(ask(), vec![], false), own());
        assert_eq!(found(Ask { uid: 100, ..ask() }, two(), true), of_a());
    }

    #[test]
    fn several_services_are_listed_and_none_is_guessed() {
        let two = || vec![entry("a", 100), entry("b", 101)];
        let trouble = choose(&ask(), two(), |_| false).unwrap_err();
        assert!(trouble.to_string().contains("a, b") && trouble.exit() == 2);
        let unknown = choose(&Ask { flag: Some("c".into()), ..ask() }, two(), |_| true).unwrap_err();
        assert!(unknown.fix().contains("a, b") && unknown.exit() == 2);
    }

    #[test]
    fn a_damaged_instance_file_is_an_error_only_where_it_is_meant() {
        let with_damage = || vec![("a".to_owned(), Err(Trouble::refused("instance-invalid", "", ""))), entry("b", 101)];
        let of = |name: &str| Ask { flag: Some(name.into()), ..ask() };
        assert_eq!(choose(&of("b"), with_damage(), |_| false).unwrap().owner, 101);
        assert_eq!(choose(&of("a"), with_damage(), |_| false).unwrap_err().exit(), 2);
        assert_eq!(choose(&ask(), with_damage(), |_| true).unwrap().owner, 5);
    }
}
