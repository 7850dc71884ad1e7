//! Two instances side by side on one host, each for a service user of its own: both work, discovery tells them apart,
//! and neither, with all that its accounts may do, touches anything of the other's.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use salaam_tests::{Account, Host, Mended, Ran, eventually, limit, pair::text, process::Process, ran, sweep};
use serde_json::Value;

/// One installed instance, in the directories that set-up gave it.
struct Instance {
    host: &'static Host,
    service: Account,
    tools: Account,
    operator: Account,
    base: PathBuf,
    workspace: PathBuf,
}

impl Instance {
    fn first(host: &'static Host) -> Self {
        Self {
            host,
            service: host.service.clone(),
            tools: host.tools.clone(),
            operator: host.operator.clone(),
            base: PathBuf::from(format!("/var/lib/salaam-{}", host.service.name)),
            workspace: host.workspace("first"),
        }
    }

    /// Set up beside it, with the stranger as its only operator.
    fn second(host: &'static Host) -> (Self, Mended) {
        let name = |role: &str| host.name(role);
        let workspace = sweep::workspaces_of(&host.tag).join("second");
        let salaam = host.salaam().display().to_string();
        ran::run(&[
            &salaam,
            "host",
            "setup",
            "--service-user",
            &name("svc2"),
            "--tools-user",
            &name("tools2"),
            "--group",
            &name("work2"),
            "--operators-group",
            &name("ops2"),
            "--operator",
            &host.stranger.name,
            "--workspace",
            &workspace.display().to_string(),
        ]);
        let account = |role: &str| Account::named(&name(role)).expect("set-up made it");
        let second = Self {
            host,
            service: account("svc2"),
            tools: account("tools2"),
            operator: host.stranger.clone(),
            base: PathBuf::from(format!("/var/lib/salaam-{}", name("svc2"))),
            workspace,
        };
        let (service, workspace) = (second.service.clone(), second.workspace.clone());
        let gone = Mended::by(move || {
            let stopped = Ran::of(service.command(&salaam).args(["service", "stop"]));
            drop(fs::remove_dir_all(workspace));
            let undo = ["host", "setup", "--service-user", &service.name, "--undo"];
            let undone = Ran::of(std::process::Command::new(&salaam).args(undo));
            if undone.code == Some(0) { Ok(()) } else { Err(std::io::Error::other(format!("{stopped} {undone}"))) }
        });
        (second, gone)
    }

    fn salaam_as(&self, account: &Account, words: &[&str]) -> Ran {
        Ran::of(account.command(self.host.salaam()).args(words))
    }

    fn salaam(&self, words: &[&str]) -> Ran {
        self.salaam_as(&self.service, words)
    }

    #[track_caller]
    fn start(&self) -> Value {
        self.salaam(&["service", "start", "--json"]).ok().json()
    }

    fn socket(&self) -> PathBuf {
        self.base.join("run/operator.sock")
    }

    fn processes(&self) -> Vec<Process> {
        [&self.service, &self.tools].iter().flat_map(|account| Process::of_uid(account.uid)).collect()
    }

    /// What is its own and nobody else's.
    fn belongings(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = ["config", "state", "run", "state/salaam.db", "state/log/service.log"]
            .map(|name| self.base.join(name))
            .to_vec();
        all.extend([self.workspace.clone(), self.workspace.join("made")]);
        all.push(format!("/etc/sudoers.d/salaam-{}", self.service.uid).into());
        all
    }
}

/// What `account` may do with a path: read or list it, write or create in it, connect to it.
fn may(account: &Account, path: &Path) -> String {
    let script = r#"
[ -d "$1" ] && { ls "$1" >/dev/null 2>&1 && printf r; (: >"$1/.two") 2>/dev/null && { printf w; rm "$1/.two"; }; }
[ -f "$1" ] && { head -c 1 "$1" >/dev/null 2>&1 && printf r; (: >>"$1") 2>/dev/null && printf w; }
exit 0"#;
    Ran::of(account.command("sh").args(["-c", script, "sh"]).arg(path)).out()
}

fn connects(account: &Account, socket: &Path) -> bool {
    let script = "import socket, sys\nsocket.socket(socket.AF_UNIX).connect(sys.argv[1])";
    Ran::of(account.command("/usr/bin/python3").args(["-c", script]).arg(socket)).code == Some(0)
}

