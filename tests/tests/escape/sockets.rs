//! Sockets and shared memory, what leaks in, and what would stay.

use crate::attack::{
    Attack,
    Layer::{Ipc, Landlock, Mounts, Net, ReadOnly, Seccomp, Start, Uid, User},
    root, service, tools,
};

const SOCKETS: &str = "sockets and shared memory";
const LEAKS: &str = "what leaks in";
const STAYS: &str = "what stays";

#[rustfmt::skip]
pub const TABLE: &[Attack] = &[
    tools(SOCKETS, "a TCP port of the host is reached", "socket.create_connection(('127.0.0.1', PORT), 2)", &[Net]),
    tools(SOCKETS, "a TCP port of the host is reached by IPv6", "socket.create_connection(('::1', PORT6), 2)", &[Net]),
    tools(SOCKETS, "a UDP port of the host is asked", "ask(socket.AF_INET, '127.0.0.1', UDP)", &[Net]),
    tools(SOCKETS, "a UDP port of the host is asked by IPv6", "ask(socket.AF_INET6, '::1', UDP6)", &[Net]),
    tools(SOCKETS, "a name is asked for at the host's own address", "ask(socket.AF_INET, HOSTIP, UDPALL)", &[Net]),
    tools(SOCKETS, "ports that are open on the host are listed", "open('/proc/net/tcp').read().index(f':{PORT:04X} ')", &[Net]),
    tools(SOCKETS, "an abstract socket is reached", "socket.socket(socket.AF_UNIX).connect('\\0' + TAG)", &[Net, Landlock]),
    tools(SOCKETS, "a service's socket is reached by its path", "socket.socket(socket.AF_UNIX).connect(DIR + '/docker.sock')", &[Mounts]),
    tools(SOCKETS, "a datagram socket is reached by its path", "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(DIR + '/log.sock')", &[Mounts]),
    tools(SOCKETS, "a session bus is reached", "socket.socket(socket.AF_UNIX).connect(DIR + '/bus')", &[Mounts]),
    service(SOCKETS, "the operator socket is reached", "socket.socket(socket.AF_UNIX).connect(OPERATOR)", &[Mounts, Uid]),
    tools(SOCKETS, "the machine's host is reached by vsock", "socket.socket(40, socket.SOCK_STREAM)", &[Seccomp]),
    tools(SOCKETS, "the kernel's ciphers are used", "socket.socket(38, socket.SOCK_SEQPACKET)", &[Seccomp]),
    root(SOCKETS, "packets are sniffed", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", &[Seccomp, User]),
    root(SOCKETS, "raw packets are sent", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", &[User]),
    root(SOCKETS, "an address is given to a device by netlink", "netlink()", &[User]),
    tools(SOCKETS, "shared memory of System V is attached", "libc.shmget(KEY, 0, 0) < 0 and fail()", &[Ipc]),
    tools(SOCKETS, "semaphores of System V are found", "libc.semget(KEY, 0, 0) < 0 and fail()", &[Ipc]),
    tools(SOCKETS, "a message queue of System V is found", "libc.msgget(KEY, 0) < 0 and fail()", &[Ipc]),
    tools(SOCKETS, "a POSIX queue is opened", "libc.mq_open(('/' + TAG).encode(), 0) < 0 and fail()", &[Ipc, Landlock]),
    // The control starts as a careless parent would start it.
    tools(LEAKS, "a descriptor of the parent is there", "os.fstat(9)", &[Start]).everywhere(),
    tools(LEAKS, "a secret of the parent's environment is there", "os.environ['CARELESS_SECRET']", &[Start]).everywhere(),
    tools(LEAKS, "the terminal is opened", "open('/dev/tty')", &[Start]).everywhere(),
    tools(LEAKS, "files are made for all to write", "os.umask(0) == 0 or fail()", &[Start]).everywhere(),
    tools(LEAKS, "memory is dumped where a program crashes", "resource.getrlimit(resource.RLIMIT_CORE)[1] not in (0, 1) or fail()", &[Start]).everywhere(),
    tools(STAYS, "a key is added to the account's ssh", "os.makedirs(HOME + '/.ssh', exist_ok=True); open(HOME + '/.ssh/authorized_keys', 'a')", &[Mounts, Landlock]).proof("os.unlink(HOME + '/.ssh/authorized_keys')"),
    tools(STAYS, "the account's profile is changed", "open(HOME + '/.profile', 'a')", &[Mounts, Landlock]).proof("os.unlink(HOME + '/.profile')"),
    tools(STAYS, "a unit of the account is left", "os.makedirs(HOME + '/.config/systemd/user', exist_ok=True); open(HOME + '/.config/systemd/user/x.service', 'w')", &[Mounts, Landlock]).proof("os.unlink(HOME + '/.config/systemd/user/x.service')"),
    root(STAYS, "a crontab is left", "open('/var/spool/cron/crontabs/' + TAG, 'w')", &[User, Mounts, Landlock]),
    root(STAYS, "a job of at is left", "open('/var/spool/cron/atjobs/' + TAG, 'w')", &[User, Mounts, Landlock]),
    root(STAYS, "a job of the system is left", "open('/etc/cron.d/' + TAG, 'w')", &[User, Mounts, ReadOnly, Landlock]),
    root(STAYS, "the account is kept lingering", "open('/var/lib/systemd/linger/' + TAG, 'w')", &[User, Mounts, Landlock]),
];
