//! A host that is broken for one service only: mounts of its own, a user namespace of its own, or a kernel that
//! answers some calls otherwise. Nobody else on the machine sees any of it, and it ends with the service.

use std::{ffi::OsStr, process::Command};

use crate::{
    account::{Account, PATH},
    host::sources,
    pair::Pair,
    ran::Ran,
};

/// A broken host, in the making.
#[derive(Debug, Clone)]
pub struct Within<'a> {
    pair: &'a Pair,
    script: String,
    user_namespace: bool,
    answers: Vec<&'static str>,
}

/// Makes a user namespace with every account in it, as containers have it: the kernel lets its root set the limits
/// on namespaces that hold inside. The map is written from outside; what is executed after that has root's rights
/// inside.
const ALL_ACCOUNTS: &str = r#"
gate=$(mktemp -u); mkfifo "$gate"
unshare --user --mount --propagation private sh -ec 'read -r _ <"$1"; shift; exec "$@"' sh "$gate" "$@" &
inside=$!
until [ "$(readlink /proc/$inside/ns/user)" != "$(readlink /proc/$$/ns/user)" ]; do sleep 0.01; done
echo '0 0 4294967295' >/proc/$inside/uid_map
echo '0 0 4294967295' >/proc/$inside/gid_map
echo >"$gate"; rm "$gate"
wait "$inside"
"#;

impl<'a> Within<'a> {
    /// As it is outside.
    pub fn new(pair: &'a Pair) -> Self {
        Self { pair, script: String::new(), user_namespace: false, answers: Vec::new() }
    }

    /// Runs `script` first, as root, in mounts of its own.
    pub fn after(mut self, script: impl AsRef<str>) -> Self {
        self.script.push_str(script.as_ref());
        self.script.push('\n');
        self
    }

    /// In a user namespace, whose limits `after` may set.
    pub fn in_user_namespace(mut self) -> Self {
        self.user_namespace = true;
        self
    }

    /// A changeable copy lies over `directory`, a new one each time.
    pub fn over(self, directory: &str) -> Self {
        let layer = self.pair.state.with_file_name(format!("layer{}", directory.replace('/', "-")));
        let layer = layer.display();
        self.after(format!(
            "mkdir -p {layer}-$$/upper {layer}-$$/work
             mount -t overlay overlay -o lowerdir={directory},upperdir={layer}-$$/upper,workdir={layer}-$$/work {directory}"
        ))
    }

    /// The kernel answers some calls otherwise; in the words of tests/host/without.py.
    pub fn where_calls_answer(mut self, answers: &[&'static str]) -> Self {
        self.answers.extend_from_slice(answers);
        self
    }

    /// `salaam` there as the service user, with the pair's directories.
    pub fn salaam(&self, words: &[&str]) -> Ran {
        self.salaam_as(&self.pair.host.service, words)
    }

    /// The same as `account`.
    pub fn salaam_as(&self, account: &Account, words: &[&str]) -> Ran {
        let mut all = vec![self.pair.host.salaam().into_os_string()];
        all.extend(words.iter().map(Into::into));
        self.run(account, &all)
    }

    /// `service start --json --tools-user …` there, with more words.
    pub fn start(&self, words: &[&str]) -> Ran {
        let mut all = vec!["service", "start", "--json", "--tools-user", &self.pair.host.tools.name];
        all.extend_from_slice(words);
        self.salaam(&all)
    }

    /// Any program there as `account`.
    pub fn run(&self, account: &Account, words: &[impl AsRef<OsStr>]) -> Ran {
        let mut command = Command::new(if self.user_namespace { "sh" } else { "unshare" });
        if self.user_namespace {
            command.args(["-ec", ALL_ACCOUNTS, "sh"]);
        } else {
            command.args(["--mount", "--propagation", "private"]);
        }
        command.args(["sh", "-ec", &format!("{}\nexec \"$@\"", self.script), "sh"]);
        if !self.answers.is_empty() {
            command.arg("/usr/bin/python3").arg(sources().join("tests/host/without.py")).args(&self.answers).arg("--");
        }
        command.args(["setpriv", "--reuid", &account.uid.to_string(), "--regid", &account.gid.to_string()]);
        command.args(["--init-groups", "--"]).args(words);
        command.current_dir("/").env_clear().env("PATH", PATH).env("HOME", &account.home).env("LANG", "C.UTF-8");
        self.pair.environment(&mut command);
        Ran::of(&mut command)
    }
}
