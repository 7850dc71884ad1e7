//! `salaam host setup` with real accounts: what it makes, that it makes it once, that `--dry-run` says it, that
//! `--undo` leaves nothing, and that nobody who can write in a workspace leads the walk out of it.
//!
//! The accounts are real and made by each test under names of its own; everything else is in a directory of the
//! test's. Needs root, as set-up does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use salaam_core::instance::Instance;
use salaam_service::host::{
    account, group_gid,
    setup::{Options, Places, SetupError, run_in},
};

struct Ground {
    root: PathBuf,
    places: Places,
    options: Options,
}

impl Ground {
    fn new(tag: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "set-up makes accounts; run this as root");
        let tag = format!("slt-h-{tag}-{}", std::process::id());
        let root = std::env::temp_dir().join(&tag);
        let _ = fs::remove_dir_all(&root);
        for name in ["", "sudoers", "data", "libexec", "work", "polkit"] {
            fs::create_dir(root.join(name)).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let root = root.canonicalize().unwrap();
        // There before, with or without cron and at on this host.
        fs::write(root.join("cron.deny"), "daemon\n").unwrap();
        fs::write(root.join("at.deny"), "daemon\n").unwrap();
        let places = Places {
            etc: root.join("etc"),
            sudoers: root.join("sudoers"),
            data: root.join("data"),
            libexec: root.join("libexec"),
            cron_allow: root.join("cron.allow"),
            cron_deny: root.join("cron.deny"),
            at_deny: root.join("at.deny"),
            polkit: root.join("polkit"),
            lock: root.join("lock"),
        };
        let options = Options {
            service_user: format!("{tag}-s"),
            tools_user: format!("{tag}-t"),
            group: format!("{tag}-w"),
            workspaces: vec![],
            operators_group: Some(format!("{tag}-o")),
            operators: vec![],
            dry_run: false,
            undo: false,
            yes: false,
        };
        Self { root, places, options }
    }

