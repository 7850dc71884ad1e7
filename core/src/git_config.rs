//! What a repository's config makes git run: read as git reads it, judged by a list of what is harmless.
//!
//! git has hundreds of settings and gains more with every version, so the list says what runs nothing and leads
//! nowhere; all else counts as executing. A text that is not exactly git's grammar is no config here.

use std::collections::BTreeSet;

/// The largest config that is read; git's own are a few kilobytes.
pub const MAX_BYTES: u64 = 256 << 10;

/// One setting: `[section "subsection"] key = value`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// In lower case.
    pub section: String,
    /// As written.
    pub subsection: Option<String>,
    /// In lower case.
    pub key: String,
    /// Absent: the key stands alone, which means true.
    pub value: Option<String>,
}

/// A text that git would not take, or that is too odd to be sure how it would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a config of git")]
pub struct NotAConfig;

/// Reads a config; strictly, since what git reads otherwise would be judged wrongly.
pub fn parse(text: &[u8]) -> Result<Vec<Setting>, NotAConfig> {
    let text = std::str::from_utf8(text).map_err(|_| NotAConfig)?;
    // Carriage returns, a byte order mark and NUL are read differently by different versions.
    if text.chars().any(|c| c == '\u{feff}' || (c.is_control() && c != '\n' && c != '\t')) {
        return Err(NotAConfig);
    }
    let mut reader = Reader { rest: text.chars().peekable() };
    let mut settings = Vec::new();
    let mut section: Option<(String, Option<String>)> = None;
    while let Some(c) = reader.rest.next() {
        match c {
            '\n' | ' ' | '\t' => {}
            '#' | ';' => reader.comment(),
            '[' => section = Some(reader.header()?),
            first if first.is_ascii_alphabetic() => {
                let (key, value) = reader.setting(first)?;
                let (name, subsection) = section.clone().ok_or(NotAConfig)?;
                settings.push(Setting { section: name, subsection, key, value });
            }
            _ => return Err(NotAConfig),
        }
    }
    Ok(settings)
}

/// Reads what git may take for settings of a text that [`parse`] refuses: to find what it may name, never to judge it.
/// git takes carriage returns, a byte order mark, and names that are no UTF-8.
pub fn glean(text: &[u8]) -> Vec<Setting> {
    if let Ok(settings) = parse(text) {
        return settings;
    }
    let text = String::from_utf8_lossy(text)
        .replace(['\r', '\u{feff}'], "")
        .replace(|c: char| c.is_control() && c != '\n', " ");
    let mut header = String::new();
    let mut found = Vec::new();
    // A line that is folded goes with the next.
    for line in text.replace("\\\n", "").lines() {
        let line = line.trim();
        let setting = match line.find(']') {
            Some(end) if line.starts_with('[') => {
                let (head, rest) = line.split_at(end + 1);
                header = head.to_owned();
                rest
            }
            _ => line,
        };
        found.extend(parse(format!("{header}\n{setting}\n").as_bytes()).unwrap_or_default());
    }
    found
}

/// Writes settings so that every version of git reads them alike.
pub fn write(settings: &[Setting]) -> String {
    let quoted = |text: &str| {
        let mut out = String::from('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                c => out.push(c),
            }
        }
        out.push('"');
        out
    };
    // In a name of a subsection a backslash only takes the next character as it is.
    let name = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let mut out = String::new();
    let mut last = None;
    for setting in settings {
        let header = (&setting.section, &setting.subsection);
        if last != Some(header) {
            match &setting.subsection {
                None => out += &format!("[{}]\n", setting.section),
                // A newline cannot stand in one, and none was read.
                Some(subsection) => out += &format!("[{} {}]\n", setting.section, name(subsection)),
            }
            last = Some(header);
        }
        match &setting.value {
            None => out += &format!("\t{}\n", setting.key),
            Some(value) => out += &format!("\t{} = {}\n", setting.key, quoted(value)),
        }
    }
    out
}

