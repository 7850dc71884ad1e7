//! One service per state directory, by the kernel's word.
//!
//! STATE/lock carries two locks on different bytes. The lock that counts is an open file description lock: it ends
//! with the process, however that dies, and closing another descriptor of the file does not drop it. The other is
//! a POSIX lock, kept only because the kernel tells its holder's pid. What stands in the file (pid, version) is for
//! people and messages; a stale text never blocks a start. The file is never removed: two services could then
//! hold locks on two files of one name. This form is fixed, so that any version finds any other.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc::{self, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK},
};
use salaam_core::check::Check;
use serde::{Deserialize, Serialize};

/// The byte of the lock that counts.
const EXCLUSION: i64 = 0;
/// The byte of the lock that names a pid.
const IDENTITY: i64 = 1;
/// Far above what we write; what is longer is not ours and is not read.
const MAX_TEXT_BYTES: u64 = 4096;

/// The lock, held until this is dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

/// Who holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, from the kernel; absent if it lives in a pid namespace that cannot be seen from here.
    pub pid: Option<i32>,
    /// The version that it wrote down, if it is the one that wrote.
    pub version: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another service")?;
        match (self.pid, &self.version) {
            (Some(pid), Some(version)) => write!(f, " (pid {pid}, version {version})"),
            (Some(pid), None) => write!(f, " (pid {pid})"),
            (None, _) => f.write_str(" (its pid cannot be seen from here)"),
        }
    }
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another service has it.
    #[error("{holder} has the state directory {}", state.display())]
    Held {
        /// The directory, links resolved.
        state: PathBuf,
        /// Who.
        holder: Holder,
    },
    /// The lock file is not usable.
    #[error("could not {attempted} {path}: {source}")]
    File {
        /// What was attempted.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl LockError {
    /// The failed start check for this error: `state-locked`, with who holds it.
    pub fn to_check(&self) -> Check {
        let fix = match self {
            Self::Held { .. } => "salaam service status shows the service that runs; salaam service stop ends it",
            Self::File { .. } => "make the lock file the service user's own, 0600, or remove it while no service runs",
        };
        Check::fail("state-locked", self.to_string(), fix)
    }
}

/// What is written into the lock file.
#[derive(Serialize, Deserialize)]
struct Text {
    pid: i32,
    version: String,
}

impl StateLock {
    /// Takes the lock of `state_dir`, links resolved, or says who has it. At once, without waiting.
    pub fn acquire(state_dir: &Path) -> Result<Self, LockError> {
        let (state, path) = places(state_dir)?;
        let fail = |attempted| {
            let path = path.clone();
            move |source| LockError::File { attempted, path, source }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
            .open(&path)
            .map_err(fail("open"))?;
        refuse_unsafe_file(&file).map_err(fail("use"))?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&range(EXCLUSION))) {
            Ok(_) => {}
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
                // Free again by now: whoever had it has just gone, and the next attempt will say so.
                let holder = holder_of(&file).map_err(fail("ask for the holder of"))?;
                return Err(LockError::Held { state, holder: holder.unwrap_or(Holder { pid: None, version: None }) });
            }
            Err(errno) => return Err(fail("lock")(errno.into())),
        }
        fcntl(&file, FcntlArg::F_SETLK(&range(IDENTITY))).map_err(|errno| fail("lock")(errno.into()))?;
        write_text(&file).map_err(fail("write"))?;
        Ok(Self { _file: file })
    }

    /// Who holds the lock of `state_dir`; `None` = nobody. Asks the kernel and takes nothing. A caller that means
    /// to signal the pid opens a pidfd, asks again, and signals through the pidfd if the answer is the same.
    ///
    /// Must not be called by the process that holds the lock: closing a second descriptor would drop the lock
    /// that tells its pid.
    pub fn holder(state_dir: &Path) -> Result<Option<Holder>, LockError> {
        let (_, path) = places(state_dir)?;
        let fail = |source| LockError::File { attempted: "ask for the holder of", path: path.clone(), source };
        let file = match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(fail(source)),
        };
        holder_of(&file).map_err(fail)
    }
}

fn places(state_dir: &Path) -> Result<(PathBuf, PathBuf), LockError> {
    let state = std::fs::canonicalize(state_dir).map_err(|source| LockError::File {
        attempted: "find",
        path: state_dir.into(),
        source,
    })?;
    let lock = state.join("lock");
    Ok((state, lock))
}

/// Another account that may open the file could hold the lock for ever.
fn refuse_unsafe_file(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    if found.is_file() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it must be a regular file with mode 0600; remove it"))
}

fn holder_of(file: &File) -> io::Result<Option<Holder>> {
    let mut exclusion = range(EXCLUSION);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut exclusion))?;
    if i32::from(exclusion.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let mut identity = range(IDENTITY);
    fcntl(file, FcntlArg::F_GETLK(&mut identity))?;
    let pid = (i32::from(identity.l_type) != libc::F_UNLCK && identity.l_pid > 0).then_some(identity.l_pid);
    // The text counts only where the kernel names the same process.
    let version = read_text(file).filter(|text| Some(text.pid) == pid).map(|text| text.version);
    Ok(Some(Holder { pid, version }))
}

fn read_text(file: &File) -> Option<Text> {
    let mut text = Vec::new();
    io::Read::take(file, MAX_TEXT_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write_text(file: &File) -> io::Result<()> {
    let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let text = serde_json::to_vec(&Text { pid, version: env!("CARGO_PKG_VERSION").to_owned() })?;
    file.set_len(0)?;
    file.write_all_at(&text, 0)
}

fn range(byte: i64) -> libc::flock {
    libc::flock {
        // The constants are small; the field is a short.
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}
