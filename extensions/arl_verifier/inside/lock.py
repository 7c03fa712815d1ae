"""The locks of a worker process, and a trial that finds out which accesses they really refuse."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from arl_isolation import locks

from . import seccomp

HANDLES = 64
_MIB = 1 << 20
_PAGE = resource.getpagesize()
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/urandom")
"""The paths that shared libraries and time zones need besides the interpreter's own folders."""
_TRIAL_S = 10
_NEW_NETWORK, _NEW_IPC, _NEW_USER = 0x40000000, 0x8000000, 0x10000000  # linux/sched.h


@dataclass
class Lock:
    """The lock that all workers of a fork server share."""

    memory_mb: int
    """The address space that a worker may use on top of that at its start."""
    isolated: bool
    held: list[str] = field(default_factory=list[str])
    """The names of the accesses refused in the trial: network, writes, exec, signals, reads."""
    notes: list[str] = field(default_factory=list[str])
    """The features that this machine lacks, as text."""

    def __post_init__(self) -> None:
        self._refused: set[str] = set()
        self._domain = -1
        if not self.isolated:
            return
        with self._noted("network namespace"):
            leave_network()
        with self._noted("landlock"):
            self._domain = may_read(readable())

    @contextlib.contextmanager
    def _noted(self, step: str) -> Generator[None]:
        try:
            yield
        except (OSError, KeyError) as error:  # KeyError: no numbers for this machine type
            self._refused.add(step)
            self.notes.append(f"{step}: {error}")

    def enter(self) -> None:
        """Lock the calling process in, for good.

        Raises:
            OSError: a step failed that worked in the trial.
        """
        limit(self.memory_mb)
        for name, step in self._steps():
            if name not in self._refused:
                step()

    def _steps(self) -> list[tuple[str, Callable[[], None]]]:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("no new privileges", locks.no_new_privileges)
        ]
        if self.isolated:
            steps += [
                ("capabilities", locks.drop_capabilities),
                ("landlock", lambda: locks.enter_domain(self._domain)),
                ("undumpable", lambda: locks.set_dumpable(False)),
                ("seccomp", lambda: locks.Filter(seccomp.program(os.getpid())).install()),
            ]
        return steps

    def leave_handles(self) -> None:
        """Close the handles that a locked worker no longer needs."""
        if self._domain >= 0:
            os.close(self._domain)

    def try_out(self, host: int) -> None:
        """Find out in a child process which steps work here, then which accesses they refuse."""
        if not self.isolated:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = self._trial(host, write)
            except BaseException:
                traceback.print_exc()  # to stderr, which the host keeps
            finally:
                os._exit(status)
        os.close(write)
        with open(read, "rb") as file:
            found = file.read()
        os.waitpid(pid, 0)
        if not found:
            raise RuntimeError("the trial of the locks died")
        held, refused, notes = json.loads(found)
        self.held, self.notes = held, self.notes + notes
        self._refused |= set(refused)

    def _trial(self, host: int, write: int) -> int:
        attempts = _attempts(host)
        signal.alarm(_TRIAL_S)
        limit(self.memory_mb)
        before = len(self.notes)
        for name, step in self._steps():
            if name not in self._refused:
                with self._noted(name):
                    step()
        held = [word for word, attempt in attempts.items() if _refused(attempt)]
        found = json.dumps([held, sorted(self._refused), self.notes[before:]])
        os.write(write, found.encode())
        return 0


def leave_network() -> None:
    """Enter a new network namespace without interfaces; also a new user namespace if needed.

    For a process with one thread.

    Raises:
        OSError: the kernel, or the surrounding container, does not allow it to this user.
    """
    uid, gid = os.getuid(), os.getgid()
    if locks.libc.unshare(_NEW_NETWORK | _NEW_IPC) == 0:
        return
    locks.check(locks.libc.unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC), "unshare(USER|NET|IPC)")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def may_read(paths: Iterable[str]) -> int:
    """Make a Landlock ruleset: only files at or below `paths` may be read, and none written.

    Raises:
        OSError: this kernel has no Landlock, or too old a version.
    """
    handle = locks.full_ruleset()
    for path in paths:
        # A path is missing, or not open to this user anyway.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            locks.allow(handle, path, locks.READ_FILE | locks.READ_DIR)
    return handle


def limit(memory_mb: int) -> None:
    """Forbid core dumps and file writes; limit handles and memory."""
    used = _used_bytes()
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, HANDLES),
        (resource.RLIMIT_AS, used + memory_mb * _MIB),
    ):
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def _used_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * _PAGE


def readable() -> list[str]:
    """Return the folders of the interpreter and of its modules."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    return sorted({os.path.realpath(p) for p in (*paths, *sys.path, *_SYSTEM) if p})


def _attempts(host: int) -> dict[str, list[Callable[[], object]]]:
    """Return, by name of access, the attempts that must all be refused for that access to count as
    refused."""
    return {
        "network": [_dial(socket.SOCK_STREAM), _dial(socket.SOCK_DGRAM), _unix_socket],
        "writes": [_write_in(tempfile.gettempdir()), _write_in("/dev/shm"), _write_in("/")],
        "exec": [_exec, _fork],
        "signals": [lambda: os.kill(os.getppid(), 0), lambda: os.kill(host, 0)],
        "reads": [_read("/etc/passwd"), _read(f"/proc/{host}/environ")],
    }


def _refused(attempts: list[Callable[[], object]]) -> bool:
    for attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        return False
    return True


def _dial(kind: socket.SocketKind) -> Callable[[], object]:
    """Return an attempt to connect to a port where nothing listens.

    With a network the error is "connection refused"; without one it is another error."""

    def attempt() -> None:
        with socket.socket(socket.AF_INET, kind) as dialled:
            dialled.settimeout(1)
            with contextlib.suppress(ConnectionRefusedError):
                dialled.connect(("127.0.0.1", 9))

    return attempt


def _unix_socket() -> None:
    """Try a Unix socket: a namespace does not block services such as a container daemon's."""
    socket.socket(socket.AF_UNIX).close()


def _exec() -> None:
    with contextlib.suppress(FileNotFoundError):  # the error if exec is allowed
        os.execv("/there-is-no-such-program", ["no"])


def _write_in(folder: str) -> Callable[[], object]:
    def attempt() -> None:
        path = os.path.join(folder, f".arl-verifier-{os.getpid()}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(path)

    return attempt


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_RDONLY))
