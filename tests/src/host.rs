//! A host set up for one test binary: installed binaries, two accounts, their groups, an operator, a stranger.
//!
//! Everything is made through the product's own doors: `packaging/install` and `salaam host setup`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use nix::{
    fcntl::Flock,
    unistd::{Group, geteuid},
};

use crate::{account::Account, ran, ran::Ran, sweep};

/// The host of this test binary.
#[derive(Debug)]
pub struct Host {
    /// What all its names begin with.
    pub tag: String,
    /// Holds the state.
    pub service: Account,
    /// Runs the commands.
    pub tools: Account,
    /// A member of the operators group.
    pub operator: Account,
    /// Anybody else.
    pub stranger: Account,
    /// The workspace that `host setup` prepared.
    pub workspace: PathBuf,
    /// The installation: `bin/salaam`, `libexec/salaam/…`.
    pub prefix: PathBuf,
    _claim: Flock<fs::File>,
    // Its end is what the sweeper waits for.
    _sweeper: Child,
}

static SHARED: OnceLock<Host> = OnceLock::new();

impl Host {
    /// The host that all tests of this binary share; made at first use.
    pub fn shared() -> &'static Self {
        SHARED.get_or_init(Self::new)
    }

    fn new() -> Self {
        assert!(geteuid().is_root(), "these tests make accounts: run them as root, through `sudo tests/run`");
        for tag in sweep::abandoned() {
            sweep::sweep(&tag);
        }
        let tag = format!("{}{}", sweep::PREFIX, std::process::id());
        let claim = sweep::claim(&tag);
        let sweeper = sweeper(&tag);
        let prefix = sweep::root_of(&tag);
        let workspaces = sweep::workspaces_of(&tag);
        for directory in [&prefix, &workspaces, &prefix.join("homes")] {
            fs::create_dir_all(directory).expect("root can make directories in /opt and /srv");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("it is root's");
        }
        install(&prefix);
        let name = |role: &str| format!("{tag}-{role}");
        let home = |role: &str| prefix.join("homes").join(role).display().to_string();
        let operator = Account::made(&name("op"), &home("op"));
        let stranger = Account::made(&name("out"), &home("out"));
        let workspace = workspaces.join("project");
        fs::create_dir(&workspace).expect("root can make a directory there");
        let (salaam, workspace_text) =
            (prefix.join("bin/salaam").display().to_string(), workspace.display().to_string());
        // The service user's home must not be a real person's; an account without one would do as well.
        let service = Account::made(&name("svc"), &home("svc"));
        chown(&workspace, &format!("{}:{}", service.name, service.name));
        ran::run(&[
            &salaam,
            "host",
            "setup",
            "--service-user",
            &name("svc"),
            "--tools-user",
            &name("tools"),
            "--group",
            &name("work"),
            "--operators-group",
            &name("ops"),
            "--workspace",
            &workspace_text,
        ]);
        let tools = Account::named(&name("tools")).expect("host setup made the tools user");
        assert!(Group::from_name(&name("ops")).expect("readable").is_some(), "host setup made the operators group");
        ran::run(&["usermod", "--append", "--groups", &name("ops"), &operator.name]);
        Self { tag, service, tools, operator, stranger, workspace, prefix, _claim: claim, _sweeper: sweeper }
    }

    /// The name of an account or group of this host.
    pub fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.tag)
    }

    /// The CLI as installed.
    pub fn salaam(&self) -> PathBuf {
        self.prefix.join("bin/salaam")
    }

    /// The directory of the executor and its kin.
    pub fn libexec(&self) -> PathBuf {
        self.prefix.join("libexec/salaam")
    }

    /// The sudoers drop-in that `host setup` wrote.
    pub fn sudoers(&self) -> PathBuf {
        PathBuf::from(format!("/etc/sudoers.d/salaam-{}", self.service.uid))
    }

    /// The instance file that `host setup` wrote.
    pub fn instance(&self) -> PathBuf {
        PathBuf::from(format!("/etc/salaam/{}.toml", self.service.name))
    }

    /// A new workspace directory, prepared as `host setup` does: the work group's, setgid, with a default ACL.
    pub fn workspace(&self, name: &str) -> PathBuf {
        let path = sweep::workspaces_of(&self.tag).join(name);
        fs::create_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        chown(&path, &format!("{}:{}", self.service.name, self.name("work")));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2770)).expect("it is ours");
        ran::run(&["setfacl", "-d", "-m", "u::rwX,g::rwX,o::-", &path.display().to_string()]);
        path
    }

    /// Writes a file as the service user would have: the work group may write it.
    pub fn write(&self, path: &Path, content: impl AsRef<[u8]>) {
        fs::write(path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        chown(path, &format!("{}:{}", self.service.name, self.name("work")));
        fs::set_permissions(path, fs::Permissions::from_mode(0o664)).expect("it is ours");
    }
}

/// Changes owner and group of one file.
pub fn chown(path: &Path, who: &str) {
    ran::run(&["chown", "-h", who, &path.display().to_string()]);
}

/// The top of the source tree.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it").to_owned()
}

fn install(prefix: &Path) {
    let script = sources().join("packaging/install");
    let done = Ran::with_input(
        Command::new(&script).arg("--prefix").arg(prefix).current_dir(sources()),
        b"",
        std::time::Duration::from_secs(900),
    );
    assert_eq!(done.code, Some(0), "the build must be installable (cargo build --release --workspace first): {done}");
}

fn sweeper(tag: &str) -> Child {
    let here = std::env::current_exe().expect("/proc is mounted");
    let program = here
        .ancestors()
        .skip(1)
        .map(|directory| directory.join("salaam-tests-sweep"))
        .find(|path| path.exists())
        .expect("cargo builds salaam-tests-sweep beside the tests");
    Command::new(program)
        .arg(tag)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("it is executable")
}
