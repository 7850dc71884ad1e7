//! Finds the content that a command would run from its workspace, reads each file once, and hashes what it
//! read: what is hashed is what is kept, whatever happens to the file meanwhile.

use std::{
    collections::BTreeMap,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    libc,
    sys::stat::fstat,
    unistd::read,
};
use salaam_core::{
    bridge::{CHUNK_BYTES, MAX_PINNED_BYTES},
    command::{Command, operands},
    digest::Digest,
};
use sha2::{Digest as _, Sha256};

use super::{Refusal, hold::HeldFile, memory, repository, workspace::Workspace};

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// In order of path.
    pub(super) files: Vec<HeldFile>,
    /// Something would run that is not among them.
    pub(super) unpinned: bool,
    /// Where the workspace's repository is, if that is outside.
    pub(super) git_outside: Option<String>,
}

/// Finds and reads; blocks on the file system, so not for the runtime's own threads.
pub(super) fn find(workspace: &Workspace, command: &Command) -> Result<Found, Refusal> {
    let operands = operands(command);
    let mut unpinned = operands.unseen;
    let mut files = BTreeMap::<PathBuf, HeldFile>::new();
    let mut left = MAX_PINNED_BYTES;
    for operand in operands.found {
        let opened = match resolve_settled(workspace, &operand.path) {
            Ok(opened) => opened,
            Err(Unbound::Nothing) => continue,
            Err(Unbound::Unpinned) => {
                unpinned = true;
                continue;
            }
            // Not `unpinned`: whoever replaces a script fast enough could choose that.
            Err(Unbound::Replaced) => {
                return Err(Refusal::Replaced(String::from_utf8_lossy(&operand.path).into_owned()));
            }
        };
        if let Some(known) = files.get_mut(&opened.path) {
            known.words.push(operand.path);
            continue;
        }
        match read_once(opened, operand.path, left)? {
            Some(file) => {
                left -= file.bytes;
                files.insert(file.path.clone(), file);
            }
            None => unpinned = true,
        }
    }
    let git_outside = repository::outside(&workspace.root, &workspace.path);
    Ok(Found { files: files.into_values().collect(), unpinned, git_outside })
}

struct Opened {
    file: OwnedFd,
    path: PathBuf,
    mode: u32,
}

enum Unbound {
    /// Nothing of the workspace runs: it is elsewhere.
    Nothing,
    /// Something of the workspace may run that cannot be held.
    Unpinned,
    /// What was opened had been replaced before it was looked at.
    Replaced,
}

/// Opens a word that another process may be replacing: the next look finds what replaced it.
fn resolve_settled(workspace: &Workspace, word: &[u8]) -> Result<Opened, Unbound> {
    for _ in 1..MOST_LOOKS {
        match resolve(workspace, word) {
            Err(Unbound::Replaced) => {}
            settled => return settled,
        }
    }
    resolve(workspace, word)
}

/// Looks at a file that is replaced each time; a build that writes it is done sooner.
const MOST_LOOKS: u32 = 32;

/// Opens a word as the command would: relative to the root, links inside followed.
fn resolve(workspace: &Workspace, word: &[u8]) -> Result<Opened, Unbound> {
    let path = Path::new(std::ffi::OsStr::from_bytes(word));
    let relative = if path.is_absolute() {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Unbound::Unpinned);
        }
        path.strip_prefix(&workspace.path).map_err(|_| Unbound::Nothing)?
    } else {
        path
    };
    if relative.as_os_str().is_empty() {
        return Err(Unbound::Nothing);
    }
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let open = |path: &Path, flags, resolve| {
        openat2(&workspace.root, path, OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve))
    };
    // A FIFO or a device must not be waited for; what is no regular file is not read at all.
    let reading = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match open(relative, reading, beneath) {
        Ok(file) => file,
        Err(Errno::EXDEV) => {
            // A link leads out of the root, or to it by its absolute name. Where it ends, says the kernel.
            let place =
                open(relative, OFlag::O_PATH, ResolveFlag::RESOLVE_NO_MAGICLINKS).map_err(|_| Unbound::Nothing)?;
            let end = name(&place).ok_or(Unbound::Replaced)?;
            let inside = end.strip_prefix(&workspace.path).map_err(|_| Unbound::Nothing)?;
            open(inside, reading, beneath | ResolveFlag::RESOLVE_NO_SYMLINKS).map_err(|_| Unbound::Unpinned)?
        }
        // Not there yet (a build makes it), or execute without read: it runs, and its bytes cannot be had.
        Err(_) => return Err(Unbound::Unpinned),
    };
    let stat = fstat(&file).map_err(|_| Unbound::Unpinned)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        // A FIFO, or a directory that an interpreter takes for a program.
        return Err(Unbound::Unpinned);
    }
    let path = name(&file).ok_or(Unbound::Replaced)?;
    if !path.starts_with(&workspace.path) {
        return Err(Unbound::Unpinned);
    }
    Ok(Opened { file, path, mode: stat.st_mode & 0o777 })
}

