//! The shown form of an edit: a unified diff, whole or refused.
//!
//! It is what a person reviews and what the binding names, so every hidden character is visible (a CR as `\r`), no
//! line is left out, and a name cannot break out of its line. A file with a NUL byte is named by size and digest.

use super::{
    EditError, FileChange, Image, Stamp,
    bounds::MAX_DIFF_BYTES,
    change::octal,
    lines::{MAX_LINES, Stretch, script, split},
};
use crate::show;

/// Lines shown around a change.
const CONTEXT: usize = 3;

/// The whole of an edit as a unified diff.
///
/// # Errors
/// It is too long to be shown.
pub fn diff(files: &[FileChange]) -> Result<String, EditError> {
    let mut out = Out::default();
    let renames = renames(files);
    for (at, file) in files.iter().enumerate() {
        if let Some((_, to)) = renames.iter().find(|(from, _)| *from == at) {
            if let Some(to) = files.get(*to) {
                renamed(&mut out, file, to)?;
            }
        } else if !renames.iter().any(|(_, to)| *to == at) {
            changed(&mut out, file)?;
        }
    }
    Ok(out.text)
}

/// Text that may not grow without end.
#[derive(Default)]
struct Out {
    text: String,
}

impl Out {
    fn line(&mut self, line: &str) -> Result<(), EditError> {
        self.text.push_str(line);
        self.text.push('\n');
        if self.text.len() > MAX_DIFF_BYTES { Err(EditError::TooLongToShow) } else { Ok(()) }
    }

    /// One line of a file.
    fn content(&mut self, sign: char, line: &[u8]) -> Result<(), EditError> {
        let (text, ended) = line.strip_suffix(b"\n").map_or((line, false), |text| (text, true));
        // Escapes only lengthen, so a line that is too long already need not be escaped first.
        if text.len() > MAX_DIFF_BYTES {
            return Err(EditError::TooLongToShow);
        }
        self.text.push(sign);
        self.line(&show::block(text))?;
        if ended { Ok(()) } else { self.line("\\ No newline at end of file") }
    }
}

/// Files that only changed their names: places of the old and the new one.
fn renames(files: &[FileChange]) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (from, file) in files.iter().enumerate().filter(|(_, file)| file.pre.is_some() && file.post.is_none()) {
        let same = |(at, other): &(usize, &FileChange)| {
            other.pre.is_none() && other.post == file.pre && !pairs.iter().any(|(_, taken)| taken == at)
        };
        if let Some((to, _)) = files.iter().enumerate().find(same) {
            pairs.push((from, to));
        }
    }
    pairs
}

fn renamed(out: &mut Out, from: &FileChange, to: &FileChange) -> Result<(), EditError> {
    let (old, new) = (show::line(&from.path), show::line(&to.path));
    out.line(&format!("diff a/{old} b/{new}"))?;
    out.line(&format!("rename from {old}"))?;
    out.line(&format!("rename to {new}"))
}

