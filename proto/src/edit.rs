//! Edits: the plan, what came of it, and the files that are read for one.

use salaam_core::{
    bridge::{EditPlan, Edited, FilesRead, MAX_EDIT_DIRECTORIES, ReadFiles, Settle, Settled},
    edit::{
        Change, EditedFile, Expected, Image, MAX_CHANGES, MAX_EDIT_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_MODE, Stamp,
    },
};

use crate::{
    bounds::{self, MAX_SENTENCE_BYTES, WireError},
    wire,
};

impl From<ReadFiles> for wire::ReadFilesRequest {
    fn from(read: ReadFiles) -> Self {
        Self {
            workspace: read.workspace.to_string(),
            paths: read.paths.into_iter().map(Into::into).collect(),
            protected_paths: read.protected_paths.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::ReadFilesRequest> for ReadFiles {
    type Error = WireError;

    fn try_from(request: wire::ReadFilesRequest) -> Result<Self, WireError> {
        let paths = bounds::list("paths", request.paths, MAX_FILES, |path| bounds::relative_path("paths", &path))?;
        if paths.is_empty() {
            return Err(WireError::Missing { field: "paths" });
        }
        ascending("paths", paths.iter().map(Vec::as_slice))?;
        Ok(Self {
            workspace: bounds::id("workspace", &request.workspace)?,
            paths,
            protected_paths: bounds::plan_list("protected_paths", request.protected_paths, |path| {
                bounds::relative_path("protected_paths", &path)
            })?,
        })
    }
}

impl From<Image> for wire::Image {
    fn from(image: Image) -> Self {
        Self { content: image.content.into(), mode: image.mode }
    }
}

impl TryFrom<wire::Image> for Image {
    type Error = WireError;

    fn try_from(image: wire::Image) -> Result<Self, WireError> {
        Ok(Self { content: bounds::bytes("image.content", &image.content, MAX_FILE_BYTES)?, mode: mode(image.mode)? })
    }
}

impl From<FilesRead> for wire::FilesRead {
    fn from(read: FilesRead) -> Self {
        let file = |(path, image): (Vec<u8>, Option<Image>)| wire::ReadFile {
            path: path.into(),
            image: image.map(Into::into),
        };
        Self { files: read.files.into_iter().map(file).collect() }
    }
}

impl TryFrom<wire::FilesRead> for FilesRead {
    type Error = WireError;

    fn try_from(read: wire::FilesRead) -> Result<Self, WireError> {
        let contents = read.files.iter().filter_map(|file| file.image.as_ref()).map(|image| image.content.len());
        together("files", contents)?;
        let files = bounds::list("files", read.files, MAX_FILES, |file| {
            let image = file.image.map(Image::try_from).transpose()?;
            Ok((bounds::relative_path("file.path", &file.path)?, image))
        })?;
        ascending("files", files.iter().map(|(path, _)| path.as_slice()))?;
        Ok(Self { files })
    }
}

impl From<Change> for wire::Change {
    fn from(change: Change) -> Self {
        use wire::change::Change as Form;
        let (path, form) = match change {
            Change::Replace { path, old, new, all } => {
                (path, Form::Replace(wire::Replace { old: old.into(), new: new.into(), all }))
            }
            Change::Create { path, content } => (path, Form::Create(wire::Create { content: content.into() })),
            Change::Delete { path } => (path, Form::Delete(wire::Delete {})),
            Change::Rename { path, to } => (path, Form::Rename(wire::Rename { to: to.into() })),
            Change::Mode { path, mode } => (path, Form::Mode(wire::Mode { mode })),
            Change::Write { path, content, mode } => (path, Form::Write(wire::Image { content: content.into(), mode })),
        };
        Self { path: path.into(), change: Some(form) }
    }
}

impl TryFrom<wire::Change> for Change {
    type Error = WireError;

    fn try_from(change: wire::Change) -> Result<Self, WireError> {
        use wire::change::Change as Form;
        let path = bounds::relative_path("change.path", &change.path)?;
        Ok(match bounds::present("change", change.change)? {
            Form::Replace(replace) => Self::Replace {
                path,
                old: bounds::bytes("replace.old", &replace.old, MAX_FILE_BYTES)?,
                new: bounds::bytes("replace.new", &replace.new, MAX_FILE_BYTES)?,
                all: replace.all,
            },
            Form::Create(create) => {
                Self::Create { path, content: bounds::bytes("create.content", &create.content, MAX_FILE_BYTES)? }
            }
            Form::Delete(wire::Delete {}) => Self::Delete { path },
            Form::Rename(rename) => Self::Rename { path, to: bounds::relative_path("rename.to", &rename.to)? },
            Form::Mode(given) => Self::Mode { path, mode: mode(given.mode)? },
            Form::Write(image) => {
                let Image { content, mode } = image.try_into()?;
                Self::Write { path, content, mode }
            }
        })
    }
}

impl From<Stamp> for wire::Stamp {
    fn from(stamp: Stamp) -> Self {
        Self { sha256: stamp.sha256.as_bytes().to_vec().into(), bytes: stamp.bytes, mode: stamp.mode }
    }
}

impl TryFrom<wire::Stamp> for Stamp {
    type Error = WireError;

    fn try_from(stamp: wire::Stamp) -> Result<Self, WireError> {
        if stamp.bytes > MAX_FILE_BYTES as u64 {
            return Err(WireError::Form { field: "stamp.bytes", form: "at most MAX_FILE_BYTES" });
        }
        Ok(Self { sha256: bounds::digest("stamp.sha256", &stamp.sha256)?, bytes: stamp.bytes, mode: mode(stamp.mode)? })
    }
}

impl From<Expected> for wire::Expected {
    fn from(file: Expected) -> Self {
        Self { path: file.path.into(), pre: file.pre.map(Into::into), post: file.post.map(Into::into) }
    }
}

impl TryFrom<wire::Expected> for Expected {
    type Error = WireError;

    fn try_from(file: wire::Expected) -> Result<Self, WireError> {
        let file = Self {
            path: bounds::relative_path("expected.path", &file.path)?,
            pre: file.pre.map(Stamp::try_from).transpose()?,
            post: file.post.map(Stamp::try_from).transpose()?,
        };
        if file.pre == file.post {
            return Err(WireError::Form { field: "expected", form: "a change: before and after differ" });
        }
        Ok(file)
    }
}

impl From<EditPlan> for wire::EditPlan {
    fn from(plan: EditPlan) -> Self {
        Self {
            operation: plan.operation.to_string(),
            epoch: plan.epoch,
            workspace: plan.workspace.to_string(),
            changes: plan.changes.into_iter().map(Into::into).collect(),
            expected: plan.expected.into_iter().map(Into::into).collect(),
            protected_paths: plan.protected_paths.into_iter().map(Into::into).collect(),
            directories: plan.directories.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::EditPlan> for EditPlan {
    type Error = WireError;

    fn try_from(plan: wire::EditPlan) -> Result<Self, WireError> {
        let changes = bounds::list("changes", plan.changes, MAX_CHANGES, Change::try_from)?;
        if changes.is_empty() {
            return Err(WireError::Missing { field: "changes" });
        }
        together("changes", changes.iter().map(Change::carried))?;
        Ok(Self {
            operation: bounds::id("operation", &plan.operation)?,
            epoch: epoch(plan.epoch)?,
            workspace: bounds::id("workspace", &plan.workspace)?,
            changes,
            expected: expected(plan.expected)?,
            protected_paths: bounds::plan_list("protected_paths", plan.protected_paths, |path| {
                bounds::relative_path("protected_paths", &path)
            })?,
            directories: directories("directories", plan.directories)?,
        })
    }
}

impl From<EditedFile> for wire::EditedFile {
    fn from(file: EditedFile) -> Self {
        let expected = Expected { path: file.path, pre: file.pre, post: file.post };
        Self { file: Some(expected.into()), method: file.method.as_str().into() }
    }
}

impl TryFrom<wire::EditedFile> for EditedFile {
    type Error = WireError;

    fn try_from(file: wire::EditedFile) -> Result<Self, WireError> {
        let Expected { path, pre, post } = bounds::present("edited.file", file.file)?.try_into()?;
        Ok(Self { path, pre, post, method: bounds::word("edited.method", &file.method)? })
    }
}

impl From<Edited> for wire::EditReply {
    fn from(edited: Edited) -> Self {
        let made = edited.made.into_iter().map(Into::into).collect();
        Self { files: edited.files.into_iter().map(Into::into).collect(), made }
    }
}

impl TryFrom<wire::EditReply> for Edited {
    type Error = WireError;

    fn try_from(reply: wire::EditReply) -> Result<Self, WireError> {
        let files = bounds::list("files", reply.files, MAX_FILES, EditedFile::try_from)?;
        if files.is_empty() {
            return Err(WireError::Missing { field: "files" });
        }
        ascending("files", files.iter().map(|file| file.path.as_slice()))?;
        Ok(Self { files, made: directories("made", reply.made)? })
    }
}

impl From<Settle> for wire::SettleRequest {
    fn from(settle: Settle) -> Self {
        Self {
            operation: settle.operation.to_string(),
            epoch: settle.epoch,
            workspace: settle.workspace.to_string(),
            expected: settle.expected.into_iter().map(Into::into).collect(),
            directories: settle.directories.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::SettleRequest> for Settle {
    type Error = WireError;

    fn try_from(request: wire::SettleRequest) -> Result<Self, WireError> {
        Ok(Self {
            operation: bounds::id("operation", &request.operation)?,
            epoch: epoch(request.epoch)?,
            workspace: bounds::id("workspace", &request.workspace)?,
            expected: expected(request.expected)?,
            directories: directories("directories", request.directories)?,
        })
    }
}

impl From<Settled> for wire::SettleReply {
    fn from(settled: Settled) -> Self {
        use wire::settle_reply::Settled as Form;
        let form = match settled {
            Settled::Finished(edited) => Form::Finished(edited.into()),
            Settled::RolledBack => Form::RolledBack(wire::RolledBack {}),
            Settled::Undecided { evidence } => Form::Undecided(wire::Undecided { evidence: bounds::cut(evidence) }),
        };
        Self { settled: Some(form) }
    }
}

impl TryFrom<wire::SettleReply> for Settled {
    type Error = WireError;

    fn try_from(reply: wire::SettleReply) -> Result<Self, WireError> {
        use wire::settle_reply::Settled as Form;
        Ok(match bounds::present("settled", reply.settled)? {
            Form::Finished(edited) => Self::Finished(edited.try_into()?),
            Form::RolledBack(wire::RolledBack {}) => Self::RolledBack,
            Form::Undecided(undecided) => {
                Self::Undecided { evidence: bounds::text("evidence", undecided.evidence, MAX_SENTENCE_BYTES)? }
            }
        })
    }
}

fn mode(mode: u32) -> Result<u32, WireError> {
    if mode > MAX_MODE { Err(WireError::Form { field: "mode", form: "from 0000 to 0777" }) } else { Ok(mode) }
}

const fn epoch(epoch: u64) -> Result<u64, WireError> {
    if epoch == 0 { Err(WireError::Missing { field: "epoch" }) } else { Ok(epoch) }
}

fn expected(files: Vec<wire::Expected>) -> Result<Vec<Expected>, WireError> {
    let files = bounds::list("expected", files, MAX_FILES, Expected::try_from)?;
    if files.is_empty() {
        return Err(WireError::Missing { field: "expected" });
    }
    ascending("expected", files.iter().map(|file| file.path.as_slice()))?;
    Ok(files)
}

fn directories<P: AsRef<[u8]>>(field: &'static str, paths: Vec<P>) -> Result<Vec<Vec<u8>>, WireError> {
    let paths = bounds::list(field, paths, MAX_EDIT_DIRECTORIES, |path| bounds::relative_path(field, path.as_ref()))?;
    ascending(field, paths.iter().map(Vec::as_slice))?;
    Ok(paths)
}

/// Each path once: two images for one path would leave open which one counts.
fn ascending<'a>(field: &'static str, paths: impl Iterator<Item = &'a [u8]>) -> Result<(), WireError> {
    if paths.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(WireError::Form { field, form: "in order of path, each path once" })
    }
}

fn together(field: &'static str, sizes: impl Iterator<Item = usize>) -> Result<(), WireError> {
    let given = sizes.fold(0, usize::saturating_add);
    if given > MAX_EDIT_BYTES {
        return Err(WireError::TooLong { field, given, most: MAX_EDIT_BYTES });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
