//! What is there, and which steps are missing.

use std::path::{Path, PathBuf};

use salaam_core::instance::{Added, Directories, Floor, Instance};

use super::{
    Options, SetupError, ground,
    names::Names,
    running,
    step::{self, Step},
    sudoers, through,
};
use crate::host::{self, account, group_gid, groups_of};

/// Where set-up works. Tests have their own; a host has [`Places::of_host`].
#[derive(Debug, Clone)]
pub struct Places {
    /// Instance files.
    pub etc: PathBuf,
    /// sudo's drop-ins.
    pub sudoers: PathBuf,
    /// Data of instances.
    pub data: PathBuf,
    /// The executor's binaries.
    pub libexec: PathBuf,
    /// cron's list of those who may.
    pub cron_allow: PathBuf,
    /// cron's list of those who may not.
    pub cron_deny: PathBuf,
    /// at's list of those who may not.
    pub at_deny: PathBuf,
    /// polkit's rules, where systemd asks whether an account may keep its service manager without a session.
    pub polkit: PathBuf,
    /// Locked by whoever sets up or takes away; root's, and never removed, since two could then each hold one.
    pub lock: PathBuf,
}

impl Places {
    /// Those of this host; LIBEXEC is relative to the running program unless it is given.
    pub fn of_host(libexec: PathBuf) -> Self {
        Self {
            etc: host::ETC.into(),
            sudoers: "/etc/sudoers.d".into(),
            data: "/var/lib".into(),
            libexec,
            cron_allow: "/etc/cron.allow".into(),
            cron_deny: "/etc/cron.deny".into(),
            at_deny: "/etc/at.deny".into(),
            polkit: "/etc/polkit-1/rules.d".into(),
            lock: "/run/salaam-setup.lock".into(),
        }
    }

    pub(crate) fn instance(&self, service_user: &str) -> PathBuf {
        self.etc.join(format!("{service_user}.toml"))
    }

    /// What an unfinished set-up has added; not `.toml`, so it is no instance.
    pub(crate) fn unfinished(&self, service_user: &str) -> PathBuf {
        self.etc.join(format!("{service_user}.unfinished"))
    }

    /// The base of one instance: `/var/lib/salaam`, or `/var/lib/salaam-NAME` beside it.
    fn base(&self, service_user: &str) -> PathBuf {
        if service_user == "salaam" {
            self.data.join("salaam")
        } else {
            self.data.join(format!("salaam-{service_user}"))
        }
    }

    fn directories(&self, service_user: &str) -> Directories {
        let base = self.base(service_user);
        Directories {
            config: base.join("config"),
            state: base.join("state"),
            runtime: base.join("run"),
            libexec: self.libexec.clone(),
        }
    }
}

/// A set-up that holds together so far.
#[derive(Debug)]
pub(crate) struct Plan {
    pub names: Names,
    pub directories: Directories,
    pub floor: Floor,
    /// What earlier runs added.
    pub added: Added,
    pub warnings: Vec<String>,
}

impl Plan {
    /// Checks names, accounts and other instances.
    pub(crate) fn new(options: &Options, places: &Places) -> Result<Self, SetupError> {
        let names = Names {
            service_user: options.service_user.clone(),
            tools_user: options.tools_user.clone(),
            group: options.group.clone(),
            operators_group: options.operators_group.clone(),
            operators: options.operators.clone(),
        };
        names.check()?;
        step::executor(&places.libexec)?;
        let mut plan = Self {
            directories: places.directories(&names.service_user),
            floor: Floor::default(),
            added: Added::default(),
            warnings: Vec::new(),
            names,
        };
        plan.take_over(places)?;
        plan.check_accounts(places)?;
        plan.check_group(places)?;
        Ok(plan)
    }

