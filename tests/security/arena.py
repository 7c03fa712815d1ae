"""Where attacks are played: a backend of one slot, its machine looked at before and after each.

An attack is *contained* when the host is unharmed, the limits held (the attack itself asserts its
own), the next run in the same slot and a new sandbox work exactly as before, and the status is
honest. Standard library only: it runs as a plain user, too, under another interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentgym_rl.gym import ExecResult, Limits, Sandbox, SandboxBackend
from agentgym_rl.gym.sandbox_records import Status

MODES = ("root", "user", "cgroup")
LANDLOCK_MODES = ("landlock", "landlock-user")
"""Isolation "landlock", as root and not: Python alone, and no namespace around it."""
IMAGE_MODES = ("image", "image-user")
"""Every sandbox starts from an image with the work folder /box, as root and not."""
ALL_MODES = (*MODES, *IMAGE_MODES, *LANDLOCK_MODES)
PROCESSES = dict.fromkeys(ALL_MODES, 3) | dict.fromkeys(LANDLOCK_MODES, 2)
"""Of a slot in which nothing runs."""
AHEAD = dict.fromkeys(ALL_MODES, 0) | dict.fromkeys(IMAGE_MODES, 4)
"""The processes of a backend that wait for an image."""
DOCKER, GVISOR = "docker", "docker-runsc"
CONTAINER_MODES = (DOCKER, GVISOR)
"""Of the docker backend; see containers.py."""
LIMITS = Limits(
    wall_s=20, cpu_s=10, memory_mb=128, processes=32, disk_mb=16, file_mb=8, open_files=64,
    output_bytes=1 << 18,
)  # fmt: skip
SETTLE_S = 30.0
"""Longest wait for the slots to be as they were."""
PWNED = "arl-pwned"
"""The file every attack tries to leave somewhere."""

PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys, time
R = {}
libc = ctypes.CDLL(None, use_errno=True)
def T(name, call):
    try: R[name] = repr(call())
    except OSError as error: R[name] = errno.errorcode.get(error.errno, str(error))
    except BaseException as error: R[name] = type(error).__name__
def S(name, number, *arguments):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    R[name] = f"done {done}" if done >= 0 else errno.errorcode[ctypes.get_errno()]
def end(): print(json.dumps(R), flush=True)
"""
# Signals to everybody: never outside a sandbox, where process 1 is the parent, or ...
GUARD = """
assert not os.path.exists("/etc/shadow") and os.getppid() <= 1
"""
LANDLOCK_GUARD = """
assert os.getuid() and libc.prctl(21, 0, 0, 0, 0) == 2  # PR_GET_SECCOMP: there is a filter
try: os.kill(-1, 0)
except PermissionError: pass
else: raise SystemExit("signals get out: nothing is tried")
"""

HONEST = """
import errno, json, os, random, resource, socket, sys, threading, colorsys
found = {"sum": sum(n * n for n in range(1000)), "env": dict(os.environ), "nice": os.nice(0)}
found["modules"] = [json.dumps([1]), random.__file__ is None, colorsys.__file__.startswith("/box")]
found["limits"] = [resource.getrlimit(kind) for kind in range(16) if kind != 0]
def lives(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError: return False
found["others"] = sum(lives(p) for p in os.listdir("/proc") if p.isdigit() and
                      p not in ("1", str(os.getpid())))
found["fds"] = sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd"))
found["host"] = socket.gethostname()
with open("/tmp/honest", "w") as file: file.write("x" * 1000)
found["size"] = os.path.getsize("/tmp/honest"), os.stat("/box").st_mode, os.getcwd()
os.unlink("/tmp/honest")
thread = threading.Thread(target=lambda: found.update(thread=True)); thread.start(); thread.join()
if os.fork() == 0: os._exit(7)
found["child"] = os.waitstatus_to_exitcode(os.wait()[1])
found["stdin"] = sys.stdin.read()
print(json.dumps(found, sort_keys=True))
"""
LANDLOCK_HONEST = """
import errno, json, os, random, resource, socket, sys, colorsys
found = {"sum": sum(n * n for n in range(1000)), "nice": os.nice(0), "stdin": sys.stdin.read()}
found["env"] = {name: value.replace(os.getcwd(), "BOX") for name, value in os.environ.items()}
found["modules"] = [json.dumps([1]), random.__file__ is None, colorsys.__file__[:5]]
found["limits"] = [resource.getrlimit(kind) for kind in range(16) if kind != 0]
with open("honest", "w") as file: file.write("x" * 1000)
found["size"] = os.path.getsize("honest"), os.stat(".").st_mode, os.umask(0o022)
os.unlink("honest")
one, two = socket.socketpair()  # for an event loop
one.send(b"x"); found["pair"] = two.recv(1).decode()
found["uid"] = os.getuid() != 0, os.getgroups()
print(json.dumps(found, sort_keys=True))
"""
CLEAN = "import os; print(sorted(os.listdir('/box')), os.listdir('/tmp'), os.listdir('/dev/shm'))"
LANDLOCK_CLEAN = "import os; print(os.listdir('.'))"


