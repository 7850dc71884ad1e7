//! Which landlock the kernel has; the crate of that name does not say it before it is too late to refuse.

/// The kernel's landlock ABI, 0 where it has none or it is switched off (landlock_create_ruleset(2)).
pub fn abi() -> i32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with the version flag the kernel reads no structure.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    i32::try_from(abi).unwrap_or(0).max(0)
}
