//! The attacks that need more of the kernel's interface than one call with numbers.

use std::{ffi::CStr, io};

use nix::libc;

use crate::tries::{call, done};

/// Attaches a segment of System V shared memory by its number.
pub(crate) fn attach(segment: i32) -> io::Result<()> {
    // SAFETY: the kernel chooses a place where nothing is mapped; nothing is read there.
    let at = unsafe { libc::shmat(segment, std::ptr::null(), libc::SHM_RDONLY) };
    // shmat(2): -1 where it failed.
    if at.addr() == usize::MAX { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads another process's memory, at an address that no process has: where it may be read at all the error is
/// EFAULT.
pub(crate) fn read_memory(victim: i32) -> io::Result<()> {
    let mut byte = 0u8;
    let ours = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(NOWHERE), iov_len: 1 };
    // SAFETY: both structures live through the call, and `ours` describes `byte`; `theirs` is another process's.
    let read = unsafe { libc::process_vm_readv(victim, &raw const ours, 1, &raw const theirs, 1, 0) };
    match done(read as libc::c_long) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        other => other,
    }
}

/// Below vm.mmap_min_addr.
const NOWHERE: usize = 16;

/// getpid(2) as 32-bit programs call it.
pub(crate) fn call_of_32_bits() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    {
        // linux: arch/x86/entry/syscalls/syscall_32.tbl
        const GETPID: i32 = 20;
        let answer: i32;
        // SAFETY: the call takes nothing and changes nothing; what it may change of the registers is named. A kernel
        // without it ends this process, which does nothing else, by SIGSEGV.
        unsafe {
            core::arch::asm!(
                "int 0x80",
                inlateout("eax") GETPID => answer,
                lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
            );
        };
        if answer == nix::unistd::getpid().as_raw() { Ok(()) } else { Err(io::Error::from_raw_os_error(-answer)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// getpid(2) by its x32 number.
pub(crate) fn call_of_x32() -> io::Result<()> {
    if cfg!(target_arch = "x86_64") {
        // linux: arch/x86/include/uapi/asm/unistd.h, __X32_SYSCALL_BIT
        call(0x4000_0000 | libc::SYS_getpid, [0; 5]).map(drop)
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}

/// Counts this process's own time, which asks for nothing that is another's.
pub(crate) fn performance_event() -> io::Result<()> {
    // struct perf_event_attr, PERF_ATTR_SIZE_VER0: type PERF_TYPE_SOFTWARE, config PERF_COUNT_SW_CPU_CLOCK, and the
    // flags exclude_kernel and exclude_hv.
    let mut attributes = [0u64; 8];
    let [kind, _, _, _, _, flags, ..] = &mut attributes;
    *kind = 1 | 64 << 32;
    *flags = 1 << 5 | 1 << 6;
    call(libc::SYS_perf_event_open, [attributes.as_ptr() as i64, 0, -1, -1, 0]).map(drop)
}

/// Types into a terminal of its own making, of which it makes itself the session.
pub(crate) fn type_into_a_terminal() -> io::Result<()> {
    // asm-generic/ioctls.h
    const TIOCSPTLCK: u64 = 0x4004_5431;
    const TIOCGPTPEER: u64 = 0x5441;
    // SAFETY: takes nothing.
    done(unsafe { libc::setsid() }.into())?;
    // SAFETY: the path is a C string.
    let terminal = unsafe { libc::open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
    done(terminal.into())?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the request reads an int, which lives through the call.
    done(unsafe { libc::ioctl(terminal, TIOCSPTLCK as _, &raw const unlocked) }.into())?;
    // SAFETY: the request takes flags by value.
    let slave = unsafe { libc::ioctl(terminal, TIOCGPTPEER as _, libc::O_RDWR | libc::O_NOCTTY) };
    done(slave.into())?;
    // SAFETY: the request takes a number by value.
    done(unsafe { libc::ioctl(slave, libc::TIOCSCTTY as _, 0) }.into())?;
    // SAFETY: the request reads one byte, which lives through the call.
    done(unsafe { libc::ioctl(slave, libc::TIOCSTI as _, &raw const unlocked) }.into())
}

/// Reads its own segment table.
pub(crate) fn segment_table() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut table = [0u64; 2];
        call(libc::SYS_modify_ldt, [0, table.as_mut_ptr() as i64, 16, 0, 0]).map(drop)
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Makes a set-user-ID file by a mode that lies in memory.
pub(crate) fn open_setuid(name: &CStr) -> io::Result<()> {
    // struct open_how: flags, mode, resolve.
    let how = [(libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned().into(), 0o4755u64, 0];
    let (name, here) = (name.as_ptr() as i64, libc::AT_FDCWD.into());
    call(libc::SYS_openat2, [here, name, how.as_ptr() as i64, size_of_val(&how) as i64, 0]).map(drop)
}

/// Asks for memory that it never touches.
pub(crate) fn map(bytes: u64) -> io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping where the kernel likes; nothing is read or written there.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a descriptor of this number, with all the room that the account has.
pub(crate) fn descriptor(number: u64) -> io::Result<()> {
    let mut room = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure of this frame.
    done(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut room) }.into())?;
    room.rlim_cur = room.rlim_max;
    // SAFETY: as above.
    done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const room) }.into())?;
    let number = i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: takes integers; this process has nothing under that number.
    done(unsafe { libc::dup2(0, number) }.into())
}
