"""The few Linux calls Python has no function for. Numbers: the kernel's include/uapi headers."""

from __future__ import annotations

import ctypes
import os
import platform

NEW_NETWORK, NEW_IPC, NEW_USER = 0x40000000, 0x8000000, 0x10000000
MACHINE = platform.machine()

_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """`result`, or the OSError that a negative one stands for."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def die_with_parent(parent: int) -> None:
    """End by SIGKILL when the thread ends that made this process; at once if it is gone."""
    check(libc.prctl(_PDEATHSIG, 9, 0, 0, 0), "prctl(PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(125)


def no_new_privileges() -> None:
    check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def undumpable() -> None:
    """No core, and /proc/PID closed to others of the same user."""
    check(libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl(DUMPABLE)")


def drop_capabilities() -> None:
    """All of them, for good where programs cannot be started any more."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    check(libc.syscall(_CAPSET[MACHINE], header, bytes(24)), "capset")


def leave_network() -> None:
    """Into a network namespace of its own, with no way out; a user's in a user namespace too.

    For a process with one thread.

    Raises:
        OSError: the kernel, or the container around, has none for this user.
    """
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(NEW_NETWORK | NEW_IPC) == 0:
        return
    check(libc.unshare(NEW_USER | NEW_NETWORK | NEW_IPC), "unshare(USER|NET|IPC)")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def install_filter(instructions: bytes) -> None:
    """A seccomp program, from here on; needs `no_new_privileges`."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = Program(len(instructions) // 8, ctypes.addressof(buffer))
    check(libc.prctl(_SECCOMP, 2, ctypes.byref(program), 0, 0), "prctl(SECCOMP)")
