#!/usr/bin/python3
"""Runs a program on a kernel that answers some calls otherwise: without.py ANSWER... -- PROGRAM WORD...

ANSWER is NAME=ERRNO, or NAME/MASK=ERRNO for a call whose first argument has any of these bits, or NAME:VALUE=ERRNO for one
whose first argument is this value (NAME@N: for the argument N, from 0). ERRNO 0 is a call that says it worked and did
nothing. landlock-abi=N is a kernel whose landlock is of that version. What an old kernel, a container's filter or a broken
kernel does; needs root, because no_new_privs, the other way to load a filter, would stop sudo.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import sys

# linux: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
NUMBERS = {
    "x86_64": {"clone": 56, "prctl": 157, "unshare": 272, "prlimit64": 302, "seccomp": 317, "userfaultfd": 323,
               "io_uring_setup": 425, "clone3": 435, "landlock_create_ruleset": 444, "landlock_restrict_self": 446},
    "aarch64": {"clone": 220, "prctl": 167, "unshare": 97, "prlimit64": 261, "seccomp": 277, "userfaultfd": 282,
                "io_uring_setup": 425, "clone3": 435, "landlock_create_ruleset": 444, "landlock_restrict_self": 446},
}[platform.machine()]
# linux/bpf_common.h, linux/seccomp.h
LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO, ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
NUMBER_AT, FIRST_AT = 0, 16
SET_MODE_FILTER, NEW_LISTENER = 1, 8
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
# linux/landlock.h: LANDLOCK_CREATE_RULESET_VERSION
VERSION = 1


def rules(word):
    """The instructions of one answer; each begins and ends with the call's number loaded."""
    call, name = word.split("=")
    if call == "landlock-abi":
        # The third argument: only who asks for the version is answered by us.
        return [(EQUAL, 0, 4, NUMBERS["landlock_create_ruleset"]), (LOAD, 0, 0, FIRST_AT + 16), (EQUAL, 0, 1, VERSION),
                (ANSWER, 0, 0, ASK), (LOAD, 0, 0, NUMBER_AT)]
    verdict = ERRNO | (0 if name == "0" else getattr(errno, name))
    for sign, compare in (("/", ANY_BIT), (":", EQUAL)):
        if sign in call:
            call, value = call.split(sign)
            call, _, which = call.partition("@")
            at = FIRST_AT + 8 * int(which or 0)
            return [(EQUAL, 0, 4, NUMBERS[call]), (LOAD, 0, 0, at), (compare, 0, 1, int(value, 0)),
                    (ANSWER, 0, 0, verdict), (LOAD, 0, 0, NUMBER_AT)]
    return [(EQUAL, 0, 1, NUMBERS[call]), (ANSWER, 0, 0, verdict)]


def answer(listener, version):
    """Answers until nobody is left who could ask."""
    import select
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while not any(event & select.POLLHUP for _, event in waiting.poll()):
        # struct seccomp_notif: id, pid, flags, data.
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, RECEIVE, asked)
            # struct seccomp_notif_resp: id, val, error, flags.
            fcntl.ioctl(listener, SEND, struct.pack("=QqiI", struct.unpack_from("=Q", asked)[0], version, 0, 0))
        except FileNotFoundError:
            # Who asked is gone.
            pass


def answering(version):
    """A process that waits for the listener, without the filter: else it would keep itself alive."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.setsid()
        ours.close()
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        _, (listener,), _, _ = socket.recv_fds(theirs, 1, 1)
        answer(listener, version)
        os._exit(0)
    theirs.close()
    return ours


def main():
    end = sys.argv.index("--")
    program = [(LOAD, 0, 0, NUMBER_AT)]
    versions = [int(word.split("=")[1]) for word in sys.argv[1:end] if word.startswith("landlock-abi=")]
    for word in sys.argv[1:end]:
        program += rules(word)
    program.append((ANSWER, 0, 0, ALLOW))
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    kept = ctypes.create_string_buffer(code, len(code))
    filtered = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(kept)))
    asks = [answering(version) for version in versions]
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.syscall(NUMBERS["seccomp"], SET_MODE_FILTER, NEW_LISTENER if asks else 0, filtered)
    if listener < 0:
        sys.exit(f"without.py: the filter is not taken: {os.strerror(ctypes.get_errno())}")
    for ask in asks:
        socket.send_fds(ask, [b"x"], [listener])
        ask.close()
        os.close(listener)
    os.execvp(sys.argv[end + 1], sys.argv[end + 1:])


main()
