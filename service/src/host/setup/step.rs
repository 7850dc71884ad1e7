//! The steps of a set-up: each can say the command that does the same, and can be carried out.

use std::{
    fmt::Write as _,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::{Mode, fchmod, fstat},
    unistd::{Gid, Uid, fchown},
};
use salaam_core::instance::Added;

use super::{SetupError, names::Names, sudoers, through};
use crate::host::{account, group_gid};

/// How much of what a failed program said is repeated.
const STDERR_BYTES: usize = 2000;

/// One step. Those that are already done are not planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A system group.
    AddGroup(String),
    /// A system account without a password and without a shell; its home is made separately.
    /// Its uid is `below` that of processes which a removed account left.
    AddUser { name: String, home: PathBuf, comment: &'static str, below: Option<u32> },
    /// A membership.
    AddMember { user: String, group: String },
    /// A directory of `owner` and `group`.
    Directory { path: PathBuf, owner: String, group: String, mode: u32, workspace: bool },
    /// A line in a file of another program's.
    Line { path: PathBuf, line: String },
    /// The sudo rule.
    Sudoers { path: PathBuf, text: String },
    /// A rule of polkit's, which finds it by itself.
    Rule { path: PathBuf, text: String },
    /// The walk of a workspace, in a child.
    Fit { path: PathBuf, yes: bool },
    /// One ACL entry for the tools user.
    LetThrough(PathBuf),
}

impl Step {
    /// The command that does the same, for a POSIX shell.
    pub(crate) fn command(&self, names: &Names) -> String {
        match self {
            Self::AddGroup(name) => shell(&group_add(name)),
            Self::AddUser { name, home, comment, below } => shell(&user_add(name, home, comment, *below)),
            Self::AddMember { user, group } => shell(&member_add(user, group)),
            Self::Directory { path, owner, group, mode, .. } => {
                let mode = format!("{mode:04o}");
                let path = path.display().to_string();
                shell(&["install", "-d", "-o", owner, "-g", group, "-m", &mode, &path].map(str::to_owned))
            }
            Self::Line { path, line } => format!("printf '%s\\n' {} >> {}", quote(line), quote_path(path)),
            Self::Sudoers { path, text } => {
                // A name with a dot is skipped by sudo until it is moved into place.
                let (path, beside) = (expanding(path), expanding(&beside(path)));
                format!(
                    "install -m 0440 /dev/stdin {beside} <<'END'\n{text}END\nvisudo -c -q -f {beside} && mv {beside} {path}"
                )
            }
            Self::Rule { path, text } => {
                format!("install -m 0644 /dev/stdin {} <<'END'\n{text}END", quote_path(path))
            }
            Self::Fit { path, yes } => {
                let yes = if *yes { " --yes" } else { "" };
                let (user, group) = (quote(&names.service_user), quote(&names.group));
                format!("salaam host fit-workspace --service-user {user} --group {group}{yes} {}", quote_path(path))
            }
            Self::LetThrough(path) => format!("setfacl -m u:{}:--x {}", names.tools_user, quote_path(path)),
        }
    }

    /// Carries the step out and notes in `added` what now exists because of it.
    pub(crate) fn perform(&self, names: &Names, added: &mut Added) -> Result<(), SetupError> {
        match self {
            Self::AddGroup(name) => {
                execute(&group_add(name))?;
                added.groups.push(name.clone());
            }
            Self::AddUser { name, home, comment, below } => {
                execute(&user_add(name, home, comment, *below))?;
                added.users.push(name.clone());
            }
            Self::AddMember { user, group } => {
                execute(&member_add(user, group))?;
                added.members.push(format!("{user}:{group}"));
            }
            Self::Directory { path, owner, group, mode, workspace } => {
                make_directory(path, uid_of(owner)?, gid_of(group)?, *mode)?;
                let list = if *workspace { &mut added.workspaces } else { &mut added.directories };
                list.push(path.clone());
            }
            Self::Line { path, line } => {
                let made = !path.exists();
                append_line(path, line)?;
                if made {
                    added.files.push(path.clone());
                }
                added.lines.push(format!("{}:{line}", path.display()));
            }
            Self::Sudoers { path, text } => {
                install_sudoers(path, text)?;
                if !added.files.contains(path) {
                    added.files.push(path.clone());
                }
            }
            Self::Rule { path, text } => {
                crate::host::plan::write_durably(path, text.as_bytes(), 0o644)?;
                if !added.files.contains(path) {
                    added.files.push(path.clone());
                }
            }
            Self::LetThrough(path) => {
                through::let_through(path, uid_of(&names.tools_user)?)?;
                added.traverse.push(path.clone());
            }
            // The caller starts the child: it needs to show what the child reports.
            Self::Fit { .. } => {}
        }
        Ok(())
    }
}

fn group_add(name: &str) -> Vec<String> {
    ["groupadd", "--system", name].map(str::to_owned).to_vec()
}

