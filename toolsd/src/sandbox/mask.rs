//! What is hidden below a read path: credentials by their names, and what is no file, through which somebody outside
//! could be talked to although the mount is read-only.
//!
//! Names are looked for by breadth over all read paths, up to a bound; what lies deeper is not hidden, and the account's
//! own rights decide. A look is kept as long as no directory that it read has changed.

use std::{
    collections::VecDeque,
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    libc,
    sys::stat::{FileStat, fstat, fstatat},
};
use salaam_core::{credential, protect};

use super::paths::{PathRefusal, ReadPath};
use crate::beneath;

/// Directories that one look reads; asking each again whether it has changed takes a millisecond.
const MAX_DIRECTORIES: usize = 1024;
/// Names that one look reads.
const MAX_NAMES: usize = 32_768;
/// What is hidden below all read paths together; each is a mount.
const MAX_HIDDEN: usize = 32;
/// A directory that changed that short before it was read may change again within the same tick of its clock.
const SETTLES_WITHIN: i64 = 2;

/// Something that is covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    /// Its absolute path.
    pub path: PathBuf,
    /// Covered by an empty directory, or by an empty file.
    pub is_directory: bool,
}

/// The look that was taken last.
#[derive(Debug, Default)]
pub struct Masks(Mutex<Option<Looked>>);

#[derive(Debug)]
struct Looked {
    /// Device and inode of every read path.
    of: Vec<(u64, u64)>,
    directories: Vec<(usize, PathBuf, Stamp)>,
    hidden: Vec<Hidden>,
}

/// When a directory was changed last, and which it is.
#[derive(Debug, PartialEq, Eq)]
struct Stamp(u64, i64, i64);

impl Stamp {
    fn of(stat: &FileStat) -> Self {
        Self(stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
    }
}

impl Masks {
    /// What is to be hidden below `paths`.
    pub fn over(&self, paths: &[ReadPath]) -> Result<Vec<Hidden>, PathRefusal> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let identity = |path: &ReadPath| fstat(&path.descriptor).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let of: Vec<_> = paths.iter().map(identity).collect();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.of == of && last.holds(paths)) {
            return Ok(last.hidden.clone());
        }
        let (now, _) = salaam_sys::file::change_clock();
        let mut look = Look { paths, directories: Vec::new(), hidden: Vec::new(), names: 0 };
        look.take()?;
        let Look { directories, hidden, .. } = look;
        let settled = directories.iter().all(|(_, _, Stamp(_, changed, _))| *changed < now - SETTLES_WITHIN);
        *last = settled.then(|| Looked { of, directories, hidden: hidden.clone() });
        Ok(hidden)
    }
}

impl Looked {
    fn holds(&self, paths: &[ReadPath]) -> bool {
        self.directories.iter().all(|(number, path, stamp)| {
            let Some(root) = paths.get(*number) else { return false };
            let now = match path.as_os_str().is_empty() {
                true => fstat(&root.descriptor),
                false => fstatat(&root.descriptor, path, AtFlags::AT_SYMLINK_NOFOLLOW),
            };
            now.is_ok_and(|now| Stamp::of(&now) == *stamp)
        })
    }
}

struct Look<'a> {
    paths: &'a [ReadPath],
    directories: Vec<(usize, PathBuf, Stamp)>,
    hidden: Vec<Hidden>,
    names: usize,
}

impl Look<'_> {
    fn take(&mut self) -> Result<(), PathRefusal> {
        let mut waiting: VecDeque<(usize, PathBuf)> =
            (0..self.paths.len()).map(|number| (number, PathBuf::new())).collect();
        while let Some((number, path)) = waiting.pop_front() {
            if self.directories.len() == MAX_DIRECTORIES || self.names >= MAX_NAMES {
                return Ok(());
            }
            let Some(root) = self.paths.get(number) else { continue };
            let (stat, entries) = match read(root.descriptor.as_fd(), &path) {
                Ok(read) => read,
                Err(errno) if is_closed_to_commands(errno) => continue,
                Err(errno) => return Err(PathRefusal::Open { path: root.path.join(path), errno }),
            };
            self.names += entries.len();
            self.directories.push((number, path.clone(), Stamp::of(&stat)));
            for (name, kind) in entries {
                let inner = path.join(OsStr::from_bytes(name.to_bytes()));
                if credential::is_place(root.path.join(&path).as_os_str().as_bytes(), name.to_bytes()) {
                    self.hide(root, &inner)?;
                    continue;
                }
                match kind {
                    Some(Type::Directory) => waiting.push_back((number, inner)),
                    Some(Type::Socket | Type::Fifo | Type::CharacterDevice | Type::BlockDevice) => {
                        self.hide(root, &inner)?
                    }
                    Some(Type::File | Type::Symlink) => {}
                    // A file system that does not say in its listing what a name is.
                    None => match self.kind(root, &inner)? {
                        libc::S_IFDIR => waiting.push_back((number, inner)),
                        libc::S_IFREG | libc::S_IFLNK => {}
                        _ => self.hide(root, &inner)?,
                    },
                }
            }
        }
        Ok(())
    }

    /// The kind of what is there; that of a plain file where nothing is any more.
    fn kind(&self, root: &ReadPath, path: &Path) -> Result<libc::mode_t, PathRefusal> {
        match fstatat(&root.descriptor, path, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(beneath::kind(&stat)),
            Err(errno) if is_closed_to_commands(errno) => Ok(libc::S_IFREG),
            Err(errno) => Err(PathRefusal::Open { path: root.path.join(path), errno }),
        }
    }

    fn hide(&mut self, root: &ReadPath, path: &Path) -> Result<(), PathRefusal> {
        let at = |path: &Path| fstatat(&root.descriptor, path, AtFlags::AT_SYMLINK_NOFOLLOW);
        let mut stat = match at(path) {
            Ok(stat) => stat,
            Err(errno) if is_closed_to_commands(errno) => return Ok(()),
            Err(errno) => return Err(PathRefusal::Open { path: root.path.join(path), errno }),
        };
        let mut path = path.to_owned();
        if beneath::kind(&stat) == libc::S_IFLNK {
            // What it leads to is here under another name, or not shown at all.
            let base = path.parent().unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
            let target = beneath::link(root.descriptor.as_fd(), &path).ok().flatten();
            let target = target.and_then(|target| protect::inside(root.path.as_os_str().as_bytes(), &base, &target));
            let Some(target) = target.map(|target| PathBuf::from(OsStr::from_bytes(&target))) else { return Ok(()) };
            match at(&target) {
                Ok(found) if beneath::kind(&found) != libc::S_IFLNK => (path, stat) = (target, found),
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        let hidden = Hidden { path: root.path.join(path), is_directory: beneath::kind(&stat) == libc::S_IFDIR };
        if self.hidden.len() == MAX_HIDDEN {
            return Err(PathRefusal::Credential { path: root.path.clone(), credential: hidden.path });
        }
        if !self.hidden.contains(&hidden) {
            self.hidden.push(hidden);
        }
        Ok(())
    }
}

/// Whether what gave this error shows a command nothing either: it is gone, or no directory, or may not be read by the
/// account that both have. Any other error, a want of descriptors or a broken disk, says nothing of what commands see.
const fn is_closed_to_commands(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES | Errno::EPERM)
}

