"""The Linux calls for namespaces and mounts that Python has no function for; x86_64 and aarch64.

Standard library and arl_isolation only: this runs in the sandbox's own interpreter. Numbers: the
kernel's include/uapi headers.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct

from arl_isolation import locks
from arl_isolation.locks import check, libc

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x2000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR = 442  # the same on both, as all numbers from 424 on

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 24, 47
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CAPABILITIES, _CAP_SYS_ADMIN = 64, 21

_python = ctypes.PyDLL(None, use_errno=True)
"""The C library, called without releasing the interpreter's lock."""


def fork() -> int:
    """Fork as `os.fork` does, but without the hooks of modules: for a process with one thread and
    no lock, whose children seed their random generators themselves."""
    return check(_python.fork(), "fork")


def unshare(flags: int, what: str) -> None:
    check(libc.unshare(flags), f"unshare({what})")


def may_mount() -> bool:
    """Return True if this process has the capability to mount (CAP_SYS_ADMIN) in its namespace."""
    with open("/proc/self/status") as file:
        effective = next(line for line in file if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_ADMIN & 1)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    done = libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        data.encode(),
    )
    check(done, f"mount {kind or source} on {target}")


def unmount(target: str, flags: int = MNT_DETACH | UMOUNT_NOFOLLOW) -> None:
    check(libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    call = libc.syscall(PIVOT_ROOT[locks.MACHINE], os.fsencode(new), os.fsencode(old))
    check(call, "pivot_root")


def make_read_only(target: str) -> None:
    """Make the mount at `target` and all mounts below it read-only, without devices or set-uid."""
    attr = struct.pack("4Q", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    call = libc.syscall(
        MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attr, len(attr)
    )
    check(call, f"mount_setattr {target}")


def set_host_name(name: str) -> None:
    check(libc.sethostname(name.encode(), len(name)), "sethostname")


def loopback_up() -> None:
    """Switch on the loopback device of this process's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def forgo_capabilities() -> None:
    """Prevent new programs from getting capabilities, whatever this process itself still has."""
    for number in range(_CAPABILITIES):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
            check(-1, "prctl(CAPBSET_DROP)")
    clear_all = 4
    check(libc.prctl(_PR_CAP_AMBIENT, clear_all, 0, 0, 0), "prctl(CAP_AMBIENT)")
    locks.no_new_privileges()


def memory_domain() -> int | None:
    """Make a ruleset for `locks.enter_domain` that protects processes outside, and no files.

    Return None if Landlock is missing or too old.
    """
    try:
        version = locks.landlock_version()
    except OSError:
        return None
    if version >= 6:
        return locks.ruleset(0, scopes=locks.SCOPE_SIGNAL)
    if version < 2:
        return None
    # A ruleset must handle some right: block devices, which cannot be made in any case.
    handle = locks.ruleset(locks.MAKE_BLOCK | locks.REFER)
    locks.allow(handle, "/", locks.REFER)
    return handle
