"""How a worker is locked in; and a trial that says what the locks really hold."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentgym_rl.gym.verifier.inside import kernel, landlock, seccomp

HANDLES = 64
_MIB = 1 << 20
_PAGE = resource.getpagesize()
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/urandom")
"""What shared libraries and time zones need besides the interpreter's own folders."""
_TRIAL_S = 10


@dataclass
class Lock:
    """The same for all workers of a zygote."""

    memory_mb: int
    """Address space a worker may take on top of what it has at its start."""
    isolated: bool
    held: list[str] = field(default_factory=list)
    """What the trial was refused: network, writes, exec, signals, reads."""
    notes: list[str] = field(default_factory=list)
    """What this machine has not, in words."""

    def __post_init__(self) -> None:
        self._refused: set[str] = set()
        self._domain = -1
        if not self.isolated:
            return
        with self._noted("network namespace"):
            kernel.leave_network()
        with self._noted("landlock"):
            self._domain = landlock.make(readable())

    @contextlib.contextmanager
    def _noted(self, step: str) -> Iterator[None]:
        try:
            yield
        except (OSError, KeyError) as error:  # KeyError: not a machine whose numbers we know
            self._refused.add(step)
            self.notes.append(f"{step}: {error}")

    def enter(self, *, leave_out: set[str] | None = None) -> None:
        """Lock the calling process in, for good.

        Raises:
            OSError: a step failed that worked in the trial.
        """
        limit(self.memory_mb)
        for name, step in self._steps():
            if name not in (self._refused if leave_out is None else leave_out):
                step()

    def _steps(self) -> list[tuple[str, Callable[[], None]]]:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("no new privileges", kernel.no_new_privileges)
        ]
        if self.isolated:
            steps += [
                ("capabilities", kernel.drop_capabilities),
                ("landlock", lambda: landlock.enter(self._domain)),
                ("undumpable", kernel.undumpable),
                ("seccomp", lambda: kernel.install_filter(seccomp.program(os.getpid()))),
            ]
        return steps

    def leave_handles(self) -> None:
        """What a worker needs no more."""
        if self._domain >= 0:
            os.close(self._domain)

    def try_out(self, host: int) -> None:
        """Find out which steps work here, then what they hold, in a process of its own."""
        if not self.isolated:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = self._trial(host, write)
            except BaseException:
                traceback.print_exc()  # on what the host keeps of our stderr
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


def limit(memory_mb: int) -> None:
    """No cores, no files, few handles, bounded memory."""
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
    """The interpreter's folders and those modules come from."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    return sorted({os.path.realpath(p) for p in (*paths, *sys.path, *_SYSTEM) if p})


def _attempts(host: int) -> dict[str, list[Callable[[], object]]]:
    """By word, what has to be refused, each of it, for the word to hold."""
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
    """Nothing listens there: without a network the answer is another than "refused"."""

    def attempt() -> None:
        with socket.socket(socket.AF_INET, kind) as dialled:
            dialled.settimeout(1)
            with contextlib.suppress(ConnectionRefusedError):
                dialled.connect(("127.0.0.1", 9))

    return attempt


def _unix_socket() -> None:
    """No namespace keeps one from the machine's own services (a container daemon's)."""
    socket.socket(socket.AF_UNIX).close()


def _exec() -> None:
    with contextlib.suppress(FileNotFoundError):  # what a process that may is told
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
