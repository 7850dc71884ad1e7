//! `service-sudo-wide` and `sudo-rule-wide`: whom the service may become without a password, by sudo's own list
//! and by trying.

use std::{
    io::{self, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use salaam_core::{check::Check, show};

/// sudo may ask a slow directory service about accounts, on a machine on which everything else runs, too.
const WITHIN: Duration = Duration::from_secs(10);
/// A list that is longer is no list of ours to read.
const MAX_LIST_BYTES: u64 = 60 << 10;

/// One rule of `sudo -l`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// As whom; empty = as root.
    pub(super) runas: Vec<String>,
    /// Whether any of its commands needs no password.
    pub(super) free: bool,
    /// Its text, without what is in the parentheses.
    pub(super) commands: String,
}

/// What sudo answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: Option<i32>,
    pub(super) said: String,
}

/// Asks sudo. Blocking, bounded.
pub(super) fn ask(sudo: &Path, words: &[&str]) -> io::Result<Answer> {
    let mut child = Command::new(sudo)
        .args(words)
        .env_clear()
        .env("LANG", "C")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let until = Instant::now() + WITHIN;
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status.code();
        }
        if Instant::now() > until {
            // It is root's: it may not be ours to kill, but its pipes close with this error.
            let _ = child.kill();
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ok(Answer { code, said: said(&mut child)? })
}

fn said(child: &mut Child) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(MAX_LIST_BYTES).read_to_end(&mut bytes)?;
    }
    if let Some(err) = child.stderr.take() {
        err.take(MAX_LIST_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The rules in the answer to `sudo -l`: lines that begin with blanks and a parenthesis. Every other line is a
/// default or a sentence.
pub(super) fn rules(said: &str) -> Vec<Rule> {
    let rule = |line: &str| {
        let (runas, commands) = line.trim_start().strip_prefix('(')?.split_once(')')?;
        // After the colon stand groups.
        let users = runas.split(':').next().unwrap_or_default();
        let runas = users.split(',').map(|user| user.trim().to_owned()).filter(|user| !user.is_empty()).collect();
        Some(Rule { runas, free: commands.contains("NOPASSWD:"), commands: commands.trim().to_owned() })
    };
    said.lines().filter(|line| line.starts_with([' ', '\t'])).filter_map(rule).collect()
}

/// Both checks. `narrow` is the one rule that is needed; `root` is what came of an attempt to become root.
pub(super) fn judge(list: &io::Result<Answer>, root: &io::Result<Answer>, pair: &Pair<'_>) -> Vec<Check> {
    let id = "service-sudo-wide";
    let Pair { service, tools, toolsd, narrow } = pair;
    let see = format!(
        "sudo -l -U {service} (as root) shows the rules; in visudo leave of those for {service} only: {narrow}"
    );
    let (list, root) = match (list, root) {
        (Ok(list), Ok(root)) => (list, root),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Check::unproven(id, format!("sudo did not answer: {error}"), "see why `sudo -n -l` fails")];
        }
    };
    if root.code == Some(0) {
        return vec![Check::fail(id, format!("{service} became root without a password (sudo -n -u root)"), see)];
    }
    let free: Vec<Rule> = rules(&list.said).into_iter().filter(|rule| rule.free).collect();
    let wide = free.iter().find(|rule| rule.runas.is_empty() || rule.runas.iter().any(|user| user != *tools));
    if let Some(rule) = wide {
        let evidence = format!("without a password {service} may run ({}) {}", rule.runas.join(", "), rule.commands);
        return vec![Check::fail(id, show::line(evidence.as_bytes()), see)];
    }
    let why = show::line(root.said.lines().next().unwrap_or("no word").as_bytes());
    let mut checks =
        vec![Check::pass(id, format!("root is refused ({why}), and every rule without a password is for {tools}"))];
    let exact = |rule: &&Rule| !rule.commands.ends_with(&format!("NOPASSWD: {toolsd} \"\""));
    match free.iter().find(exact) {
        Some(rule) => checks.push(Check::warn(
            "sudo-rule-wide",
            show::line(format!("the rule for {tools} is wider than the executor: {}", rule.commands).as_bytes()),
            format!("in visudo, instead of it: {narrow}"),
        )),
        None => checks.push(Check::pass("sudo-rule-wide", "no rule is wider than the executor without arguments")),
    }
    checks
}

/// Whose rules are judged.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    pub(super) service: &'a str,
    pub(super) tools: &'a str,
    pub(super) toolsd: String,
    pub(super) narrow: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Matching Defaults entries for svc on h:\n    env_reset, use_pty\n\nUser svc may run the following commands on h:\n";

    fn judged(rules: &str, root: i32) -> Vec<(String, &'static str)> {
        let pair =
            Pair { service: "svc", tools: "t", toolsd: "/l/salaam-toolsd".into(), narrow: "svc ALL=(t) …".into() };
        let list = Ok(Answer { code: Some(0), said: format!("{HEAD}{rules}") });
        let root = Ok(Answer { code: Some(root), said: "sudo: a password is required\n".into() });
        judge(&list, &root, &pair).into_iter().map(|check| (check.id.clone(), check.status.as_str())).collect()
    }

    #[test]
    fn a_rule_without_a_password_for_anybody_else_is_wide() {
        let wide = |status| ("service-sudo-wide".to_owned(), status);
        let rule = |status| ("sudo-rule-wide".to_owned(), status);
        let narrow = "    (t) NOPASSWD: /l/salaam-toolsd \"\"\n";
        assert_eq!(judged(narrow, 1), [wide("pass"), rule("pass")]);
        assert_eq!(judged("    (t) NOPASSWD: ALL\n", 1), [wide("pass"), rule("warn")]);
        assert_eq!(
            judged(&format!("{narrow}    (ALL : ALL) ALL\n"), 1),
            [wide("pass"), rule("pass")],
            "with a password"
        );
        for more in [
            "    (root) NOPASSWD: /bin/ls\n",
            "    (t, postgres) NOPASSWD: ALL\n",
            "    (ALL : ALL) SETENV: NOPASSWD: ALL\n",
        ] {
            assert_eq!(judged(&format!("{narrow}{more}"), 1), [wide("fail")], "{more}");
        }
        assert_eq!(judged(narrow, 0), [wide("fail")], "it became root");
        assert_eq!(judged("", 1), [wide("pass"), rule("pass")]);
    }

    #[test]
    fn no_answer_is_no_proof() {
        let pair = Pair { service: "s", tools: "t", toolsd: "/l".into(), narrow: String::new() };
        let late = || Err(io::ErrorKind::TimedOut.into());
        assert!(judge(&late(), &late(), &pair).iter().all(Check::refuses));
    }
}
