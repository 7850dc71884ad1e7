//! One file of an edit on disk: its name, the temporary name beside it, and the moves between the two.
//!
//! Every move is a rename that cannot overwrite: an exchange, or one that refuses a name that is taken.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat, renameat2},
    sys::stat::{Mode, fstat},
    unistd::{UnlinkatFlags, unlinkat},
};
use salaam_core::{
    edit::{Expected, Stamp},
    id::OperationId,
};

use super::{
    Refusal,
    attributes::Attributes,
    content,
    decide::{Kind, Seen, Standing, standing},
    place::{Directory, Entry, Identity, beneath, look, split},
};

/// What all temporary names begin with. No edit touches a path with such a name in it.
pub(super) const RESERVED: &[u8] = b".salaam-";

/// The temporary name beside the file with that number.
pub(super) fn temporary(operation: OperationId, number: usize) -> OsString {
    format!(".salaam-{operation}-{number}").into()
}

/// One file of an edit.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) path: PathBuf,
    /// Absent: it is not there, so nothing of the edit is.
    pub(super) directory: Option<Arc<Directory>>,
    pub(super) temporary: OsString,
    pub(super) kind: Kind,
    /// Whether the temporary name is, or may be, this edit's doing. Nothing else is ever touched.
    pub(super) ours: bool,
    /// The new file, held so that its inode number names no other.
    new: Option<Held>,
    pre: Option<Stamp>,
    post: Option<Stamp>,
}

impl Slot {
    /// The slot of a file with that number; `None` where nothing is to be done.
    pub(super) fn new(
        operation: OperationId,
        number: usize,
        file: &Expected,
        directory: Option<Arc<Directory>>,
    ) -> Option<Self> {
        let kind = match (&file.pre, &file.post) {
            (None, None) => return None,
            (Some(_), None) => Kind::Delete,
            (None, Some(_)) => Kind::Create,
            (Some(pre), Some(post)) if pre == post => return None,
            (Some(_), Some(_)) => Kind::Replace,
        };
        Some(Self {
            path: PathBuf::from(OsStr::from_bytes(&file.path)),
            directory,
            temporary: temporary(operation, number),
            kind,
            ours: false,
            new: None,
            pre: file.pre,
            post: file.post,
        })
    }

    pub(super) fn name(&self) -> &OsStr {
        split(&self.path).1
    }

    /// Where the temporary name is, relative to the root.
    pub(super) fn beside(&self) -> PathBuf {
        split(&self.path).0.join(&self.temporary)
    }

    fn directory(&self) -> Result<&Directory, Refusal> {
        self.directory
            .as_deref()
            .ok_or_else(|| Refusal::Unreachable { path: self.path.clone(), why: "its directory is gone" })
    }

    /// How it stands, and whether something lies beside it.
    pub(super) fn observe(&self) -> Result<(Standing, bool), Refusal> {
        let Some(directory) = &self.directory else {
            return Ok((standing(self.kind, Seen::Absent, Seen::Absent), false));
        };
        let at = self.seen(directory, self.name()).map_err(Refusal::kernel("looking at", &self.path))?;
        let beside = if self.ours {
            self.seen(directory, &self.temporary).map_err(Refusal::kernel("looking at", self.beside()))?
        } else {
            Seen::Absent
        };
        Ok((standing(self.kind, at, beside), beside != Seen::Absent))
    }

    fn seen(&self, directory: &Directory, name: &OsStr) -> Result<Seen, Errno> {
        let file = match look(directory, name)? {
            Entry::Absent => return Ok(Seen::Absent),
            Entry::File(file) => file,
            Entry::Other(_) => return Ok(Seen::Foreign),
        };
        let Some((sha256, bytes)) = content::digest(&file.fd)? else { return Ok(Seen::Foreign) };
        let stamp = Some(Stamp { sha256, bytes, mode: file.mode() });
        Ok(if stamp == self.post {
            Seen::New
        } else if stamp == self.pre {
            Seen::Old
        } else {
            Seen::Foreign
        })
    }

    /// Group and ACL of the old file that lies beside.
    pub(super) fn attributes_beside(&self) -> Result<Option<Attributes>, Refusal> {
        match look(self.directory()?, &self.temporary).map_err(Refusal::kernel("looking at", self.beside()))? {
            Entry::File(file) => Attributes::of(&file, &self.path).map(Some),
            Entry::Absent | Entry::Other(_) => Ok(None),
        }
    }