/// The path under which the kernel knows an open file now; `None` for one that was unlinked.
fn name(file: &OwnedFd) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    (!path.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(path)
}

/// Reads a file to its end into a sealed memfd while it hashes; `None` if there are more than `most` bytes.
fn read_once(opened: Opened, word: Vec<u8>, most: u64) -> Result<Option<HeldFile>, Refusal> {
    let failed = Refusal::kernel;
    let content = memory::open("salaam-bound").map_err(failed("making a memory file"))?;
    let mut hash = Sha256::new();
    let mut bytes = 0u64;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let got = read(&opened.file, &mut chunk).map_err(|e| failed("reading content to bind")(e.into()))?;
        let part = chunk.get(..got).unwrap_or_default();
        if part.is_empty() {
            break;
        }
        bytes += part.len() as u64;
        if bytes > most {
            return Ok(None);
        }
        hash.update(part);
        memory::append(&content, part).map_err(failed("keeping content to bind"))?;
    }
    memory::seal(&content).map_err(failed("sealing content to bind"))?;
    Ok(Some(HeldFile {
        path: opened.path,
        words: vec![word],
        content: Arc::new(content),
        sha256: Digest::from_bytes(hash.finalize().into()),
        bytes,
        mode: opened.mode,
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn workspace(name: &str) -> Workspace {
        let path = std::env::temp_dir().join(format!("salaam-prepare-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("bin")).unwrap();
        let root = OwnedFd::from(fs::File::open(&path).unwrap());
        Workspace::scratch(path, root)
    }

    fn paths(workspace: &Workspace, text: &str) -> (Vec<String>, bool) {
        let found = find(workspace, &Command::shell(text.into()).unwrap()).unwrap();
        let strip = |file: &HeldFile| file.path.strip_prefix(&workspace.path).unwrap().display().to_string();
        (found.files.iter().map(strip).collect(), found.unpinned)
    }

    #[test]
    fn what_runs_from_the_workspace_is_found_whatever_leads_to_it() {
        let workspace = workspace("links");
        let root = &workspace.path;
        fs::write(root.join("run.sh"), "echo 1").unwrap();
        std::os::unix::fs::symlink("run.sh", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("run.sh"), root.join("absolute")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", root.join("bin/sh")).unwrap();
        nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let absolute = format!("sh {}/run.sh", root.display());
        let results =
            ["sh run.sh", "./link", "sh absolute", &absolute, "sh none", "bin/sh -c x", "sh fifo", "sh /etc/passwd"]
                .map(|text| paths(&workspace, text));
        fs::remove_dir_all(root).unwrap();
        let run = (vec!["run.sh".to_owned()], false);
        let (nothing, unpinned) = ((Vec::new(), false), (Vec::new(), true));
        let expected = [&run, &run, &run, &run, &unpinned, &nothing, &unpinned, &nothing];
        assert_eq!(results.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_kept_is_what_was_read() {
        let workspace = workspace("kept");
        let script = workspace.path.join("run.sh");
        fs::write(&script, "echo before").unwrap();
        let found = find(&workspace, &Command::shell("sh run.sh".into()).unwrap()).unwrap();
        fs::write(&script, "echo after!").unwrap();
        let held = fs::read(format!("/proc/self/fd/{}", found.files[0].content.as_raw_fd())).unwrap();
        fs::remove_dir_all(&workspace.path).unwrap();
        assert_eq!(held, b"echo before");
        assert_eq!(found.files[0].sha256, Digest::of(b"echo before"));
    }
}