impl Setting {
    /// Whether it runs nothing, names no other file, and sends nothing elsewhere than it says.
    pub fn is_harmless(&self) -> bool {
        let value = self.value.as_deref().unwrap_or("true");
        match (self.section.as_str(), self.subsection.is_some(), self.key.as_str()) {
            // `helper::address` runs git-remote-helper; a dash would be an option of ssh. A branch, and a default, may
            // name an address in the place of a remote.
            ("remote" | "branch", true, "url" | "pushurl" | "remote" | "pushremote")
            | ("checkout", false, "defaultremote") => !value.contains("::") && !value.starts_with('-'),
            // `!command` runs that.
            ("submodule", true, "update") => matches!(value, "checkout" | "rebase" | "merge" | "none"),
            ("submodule", true, "url") => !value.contains("::") && !value.starts_with('-'),
            ("advice" | "color" | "feature", _, _) => true,
            (section, subsection, key) => {
                let list = if subsection { HARMLESS_BELOW } else { HARMLESS };
                list.iter().any(|(known, keys)| *known == section && keys.contains(&key))
            }
        }
    }

    /// Where the repository's work tree is said to be, which git writes to on checkout.
    pub fn worktree(&self) -> Option<&str> {
        let is = self.section == "core" && self.subsection.is_none() && self.key == "worktree";
        if is { self.value.as_deref() } else { None }
    }

    /// Paths that git runs or reads settings from, as written: relative to the top of the work tree, or, where
    /// `beside_config`, to the file that names it. Of a command every word may be one.
    pub fn names(&self) -> Option<Named<'_>> {
        let value = self.value.as_deref()?;
        let whole = |beside_config| Some(Named { words: vec![value], beside_config, is_command: false });
        match (self.section.as_str(), self.key.as_str()) {
            ("core", "hookspath" | "attributesfile") => whole(false),
            ("include" | "includeif", "path") => whole(true),
            ("core", "fsmonitor" | "sshcommand" | "gitproxy" | "editor" | "pager" | "askpass")
            | ("sequence", "editor")
            | (
                "filter" | "diff" | "difftool" | "merge" | "mergetool" | "credential" | "gpg" | "alias" | "hook"
                | "pager",
                _,
            )
            | ("interactive", "difffilter")
            | ("submodule", "update")
            | ("remote", "uploadpack" | "receivepack" | "vcs") => {
                let parts = value.split(|c: char| c.is_whitespace() || "'\";|&()<>=!`$".contains(c));
                let parts = parts.filter(|word| !word.is_empty()).take(MAX_WORDS);
                Some(Named {
                    words: [value].into_iter().chain(parts).collect(),
                    beside_config: false,
                    is_command: true,
                })
            }
            _ => None,
        }
    }
}

/// Words of one command that are looked at; each may become a mount.
const MAX_WORDS: usize = 16;

/// What a setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<'a> {
    /// As written.
    pub words: Vec<&'a str>,
    /// Relative to the file that names it.
    pub beside_config: bool,
    /// Words of a command: only those that are files matter, a directory is what it works on.
    pub is_command: bool,
}

/// What of `settings` is neither harmless nor in `known`.
pub fn executing<'a>(settings: &'a [Setting], known: &BTreeSet<Setting>) -> Vec<&'a Setting> {
    settings.iter().filter(|setting| !setting.is_harmless() && !known.contains(setting)).collect()
}

