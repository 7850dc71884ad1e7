//! git inside: every git of this machine, in repositories of the service user, of the tools user and of a third account.
//!
//! An older one is shown, too, where its package was unpacked: SALAAM_TEST_OLDER_GIT=DIRECTORY/usr[:…]. The oldest that
//! is promised is 2.34: before 2.31 no variable tells git which repositories of others it may use.

use std::{
    fs,
    path::{Path, PathBuf},
};

use salaam_tests::{Account, Host, Pair, host::chown, limit, ran};

/// A git of this machine, or of an older system.
struct Git {
    /// The directory with its programs.
    directory: PathBuf,
    /// What it must be told to run from another place than it was built for.
    variables: Vec<String>,
}

impl Git {
    fn at(directory: &Path) -> Option<Self> {
        directory.join("git").exists().then(|| Self { directory: directory.to_owned(), variables: Vec::new() })
    }

    /// One that was unpacked from another system's package: its `usr`.
    fn unpacked(from: &Path) -> Self {
        let set = [("GIT_EXEC_PATH", "lib/git-core"), ("GIT_TEMPLATE_DIR", "share/git-core/templates")];
        let variables = set.map(|(name, place)| format!("{name}={}", from.join(place).display()));
        assert!(from.join("bin/git").exists(), "there is no git in {}", from.display());
        Self { directory: from.join("bin"), variables: variables.to_vec() }
    }

    /// `text` for a shell in which `git` is this one.
    fn with(&self, text: &str) -> String {
        let variables: Vec<String> = self.variables.iter().map(|set| format!("export {set}\n")).collect();
        format!("set -e; PATH={}:$PATH\n{}{text}", self.directory.display(), variables.concat())
    }
}

/// Older ones, where somebody unpacked them.
fn older() -> Vec<PathBuf> {
    let Some(places) = std::env::var_os(OLDER) else {
        println!("no older git is shown: set {OLDER} to `usr` directories of its packages, unpacked");
        return Vec::new();
    };
    std::env::split_paths(&places).collect()
}

const OLDER: &str = "SALAAM_TEST_OLDER_GIT";

/// A repository with one commit and a hook in the workspace, all of it `owner`'s and the work group's.
fn repository(pair: &Pair, owner: &Account) {
    let text = format!(
        "set -e; cd {at}; chown root: .; git init -q .; rm -f .git/hooks/*.sample; git config core.sharedRepository group
         echo 1 >file; git add file; git -c user.name=x -c user.email=x@example.org commit -qm first
         printf '#!/bin/sh\\necho the hook ran\\n' >.git/hooks/pre-commit
         chown -R {owner}:{group} .; chmod -R u+rwX,g+rwX,o-rwx .; find . -type d -exec chmod g+s {{}} +
         chmod 0775 .git/hooks/pre-commit",
        at = pair.workspace.display(),
        owner = owner.name,
        group = pair.host.name("work"),
    );
    ran::run(&["sh", "-c", &text]);
}

/// What people do with git all day.
const WORK: &[(&str, &str)] = &[
    ("status and log", "git status --short && git log --oneline | grep first"),
    ("add and commit", "echo 2 >new && git add new && git commit -qm second && git show --stat | grep new"),
    (
        "branch, merge and stash",
        "b=$(git symbolic-ref --short HEAD); git checkout -q -b side; echo 3 >side; git add side; \
      git commit -qm side; git checkout -q $b; git merge -q side; echo 4 >>side; git stash -q; git stash list | grep stash; \
      git stash pop -q; git diff | grep 4; git checkout -q side",
    ),
    ("init", "git init -q fresh && cd fresh && : >f && git add f && git commit -qm first && git log | grep first"),
    ("clone of the workspace's own", "git clone -q . clone && git -C clone log --oneline | grep first"),
    (
        "a linked worktree inside",
        "git worktree add -q --detach tree; git worktree list | grep tree; cd tree; echo 5 >five; \
      git add five; git commit -qm five; git status --short; cd ..; git worktree remove --force tree",
    ),
    (
        "a submodule",
        "git init -q other; cd other; echo o >o; git add o; git commit -qm o; cd ..; \
      git -c protocol.file.allow=always submodule --quiet add ./other part 2>&1; git commit -qm part; \
      git submodule status | grep part; git -C part log --oneline | grep o",
    ),
    ("maintenance", "git gc -q && git fsck --no-progress && git repack -adq"),
];

