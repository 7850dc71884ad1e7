//! The one sudo rule: this service may start this executor as this tools user, without arguments.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// The drop-in's name: no dot in it, because sudo skips those.
pub(crate) fn name(service_uid: impl std::fmt::Display) -> String {
    format!("salaam-{service_uid}")
}

/// The executor below LIBEXEC.
pub(crate) const EXECUTOR: &str = "salaam-toolsd";

/// Whether a path can stand in a rule as it is. Others would need escapes, and the two sudos differ in those.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.to_str().is_some_and(|text| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.' | b'+'))
    })
}

/// Which sudo reads the drop-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sudo {
    /// The one in C.
    Classic,
    /// The one in Rust: it has none of the settings that are beaten here, and its visudo takes their names for errors.
    Rs,
}

impl Sudo {
    /// The one that this host has; classic where none answers.
    pub(crate) fn installed() -> Self {
        let places = ["/usr/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo"].map(Path::new);
        let Some(sudo) = places.into_iter().find(|path| path.exists()) else { return Self::Classic };
        let said = Command::new(sudo).arg("--version").env_clear().stdin(Stdio::null()).output();
        said.map_or(Self::Classic, |said| Self::named(&String::from_utf8_lossy(&said.stdout)))
    }

    fn named(said: &str) -> Self {
        if said.starts_with("sudo-rs") { Self::Rs } else { Self::Classic }
    }
}

/// The drop-in.
///
/// The `Defaults` are bound to the command, because sudo applies those last: they beat a global `log_input`
/// (which would put a pipe in the place of the bridge), `requiretty`, `noexec` and `intercept` (which preload a
/// library), `stay_setuid` (which would keep the service's uid as the real one), another directory, and a
/// `command_timeout` that would end the service. `!pam_session`: a session of pam_systemd takes the executor out of the
/// service's control group and starts a service manager and a bus for the tools user; the limits that pam_limits sets
/// are the executor's own business.
pub(crate) fn text(service_user: &str, tools_user: &str, executor: &Path, sudo: Sudo) -> String {
    let executor = executor.display();
    let settings = match sudo {
        Sudo::Classic => {
            "!log_input, !log_output, !requiretty, !noexec, !intercept, !log_subcmds, !use_pty, !env_file, \
             !restricted_env_file, !stay_setuid, !runcwd, !pam_session, env_reset, command_timeout=0"
        }
        Sudo::Rs => "!use_pty, !noexec",
    };
    format!(
        "# Written by `salaam host setup`, which also takes it away (--undo).\n\
         Defaults!{executor} {settings}\n\
         {service_user} ALL=({tools_user}) NOPASSWD: {executor} \"\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_names_one_program_without_arguments() {
        for sudo in [Sudo::Classic, Sudo::Rs] {
            let text = text("salaam", "salaam-tools", Path::new("/usr/local/libexec/salaam/salaam-toolsd"), sudo);
            let rule = text.lines().last().unwrap();
            assert_eq!(rule, "salaam ALL=(salaam-tools) NOPASSWD: /usr/local/libexec/salaam/salaam-toolsd \"\"");
            assert_eq!(text.contains("!log_input"), sudo == Sudo::Classic);
        }
        assert!(!name(1001).contains('.'));
    }

    #[test]
    fn each_sudo_is_known_by_its_own_word() {
        assert_eq!(Sudo::named("Sudo version 1.9.13p3\n"), Sudo::Classic);
        assert_eq!(Sudo::named("sudo-rs 0.2.15\n"), Sudo::Rs);
        assert_eq!(Sudo::named(""), Sudo::Classic);
    }

    #[test]
    fn a_path_that_would_need_escapes_is_not_plain() {
        assert!(is_plain(Path::new("/usr/local/libexec/salaam/salaam-toolsd")));
        for path in ["/a b", "/a,b", "/a:b", "/a=b", "/a*b", "/a\\b", "/a\nb", "/a\"b"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}
