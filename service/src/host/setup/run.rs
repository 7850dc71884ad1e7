//! The order of a set-up: write down, accounts, ground, workspaces, and the instance file last, because with it
//! the instance exists.

use std::{
    fs::{File, TryLockError},
    io::{self, IsTerminal as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use salaam_core::instance::{Added, Instance};

use super::{
    Places, Report, SetupError,
    fit::MANY_CHANGES,
    plan::Plan,
    step::{Step, quote, quote_path},
    undo,
};
use crate::host::{HostError, account, group_gid, plan::write_durably};

/// What `salaam host setup` was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The account that the service runs as; made where it is missing.
    pub service_user: String,
    /// The account that runs commands; made where it is missing.
    pub tools_user: String,
    /// The group that shares the workspaces; made where it is missing.
    pub group: String,
    /// Workspaces to make, or to fit.
    pub workspaces: Vec<PathBuf>,
    /// The group whose members are operators; made where it is missing.
    pub operators_group: Option<String>,
    /// People to put into it.
    pub operators: Vec<String>,
    /// Only print the commands.
    pub dry_run: bool,
    /// Take away what was added.
    pub undo: bool,
    /// Yes to very large workspaces.
    pub yes: bool,
}

/// Sets up this host, or takes the instance away. Messages and commands go to `out`.
pub fn run(options: &Options, libexec: PathBuf, out: &mut dyn Write) -> Result<(), SetupError> {
    let executable = std::env::current_exe().map_err(SetupError::io("cannot find", "/proc/self/exe"))?;
    run_in(options, &Places::of_host(libexec), &executable, out)
}

/// The same in given places; `executable` is the `salaam` that is started again for the walk.
pub fn run_in(options: &Options, places: &Places, executable: &Path, out: &mut dyn Write) -> Result<(), SetupError> {
    if !nix::unistd::geteuid().is_root() && !options.dry_run {
        return Err(SetupError::NotRoot);
    }
    // Before anything is read: what a plan or an undo rests on must not change under it.
    let _alone = if options.dry_run { None } else { Some(alone(&places.lock, WAIT)?) };
    if options.undo {
        return undo::undo(&options.service_user, places, out);
    }
    let plan = Plan::new(options, places)?;
    for warning in &plan.warnings {
        say(out, &format!("# warning: {warning}"));
    }
    let mut setup = Setup { options, places, executable, added: plan.added.clone(), plan, out };
    setup.carry_out(setup.plan.first(places)?)?;
    setup.carry_out(setup.plan.accounts(places)?)?;
    setup.carry_out(setup.plan.ground(places)?)?;
    for workspace in &options.workspaces {
        setup.carry_out(setup.plan.workspace(workspace, options.yes)?)?;
        if workspace.exists() {
            setup.carry_out(setup.plan.passage(workspace)?)?;
        } else {
            let tools = quote(&setup.plan.names.tools_user);
            let shown = quote_path(workspace);
            say(
                setup.out,
                &format!("# what is above {shown} then gets `setfacl -m u:{tools}:--x` where {tools} cannot pass"),
            );
        }
    }
    setup.finish()
}

struct Setup<'a> {
    options: &'a Options,
    places: &'a Places,
    executable: &'a Path,
    plan: Plan,
    added: Added,
    out: &'a mut dyn Write,
}

