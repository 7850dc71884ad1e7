//! The kernel's keyrings: keys that a process has because its parents had them.

use std::io;

/// KEYCTL_JOIN_SESSION_KEYRING of linux/keyctl.h.
const JOIN_SESSION_KEYRING: libc::c_int = 1;

/// Leaves the session keyring that was inherited for an empty one of its own. A session keyring passes through fork,
/// exec and a change of account, and whoever possesses it may read what the owner of a key may.
///
/// # Errors
/// EDQUOT where the account has used up its keys. Where there are no keyrings, or a filter lets nobody reach them,
/// there is nothing to leave.
pub fn leave_session() -> io::Result<()> {
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: no name is passed, and the kernel reads no other memory.
    if unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) } >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        Some(_) | None => Err(error),
    }
}
