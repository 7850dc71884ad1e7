//! Attacks on the configuration, and what must stand after them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use salaam_core::policy::{Landlock, Mode, Unsandboxed};
use serde_json::json;

use super::*;

/// A directory of this test alone, below a root that nobody else may write; removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slt-host-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    pub(crate) fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn variables(of: &[(&str, &str)]) -> Variables {
    of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn layered(text: &str, of: &[(&str, &str)], flags: &Flags) -> Result<Config, HostError> {
    Config::layered(&Config::default(), Some((Path::new("/c/host.toml"), text)), &variables(of), flags)
}

/// A host of this process's own uid with its directories in `scratch`.
fn host(scratch: &Scratch, toml: &str, flags: Flags) -> Result<Host, HostError> {
    let config = scratch.dir("config", 0o700);
    fs::write(config.join("host.toml"), toml).unwrap();
    let of: Vec<_> = ["config", "state", "run"].iter().map(|name| scratch.path().join(name)).collect();
    let variables = variables(&[
        ("SALAAM_CONFIG_DIR", of[0].to_str().unwrap()),
        ("SALAAM_STATE_DIR", of[1].to_str().unwrap()),
        ("SALAAM_RUNTIME_DIR", of[2].to_str().unwrap()),
    ]);
    let uid = nix::unistd::geteuid().as_raw();
    load_from(flags, &variables, &scratch.path().join("etc"), uid, Path::new("/opt/x/bin/salaam"))
}

#[test]
fn each_layer_overrides_the_one_below_key_by_key() {
    let text = "tools_user = \"from-file\"\napproval_ttl_seconds = 60\n[limits]\nprocesses = 100\nopen_files = 200\n";
    let of =
        [("SALAAM_TOOLS_USER", "from-env"), ("SALAAM_LIMITS__PROCESSES", "50"), ("SALAAM_LANDLOCK", "if-available")];
    let flags = Flags { tools_user: Some("from-flag".into()), ..Flags::default() };
    let config = layered(text, &of, &flags).unwrap();
    assert_eq!(config.tools_user.as_deref(), Some("from-flag"));
    assert_eq!(config.approval_ttl_seconds, 60);
    assert_eq!((config.limits.processes, config.limits.open_files, config.limits.command_seconds), (50, 200, 600));
    assert_eq!(config.landlock, Landlock::IfAvailable);
    assert_eq!(layered(text, &of, &Flags::default()).unwrap().tools_user.as_deref(), Some("from-env"));
}

#[test]
fn a_variable_is_typed_by_its_key_and_never_by_its_look() {
    let of = [
        ("SALAAM_TOOLS_USER", "x123"),
        ("SALAAM_LOCAL_SANDBOX_READ_PATHS", "/opt/a:~/b:toolchain"),
        ("SALAAM_ENVIRONMENT__MixedCase", "true"),
        ("SALAAM_STATE_DIR", "/x"),
        ("SALAAM_INSTANCE", "y"),
        ("SALAAMANDER", "not ours"),
    ];
    let config = layered("", &of, &Flags::default()).unwrap();
    assert_eq!(config.local_sandbox_read_paths, ["/opt/a", "~/b", "toolchain"]);
    assert_eq!(config.environment.get("MixedCase").map(String::as_str), Some("true"));
    assert_eq!(config.tools_user.as_deref(), Some("x123"));
    // The text `123` reaches the check for account names as text, and that is what refuses it.
    let error = layered("", &[("SALAAM_TOOLS_USER", "123")], &Flags::default()).unwrap_err().to_string();
    assert!(error.contains("`123` is no account name"), "{error}");
}

