//! Text from elsewhere, made safe to look at.
//!
//! Control characters, escapes, direction marks and invisible characters become visible escapes; long runs
//! of blanks are counted. What is shown is never what is run: approved bytes stay as they are.

/// Runs of blanks longer than this are counted instead of printed.
pub const LONGEST_BLANK_RUN: usize = 64;

/// One line: line feeds and tabs are escaped too. For names, paths, arguments.
pub fn line(bytes: &[u8]) -> String {
    escape(bytes, false)
}

/// Several lines: line feeds and tabs stay. For commands, diffs, output.
pub fn block(bytes: &[u8]) -> String {
    escape(bytes, true)
}

/// The beginning of a text as [`line()`] shows it, of at most `most` characters: for errors that name what they were
/// given.
pub fn excerpt(bytes: &[u8], most: usize) -> String {
    // A character has at most four bytes, and an escape only lengthens: no more than this can be shown.
    let begin = bytes.get(..most.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
    let shown = line(begin);
    if begin.len() == bytes.len() && shown.chars().count() <= most {
        return shown;
    }
    shown.chars().take(most).chain(['\u{2026}']).collect()
}

/// Whether [`line()`] would hide nothing and change nothing, line feeds and tabs aside: what is not plain is
/// flagged `hidden-characters` in an approval.
pub fn is_plain(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| block(bytes) == text)
}

/// Whether a character must not reach a terminal as it is.
pub const fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}'            // C0, DEL, C1: they drive the terminal
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' // zero width, direction marks
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' // separators, bidirectional overrides and isolates
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' // tags and variation selectors
        | '\u{f0000}'..='\u{10ffff}') // private planes: no agreed look
}

const fn is_blank(c: char) -> bool {
    matches!(
        c,
        ' ' | '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' | '\u{2800}'
    )
}

fn escape(bytes: &[u8], lines: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut blanks = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_blank(c) || (lines && c == '\t') {
                blanks.push(c);
                continue;
            }
            flush(&mut out, &mut blanks);
            match c {
                '\n' if lines => out.push('\n'),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\u{1b}' => out.push_str("\\e"),
                c if is_hidden(c) => out.push_str(&escaped(c)),
                c => out.push(c),
            }
        }
        if !chunk.invalid().is_empty() {
            flush(&mut out, &mut blanks);
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    flush(&mut out, &mut blanks);
    out
}

fn escaped(c: char) -> String {
    format!("\\u{{{:x}}}", u32::from(c))
}

fn flush(out: &mut String, blanks: &mut String) {
    let count = blanks.chars().count();
    if count > LONGEST_BLANK_RUN {
        out.push_str(&format!("\\{{{count} blanks}}"));
    } else {
        for c in blanks.chars() {
            match c {
                ' ' | '\t' => out.push(c),
                c => out.push_str(&escaped(c)),
            }
        }
    }
    blanks.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_or_hides_is_visible() {
        for (given, shown) in [
            (&b"plain caf\xc3\xa9"[..], "plain café"),
            (b"a\x1b[2Kb\rc", "a\\e[2Kb\\rc"),
            ("\u{202e}evil\u{200b}".as_bytes(), "\\u{202e}evil\\u{200b}"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            (b"\xff\x00", "\\xff\\u{0}"),
            ("a\u{a0}b".as_bytes(), "a\\u{a0}b"),
            (b"two\nlines\t", "two\\nlines\\t"),
        ] {
            assert_eq!(line(given), shown);
        }
        assert_eq!(block(b"two\nlines\t."), "two\nlines\t.");
    }

    #[test]
    fn an_excerpt_is_short_and_as_visible_as_the_whole() {
        assert_eq!(excerpt(b"\x1b[2J", 80), "\\e[2J");
        assert_eq!(excerpt("\u{e9}".repeat(3).as_bytes(), 3), "\u{e9}\u{e9}\u{e9}");
        assert_eq!(excerpt("\u{e9}".repeat(4).as_bytes(), 3), "\u{e9}\u{e9}\u{e9}\u{2026}");
        assert_eq!(excerpt(&vec![b' '; 1 << 20], 3), "   \u{2026}");
        assert_eq!(excerpt(b"", 0), "");
    }

    #[test]
    fn long_blank_runs_are_counted() {
        let text = format!("rm{}-rf", " ".repeat(600));
        assert_eq!(line(text.as_bytes()), "rm\\{600 blanks}-rf");
        assert!(!is_plain(text.as_bytes()));
        assert!(is_plain(b"a\n\tb  c"));
    }

    #[test]
    fn no_hidden_character_survives() {
        let every: String = (0..=0x0010_ffff_u32).filter_map(char::from_u32).collect();
        assert!(!line(every.as_bytes()).chars().any(is_hidden));
        assert!(!block(every.as_bytes()).chars().any(|c| is_hidden(c) && c != '\n' && c != '\t'));
    }
}
