//! Parts of the kernel that widen the walls, or that only an attack asks for.

use crate::attack::{
    Attack,
    Layer::{Landlock, Mounts, ReadOnly, Seccomp, User},
    root, tools,
};

const SPACES: &str = "namespaces and mounts";
const KERNEL: &str = "the kernel";

#[rustfmt::skip]
pub const TABLE: &[Attack] = &[
    tools(SPACES, "a user namespace is made", "call(272, 0x10000000)", &[Seccomp, User]),
    tools(SPACES, "a user namespace is made by clone", "p = call(56, 0x10000000 | 17, 0, 0, 0, 0)\nif p == 0: os._exit(0)", &[Seccomp, User]),
    tools(SPACES, "a user namespace is made by clone3", "p = call(435, numbers(0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)\nif p == 0: os._exit(0)", &[Seccomp, User]),
    tools(SPACES, "a mount in a nested namespace uncovers what is protected", "call(272, 0x10020000); call(165, b'none', b'/mnt', b'tmpfs', 0, None)", &[Seccomp, User]),
    tools(SPACES, "a nested namespace changes the root", "call(272, 0x10020000); call(161, b'/usr')", &[Seccomp, User]),
    root(SPACES, "a mount namespace is made", "call(272, 0x20000)", &[Seccomp, User]),
    root(SPACES, "a namespace is entered", "call(308, os.open('/proc/self/ns/net', 0), 0)", &[Seccomp, User]),
    root(SPACES, "a file system is mounted", "call(165, b'none', b'/mnt', b'tmpfs', 0, None)", &[Seccomp, User, Landlock]),
    root(SPACES, "/proc is taken away", "call(166, b'/proc', 2)", &[Seccomp, User, Landlock]),
    root(SPACES, "a file system is opened", "call(430, b'tmpfs', 0)", &[Seccomp, User]),
    root(SPACES, "a tree is cloned", "call(428, -100, b'/', 1)", &[Seccomp, User]),
    root(SPACES, "a read-only mount is made writable", "call(442, -100, b'/', 0, numbers(0, 1, 0, 0), 32)", &[Seccomp, User, Landlock]),
    root(SPACES, "the root is exchanged", "call(165, b'none', b'/mnt', b'tmpfs', 0, None); os.mkdir('/mnt/old'); call(155, b'/mnt', b'/mnt/old')", &[Seccomp, User, Landlock]),
    root(SPACES, "another root is taken", "os.chroot('/usr')", &[User]),
    tools(KERNEL, "rings do calls that no filter sees", "call(425, 1, ctypes.create_string_buffer(120))", &[Seccomp]),
    root(KERNEL, "a map is loaded into the kernel", "call(321, 0, struct.pack('6I', 2, 4, 4, 1, 0, 0) + bytes(48), 72)", &[Seccomp, User]),
    root(KERNEL, "performance of the machine is measured", "call(298, struct.pack('2IQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)", &[Seccomp, User]),
    tools(KERNEL, "page faults are held", "call(323, 1)", &[Seccomp]),
    tools(KERNEL, "a keyring is looked for", "call(250, 0, -3, 1, 0, 0)", &[Seccomp]),
    tools(KERNEL, "a key is left in the kernel", "call(248, b'user', TAG.encode(), b'x', 1, -3)", &[Seccomp]),
    tools(KERNEL, "32-bit calls pass the filter", "i386()", &[Seccomp]),
    tools(KERNEL, "x32 calls pass the filter", "call(0x40000000 | 39)", &[Seccomp]),
    tools(KERNEL, "a terminal is typed into", "types(0x5412, b'x')", &[Seccomp]),
    tools(KERNEL, "a terminal gets another discipline", "types(0x5423, struct.pack('i', 0))", &[Seccomp]),
    tools(KERNEL, "everything that is opened is watched", "call(300, 0x200, 0)", &[Seccomp]),
    tools(KERNEL, "the clock is asked like one that is to be set", "call(159, ctypes.create_string_buffer(208))", &[Seccomp]),
    tools(KERNEL, "segment tables are read", "call(154, 0, ctypes.create_string_buffer(64), 64)", &[Seccomp]),
    root(KERNEL, "the kernel's log is read", "call(103, 10, None, 0)", &[Seccomp, User]),
    root(KERNEL, "hardware ports are opened", "call(172, 3)", &[Seccomp, User]),
    root(KERNEL, "core_pattern is written", "open('/proc/sys/kernel/core_pattern', 'r+')", &[User, Landlock]),
    root(KERNEL, "a setting of the kernel is written", "open('/proc/sys/vm/overcommit_memory', 'r+')", &[User, ReadOnly]),
    root(KERNEL, "the machine is told to crash", "open('/proc/sysrq-trigger', 'w')", &[User, ReadOnly]),
    root(KERNEL, "a setting below /sys is written", "open('/sys/kernel/uevent_seqnum'); open(next(p for p in glob.glob('/sys/kernel/mm/*/*') if os.path.isfile(p) and os.access(p, os.W_OK)), 'r+')", &[User, Mounts]),
    root(KERNEL, "a control group is made", "os.mkdir(next(d for d in glob.glob('/sys/fs/cgroup/*/') + ['/sys/fs/cgroup/']) + TAG); [os.rmdir(d + TAG) for d in glob.glob('/sys/fs/cgroup/*/') + ['/sys/fs/cgroup/'] if os.path.exists(d + TAG)]", &[User, Mounts]),
    root(KERNEL, "another account is taken", "os.setuid(0); os.setgroups([0])", &[User]),
    root(KERNEL, "sudo is used", "subprocess.run(['/usr/bin/sudo', '-n', 'true'], check=True)", &[User]),
    root(KERNEL, "the host is given another name", "libc.sethostname(TAG.encode(), len(TAG)) and fail()", &[User]),
];
