//! Making a workspace usable for both accounts: group, group bits, setgid and a default ACL.
//!
//! This runs in a child that root started and that has become the service user with the work group
//! ([`become_service`]). Whoever can write in the workspace may exchange any name at any moment, so nothing is
//! done by name twice: each entry is opened once, beneath its parent's descriptor, not through a link and not
//! across a mount, is examined by that descriptor and is changed by that descriptor. What could lead out of
//! the workspace or widen a secret is left and listed.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{FileStat, Mode, SFlag, fstat},
    unistd::{Gid, Uid, fchownat, getegid, geteuid, setgroups, setresgid, setresuid},
};
use serde::{Deserialize, Serialize};

use super::SetupError;
use crate::host::{account, acl, group_gid};

/// Deeper trees are listed and left: each level holds a descriptor open.
const MAX_DEPTH: usize = 200;

/// How many entries that were left are named; all are counted.
const MAX_LISTED: usize = 100;

/// Above so many changes a person is asked.
pub(crate) const MANY_CHANGES: u64 = 10_000;

/// What to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The workspace; its own links are resolved.
    pub path: PathBuf,
    /// The work group.
    pub group: u32,
    /// Whether to change anything, or only to count.
    pub apply: bool,
}

/// What was, or would be, changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The workspace after resolving links.
    pub path: PathBuf,
    /// Entries changed.
    pub changes: u64,
    /// Entries left as they are.
    pub left: u64,
    /// The first of them, each with the reason.
    pub listed: Vec<(String, String)>,
}

/// Gives root up for good: this process becomes the service user, with its own group and the work group and no
/// other, and can gain no rights back.
pub fn become_service(uid: u32, gid: u32, group: u32) -> Result<(), SetupError> {
    let become_it = || -> nix::Result<()> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        setgroups(&[gid, Gid::from_raw(group)])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        nix::sys::prctl::set_no_new_privs()?;
        nix::unistd::chdir("/")?;
        // A second look at what the kernel made of it: a uid that did not take would walk as root.
        if geteuid() == uid && getegid() == gid && !uid.is_root() { Ok(()) } else { Err(Errno::EPERM) }
    };
    become_it().map_err(|e| SetupError::io("cannot become the service user in", "/")(e.into()))
}

/// `salaam host fit-workspace`: started by root, becomes the service user, then walks.
pub fn fit_as(service_user: &str, group: &str, path: &Path, apply: bool) -> Result<Report, SetupError> {
    let absent = |who: &str, why: &str| SetupError::Account {
        who: who.to_owned(),
        why: why.to_owned(),
        fix: "`salaam host setup` makes it".into(),
    };
    let service = account(service_user).ok_or_else(|| absent(service_user, "there is no such account"))?;
    let group = group_gid(group).ok_or_else(|| absent(group, "there is no such group"))?;
    become_service(service.uid, service.gid, group)?;
    fit(&Fit { path: path.to_owned(), group, apply })
}

/// Walks the workspace as the account that this process has.
pub fn fit(fit: &Fit) -> Result<Report, SetupError> {
    let real = fit.path.canonicalize().map_err(SetupError::io("cannot resolve", &fit.path))?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let root = openat2(nix::fcntl::AT_FDCWD, &real, how);
    let root = root.map_err(|e| SetupError::io("cannot open", &real)(e.into()))?;
    let stat = fstat(&root).map_err(|e| SetupError::io("cannot examine", &real)(e.into()))?;
    let uid = geteuid().as_raw();
    if stat.st_uid != uid {
        let why = format!("it belongs to uid {}, not to the service user (uid {uid})", stat.st_uid);
        let fix = format!("`chown {uid} {}` if the service may have it", real.display());
        return Err(SetupError::Path { path: real, why, fix });
    }
    let report = Report { path: real, ..Report::default() };
    let mut walk = Walk { uid, group: fit.group, apply: fit.apply, report };
    walk.directory(&root, &stat, Path::new("."), 0);
    Ok(walk.report)
}

struct Walk {
    uid: u32,
    group: u32,
    apply: bool,
    report: Report,
}

impl Walk {
    /// Fits `directory` (open for reading) and everything in it. `at` is for messages only.
    fn directory(&mut self, directory: &OwnedFd, stat: &FileStat, at: &Path, depth: usize) {
        if let Err(e) = self.fit_directory(directory, stat) {
            self.leave(at, &format!("cannot be changed: {e}"));
        }
        if depth >= MAX_DEPTH {
            return self.leave(at, "lies too deep; its content is left");
        }
        let names = match names(directory) {
            Ok(names) => names,
            Err(e) => return self.leave(at, &format!("cannot be listed: {e}")),
        };
        for name in names {
            let inside = at.join(std::ffi::OsStr::new(&*name.to_string_lossy()));
            self.entry(directory, &name, &inside, depth);
        }
    }

