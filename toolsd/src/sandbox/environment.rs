//! The environment of a command, built from nothing: the daemon's own never shows through.

use std::{ffi::CString, path::Path};

use super::paths::ReadPath;

/// Names and values that every command gets.
const BASE: &[(&str, &str)] = &[
    ("HOME", "/tmp/home"),
    ("LANG", "C.UTF-8"),
    ("TMPDIR", "/tmp"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    // Nobody can answer a question, so nothing may ask one.
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "/bin/false"),
    ("SSH_ASKPASS", "/bin/false"),
    ("SSH_ASKPASS_REQUIRE", "force"),
    ("GIT_EDITOR", "/bin/false"),
    ("GIT_PAGER", "cat"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("PIP_NO_INPUT", "1"),
    ("NPM_CONFIG_YES", "false"),
    // Files of the service user and of operators belong to somebody else, which git calls dubious.
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "safe.directory"),
    ("GIT_CONFIG_VALUE_0", "*"),
    // The same for the git that git starts, as for a clone, from which it keeps the three above. Without walls
    // there is no such file, and the host's own settings are not read either.
    ("GIT_CONFIG_SYSTEM", GIT_SETTINGS_INSIDE),
];

/// Where git's settings for every command lie inside.
pub const GIT_SETTINGS_INSIDE: &str = "/.salaam/gitconfig";
/// Them.
pub const GIT_SETTINGS: &[u8] = b"[safe]\n\tdirectory = *\n";

/// System directories only; what is writable never comes first.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The whole environment: the fixed part, what the read paths call for, then what the operator declared, which wins.
pub fn environment(read_paths: &[ReadPath], declared: &[(String, String)]) -> Vec<CString> {
    let mut entries: Vec<(String, Vec<u8>)> =
        BASE.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let mut set = |name: &str, value: Vec<u8>| {
        entries.retain(|(known, _)| known != name);
        entries.push((name.to_owned(), value));
    };
    let mut path = PATH.as_bytes().to_vec();
    set("GIT_CONFIG_GLOBAL", b"/dev/null".to_vec());
    for read in read_paths {
        let bytes = read.path.as_os_str().as_encoded_bytes();
        for directory in programs(&read.path).filter(|directory| !directory.contains(&b':')) {
            path.push(b':');
            path.extend_from_slice(&directory);
        }
        if let Some(rustup) = up_to(&read.path, ".rustup") {
            set("RUSTUP_HOME", rustup);
        }
        if up_to(&read.path, ".cargo").is_some() {
            // Cargo writes to its home even when it builds offline; the bound one is read-only and another
            // user's. Its registry is linked into this one.
            set("CARGO_HOME", CARGO_HOME.as_bytes().to_vec());
            set("CARGO_NET_OFFLINE", b"true".to_vec());
        }
        if bytes.ends_with(b"/go/pkg") {
            // As with cargo: what is there is used, and nothing fetched.
            set("GOMODCACHE", [bytes, b"/mod"].concat());
            set("GOPROXY", b"off".to_vec());
            set("GOFLAGS", b"-mod=readonly".to_vec());
        }
        if bytes.ends_with(b"/.gitconfig") || bytes.ends_with(b"/.config/git/config") {
            set("GIT_CONFIG_GLOBAL", bytes.to_vec());
        }
    }
    set("PATH", path);
    for (name, value) in declared {
        set(name, value.clone().into_bytes());
    }
    entries
        .into_iter()
        .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", &value].concat()).ok())
        .collect()
}

/// The private home of cargo.
pub(super) const CARGO_HOME: &str = "/tmp/home/.cargo";

/// Sub-directories of a bound `.cargo` that are linked into [`CARGO_HOME`], with the link's path.
pub(super) fn cargo_links(read_paths: &[ReadPath]) -> Vec<(&Path, String)> {
    let linked = |read: &'_ ReadPath| {
        let name = read.path.file_name()?.to_str().filter(|name| matches!(*name, "registry" | "git"))?;
        read.path.parent()?.ends_with(".cargo").then(|| format!("{CARGO_HOME}/{name}"))
    };
    read_paths.iter().filter_map(|read| Some((read.path.as_path(), linked(read)?))).collect()
}

/// The directories of programs that a read path brings: itself if it is one, or its `bin`.
fn programs(path: &Path) -> impl Iterator<Item = Vec<u8>> {
    let own = path.ends_with("bin").then(|| path.to_owned());
    let inner = Some(path.join("bin")).filter(|bin| bin.is_dir());
    own.into_iter().chain(inner).map(|path| path.into_os_string().into_encoded_bytes())
}

fn up_to(path: &Path, name: &str) -> Option<Vec<u8>> {
    let found = path.ancestors().find(|ancestor| ancestor.file_name().is_some_and(|last| last == name))?;
    Some(found.as_os_str().as_encoded_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> ReadPath {
        ReadPath {
            path: path.into(),
            descriptor: std::sync::Arc::new(std::fs::File::open("/").unwrap().into()),
            content: None,
        }
    }

    fn texts(entries: &[CString]) -> Vec<&str> {
        entries.iter().map(|entry| entry.to_str().unwrap()).collect()
    }

    #[test]
    fn nothing_of_the_daemons_environment_is_there() {
        let entries = environment(&[], &[]);
        let names: Vec<_> = texts(&entries).into_iter().map(|entry| entry.split_once('=').unwrap().0).collect();
        for own in std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("CARGO")) {
            assert!(!names.contains(&own.as_str()), "{own}");
        }
        assert!(texts(&entries).contains(&"GIT_CONFIG_GLOBAL=/dev/null"));
        assert_eq!(names.iter().filter(|name| **name == "PATH").count(), 1);
    }

    #[test]
    fn a_toolchain_of_another_user_is_found_and_never_written() {
        let entries = environment(&[read("/h/u/.cargo/bin"), read("/h/u/.rustup")], &[]);
        let entries = texts(&entries);
        assert!(entries.iter().any(|entry| entry.starts_with("PATH=") && entry.ends_with(":/h/u/.cargo/bin")));
        assert!(entries.contains(&"RUSTUP_HOME=/h/u/.rustup"));
        assert!(entries.contains(&"CARGO_HOME=/tmp/home/.cargo"));
        let links = [read("/h/u/.cargo/registry")];
        assert_eq!(cargo_links(&links), [(Path::new("/h/u/.cargo/registry"), "/tmp/home/.cargo/registry".into())]);
    }

    #[test]
    fn what_the_operator_declared_wins() {
        let entries = environment(&[], &[("LANG".into(), "de_DE.UTF-8".into()), ("A".into(), "b=c".into())]);
        let entries = texts(&entries);
        assert!(entries.contains(&"LANG=de_DE.UTF-8") && entries.contains(&"A=b=c"));
        assert!(!entries.contains(&"LANG=C.UTF-8"));
    }
}
