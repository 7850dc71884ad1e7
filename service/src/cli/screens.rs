//! Text cut into screenfuls.

use terminal_size::{Height, Width, terminal_size};

/// Rows and columns where the terminal does not say.
const SIZE: (usize, usize) = (24, 80);
/// The fewest rows that are a screen: one of text, one of the prompt.
const FEWEST_ROWS: usize = 2;

/// Rows and columns of the terminal that text goes to.
pub(super) fn size() -> (usize, usize) {
    let (rows, columns) = match terminal_size() {
        Some((Width(columns), Height(rows))) => (usize::from(rows), usize::from(columns)),
        None => SIZE,
    };
    (rows.max(FEWEST_ROWS), columns.max(1))
}

/// Cuts text into pieces that fit a screen of `rows` and `columns` with one row left for the prompt. Together they
/// are the text; only a line that is longer than a whole screen is cut in itself.
pub(super) fn screens(text: &str, (rows, columns): (usize, usize)) -> Vec<&str> {
    let room = rows.saturating_sub(1).max(1);
    let mut screens = Vec::new();
    let (mut from, mut used, mut column) = (0, 0, 0);
    for (at, c) in text.char_indices() {
        let wide = width(c);
        if c != '\n' && column + wide > columns && column > 0 {
            used += 1;
            column = 0;
        }
        if used >= room && column == 0 {
            screens.push(text.get(from..at).unwrap_or_default());
            (from, used) = (at, 0);
        }
        if c == '\n' {
            used += 1;
            column = 0;
        } else {
            column += wide;
        }
    }
    screens.push(text.get(from..).unwrap_or_default());
    screens
}

/// Columns that a character takes at the most.
const fn width(c: char) -> usize {
    match c {
        '\t' => 8,
        c if c.is_ascii() => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_are_the_text_and_each_fits() {
        let lines: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let long = "x".repeat(1000);
        let wide = "漢".repeat(300);
        for text in ["", "one", "a\nb", &lines, &long, &wide, &format!("{lines}{long}\n{wide}")] {
            let pieces = screens(text, (10, 40));
            assert_eq!(pieces.concat(), text);
            for piece in pieces {
                let rows: usize =
                    piece.lines().map(|line| line.chars().map(width).sum::<usize>().div_ceil(40).max(1)).sum();
                assert!(rows <= 9, "{rows} rows: {piece}");
            }
        }
    }

    #[test]
    fn what_fits_is_one_piece() {
        assert_eq!(screens("a\nb\nc", (4, 80)), ["a\nb\nc"]);
        assert_eq!(screens("a\nb\nc\nd", (4, 80)), ["a\nb\nc\n", "d"]);
    }
}
