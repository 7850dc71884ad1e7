//! The build script of every program that says its build: tells the binary which commit it was built from.
//!
//! It reads git's files instead of running git: a build as root in another account's checkout must neither
//! fail on ownership nor run what that checkout's configuration names. Only the checkout that this package
//! lies in counts, never one further up.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn main() {
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    // The one lock file lies at the top; packages are one or two floors below it.
    let root = package.ancestors().skip(1).take(2).find(|above| above.join("Cargo.lock").exists());
    if let Some(root) = root {
        watch(&root.join("core/commit.rs"));
    }
    let commit = root.and_then(|root| commit(&root.join(".git"))).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=SALAAM_COMMIT={commit}");
}

/// The first seven digits of the commit that HEAD names; None where there is no git or a form of it that is
/// not known here.
fn commit(dot_git: &Path) -> Option<String> {
    let git = if dot_git.is_dir() { dot_git.to_owned() } else { linked(dot_git, "gitdir: ")? };
    watch(&git.join("HEAD"));
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let full = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(name) => {
            let common = linked(&git.join("commondir"), "").unwrap_or(git);
            named(&common, name)?
        }
    };
    let short = full.get(..7)?;
    short.bytes().all(|b| b.is_ascii_hexdigit()).then(|| short.to_owned())
}

/// The commit that a branch names: its own file, or its line in packed-refs.
fn named(common: &Path, name: &str) -> Option<String> {
    let loose = common.join(name);
    let packed = common.join("packed-refs");
    if let Ok(commit) = fs::read_to_string(&loose) {
        watch(&loose);
        return Some(commit.trim().to_owned());
    }
    // The next commit makes the loose file: its directory changes then.
    if let Some(dir) = loose.ancestors().skip(1).find(|dir| dir.is_dir()) {
        watch(dir);
    }
    watch(&packed);
    let list = fs::read_to_string(packed).ok()?;
    list.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(_, to)| *to == name)
        .map(|(commit, _)| commit.to_owned())
}

/// The path that a one-line file names, relative to the file's directory.
fn linked(file: &Path, prefix: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(file).ok()?;
    Some(file.parent()?.join(text.trim().strip_prefix(prefix)?))
}

/// Builds again when `path` changes; a path that is not there would build again every time.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