#[test]
fn what_is_not_understood_is_an_error_with_key_and_place() {
    for (text, says) in [
        ("tools_usr = \"x\"", vec!["tools_usr", "line 1", "/c/host.toml"]),
        ("\n\n[limits]\nprocesses = \"many\"", vec!["line 4", "processes"]),
        ("[limits]\nproceses = 3", vec!["proceses", "line 2"]),
        ("tools_user = 3", vec!["line 1", "tools_user"]),
        ("unsandboxed_commands = \"yes\"", vec!["line 1", "`yes` is not one of"]),
        ("approval_ttl_seconds = -5", vec!["line 1"]),
        ("approval_ttl_seconds = 0", vec!["approval_ttl_seconds", "from 1 to"]),
        ("protected_paths = [\"../x\"]", vec!["protected_paths", "../x"]),
        ("protected_paths = \"x\"", vec!["protected_paths", "line 1"]),
        ("command_network = \"broker\"", vec!["broker", "none"]),
        ("environment = { \"A=B\" = \"x\" }", vec!["environment", "A=B"]),
        ("limits = { processes = 1 }", vec!["limits.processes in /c/host.toml: 1 is not from 4"]),
        ("= nonsense", vec!["line 1"]),
    ] {
        let error = layered(text, &[], &Flags::default()).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{text:?} says {error:?}, without {part:?}");
        }
    }
    for (name, value, says) in [
        ("SALAAM_TOOLS_USR", "x", "SALAAM_TOOLS_USR"),
        ("SALAAM_LIMITS__PROCESES", "3", "SALAAM_LIMITS__PROCESES"),
        ("SALAAM_LIMITS__PROCESSES", "many", "SALAAM_LIMITS__PROCESSES"),
        ("SALAAM_LIMITS", "{processes=1}", "SALAAM_LIMITS"),
        ("SALAAM_UNSANDBOXED_COMMANDS", "maybe", "SALAAM_UNSANDBOXED_COMMANDS"),
        ("SALAAM_tools_user", "x", "SALAAM_tools_user"),
    ] {
        let error = layered("", &[(name, value)], &Flags::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{name}={value} says {error:?}");
    }
    let twice = [("SALAAM_LOCAL_SANDBOX_READ", "/a"), ("SALAAM_LOCAL_SANDBOX_READ_PATHS", "/b")];
    assert!(layered("", &twice, &Flags::default()).is_err());
}

#[test]
fn a_configuration_that_others_could_have_written_is_not_read() {
    let scratch = Scratch::new("trust");
    assert!(host(&scratch, "approval_ttl_seconds = 5", Flags::default()).is_ok());
    let file = scratch.path().join("config/host.toml");
    let read = || {
        let config = scratch.path().join("config");
        let of = [("SALAAM_CONFIG_DIR", config.to_str().unwrap())];
        load_from(Flags::default(), &variables(&of), scratch.path(), 0, Path::new("/bin/salaam"))
    };
    assert!(read().is_ok());
    for mode in [0o602, 0o620] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(read(), Err(HostError::Untrusted { .. })), "{mode:o}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&file, Some(65_533), None).unwrap();
    assert!(matches!(read(), Err(HostError::Untrusted { .. })));
    fs::remove_file(&file).unwrap();
    symlink(scratch.file("elsewhere.toml", "", 0o600), &file).unwrap();
    assert!(matches!(read(), Err(HostError::Untrusted { .. })));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(read(), Err(HostError::Untrusted { .. })));
    fs::remove_dir(&file).unwrap();
    scratch.file("config/host.toml", "", 0o600);
    scratch.dir("config", 0o777);
    assert!(matches!(read(), Err(HostError::Untrusted { .. })));
}

#[test]
fn a_file_of_a_workspace_or_above_it_is_never_read() {
    let scratch = Scratch::new("planted");
    let planted = "unsandboxed_commands = \"allow\"\n";
    for place in ["ws/host.toml", "ws/.salaam/host.toml", "host.toml", ".salaam/host.toml", "ws/salaam.toml"] {
        scratch.file(place, planted, 0o644);
    }
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(scratch.path().join("ws")).unwrap();
    let loaded = host(&scratch, "", Flags::default());
    std::env::set_current_dir(before).unwrap();
    assert_eq!(loaded.unwrap().config, Config::default());
}

mod read_paths {
    use super::{super::read_path::*, *};