    /// What earlier runs wrote down about this instance: its floor stays, and so does what it added.
    fn take_over(&mut self, places: &Places) -> Result<(), SetupError> {
        let file = places.instance(&self.names.service_user);
        if let Some(earlier) = earlier(&file)? {
            if earlier.tools_user != self.names.tools_user || earlier.group != self.names.group {
                return Err(SetupError::Account {
                    who: format!("the instance {}", file.display()),
                    why: format!("it has the tools user {} and the group {}", earlier.tools_user, earlier.group),
                    fix: "run it with the same names, or take it away first (--undo)".into(),
                });
            }
            if self.names.operators_group.is_none() {
                self.names.operators_group.clone_from(&earlier.operators_group);
            }
            self.floor = earlier.floor;
            self.directories = Directories { libexec: places.libexec.clone(), ..earlier.directories };
            self.added = earlier.added;
        }
        if let Some(unfinished) = unfinished(&places.unfinished(&self.names.service_user))? {
            merge(&mut self.added, unfinished);
        }
        Ok(())
    }

    fn check_accounts(&mut self, places: &Places) -> Result<(), SetupError> {
        let refuse = |who: &str, why: String, fix: &str| {
            Err(SetupError::Account { who: who.to_owned(), why, fix: fix.to_owned() })
        };
        let names = &self.names;
        let service = account(&names.service_user);
        if service.as_ref().is_some_and(|service| service.uid == 0) {
            return refuse(&names.service_user, "the service is never root".into(), "name another account");
        }
        let Some(tools) = account(&names.tools_user) else { return Ok(()) };
        if tools.uid == 0 || service.as_ref().is_some_and(|service| service.uid == tools.uid) {
            let why = format!("uid {} is root's or the service user's", tools.uid);
            return refuse(&names.tools_user, why, "name an account of its own");
        }
        let own = places.instance(&names.service_user);
        for (path, instance) in host::list(&places.etc)? {
            // A file that cannot be read whole could name this uid too.
            if path != own && instance?.tools_uid == tools.uid {
                let why = format!("{} has it as its tools user, and neither could keep the other out", path.display());
                return refuse(&names.tools_user, why, "name an account of its own (--tools-user)");
            }
        }
        let expected = [Some(tools.gid), group_gid(&names.group)];
        for gid in groups_of(&tools).into_iter().filter(|gid| !expected.contains(&Some(*gid))) {
            self.warnings.push(format!(
                "{} is in group {gid} beside its own and {}: `gpasswd -d {} GROUP` takes it out",
                names.tools_user, names.group, names.tools_user
            ));
        }
        Ok(())
    }

    /// A tools user with the work group of another instance could write into that one's workspaces.
    fn check_group(&self, places: &Places) -> Result<(), SetupError> {
        let names = &self.names;
        let own = places.instance(&names.service_user);
        for (path, instance) in host::list(&places.etc)? {
            if path != own && instance?.group == names.group {
                return Err(SetupError::Account {
                    who: names.group.clone(),
                    why: format!(
                        "{} has it as its work group, and each tools user could write the other's workspaces",
                        path.display()
                    ),
                    fix: "name a group of its own (--group)".into(),
                });
            }
        }
        Ok(())
    }

    /// Groups, accounts and memberships that are missing.
    pub(crate) fn accounts(&self, places: &Places) -> Result<Vec<Step>, SetupError> {
        let names = &self.names;
        let below = running::orphaned()?;
        let mut steps = Vec::new();
        for group in std::iter::once(&names.group).chain(&names.operators_group) {
            if group_gid(group).is_none() {
                steps.push(Step::AddGroup(group.clone()));
            }
        }
        let users = [
            (&names.service_user, places.base(&names.service_user), "Salaam service"),
            (&names.tools_user, places.data.join(&names.tools_user), "Salaam tools"),
        ];
        for (name, home, comment) in users {
            if account(name).is_none() {
                steps.push(Step::AddUser { name: name.clone(), home, comment, below });
            }
        }
        let work = [&names.service_user, &names.tools_user].map(|user| (user, &names.group));
        // The service must be a member to give its socket to the group.
        let operators = names.operators_group.iter().flat_map(|group| {
            std::iter::once(&names.service_user).chain(&names.operators).map(move |user| (user, group))
        });
        for (user, group) in work.into_iter().chain(operators) {
            let member = account(user)
                .is_some_and(|account| group_gid(group).is_some_and(|gid| groups_of(&account).contains(&gid)));
            if !member {
                steps.push(Step::AddMember { user: user.clone(), group: group.clone() });
            }
        }
        Ok(steps)
    }

    /// The directory of instance files: made before all else, because what is added is written down there.
    pub(crate) fn first(&self, places: &Places) -> Result<Vec<Step>, SetupError> {
        Ok(directory_step(places.etc.clone(), "root", "root", 0o755)?.into_iter().collect())
    }

