//! Other processes: of the account, of other commands, of the sandbox itself, and the executor.

use crate::attack::{
    Attack,
    Layer::{Executor, Hidden, Landlock, Pid, Seccomp, Uid, User},
    service, tools,
};

const OTHERS: &str = "processes outside";
const OWN: &str = "the sandbox's own processes";
const EXECUTOR: &str = "the executor and the service";

#[rustfmt::skip]
pub const TABLE: &[Attack] = &[
    tools(OTHERS, "a process outside is signalled", "os.kill(VICTIM, 0)", &[Pid, Landlock]),
    tools(OTHERS, "a process outside is held by descriptor", "os.pidfd_open(VICTIM)", &[Pid]),
    tools(OTHERS, "a process outside is signalled by descriptor", "call(424, os.pidfd_open(VICTIM), 0, None, 0)", &[Pid, Landlock]),
    tools(OTHERS, "a process outside is signalled by a socket that it owns", "fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETOWN, VICTIM)", &[Pid]),
    tools(OTHERS, "a process outside is traced", "trace(VICTIM)", &[Pid, Landlock]),
    tools(OTHERS, "memory of a process outside is read", "vm_read(VICTIM)", &[Pid, Landlock]),
    tools(OTHERS, "memory of a process outside is opened", "open(f'/proc/{VICTIM}/mem', 'rb')", &[Pid, Landlock]),
    tools(OTHERS, "the map of a process outside is read", "open(f'/proc/{VICTIM}/maps').read()", &[Pid, Landlock]),
    tools(OTHERS, "a descriptor of a process outside is taken", "call(438, os.pidfd_open(VICTIM), 0, 0)", &[Pid, Landlock]),
    tools(OTHERS, "the environment of a process outside is read", "open(f'/proc/{VICTIM}/environ').read()", &[Pid, Landlock]),
    tools(OTHERS, "the command line of a process outside is read", "assert open(f'/proc/{VICTIM}/cmdline').read().startswith('python3')", &[Pid]),
    tools(OTHERS, "the kernel's stack of a process outside is asked for", "open(f'/proc/{VICTIM}/wchan').read(); open(f'/proc/{VICTIM}/status').read().index('python3')", &[Pid]),
    tools(OTHERS, "a process outside loses its limits", "resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0))", &[Pid, Seccomp]),
    tools(OTHERS, "a process outside is slowed down", "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)", &[Pid]),
    tools(OTHERS, "a process outside is bound to a processor", "os.sched_setaffinity(VICTIM, os.sched_getaffinity(VICTIM))", &[Pid]),
    tools(OTHERS, "a process outside is scheduled last", "os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0))", &[Pid]),
    tools(OTHERS, "a process outside is put last at the disk", "call(251, 1, VICTIM, 3 << 13)", &[Pid]),
    tools(OTHERS, "another command is signalled", "os.kill(OTHER, 0)", &[Pid, Landlock]).everywhere(),
    tools(OTHERS, "another command is traced", "trace(OTHER)", &[Pid, Landlock]).everywhere(),
    tools(OTHERS, "the environment of another command is read", "open(f'/proc/{OTHER}/environ').read()", &[Pid, Landlock]).everywhere(),
    tools(OTHERS, "another command is slowed down", "os.setpriority(os.PRIO_PROCESS, OTHER, 19)", &[Pid]).everywhere(),
    // Inside, launch is process 2 and its init process 1; outside, two processes stand in for them.
    tools(OWN, "launch is killed", "os.kill(LAUNCH, 0)", &[Landlock]),
    tools(OWN, "launch is stopped by descriptor", "call(424, os.pidfd_open(LAUNCH), 0, None, 0)", &[Landlock]),
    tools(OWN, "launch is traced", "trace(LAUNCH)", &[Landlock, Hidden]),
    tools(OWN, "launch loses its limits", "resource.prlimit(LAUNCH, resource.RLIMIT_CORE, (0, 0))", &[Seccomp, Hidden]),
    tools(OWN, "the report is forged through launch's descriptors", "open(f'/proc/{LAUNCH}/fd/{LAUNCHFD}', 'wb')", &[Landlock, Hidden]),
    tools(OWN, "a descriptor of launch is taken", "call(438, os.pidfd_open(LAUNCH), LAUNCHFD, 0)", &[Landlock, Hidden]),
    tools(OWN, "launch's memory is opened", "open(f'/proc/{LAUNCH}/mem', 'r+b')", &[Landlock, Hidden]),
    tools(OWN, "launch's memory is written", "vm_read(LAUNCH)", &[Landlock, Hidden]),
    tools(OWN, "init is traced", "trace(INIT)", &[Landlock, User]),
    tools(OWN, "init's descriptors are read", "os.readlink(f'/proc/{INIT}/fd/1')", &[Landlock, User]),
    tools(OWN, "init loses its limits", "resource.prlimit(INIT, resource.RLIMIT_CORE, (0, 0))", &[Seccomp, User]),
    tools(OWN, "init's environment is read", "open(f'/proc/{INIT}/environ').read()", &[Landlock, User]),
    // Outside, a process of the same account stands in for the executor.
    tools(EXECUTOR, "the executor is signalled", "os.kill(EXECUTOR, 0)", &[Pid, Landlock]).everywhere(),
    tools(EXECUTOR, "the executor is signalled by a socket that it owns", "fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETOWN, EXECUTOR)", &[Pid]).everywhere(),
    tools(EXECUTOR, "the executor is traced", "trace(EXECUTOR)", &[Pid, Landlock, Executor]).everywhere(),
    tools(EXECUTOR, "the executor's memory is read", "vm_read(EXECUTOR)", &[Pid, Landlock, Executor]).everywhere(),
    tools(EXECUTOR, "the executor's memory is opened", "open(f'/proc/{EXECUTOR}/mem', 'r+b')", &[Pid, Landlock, Executor]).everywhere(),
    tools(EXECUTOR, "the executor's environment is read", "open(f'/proc/{EXECUTOR}/environ').read()", &[Pid, Landlock, Executor]).everywhere(),
    tools(EXECUTOR, "the bridge is taken from the executor", "call(438, os.pidfd_open(EXECUTOR), 0, 0)", &[Pid, Landlock, Executor]).everywhere(),
    tools(EXECUTOR, "the executor loses its limits", "resource.prlimit(EXECUTOR, resource.RLIMIT_CORE, (0, 0))", &[Pid, Seccomp]).everywhere(),
    tools(EXECUTOR, "the executor is slowed down", "os.setpriority(os.PRIO_PROCESS, EXECUTOR, 19)", &[Pid]).everywhere(),
    service(EXECUTOR, "the service is signalled", "os.kill(SVICTIM, 0)", &[Pid, Landlock, Uid]),
    service(EXECUTOR, "the service is traced", "trace(SVICTIM)", &[Pid, Landlock, Uid]),
    service(EXECUTOR, "the service's memory is read", "vm_read(SVICTIM)", &[Pid, Landlock, Uid]),
    service(EXECUTOR, "the service loses its limits", "resource.prlimit(SVICTIM, resource.RLIMIT_CORE, (0, 0))", &[Pid, Seccomp, Uid]),
];