    /// Makes the temporary name. `ours` is set before, since a call that fails may still have done it.
    pub(super) fn stage(
        &mut self,
        write: impl FnOnce(&mut std::fs::File) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let beside = self.beside();
        let directory = self.directory()?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(directory, self.temporary.as_os_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let made = made.map_err(|errno| taken(errno, "making", beside.clone()))?;
        self.ours = true;
        self.new = hold(self.directory()?, &self.temporary).map_err(Refusal::kernel("looking at", beside))?;
        write(&mut std::fs::File::from(made))
    }

    /// Puts the new state in place; what was there, if anything, comes to lie beside.
    pub(super) fn swap(&mut self) -> Result<(), Refusal> {
        let moved = match self.kind {
            Kind::Replace => self.rename(self.temporary.as_os_str(), self.name(), RenameFlags::RENAME_EXCHANGE),
            Kind::Create => self.rename(self.temporary.as_os_str(), self.name(), RenameFlags::RENAME_NOREPLACE),
            Kind::Delete => {
                let moved = self.rename(self.name(), self.temporary.as_os_str(), RenameFlags::RENAME_NOREPLACE);
                self.ours = moved.is_ok();
                moved
            }
        };
        moved.map_err(|errno| match (self.kind, errno) {
            (Kind::Replace | Kind::Delete, Errno::ENOENT) => self.stale("it is gone"),
            (Kind::Create, Errno::EEXIST) => self.stale("it exists now"),
            (Kind::Delete, Errno::EEXIST) => Refusal::NameTaken(self.beside()),
            (_, errno) => Refusal::kernel("swapping", &self.path)(errno),
        })
    }

    /// Takes the new state away again, where the standing says that it is there; what then lies beside may go.
    pub(super) fn swap_back(&self) -> Result<(), Refusal> {
        let failed = |errno| Refusal::kernel("taking back", &self.path)(errno);
        let (name, temporary) = (self.name(), self.temporary.as_os_str());
        match self.kind {
            Kind::Delete => self.rename(temporary, name, RenameFlags::RENAME_NOREPLACE).map_err(failed),
            Kind::Create => {
                self.rename(name, temporary, RenameFlags::RENAME_NOREPLACE).map_err(failed)?;
                if self.seen(self.directory()?, temporary).map_err(failed)? == Seen::New {
                    return Ok(());
                }
                // Between the look and the move somebody wrote into it or put another in its place.
                self.rename(temporary, name, RenameFlags::RENAME_NOREPLACE).map_err(failed)?;
                Err(self.stale("it changed while the edit was taken back"))
            }
            Kind::Replace => self.exchange_back(),
        }
    }

    /// Exchanges the old file back. Whoever replaces the file by rename meanwhile is followed: what was put in
    /// place last is what stands in the end, and what it took the place of lies beside.
    fn exchange_back(&self) -> Result<(), Refusal> {
        let failed = |errno| Refusal::kernel("taking back", &self.path)(errno);
        let directory = self.directory()?;
        let at = |name| hold(directory, name).map_err(failed);
        let (mut newest, mut older) = (at(&self.temporary)?, at(self.name())?);
        if self.new.is_some() && !same(&older, &self.new) {
            // Replaced since it was looked at: theirs stands already.
            return Ok(());
        }
        for round in 0..MOST_ROUNDS {
            match self.rename(&self.temporary, self.name(), RenameFlags::RENAME_EXCHANGE) {
                Ok(()) => {}
                // Somebody removed the file: that stands.
                Err(Errno::ENOENT) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            }
            let displaced = at(&self.temporary)?;
            if same(&displaced, &older) {
                if round > 0 || self.seen(directory, &self.temporary).map_err(failed)? == Seen::New {
                    return Ok(());
                }
                // It is our file, and somebody has written into it.
                self.rename(&self.temporary, self.name(), RenameFlags::RENAME_EXCHANGE).map_err(failed)?;
                return Err(self.stale("somebody wrote into it while the edit was taken back"));
            }
            (older, newest) = (newest, displaced);
        }
        drop(newest);
        Err(self.stale("it is being replaced all the time"))
    }

    /// Whether the new file was put in place and somebody has replaced or removed it since: then theirs stands,
    /// and what lies beside is what they would have replaced without the edit.
    pub(super) fn is_superseded(&self) -> Result<bool, Refusal> {
        let (Some(new), Some(directory)) = (&self.new, &self.directory) else { return Ok(false) };
        let is_new = |name: &OsStr| -> Result<bool, Refusal> {
            let there = hold(directory, name).map_err(Refusal::kernel("looking at", &self.path))?;
            Ok(there.is_some_and(|there| there.identity == new.identity))
        };
        Ok(!is_new(self.name())? && !is_new(&self.temporary)?)
    }

    /// Removes what lies beside.
    pub(super) fn clear(&self) -> Result<(), Refusal> {
        match unlinkat(self.directory()?, self.temporary.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(Refusal::kernel("removing", self.beside())(errno)),
        }
    }

    pub(super) fn stale(&self, what: &'static str) -> Refusal {
        Refusal::Stale { path: self.path.clone(), what }
    }

    fn rename(&self, from: &OsStr, to: &OsStr, flags: RenameFlags) -> Result<(), Errno> {
        let directory = self.directory.as_deref().ok_or(Errno::ENOENT)?;
        renameat2(directory, from, directory, to, flags)
    }
}

/// Whatever has a name, held: as long as it is, no other object gets its inode number.
#[derive(Debug)]
struct Held {
    _place: OwnedFd,
    identity: Identity,
}

fn hold(directory: &Directory, name: &OsStr) -> Result<Option<Held>, Errno> {
    match beneath(directory, Path::new(name), OFlag::O_PATH | OFlag::O_NOFOLLOW) {
        Ok(place) => {
            let identity = Identity::from(&fstat(&place)?);
            Ok(Some(Held { _place: place, identity }))
        }
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn same(one: &Option<Held>, other: &Option<Held>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.identity == other.identity,
        (Some(_) | None, _) => false,
    }
}

/// Exchanges until a program that replaces its file as fast as it can is caught between two replacements.
const MOST_ROUNDS: usize = 1000;

/// A name that must be free.
pub(super) fn taken(errno: Errno, attempted: &'static str, path: PathBuf) -> Refusal {
    if errno == Errno::EEXIST { Refusal::NameTaken(path) } else { Refusal::kernel(attempted, path)(errno) }
}

/// Whether anything has that name.
pub(super) fn exists(directory: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
    Ok(!matches!(look(directory, name)?, Entry::Absent))
}

/// Makes renames and removals in a directory last through a loss of power.
pub(super) fn sync(directory: &Directory, path: &Path) -> Result<(), Refusal> {
    nix::unistd::fsync(directory).map_err(Refusal::kernel("syncing the directory of", path))
}
