//! The engine: what needs no executor, and what only a running one can answer.

use std::path::{Path, PathBuf};

use salaam_core::{
    bridge::{ProbeSandbox, SandboxStatus},
    check::Check,
    policy::{Isolation, Landlock, Mode},
};

use super::{
    Process, account, fix,
    judge::{Around, Tried, denied_everything, judge},
    look::{self, Door},
    sandbox, start, sudo,
    tries::{self, Try},
};
use crate::{
    executor::Link,
    host::{Account, Host},
};

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Everything, and every attack that there is on the sandbox.
    Proof,
    /// Everything.
    Whole,
    /// Everything but the programs that write into the system's log each time: sudo, cron, at, loginctl,
    /// systemd-run.
    Quiet,
}

/// What an executor showed.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Its sandbox; none where the executor did not answer.
    pub sandbox: Option<SandboxStatus>,
    /// Every check, those of the sandbox among them.
    pub checks: Vec<Check>,
}

/// The probes of one host.
#[derive(Debug, Clone)]
pub struct Engine {
    host: Host,
    /// The rule that sudo needs, word for word.
    sudo_rule: String,
}

impl Engine {
    /// For this host. `sudo_rule` is what a fix tells to write.
    pub fn new(host: Host, sudo_rule: String) -> Self {
        Self { host, sudo_rule }
    }

    /// What needs no executor. At a start [`Host::create_directories`] comes first.
    pub async fn alone(&self, depth: Depth) -> Vec<Check> {
        match Process::own() {
            Ok(process) => self.alone_as(&process, depth).await,
            Err(e) => {
                vec![Check::unproven("no-new-privs", format!("/proc/self/status: {e}"), "mount /proc for the service")]
            }
        }
    }

    async fn alone_as(&self, process: &Process, depth: Depth) -> Vec<Check> {
        let mut checks = start::checks(&self.host, process);
        // Under no_new_privs sudo refuses everything, which would prove nothing; root may become anybody.
        let sudo_answers = process.no_new_privs == Some(false) && process.uid != 0;
        if self.host.mode == Mode::ToolsUser && depth != Depth::Quiet && sudo_answers {
            checks.extend(self.sudo().await);
        }
        checks
    }

    /// Whether the plan is the pinned one: a question of the start, since what runs keeps the plan that it was
    /// started with.
    pub fn plan(&self) -> Check {
        start::plan_unchanged(&self.host)
    }

    async fn sudo(&self) -> Vec<Check> {
        let (Ok(sudo), Some(tools)) = (start::sudo(), &self.host.tools) else { return Vec::new() };
        let asked = tokio::task::spawn_blocking(move || {
            let list = sudo::ask(&sudo, &["-k", "-n", "-l"]);
            let root = sudo::ask(&sudo, &["-k", "-n", "-u", "root", "--", "/bin/true"]);
            (list, root)
        });
        let lost = || Err(std::io::Error::other("the thread that asked it is gone"));
        let (list, root) = asked.await.unwrap_or_else(|_| (lost(), lost()));
        let pair = sudo::Pair {
            service: &self.host.service_user,
            tools: &tools.name,
            toolsd: self.toolsd().display().to_string(),
            narrow: self.sudo_rule.clone(),
        };
        sudo::judge(&list, &root, &pair)
    }

    /// What only the running executor can tell: the tools user tries, and the sandbox is tried.
    pub async fn with_executor(&self, link: &Link, landlock: Landlock, depth: Depth) -> Measured {
        let mut checks = Vec::new();
        if let (Mode::ToolsUser, Some(tools)) = (self.host.mode, &self.host.tools) {
            let ours = Process::own().map(|process| process.groups).unwrap_or_default();
            checks.push(account::tools_groups(&self.host, tools, &link.hello().groups, &ours));
            checks.extend(self.tried(link, tools, depth).await);
        }
        let prove = depth == Depth::Proof;
        let sandbox = match link.probe_sandbox(ProbeSandbox { landlock, prove }).await {
            Ok(status) => Some(sandbox::believed(status, landlock, prove)),
            Err(error) => {
                tracing::warn!(%error, "the sandbox could not be probed");
                None
            }
        };
        checks.extend(sandbox.iter().flat_map(|status| status.checks.iter().cloned()));
        let usable = sandbox.as_ref().is_some_and(|status| status.sandbox.is_some());
        let measured = Isolation::of(self.host.mode, usable);
        checks.push(start::required_isolation(self.host.config.required_isolation, measured));
        Measured { sandbox, checks }
    }

