//! The last step of a detached start: standard streams that outlive the caller's terminal.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use nix::unistd::{dup2_stdin, dup2_stdout};

use super::Log;

/// Puts /dev/null on standard input and output, and the log in `directory` (made 0700) on standard error.
pub(super) fn leave(log: &Log, directory: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir()) {
        DirBuilder::new().mode(0o700).create(directory)?;
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    log.keep_in(directory)
}
