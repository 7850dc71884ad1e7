//! What was built: package version, commit, bridge version.

use std::sync::LazyLock;

use salaam_core::bridge;

/// The package version alone, as in health.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// `0.1.0 (commit abcdef0, bridge 3)`: what `--version` prints after the program's name, and what goes over
/// the bridge.
pub static BUILD: LazyLock<String> = LazyLock::new(|| bridge::build_name(NUMBER, env!("SALAAM_COMMIT")));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_names_a_commit_and_the_bridge() {
        let (number, rest) = BUILD.split_once(" (commit ").unwrap();
        let (commit, bridge) = rest.split_once(", bridge ").unwrap();
        assert_eq!((number, bridge), (NUMBER, format!("{})", bridge::VERSION).as_str()));
        assert!(commit == "unknown" || (commit.len() == 7 && commit.bytes().all(|b| b.is_ascii_hexdigit())));
    }
}