#[test]
fn two_instances_work_side_by_side_and_neither_touches_the_other() {
    let _turn = limit!(300);
    let host = Host::shared();
    let first = Instance::first(host);
    let (second, gone) = Instance::second(host);
    for instance in [&first, &second] {
        let health = instance.start();
        assert_eq!((health["status"].as_str(), health["floor"].as_str()), (Some("ok"), Some("instance")), "{health:#}");
        assert_eq!(health["tool_execution"]["tool_uid"], instance.tools.uid);
        instance.salaam(&["workspace", "add", &instance.workspace.display().to_string()]).ok();
        let workspace = instance.workspace.display().to_string();
        let ran =
            instance.salaam(&["run", "--yes", "--workspace", &workspace, "--", "sh", "-c", "id -u; echo x >made"]);
        assert_eq!(ran.ok().out().trim(), instance.tools.uid.to_string());
    }

    // Discovery: whoever has no service of its own is told of all; a name chooses, and each answers to its own people.
    for (instance, other) in [(&first, &second), (&second, &first)] {
        let lost = instance.salaam_as(&instance.operator, &["health", "--json"]);
        assert_eq!(lost.code, Some(2), "{lost}");
        assert!(lost.says(&first.service.name) && lost.says(&second.service.name), "both are listed: {lost}");
        let ours = instance.salaam_as(&instance.operator, &["--instance", &instance.service.name, "health", "--json"]);
        assert_eq!(ours.ok().json()["service_uid"], instance.service.uid);
        let theirs = instance.salaam_as(&instance.operator, &["--instance", &other.service.name, "health"]);
        assert_eq!(theirs.code, Some(3), "{theirs}");
        assert!(theirs.says(&other.service.name) && theirs.says("usermod"), "{theirs}");
        // A service account means its own.
        assert_eq!(instance.salaam(&["health", "--json"]).ok().json()["service_uid"], instance.service.uid);
        let wrong = instance.salaam(&["--instance", &other.service.name, "service", "start"]);
        assert_eq!(wrong.code, Some(2), "{wrong}");
    }

    // Every account of the one on every belonging of the other; its own it does reach.
    for (instance, other) in [(&first, &second), (&second, &first)] {
        for path in instance.belongings().iter().filter(|path| !path.starts_with("/etc")) {
            assert_eq!(may(&instance.service, path), "rw", "{} is {}'s own", path.display(), instance.service.name);
        }
        assert!(connects(&instance.service, &instance.socket()) && connects(&instance.operator, &instance.socket()));
        for account in [&instance.service, &instance.tools, &instance.operator] {
            for path in other.belongings() {
                let may = may(account, &path);
                assert_eq!(may, "", "{} may {may} {}", account.name, path.display());
            }
            assert!(!connects(account, &other.socket()), "{} reaches {}", account.name, other.socket().display());
            for process in other.processes() {
                for part in ["environ", "mem", "maps", "fd"] {
                    let path = format!("/proc/{}/{part}", process.pid);
                    let read = Ran::of(account.command("sh").args(["-c", "head -c 1 \"$0\" || ls \"$0\"/", &path]));
                    assert_ne!(read.code, Some(0), "{} reads {path} ({})", account.name, process.words);
                }
                let pid = process.pid.to_string();
                let signalled = Ran::of(account.command("sh").args(["-c", "kill -0 \"$0\"", &pid]));
                assert_ne!(signalled.code, Some(0), "{} signals {}", account.name, process.words);
            }
            let toolsd = host.libexec().join("salaam-toolsd").display().to_string();
            let sudo = Ran::of(account.command("sudo").args(["-n", "-u", &other.tools.name, "--", &toolsd]));
            assert_ne!(sudo.code, Some(0), "{} becomes {}: {sudo}", account.name, other.tools.name);
        }
        // Nor by way of the service: what its account cannot reach is no workspace.
        let add = instance.salaam(&["workspace", "add", &other.workspace.display().to_string()]);
        assert_ne!(add.code, Some(0), "{add}");
        let steal =
            ["run", "--yes", "--workspace", &instance.workspace.display().to_string(), "--", "ls"].map(str::to_owned);
        let words: Vec<&str> = steal.iter().map(String::as_str).collect();
        let other_workspace = other.workspace.display().to_string();
        let state = other.base.join("state").display().to_string();
        let ran = instance.salaam(&[&words[..], &[&other_workspace, &state]].concat());
        assert_eq!(ran.out(), "", "{ran}");
    }

    // The end of the one is not the other's.
    let before = text(&second.salaam(&["service", "status", "--json"]).ok().json(), "version");
    first.salaam(&["service", "stop"]).ok();
    assert_eq!(text(&second.salaam(&["service", "status", "--json"]).ok().json(), "version"), before);
    let undo = ["host", "setup", "--service-user", &second.service.name, "--undo"];
    let busy = Ran::of(std::process::Command::new(host.salaam()).args(undo));
    assert!(busy.code != Some(0) && busy.says("salaam service stop"), "{busy}");
    second.salaam(&["health"]).ok();
    second.salaam(&["service", "stop"]).ok();
    eventually("all of it has ended", Duration::from_secs(5), || second.processes().is_empty().then_some(()));
    gone.mend();
    assert_eq!(Account::named(&host.name("svc2")), None);
    assert!(!second.base.exists() && !Path::new("/etc/salaam").join(format!("{}.toml", second.service.name)).exists());
    // What the undo took away was the second's only.
    first.start();
    first.salaam(&["service", "stop"]).ok();
    let instance = fs::metadata(host.instance()).expect("it is there");
    assert_eq!(instance.permissions().mode() & 0o777, 0o644);
}

/// A tools user or a work group in two instances would be the door between them.
#[test]
fn set_up_refuses_an_instance_that_shares_its_accounts_with_another() {
    let _turn = limit!(60);
    let host = Host::shared();
    let refused = |tools: &str, group: &str, why: &str| {
        let ran = Ran::of(std::process::Command::new(host.salaam()).args([
            "host",
            "setup",
            "--service-user",
            &host.name("svc2"),
            "--tools-user",
            tools,
            "--group",
            group,
        ]));
        assert!(ran.code != Some(0) && ran.says(why), "{ran}");
        assert_eq!(Account::named(&host.name("svc2")), None, "nothing was made");
    };
    refused(&host.tools.name, &host.name("work2"), "neither could keep the other out");
    refused(&host.name("tools2"), &host.name("work"), "could write the other's workspaces");
}
