//! The last step of a detached start: standard streams that outlive the caller's terminal.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use nix::{
    libc::{O_CLOEXEC, O_NOFOLLOW},
    unistd::{dup2_stderr, dup2_stdin, dup2_stdout},
};

/// The log's name in its directory.
const LOG: &str = "service.log";

/// Puts /dev/null on standard input and output, and `log`/service.log (0600, appended to) on standard error.
pub(super) fn leave(log: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(log).is_ok_and(|found| found.is_dir()) {
        DirBuilder::new().mode(0o700).create(log)?;
    }
    let flags = O_NOFOLLOW | O_CLOEXEC;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(log.join(LOG))?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&file)?;
    Ok(())
}
