//! One approval, checked and made readable: complete, and from the very object that the binding covers.
//!
//! Invariant: what is shown is computed from `bound`, and `bound` hashes to the binding that a grant will
//! name. A display text that came beside it is not trusted.

use salaam_core::{
    canon,
    command::Command,
    digest::Digest,
    id::{ApprovalId, OperationId},
    operation::State,
    show,
};
use serde_json::Value;

use super::{
    terminal::{at, columns, word},
    trouble::Trouble,
};

/// An approval whose binding was recomputed.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Its id.
    pub approval: ApprovalId,
    /// The operation that it is about.
    pub operation: OperationId,
    /// Where it stands.
    pub state: State,
    /// What a grant names.
    pub binding: Digest,
    whole: Value,
}

impl Question {
    /// Reads the approval object of the interface.
    pub(super) fn of(whole: &Value) -> Result<Self, Trouble> {
        let bound = whole.get("bound").ok_or_else(|| malformed("it has no `bound`"))?;
        let binding: Digest = field(whole, "binding")?;
        let hashed = canon::digest(bound).map_err(|why| malformed(&why.to_string()))?;
        if hashed != binding {
            return Err(Trouble::refused(
                "binding-mismatch",
                format!("the service shows the binding {binding}, but what it shows hashes to {hashed}"),
                "grant nothing; see whether client and service are of one version",
            ));
        }
        if let Some(shown) = bound.pointer("/arguments/diff/sha256") {
            // The diff stands beside what is bound; its hash stands in it.
            let display: String = field(whole, "display")?;
            let found = Digest::of(display.as_bytes());
            if serde_json::from_value::<Digest>(shown.clone()).ok() != Some(found) {
                return Err(Trouble::refused(
                    "binding-mismatch",
                    format!("the diff that the service shows hashes to {found}, and that is not the one that is bound"),
                    "grant nothing; see whether client and service are of one version",
                ));
            }
        }
        let operation = field(whole, "operation")?;
        if bound.get("operation") != whole.get("operation") {
            return Err(malformed("`bound` is about another operation"));
        }
        Ok(Self {
            approval: field(whole, "approval")?,
            operation,
            state: field(whole, "state")?,
            binding,
            whole: whole.clone(),
        })
    }

    /// The command line that grants it.
    pub(super) fn grant_line(&self) -> String {
        format!("salaam approval grant {} --binding {}", self.approval, self.binding)
    }

    /// All of it. What it would run stands behind a bar, so that no line of it can pass for one of ours; the
    /// binding is last, where the question is asked.
    pub(super) fn render(&self) -> String {
        let bound = |pointer: &str| at(&self.whole, &format!("/bound{pointer}"));
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let (title, text) = self.command();
        let mut out = format!("{title}\n");
        for line in text.split('\n') {
            out += &format!("  | {line}\n");
        }
        let mut rows = vec![
            row("approval", format!("{} ({})", self.approval, self.state)),
            row("operation", format!("{} ({})", self.operation, bound("/kind"))),
            row("session", at(&self.whole, "/session")),
            row("workspace", format!("{} ({})", bound("/workspace/path"), bound("/workspace/id"))),
            row("profile", bound("/policy/profile")),
            row("isolation", bound("/policy/isolation")),
            row("network", bound("/policy/network")),
        ];
        if let Some(seconds) = self.whole.pointer("/bound/arguments/timeout_seconds") {
            rows.insert(4, row("stdin", self.stdin()));
            rows.push(row("timeout", format!("{} s", word(Some(seconds)))));
        }
        if let Some(Value::Object(limits)) = self.whole.pointer("/bound/policy/limits") {
            let all = limits.iter().map(|(name, n)| format!("{} {}", show::line(name.as_bytes()), word(Some(n))));
            rows.push(row("limits", all.collect::<Vec<_>>().join(", ")));
        }
        let held = at(&self.whole, "/bound/policy/control_group");
        if !held.is_empty() {
            rows.push(row("as a whole", held));
        }
        rows.extend(self.files());
        let flags = at(&self.whole, "/flags");
        rows.push(row("flags", if flags.is_empty() { "-".into() } else { flags }));
        rows.push(row("manifest", bound("/policy/manifest")));
        rows.push(row("epoch", bound("/worker_epoch")));
        rows.push(row("expires", bound("/expires")));
        rows.push(row("binding", self.binding.to_string()));
        out + &columns(&rows)
    }

    fn stdin(&self) -> String {
        match self.whole.pointer("/bound/arguments/stdin") {
            None | Some(Value::Null) => "empty".to_owned(),
            Some(stdin) => format!("{} bytes, sha256 {}", word(stdin.get("bytes")), word(stdin.get("sha256"))),
        }
    }