fn changed(out: &mut Out, file: &FileChange) -> Result<(), EditError> {
    let path = show::line(&file.path);
    out.line(&format!("diff a/{path} b/{path}"))?;
    match (&file.pre, &file.post) {
        (None, Some(post)) => out.line(&format!("new file mode {}", octal(post.mode)))?,
        (Some(pre), None) => out.line(&format!("deleted file mode {}", octal(pre.mode)))?,
        (Some(pre), Some(post)) if pre.mode != post.mode => {
            out.line(&format!("old mode {}", octal(pre.mode)))?;
            out.line(&format!("new mode {}", octal(post.mode)))?;
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
    let (old, new) = (content(file.pre.as_ref()), content(file.post.as_ref()));
    if old == new {
        return Ok(());
    }
    if old.contains(&0) || new.contains(&0) {
        let named =
            |image: &Option<Image>| image.as_ref().map_or_else(|| "nothing".into(), |image| name(image.stamp()));
        return out.line(&format!("binary: {} becomes {}", named(&file.pre), named(&file.post)));
    }
    let side = |sign: char, image: &Option<Image>| {
        if image.is_some() { format!("{sign}/{path}") } else { "/dev/null".to_owned() }
    };
    out.line(&format!("--- {}", side('a', &file.pre)))?;
    out.line(&format!("+++ {}", side('b', &file.post)))?;
    hunks(out, old, new)
}

fn content(image: Option<&Image>) -> &[u8] {
    image.map_or(&[], |image| &image.content)
}

fn name(stamp: Stamp) -> String {
    format!("{} bytes with SHA-256 {}", stamp.bytes, stamp.sha256)
}

/// Everything that differs between two texts, with the lines around it.
fn hunks(out: &mut Out, old: &[u8], new: &[u8]) -> Result<(), EditError> {
    let Window { old, new, above, before, after } = window(old, new);
    let (n, m) = (split(old).count(), split(new).count());
    let stretches = if n.max(m) > MAX_LINES {
        let replaced = Stretch { kept: before, gone: n - before - after, come: m - before - after };
        vec![replaced, Stretch { kept: after, gone: 0, come: 0 }]
    } else {
        script(&split(old).collect::<Vec<_>>(), &split(new).collect::<Vec<_>>())
    };
    let mut sides = Sides { old: split(old), new: split(new), x: above, y: above };
    let mut rest = stretches.as_slice();
    let mut shown = 0;
    while let Some(first) = rest.first().filter(|first| first.gone > 0 || first.come > 0) {
        // What lies further apart than two contexts begins a hunk of its own.
        let apart = |next: &Stretch| next.kept > 2 * CONTEXT || (next.gone == 0 && next.come == 0);
        let count = 1 + rest.iter().skip(1).position(apart).unwrap_or(rest.len() - 1);
        let (group, next) = rest.split_at(count);
        let lead = (first.kept - shown).min(CONTEXT);
        sides.skip(first.kept - shown - lead);
        shown = next.first().map_or(0, |next| next.kept.min(CONTEXT));
        let mut group = group.to_vec();
        group.push(Stretch { kept: shown, gone: 0, come: 0 });
        if let Some(first) = group.first_mut() {
            first.kept = lead;
        }
        sides.hunk(out, &group)?;
        rest = next;
    }
    Ok(())
}

/// Two files, read side by side; so many lines were read.
struct Sides<A, B> {
    old: A,
    new: B,
    x: usize,
    y: usize,
}

impl<'a, A: Iterator<Item = &'a [u8]>, B: Iterator<Item = &'a [u8]>> Sides<A, B> {
    fn skip(&mut self, lines: usize) {
        self.old.by_ref().take(lines).for_each(drop);
        self.new.by_ref().take(lines).for_each(drop);
        self.x += lines;
        self.y += lines;
    }

    fn hunk(&mut self, out: &mut Out, stretches: &[Stretch]) -> Result<(), EditError> {
        let count = |of: fn(&Stretch) -> usize| stretches.iter().map(|s| s.kept + of(s)).sum::<usize>();
        let (gone, come) = (count(|s| s.gone), count(|s| s.come));
        let range = |before: usize, count: usize| format!("{},{count}", if count == 0 { before } else { before + 1 });
        out.line(&format!("@@ -{} +{} @@", range(self.x, gone), range(self.y, come)))?;
        for stretch in stretches {
            for line in self.old.by_ref().take(stretch.kept) {
                out.content(' ', line)?;
            }
            self.new.by_ref().take(stretch.kept).for_each(drop);
            for line in self.old.by_ref().take(stretch.gone) {
                out.content('-', line)?;
            }
            for line in self.new.by_ref().take(stretch.come) {
                out.content('+', line)?;
            }
        }
        self.x += gone;
        self.y += come;
        Ok(())
    }
}

/// What of two texts differs, with whole lines around it that both have.
struct Window<'a> {
    old: &'a [u8],
    new: &'a [u8],
    /// Lines before the window.
    above: usize,
    /// Lines at its beginning that are the same.
    before: usize,
    /// Lines at its end that are the same.
    after: usize,
}

fn window<'a>(old: &'a [u8], new: &'a [u8]) -> Window<'a> {
    let (head, tail) = common(old, new);
    let same = old.get(..head).unwrap_or_default();
    let start =
        same.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').nth(CONTEXT).map_or(0, |(at, _)| at + 1);
    let above = split(same.get(..start).unwrap_or_default()).count();
    let before = split(same.get(start..).unwrap_or_default()).count();
    let shown = old.get(old.len() - tail..).unwrap_or_default();
    let (after, bytes) =
        split(shown).take(CONTEXT).fold((0, 0), |(lines, bytes), line| (lines + 1, bytes + line.len()));
    let cut = |text: &'a [u8]| text.get(start..text.len() - tail + bytes).unwrap_or_default();
    Window { old: cut(old), new: cut(new), above, before, after }
}

/// Bytes of whole lines that both begin with, and those that both end with after them.
fn common(old: &[u8], new: &[u8]) -> (usize, usize) {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let begun = old.get(..same).unwrap_or_default();
    let head = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let same = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let ended = old.get(old.len() - same..).unwrap_or_default();
    let tail = ended.iter().position(|byte| *byte == b'\n').map_or(0, |at| ended.len() - at - 1);
    (head, tail)
}
