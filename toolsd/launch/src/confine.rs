//! The confined child: every layer in order, then exec. The order matters: limits before the domain (they
//! need no file), landlock before seccomp (seccomp forbids nothing that landlock needs, and what is loaded last
//! is inherited whole).

use std::{
    convert::Infallible,
    ffi::{CStr, CString, OsStr},
    os::unix::ffi::OsStrExt,
};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use nix::{
    errno::Errno,
    libc,
    sys::{signal::SigSet, stat::Mode},
    unistd,
};
use salaam_launch::{
    plan::{Action, Plan, Rules},
    report::{Enforcement, Layers, Record, Step},
};

use crate::{report, start, tries};

type Failure = (Step, Errno);

/// Takes on every layer and becomes the command; returns only on failure.
pub(crate) fn become_command(plan: Plan) -> Result<Infallible, Failure> {
    for descriptor in [salaam_launch::descriptor::REPORT, salaam_launch::descriptor::CONTROL] {
        keep_from_the_command(descriptor).map_err(|errno| (Step::Plan, errno))?;
    }
    nix::sys::stat::umask(Mode::from_bits_truncate(0o002));
    go_first_when_memory_ends().map_err(|errno| (Step::Limits, errno))?;
    for (resource, value) in &plan.limits {
        limit(*resource, *value).map_err(|errno| (Step::Limits, errno))?;
    }
    start::ordinary().map_err(|errno| (Step::Limits, errno))?;
    let (landlock_abi, landlock) = match &plan.landlock {
        Some(rules) => enter_domain(rules).map_err(|errno| (Step::Landlock, errno))?,
        None => (0, Enforcement::Not),
    };
    let seccomp = !plan.seccomp.is_empty();
    if seccomp {
        load_filter(&plan.seccomp).map_err(|errno| (Step::Seccomp, errno))?;
    }
    start::default_signals();
    SigSet::empty().thread_set_mask().map_err(|errno| (Step::Exec, errno))?;
    report(Record::Layers(Layers { landlock_abi, landlock, seccomp }));
    match plan.action {
        Action::Exec { argv, env } => exec(&argv, &env).map_err(|errno| (Step::Exec, errno)),
        Action::Canary(canary) => {
            let launch = unistd::getppid();
            for attack in &canary.attacks {
                report(Record::Attacked(*attack, tries::attempt(*attack, &canary, launch)));
            }
            std::process::exit(0)
        }
    }
}

fn keep_from_the_command(descriptor: i32) -> Result<(), Errno> {
    // SAFETY: fcntl with F_SETFD takes integers only.
    match unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// When memory runs out the kernel takes a command before anything else of the host, the executor and the service too:
/// shared memory counts against no limit of a process. Raising one's own score is always allowed (proc(5)), and
/// children have it too; behind walls landlock keeps the command from lowering it again.
fn go_first_when_memory_ends() -> Result<(), Errno> {
    std::fs::write("/proc/self/oom_score_adj", "1000")
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EACCES)))
}

