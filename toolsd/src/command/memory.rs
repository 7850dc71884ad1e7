//! Bytes as a file that nobody can change any more.

use std::{io, os::fd::OwnedFd};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{Whence, lseek, write},
};

/// A memfd with `bytes`, sealed, to be read from its start.
pub(super) fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = open(name)?;
    append(&file, bytes)?;
    seal(&file)?;
    Ok(file)
}

/// An empty memfd that can still be written.
pub(super) fn open(name: &str) -> io::Result<OwnedFd> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?)
}

/// Appends `bytes`.
pub(super) fn append(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = write(file, bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Seals `file` against every change and goes to its start.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    lseek(file, 0, Whence::SeekSet)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
    };

    use super::*;

    #[test]
    fn what_is_sealed_is_read_whole_and_never_written() {
        let mut file = File::from(sealed("test", b"content").unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
    }
}