@dataclass(frozen=True)
class Attack:
    name: str
    play: Callable[[Case], Awaitable[None]]
    limits: Limits
    modes: tuple[str, ...]
    may_lose_sandbox: bool
    """Its sandbox may be lost with it (`state_lost`); never the ones that follow."""
    breaks_box: bool
    """It ruins the work folder of its own sandbox, so only a new sandbox can be asked to work."""


ATTACKS: dict[str, Attack] = {}


def attack(
    *,
    modes: tuple[str, ...] = MODES,
    landlock: bool = False,
    not_docker: str = "",
    not_image: str = "",
    gvisor: bool = False,
    may_lose_sandbox: bool = False,
    breaks_box: bool = False,
    **limits: Any,
) -> Callable[[Callable[[Case], Awaitable[None]]], Callable[[Case], Awaitable[None]]]:
    """Add a function to the suite, under its own name; `limits` differ from `LIMITS`.

    landlock: it makes sense, as it stands, for Python programs that no namespace surrounds.
    not_image: why it is none for sandboxes with images, as every one with namespaces is.
    not_docker: why it is none for containers, as every one with namespaces is; gvisor: there as
        well, where each takes seconds.
    """
    modes += IMAGE_MODES if modes == MODES and not not_image else ()
    modes += () if not_docker or LANDLOCK_MODES[0] in modes else (DOCKER,)
    modes += (GVISOR,) if gvisor else ()

    def add(play: Callable[[Case], Awaitable[None]]) -> Callable[[Case], Awaitable[None]]:
        name = play.__name__
        assert name not in ATTACKS, f"two attacks are called {name}"
        bounds = replace(LIMITS, **limits)
        everywhere = (*modes, *LANDLOCK_MODES) if landlock else modes
        ATTACKS[name] = Attack(name, play, bounds, everywhere, may_lose_sandbox, breaks_box)
        return play

    return add


@dataclass
class Case:
    """What an attack has to work with."""

    arena: Arena
    sandbox: Sandbox
    limits: Limits
    lost: bool = False

    @property
    def mode(self) -> str:
        return self.arena.mode

    @property
    def by_landlock(self) -> bool:
        return self.mode in LANDLOCK_MODES

    @property
    def in_image(self) -> bool:
        """It may write its complete file system, and has a loopback device."""
        return self.mode in IMAGE_MODES

    @property
    def in_container(self) -> bool:
        """It has a /proc and a loopback device of its own, and an image's files."""
        return self.arena.mode in CONTAINER_MODES

    async def run(self, code: str, **options: Any) -> ExecResult:
        """A program; `wall_s=...` and the like are limits of this run."""
        names = [name for name in options if name in Limits.__slots__]
        if tighter := {name: options.pop(name) for name in names}:
            options["limits"] = replace(self.limits, **tighter)
        guard = LANDLOCK_GUARD if self.by_landlock else GUARD
        return await self.sandbox.run_python(PRELUDE + guard + code, **options)

    async def tries(self, code: str, **options: Any) -> dict[str, str]:
        """What became of each `T(...)` and `S(...)` of a program: a value, or an errno's name."""
        result = await self.run(code + "\nend()", **options)
        assert result.status is Status.OK, described(result)
        return json.loads(result.stdout.splitlines()[-1])

    @property
    def between_cells_s(self) -> float:
        """So long after a cell began it is over, and its session waits for the next."""
        return 5.0 if self.arena.crowded else 0.5

    def must_be_soon(self, started: float, *, within_s: float) -> None:
        """Not much time has passed since `started` (of `time.perf_counter`)."""
        took_s, allowed_s = time.perf_counter() - started, within_s * self.arena.patience
        assert took_s < allowed_s, f"took {took_s:.1f} s, allowed {allowed_s:g}"

    async def renew(self) -> Sandbox:
        """Another episode in the same slot."""
        await self.sandbox.close()
        timeout_s = 30 * self.arena.patience
        self.sandbox = await self.arena.backend.create(limits=self.limits, timeout_s=timeout_s)
        return self.sandbox


