//! Accounts and groups, by the host's own word (NSS).

use std::path::{Path, PathBuf};

use users::os::unix::UserExt as _;

/// An account of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// Its home, as the host's database has it.
    pub home: PathBuf,
}

/// The account of that name. A name that is not UTF-8 or no account name has none.
pub fn account(name: &str) -> Option<Account> {
    users::get_user_by_name(name).as_ref().and_then(from_user)
}

/// The account with that uid.
pub fn account_of(uid: u32) -> Option<Account> {
    users::get_user_by_uid(uid).as_ref().and_then(from_user)
}

/// The gid of the group of that name.
pub fn group_gid(name: &str) -> Option<u32> {
    users::get_group_by_name(name).map(|group| group.gid())
}

/// The gids of all groups that a new process of `account` gets, its own included, sorted.
pub fn groups_of(account: &Account) -> Vec<u32> {
    let mut gids: Vec<u32> = users::get_user_groups(&account.name, account.gid)
        .unwrap_or_default()
        .iter()
        .map(users::Group::gid)
        .chain([account.gid])
        .collect();
    gids.sort_unstable();
    gids.dedup();
    gids
}

/// Whether `home` is one that a person or root lives in: its files are worth protecting whoever asks. Daemons
/// have `/bin` or `/usr/sbin` as theirs, which hold nothing of anyone's.
pub fn operator_home(uid: u32, home: &Path) -> bool {
    const FIRST_PERSON: u32 = 1000;
    const NOBODY: u32 = 65_534;
    (uid == 0 || (uid >= FIRST_PERSON && uid != NOBODY)) && home.is_absolute() && home.parent().is_some()
}

/// The homes of the people in the local password file (the text of /etc/passwd), and of root.
pub(crate) fn homes(passwd: &str) -> Vec<PathBuf> {
    let home = |line: &str| {
        let mut fields = line.split(':');
        let uid = fields.nth(2)?.parse().ok()?;
        let home = PathBuf::from(fields.nth(2)?);
        operator_home(uid, &home).then_some(home)
    };
    passwd.lines().filter_map(home).chain([PathBuf::from("/root")]).collect()
}

/// The homes of the people of this host and of root, from /etc/passwd; root's alone where it cannot be read.
pub fn people_homes() -> Vec<PathBuf> {
    homes(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
}

fn from_user(user: &users::User) -> Option<Account> {
    Some(Account {
        name: user.name().to_str()?.to_owned(),
        uid: user.uid(),
        gid: user.primary_group_id(),
        home: user.home_dir().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_those_of_people_and_of_root() {
        let text = "root:x:0:0:root:/root:/bin/bash\nbin:x:2:2::/bin:/usr/sbin/nologin\nalice:x:1000:1000::/home/alice:/bin/sh\nnobody:x:65534:1::/nonexistent:/x\nbroken:x\nslash:x:1001:1::/:/bin/sh\n";
        assert_eq!(homes(text), [Path::new("/root"), Path::new("/home/alice"), Path::new("/root")]);
    }
}