    /// What it would do in one line, for lists.
    pub(super) fn summary(&self) -> String {
        match self.changed() {
            Some(files) => format!("{} {}", at(&self.whole, "/bound/kind"), files.join(" ")),
            None => summary(&self.command().1),
        }
    }

    /// The files that an edit or undo changes.
    fn changed(&self) -> Option<Vec<String>> {
        let files = self.whole.pointer("/bound/arguments/files")?.as_array()?;
        Some(files.iter().map(|file| word(file.get("path"))).collect())
    }

    /// A title with length and hash, and the text.
    fn command(&self) -> (String, String) {
        if let Some(files) = self.changed() {
            let diff = self.whole.get("display").and_then(Value::as_str).unwrap_or_default();
            let what = match self.whole.pointer("/bound/arguments/undo") {
                Some(operation) => format!("undo of {}", word(Some(operation))),
                None => "edit".to_owned(),
            };
            let count = files.len();
            let title = format!(
                "{what}: {count} file{}, diff of {} bytes, sha256 {}",
                if count == 1 { "" } else { "s" },
                diff.len(),
                Digest::of(diff.as_bytes())
            );
            return (title, show::block(diff.trim_end_matches('\n').as_bytes()));
        }
        let arguments = self.whole.pointer("/bound/arguments");
        let argv = arguments.and_then(|arguments| arguments.get("argv")).and_then(Value::as_array);
        let shell = arguments.and_then(|arguments| arguments.get("command")).and_then(canon::to_bytes);
        if let Some(argv) = argv
            && let Ok(command @ Command::Argv(_)) = Command::from_json_argv(argv)
        {
            let Command::Argv(words) = &command else { return self.unreadable() };
            let bytes = words.iter().map(Vec::len).sum();
            // NUL cannot stand in an argument, so the hash says where the words end.
            return (
                title(&counted(words.len(), "word", "without a shell"), bytes, &words.join(&0)),
                command.display(),
            );
        }
        if let Some(text) = shell.and_then(|bytes| String::from_utf8(bytes).ok())
            && let Ok(command) = Command::shell(text.clone())
        {
            let what = counted(text.lines().count(), "line", "for /bin/sh -c");
            return (title(&what, text.len(), text.as_bytes()), command.display());
        }
        self.unreadable()
    }

    /// Something else than a command that this version knows: its JSON, whole.
    fn unreadable(&self) -> (String, String) {
        let text = self.whole.pointer("/bound/arguments").map(ToString::to_string).unwrap_or_default();
        ("arguments".to_owned(), show::line(text.as_bytes()))
    }

    fn files(&self) -> Vec<Vec<String>> {
        let named = self.whole.pointer("/bound/files").and_then(Value::as_object).into_iter().flatten();
        let named = named.map(|(path, sha256)| (show::line(path.as_bytes()), word(Some(sha256))));
        let other = self.whole.pointer("/bound/other_files").and_then(Value::as_array).into_iter().flatten();
        let other = other.map(|file| (word(file.get("path")), word(file.get("sha256"))));
        let all = named.chain(other).map(|(path, sha256)| vec!["file".to_owned(), format!("{path}  sha256 {sha256}")]);
        all.collect()
    }
}

/// Text cut to what fits a list, with the rest counted.
pub(super) fn summary(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let cut: String = first.chars().take(SUMMARY_CHARACTERS).collect();
    let rest = text.chars().count() - cut.chars().count();
    if rest == 0 { cut } else { format!("{cut} … (+{rest} characters)") }
}

/// Characters of a command in a list.
const SUMMARY_CHARACTERS: usize = 60;

fn title(what: &str, bytes: usize, hashed: &[u8]) -> String {
    format!("command: {what}, {bytes} bytes, sha256 {}", Digest::of(hashed))
}

fn counted(n: usize, noun: &str, how: &str) -> String {
    format!("{n} {noun}{} {how}", if n == 1 { "" } else { "s" })
}

fn field<T: serde::de::DeserializeOwned>(whole: &Value, name: &str) -> Result<T, Trouble> {
    let value = whole.get(name).cloned().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|why| malformed(&format!("its `{name}`: {why}")))
}

