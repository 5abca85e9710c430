"""What foreign code may not ask of the kernel, though namespaces, limits and lost rights would let it.

A filter (seccomp) that answers "not permitted": to changing the limits or the priority of others, above all of the
supervisor, which may be of the same user; to memory that no limit counts; to a second process, which would have the
limit of memory once more (threads share it); to keys, which outlive a request; to sockets
other than local ones, since not every kind knows of network namespaces. A thread that has it cannot lose it, nor can
what it starts. Only the standard library is used here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of classic BPF
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
REFUSE, UNKNOWN = ERROR | errno.EPERM, ERROR | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST = 0, 4, 16  # places in what the filter is shown: first argument, lower half
X32 = 0x40000000  # a second set of numbers on x86-64
UNIX = 1
THREAD = 0x10000  # CLONE_THREAD

# Those of 64-bit x86 and of 64-bit ARM.
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
REFUSED = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
}
OLD_FORKS = (57, 58)  # fork and vfork, which only x86 has
PRLIMIT, SOCKET, CLONE, CLONE3 = (302, 261), (41, 198), (56, 220), (435, 435)


class Program(ctypes.Structure):
    """A filter as the kernel wants to be told of it."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]


def program(machine: str) -> bytes:
    """The steps of the filter; OSError for a machine whose numbers are not known here."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter for {machine}", "seccomp")
    token, column = ARCHITECTURES[machine]
    steps = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 1, 0, token), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        steps += [(JUMP_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
        for number in OLD_FORKS:
            steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for numbers in REFUSED.values():
        steps += [(JUMP_EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, REFUSE)]
    for numbers, allowed in ((PRLIMIT, 0), (SOCKET, UNIX)):  # one's own limits, and local sockets
        steps += [(JUMP_EQUAL, 0, 3, numbers[column]), (LOAD, 0, 0, FIRST), (JUMP_EQUAL, 1, 0, allowed)]
        steps += [(RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    steps += [(JUMP_EQUAL, 0, 3, CLONE[column]), (LOAD, 0, 0, FIRST), (JUMP_SET, 1, 0, THREAD)]
    steps += [(RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    # What it is asked for lies in memory, where no filter sees it: the C library then asks by `clone`.
    steps += [(JUMP_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, UNKNOWN)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def refuse() -> None:
    """Put the filter over this thread, for good; OSError where that cannot be."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = program(os.uname().machine)
    held = ctypes.create_string_buffer(steps, len(steps))
    given = Program(len(steps) // 8, ctypes.cast(held, ctypes.c_void_p))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(given), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "seccomp")


def check() -> None:
    """Whether the filter can be had here, tried by a process of its own; OSError where not."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            refuse()
            libc = ctypes.CDLL(None, use_errno=True)
            column = ARCHITECTURES[os.uname().machine][1]
            is_refused = libc.syscall(REFUSED["keyctl"][column], 0, -4, 0, 0, 0) == -1
            status = int(not (is_refused and ctypes.get_errno() == errno.EPERM))
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise OSError(errno.ENOSYS, "cannot be had", "seccomp")