type Entries = Vec<(CString, Option<Type>)>;

fn read(root: BorrowedFd<'_>, path: &Path) -> nix::Result<(FileStat, Entries)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
    let opened = match path.as_os_str().is_empty() {
        true => beneath::open(root, path, flags)?,
        false => beneath::open_over_mounts(root, path, flags)?,
    };
    let stat = fstat(&opened)?;
    let mut directory = Dir::from_fd(opened)?;
    let entries = directory.iter().take(MAX_NAMES);
    let entries = entries.map(|entry| entry.map(|entry| (entry.file_name().to_owned(), entry.file_type())));
    let entries: Vec<_> = entries.collect::<nix::Result<_>>()?;
    let plain = |(name, _): &(CString, Option<Type>)| !matches!(name.to_bytes(), b"." | b"..");
    Ok((stat, entries.into_iter().filter(plain).collect()))
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;

    fn grant(path: &Path) -> ReadPath {
        ReadPath { path: path.to_owned(), descriptor: Arc::new(fs::File::open(path).unwrap().into()), content: None }
    }

    #[test]
    fn credentials_and_what_is_no_file_are_hidden_also_when_they_are_made_later() {
        let root = std::env::temp_dir().join(format!("salaam-mask-{}", std::process::id()));
        for directory in ["a/.ssh", "a/b/.CONFIG/gh", "plain/registry", "data"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["a/.NetRC", "a/b/.cargo-credentials", "plain/registry/x", "data/token"] {
            fs::write(root.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("../data/token", root.join("plain/.npmrc")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("plain/.pypirc")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("plain/sock")).unwrap();
        let masks = Masks::default();
        let over = || {
            let mut found: Vec<_> = masks.over(&[grant(&root)]).unwrap();
            found.sort_by(|a, b| a.path.cmp(&b.path));
            let name = |hidden: Hidden| {
                (hidden.path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(), hidden.is_directory)
            };
            found.into_iter().map(name).collect::<Vec<_>>()
        };
        let first = over();
        // As if all had lain there for long.
        std::thread::sleep(std::time::Duration::from_millis(3100));
        let again = over();
        fs::write(root.join("a/b/.git-credentials"), "x").unwrap();
        let later = over();
        fs::remove_dir_all(&root).unwrap();
        let expected = [
            ("a/.NetRC", false),
            ("a/.ssh", true),
            ("a/b/.CONFIG/gh", true),
            ("data/token", false),
            ("plain/sock", false),
        ];
        let expected: Vec<_> = expected.map(|(path, directory)| (path.to_owned(), directory)).into();
        assert_eq!((&first, &again), (&expected, &expected));
        assert_eq!(later.len(), expected.len() + 1, "{later:?}");
    }

    #[test]
    fn more_credentials_than_can_be_hidden_refuse_the_path() {
        let root = std::env::temp_dir().join(format!("salaam-masks-{}", std::process::id()));
        for number in 0..=MAX_HIDDEN {
            fs::create_dir_all(root.join(format!("{number}/.ssh"))).unwrap();
        }
        let refused = Masks::default().over(&[grant(&root)]);
        fs::remove_dir_all(&root).unwrap();
        assert!(matches!(refused, Err(PathRefusal::Credential { .. })), "{refused:?}");
    }

    #[test]
    fn only_what_commands_cannot_see_either_may_stay_unread() {
        for errno in [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::EACCES, Errno::EPERM] {
            assert!(is_closed_to_commands(errno), "{errno}");
        }
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::EIO, Errno::ENOMEM, Errno::ESTALE, Errno::EINTR] {
            assert!(!is_closed_to_commands(errno), "{errno}");
        }
    }
}