    /// Directories, the lists of cron and at, and the sudo rule. The accounts exist, or will by then.
    pub(crate) fn ground(&self, places: &Places) -> Result<Vec<Step>, SetupError> {
        let names = &self.names;
        let mut steps = Vec::new();
        for (path, owner, group, mode) in self.wanted(places) {
            if let Some(step) = directory_step(path, owner, group, mode)? {
                steps.push(step);
            }
        }
        for path in denied(places) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if !text.lines().any(|line| line.trim() == names.tools_user) {
                steps.push(Step::Line { path, line: names.tools_user.clone() });
            }
        }
        // Without polkit systemd refuses everybody but root.
        if places.polkit.is_dir() {
            let path = places.polkit.join(format!("50-salaam-{}.rules", names.tools_user));
            let text = polkit_rule(&names.tools_user);
            if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
                steps.push(Step::Rule { path, text });
            }
        }
        let executor = step::executor(&places.libexec)?;
        let text = sudoers::text(&names.service_user, &names.tools_user, &executor, sudoers::Sudo::installed());
        // Before the account exists its uid is not known; a shell fills it in.
        let uid = account(&names.service_user).map(|account| account.uid.to_string());
        let uid = uid.unwrap_or_else(|| format!("$(id -u {})", names.service_user));
        let path = places.sudoers.join(sudoers::name(uid));
        if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            steps.push(Step::Sudoers { path, text });
        }
        Ok(steps)
    }

    fn wanted(&self, places: &Places) -> Vec<(PathBuf, &str, &str, u32)> {
        let names = &self.names;
        let service = names.service_user.as_str();
        let own_group = service;
        let (runtime_group, runtime_mode) =
            names.operators_group.as_deref().map_or((own_group, 0o700), |group| (group, 0o710));
        let mut wanted = Vec::new();
        if let Some(base) = self.directories.state.parent() {
            wanted.push((base.to_owned(), "root", "root", 0o711));
        }
        let tools_home =
            account(&names.tools_user).map_or_else(|| places.data.join(&names.tools_user), |tools| tools.home);
        if tools_home.starts_with(&places.data) {
            wanted.push((tools_home, "root", "root", 0o755));
        }
        wanted.push((self.directories.config.clone(), service, own_group, 0o700));
        wanted.push((self.directories.state.clone(), service, own_group, 0o700));
        wanted.push((self.directories.runtime.clone(), service, runtime_group, runtime_mode));
        wanted
    }

    /// One workspace: parents, the directory, the walk.
    pub(crate) fn workspace(&self, path: &Path, yes: bool) -> Result<Vec<Step>, SetupError> {
        let names = &self.names;
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(SetupError::io("cannot read", "/etc/passwd"))?;
        let own: Vec<&Path> = self.directories.named().into_iter().map(|(_, path)| path).collect();
        // What a link leads to is what would be handed over.
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        ground::check(&real, &host::account::homes(&passwd), &own)?;
        let service_uid = account(&names.service_user).map_or(u32::MAX, |account| account.uid);
        let mut steps = Vec::new();
        if through::owner_and_mode(&real)?.is_none() {
            let directory = |path: PathBuf, owner: &str, group: &str, mode, workspace| Step::Directory {
                path,
                owner: owner.to_owned(),
                group: group.to_owned(),
                mode,
                workspace,
            };
            for parent in ground::missing_parents(&real, service_uid)? {
                steps.push(directory(parent, "root", "root", 0o755, false));
            }
            steps.push(directory(real.clone(), &names.service_user, &names.group, 0o2770, true));
        }
        steps.push(Step::Fit { path: real, yes });
        Ok(steps)
    }

    /// The ACL entries that a workspace needs above it, once it and the accounts exist.
    pub(crate) fn passage(&self, workspace: &Path) -> Result<Vec<Step>, SetupError> {
        let Some(tools) = account(&self.names.tools_user) else { return Ok(Vec::new()) };
        let real = workspace.canonicalize().map_err(SetupError::io("cannot resolve", workspace))?;
        let mut groups = groups_of(&tools);
        groups.extend(group_gid(&self.names.group));
        Ok(through::closed_to(&real, tools.uid, &groups)?.into_iter().map(Step::LetThrough).collect())
    }
}

