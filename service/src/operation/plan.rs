//! What an edit or an undo comes to, from the files as they stand. Pure.

use std::collections::{BTreeMap, BTreeSet};

use salaam_core::{
    digest::Digest,
    edit::{self, Change, EditError, Expected, FileChange, Image},
    show,
};

use super::refuse::Unseen;
use crate::operation::Refusal;

/// Files by path as they stand; absent = there is none.
pub(super) type Before = BTreeMap<Vec<u8>, Option<Image>>;

/// What would be done, with all that it is computed from.
#[derive(Debug)]
pub(super) struct Planned {
    /// What the executor is sent.
    pub changes: Vec<Change>,
    /// What comes of them.
    pub files: Vec<FileChange>,
    /// The whole of it as a person is shown.
    pub display: String,
}

impl Planned {
    /// What `changes` make of `before`.
    pub(super) fn of(changes: Vec<Change>, before: &Before) -> Result<Self, EditError> {
        let files = edit::apply(&changes, before)?;
        let display = edit::diff(&files)?;
        Ok(Self { changes, files, display })
    }

    /// By digest: what both sides must agree on.
    pub(super) fn expected(&self) -> Vec<Expected> {
        edit::expected(&self.files)
    }

    /// Names what was shown.
    pub(super) fn diff(&self) -> Digest {
        Digest::of(self.display.as_bytes())
    }

    /// Whether a person is shown escapes in place of what stands in the files.
    pub(super) fn has_hidden(&self, changes: &[Change]) -> bool {
        let carried = changes.iter().any(|change| match change {
            Change::Replace { path, old, new, .. } => ![path, old, new].iter().all(|text| show::is_plain(text)),
            Change::Create { path, content } | Change::Write { path, content, .. } => {
                !show::is_plain(path) || !show::is_plain(content)
            }
            Change::Rename { path, to } => !show::is_plain(path) || !show::is_plain(to),
            Change::Delete { path } | Change::Mode { path, .. } => !show::is_plain(path),
        });
        carried || self.files.iter().any(|file| !show::is_plain(&file.path))
    }
}

/// An edit that was done, as its receipt and what was kept of it say.
#[derive(Debug)]
pub(super) struct Done {
    /// What became of each file.
    pub files: Vec<Expected>,
    /// Each file as it was before.
    pub before: Vec<(Vec<u8>, Option<Image>)>,
}

impl Done {
    /// The files that must be read to take it back.
    pub(super) fn paths(&self) -> BTreeSet<Vec<u8>> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// The changes that take it back, unless a file has moved on since.
    pub(super) fn undone(&self, now: &Before) -> Result<Vec<Change>, Unseen> {
        let left = self.files.iter().find(|file| stamp(now, &file.path) != Some(file.post));
        if let Some(file) = left {
            let shown = show::line(&file.path);
            let refusal = Refusal::new(
                "moved-on",
                409,
                format!("{shown} is no longer what the operation left, so it is not taken back"),
                "undo what came after it first, or edit the file by hand",
            );
            return Err(Unseen { refusal, path: Some(file.path.clone()) });
        }
        Ok(edit::restore(self.before.iter().map(|(path, image)| (path.as_slice(), image.as_ref()))))
    }
}

/// The first file that is no longer as it was when it was bound.
pub(super) fn moved<'a>(bound: &'a [Expected], now: &Before) -> Option<&'a [u8]> {
    bound.iter().find(|file| stamp(now, &file.path) != Some(file.pre)).map(|file| file.path.as_slice())
}

/// How a file stands; absent = it was not read.
fn stamp(now: &Before, path: &[u8]) -> Option<Option<edit::Stamp>> {
    now.get(path).map(|image| image.as_ref().map(Image::stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> Image {
        Image { content: text.into(), mode: 0o644 }
    }

    fn before(files: &[(&str, Option<&str>)]) -> Before {
        files.iter().map(|(path, text)| (path.as_bytes().to_vec(), text.map(image))).collect()
    }

    fn replace(path: &str, old: &str, new: &str) -> Change {
        Change::Replace { path: path.into(), old: old.into(), new: new.into(), all: false }
    }

    /// What the files are once `planned` was done.
    fn after(planned: &Planned, before: &Before) -> Before {
        let mut after = before.clone();
        after.extend(planned.files.iter().map(|file| (file.path.clone(), file.post.clone())));
        after
    }

    fn done(planned: &Planned) -> Done {
        let before = planned.files.iter().map(|file| (file.path.clone(), file.pre.clone())).collect();
        Done { files: planned.expected(), before }
    }

    #[test]
    fn an_undo_gives_back_every_file_and_an_undo_of_it_the_edit() {
        let first = before(&[("a", Some("one\n")), ("b", None), ("c", Some("gone\n"))]);
        let create = Change::Create { path: b"b".to_vec(), content: b"new\n".to_vec() };
        let delete = Change::Delete { path: b"c".to_vec() };
        let edit = Planned::of(vec![replace("a", "one", "two"), create, delete], &first).unwrap();
        let second = after(&edit, &first);
        let undo = Planned::of(done(&edit).undone(&second).unwrap(), &second).unwrap();
        let third = after(&undo, &second);
        assert_eq!(third, first);
        let redo = Planned::of(done(&undo).undone(&third).unwrap(), &third).unwrap();
        assert_eq!(after(&redo, &third), second);
        assert_ne!(edit.diff(), undo.diff());
    }

    #[test]
    fn what_moved_on_is_not_taken_back_and_is_named() {
        let first = before(&[("a", Some("one\n")), ("b", Some("x\n"))]);
        let edit = Planned::of(vec![replace("a", "one", "two"), replace("b", "x", "y")], &first).unwrap();
        let done = done(&edit);
        let edited = after(&edit, &first);
        assert!(done.undone(&edited).is_ok());
        for foreign in [Some(image("y\nmore\n")), None, Some(Image { mode: 0o755, ..image("y\n") })] {
            let mut now = edited.clone();
            now.insert(b"b".to_vec(), foreign);
            let unseen = done.undone(&now).unwrap_err();
            assert_eq!((unseen.refusal.id.as_str(), unseen.path.as_deref()), ("moved-on", Some(&b"b"[..])));
        }
    }

    #[test]
    fn a_bound_file_that_moved_is_named_by_content_mode_or_absence() {
        let first = before(&[("a", Some("one\n"))]);
        let bound = Planned::of(vec![replace("a", "one", "two")], &first).unwrap().expected();
        assert_eq!(moved(&bound, &first), None);
        for now in [before(&[("a", Some("one\n\n"))]), before(&[("a", None)]), Before::new()] {
            assert_eq!(moved(&bound, &now), Some(&b"a"[..]));
        }
        let mode = BTreeMap::from([(b"a".to_vec(), Some(Image { mode: 0o600, ..image("one\n") }))]);
        assert_eq!(moved(&bound, &mode), Some(&b"a"[..]));
    }

    #[test]
    fn hidden_characters_are_said_whether_they_come_or_go() {
        let first = before(&[("a", Some("x\u{202e}y\n"))]);
        for (change, hidden) in [
            (replace("a", "x", "z"), false),
            (replace("a", "\u{202e}", ""), true),
            (replace("a", "y", "\u{200b}"), true),
        ] {
            let changes = vec![change];
            let planned = Planned::of(changes.clone(), &first).unwrap();
            assert_eq!(planned.has_hidden(&changes), hidden);
        }
    }
}