    fn around(home: &Path, tools: Option<(u32, Vec<u32>)>) -> Surroundings<'_> {
        Surroundings { home, homes: vec![home.to_owned()], own: vec![], workspaces: vec![], tools }
    }

    fn refused(entry: &str, around: &Surroundings<'_>, says: &str) {
        let error = resolve(&[entry.to_owned()], around).unwrap_err().to_string();
        assert!(error.contains(says), "{entry}: {error}");
    }

    #[test]
    fn a_path_above_a_credential_or_linked_to_one_is_refused_and_names_it() {
        let scratch = Scratch::new("s5");
        let home = scratch.dir("home", 0o700);
        scratch.dir("home/.config/salaam", 0o700);
        scratch.dir("home/.config/nvim", 0o755);
        scratch.dir("home/.aws", 0o700);
        scratch.dir("home/vault/gpg", 0o700);
        scratch.file("home/.cargo/credentials.toml", "x", 0o600);
        scratch.dir("home/.cargo/registry/cache", 0o755);
        scratch.dir("home/tools", 0o755);
        symlink(home.join(".aws"), home.join("toolbox")).unwrap();
        symlink(home.join("vault/gpg"), home.join(".gnupg")).unwrap();
        symlink(&home, scratch.path().join("alias")).unwrap();
        let around = around(&home, None);
        refused("~/.config", &around, ".config/");
        refused("~/toolbox", &around, ".aws");
        refused("~/.aws", &around, "credential");
        refused("~/vault", &around, "vault/gpg");
        refused("~/.cargo", &around, ".cargo/credentials");
        refused("~/.cargo/credentials.toml", &around, "credential");
        refused("~", &around, "would expose");
        refused("~/", &around, "would expose");
        refused(scratch.path().join("alias").to_str().unwrap(), &around, "would expose");
        refused(scratch.path().join("alias/.aws").to_str().unwrap(), &around, ".aws");
        refused(scratch.path().to_str().unwrap(), &around, "would expose");
        refused("/", &around, "whole host");
        refused("/etc", &around, "would expose");
        refused("/etc/shadow", &around, "the system's own");
        refused("/proc/self/root", &around, "whole host");
        refused("relative", &around, "neither absolute");
        refused("~/absent", &around, "cannot be resolved");
        refused("~/../home/.aws", &around, ".aws");
        let taken = ["~/tools", "~/.cargo/registry", "toolchain", "~/.config/nvim", "~/tools"].map(String::from);
        let resolved = resolve(&taken, &around).unwrap();
        let expected = [".cargo/registry", ".config/nvim", "tools"].map(|part| home.join(part).display().to_string());
        assert_eq!(resolved, expected);
    }

    #[test]
    fn the_toolchain_is_named_parts_and_no_secret() {
        let scratch = Scratch::new("toolchain");
        let home = scratch.dir("home", 0o755);
        let parts = [".cargo/bin", ".npm/_cacache", ".nvm", "go/pkg", "go/src/x"];
        for part in parts {
            scratch.dir(&format!("home/{part}"), 0o755);
        }
        for (version, _) in [("v9.1.0", 0), ("v22.3.1", 0), ("v20.0.0", 0)] {
            scratch.file(&format!("home/.nvm/versions/node/{version}/bin/node"), "", 0o755);
        }
        scratch.file("home/.cargo/credentials.toml", "x", 0o600);
        scratch.file("home/.npmrc", "x", 0o600);
        scratch.file("home/.gitconfig", "[user]\n\tname = A\n", 0o644);
        scratch.file("home/.config/git/config", "[github]\n\ttoken = s3cret\n", 0o644);
        scratch.file("home/.config/git/ignore", "*.o\n", 0o644);
        scratch.file("home/.config/git/credentials", "https://a:b@example.org\n", 0o600);
        let around = around(&home, None);
        let found = resolve(&["toolchain".to_owned()], &around).unwrap();
        let below = |path: &String| path.strip_prefix(home.to_str().unwrap()).map(|path| path[1..].to_owned());
        let found: Vec<_> = found.iter().filter_map(below).collect();
        let node = ".nvm/versions/node/v22.3.1".to_owned();
        let expected = [".cargo/bin", ".config/git/ignore", ".gitconfig", ".npm/_cacache", ".nvm", "go/pkg"];
        assert_eq!(found.iter().filter(|path| **path != node).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        refused("~/.config/git/config", &around, "github.token");
        refused("~/.config/git", &around, ".config/git/credentials");
        let pinned = identities(&[home.join(".nvm").display().to_string()]).unwrap();
        fs::rename(home.join(".nvm"), home.join("old")).unwrap();
        scratch.dir("home/.nvm", 0o755);
        assert_ne!(identities(&[home.join(".nvm").display().to_string()]).unwrap(), pinned, "another one there shows");
    }

    #[test]
    fn a_credential_by_another_name_or_in_other_letters_is_found() {
        let scratch = Scratch::new("linked");
        let home = scratch.dir("home", 0o755);
        scratch.file("home/.aws/credentials", "x", 0o600);
        scratch.dir("tools/deep/er", 0o755);
        let tools = scratch.path().join("tools").display().to_string();
        let around = around(&home, None);
        assert!(resolve(std::slice::from_ref(&tools), &around).is_ok());
        fs::hard_link(home.join(".aws/credentials"), scratch.path().join("tools/deep/er/notes")).unwrap();
        refused(&tools, &around, "deep/er/notes");
        fs::remove_file(scratch.path().join("tools/deep/er/notes")).unwrap();
        scratch.dir("tools/.SSH", 0o755);
        refused(scratch.path().join("tools/.SSH").to_str().unwrap(), &around, "credential");
    }

    #[test]
    fn salaams_own_directories_and_workspaces_are_never_read_paths() {
        let scratch = Scratch::new("own");
        let home = scratch.dir("home", 0o755);
        let state = scratch.dir("var/state", 0o755);
        let workspace = scratch.dir("srv/ws", 0o755);
        scratch.dir("srv/ws/vendor", 0o755);
        let around =
            Surroundings { own: vec![state.clone()], workspaces: vec![workspace.clone()], ..around(&home, None) };
        refused(state.to_str().unwrap(), &around, "Salaam's own");
        refused(state.parent().unwrap().to_str().unwrap(), &around, "Salaam's own");
        refused(workspace.join("vendor").to_str().unwrap(), &around, "registered workspace");
        refused(workspace.parent().unwrap().to_str().unwrap(), &around, "registered workspace");
    }

    #[test]
    fn a_path_that_the_tools_user_could_exchange_is_refused() {
        const TOOLS: u32 = 65_531;
        const WORK: u32 = 65_532;
        let scratch = Scratch::new("swap");
        let home = scratch.dir("home", 0o755);
        scratch.dir("shared/lib", 0o755);
        let shared = scratch.path().join("shared");
        let lib = shared.join("lib").display().to_string();
        let around = around(&home, Some((TOOLS, vec![TOOLS, WORK])));
        assert!(resolve(std::slice::from_ref(&lib), &around).is_ok());
        scratch.dir("shared", 0o777);
        refused(&lib, &around, "could exchange");
        scratch.dir("shared", 0o1777);
        assert!(resolve(std::slice::from_ref(&lib), &around).is_ok());
        std::os::unix::fs::chown(shared.join("lib"), Some(TOOLS), None).unwrap();
        refused(&lib, &around, "could exchange");
        std::os::unix::fs::chown(shared.join("lib"), Some(0), None).unwrap();
        std::os::unix::fs::chown(&shared, None, Some(WORK)).unwrap();
        scratch.dir("shared", 0o775);
        refused(&lib, &around, "could exchange");
        scratch.dir("shared", 0o755);
        assert!(resolve(std::slice::from_ref(&lib), &around).is_ok());
        // An ACL for the one account shows in the mode only as a group bit of some other group.
        let acl = acl::Acl::of_mode(0o755).with_user(TOOLS, acl::ALL).to_bytes();
        salaam_sys::xattr::set(fs::File::open(&shared).unwrap(), acl::ACCESS, &acl).unwrap();
        refused(&lib, &around, "could exchange");
        salaam_sys::xattr::remove(fs::File::open(&shared).unwrap(), acl::ACCESS).unwrap();
        std::os::unix::fs::chown(&shared, Some(TOOLS), None).unwrap();
        refused(&lib, &around, "could exchange");
    }
}

