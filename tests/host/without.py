#!/usr/bin/python3
"""Runs a program on a kernel that answers some calls otherwise: without.py ANSWER... -- PROGRAM WORD...

ANSWER is NAME=ERRNO, or NAME/MASK=ERRNO for a call whose first argument has any of these bits, or NAME:VALUE=ERRNO for one
whose first argument is this value. What an old kernel or a container's filter does; needs root, because no_new_privs, the
other way to load a filter, would stop sudo.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# linux: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
NUMBERS = {
    "x86_64": {"clone": 56, "prctl": 157, "unshare": 272, "seccomp": 317, "clone3": 435, "landlock_create_ruleset": 444},
    "aarch64": {"clone": 220, "prctl": 167, "unshare": 97, "seccomp": 277, "clone3": 435, "landlock_create_ruleset": 444},
}[platform.machine()]
# linux/bpf_common.h, linux/seccomp.h
LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER_AT, FIRST_AT = 0, 16
PR_SET_SECCOMP, MODE_FILTER = 22, 2


def rules(word):
    """The instructions of one answer; each begins and ends with the call's number loaded."""
    call, name = word.split("=")
    verdict = ERRNO | getattr(errno, name)
    for sign, compare in (("/", ANY_BIT), (":", EQUAL)):
        if sign in call:
            call, value = call.split(sign)
            return [(EQUAL, 0, 4, NUMBERS[call]), (LOAD, 0, 0, FIRST_AT), (compare, 0, 1, int(value, 0)),
                    (ANSWER, 0, 0, verdict), (LOAD, 0, 0, NUMBER_AT)]
    return [(EQUAL, 0, 1, NUMBERS[call]), (ANSWER, 0, 0, verdict)]


def main():
    end = sys.argv.index("--")
    program = [(LOAD, 0, 0, NUMBER_AT)]
    for word in sys.argv[1:end]:
        program += rules(word)
    program.append((ANSWER, 0, 0, ALLOW))
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    kept = ctypes.create_string_buffer(code, len(code))
    filtered = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(kept)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(filtered), 0, 0) != 0:
        sys.exit(f"without.py: the filter is not taken: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[end + 1], sys.argv[end + 1:])


main()
