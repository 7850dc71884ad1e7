//! An account of the host, and programs started as it with a known, small environment.

use std::{path::PathBuf, process::Command};

use nix::unistd::User;

/// The search path of everything that is started here.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// Its home as the account database has it.
    pub home: PathBuf,
}

impl Account {
    /// Looks it up.
    pub fn named(name: &str) -> Option<Self> {
        let user = User::from_name(name).expect("the account database is readable")?;
        Some(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw(), home: user.dir })
    }

    /// root.
    pub fn root() -> Self {
        Self::named("root").expect("there is a root")
    }

    /// Makes an account with a group of its own and a home that is made, too.
    pub fn made(name: &str, home: &str) -> Self {
        crate::ran::run(&["useradd", "--create-home", "--home-dir", home, "--user-group", "--shell", "/bin/sh", name]);
        Self::named(name).expect("useradd made it")
    }

    /// `program`, to be started as this account with its groups and no variable but PATH, HOME and LANG.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_through(&[], program)
    }

    /// The same with more options of setpriv(1), for instance `--no-new-privs`.
    pub fn command_through(&self, options: &[&str], program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &self.uid.to_string(), "--regid", &self.gid.to_string(), "--init-groups"])
            .args(options)
            .arg("--")
            .arg(program)
            .current_dir("/")
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", &self.home)
            .env("LANG", "C.UTF-8");
        command
    }
}