impl Setup<'_> {
    fn carry_out(&mut self, steps: Vec<Step>) -> Result<(), SetupError> {
        for step in steps {
            say(self.out, &step.command(&self.plan.names));
            if self.options.dry_run {
                continue;
            }
            if let Step::Fit { path, yes } = &step {
                self.fit(path, *yes)?;
            }
            let before = self.added.clone();
            let performed = step.perform(&self.plan.names, &mut self.added);
            if self.added != before {
                self.write_down()?;
            }
            performed?;
        }
        Ok(())
    }

    /// What was added so far, for `--undo` after a set-up that stopped half-way.
    fn write_down(&self) -> Result<(), SetupError> {
        let path = self.places.unfinished(&self.plan.names.service_user);
        let text =
            toml::to_string(&self.added).map_err(|e| HostError::File { path: path.clone(), why: e.to_string() })?;
        Ok(write_durably(&path, text.as_bytes(), 0o600)?)
    }

    fn fit(&mut self, path: &Path, yes: bool) -> Result<(), SetupError> {
        let counted = self.child(path, true)?;
        let many = counted.changes > MANY_CHANGES && !yes;
        if many && !agreed(&counted)? {
            return Err(SetupError::ManyChanges { path: counted.path, changes: counted.changes });
        }
        let done = self.child(path, false)?;
        let shown = done.path.display();
        say(self.out, &format!("# {shown}: {} entries changed, {} left as they are", done.changes, done.left));
        for (at, why) in &done.listed {
            say(self.out, &format!("#   {}: {why}", at.escape_debug()));
        }
        if done.left > done.listed.len().try_into().unwrap_or(u64::MAX) {
            say(self.out, "#   and more");
        }
        Ok(())
    }

    /// The walk, in a process that has given root up before it looks at the first entry.
    fn child(&self, path: &Path, count: bool) -> Result<Report, SetupError> {
        let names = &self.plan.names;
        let mut command = Command::new(self.executable);
        command.args(["host", "fit-workspace", "--service-user", &names.service_user, "--group", &names.group]);
        if count {
            command.arg("--count");
        }
        command.arg("--").arg(path).env_clear().current_dir("/").stdin(Stdio::null());
        let shown = format!("salaam host fit-workspace {}", path.display());
        let failed = |status: String, stderr: String| SetupError::Command { command: shown.clone(), status, stderr };
        let done = command.output().map_err(|e| failed(e.to_string(), String::new()))?;
        if !done.status.success() {
            let stderr = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(failed(done.status.to_string(), stderr));
        }
        serde_json::from_slice(&done.stdout).map_err(|e| failed(done.status.to_string(), e.to_string()))
    }

    fn finish(self) -> Result<(), SetupError> {
        let names = &self.plan.names;
        let path = self.places.instance(&names.service_user);
        let ids = (account(&names.service_user), account(&names.tools_user), group_gid(&names.group));
        let (Some(service), Some(tools), Some(gid)) = ids else {
            // Only a dry run gets here without the accounts.
            let text = self.sketch();
            say(self.out, &format!("install -m 0644 /dev/stdin {} <<END\n{text}END", quote_path(&path)));
            return Ok(());
        };
        let instance = Instance {
            version: Instance::VERSION,
            service_user: service.name,
            service_uid: service.uid,
            tools_user: tools.name,
            tools_uid: tools.uid,
            group: names.group.clone(),
            group_gid: gid,
            operators_group: names.operators_group.clone(),
            directories: self.plan.directories.clone(),
            floor: self.plan.floor.clone(),
            added: self.added.clone(),
        };
        let text = instance.to_text().map_err(|source| HostError::Instance { path: path.clone(), source })?;
        if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            say(self.out, &format!("install -m 0644 /dev/stdin {} <<'END'\n{text}END", quote_path(&path)));
            if !self.options.dry_run {
                write_durably(&path, text.as_bytes(), 0o644)?;
            }
        }
        if !self.options.dry_run {
            let unfinished = self.places.unfinished(&instance.service_user);
            match std::fs::remove_file(&unfinished) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(SetupError::io("cannot remove", unfinished)(e));
                }
                Ok(()) | Err(_) => {}
            }
            say(self.out, &format!("# {} is set up", instance.service_user));
        }
        Ok(())
    }

    /// The instance file of accounts that do not exist yet: the shell that runs the commands fills the ids in.
    fn sketch(&self) -> String {
        let (names, directories) = (&self.plan.names, &self.plan.directories);
        let mut text = format!(
            "version = 1\nservice_user = \"{service}\"\nservice_uid = $(id -u {service})\ntools_user = \"{tools}\"\n\
             tools_uid = $(id -u {tools})\ngroup = \"{group}\"\ngroup_gid = $(getent group {group} | cut -d: -f3)\n",
            service = names.service_user,
            tools = names.tools_user,
            group = names.group,
        );
        if let Some(group) = &names.operators_group {
            text.push_str(&format!("operators_group = \"{group}\"\n"));
        }
        text.push_str("[directories]\n");
        for (key, path) in directories.named() {
            text.push_str(&format!("{key} = \"{}\"\n", path.display()));
        }
        text.push_str("[floor]\nunsandboxed_commands = \"refuse\"\n");
        text
    }
}

/// Held for the whole of a set-up or an undo: two at once would each write down half. The kernel lets go of it. The
/// file is nobody else's to open, so nobody else can hold it.
fn alone(lock: &Path, wait: Duration) -> Result<File, SetupError> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(lock)
        .map_err(SetupError::io("cannot open", lock))?;
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(TryLockError::WouldBlock) => return Err(SetupError::Busy { path: lock.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(SetupError::io("cannot lock", lock)(source)),
        }
    }
}

/// Another set-up takes seconds, unless it walks a very large workspace or waits for somebody's yes.
const WAIT: Duration = Duration::from_secs(30);

fn agreed(report: &Report) -> Result<bool, SetupError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Ok(false);
    }
    eprint!("{}: {} entries get another group or mode. Go on? [y/N] ", report.path.display(), report.changes);
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(SetupError::io("cannot read the answer from", "/dev/stdin"))?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}

/// A reader that went away stops the messages, never the set-up half-way.
pub(crate) fn say(out: &mut dyn Write, line: &str) {
    let _ = writeln!(out, "{line}");
}
