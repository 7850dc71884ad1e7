//! Words that several checks share: commands, and an errno's name.

use std::{os::unix::ffi::OsStrExt as _, path::Path};

use salaam_core::show;

/// A path as an operator may paste it.
pub(super) fn shown(path: &Path) -> String {
    show::line(path.as_os_str().as_bytes())
}

/// The kernel's word.
pub(super) fn errno(number: i32) -> String {
    if number == 0 { "success".into() } else { format!("{:?}", nix::errno::Errno::from_raw(number)) }
}

/// A group's name, or its number.
pub(super) fn group(gid: u32) -> String {
    users::get_group_by_gid(gid).map_or_else(|| gid.to_string(), |group| group.name().to_string_lossy().into_owned())
}

/// The set-up that makes or mends the pair of accounts. `salaam-work` is the group of the service `salaam`; another
/// one's workspaces are another group's.
pub(super) fn setup(service: &str, tools: &str) -> String {
    let group = if service == "salaam" { String::new() } else { format!(" --group {service}-work") };
    format!("sudo salaam host setup --service-user {service} --tools-user {tools}{group}")
}

/// The tools user that set-up would make for `service`.
pub(super) fn tools_of(service: &str) -> String {
    format!("{service}-tools")
}
