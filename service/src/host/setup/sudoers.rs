//! The one sudo rule: this service may start this executor as this tools user, without arguments.

use std::path::Path;

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

/// The drop-in.
///
/// The `Defaults` are bound to the command, because sudo applies those last: they beat a global `log_input`
/// (which would put a pipe in the place of the bridge), `requiretty`, `noexec` and `intercept` (which preload a
/// library), and a `command_timeout` that would end the service.
pub(crate) fn text(service_user: &str, tools_user: &str, executor: &Path) -> String {
    let executor = executor.display();
    format!(
        "# Written by `salaam host setup`, which also takes it away (--undo).\n\
         Defaults!{executor} !log_input, !log_output, !requiretty, !noexec, !intercept, !log_subcmds, !use_pty, \
         !env_file, !restricted_env_file, env_reset, command_timeout=0\n\
         {service_user} ALL=({tools_user}) NOPASSWD: {executor} \"\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_names_one_program_without_arguments() {
        let text = text("salaam", "salaam-tools", Path::new("/usr/local/libexec/salaam/salaam-toolsd"));
        let rule = text.lines().last().unwrap();
        assert_eq!(rule, "salaam ALL=(salaam-tools) NOPASSWD: /usr/local/libexec/salaam/salaam-toolsd \"\"");
        assert!(!name(1001).contains('.'));
    }

    #[test]
    fn a_path_that_would_need_escapes_is_not_plain() {
        assert!(is_plain(Path::new("/usr/local/libexec/salaam/salaam-toolsd")));
        for path in ["/a b", "/a,b", "/a:b", "/a=b", "/a*b", "/a\\b", "/a\nb", "/a\"b"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}
