"""The sandbox backends that have to keep the contract, opened for a whole file of tests."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from agentgym_rl.core import SandboxUnavailable
from agentgym_rl.gym import Capabilities, Limits, Sandbox, SandboxBackend
from tests.exhaustive import REQUIRED, WITH_DOCKER
from tests.kit.cases import chosen

T = TypeVar("T")
LIMITS = Limits(wall_s=20.0)
SYSTEM_PYTHON = "/usr/bin/python3"
IMAGE_CACHE = tempfile.mkdtemp(prefix="arl-images-")
atexit.register(shutil.rmtree, IMAGE_CACHE, ignore_errors=True)
SHOWN = Path(tempfile.mkdtemp(prefix="arl-shown-"))
"""The folder of this machine that programs see at SHOWN_AT, where the backend can show one."""
SHOWN_AT = "/opt/shown"
SHOWN.chmod(0o755)
atexit.register(shutil.rmtree, SHOWN, ignore_errors=True)
MOUNTS = {SHOWN_AT: str(SHOWN)}


def _local() -> SandboxBackend:
    from arl_sandboxes.local import LocalBackend

    return LocalBackend(slots=3, limits=LIMITS, image_cache=IMAGE_CACHE, mounts=MOUNTS)


def _local_landlock() -> SandboxBackend:
    """Root's own interpreter may be where nobody else can read it."""
    from arl_sandboxes.local import LocalBackend

    python = "" if os.getuid() or not os.path.exists(SYSTEM_PYTHON) else SYSTEM_PYTHON
    return LocalBackend(slots=3, limits=LIMITS, isolation="landlock", python=python)


def _docker() -> SandboxBackend:
    from arl_sandboxes.docker import DockerBackend
    from arl_sandboxes.docker.probes import DEFAULT_IMAGE

    # The image of scripts/sandbox_image.py stands for bases that would have to be pulled.
    bases = dict.fromkeys(("debian:12", "python:3.11-slim"), DEFAULT_IMAGE)
    return DockerBackend(containers=3, warm=1, limits=LIMITS, bases=bases, mounts=MOUNTS)


def _e2b_fake() -> SandboxBackend:
    """The e2b SDK against a protocol fake."""
    pytest.importorskip("e2b", reason="the e2b SDK is not installed")
    sys.path.insert(0, str(Path(__file__).parents[1] / "sandboxes"))
    from e2b_fake import FakedE2B  # type: ignore[import-not-found]
    from e2b_vm import why_not  # type: ignore[import-not-found]

    if reason := why_not():
        pytest.skip(reason)
    return FakedE2B(sandboxes=3, warm=1, limits=LIMITS)


BACKENDS: dict[str, Callable[[], SandboxBackend]] = {
    "local": _local,
    "local-landlock": _local_landlock,
    "docker": _docker,
    "e2b-fake": _e2b_fake,
}
"""A new backend: a function that makes it, with LIMITS and three sandboxes at once."""
EACH = [
    pytest.param(name, marks=[] if name == "local" else pytest.mark.slow, id=name)
    for name in BACKENDS
    if name != "docker" or WITH_DOCKER
]


class Opened:
    """A backend that is open in an event loop of its own."""

    def __init__(self, backend: SandboxBackend, loop: asyncio.AbstractEventLoop) -> None:
        self.backend = backend
        self._loop = loop

    @property
    def backend_capabilities(self) -> Capabilities:
        """What its sandboxes say they have."""
        return self.use(_capabilities)

    def needs(self, *names: str) -> None:
        """Skip where one of these capabilities, or kinds of session, is not there."""
        found = self.backend_capabilities
        kinds = {"python", "shell"}
        lacking = found.missing([name for name in names if name not in kinds])
        lacking += sorted(set(names) & kinds - found.sessions)
        if lacking:
            pytest.skip(f"this backend has no {', '.join(lacking)}, and says so")

    def run(self, scenario: Awaitable[T], timeout_s: float = 60.0) -> T:
        async def play() -> T:
            async with asyncio.timeout(timeout_s):
                return await scenario

        return asyncio.run_coroutine_threadsafe(play(), self._loop).result(timeout_s + 10)

    def play_each(
        self,
        subtests: pytest.Subtests,
        plays: Mapping[str, Callable[[], Awaitable[object]]],
        *,
        at_once: int = 3,
        case_s: float = 60.0,
    ) -> None:
        """Play many cases of one test, some at once: each that fails is a failed subtest.

        `ARL_CASE=TEXT` plays only those that have the text in their name.
        """
        names = chosen(plays)
        failed: dict[str, Exception] = {}
        room = asyncio.Semaphore(at_once)

        async def one(name: str, play: Callable[[], Awaitable[object]]) -> None:
            async with room:
                try:
                    async with asyncio.timeout(case_s):
                        await play()
                except Exception as error:
                    failed[name] = error

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as tasks:
                for name in names:
                    tasks.create_task(one(name, plays[name]))

        self.run(all_of_them(), timeout_s=case_s * len(names))
        for name, error in failed.items():
            with subtests.test(name):
                raise error

    def use(self, scenario: Callable[[Sandbox], Awaitable[T]], limits: Limits | None = None) -> T:
        """The scenario in a sandbox of its own."""

        async def play() -> T:
            async with await self.backend.create(limits=limits) as sandbox:
                return await scenario(sandbox)

        return self.run(play())


class OneSandbox(Opened):
    """One sandbox for every use, which the cases of a test share."""

    def __init__(self, world: Opened, sandbox: Sandbox) -> None:
        super().__init__(world.backend, world._loop)
        self._sandbox = sandbox

    def use(self, scenario: Callable[[Sandbox], Awaitable[T]], limits: Limits | None = None) -> T:
        assert limits is None, "the sandbox has been made"
        return self.run(scenario(self._sandbox))


async def _capabilities(sandbox: Sandbox) -> Capabilities:
    return sandbox.capabilities


def working(name: str) -> SandboxBackend:
    """One that works here; skips, with the reason, where the machine has not what it takes."""
    try:
        backend = BACKENDS[name]()
        complaint = asyncio.run(backend.probe()).complaint()
    except SandboxUnavailable as error:
        complaint = str(error)
    if not complaint:
        return backend
    (pytest.fail if name in REQUIRED else pytest.skip)(f"{name} does not work here:\n{complaint}")


@contextmanager
def opened(name: str) -> Iterator[Opened]:
    """Open until the end; skips as `working` does."""
    backend = working(name)
    ready, over = threading.Event(), asyncio.Event()
    found: list[Opened | BaseException] = []

    async def serve() -> None:
        try:
            async with backend:  # begun and ended by one task
                found.append(Opened(backend, asyncio.get_running_loop()))
                ready.set()
                await over.wait()
        except BaseException as error:
            found.append(error)
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name=name)
    thread.start()
    assert ready.wait(60), f"{name} did not open within 60 s"
    first = found[0]
    if isinstance(first, BaseException):
        thread.join()
        raise first
    try:
        yield first
    finally:
        first._loop.call_soon_threadsafe(over.set)
        thread.join(60)
        assert not thread.is_alive(), f"{name} did not close within 60 s"
        assert found[1:] == [], f"{name} did not close well: {found[1:]}"