/// Sections without a subsection, and their harmless keys.
const HARMLESS: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "repositoryformatversion",
            "filemode",
            "bare",
            "logallrefupdates",
            "symlinks",
            "ignorecase",
            "precomposeunicode",
            "autocrlf",
            "eol",
            "safecrlf",
            "sparsecheckout",
            "sparsecheckoutcone",
            "quotepath",
            "abbrev",
            "compression",
            "loosecompression",
            "bigfilethreshold",
            "untrackedcache",
            "preloadindex",
            "sharedrepository",
            "trustctime",
            "checkstat",
            "whitespace",
            "fsync",
            "fsyncmethod",
            "multipackindex",
            "commitgraph",
            "longpaths",
        ],
    ),
    (
        "extensions",
        &[
            "objectformat",
            "compatobjectformat",
            "noop",
            "partialclone",
            "worktreeconfig",
            "refstorage",
            "preciousobjects",
            "relativeworktrees",
        ],
    ),
    ("user", &["name", "email", "useconfigonly"]),
    ("author", &["name", "email"]),
    ("committer", &["name", "email"]),
    ("init", &["defaultbranch"]),
    ("pull", &["rebase", "ff"]),
    ("push", &["default", "autosetupremote", "followtags"]),
    ("fetch", &["prune", "prunetags", "parallel", "writecommitgraph", "recursesubmodules"]),
    ("merge", &["ff", "conflictstyle", "renamelimit", "renames", "log", "stat"]),
    ("diff", &["renames", "renamelimit", "algorithm", "noprefix", "mnemonicprefix", "context", "colormoved"]),
    ("rebase", &["autosquash", "autostash", "updaterefs"]),
    ("commit", &["cleanup", "verbose", "status"]),
    ("gc", &["auto", "autodetach", "autopacklimit", "pruneexpire"]),
    ("pack", &["threads", "windowmemory", "window", "depth"]),
    ("index", &["version", "threads", "sparse", "skiphash"]),
    ("status", &["showuntrackedfiles", "short", "branch", "relativepaths"]),
    ("log", &["date", "decorate", "follow"]),
    ("branch", &["sort", "autosetupmerge", "autosetuprebase"]),
    ("tag", &["sort"]),
    ("checkout", &["workers", "guess"]),
    ("worktree", &["guessremote", "userelativepaths"]),
    ("rerere", &["enabled", "autoupdate"]),
    ("maintenance", &["auto", "strategy"]),
    ("i18n", &["commitencoding", "logoutputencoding"]),
    ("submodule", &["recurse", "fetchjobs", "active"]),
    ("transfer", &["fsckobjects"]),
    ("receive", &["denycurrentbranch", "denynonfastforwards", "denydeletes", "fsckobjects"]),
    ("uploadpack", &["allowfilter", "allowanysha1inwant"]),
    ("lfs", &["repositoryformatversion"]),
];

/// The same for sections with one.
const HARMLESS_BELOW: &[(&str, &[&str])] = &[
    ("remote", &["fetch", "push", "tagopt", "prune", "prunetags", "mirror", "promisor", "partialclonefilter"]),
    ("branch", &["merge", "rebase", "description", "vscode-merge-base", "gh-merge-base"]),
    ("submodule", &["active", "branch", "ignore", "fetchrecursesubmodules", "shallow"]),
];

