//! The pattern: an automaton of bounded size, so that matching is linear whatever it is.

use regex::bytes::{Regex, RegexBuilder};
use salaam_core::reader::MAX_PATTERN_BYTES;

use crate::{
    limits::{MAX_AUTOMATON_BYTES, MAX_NEST},
    refusal::Refusal,
};

/// What is given of the parser's message.
const MAX_REASON_BYTES: usize = 160;

/// Compiles it.
pub(super) fn compile(pattern: &str) -> Result<Regex, Refusal> {
    let refused = |reason: String| Refusal::Pattern { reason };
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(refused(format!("it has {} bytes, and {MAX_PATTERN_BYTES} are the most", pattern.len())));
    }
    RegexBuilder::new(pattern)
        .size_limit(MAX_AUTOMATON_BYTES)
        .dfa_size_limit(MAX_AUTOMATON_BYTES)
        .nest_limit(MAX_NEST)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                refused(format!("compiled it takes more than {MAX_AUTOMATON_BYTES} bytes; repeat less"))
            }
            regex::Error::Syntax(text) => refused(last_line(&text)),
            _ => refused("it is no regular expression".into()),
        })
}

/// The parser draws the pattern first; what is wrong stands in the last line.
fn last_line(text: &str) -> String {
    let line = text.lines().next_back().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    line.chars().take(MAX_REASON_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(pattern: &str) -> String {
        match compile(pattern) {
            Err(Refusal::Pattern { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_too_large_or_wrong_is_refused_without_being_quoted() {
        assert_eq!(reason("secret("), "unclosed group");
        assert!(reason("((a{0,1000}){0,1000}){0,1000}").contains("repeat less"));
        assert!(reason(r"\w{5000}").contains("repeat less"));
        assert!(reason(&"(".repeat(200)).contains("nest") || reason(&"(".repeat(200)).contains("unclosed"));
        assert!(reason(&"a".repeat(MAX_PATTERN_BYTES + 1)).contains("the most"));
        assert!(compile(r"(?i)fn\s+\w+\(.*\) -> Result<").is_ok());
    }
}
