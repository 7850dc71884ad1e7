//! What the service hands over as a descriptor: the script, in sealed memory.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt as _},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    unistd::{Whence, lseek},
};
use salaam_core::script::MAX_SCRIPT_BYTES;
use salaam_sys::handed;

use crate::TAG_SCRIPT;

/// Why there is no script.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandedError {
    /// A call failed.
    #[error("{step} failed: {source}")]
    Step {
        /// What was attempted.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Something else was handed over.
    #[error("the service handed over {0:?} in place of a script")]
    Other(char),
    /// It could still be changed while it is read.
    #[error("the script is not sealed against writing and resizing")]
    NotSealed,
    /// It is too long.
    #[error("the script has {bytes} bytes, more than {MAX_SCRIPT_BYTES}")]
    TooLong {
        /// How long.
        bytes: i64,
    },
}

/// Waits for the script and reads it whole. Read, never mapped: what cannot be mapped cannot fault.
pub(crate) fn script(socket: impl AsFd) -> Result<Vec<u8>, HandedError> {
    let step = |step| move |source: io::Error| HandedError::Step { step, source };
    let (tag, memory) = handed::receive(socket).map_err(step("receiving the script"))?;
    if tag != TAG_SCRIPT {
        return Err(HandedError::Other(char::from(tag)));
    }
    read(&File::from(memory))
}

fn read(memory: &File) -> Result<Vec<u8>, HandedError> {
    let step = |step| move |source: io::Error| HandedError::Step { step, source };
    let seals =
        fcntl(memory, FcntlArg::F_GET_SEALS).map_err(|errno| step("reading the script's seals")(errno.into()))?;
    if !SealFlag::from_bits_retain(seals).contains(SEALED) {
        return Err(HandedError::NotSealed);
    }
    let bytes = lseek(memory, 0, Whence::SeekEnd).map_err(|errno| step("measuring the script")(errno.into()))?;
    let length = usize::try_from(bytes).ok().filter(|length| *length <= MAX_SCRIPT_BYTES);
    let mut script = vec![0; length.ok_or(HandedError::TooLong { bytes })?];
    memory.read_exact_at(&mut script, 0).map_err(step("reading the script"))?;
    Ok(script)
}

/// Neither content nor length can change any more.
const SEALED: SealFlag = SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SHRINK);

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream};

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn memory(bytes: &[u8], seals: SealFlag) -> File {
        let mut file =
            File::from(memfd_create(c"script", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all(bytes).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    #[test]
    fn a_sealed_script_is_read_whole_wherever_its_offset_stands() {
        assert_eq!(read(&memory(b"{}", SEALED)).unwrap(), b"{}");
        assert_eq!(read(&memory(b"", SEALED)).unwrap(), b"");
    }

    #[test]
    fn one_that_could_change_is_too_long_or_is_something_else_is_refused() {
        for seals in [SealFlag::empty(), SealFlag::F_SEAL_WRITE, SEALED.difference(SealFlag::F_SEAL_SHRINK)] {
            assert!(matches!(read(&memory(b"{}", seals)), Err(HandedError::NotSealed)), "{seals:?}");
        }
        let long = memory(&vec![b' '; MAX_SCRIPT_BYTES + 1], SEALED);
        assert!(matches!(read(&long), Err(HandedError::TooLong { .. })));
        let plain = File::open("/dev/null").unwrap();
        assert!(matches!(read(&plain), Err(HandedError::Step { .. })), "no memfd has no seals");
        let (ours, theirs) = UnixStream::pair().unwrap();
        handed::send(&ours, b'P', memory(b"{}", SEALED)).unwrap();
        assert!(matches!(script(&theirs), Err(HandedError::Other('P'))));
    }
}
