//! Real projects, unpacked from package registries, built and tested by approved commands in the sandbox.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use salaam_tests::{Host, Pair, limit, ran, ran::Ran};

/// A C library with tests of its own, in every Debian and Ubuntu.
const C_PROJECT: &str = "bzip2";
/// A crate without dependencies and with tests.
const CRATE: &str = "fnv";
/// A crate that a project in the workspace depends on.
const DEPENDENCY: &str = "itoa";

const BUILD: Duration = Duration::from_secs(300);

#[test]
fn a_c_project_is_built_and_tested() {
    let _turn = limit!(400);
    let pair = Pair::started(Host::shared());
    let archive = debian_source(C_PROJECT, &pair.host.prefix);
    unpack(&pair, &archive);
    let ran = pair.run(&["sh", "-c", "make -j2 bzip2 && ls -l bzip2"]).ok();
    assert!(ran.out().contains("bzip2"), "{ran}");
    pair.run(&["make", "test"]).ok();
    let compressed =
        pair.run_input(&["--stdin"], &["./bzip2", "-c"], &b"some text, some text".repeat(1000)).ok().stdout;
    assert!(compressed.starts_with(b"BZh") && compressed.len() < 1000);
    let back = pair.run_input(&["--stdin"], &["./bzip2", "-dc"], &compressed).ok().stdout;
    assert_eq!(back, b"some text, some text".repeat(1000));
    let failing = pair.run(&["sh", "-c", "echo 'int main(void) { return 1 +; }' > broken.c && cc broken.c"]);
    assert!(
        !matches!(failing.code, Some(0 | 125)) && failing.err().contains("broken.c"),
        "a failing build is the command's own: {failing}"
    );
    pair.salaam(&["journal", "verify"]).ok();
}

#[test]
fn a_crate_is_tested_with_the_toolchain_of_the_service_users_home() {
    let _turn = limit!(600);
    let host = Host::shared();
    let home = &host.service.home;
    fs::set_permissions(home, std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("it is ours");
    give_toolchain(home);
    let archive = fetch(&host.prefix, home);
    let pair = Pair::started_with(host, "local_sandbox_read_paths = [\"toolchain\"]\n");
    let cargo = |words: &str| Ran::with_input(&mut run_command(&pair, words), b"", BUILD);

    let version = cargo("cargo --version && rustc --version").ok();
    assert!(version.out().contains("cargo "), "{version}");
    unpack(&pair, &archive);
    let tested = cargo("cargo test --offline").ok();
    assert!(tested.says("test result: ok"), "{tested}");

    // A project with a dependency, which only the registry below ~/.cargo has.
    pair.run(&["sh", "-c", "rm -rf ./* && mkdir src"]).ok();
    pair.host.write(&pair.workspace.join("Cargo.toml"), project("inside"));
    pair.host.write(
        &pair.workspace.join("src/lib.rs"),
        "#[test]\nfn formats() {\n    assert_eq!(itoa::Buffer::new().format(42), \"42\");\n}\n",
    );
    let tested = cargo("cargo test --offline").ok();
    assert!(tested.says("test formats ... ok"), "{tested}");

    for path in ["/tmp/home/.cargo/credentials.toml", &home.join(".cargo/credentials.toml").display().to_string()] {
        let ran = pair.run(&["cat", path]);
        assert!(ran.code != Some(0) && !ran.says("cio-demo-token"), "{ran}");
    }
    for path in ["registry/x", "bin/x", "x"] {
        let ran = pair.run(&["touch", &home.join(".cargo").join(path).display().to_string()]);
        assert_ne!(ran.code, Some(0), "read paths are never writable: {ran}");
    }
    let whole = pair.run(&["ls", "-a", &home.display().to_string()]);
    assert!(!whole.says("secret-of-the-service"), "the home itself is not there: {whole}");
}

fn run_command(pair: &Pair, text: &str) -> Command {
    let mut command = pair.command_as(&pair.host.service);
    command.args(["run", "--yes", "--workspace"]).arg(&pair.workspace).args(["--", "sh", "-c", text]);
    command
}

/// The upstream archive of a Debian source package, by apt itself from the sources that this host has.
fn debian_source(name: &str, prefix: &Path) -> PathBuf {
    let area = prefix.join("apt");
    for part in ["lists/partial", "parts", "download"] {
        fs::create_dir_all(area.join(part)).expect("the prefix is root's");
    }
    // The host's own sources, read as source entries: a host rarely lists those.
    let mut own = vec![PathBuf::from("/etc/apt/sources.list")];
    own.extend(fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path()));
    for file in own {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let from_distribution = text.contains("debian") || text.contains("ubuntu");
        let Some(file_name) = file.file_name().filter(|_| from_distribution) else { continue };
        let text: String = text
            .lines()
            .map(|line| match line.trim() {
                "Types: deb" => "Types: deb-src".to_owned(),
                line if line.starts_with("deb ") => line.replacen("deb ", "deb-src ", 1),
                line => line.to_owned(),
            })
            .map(|line| line + "\n")
            .collect();
        fs::write(area.join("parts").join(file_name), text).expect("the prefix is root's");
    }
    let options = |command: &mut Command| {
        command.current_dir(area.join("download")).args(["-q", "-o", "Dir::Etc::sourcelist=/dev/null"]);
        command.arg("-o").arg(format!("Dir::Etc::sourceparts={}", area.join("parts").display()));
        command.arg("-o").arg(format!("Dir::State::lists={}", area.join("lists").display()));
        command.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"]);
    };
    let mut update = Command::new("apt-get");
    options(&mut update);
    // A source that has no source index is not a reason to fail; the download below is.
    Ran::of(update.arg("update"));
    let mut source = Command::new("apt-get");
    options(&mut source);
    Ran::of(source.args(["source", "--download-only", name])).ok();
    let found = fs::read_dir(area.join("download")).expect("it is there").flatten().map(|entry| entry.path());
    found.into_iter().find(|path| path.to_string_lossy().contains(".orig.tar")).expect("an upstream archive")
}

