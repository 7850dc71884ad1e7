//! Which bubblewrap is used: one that root owns, with the options that the walls are made of.

use std::{
    ffi::CString,
    io::Read as _,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
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

/// What it says of itself, within [`WITHIN`]: it is asked before the executor serves, and must not hold that up.
fn answer(program: &Path, option: &str) -> Result<String, Failure> {
    let failed = |why: String| missing(format!("{} {option} did not run: {why}", program.display()));
    let mut child = Command::new(program)
        .arg(option)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let until = Instant::now() + WITHIN;
    // A pipe holds all that is read of it, so it is read when the program is over.
    while child.try_wait().map_err(|error| failed(error.to_string()))?.is_none() {
        if Instant::now() > until {
            // It is this account's own.
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(format!("no answer within {} s", WITHIN.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut said = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(MAX_ANSWER_BYTES).read_to_end(&mut said).map_err(|error| failed(error.to_string()))?;
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Printing a text takes milliseconds; the service waits 15 s for the executor to serve.
const WITHIN: Duration = Duration::from_secs(3);
/// What a pipe holds (pipe(7)); the help of 0.11 has 7 kB.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

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
    fn a_program_that_does_not_answer_holds_nothing_up() {
        let refused = answer(Path::new("/usr/bin/sleep"), "60").unwrap_err();
        assert!(refused.message.contains("no answer within 3 s"), "{}", refused.message);
    }

    #[test]
    fn without_bubblewrap_the_package_is_named() {
        let refused = find(Some(Path::new("/nowhere/bwrap"))).unwrap_err();
        assert!(refused.message.contains("install the package"), "{}", refused.message);
    }
}
