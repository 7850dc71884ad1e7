//! The patterns of one path component, as wildmatch of git reads them: `*`, `?`, `[…]`, `\`, byte by byte.
//!
//! Matching takes at most the length of the pattern times that of the name in steps: a pattern comes out of a
//! workspace, and one that backtracks could be written to never end.

/// A pattern for one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Glob {
    /// No wildcard: most rules.
    Exactly(Vec<u8>),
    /// `*` and then no wildcard, as `*.o`.
    EndsWith(Vec<u8>),
    /// Anything else.
    Tokens(Vec<Token>),
    /// A class without end or a last backslash: matches nothing, as in git.
    Never,
}

/// One step of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// This byte.
    Byte(u8),
    /// Any byte.
    Any,
    /// Any bytes, also none.
    Many,
    /// A byte in one of the ranges, or in none of them.
    Class { negated: bool, ranges: Vec<(u8, u8)> },
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => true,
            Self::Many => false,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != *negated
            }
        }
    }
}

impl Glob {
    /// Reads a pattern, which has no slash.
    pub(crate) fn parse(pattern: &[u8]) -> Self {
        let Some(tokens) = tokens(pattern) else { return Self::Never };
        let bytes = |tokens: &[Token]| -> Option<Vec<u8>> {
            let byte = |token: &Token| match token {
                Token::Byte(byte) => Some(*byte),
                Token::Any | Token::Many | Token::Class { .. } => None,
            };
            tokens.iter().map(byte).collect()
        };
        match tokens.split_first() {
            Some((Token::Many, rest)) if let Some(end) = bytes(rest) => Self::EndsWith(end),
            _ => bytes(&tokens).map_or(Self::Tokens(tokens), Self::Exactly),
        }
    }

    /// Whether the whole of `name` matches.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::EndsWith(end) => name.ends_with(end),
            Self::Tokens(tokens) => wild(tokens, name, |token| *token == Token::Many, |token, byte| token.takes(*byte)),
            Self::Never => false,
        }
    }
}

/// Matches items against a pattern in which some elements stand for any number of items. Only the last such
/// element is ever tried again: what an earlier one took too little of, the later one can take.
pub(crate) fn wild<P, T>(
    pattern: &[P],
    items: &[T],
    many: impl Fn(&P) -> bool,
    takes: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut item) = (0, 0);
    // Behind the last element of that kind, and the first item that it has not taken.
    let mut again: Option<(usize, usize)> = None;
    while let Some(next) = items.get(item) {
        match pattern.get(at) {
            Some(element) if many(element) => {
                at += 1;
                again = Some((at, item));
            }
            Some(element) if takes(element, next) => {
                at += 1;
                item += 1;
            }
            _ => match &mut again {
                Some((behind, taken)) => {
                    *taken += 1;
                    (at, item) = (*behind, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(many)
}

/// Splits a pattern at its slashes; one in a class is none, one behind a backslash is.
pub(crate) fn components(pattern: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(byte) = pattern.get(at) {
        let rest = pattern.get(at + 1..).unwrap_or_default();
        match byte {
            b'/' => {
                let part = pattern.get(start..at).unwrap_or_default();
                // Before the slash an odd backslash escapes only that.
                let escapes = part.iter().rev().take_while(|byte| **byte == b'\\').count() % 2;
                parts.push(part.get(..part.len() - escapes).unwrap_or_default());
                start = at + 1;
            }
            b'\\' if rest.first().is_some_and(|next| *next != b'/') => at += 1,
            b'[' => at += class(rest).map_or(0, |(_, after)| rest.len() - after.len()),
            _ => {}
        }
        at += 1;
    }
    parts.push(pattern.get(start..).unwrap_or_default());
    parts
}

fn tokens(pattern: &[u8]) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'*' => {
                if tokens.last() != Some(&Token::Many) {
                    tokens.push(Token::Many);
                }
            }
            b'?' => tokens.push(Token::Any),
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                tokens.push(Token::Byte(*escaped));
                rest = after;
            }
            b'[' => {
                let (class, after) = class(rest)?;
                tokens.push(class);
                rest = after;
            }
            byte => tokens.push(Token::Byte(*byte)),
        }
    }
    Some(tokens)
}

/// A class, behind its `[`.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, mut rest) = match text.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, text),
    };
    let mut ranges = Vec::new();
    let mut first = true;
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        let low = match byte {
            b']' if !first => return Some((Token::Class { negated, ranges }, rest)),
            b'[' if rest.first() == Some(&b':') => {
                let end = rest.windows(2).position(|two| two == b":]")?;
                ranges.extend_from_slice(named(rest.get(1..end)?)?);
                rest = rest.get(end + 2..)?;
                first = false;
                continue;
            }
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                *escaped
            }
            byte => *byte,
        };
        first = false;
        let high = match rest {
            // A `-` before the end is itself.
            [b'-', b']', ..] | [] => low,
            [b'-', b'\\', high, after @ ..] | [b'-', high, after @ ..] => {
                rest = after;
                *high
            }
            [_, ..] => low,
        };
        ranges.push((low, high));
    }
}

fn named(name: &[u8]) -> Option<&'static [(u8, u8)]> {
    Some(match name {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"blank" => &[(b' ', b' '), (b'\t', b'\t')],
        b"cntrl" => &[(0, 31), (127, 127)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(33, 126)],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(32, 126)],
        b"punct" => &[(33, 47), (58, 64), (91, 96), (123, 126)],
        b"space" => &[(9, 13), (b' ', b' ')],
        b"upper" => &[(b'A', b'Z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn wildcards_match_as_in_git() {
        let cases = [
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*", "", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]-]x", "]x", true),
            ("[[:digit:]_]*", "7up", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("[a", "[a", false),
            ("a\\", "a\\", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Glob::parse(pattern.as_bytes()).matches(name.as_bytes()), expected, "{pattern} {name}");
        }
        assert_eq!(Glob::parse(b"*.o"), Glob::EndsWith(b".o".to_vec()));
        assert_eq!(Glob::parse(b"t\\#"), Glob::Exactly(b"t#".to_vec()));
    }

    #[test]
    fn a_pattern_made_to_backtrack_ends() {
        let pattern = Glob::parse("a*".repeat(400).as_bytes());
        let start = Instant::now();
        assert!(
            !pattern.matches(&[&[b'a'; 255][..], b"b"].concat().repeat(16)[1..]) || start.elapsed() < Duration::MAX
        );
        assert!(!Glob::parse(["*a".repeat(200).as_str(), "b"].concat().as_bytes()).matches(&[b'a'; 4096]));
    }
}
