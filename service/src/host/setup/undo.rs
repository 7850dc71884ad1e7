//! Taking an instance away: exactly what was written down as added, the sudo rule first, the record last.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use salaam_core::instance::{Added, Directories};

use super::{
    Places, SetupError,
    plan::{earlier, merge, unfinished},
    run::say,
    running,
    step::{execute, rewrite},
    through,
};
use crate::host::{Account, account, group_gid};

/// Undoes the set-up of `service_user`. What is already gone is no error; what holds somebody's work stays and is
/// named.
pub(crate) fn undo(service_user: &str, places: &Places, out: &mut dyn Write) -> Result<(), SetupError> {
    let (file, half) = (places.instance(service_user), places.unfinished(service_user));
    let (instance, unfinished) = (earlier(&file)?, unfinished(&half)?);
    if instance.is_none() && unfinished.is_none() {
        return Err(SetupError::NothingToUndo { path: file, user: service_user.to_owned() });
    }
    let mut added = Added::default();
    if let Some(instance) = &instance {
        merge(&mut added, instance.added.clone());
    }
    merge(&mut added, unfinished.unwrap_or_default());
    let tools = instance.as_ref().and_then(|instance| account(&instance.tools_user));
    for account in added.users.iter().filter_map(|name| account(name)).chain(tools.clone()) {
        idle(&account)?;
    }
    // A list that set-up made may hold lines of others by now; it goes only when ours was the last.
    let lists: Vec<_> = added.lines.iter().filter_map(|entry| entry.rsplit_once(':')).map(|(path, _)| path).collect();
    let is_list = |path: &&PathBuf| lists.iter().any(|list| path.as_path() == Path::new(list));
    for path in added.files.iter().filter(|path| !is_list(path)) {
        remove_file(path, out)?;
    }
    // An unfinished set-up has no instance file yet; its tools user is then one of the accounts it made.
    let uids = tools.map(|tools| tools.uid).into_iter();
    let uids: Vec<u32> = uids.chain(added.users.iter().filter_map(|name| account(name)).map(|a| a.uid)).collect();
    for path in added.traverse.iter().filter(|path| path.is_dir()) {
        for uid in &uids {
            through::shut_again(path, *uid)?;
        }
        say(out, &format!("# shut again: {}", path.display()));
    }
    for line in &added.lines {
        remove_line(line, &added.files, out)?;
    }
    for path in added.workspaces.iter().rev() {
        remove_if_empty(path, out)?;
    }
    let directories = instance.map(|instance| instance.directories);
    for path in added.directories.iter().rev().filter(|path| **path != places.etc) {
        remove_directory(path, directories.as_ref(), out)?;
    }
    accounts(&added, out)?;
    remove_file(&file, out)?;
    remove_file(&half, out)?;
    if added.directories.contains(&places.etc) {
        remove_if_empty(&places.etc, out)?;
    }
    Ok(())
}

fn accounts(added: &Added, out: &mut dyn Write) -> Result<(), SetupError> {
    for member in &added.members {
        let Some((user, group)) = member.split_once(':') else { continue };
        // A membership goes with the account or the group.
        if !added.users.iter().any(|name| name == user)
            && !added.groups.iter().any(|name| name == group)
            && account(user).is_some()
            && group_gid(group).is_some()
        {
            command(&["gpasswd", "--delete", user, group], out)?;
        }
    }
    for account in added.users.iter().filter_map(|name| account(name)) {
        // Only what has ended is left of it; userdel would wait for ever for somebody to reap that.
        idle(&account)?;
        let ended = running::by_uid()?.contains_key(&account.uid);
        let force: &[&str] = if ended { &["--force"] } else { &[] };
        command(&[&["userdel"], force, &[account.name.as_str()]].concat(), out)?;
    }
    for group in added.groups.iter().filter(|name| group_gid(name).is_some()) {
        command(&["groupdel", group], out)?;
    }
    Ok(())
}

fn command(argv: &[&str], out: &mut dyn Write) -> Result<(), SetupError> {
    say(out, &argv.join(" "));
    execute(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
}

/// Refuses while an account still has processes: they would keep rights that the record no longer names.
fn idle(account: &Account) -> Result<(), SetupError> {
    match running::by_uid()?.remove(&account.uid) {
        Some(found) if !found.living.is_empty() => {
            Err(SetupError::InUse { who: account.name.clone(), pids: found.living.join(" ") })
        }
        None | Some(_) => Ok(()),
    }
}

fn remove_file(path: &Path, out: &mut dyn Write) -> Result<(), SetupError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(SetupError::io("cannot remove", path)(e)),
        Ok(()) => {
            say(out, &format!("rm {}", path.display()));
            Ok(())
        }
    }
}

/// The instance's own directories go with what they hold; any other only when it is empty.
fn remove_directory(path: &Path, own: Option<&Directories>, out: &mut dyn Write) -> Result<(), SetupError> {
    let is_own = own.is_some_and(|own| [&own.config, &own.state, &own.runtime].into_iter().any(|dir| dir == path));
    if !is_own {
        return remove_if_empty(path, out);
    }
    // remove_dir_all goes by descriptor and follows no link: what the service planted there leads root nowhere.
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(SetupError::io("cannot remove", path)(e)),
        Ok(()) => {
            say(out, &format!("rm -r {}", path.display()));
            Ok(())
        }
    }
}

fn remove_if_empty(path: &Path, out: &mut dyn Write) -> Result<(), SetupError> {
    match std::fs::remove_dir(path) {
        Ok(()) => say(out, &format!("rmdir {}", path.display())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
            say(out, &format!("# kept, it is not empty: {}", path.display()));
        }
        Err(e) => return Err(SetupError::io("cannot remove", path)(e)),
    }
    Ok(())
}

/// `path:line`. The file goes too when set-up made it and nothing else is in it.
fn remove_line(entry: &str, made: &[PathBuf], out: &mut dyn Write) -> Result<(), SetupError> {
    let Some((path, line)) = entry.rsplit_once(':') else { return Ok(()) };
    let path = PathBuf::from(path);
    let text = match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(SetupError::io("cannot read", &path))?,
    };
    let kept: String = text.lines().filter(|other| other.trim() != line).flat_map(|line| [line, "\n"]).collect();
    if kept.is_empty() && made.contains(&path) {
        return remove_file(&path, out);
    }
    if kept != text {
        say(out, &format!("# `{line}` taken out of {}", path.display()));
        rewrite(&path, &kept)?;
    }
    Ok(())
}
