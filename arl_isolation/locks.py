"""The locks that a process puts on itself: prctl, capabilities, seccomp and Landlock, by ctypes.

Numbers, rights and scopes: the kernel's include/uapi headers, linux/landlock.h among them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct

MACHINE = os.uname().machine

WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE = 1 << 11, 1 << 12, 1 << 13, 1 << 14
SCOPE_SIGNAL = 2
LOWEST_LANDLOCK = 3
"""The version of Linux 6.2. Older ones let a program truncate() every file of its user."""
_ALL_FILES, _IOCTL_DEV = (1 << 15) - 1, 1 << 15  # _ALL_FILES: the rights of version 3
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract UNIX sockets, signals
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 4, 22, 38
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def enter_folder(path: str) -> bool:
    """Enter a work folder, made anew if earlier programs have removed it.

    Returns:
        False if something else is in its place; then the process is in /.
    """
    try:
        if os.path.isdir(path) and os.path.samefile(path, "."):
            return True  # it may be closed to this process by now
        os.makedirs(path, exist_ok=True)
        os.chdir(path)
    except OSError:
        with contextlib.suppress(OSError):  # a closed / is where its parent is already
            os.chdir("/")
        return False
    return True


def check(result: int, what: str) -> int:
    """Return `result`, or raise the OSError that a negative one indicates."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int, what: str) -> None:
    check(libc.prctl(option, value, 0, 0, 0), f"prctl({what})")


def die_with_parent(parent: int = 0, *, number: int = 9) -> None:
    """Have the kernel send signal `number` when the thread that made this process ends.

    With the pid `parent`, end now if that process is gone already. A change of uid, or of the user
    namespace, resets this.
    """
    prctl(_SET_PDEATHSIG, number, "PDEATHSIG")
    if parent and os.getppid() != parent:
        os._exit(125)


def set_dumpable(yes: bool) -> None:
    """Set whether this process may dump core, and whether other processes of this uid may use its
    /proc/PID and ptrace on it."""
    prctl(_SET_DUMPABLE, int(yes), "DUMPABLE")


def no_new_privileges() -> None:
    prctl(_SET_NO_NEW_PRIVS, 1, "NO_NEW_PRIVS")


def drop_capabilities() -> None:
    """Drop all capabilities; for good, if no program started later can get any."""
    version_3 = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    check(libc.syscall(_CAPSET[MACHINE], version_3, bytes(24)), "capset")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Filter:
    """A seccomp program (see bpf.py), which can be made once and installed in each child."""

    def __init__(self, instructions: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(instructions, len(instructions))
        self._program = _Program(len(instructions) // 8, ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Install it for the rest of the process; needs `no_new_privileges`."""
        mode_filter = 2
        call = libc.prctl(_SET_SECCOMP, mode_filter, ctypes.byref(self._program), 0, 0)
        check(call, "prctl(SECCOMP)")


def landlock_version() -> int:
    """Return the version of the kernel's Landlock.

    Raises:
        OSError: the kernel has none (ENOSYS), or was started without it (EOPNOTSUPP).
    """
    query = 1
    return check(libc.syscall(_CREATE_RULESET, None, 0, query), "landlock_create_ruleset")


def ruleset(files: int, tcp: int = 0, scopes: int = 0) -> int:
    """Make a ruleset that denies these rights, except where `allow` grants them; return its handle.

    A kernel whose Landlock is older than the rights refuses: EINVAL, or E2BIG.
    """
    size = 24 if scopes else 16 if tcp else 8
    attributes = struct.pack("3Q", files, tcp, scopes)[:size]
    handle = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    return check(handle, "landlock_create_ruleset")


def full_ruleset() -> int:
    """Make a ruleset that denies all that this kernel's Landlock can deny.

    Raises:
        OSError: this kernel has no Landlock, or too old a version.
    """
    version = landlock_version()
    if version < LOWEST_LANDLOCK:
        raise OSError(errno.ENOSYS, f"Landlock {version}, where {LOWEST_LANDLOCK} is the least")
    files = _ALL_FILES | (_IOCTL_DEV if version >= 5 else 0)
    return ruleset(files, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)


def allow(handle: int, path: str, rights: int) -> None:
    """Grant rights to the file `path`, or to the folder and all below it; READ_DIR only to folders.

    Raises:
        OSError: there is no such path, or it is not open to this user.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allow_opened(handle, place, rights if os.path.isdir(path) else rights & ~READ_DIR)
    finally:
        os.close(place)


def allow_opened(handle: int, place: int, rights: int) -> None:
    """Grant rights to an opened file or folder."""
    path_beneath = 1
    rule = struct.pack("=Qi", rights, place)
    check(libc.syscall(_ADD_RULE, handle, path_beneath, rule, 0), "landlock_add_rule")


def enter_domain(handle: int) -> None:
    """Restrict the caller and its future children by a ruleset; needs `no_new_privileges`.

    A process inside cannot read or write the memory of others of the same uid, nor, with
    SCOPE_SIGNAL (Linux 6.12), send them signals.
    """
    check(libc.syscall(_RESTRICT_SELF, handle, 0), "landlock_restrict_self")
