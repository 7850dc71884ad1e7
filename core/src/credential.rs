//! Where programs keep credentials, and how to tell that a git configuration holds one: one list for both sides of the
//! bridge. A read path is none of these places, lies in none and above none; below one they are masked by name.

use crate::{git_config, protect};

/// Below a home; names of directories and files. One with a slash counts with what lies right above it.
pub const PLACES: &[&str] = &[
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude",
    ".codex",
    ".config/anthropic",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/hub",
    ".config/op",
    ".config/opencode",
    ".config/rclone",
    ".config/salaam",
    ".config/sops",
    ".docker",
    ".gem/credentials",
    ".gemini",
    ".git-credentials",
    ".gnupg",
    ".gradle/gradle.properties",
    ".kube",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/opencode",
    ".local/state/salaam",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".mozilla",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".oci",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    ".yarnrc.yml",
    ".zsh_history",
];

/// Whether what lies as `name` in a directory that ends in `directory` is such a place, in any case of letters.
pub fn is_place(directory: &[u8], name: &[u8]) -> bool {
    // None begins otherwise, but for the names below a dotted directory.
    let folded = protect::folded(name);
    PLACES.iter().any(|place| {
        let (below, last) = place.rsplit_once('/').unwrap_or(("", place));
        folded.as_ref() == last.as_bytes() && protect::lies_in(directory, below)
    })
}

/// The place that an absolute `path` is, or lies in.
pub fn place_of(path: &[u8]) -> Option<&[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| path.get(..end)).find(|upto| {
        let at = upto.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        is_place(upto.get(..at.saturating_sub(1)).unwrap_or_default(), upto.get(at..).unwrap_or_default())
    })
}

/// The setting of a git configuration that holds a secret; a text that is not read exactly counts as holding one.
pub fn secret_in(config: &[u8]) -> Option<String> {
    let Ok(settings) = git_config::parse(config) else { return Some("what is no plain configuration".into()) };
    settings.iter().find(|setting| is_secret(setting)).map(|setting| match &setting.subsection {
        // A subsection may itself be the address with the secret.
        Some(_) => format!("{}.….{}", setting.section, setting.key),
        None => format!("{}.{}", setting.section, setting.key),
    })
}

fn is_secret(setting: &git_config::Setting) -> bool {
    const KEYS: &[&str] =
        &["token", "pass", "secret", "oauth", "apikey", "extraheader", "cookie", "authorization", "credential"];
    /// How tokens of the large hosts begin.
    const BEGINNINGS: &[&str] =
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "ATATT", "AKIA"];
    let value = setting.value.as_deref().unwrap_or_default();
    let texts = [value, setting.subsection.as_deref().unwrap_or_default()];
    // `helper` names a program, and `username` nobody's secret.
    let key = KEYS.iter().any(|key| setting.key.contains(key)) && !value.is_empty() && !is_switch(value);
    // These name a program or a file.
    let names = ["askpass", "cookiefile", "savecookies"].contains(&setting.key.as_str());
    // A helper given as a shell text may print one.
    let helper = setting.section == "credential" && setting.key == "helper" && value.trim_start().starts_with('!');
    let inside = |text: &&str| {
        let with_password = text.split("://").skip(1).any(|rest| {
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            host.rsplit_once('@').is_some_and(|(user, _)| user.contains(':') || user.len() >= 20)
        });
        with_password || BEGINNINGS.iter().any(|begin| text.contains(begin))
    };
    (key && !names) || helper || texts.iter().any(inside)
}

fn is_switch(value: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off", "0", "1"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_its_name_wherever_it_lies() {
        for path in [
            "/h/u/.ssh",
            "/h/u/.ssh/known_hosts",
            "/opt/x/.NPMRC",
            "/x/.cargo/credentials.toml",
            "/a/.config/gh/hosts.yml",
        ] {
            assert!(place_of(path.as_bytes()).is_some(), "{path}");
        }
        for path in ["/h/u/.cargo/bin", "/h/u/.config/nvim", "/opt/ssh", "/x/credentials.toml", "/", "/h/.sshd"] {
            assert_eq!(place_of(path.as_bytes()), None, "{path}");
        }
        assert_eq!(place_of(b"/h/u/.aws/x/y"), Some(&b"/h/u/.aws"[..]));
    }

    #[test]
    fn a_configuration_that_holds_a_secret_is_told_from_one_that_does_not() {
        for text in [
            "[url \"https://u:s3cret@example.org/\"]\ninsteadOf = https://example.org/",
            "[http \"https://example.org\"]\nextraHeader = Authorization: Basic eHg6eXk=",
            "[github]\ntoken = x",
            "[user]\nname = ghp_0123456789",
            "[sendemail]\nsmtpPass = x",
            "[credential]\nhelper = \"!f() { echo password=x; }; f\"",
            "[remote \"x\"]\nurl = https://0123456789abcdef0123@example.org/x",
            "[broken",
        ] {
            assert!(secret_in(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "[user]\nname = A\nemail = a@example.org\n[credential]\nhelper = store\n[alias]\nst = status",
            "[url \"git@example.org:\"]\ninsteadOf = https://example.org/\n[credential \"https://example.org\"]\nusername = a",
            "[credential]\nuseHttpPath = true\n[url \"ssh://git@example.org/\"]\npushInsteadOf = https://example.org/",
        ] {
            assert_eq!(secret_in(text.as_bytes()), None, "{text}");
        }
    }
}
