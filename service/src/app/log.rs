//! Diagnosis: standard error as it is, and STATE/log/service.log once the service is detached.
//!
//! Promise: the file never grows past [`MAX_BYTES`]; [`KEPT`] older ones stand beside it, `service.log.1` the newest.
//! Whoever can make the service complain fills no disk with it. The journal is the record; this is not.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use nix::{
    libc::{O_CLOEXEC, O_NOFOLLOW},
    unistd::dup2_stderr,
};
use tracing_subscriber::fmt::MakeWriter;

/// The log's name in its directory.
const NAME: &str = "service.log";
/// Of one file: weeks of a quiet service, and still opened by every editor.
const MAX_BYTES: u64 = 8 << 20;
/// Older files that are kept.
const KEPT: u32 = 3;

/// Where lines of diagnosis go. Clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Option<Kept>>>);

/// The file behind standard error.
#[derive(Debug)]
struct Kept {
    directory: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
}

impl Log {
    /// From now on into `directory`, on standard error.
    pub(super) fn keep_in(&self, directory: &Path) -> io::Result<()> {
        let kept = Kept::open(directory, MAX_BYTES)?;
        dup2_stderr(&kept.file)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(())
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_mut()
            && kept.has_turned(line.len())
        {
            // What this fails for, the write below fails for as well.
            let _ = dup2_stderr(&kept.file);
        }
        let written = io::stderr().write(line)?;
        if let Some(kept) = kept.as_mut() {
            kept.bytes = kept.bytes.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Kept {
    fn open(directory: &Path, most: u64) -> io::Result<Self> {
        let file = open(directory)?;
        let bytes = file.metadata()?.len();
        Ok(Self { directory: directory.to_owned(), file, bytes, most })
    }

    /// Makes room for `more` bytes; true when `file` is another one now.
    fn has_turned(&mut self, more: usize) -> bool {
        if self.bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)) <= self.most {
            return false;
        }
        self.bytes = 0;
        match turn(&self.directory) {
            Ok(file) => {
                self.file = file;
                true
            }
            // The old lines are lost rather than the disk.
            Err(_) => {
                let _ = self.file.set_len(0);
                false
            }
        }
    }
}

/// Moves every file on by one; the oldest goes.
fn turn(directory: &Path) -> io::Result<File> {
    let older = |n: u32| directory.join(format!("{NAME}.{n}"));
    for n in (1..KEPT).rev() {
        match fs::rename(older(n), older(n + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(directory.join(NAME), older(1))?;
    open(directory)
}

fn open(directory: &Path) -> io::Result<File> {
    let flags = O_NOFOLLOW | O_CLOEXEC;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(directory.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("salaam-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        place
    }

    fn write(kept: &mut Kept, line: &[u8]) {
        kept.has_turned(line.len());
        kept.file.write_all(line).unwrap();
        kept.bytes += u64::try_from(line.len()).unwrap();
    }

    #[test]
    fn the_log_and_its_older_ones_never_hold_more_than_they_may() {
        let place = place("bound");
        fs::write(place.join(NAME), "from before\n").unwrap();
        let mut kept = Kept::open(&place, 100).unwrap();
        for n in 0..200 {
            write(&mut kept, format!("line number {n:4}\n").as_bytes());
        }
        let mut files: Vec<_> = fs::read_dir(&place).unwrap().flatten().map(|entry| entry.path()).collect();
        files.sort();
        let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["service.log", "service.log.1", "service.log.2", "service.log.3"]);
        assert!(files.iter().all(|path| path.metadata().unwrap().len() <= 100));
        // The newest line is in the log, and the ones before it follow without a gap.
        let all: String = files.iter().rev().map(|path| fs::read_to_string(path).unwrap()).collect();
        let first = 200 - all.lines().count();
        assert_eq!(
            all.lines().map(str::to_owned).collect::<Vec<_>>(),
            (first..200).map(|n| format!("line number {n:4}")).collect::<Vec<_>>()
        );
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_log_that_cannot_be_turned_is_emptied_and_stays_bounded() {
        let place = place("stuck");
        // Nothing can take the place of a directory that is not empty.
        fs::create_dir_all(place.join("service.log.1/x")).unwrap();
        fs::create_dir_all(place.join("service.log.2/x")).unwrap();
        let mut kept = Kept::open(&place, 100).unwrap();
        for _ in 0..50 {
            write(&mut kept, b"a line of thirty bytes, no more\n");
            assert!(place.join(NAME).metadata().unwrap().len() <= 100);
        }
        fs::remove_dir_all(place).unwrap();
    }
}