/// git's own way through the text (config.c): character by character.
struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl Reader<'_> {
    fn comment(&mut self) {
        while self.rest.next().is_some_and(|c| c != '\n') {}
    }

    fn blanks(&mut self) {
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
    }

    /// After `[`, up to and with `]`.
    fn header(&mut self) -> Result<(String, Option<String>), NotAConfig> {
        let mut name = String::new();
        loop {
            match self.rest.next().ok_or(NotAConfig)? {
                ']' => break,
                ' ' | '\t' => return Ok((name, Some(self.subsection()?))),
                c if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') => name.push(c.to_ascii_lowercase()),
                _ => return Err(NotAConfig),
            }
        }
        // `[section.subsection]` is the older form, in which case does not count.
        Ok(match name.split_once('.') {
            Some((section, subsection)) => (section.to_owned(), Some(subsection.to_owned())),
            None => (name, None),
        })
    }

    fn subsection(&mut self) -> Result<String, NotAConfig> {
        self.blanks();
        if self.rest.next() != Some('"') {
            return Err(NotAConfig);
        }
        let mut name = String::new();
        loop {
            match self.rest.next().ok_or(NotAConfig)? {
                '"' => break,
                '\\' => match self.rest.next().ok_or(NotAConfig)? {
                    '\n' => return Err(NotAConfig),
                    c => name.push(c),
                },
                '\n' => return Err(NotAConfig),
                c => name.push(c),
            }
        }
        if self.rest.next() == Some(']') { Ok(name) } else { Err(NotAConfig) }
    }

    /// A key of which the first letter was taken, and its value to the end of the line.
    fn setting(&mut self, first: char) -> Result<(String, Option<String>), NotAConfig> {
        let mut key = String::from(first.to_ascii_lowercase());
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '-') {
            key.push(c.to_ascii_lowercase());
        }
        self.blanks();
        match self.rest.next() {
            None | Some('\n') => Ok((key, None)),
            Some('=') => Ok((key, Some(self.value()?))),
            Some(_) => Err(NotAConfig),
        }
    }

    fn value(&mut self) -> Result<String, NotAConfig> {
        self.blanks();
        let (mut value, mut kept, mut inside) = (String::new(), 0, false);
        // Older versions of git make a blank of a tab that stands between words, newer ones keep it.
        let mut tab = None;
        loop {
            match self.rest.next() {
                None | Some('\n') => {
                    if inside {
                        return Err(NotAConfig);
                    }
                    break;
                }
                Some('#' | ';') if !inside => {
                    self.comment();
                    break;
                }
                Some('"') => {
                    inside = !inside;
                    kept = value.len();
                }
                Some('\\') => {
                    // Blanks before it are inside the value, also before one that only folds the line.
                    kept = value.len();
                    match self.rest.next().ok_or(NotAConfig)? {
                        '\n' => continue,
                        't' => value.push('\t'),
                        'b' => value.push('\u{8}'),
                        'n' => value.push('\n'),
                        c @ ('\\' | '"') => value.push(c),
                        _ => return Err(NotAConfig),
                    }
                    kept = value.len();
                }
                Some(c @ (' ' | '\t')) if !inside => {
                    // Before the first character they do not count, also not on a line that is folded.
                    if value.is_empty() {
                        continue;
                    }
                    if c == '\t' {
                        tab.get_or_insert(value.len());
                    }
                    value.push(c);
                }
                Some(c) => {
                    value.push(c);
                    kept = value.len();
                }
            }
        }
        // Blanks at the end count only inside quotes.
        value.truncate(kept);
        if tab.is_some_and(|at: usize| at < kept) { Err(NotAConfig) } else { Ok(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(String, Option<String>)> {
        let name = |s: Setting| match s.subsection {
            None => (format!("{}.{}", s.section, s.key), s.value),
            Some(sub) => (format!("{}.{}.{}", s.section, sub, s.key), s.value),
        };
        parse(text.as_bytes()).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn it_is_read_as_git_reads_it() {
        let text =
            "# c\n[Core] Bare = false ; c\n\tfoo\n[a \"B \\\"x\"]\nk = \" v \" w  # c\n[remote.Origin]\nurl=a\\\n b\n";
        let some = |text: &str| Some(text.to_owned());
        let expected = [
            ("core.bare", some("false")),
            ("core.foo", None),
            ("a.B \"x.k", some(" v  w")),
            ("remote.origin.url", some("a b")),
        ];
        assert_eq!(of(text), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn blanks_at_a_fold_count_as_git_counts_them() {
        let value = |text: &str| of(&format!("[a]\nk ={text}"))[0].1.clone().unwrap();
        for (text, read) in [
            (" a \\\n", "a "),
            ("\\\n  b", "b"),
            ("\\\n \\\n  b", "b"),
            (" \"\"  b", "b"),
            (" a  \"\" ", "a  "),
            (" \" \"  b ", "   b"),
            (" a\t# c", "a"),
        ] {
            assert_eq!(value(text), read, "{text:?}");
        }
        // A dash that a fold would have hidden is an option of ssh.
        let folded = parse(b"[remote \"o\"]\nurl =\\\n -oProxyCommand=x").unwrap();
        assert!(!folded[0].is_harmless());
    }

    #[test]
    fn what_git_might_read_otherwise_is_no_config() {
        for text in [
            "[a]\nk = b\tc",
            "key = 1",
            "[a",
            "[a]\nk = \"x",
            "[a]\r\nk=1",
            "\u{feff}[a]",
            "[a]\nk = \\x",
            "[a b]",
            "[a]\n1=2",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(NotAConfig), "{text:?}");
        }
        assert_eq!(parse(b"[a]\nk = \xff"), Err(NotAConfig));
    }

    #[test]
    fn what_git_takes_and_this_does_not_is_gleaned() {
        let value = |text: &[u8]| {
            let found = glean(text);
            found.iter().find(|s| s.key == "hookspath").map(|s| s.value.clone().unwrap())
        };
        for text in [
            &b"[core]\r\n\thooksPath = tools/h\r\n"[..],
            b"\xef\xbb\xbf[core]\nhooksPath = tools/h",
            b"[user]\nname = J\xfcrgen\n[core] hooksPath = tools/h",
            b"[user]\nname = a\tb\n[core]\nhooksPath = tools/\\\nh",
            b"[broken\n[core]\n1 = 2\nhooksPath = tools/h",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
            assert_eq!(value(text).as_deref(), Some("tools/h"), "{text:?}");
        }
    }

    #[test]
    fn every_word_of_a_command_may_be_what_runs() {
        let settings = parse(b"[filter \"x\"]\nclean = \"sh 'tools/a.sh' X=b/c; ./d|e\"").unwrap();
        let named = settings[0].names().unwrap();
        assert_eq!(named.words[1..], ["sh", "tools/a.sh", "X", "b/c", "./d", "e"]);
        assert!(named.is_command && !named.beside_config);
    }

    #[test]
    fn what_a_clone_writes_is_harmless_and_what_runs_something_is_not() {
        let harmless = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n\
            [remote \"origin\"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
            [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[submodule \"x\"]\n\tactive = true\n\turl = ../x\n";
        assert!(parse(harmless.as_bytes()).unwrap().iter().all(Setting::is_harmless));
        for text in [
            "[core]\nfsmonitor = ./x",
            "[core]\nhooksPath = h",
            "[core]\nsshCommand = x",
            "[core]\nworktree = /home/op",
            "[alias]\nst = !x",
            "[filter \"x\"]\nclean = x",
            "[diff \"x\"]\ntextconv = x",
            "[diff]\nexternal = x",
            "[merge \"x\"]\ndriver = x",
            "[credential]\nhelper = x",
            "[include]\npath = x",
            "[includeIf \"gitdir:/\"]\npath = x",
            "[remote \"o\"]\nurl = ext::sh -c x",
            "[remote \"o\"]\nuploadpack = x",
            "[submodule \"s\"]\nupdate = !x",
            "[gpg]\nprogram = x",
            "[sequence]\neditor = x",
            "[protocol]\nallow = always",
            "[hook \"x\"]\ncommand = x",
            "[http]\nproxy = x",
            "[url \"x\"]\ninsteadOf = y",
            "[branch \"m\"]\nremote = ext::sh -c x",
            "[branch \"m\"]\npushRemote = -oProxyCommand=x",
            "[checkout]\ndefaultRemote = x::y",
            "[core]\nprotectNTFS = false",
            "[pager]\nlog = x",
        ] {
            assert!(!parse(text.as_bytes()).unwrap().iter().any(Setting::is_harmless), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again_the_same() {
        let text = "[a \"b \\\" \\\\ \tc\"]\n\tk = \"x # \\\" \\\\ y \\n\\b\\t\"\n\tl\n[core]\n\tbare = true\n";
        let settings = parse(text.as_bytes()).unwrap();
        assert_eq!(parse(write(&settings).as_bytes()), Ok(settings));
    }
}