fn user_add(name: &str, home: &Path, comment: &str, below: Option<u32>) -> Vec<String> {
    // A group of its own name that is there already is taken; useradd would refuse to make it again.
    let group: &[&str] = if group_gid(name).is_some() { &["--gid", name] } else { &["--user-group"] };
    let home = home.display().to_string();
    let most = below.map(|below| format!("SYS_UID_MAX={}", below.saturating_sub(1)));
    let most: Vec<&str> = most.iter().flat_map(|most| ["--key", most]).collect();
    let rest = ["--home-dir", &home, "--no-create-home", "--shell", nologin(), "--comment", comment, name];
    ["useradd", "--system"].iter().chain(&most).chain(group).chain(&rest).map(|word| (*word).to_owned()).collect()
}

fn nologin() -> &'static str {
    if Path::new("/usr/sbin/nologin").exists() { "/usr/sbin/nologin" } else { "/sbin/nologin" }
}

fn member_add(user: &str, group: &str) -> Vec<String> {
    ["usermod", "--append", "--groups", group, user].map(str::to_owned).to_vec()
}

/// Runs one of the system's own account programs: fixed directories, no environment, no input.
pub(crate) fn execute(argv: &[String]) -> Result<(), SetupError> {
    let failed = |status: String, stderr: &[u8]| {
        let end = stderr.len().min(STDERR_BYTES);
        let stderr = String::from_utf8_lossy(stderr.get(..end).unwrap_or_default()).trim().to_owned();
        SetupError::Command { command: shell(argv), status, stderr }
    };
    let Some((program, arguments)) = argv.split_first() else { return Ok(()) };
    let path = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().map(|dir| Path::new(dir).join(program));
    let program = path.into_iter().find(|path| path.exists()).ok_or_else(|| failed("not found".into(), b""))?;
    let done = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(e.to_string(), b""))?;
    if done.status.success() { Ok(()) } else { Err(failed(done.status.to_string(), &done.stderr)) }
}

fn make_directory(path: &Path, uid: u32, gid: u32, mode: u32) -> Result<(), SetupError> {
    let make = || -> io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).create(path)?;
        // What was made is opened without following a link, and is ours and empty of rights until it is handed on.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory: OwnedFd = open(path, flags, Mode::empty())?;
        if fstat(&directory)?.st_uid != 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        fchmod(&directory, Mode::from_bits_truncate(mode))?;
        Ok(())
    };
    make().map_err(SetupError::io("cannot make the directory", path))
}

fn append_line(path: &Path, line: &str) -> Result<(), SetupError> {
    let old = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        other => other.map_err(SetupError::io("cannot read", path))?,
    };
    let mut text = old;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = writeln!(text, "{line}");
    rewrite(path, &text)
}

/// Replaces the text of a file of the system's and keeps its owner and mode.
pub(crate) fn rewrite(path: &Path, text: &str) -> Result<(), SetupError> {
    use std::os::unix::fs::MetadataExt as _;
    let (mode, gid) = path.metadata().map_or((0o644, 0), |meta| (meta.mode() & 0o777, meta.gid()));
    crate::host::plan::write_durably(path, text.as_bytes(), mode)?;
    std::os::unix::fs::chown(path, Some(0), Some(gid)).map_err(SetupError::io("cannot give to root", path))
}

/// Checked beside its place, then moved: a rule with an error in it would lock sudo for the whole host.
fn install_sudoers(path: &Path, text: &str) -> Result<(), SetupError> {
    let beside = beside(path);
    crate::host::plan::write_durably(&beside, text.as_bytes(), 0o440)?;
    let check = ["visudo", "-c", "-q", "-f", &beside.display().to_string()].map(str::to_owned);
    let placed = execute(&check)
        .and_then(|()| std::fs::rename(&beside, path).map_err(SetupError::io("cannot put in place", path)));
    if placed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    placed
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn uid_of(name: &str) -> Result<u32, SetupError> {
    account(name).map(|account| account.uid).ok_or_else(|| absent("account", name))
}

fn gid_of(name: &str) -> Result<u32, SetupError> {
    group_gid(name).ok_or_else(|| absent("group", name))
}

fn absent(what: &str, name: &str) -> SetupError {
    SetupError::Account {
        who: name.to_owned(),
        why: format!("there is no such {what}"),
        fix: "look at what the account programs of this host did, then run it again".into(),
    }
}

fn shell(argv: &[String]) -> String {
    argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

pub(crate) fn quote_path(path: &Path) -> String {
    quote(&String::from_utf8_lossy(path.as_os_str().as_bytes()))
}

/// A path of ours that may hold a `$(id -u NAME)` for the shell to fill in.
fn expanding(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

pub(crate) fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-:=+,@".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The executor that the rule names.
pub(crate) fn executor(libexec: &Path) -> Result<PathBuf, SetupError> {
    let path = libexec.join(sudoers::EXECUTOR);
    if sudoers::is_plain(&path) {
        return Ok(path);
    }
    let why = "a sudo rule could not name it without escapes".to_owned();
    Err(SetupError::Path { path, why, fix: "install with another --prefix".into() })
}
