//! The two accounts: who they are, whom else they serve, and the groups of their running processes.

use std::path::Path;

use salaam_core::check::Check;

use super::{Process, fix};
use crate::host::{self, Account, Host};

/// `tools-user-missing`, `tools-user-root`, `tools-user-is-service`, `tools-user-shared`.
pub(super) fn tools_user(host: &Host) -> Vec<Check> {
    let name = host.config.tools_user.as_deref().unwrap_or_default();
    let Some(account) = &host.tools else {
        let fix = fix::setup(&host.service_user, name);
        return vec![Check::fail("tools-user-missing", format!("there is no account `{name}`"), fix)];
    };
    let another = fix::setup(&host.service_user, &fix::tools_of(&host.service_user));
    let seen = format!("{name} is uid {}", account.uid);
    vec![
        Check::pass("tools-user-missing", seen.clone()),
        if account.uid == 0 {
            Check::fail("tools-user-root", seen.clone(), another.clone())
        } else {
            Check::pass("tools-user-root", seen.clone())
        },
        if account.uid == host.service_uid {
            Check::fail("tools-user-is-service", format!("{seen}, which is the service's own"), another)
        } else {
            Check::pass("tools-user-is-service", seen)
        },
        shared(host, account),
    ]
}

/// Whoever runs commands for two services lets each of them reach into the other's.
fn shared(host: &Host, tools: &Account) -> Check {
    let id = "tools-user-shared";
    let (name, uid) = (&tools.name, tools.uid);
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(other) = second_name(&passwd, name, uid) {
        let fix = format!("give one of them a uid of its own: sudo usermod -u UID {other}");
        return Check::fail(id, format!("{name} and {other} are both uid {uid}"), fix);
    }
    let found = match host::list(Path::new(host::ETC)) {
        Ok(found) => found,
        Err(e) => return Check::unproven(id, format!("{}: {e}", host::ETC), "let the service user list it"),
    };
    for (path, instance) in found {
        // Another instance's damaged file is its owner's to mend; the executor, which must know, ends the start.
        let Ok(instance) = instance else { continue };
        let theirs = instance.service_uid != host.service_uid;
        if theirs && (instance.tools_uid == uid || instance.service_uid == uid) {
            let other = &instance.service_user;
            let evidence = format!("{} gives uid {uid} to the service of {other}", path.display());
            let fix = format!(
                "sudo salaam host setup --service-user {other} --undo (if that service is not used any more), else a \
                 tools user of its own for one of them: {}",
                fix::setup(&host.service_user, &format!("{name}-2"))
            );
            return Check::fail(id, evidence, fix);
        }
    }
    Check::pass(id, format!("uid {uid} is {name} and nobody else, and serves no other instance"))
}

/// Another account of the same uid.
fn second_name<'a>(passwd: &'a str, name: &str, uid: u32) -> Option<&'a str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let other = fields.next()?;
        let same = fields.nth(1)?.parse() == Ok(uid);
        (same && other != name).then_some(other)
    })
}

/// `service-lacks-work-group`: group lists are those of the running process, not of the database.
pub(super) fn work_group(host: &Host, process: &Process) -> Option<Check> {
    let id = "service-lacks-work-group";
    let instance = host.instance.as_ref()?;
    let (group, gid) = (&instance.group, instance.group_gid);
    let seen = format!("the process has the groups {:?}; {group} is {gid}", process.groups);
    if process.groups.contains(&gid) {
        return Some(Check::pass(id, seen));
    }
    let user = &host.service_user;
    let fix = format!(
        "usermod -aG {group} {user}, then start the service from a new login of {user} (sudo -u {user} salaam service start)"
    );
    Some(Check::fail(id, seen, fix))
}

/// `tools-user-groups`: the executor's getgroups(2) is its own group and the work group. On a host that was set up
/// by hand the work group is the one that it has in common with the service.
pub(super) fn tools_groups(host: &Host, tools: &Account, theirs: &[u32], ours: &[u32]) -> Check {
    let id = "tools-user-groups";
    let beside: Vec<u32> = theirs.iter().copied().filter(|gid| *gid != tools.gid).collect();
    let work = match &host.instance {
        Some(instance) => Some(instance.group_gid),
        None => beside.iter().copied().find(|gid| ours.contains(gid) && Some(*gid) != host.operators_gid),
    };
    let extra: Vec<u32> = beside.iter().copied().filter(|gid| Some(*gid) != work).collect();
    let lacks =
        host.instance.is_some() && tools.gid != work.unwrap_or(tools.gid) && !beside.contains(&work.unwrap_or(0));
    let named: Vec<String> = theirs.iter().map(|gid| format!("{} ({gid})", fix::group(*gid))).collect();
    let evidence = format!("the executor's process has the groups {}", named.join(", "));
    if extra.is_empty() && !lacks {
        return Check::pass(id, evidence);
    }
    let mut commands: Vec<String> =
        extra.iter().map(|gid| format!("sudo gpasswd -d {} {}", tools.name, fix::group(*gid))).collect();
    if let (true, Some(work)) = (lacks, work) {
        commands.push(format!("sudo usermod -aG {} {}", fix::group(work), tools.name));
    }
    Check::fail(id, evidence, commands.join(" && "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_name_for_one_uid_is_found() {
        let passwd = "root:x:0:0::/root:/bin/sh\nt:x:997:997::/x:/bin/sh\nu:x:998:998::/x:/bin/sh\n";
        assert_eq!(second_name(passwd, "t", 997), None);
        assert_eq!(second_name(&format!("{passwd}t2:x:997:1::/:/bin/sh\n"), "t", 997), Some("t2"));
    }
}