    fn run(&self, change: impl FnOnce(&mut Options)) -> Result<String, SetupError> {
        let mut options = self.options.clone();
        change(&mut options);
        let mut out = Vec::new();
        run_in(&options, &self.places, Path::new(env!("CARGO_BIN_EXE_salaam")), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn instance(&self) -> Instance {
        let path = self.places.etc.join(format!("{}.toml", self.options.service_user));
        Instance::parse(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn work(&self, name: &str) -> PathBuf {
        self.root.join("work").join(name)
    }

    /// Runs a program as the service or the tools user, with the groups of the account database.
    fn run_as(&self, user: &str, argv: &[&str]) -> Output {
        let gid = account(user).unwrap().gid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", &gid, "--init-groups", "--"]).args(argv);
        command.current_dir("/").stdin(Stdio::null()).output().unwrap()
    }

    fn names(&self) -> [&str; 4] {
        let options = &self.options;
        [&options.service_user, &options.tools_user, &options.group, options.operators_group.as_deref().unwrap()]
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let quiet = |program: &str, name: &str| {
            let _ = Command::new(program).arg(name).stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        let [service, tools, work, operators] = self.names();
        quiet("userdel", service);
        quiet("userdel", tools);
        quiet("groupdel", work);
        quiet("groupdel", operators);
        let _ = Command::new("umount").arg(self.work("ws/mounted")).stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_second_run_changes_nothing_and_undo_leaves_nothing() {
    let ground = Ground::new("twice");
    let workspace = ground.work("deep/er/ws");
    let add = |options: &mut Options| options.workspaces = vec![workspace.clone()];
    ground.run(add).unwrap();
    let [service, tools, group, operators] = ground.names();
    let (service, tools) = (account(service).unwrap(), account(tools).unwrap());
    let instance = ground.instance();
    assert_eq!((instance.service_uid, instance.tools_uid), (service.uid, tools.uid));
    assert_eq!(instance.group_gid, group_gid(group).unwrap());
    assert_eq!(mode(&instance.directories.state), 0o700);
    assert_eq!(mode(&instance.directories.config), 0o700);
    assert_eq!(mode(&instance.directories.runtime), 0o710);
    assert_eq!(instance.directories.runtime.metadata().unwrap().gid(), group_gid(operators).unwrap());
    assert_eq!(mode(instance.directories.state.parent().unwrap()), 0o711);
    assert_eq!((mode(&tools.home), tools.home.metadata().unwrap().uid()), (0o755, 0));
    assert_eq!(mode(&workspace), 0o2770);
    let rule = ground.places.sudoers.join(format!("salaam-{}", service.uid));
    assert_eq!(mode(&rule), 0o440);
    assert!(fs::read_to_string(&ground.places.cron_deny).unwrap().lines().any(|line| line == tools.name));
    let lingering = ground.places.polkit.join(format!("50-salaam-{}.rules", tools.name));
    assert_eq!(mode(&lingering), 0o644);
    assert!(fs::read_to_string(&lingering).unwrap().contains(&format!("subject.user == \"{}\"", tools.name)));
    // The tools user's groups are its own and the work group, and no other.
    assert_eq!(salaam_service::host::groups_of(&tools).len(), 2);
    // What either makes, the other may change.
    for (user, name) in [(&service.name, "by-service"), (&tools.name, "by-tools")] {
        let path = workspace.join(name).display().to_string();
        assert!(ground.run_as(user, &["sh", "-c", "umask 077; echo x > \"$0\"", &path]).status.success());
    }
    for (user, name) in [(&tools.name, "by-service"), (&service.name, "by-tools")] {
        let path = workspace.join(name).display().to_string();
        assert!(ground.run_as(user, &["sh", "-c", "echo y >> \"$0\"", &path]).status.success(), "{name}");
    }

    let before = fs::read(ground.places.etc.join(format!("{}.toml", service.name))).unwrap();
    let again = ground.run(add).unwrap();
    let commands: Vec<_> = again.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(matches!(commands.as_slice(), [only] if only.starts_with("salaam host fit-workspace")), "{again}");
    assert_eq!(fs::read(ground.places.etc.join(format!("{}.toml", service.name))).unwrap(), before);

    fs::write(instance.directories.state.join("salaam.db"), "x").unwrap();
    let kept = ground.run(|options| options.undo = true).unwrap();
    assert!(kept.contains("kept, it is not empty"), "{kept}");
    assert!(workspace.join("by-tools").exists(), "work stays");
    for name in ground.names() {
        assert!(account(name).is_none() && group_gid(name).is_none(), "{name} is still there");
    }
    for path in [&ground.places.etc, &rule, &instance.directories.state, &tools.home] {
        assert!(path.symlink_metadata().is_err(), "{} is still there", path.display());
    }
    assert_eq!(fs::read_to_string(&ground.places.cron_deny).unwrap(), "daemon\n");
    assert_eq!(fs::read_to_string(&ground.places.at_deny).unwrap(), "daemon\n");
    assert_eq!(fs::read_dir(&ground.places.data).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&ground.places.polkit).unwrap().count(), 0);
    assert!(matches!(ground.run(|options| options.undo = true), Err(SetupError::NothingToUndo { .. })));
}

#[test]
fn the_commands_of_a_dry_run_do_what_a_set_up_does() {
    let ground = Ground::new("dry");
    let workspace = ground.work("ws");
    let dry = |options: &mut Options| {
        options.workspaces = vec![workspace.clone()];
        options.dry_run = true;
    };
    let script = ground.run(dry).unwrap();
    assert!(!ground.places.etc.exists() && account(&ground.options.service_user).is_none(), "nothing was changed");
    let bin = Path::new(env!("CARGO_BIN_EXE_salaam")).parent().unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let done = Command::new("sh").args(["-eu", "-c", &script]).env("PATH", path).output().unwrap();
    assert!(done.status.success(), "{script}\n{}", String::from_utf8_lossy(&done.stderr));
    let [service, tools, ..] = ground.names();
    let instance = ground.instance();
    assert_eq!(instance.service_uid, account(service).unwrap().uid);
    assert_eq!(instance.tools_uid, account(tools).unwrap().uid);
    // What is left is the walk, which never ends to be due, and the record of what was added.
    let left = ground.run(dry).unwrap();
    let mut commands = left.lines().filter(|line| !line.starts_with('#'));
    assert!(commands.next().is_some_and(|line| line.starts_with("salaam host fit-workspace")), "{left}");
    assert!(commands.next().is_some_and(|line| line.starts_with("install -m 0644")), "{left}");
    assert_eq!(mode(&workspace), 0o2770);
}

#[test]
fn what_could_lead_out_or_widen_a_secret_is_left_and_listed() {
    let ground = Ground::new("fit");
    ground.run(|_| ()).unwrap();
    let service = account(ground.names()[0]).unwrap();
    let gid = ground.instance().group_gid;
    let workspace = ground.work("ws");
    let own = |path: &Path, bits: u32| {
        chown(path, Some(service.uid), Some(service.gid)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    };
    for (name, bits) in [("", 0o700), ("src", 0o755), ("src/private", 0o700), ("mounted", 0o755)] {
        fs::create_dir(workspace.join(name)).unwrap();
        own(&workspace.join(name), bits);
    }
    for (name, bits) in [
        ("src/plain", 0o644),
        ("src/run", 0o755),
        ("src/.env", 0o600),
        ("src/setuid", 0o4755),
        ("src/private/key", 0o644),
        ("src/linked", 0o644),
        ("src/foreign", 0o644),
    ] {
        fs::write(workspace.join(name), "x").unwrap();
        own(&workspace.join(name), bits);
    }
    let outside = ground.work("outside");
    fs::write(&outside, "x").unwrap();
    own(&outside, 0o644);
    fs::hard_link(workspace.join("src/linked"), ground.work("second-name")).unwrap();
    chown(workspace.join("src/foreign"), Some(65_533), None).unwrap();
    symlink(&outside, workspace.join("src/link")).unwrap();
    let mounted = workspace.join("mounted");
    let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&mounted).status().unwrap();
    assert!(mount.success());
    fs::write(mounted.join("x"), "x").unwrap();
    own(&mounted.join("x"), 0o644);

    let said = ground.run(|options| options.workspaces = vec![workspace.clone()]).unwrap();
    let group = |name: &str| workspace.join(name).symlink_metadata().unwrap().gid();
    for (name, bits) in [("", 0o2770), ("src", 0o2775), ("src/plain", 0o664), ("src/run", 0o775)] {
        assert_eq!((group(name), mode(&workspace.join(name))), (gid, bits), "{name}\n{said}");
    }
    for (name, why) in [
        ("src/private", "private"),
        ("src/.env", "private"),
        ("src/setuid", "set-uid"),
        ("src/linked", "several names"),
        ("src/foreign", "somebody else"),
        ("mounted", "another mount"),
    ] {
        assert_ne!(group(name), gid, "{name}");
        assert!(said.lines().any(|line| line.contains(name) && line.contains(why)), "{name}: {said}");
    }
    for path in [outside, workspace.join("src/private/key"), mounted.join("x")] {
        assert_eq!((path.metadata().unwrap().gid(), mode(&path)), (service.gid, 0o644), "{}", path.display());
    }
}

#[test]
fn a_directory_exchanged_for_a_link_during_the_walk_leads_nowhere() {
    let ground = Ground::new("race");
    ground.run(|_| ()).unwrap();
    let service = account(ground.names()[0]).unwrap();
    let gid = ground.instance().group_gid;
    let workspace = ground.work("ws");
    // Outside lies a tree of the service user's own: the walk has every right to change it, and must not.
    let outside = ground.work("outside");
    for directory in [&outside, &workspace, &workspace.join("real")] {
        fs::create_dir(directory).unwrap();
    }
    let file = |directory: &Path, n: u32| directory.join(format!("f{n}"));
    for n in 0..50 {
        fs::write(file(&outside, n), "secret").unwrap();
        fs::write(file(&workspace.join("real"), n), "work").unwrap();
    }
    symlink(&outside, workspace.join("link")).unwrap();
    let owned = Command::new("chown").args(["-Rh", &service.uid.to_string()]).arg(ground.root.join("work")).status();
    assert!(owned.unwrap().success());

    // By name, as `chgrp -R` would at the wrong moment, the attack works.
    chown(workspace.join("link").join("f0"), None, Some(gid)).unwrap();
    assert_eq!(file(&outside, 0).metadata().unwrap().gid(), gid);
    chown(file(&outside, 0), None, Some(0)).unwrap();

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (real, link) = (workspace.join("real"), workspace.join("link"));
            while !done.load(Ordering::Relaxed) {
                let flags = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                let at = nix::fcntl::AT_FDCWD;
                nix::fcntl::renameat2(at, &real, at, &link, flags).unwrap();
            }
        });
        for _ in 0..20 {
            ground.run(|options| options.workspaces = vec![workspace.clone()]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for n in 0..50 {
        let meta = file(&outside, n).metadata().unwrap();
        assert_eq!((meta.gid(), meta.mode() & 0o7777), (0, 0o644), "f{n} was changed");
    }
    assert_eq!(outside.metadata().unwrap().gid(), 0);
    let fitted = ["real", "link"].iter().map(|name| workspace.join(name)).find(|path| !path.is_symlink()).unwrap();
    assert_eq!(file(&fitted, 49).metadata().unwrap().gid(), gid, "the walk did its work");
}

#[test]
fn the_tools_user_can_pass_to_a_workspace_below_a_closed_directory_and_no_further() {
    let ground = Ground::new("pass");
    ground.run(|_| ()).unwrap();
    let [service, tools, ..] = ground.names();
    let service = account(service).unwrap();
    let closed = ground.work("closed");
    let workspace = closed.join("ws");
    for path in [&closed, &workspace] {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        chown(path, Some(service.uid), Some(service.gid)).unwrap();
    }
    let list = |path: &Path| ground.run_as(tools, &["ls", &path.display().to_string()]).status.success();
    assert!(!list(&workspace));
    ground.run(|options| options.workspaces = vec![workspace.clone()]).unwrap();
    assert!(list(&workspace), "the workspace is reached");
    assert!(!list(&closed), "what is beside it is not");
    assert_eq!(ground.instance().added.traverse, [closed.as_path()]);
    // A second run finds the passage open and remembers who made it.
    ground.run(|options| options.workspaces = vec![workspace.clone()]).unwrap();
    assert_eq!(ground.instance().added.traverse, [closed.as_path()]);
    ground.run(|options| options.undo = true).unwrap();
    assert_eq!(mode(&closed), 0o700);
    assert!(
        salaam_sys::xattr::get(fs::File::open(&closed).unwrap(), c"system.posix_acl_access", 1 << 16)
            .unwrap()
            .is_none_or(|list| list.len() == 4 + 3 * 8),
        "no entry of ours is left"
    );
}

#[test]
fn accounts_that_would_break_the_wall_are_refused() {
    let ground = Ground::new("who");
    ground.run(|_| ()).unwrap();
    let tools = ground.options.tools_user.clone();
    let refused = |change: &dyn Fn(&mut Options)| {
        let before = fs::read_dir(&ground.places.etc).unwrap().count();
        let error = ground.run(|options| change(options)).unwrap_err();
        assert_eq!(fs::read_dir(&ground.places.etc).unwrap().count(), before);
        error.to_string()
    };
    // Another instance with the same tools user.
    let other = refused(&|options| options.service_user = "daemon".into());
    assert!(other.contains("neither could keep the other out"), "{other}");
    // Another instance with the same work group.
    let other = refused(&|options| {
        options.service_user = "daemon".into();
        options.tools_user = "games".into();
    });
    assert!(other.contains("could write the other's workspaces") && other.contains("--group"), "{other}");
    assert!(refused(&|options| options.service_user = "root".into()).contains("root"));
    assert!(refused(&|options| options.tools_user = "root".into()).contains("tools user"));
    assert!(refused(&|options| options.tools_user = options.service_user.clone()).contains("one"));
    assert!(refused(&|options| options.operators_group = Some(options.group.clone())).contains("operators group"));
    assert!(refused(&|options| options.operators = vec![tools.clone()]).contains("operator"));
    assert!(refused(&|options| options.tools_user = "ALL".into()).contains("no account name"));
    assert!(refused(&|options| options.group = "a b".into()).contains("no account name"));
    for path in ["/", "/etc", "/home", "/usr/lib", "relative", "/srv/../etc"] {
        refused(&|options| options.workspaces = vec![path.into()]);
    }
    let state = ground.instance().directories.state;
    refused(&|options| options.workspaces = vec![state.clone()]);
    // A link to one is that one.
    symlink(&state, ground.work("innocent")).unwrap();
    refused(&|options| options.workspaces = vec![ground.work("innocent")]);
}

#[test]
fn a_set_up_that_stopped_half_way_is_undone_whole() {
    let ground = Ground::new("half");
    // The sudo rule cannot be put in place: accounts and directories exist by then.
    fs::remove_dir(&ground.places.sudoers).unwrap();
    assert!(ground.run(|_| ()).is_err());
    assert!(account(&ground.options.service_user).is_some());
    assert!(!ground.places.etc.join(format!("{}.toml", ground.options.service_user)).exists());
    ground.run(|options| options.undo = true).unwrap();
    for name in ground.names() {
        assert!(account(name).is_none() && group_gid(name).is_none(), "{name} is still there");
    }
    assert!(!ground.places.etc.exists());
    assert_eq!(fs::read_dir(&ground.places.data).unwrap().count(), 0);
}

#[test]
fn a_rule_that_sudo_would_not_take_is_never_put_in_place() {
    let ground = Ground::new("rule");
    let broken = Places { libexec: ground.root.join("with space"), ..ground.places.clone() };
    let mut out = Vec::new();
    let error = run_in(&ground.options, &broken, Path::new("/bin/false"), &mut out).unwrap_err();
    assert!(matches!(error, SetupError::Path { .. }), "{error}");
    assert!(account(&ground.options.service_user).is_none(), "it is refused before anything is made");
}

#[test]
fn set_up_and_undo_at_once_leave_a_whole_instance_or_none() {
    let ground = Ground::new("both");
    let instance = || ground.places.etc.join(format!("{}.toml", ground.options.service_user));
    for _ in 0..6 {
        let outcomes = std::thread::scope(|scope| {
            let ground = &ground;
            let spawn = |undo| scope.spawn(move || (undo, ground.run(|options| options.undo = undo)));
            let runs = [false, true, false, true].map(spawn);
            runs.map(|run| run.join().unwrap())
        });
        for (undo, outcome) in outcomes {
            match outcome {
                Ok(_) => {}
                Err(SetupError::NothingToUndo { .. }) if undo => {}
                Err(other) => panic!("undo {undo}: {other}"),
            }
        }
        // Whoever came last: all of it is there, or nothing.
        let whole = instance().exists();
        let accounts = ground.names().map(|name| account(name).is_some() || group_gid(name).is_some());
        assert_eq!(accounts, [whole; 4]);
        assert_eq!(fs::read_dir(&ground.places.sudoers).unwrap().count(), usize::from(whole));
        assert!(!ground.places.etc.join(format!("{}.unfinished", ground.options.service_user)).exists());
        assert_eq!(mode(&ground.places.lock), 0o600, "nobody else can hold it");
    }
}

#[test]
fn a_set_up_that_finds_another_at_work_says_so() {
    let ground = Ground::new("busy");
    let held = fs::File::create(&ground.places.lock).unwrap();
    held.lock().unwrap();
    let begun = std::time::Instant::now();
    let waiting = std::thread::scope(|scope| {
        let waits = scope.spawn(|| ground.run(|_| ()));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(
            !ground.places.etc.exists() && account(&ground.options.service_user).is_none(),
            "nothing is made meanwhile"
        );
        drop(held);
        waits.join().unwrap()
    });
    waiting.unwrap();
    assert!(begun.elapsed() >= std::time::Duration::from_millis(300));
    ground.run(|options| options.undo = true).unwrap();
}
