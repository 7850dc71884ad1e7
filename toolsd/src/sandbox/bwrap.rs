//! Which bubblewrap is used: one that root owns, with the options that the walls are made of.

use std::{
    ffi::CString,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use salaam_core::result::Failure;

/// A usable bubblewrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bwrap {
    /// Its absolute path.
    pub program: CString,
    /// What it says its version is.
    pub version: String,
}

/// Where it is looked for, first come first served; never in PATH.
const PLACES: &[&str] = &["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];

/// Options without which the walls cannot be built; asked of `--help`, since distributions carry some of them
/// back to versions that did not have them.
const NEEDED: &[&str] = &[
    "--unshare-user",
    "--unshare-cgroup",
    "--disable-userns",
    "--bind-fd",
    "--ro-bind-fd",
    "--ro-bind-data",
    "--json-status-fd",
    "--perms",
    "--size",
    "--remount-ro",
    "--die-with-parent",
    "--new-session",
];

/// Finds bubblewrap, or says why commands are refused (`sandbox-missing`).
pub fn find(instead: Option<&Path>) -> Result<Bwrap, Failure> {
    let places: Vec<PathBuf> = match instead {
        Some(path) => vec![path.to_owned()],
        None => PLACES.iter().map(PathBuf::from).collect(),
    };
    let Some(found) = places.iter().find(|place| place.exists()) else {
        return Err(missing(format!(
            "bubblewrap is at none of {}; install the package `bubblewrap`",
            places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
        )));
    };
    for part in found.ancestors() {
        let trusted = part.metadata().is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o022 == 0);
        if !trusted {
            return Err(missing(format!(
                "{} is not used: {} is not root's alone; chown root, chmod go-w",
                found.display(),
                part.display()
            )));
        }
    }
    let help = answer(found, "--help")?;
    let lacking: Vec<_> = NEEDED.iter().filter(|option| !help.contains(**option)).copied().collect();
    let version = answer(found, "--version")?.trim().trim_start_matches("bubblewrap ").to_owned();
    if !lacking.is_empty() {
        return Err(missing(format!(
            "{} {version} lacks {}; 0.8.0 with Debian's updates, or 0.9 and later, has them",
            found.display(),
            lacking.join(", ")
        )));
    }
    let program = CString::new(found.as_os_str().as_encoded_bytes())
        .map_err(|_| missing("the path of bubblewrap holds a NUL byte".into()))?;
    Ok(Bwrap { program, version })
}

fn answer(program: &Path, option: &str) -> Result<String, Failure> {
    let output = Command::new(program)
        .arg(option)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| missing(format!("{} {option} did not run: {error}", program.display())))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn missing(message: String) -> Failure {
    Failure { id: "sandbox-missing".into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bubblewrap_that_others_could_replace_is_not_used() {
        let planted = std::env::temp_dir().join(format!("salaam-planted-{}", std::process::id()));
        std::fs::write(&planted, "#!/bin/sh\n").unwrap();
        let refused = find(Some(&planted)).unwrap_err();
        std::fs::remove_file(&planted).unwrap();
        assert_eq!(refused.id, "sandbox-missing");
        assert!(refused.message.contains("is not root's alone"), "{}", refused.message);
    }

    #[test]
    fn without_bubblewrap_the_package_is_named() {
        let refused = find(Some(Path::new("/nowhere/bwrap"))).unwrap_err();
        assert!(refused.message.contains("install the package"), "{}", refused.message);
    }
}