#[test]
fn a_pinned_plan_reads_back_and_a_change_is_named_key_by_key() {
    let scratch = Scratch::new("pin");
    let first = host(&scratch, "", Flags::default()).unwrap();
    assert_eq!(first.mode, Mode::ServiceUser);
    assert_eq!(first.pinned().unwrap(), None);
    let plan = first.plan().unwrap();
    assert!(matches!(verdict(None, &plan, &first.flags), Verdict::Pin { .. }));
    first.pin(&plan).unwrap();
    let file = scratch.path().join("config/manifest.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(first.pinned().unwrap().as_ref(), Some(&plan));
    assert_eq!(verdict(Some(&plan), &plan, &first.flags), Verdict::Keep);

    let changed = host(&scratch, "approval_ttl_seconds = 5\n[limits]\nprocesses = 9\n", Flags::default()).unwrap();
    let resolved = changed.plan().unwrap();
    let keys = vec!["approval_ttl_seconds".to_owned(), "limits.processes".to_owned()];
    assert_eq!(verdict(Some(&plan), &resolved, &changed.flags), Verdict::Changed { keys });

    let flags = Flags { unsandboxed_commands: Some(Unsandboxed::Allow), ..Flags::default() };
    let flagged = host(&scratch, "", flags.clone()).unwrap();
    let difference = vec![json!({"key":"unsandboxed_commands","before":"refuse","after":"allow"})];
    assert_eq!(verdict(Some(&plan), &flagged.plan().unwrap(), &flags), Verdict::Pin { difference });

    let slipped = host(&scratch, "approval_ttl_seconds = 5", flags.clone()).unwrap();
    assert!(matches!(verdict(Some(&plan), &slipped.plan().unwrap(), &flags), Verdict::Changed { .. }));
}

#[test]
fn a_manifest_that_others_could_read_or_that_was_edited_is_refused() {
    let scratch = Scratch::new("manifest");
    let host = host(&scratch, "", Flags::default()).unwrap();
    host.pin(&host.plan().unwrap()).unwrap();
    let file = scratch.path().join("config/manifest.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(host.pinned(), Err(HostError::Untrusted { .. })));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut text = fs::read_to_string(&file).unwrap();
    text.push('\n');
    fs::write(&file, &text).unwrap();
    assert!(matches!(host.pinned(), Err(HostError::Manifest { .. })));
    host.pin(&host.plan().unwrap()).unwrap();
    assert!(host.pinned().unwrap().is_some());
}

mod instances {
    use super::*;

    const TEXT: &str = "version = 1\nservice_user = \"root\"\nservice_uid = 65530\ntools_user = \"tools\"\ntools_uid = 65531\ngroup = \"work\"\ngroup_gid = 65532\n[directories]\nconfig = \"/v/config\"\nstate = \"/v/state\"\nruntime = \"/v/run\"\nlibexec = \"/v/libexec\"\n";

    #[test]
    fn only_roots_files_named_by_their_service_user_count() {
        let scratch = Scratch::new("instances");
        let etc = scratch.dir("etc", 0o755);
        assert!(list(&scratch.path().join("absent")).unwrap().is_empty());
        let good = TEXT.replace("\"root\"", "\"good\"");
        scratch.file("etc/good.toml", &good, 0o644);
        scratch.file("etc/other.toml", &good, 0o644);
        scratch.file("etc/open.toml", &good.replace("good", "open"), 0o666);
        scratch.file("etc/notes.txt", "x", 0o644);
        let listed = list(&etc).unwrap();
        let names: Vec<_> = listed
            .iter()
            .map(|(path, read)| (path.file_name().unwrap().to_str().unwrap().to_owned(), read.is_ok()))
            .collect();
        let expected = [("good.toml", true), ("open.toml", false), ("other.toml", false)];
        assert_eq!(names, expected.map(|(name, ok)| (name.to_owned(), ok)));
        let (path, instance) = for_service_uid(&etc, 65_530).unwrap().unwrap();
        assert_eq!((path, instance.tools_uid), (etc.join("good.toml"), 65_531));
        assert!(for_service_uid(&etc, 65_529).unwrap().is_none());
        scratch.file("etc/twin.toml", &good.replace("good", "twin"), 0o644);
        assert!(matches!(for_service_uid(&etc, 65_530), Err(HostError::Ambiguous { .. })));
        // A damaged file with our own name is an error, not an absent instance.
        scratch.file("etc/root.toml", "version = 9", 0o644);
        assert!(matches!(for_service_uid(&etc, 0), Err(HostError::Instance { .. })));
    }
}
