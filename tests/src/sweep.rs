//! Takes away what a run made: processes, mounts, accounts, groups, files, by the tag of that run.
//!
//! Safe to call twice, and on what a killed run left half made.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};

use crate::{account::Account, process::Process};

/// What every tag begins with; nothing else on a host does.
pub const PREFIX: &str = "slt";
/// One file per run, locked by the kernel while the run lives.
const LOCKS: &str = "/run/salaam-tests";
/// What stands behind the tag in the names of accounts and groups.
pub const ROLES: [&str; 13] =
    ["svc", "tools", "work", "ops", "op", "out", "hand", "out-tools", "out-work", "svc2", "tools2", "work2", "ops2"];

/// The roles among them that a set-up is made for, and those that it makes tools users of.
const SERVICES: [&str; 3] = ["svc", "svc2", "out"];
const TOOLS: [&str; 3] = ["tools", "tools2", "out-tools"];

/// Where a run puts everything.
pub fn root_of(tag: &str) -> PathBuf {
    PathBuf::from(format!("/opt/salaam-test-{tag}"))
}

/// The workspaces of a run.
pub fn workspaces_of(tag: &str) -> PathBuf {
    PathBuf::from(format!("/srv/salaam-test-{tag}"))
}

/// Whether it is the tag of a run.
pub fn is_tag(tag: &str) -> bool {
    tag.strip_prefix(PREFIX).is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()))
}

/// Claims a tag for as long as what is returned lives.
pub fn claim(tag: &str) -> Flock<fs::File> {
    fs::create_dir_all(LOCKS).expect("root can make a directory in /run");
    let file = fs::File::create(Path::new(LOCKS).join(tag)).expect("root can make a file there");
    Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap_or_else(|(_, e)| panic!("{tag} is in use: {e}"))
}

/// The tags of runs that have ended and left something.
pub fn abandoned() -> Vec<String> {
    let mut tags: Vec<String> = fs::read_to_string("/etc/passwd")
        .unwrap_or_default()
        .lines()
        .chain(fs::read_to_string("/etc/group").unwrap_or_default().lines())
        .filter_map(|line| Some(line.split(':').next()?.split_once('-')?.0.to_owned()))
        .chain(tagged("/opt"))
        .chain(tagged("/srv"))
        .chain(data())
        .filter(|tag| is_tag(tag))
        .collect();
    tags.sort();
    tags.dedup();
    tags.retain(|tag| match fs::File::open(Path::new(LOCKS).join(tag)) {
        Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok(),
        Err(_) => true,
    });
    tags
}

fn tagged(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("salaam-test-")?.to_owned())).collect()
}

/// The tags of what set-up made in /var/lib.
fn data() -> Vec<String> {
    let entries = fs::read_dir("/var/lib").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            Some(name.trim_start_matches("salaam-").split_once('-')?.0.to_owned())
        })
        .collect()
}

/// Takes away all that belongs to `tag`.
pub fn sweep(tag: &str) {
    assert!(is_tag(tag), "{tag} is no tag of a test run");
    let name = |role: &str| format!("{tag}-{role}");
    let accounts: Vec<Account> = ROLES.iter().filter_map(|role| Account::named(&name(role))).collect();
    end_processes(&accounts);
    unmount(tag);
    let services = SERVICES.map(name);
    let mut directories: Vec<PathBuf> = services.iter().flat_map(|service| undone(tag, service)).collect();
    for role in TOOLS {
        drop(fs::remove_file(format!("/etc/polkit-1/rules.d/50-salaam-{}.rules", name(role))));
    }
    for account in &accounts {
        drop(fs::remove_file(format!("/etc/sudoers.d/salaam-{}", account.uid)));
        if Account::named(&account.name).is_some() {
            quietly(Command::new("userdel").arg(&account.name));
        }
    }
    for role in ROLES {
        quietly(Command::new("groupdel").arg(name(role)));
    }
    directories.extend(services.iter().map(|service| PathBuf::from(format!("/var/lib/salaam-{service}"))));
    directories.extend(TOOLS.map(|role| PathBuf::from(format!("/var/lib/{}", name(role)))));
    directories.extend([root_of(tag), workspaces_of(tag)]);
    for directory in directories {
        drop(fs::remove_dir_all(directory));
    }
    for list in ["/etc/cron.deny", "/etc/at.deny"] {
        for role in TOOLS {
            without_line(Path::new(list), &name(role));
        }
    }
    drop(fs::remove_file(Path::new(LOCKS).join(tag)));
}

/// Takes a set-up away by its own door; gives the directories that it named.
fn undone(tag: &str, service: &str) -> Vec<PathBuf> {
    let salaam = root_of(tag).join("bin/salaam");
    let instance = PathBuf::from(format!("/etc/salaam/{service}.toml"));
    let directories: Vec<PathBuf> = fs::read_to_string(&instance)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| Some(PathBuf::from(line.split_once(" = \"")?.1.trim_end_matches('"'))))
        .filter(|path| path.is_absolute() && path.to_string_lossy().contains(tag))
        .collect();
    if instance.exists() && salaam.exists() {
        let undone = Command::new(salaam).args(["host", "setup", "--service-user", service, "--undo"]).output();
        if let Some(failed) = undone.ok().filter(|undone| !undone.status.success()) {
            let said = String::from_utf8_lossy(&failed.stderr).into_owned();
            eprintln!("host setup --undo left with {:?}: {said}", failed.status.code());
        }
    }
    drop(fs::remove_file(instance));
    directories
}

/// What an undo that failed left in a list of others.
fn without_line(list: &Path, line: &str) {
    let Ok(text) = fs::read_to_string(list) else { return };
    if text.lines().any(|one| one == line) {
        let rest: String = text.lines().filter(|one| *one != line).map(|one| format!("{one}\n")).collect();
        drop(fs::write(list, rest));
    }
}

fn end_processes(accounts: &[Account]) {
    for _ in 0..200 {
        let left: Vec<_> = accounts.iter().flat_map(|account| Process::of_uid(account.uid)).collect();
        if left.is_empty() {
            return;
        }
        left.iter().for_each(Process::kill);
        thread::sleep(Duration::from_millis(10));
    }
}

fn unmount(tag: &str) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let ours =
        |path: &&str| path.starts_with(&format!("/opt/salaam-test-{tag}/")) || path.contains(&format!("/{tag}-"));
    for path in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(ours) {
        quietly(Command::new("umount").args(["--lazy", path]));
    }
}

fn quietly(command: &mut Command) {
    drop(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tag_of_a_run_is_ever_swept() {
        assert!(is_tag("slt1") && is_tag("slt4194304"));
        for other in ["slt", "slt1x", "root", "", "slt-1", "sl1", "slt1/.."] {
            assert!(!is_tag(other), "{other}");
        }
    }
}