fn malformed(why: &str) -> Trouble {
    Trouble::Connection { attempted: "reading the approval".into(), why: why.into() }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// An approval object around `arguments`, with its true binding.
    pub(crate) fn sample(arguments: Value) -> Value {
        let bound = json!({
            "operation": "op_00000000000070008000000000000001", "kind": "command",
            "workspace": {"id": "ws_00000000000070008000000000000001", "path": "/srv/a\u{1b}[2Kb", "device": 1, "inode": 2, "handle": ""},
            "arguments": arguments,
            "files": {"/srv/x.sh": Digest::of(b"x")},
            "other_files": [{"path": {"base64": "L/8="}, "sha256": Digest::of(b"y")}],
            "policy": {"manifest": Digest::of(b"m"), "profile": "workspace-write", "isolation": "tools-user-bubblewrap",
                       "network": "none", "limits": {"processes": 512}},
            "worker_epoch": 0, "expires": "2026-01-02T03:04:05.678901Z",
        });
        json!({
            "approval": "ap_00000000000070008000000000000001", "operation": bound["operation"],
            "session": "ses_00000000000070008000000000000001", "lineage": [], "state": "pending",
            "binding": canon::digest(&bound).unwrap(), "bound": bound, "display": "something else",
            "flags": ["hidden-characters"], "requested": "2026-01-02T03:04:05.678901Z",
            "expires": "2026-01-02T03:04:05.678901Z",
        })
    }

    fn argv(words: &[&str]) -> Value {
        json!({"argv": words, "stdin": null, "timeout_seconds": 600})
    }

    #[test]
    fn hostile_characters_are_visible_and_nothing_is_left_out() {
        let words = ["rm", "\u{202e}x\u{200b}", "a\rb\u{1b}[2K", &" ".repeat(600), "```"];
        let shown = Question::of(&sample(argv(&words))).unwrap().render();
        assert!(!shown.chars().any(|c| show::is_hidden(c) && c != '\n'), "{shown}");
        for part in [
            "\\u{202e}x\\u{200b}",
            "a\\rb\\e[2K",
            "\\{600 blanks}",
            "'```'",
            "/srv/a\\e[2Kb",
            "/srv/x.sh",
            "/\\xff",
            "5 words without a shell",
            "hidden-characters",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("something else"));
    }

    #[test]
    fn the_last_of_four_hundred_lines_is_shown_and_none_can_pass_for_ours() {
        let mut text: String = (0..400).map(|i| format!("echo {i}\n")).collect();
        text += "binding    0000\nrm -rf last";
        let arguments =
            json!({"command": text, "stdin": {"sha256": Digest::of(b""), "bytes": 3}, "timeout_seconds": 5});
        let shown = Question::of(&sample(arguments)).unwrap().render();
        assert!(shown.contains("402 lines for /bin/sh -c"));
        assert!(shown.contains(&Digest::of(text.as_bytes()).to_string()));
        assert!(shown.contains("  | rm -rf last\n") && shown.contains("  | echo 399\n"));
        assert_eq!(shown.lines().filter(|line| line.starts_with("binding")).count(), 1);
        assert!(shown.lines().last().unwrap().starts_with("binding"));
        assert!(shown.contains("3 bytes, sha256"));
    }

    #[test]
    fn a_binding_that_does_not_cover_what_is_shown_is_refused() {
        let mut approval = sample(argv(&["true"]));
        assert!(Question::of(&approval).is_ok());
        approval["bound"]["arguments"]["argv"][0] = "false".into();
        let trouble = Question::of(&approval).unwrap_err();
        assert_eq!((trouble.id(), trouble.exit()), ("binding-mismatch", 5));
    }

    #[test]
    fn the_diff_of_an_edit_is_shown_whole_and_only_if_its_hash_is_bound() {
        let diff = "--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@\n-old\n+new\n";
        let edit = json!({"edits": [], "files": [{"path": "x.c"}], "diff": {"sha256": Digest::of(diff.as_bytes())}});
        let mut approval = sample(edit);
        approval["display"] = diff.into();
        let question = Question::of(&approval).unwrap();
        let shown = question.render();
        assert!(shown.starts_with("edit: 1 file, diff of ") && shown.contains("  | -old\n  | +new\n"), "{shown}");
        assert!(!shown.contains("stdin") && !shown.contains("timeout"), "{shown}");
        assert_eq!(question.summary(), "command x.c");
        approval["display"] = diff.replace("new", "evil").into();
        let trouble = Question::of(&approval).unwrap_err();
        assert_eq!((trouble.id(), trouble.exit()), ("binding-mismatch", 5));
    }

    #[test]
    fn a_summary_counts_what_it_leaves_out() {
        assert_eq!(summary("ls"), "ls");
        assert_eq!(summary("a\nbc"), "a … (+3 characters)");
        assert!(summary(&"x".repeat(100)).ends_with("… (+40 characters)"));
    }
}