async def all_are(case: Case, code: str, allowed: set[str]) -> dict[str, str]:
    """What became of each try of a program: one of `allowed`, or this fails."""
    said = await case.tries(code)
    assert said
    assert set(said.values()) <= allowed, {k: v for k, v in said.items() if v not in allowed}
    return said


def described(result: ExecResult) -> str:
    return (
        f"{result.status} exit={result.exit_code} signal={result.signal} "
        f"lost={result.state_lost} out={result.stdout[-300:]!r} err={result.stderr[-500:]!r}"
    )


@dataclass
class Arena:
    """One mode: its backend, and what is known of its machine."""

    mode: str
    backend: SandboxBackend
    canary: Path
    """A folder anybody may write, with a file anybody may read: only isolation guards it."""
    secret: str
    machine: str
    python_prefix: str
    landlock: int
    """Its version: from 2 on memory, from 6 on signals too are kept from programs of one slot."""
    make_backend: Callable[[int], SandboxBackend]
    crowded: bool = False
    """Others use the machine at the same time: what it costs cannot be measured."""
    honest: str = ""
    """What the honest program prints; from before any attack."""
    mounts: list[str] = field(default_factory=list)
    views: set[str] = field(default_factory=set)
    """Process-number views of all slots seen so far."""
    empty: str = "['.shm', '.tmp'] [] []\n"
    """What `CLEAN` prints in a new sandbox."""
    cancel_within_s: float = 0.05
    """Of an execution in the soak."""
    crowd_patience: float = 3.0
    """How much longer things may take in a crowd, on a machine that has other work as well."""

    @contextlib.asynccontextmanager
    async def neighbour(self) -> AsyncIterator[Sandbox]:
        """A sandbox of another slot."""
        async with self.make_backend(1) as backend, await backend.create() as sandbox:
            yield sandbox

    @property
    def patience(self) -> float:
        return self.crowd_patience if self.crowded else 1.0

    def own_processes(self) -> list[int]:
        """Of sandboxes, by their numbers on this machine."""
        return [pid for pid, _ in slot_processes()]

    def own_containers(self) -> list[str]:
        return []

    def fork_servers(self) -> list[int]:
        """What programs are forked from, where that can be told from the programs."""
        return []

    async def prepare(self) -> None:
        (self.canary / "answers.txt").write_text(self.secret)
        (self.canary / "answers.txt").chmod(0o666)
        self.canary.chmod(0o777)
        self.mounts = slot_mounts()
        async with await self.backend.create(limits=LIMITS, timeout_s=30) as sandbox:
            result = await sandbox.run_python(self.honest_code, stdin=b"42")
            assert result.ok, described(result)
            self.honest = result.stdout_text

    @property
    def honest_code(self) -> str:
        return LANDLOCK_HONEST if self.mode in LANDLOCK_MODES else HONEST

    async def contain(self, planned: Attack) -> None:
        """Play it.

        Raises:
            AssertionError: it was not contained; says in what.
        """
        self.views |= {view for _, view in slot_processes()}
        limits = replace(planned.limits, wall_s=planned.limits.wall_s * self.patience)
        sandbox = await self.backend.create(limits=limits, timeout_s=60 * self.patience)
        case = Case(self, sandbox, limits)
        try:
            async with asyncio.timeout(60 * self.patience):
                await planned.play(case)
            if not case.lost and not planned.breaks_box:
                await self.check_honest(case.sandbox, limits)
            assert planned.may_lose_sandbox or not case.lost, "the sandbox was lost"
        finally:
            await case.sandbox.close()
        if not (self.crowded and case.in_container):  # honest episodes are all around there
            await self.check_next()
        self.check_files()

    async def check_next(self) -> None:
        """A new sandbox works as before, and has nothing of an earlier one."""
        async with await self.backend.create(limits=LIMITS, timeout_s=60) as sandbox:
            await self.check_honest(sandbox, LIMITS)
            if self.mode in LANDLOCK_MODES:
                clean, expected = LANDLOCK_CLEAN, "[]\n"
            else:
                clean, expected = CLEAN, self.empty
            left = await sandbox.run_python(clean)
            assert left.stdout_text == expected, described(left)

    async def check_honest(self, sandbox: Sandbox, limits: Limits) -> None:
        result = await sandbox.run_python(self.honest_code, stdin=b"42")
        assert result.ok, f"the next run failed: {described(result)}"
        said, before = json.loads(result.stdout), json.loads(self.honest)
        if limits != LIMITS:
            said["limits"] = before["limits"] = None
        assert said == before, f"the next run differs: {differences(said, before)}"

    def check_files(self) -> None:
        assert (self.canary / "answers.txt").read_text() == self.secret
        assert os.listdir(self.canary) == ["answers.txt"]
        places = ("/", "/tmp", "/var/tmp", "/root", "/home", "/dev/shm", "/usr", "/etc", ".")
        for place in places:
            with contextlib.suppress(PermissionError):
                assert not os.path.exists(os.path.join(place, PWNED)), f"{place}/{PWNED} is there"
        assert slot_mounts() == self.mounts

    async def check_processes(self, num_slots: int = 1, *, num_backends: int = 1) -> None:
        """Each slot has its own processes, and nothing of a slot lives anywhere else.

        Slots and backends are counted with the arena's own, sandboxes are those of its backend.
        """
        until = time.monotonic() + SETTLE_S
        in_use = self.backend.stats().in_use
        expected = num_processes(self.mode, num_slots, num_backends=num_backends, in_use=in_use)
        while True:
            found = list(slot_processes())
            self.views |= {view for _, view in found}
            strays = strangers(self.views, {pid for pid, _ in found}) + orphans()
            if len(found) == expected and not strays:
                return
            assert time.monotonic() < until, (
                f"left over: {strays}; of the slots: {len(found)}, not {expected}: {found}"
            )
            await asyncio.sleep(0.02)