fn limit(resource: u32, value: u64) -> Result<(), Errno> {
    let mut current = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure of this frame.
    if unsafe { libc::getrlimit(resource, &raw mut current) } != 0 {
        return Err(Errno::last());
    }
    // A hard limit that is already lower stays: raising it needs a privilege, and less is not wider.
    let value = value.min(current.rlim_max);
    let wanted = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: as above.
    match unsafe { libc::setrlimit(resource, &raw const wanted) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Builds the ruleset for the ABI that the kernel has, each right a hard requirement, and enters it.
fn enter_domain(rules: &Rules) -> Result<(u32, Enforcement), Errno> {
    if rules.signals_only {
        return deny_signals_to_others();
    }
    let offered = kernel_abi();
    let abi = match ABI::from(offered) {
        ABI::Unsupported if rules.required => return Err(Errno::EOPNOTSUPP),
        ABI::Unsupported => return Ok((0, Enforcement::Not)),
        abi => abi,
    };
    let build = || -> Result<landlock::RestrictionStatus, landlock::RulesetError> {
        let all = AccessFs::from_all(abi);
        let read = AccessFs::from_read(abi);
        // A device node is a way around every path rule; ioctl belongs to devices only.
        let write = all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
        let devices = (read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev) & all;
        let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(all)?;
        let scopes = Scope::from_all(abi);
        if !scopes.is_empty() {
            ruleset = ruleset.scope(scopes)?;
        }
        let mut created = ruleset.create()?;
        for (paths, access) in [(&rules.read, read), (&rules.write, write), (&rules.devices, devices)] {
            for path in paths {
                // Opened here and not by the crate's shortcut, which drops a path that it cannot open.
                let Ok(opened) = PathFd::new(os(path)) else { continue };
                created = created.add_rule(PathBeneath::new(opened, access))?;
            }
        }
        created.restrict_self()
    };
    let status = build().map_err(|error| errno_of(&error))?;
    let enforcement = match status.ruleset {
        RulesetStatus::FullyEnforced => Enforcement::Fully,
        RulesetStatus::PartiallyEnforced => Enforcement::Partially,
        RulesetStatus::NotEnforced => Enforcement::Not,
    };
    if rules.required && enforcement != Enforcement::Fully {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok((abi as u32, enforcement))
}

/// A domain of which the only wall is that its processes signal no others. Beside that it denies, as every domain
/// does, to trace what is outside (landlock(7)).
fn deny_signals_to_others() -> Result<(u32, Enforcement), Errno> {
    let abi = ABI::from(kernel_abi());
    if !Scope::from_all(abi).contains(Scope::Signal) {
        return Err(Errno::EOPNOTSUPP);
    }
    let build = || -> Result<landlock::RestrictionStatus, landlock::RulesetError> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(Scope::Signal)?;
        ruleset.create()?.restrict_self()
    };
    match build().map_err(|error| errno_of(&error))?.ruleset {
        RulesetStatus::FullyEnforced => Ok((abi as u32, Enforcement::Fully)),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => Err(Errno::EOPNOTSUPP),
    }
}

/// The kernel's own word where it has said one; what the crate refuses by itself is a kernel that has too little.
fn errno_of(error: &landlock::RulesetError) -> Errno {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(number) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Errno::from_raw(number);
        }
        cause = error.source();
    }
    Errno::EOPNOTSUPP
}

fn os(path: &CStr) -> &OsStr {
    OsStr::from_bytes(path.to_bytes())
}

fn kernel_abi() -> i32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with the version flag the kernel reads no structure.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) };
    i32::try_from(abi).unwrap_or(0)
}

fn load_filter(program: &[u8]) -> Result<(), Errno> {
    const RECORD: usize = size_of::<libc::sock_filter>();
    let mut records: Vec<libc::sock_filter> = program
        .chunks_exact(RECORD)
        .filter_map(|record| {
            let [c0, c1, jt, jf, k0, k1, k2, k3] = *<&[u8; RECORD]>::try_from(record).ok()?;
            Some(libc::sock_filter {
                code: u16::from_le_bytes([c0, c1]),
                jt,
                jf,
                k: u32::from_le_bytes([k0, k1, k2, k3]),
            })
        })
        .collect();
    if records.len() * RECORD != program.len() {
        return Err(Errno::EINVAL);
    }
    let len = u16::try_from(records.len()).map_err(|_| Errno::E2BIG)?;
    let program = libc::sock_fprog { len, filter: records.as_mut_ptr() };
    // SAFETY: `program` points to `records`, both live through the call, and the kernel copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// What a path leads to now.
pub(crate) fn stat(path: &CStr) -> Result<std::fs::Metadata, Errno> {
    std::fs::metadata(os(path)).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::ESTALE)))
}

fn exec(argv: &[CString], env: &[CString]) -> Result<Infallible, Errno> {
    let program = argv.first().ok_or(Errno::EINVAL)?;
    if program.as_bytes().contains(&b'/') {
        return unistd::execve(program, argv, env);
    }
    let path = env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    let mut worst = Errno::ENOENT;
    for directory in path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty()) {
        let Ok(candidate) = CString::new([directory, b"/", program.as_bytes()].concat()) else { continue };
        match unistd::execve(&candidate, argv, env) {
            Ok(never) => match never {},
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            // As execvp(3): a later directory may hold a usable one, and the reason is kept.
            Err(Errno::EACCES) => worst = Errno::EACCES,
            Err(other) => return Err(other),
        }
    }
    Err(worst)
}