#[test]
fn every_git_works_in_repositories_of_either_account_and_of_a_third() {
    let _turn = limit!(400);
    let host = Host::shared();
    // The third account: an operator who works in there, too.
    ran::run(&["usermod", "--append", "--groups", &host.name("work"), &host.operator.name]);
    let mut pair = Pair::new(host);
    let older = older();
    let here = ["/usr/bin", "/usr/local/bin"].iter().filter_map(|place| Git::at(Path::new(place)));
    let gits: Vec<Git> = here.chain(older.iter().map(|place| Git::unpacked(place))).collect();
    // What is not the system's is shown by name.
    let shown: Vec<String> = older.iter().map(|place| format!("\"{}\"", place.display())).collect();
    pair.configure(&format!("local_sandbox_read_paths = [{}]\n", shown.join(", ")));
    pair.start().ok();
    let mut broke = Vec::new();
    for git in &gits {
        let mut version = String::new();
        for owner in [&host.service, &host.tools, &host.operator] {
            pair.with_workspace();
            repository(&pair, owner);
            version = pair.run(&["sh", "-c", &git.with("git --version")]).ok().out().trim().to_owned();
            for (what, text) in WORK {
                let named = "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@e.org GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@e.org\n";
                let ran = pair.run(&["sh", "-c", &git.with(&format!("{named}{text}"))]);
                if ran.code != Some(0) {
                    broke.push(format!("{version}, {what} of {}: {ran}", owner.name));
                }
            }
            // The user's own hook ran, as it stands there; no command could have put another in its place.
            let ran = pair.run(&[
                "sh",
                "-c",
                &git.with("git -c user.name=x -c user.email=x@e.org commit --allow-empty -m more 2>&1"),
            ]);
            assert!(ran.out().contains("the hook ran"), "{version}: {ran}");
            let ran = pair.run(&["sh", "-c", "echo >.git/hooks/pre-commit"]);
            assert!(ran.code != Some(0) && ran.says("Read-only file system"), "{ran}");
        }
        println!("{version}");
    }
    assert_eq!(broke, [] as [String; 0]);
    pair.assert_sound();
}

/// S4: the repository of a linked worktree lies elsewhere, and no command sees it there.
#[test]
fn a_worktree_whose_repository_lies_outside_is_named_beforehand_and_fails_as_such() {
    let _turn = limit!(60);
    let host = Host::shared();
    let pair = Pair::started(host);
    let main = host.workspace("main-of-a-worktree");
    let script = format!(
        "set -e; chown root: {main} {at}; cd {main}; git init -q .; git -c user.name=x -c user.email=x@e.org commit -q --allow-empty -m first
         git worktree add -q --detach {at}/tree; chown -R {owner}:{group} {main} {at}; chmod -R g+rwX {main} {at}",
        main = main.display(),
        at = pair.workspace.display(),
        owner = host.service.name,
        group = host.name("work"),
    );
    ran::run(&["sh", "-c", &script]);
    let tree = pair.workspace.join("tree");
    let outside = format!("{}/.git/worktrees/tree", main.display());
    chown(&tree, &format!("{}:{}", host.service.name, host.name("work")));
    pair.salaam(&["workspace", "remove", &pair.workspace.display().to_string()]).ok();
    pair.salaam(&["workspace", "add", &tree.display().to_string()]).ok();
    let mut pair = pair;
    pair.workspace = tree;
    let pending = pair.propose(serde_json::json!({"command": "git add . && git commit -m x"}));
    let flags = pending.object["flags"].to_string();
    assert!(flags.contains("git-outside"), "{}", pending.object);
    assert!(pending.object.to_string().contains(&outside), "{}", pending.object);
    pair.salaam(&["approval", "deny", &pending.approval]).ok();
    let ran = pair.run(&["sh", "-c", "git add . && git commit -m x"]);
    assert!(ran.code == Some(128) && ran.says(&outside), "{ran}");
    // What is no git's business works, and the file that leads outside stays as it is.
    pair.run(&["sh", "-c", "echo 1 >made && rm made && cat .git"]).ok();
    let ran = pair.run(&["sh", "-c", "echo gitdir: /elsewhere >.git"]);
    assert_ne!(ran.code, Some(0), "{ran}");
    assert_eq!(fs::read_to_string(pair.workspace.join(".git")).expect("it is there"), format!("gitdir: {outside}\n"));
}
