//! Which instance applies, what ends the start, and what no plan may ask for.

use std::{fs, os::unix::fs::PermissionsExt as _};

use salaam_core::{
    command::Command,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::Landlock,
};

use super::*;

struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("salaam-floor-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn with(self, name: &str, text: &str) -> Self {
        let path = self.0.join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        self
    }

    fn floor(&self, own: u32, caller: Caller) -> Result<Floor, FloorError> {
        Floor::read(&self.0, own, caller)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn text(name: &str, service: u32, tools: u32) -> String {
    format!(
        r#"version = 1
service_user = "{name}"
service_uid = {service}
tools_user = "{name}-tools"
tools_uid = {tools}
group = "work"
group_gid = 995
[directories]
config = "/var/lib/{name}/config"
state = "/var/lib/{name}/state"
runtime = "/var/lib/{name}/run"
libexec = "/usr/local/libexec/salaam"
[floor]
unsandboxed_commands = "refuse"
[added]
users = ["{name}"]
"#
    )
}

#[test]
fn the_file_of_the_caller_applies() {
    let host = Host::new("applies").with("a", &text("a", 1001, 997)).with("b", &text("b", 1002, 998));
    assert_eq!(host.floor(997, Caller::Service(1001)).unwrap().word(), "instance");
    assert_eq!(host.floor(1001, Caller::Own(1001)).unwrap().word(), "instance");
    assert_eq!(host.floor(500, Caller::Service(501)).unwrap(), Floor::builtin());
    assert_eq!(Floor::read(Path::new("/nowhere/salaam"), 1, Caller::Own(1)).unwrap(), Floor::builtin());
}

#[test]
fn a_tools_account_that_another_instance_names_is_refused() {
    let host = Host::new("foreign").with("a", &text("a", 1001, 997));
    for (own, caller) in [(997, Caller::Service(1002)), (998, Caller::Service(1001)), (997, Caller::Own(997))] {
        let error = host.floor(own, caller).unwrap_err();
        assert_eq!(error.refusal(), StartRefusal::InstanceAccounts, "{own} {caller:?}");
    }
}

#[test]
fn another_instances_file_may_be_of_a_newer_form_if_its_accounts_are_clear() {
    let newer = format!("lately = true\n{}[more]\nlines = []\n", text("b", 1002, 998));
    let host = Host::new("newer").with("a", &text("a", 1001, 997)).with("b", &newer);
    assert_eq!(host.floor(997, Caller::Service(1001)).unwrap().word(), "instance");
    assert_eq!(host.floor(998, Caller::Service(1002)).unwrap_err().refusal(), StartRefusal::InstanceFile);
    let unclear = host.with("b", &newer.replace("tools_uid = 998", "tools_uid = \"998\""));
    assert_eq!(unclear.floor(997, Caller::Service(1001)).unwrap_err().refusal(), StartRefusal::InstanceFile);
}

#[test]
fn a_file_that_is_damaged_or_open_to_others_ends_the_start() {
    let good = text("a", 1001, 997);
    for (what, bad) in [
        ("unknown key", good.replace("group_gid", "groupgid")),
        ("extra key", format!("{good}\n[extra]\n")),
        ("wrong type", good.replace("1001", "\"1001\"")),
        ("version", good.replace("version = 1", "version = 2")),
        ("name", good.replace("service_user = \"a\"", "service_user = \"b\"")),
        ("word", good.replace("refuse", "maybe")),
        ("relative", good.replace("/var/lib/a/state", "state")),
        ("size", format!("{good}#{}", "x".repeat(256 * 1024))),
        ("empty", String::new()),
    ] {
        let host = Host::new("damaged").with("a", &bad);
        let error = host.floor(997, Caller::Service(1001)).unwrap_err();
        assert_eq!(error.refusal(), StartRefusal::InstanceFile, "{what}");
    }
    let host = Host::new("open").with("a", &good);
    assert!(host.floor(997, Caller::Service(1001)).is_ok());
    fs::set_permissions(host.0.join("a.toml"), fs::Permissions::from_mode(0o664)).unwrap();
    assert!(matches!(host.floor(997, Caller::Service(1001)), Err(FloorError::Untrusted { .. })));
    fs::remove_file(host.0.join("a.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", host.0.join("a.toml")).unwrap();
    assert!(matches!(host.floor(997, Caller::Service(1001)), Err(FloorError::Unreadable { .. })));
    fs::remove_file(host.0.join("a.toml")).unwrap();
    fs::set_permissions(&host.0, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(host.floor(997, Caller::Service(1001)), Err(FloorError::Untrusted { .. })));
}

fn plan() -> RunPlan {
    RunPlan {
        operation: OperationId::new(1, [1; 10]),
        epoch: 1,
        workspace: WorkspaceId::new(1, [1; 10]),
        command: Command::Shell("true".into()),
        stdin: None,
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock: Landlock::Required,
        allow_unsandboxed: false,
        limits: Limits::default(),
        files: vec![],
        read_paths: vec![],
        read_identities: vec![],
        protected_paths: vec![],
        environment: vec![],
        whole_output: false,
    }
}

#[test]
fn what_the_service_cannot_lift() {
    let host = Host::new("lift").with("a", &text("a", 1001, 997));
    let floor = host.floor(997, Caller::Service(1001)).unwrap();
    assert_eq!(floor.permit_plan(&plan()), Ok(()));
    let id = |plan: RunPlan| floor.permit_plan(&plan).unwrap_err().id;
    assert_eq!(id(RunPlan { allow_unsandboxed: true, ..plan() }), "floor-unsandboxed");
    assert_eq!(id(RunPlan { network: Network::Host, ..plan() }), "floor-network");
    assert_eq!(id(RunPlan { network: Network::Broker, ..plan() }), "network-unavailable");
    for path in [
        "/",
        "/home",
        "/home/a",
        "/root",
        "/home/a/.ssh",
        "/home/a/.ssh/id",
        "/home/a/.aws",
        "/home/a/.cargo/credentials.toml",
        "/var/lib",
        "/var/lib/a",
        "/var/lib/a/state/journal",
    ] {
        assert_eq!(id(RunPlan { read_paths: vec![path.into()], ..plan() }), "read-path-refused", "{path}");
    }
    let fine = RunPlan { read_paths: vec![b"/home/a/.cargo/bin".to_vec(), b"/opt/x".to_vec()], ..plan() };
    assert_eq!(floor.permit_plan(&fine), Ok(()));
    assert_eq!(Floor::builtin().permit_plan(&RunPlan { allow_unsandboxed: true, ..plan() }), Ok(()));
}

#[test]
fn no_workspace_is_the_system_or_salaam_itself() {
    let host = Host::new("workspace").with("a", &text("a", 1001, 997));
    let floor = host.floor(997, Caller::Service(1001)).unwrap();
    for bad in ["/", "/home", "/usr/src", "/etc/salaam", "/var/lib/a", "/var/lib/a/state/x", "/proc/1", "/tmp"] {
        assert_eq!(floor.permit_workspace(Path::new(bad)).unwrap_err().id, "workspace-refused", "{bad}");
    }
    for good in ["/home/a/project", "/srv/project", "/tmp/x"] {
        assert_eq!(floor.permit_workspace(Path::new(good)), Ok(()), "{good}");
    }
}