    fn entry(&mut self, parent: &OwnedFd, name: &CStr, at: &Path, depth: usize) {
        let entry = match beneath(parent, name, OFlag::O_PATH) {
            Ok(entry) => entry,
            Err(Errno::EXDEV) => return self.leave(at, "is on another mount"),
            Err(Errno::ENOENT) => return,
            Err(e) => return self.leave(at, &format!("cannot be opened: {e}")),
        };
        let stat = match fstat(&entry) {
            Ok(stat) => stat,
            Err(e) => return self.leave(at, &format!("cannot be examined: {e}")),
        };
        match judge(&stat, self.uid, self.group) {
            Judgement::Ignore => {}
            Judgement::Leave(why) => self.leave(at, why),
            Judgement::File => {
                if let Err(e) = self.fit_file(&entry, &stat) {
                    self.leave(at, &format!("cannot be changed: {e}"));
                }
            }
            // Opened again from its own descriptor: the same object, whatever its name stands for by now.
            Judgement::Directory => match openat(&entry, c".", READ_DIRECTORY, Mode::empty()) {
                Ok(directory) => self.directory(&directory, &stat, at, depth + 1),
                Err(e) => self.leave(at, &format!("cannot be opened: {e}")),
            },
        }
    }

    fn fit_file(&mut self, file: &OwnedFd, stat: &FileStat) -> io::Result<()> {
        let mode = stat.st_mode & 0o7777;
        // X: what its owner may execute.
        let wanted = mode | 0o060 | if mode & 0o100 != 0 { 0o010 } else { 0 };
        if stat.st_gid == self.group && mode == wanted {
            return Ok(());
        }
        self.report.changes += 1;
        if self.apply { self.change(file, stat, wanted) } else { Ok(()) }
    }

    fn fit_directory(&mut self, directory: &OwnedFd, stat: &FileStat) -> io::Result<()> {
        let mode = stat.st_mode & 0o7777;
        let wanted = mode | 0o2070;
        let old = salaam_sys::xattr::get(directory, acl::DEFAULT, acl::MAX_BYTES)?;
        let base = match &old {
            // What others have of the directory they get of new files; its owner and group get all.
            None => acl::Acl::of_mode(0o770 | (mode & 0o007)),
            Some(bytes) => acl::Acl::parse(bytes).ok_or(io::Error::from(io::ErrorKind::InvalidData))?,
        };
        let new = base.shared_with(self.group).to_bytes();
        if stat.st_gid == self.group && mode == wanted && old.as_ref() == Some(&new) {
            return Ok(());
        }
        self.report.changes += 1;
        if !self.apply {
            return Ok(());
        }
        // Where an ACL stands, the group bits of the mode are its mask, and raising them alone would wake what the
        // mask has cut: the group gets an entry of its own first.
        if let Some(list) = acl::of(directory)?.filter(acl::Acl::is_extended) {
            let list = list.with_group(self.group, acl::ALL);
            salaam_sys::xattr::set(directory, acl::ACCESS, &list.to_bytes())?;
        }
        self.change(directory, stat, wanted)?;
        salaam_sys::xattr::set(directory, acl::DEFAULT, &new)
    }

    fn change(&self, object: &OwnedFd, stat: &FileStat, mode: u32) -> io::Result<()> {
        if stat.st_gid != self.group {
            fchownat(object, c"", None, Some(Gid::from_raw(self.group)), AtFlags::AT_EMPTY_PATH)?;
        }
        // fchmod(2) refuses O_PATH descriptors; the magic link in /proc leads to exactly this object.
        let link = format!("/proc/self/fd/{}", object.as_fd().as_raw_fd());
        std::fs::set_permissions(link, std::os::unix::fs::PermissionsExt::from_mode(mode))
    }

    fn leave(&mut self, at: &Path, why: &str) {
        self.report.left += 1;
        if self.report.listed.len() < MAX_LISTED {
            self.report.listed.push((at.display().to_string(), why.to_owned()));
        }
    }
}

/// What is done with an entry.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    File,
    Directory,
    /// A link: it has no rights of its own, and what it names is another entry or none of ours.
    Ignore,
    Leave(&'static str),
}

fn judge(stat: &FileStat, uid: u32, group: u32) -> Judgement {
    let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    let mode = stat.st_mode & 0o7777;
    let (file, directory) = (kind == SFlag::S_IFREG, kind == SFlag::S_IFDIR);
    if kind == SFlag::S_IFLNK {
        Judgement::Ignore
    } else if !file && !directory {
        Judgement::Leave("is neither a file nor a directory")
    } else if stat.st_uid != uid {
        // What the tools user made through the default ACL is as it should be; a directory of its may hold more.
        match (stat.st_gid == group, file) {
            (true, true) if mode & 0o060 == 0o060 => Judgement::Ignore,
            (true, false) if mode & 0o2070 == 0o2070 => Judgement::Directory,
            (true | false, true | false) => Judgement::Leave("belongs to somebody else"),
        }
    } else if file && stat.st_nlink > 1 {
        Judgement::Leave("has several names, of which some may lie outside")
    } else if file && mode & 0o6000 != 0 {
        Judgement::Leave("is set-uid or set-gid")
    } else if mode & 0o077 == 0 {
        Judgement::Leave("is private to the service user")
    } else if directory {
        Judgement::Directory
    } else {
        Judgement::File
    }
}

const READ_DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Opens one entry of `parent`: not through a link, not across a mount, not out.
fn beneath(parent: &OwnedFd, name: &CStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    openat2(parent, name, OpenHow::new().flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(resolve))
}

fn names(directory: &OwnedFd) -> nix::Result<Vec<CString>> {
    let listing = Dir::from_fd(openat(directory, c".", READ_DIRECTORY, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in listing {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}