def num_processes(mode: str, num_slots: int = 1, *, num_backends: int = 1, in_use: int = 0) -> int:
    """Of backends in which nothing runs.

    A sandbox with an image has a slot of its own, besides the one that waits until it is closed.
    """
    slots = num_slots + (in_use if mode in IMAGE_MODES else 0)
    return PROCESSES[mode] * slots + AHEAD[mode] * num_backends


def differences(one: dict, other: dict) -> dict:
    return {key: (one[key], other[key]) for key in one if one[key] != other[key]}


def slot_mounts() -> list[str]:
    """Mounts of this machine where slots have theirs; others come and go with its other users."""
    places = ("/", "/sys", "/tmp", "/dev", "/dev/shm", "/proc", "/usr", "/etc", "/old", "/box")
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [
        line for line in lines if line.split()[1] in places or line.split()[1].startswith("/box")
    ]


def slot_processes() -> Iterator[tuple[int, str]]:
    """(process number, process-number view) of all descendants of this process."""
    parents = dict(_parents())
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and pid != above:
            yield pid, _view(pid)


def strangers(views: set[str], own: set[int]) -> list[int]:
    """Processes in a slot's view that are no descendants of this one, and nobody else's.

    The kernel gives a view's number to another one later, so it may be that of a slot of
    somebody's who is at work on this machine: then the slot's outermost process has a parent.
    """
    parents = dict(_parents())
    found = []
    for pid in parents.keys() - own:
        if _view(pid) in views - {"", _view(os.getpid())}:
            outermost = pid
            while _is_slot(parents.get(outermost, 1)):
                outermost = parents[outermost]
            if parents.get(outermost, 1) == 1:
                found.append(pid)
    return found


def orphans() -> list[int]:
    """Processes of slots without namespaces whose fork server is dead."""
    return [
        pid for pid, parent in _parents() if parent == 1 and _is_slot(pid, b"/landlock_server.py")
    ]


def _is_slot(pid: int, script: bytes = b"namespace_server.py") -> bool:
    with contextlib.suppress(OSError):
        return script in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                yield int(name), int(fields[1])


def _view(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""