    async fn tried(&self, link: &Link, tools: &Account, depth: Depth) -> Vec<Check> {
        let loud = depth != Depth::Quiet;
        let door = Door::of(&self.host);
        let tries = tries::all(&self.host, tools, door.as_ref().map(Door::path), loud);
        let own: Vec<_> = tries.iter().map(look::look).collect();
        let attempts = tries.iter().enumerate().map(|(n, one)| one.attempt(n)).collect();
        let theirs = link.attempt(attempts).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the tools user could not be asked to try");
            Vec::new()
        });
        drop(door);
        let mut theirs = theirs.into_iter();
        let tried: Vec<Tried> =
            tries.into_iter().zip(own).map(|(what, own)| Tried { what, own, theirs: theirs.next() }).collect();
        let around = Around { proc_hides: look::proc_hides(), denied_everything: denied_everything(&tried) };
        let asked = |id: &&&str| loud || !tries::BY_PROGRAM.contains(*id);
        let groups = &link.hello().groups;
        let mut checks: Vec<Check> = tries::CHECKS
            .iter()
            .filter(asked)
            .map(|id| judge(id, &tried, around, |what| self.remedy(tools, groups, what)))
            .collect();
        if loud && tries::lingers(tools) {
            checks.retain(|check| check.id != "can-linger");
            let evidence = format!("/var/lib/systemd/linger/{} exists", tools.name);
            checks.push(Check::warn("can-linger", evidence, format!("sudo loginctl disable-linger {}", tools.name)));
        }
        checks
    }

    /// The command that mends what the tools user could do.
    fn remedy(&self, tools: &Account, groups: &[u32], what: &Try) -> String {
        let (host, name) = (&self.host, &tools.name);
        let path = &what.path;
        let close = |directory: &Path| format!("chmod 0700 {}", fix::shown(directory));
        match what.check {
            "state-readable" => close(&host.dirs.state),
            "config-readable" => close(&host.dirs.config),
            "credential-readable" => format!("chmod 0600 {}", fix::shown(path)),
            "environ-readable" => format!(
                "take away what lets {name} look into processes of {}: a mount on {} (umount it), or a capability of the \
                 account (/etc/security/capability.conf); then start again",
                host.service_user,
                fix::shown(path)
            ),
            "operator-socket-reachable" => self.close_runtime(name, groups),
            "docker-socket-reachable" | "stk-socket-reachable" => close_socket(name, groups, path),
            // The service's own: only the mode of its directory keeps others out.
            "session-bus-socket-reachable" if path.starts_with(format!("/run/user/{}", host.service_uid)) => {
                close(Path::new(&format!("/run/user/{}", host.service_uid)))
            }
            "session-bus-socket-reachable" => format!(
                "sudo loginctl disable-linger {name}; sudo loginctl terminate-user {name}; sudo systemctl mask --now user@{}.service",
                tools.uid
            ),
            "tools-user-can-sudo" => {
                format!("sudo -l -U {name} (as root) shows the rule; take {name} out of it with visudo")
            }
            // The rule that set-up writes.
            "can-linger" => format!(
                "printf '%s\\n' 'polkit.addRule(function(action, subject) {{ if (action.id == \
                 \"org.freedesktop.login1.set-self-linger\" && subject.user == \"{name}\") return polkit.Result.NO; }});' | \
                 sudo tee /etc/polkit-1/rules.d/50-salaam-{name}.rules"
            ),
            "can-cron" => deny(name, "cron"),
            "can-at" => deny(name, "at"),
            // The table of checks is closed; a row without its remedy still says what was seen.
            _ => "take that right away from the tools user".into(),
        }
    }

    fn close_runtime(&self, name: &str, groups: &[u32]) -> String {
        let host = &self.host;
        let runtime = fix::shown(&host.dirs.runtime);
        match host.operators_gid {
            Some(gid) if groups.contains(&gid) => format!("sudo gpasswd -d {name} {}", fix::group(gid)),
            Some(_) => format!("setfacl -b -k {runtime} && chmod 0710 {runtime}"),
            None => format!("setfacl -b -k {runtime} && chmod 0700 {runtime}"),
        }
    }

    fn toolsd(&self) -> PathBuf {
        self.host.dirs.libexec.join("salaam-toolsd")
    }
}

/// By which right the tools user reached it: its group, everybody's, or a list.
fn close_socket(name: &str, groups: &[u32], path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let shown = fix::shown(path);
    match path.metadata() {
        Ok(meta) if meta.mode() & 0o002 != 0 => format!("sudo chmod o-rwx {shown}"),
        Ok(meta) if groups.contains(&meta.gid()) => format!("sudo gpasswd -d {name} {}", fix::group(meta.gid())),
        Ok(_) | Err(_) => format!("sudo setfacl -x u:{name} {shown}"),
    }
}

/// cron and at know one list of those who may, and else one of those who may not.
fn deny(name: &str, daemon: &str) -> String {
    if Path::new(&format!("/etc/{daemon}.allow")).exists() {
        format!("sudo sed -i '/^{name}$/d' /etc/{daemon}.allow")
    } else {
        format!("echo {name} | sudo tee -a /etc/{daemon}.deny")
    }
}