/// Unpacks into the workspace, as an approved command: the archive comes in through standard input.
fn unpack(pair: &Pair, archive: &Path) {
    let bytes = fs::read(archive).expect("it was just fetched");
    let kind = if archive.to_string_lossy().ends_with("xz") {
        "-xJ"
    } else if archive.to_string_lossy().ends_with("bz2") {
        "-xj"
    } else {
        "-xz"
    };
    pair.run_input(&["--stdin"], &["tar", kind, "--strip-components=1"], &bytes).ok();
}

/// The toolchain that runs these tests as it would lie in a home: rustup's programs and one toolchain, by hard
/// links where they are possible. A toolchain of the distribution needs nothing of it.
fn give_toolchain(home: &Path) {
    let sysroot = PathBuf::from(ran::run(&["rustc", "--print", "sysroot"]).out().trim());
    let programs = cargo_home().join("bin");
    if !programs.join("rustup").exists() {
        return;
    }
    let toolchain = home.join(".rustup/toolchains/here");
    fs::create_dir_all(&toolchain).expect("root may");
    fs::create_dir_all(home.join(".cargo")).expect("root may");
    let settings = "version = \"12\"\nprofile = \"minimal\"\ndefault_toolchain = \"here\"\n\n[overrides]\n";
    fs::write(home.join(".rustup/settings.toml"), settings).expect("root may");
    linked(&sysroot.join("bin"), &toolchain.join("bin"));
    linked(&sysroot.join("lib"), &toolchain.join("lib"));
    linked(&programs, &home.join(".cargo/bin"));
}

fn linked(from: &Path, to: &Path) {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    if Ran::of(Command::new("cp").args(["-al", &from, &to])).code != Some(0) {
        drop(fs::remove_dir_all(&to));
        ran::run(&["cp", "-a", &from, &to]);
    }
}

fn cargo_home() -> PathBuf {
    let own = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    own.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cargo"))
}

fn project(name: &str) -> String {
    let dependency = format!("[dependencies]\n{DEPENDENCY} = \"1\"\n");
    format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n{dependency}\n[workspace]\n")
}

/// Has cargo fetch the crates, and gives the service user's home the registry. Returns the archive of [`CRATE`].
fn fetch(prefix: &Path, home: &Path) -> PathBuf {
    let area = prefix.join("fetch");
    fs::create_dir_all(area.join("src")).expect("the prefix is root's");
    fs::write(area.join("src/lib.rs"), "").expect("it is ours");
    let manifest = project("fetch").replace("[workspace]", &format!("{CRATE} = \"1\"\n\n[workspace]"));
    fs::write(area.join("Cargo.toml"), manifest).expect("it is ours");
    Ran::with_input(Command::new("cargo").arg("fetch").current_dir(&area), b"", BUILD).ok();
    let from = cargo_home();
    let cargo = home.join(".cargo");
    fs::create_dir_all(&cargo).expect("root may");
    ran::run(&[
        "cp",
        "-a",
        &from.join("registry").display().to_string(),
        &cargo.join("registry").display().to_string(),
    ]);
    ran::run(&["chmod", "-R", "a+rX", &cargo.display().to_string()]);
    // Of this mode alone a start would be refused: the tools user must not be able to open it outside either.
    let credentials = cargo.join("credentials.toml");
    fs::write(&credentials, "[registry]\ntoken = \"cio-demo-token\"\n").expect("root writes");
    fs::set_permissions(&credentials, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("root may");
    let owner = fs::metadata(home).expect("it is there");
    std::os::unix::fs::chown(&credentials, Some(owner.uid()), Some(owner.gid())).expect("root may");
    fs::write(home.join("secret-of-the-service"), "x").expect("root writes");
    let cache = from.join("registry/cache");
    let archives = fs::read_dir(cache).expect("cargo made it").flatten().filter_map(|index| {
        let entries = fs::read_dir(index.path()).ok()?.flatten().map(|entry| entry.path());
        entries
            .into_iter()
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{CRATE}-1"))))
    });
    archives.into_iter().next().expect("cargo keeps the archive")
}