/// The step that makes a directory, none where it is as wanted. One that is otherwise is not repaired: somebody
/// made it so.
fn directory_step(path: PathBuf, owner: &str, group: &str, mode: u32) -> Result<Option<Step>, SetupError> {
    let Some((uid, gid, found)) = through::owner_and_mode(&path)? else {
        let (owner, group) = (owner.to_owned(), own_group_name(group));
        return Ok(Some(Step::Directory { path, owner, group, mode, workspace: false }));
    };
    let owner_holds = account(owner).is_some_and(|account| account.uid == uid);
    let root = owner == "root";
    // The group matters only where the mode gives it something.
    let group_holds = mode & 0o070 == 0 || root || group_gid(group) == Some(gid);
    let mode_holds = if root { found & 0o022 == 0 && found & mode & 0o005 == mode & 0o005 } else { found == mode };
    if owner_holds && group_holds && mode_holds {
        return Ok(None);
    }
    let shown = path.display();
    let fix = format!("look at it, then `chown {owner}:{group} {shown} && chmod {mode:04o} {shown}`, or move it away");
    let why = format!("it exists with uid {uid}, gid {gid}, mode {found:04o}, and should be {owner}'s with {mode:04o}");
    Err(SetupError::Path { path, why, fix })
}

/// An existing account's own group need not have its name.
fn own_group_name(name: &str) -> String {
    if group_gid(name).is_some() {
        return name.to_owned();
    }
    let own = account(name).and_then(|account| users::get_group_by_gid(account.gid));
    own.and_then(|group| group.name().to_str().map(str::to_owned)).unwrap_or_else(|| name.to_owned())
}

/// The deny lists that hold on this host. A list that does not exist is made only where its absence means that
/// everybody may (Debian's cron); elsewhere, making it would open the program to all others.
fn denied(places: &Places) -> Vec<PathBuf> {
    let mut lists = Vec::new();
    let debian_cron = Path::new("/usr/bin/crontab").exists() && Path::new("/etc/debian_version").exists();
    if !places.cron_allow.exists() && (places.cron_deny.exists() || debian_cron) {
        lists.push(places.cron_deny.clone());
    }
    if places.at_deny.exists() {
        lists.push(places.at_deny.clone());
    }
    lists
}

/// Lingering would start a service manager of the tools user's at boot, outside of every sandbox; polkit's default for
/// one's own account is yes. The name is an account name, which needs no escapes.
fn polkit_rule(tools_user: &str) -> String {
    format!(
        "// Written by `salaam host setup`, which also takes it away (--undo).\n\
         polkit.addRule(function(action, subject) {{\n    \
         if (action.id == \"org.freedesktop.login1.set-self-linger\" && subject.user == \"{tools_user}\") {{\n        \
         return polkit.Result.NO;\n    }}\n}});\n"
    )
}

pub(crate) fn earlier(file: &Path) -> Result<Option<Instance>, SetupError> {
    if file.symlink_metadata().is_err() { Ok(None) } else { Ok(Some(host::instance::read(file)?)) }
}

pub(crate) fn unfinished(file: &Path) -> Result<Option<Added>, SetupError> {
    if file.symlink_metadata().is_err() {
        return Ok(None);
    }
    let text = host::instance::read_trusted(file, host::Trust::ROOT, salaam_core::instance::MAX_BYTES)?;
    let wrong = |e: toml::de::Error| host::HostError::File { path: file.to_owned(), why: e.to_string() };
    Ok(Some(toml::from_str(&text).map_err(wrong)?))
}

/// Adds to `into` what it does not hold yet.
pub(crate) fn merge(into: &mut Added, more: Added) {
    fn each<T: PartialEq>(into: &mut Vec<T>, more: Vec<T>) {
        for item in more {
            if !into.contains(&item) {
                into.push(item);
            }
        }
    }
    each(&mut into.users, more.users);
    each(&mut into.groups, more.groups);
    each(&mut into.members, more.members);
    each(&mut into.files, more.files);
    each(&mut into.directories, more.directories);
    each(&mut into.workspaces, more.workspaces);
    each(&mut into.traverse, more.traverse);
    each(&mut into.lines, more.lines);
}
