"""When the local backend ends, nothing of it is left: process, handle, control group."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from arl_sandboxes.local import LocalBackend
from arl_sandboxes.local.cgroup import find
from arl_sandboxes.local.interpreter import NAMESPACE_SERVER
from arl_sandboxes.local.slot import Slot

from agentgym_rl.core import SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.gym import ImageRecipe, Limits

pytestmark = pytest.mark.slow

HANG = "import time; time.sleep(60)"


def handles() -> dict[str, str]:
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def processes() -> list[str]:
    """Children of this process, zombies too."""
    pid = os.getpid()
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return found


def groups() -> list[str]:
    hierarchy, _ = find()
    folders = set(hierarchy.folders.values()) if hierarchy else set()
    return [str(path) for folder in folders for path in folder.glob(f"arl-{os.getpid()}-*")]


def leaves_nothing(scenario: Callable[[], Awaitable[None]]) -> None:
    before = handles(), processes()
    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert (handles(), processes(), groups()) == (*before, [])


def test_after_images(tmp_path):
    async def scenario():
        async with LocalBackend(slots=2, image_cache=str(tmp_path)) as backend:
            text = b"FROM debian\nRUN echo x > /x"
            image = await backend.prepare(ImageRecipe("task", {"Dockerfile": text}))
            kept = await backend.create(image=image)  # closed with the backend
            async with await backend.create(image=image) as sandbox:
                async with sandbox.forward(8080, "127.0.0.1:9"):
                    await sandbox.exec(["cat", "/x"])
                await sandbox.reset()
                await sandbox.open_session("shell")
            assert (await kept.run_python(HANG, limits=Limits(wall_s=0.2))).status == "timeout"

    leaves_nothing(scenario)
    assert not list(tmp_path.glob("*.new*"))


def test_after_every_kind_of_use():
    async def scenario():
        async with LocalBackend(slots=2) as backend, await backend.create() as sandbox:
            await sandbox.run_python("1", stdin=b"x", files={"a": b""}, collect=["."])
            await sandbox.exec(["sleep", "0"])
            session = await sandbox.open_session()
            fork = await session.fork()
            await fork.run("1")
            await (await sandbox.open_session("shell")).run("true")
            await session.run("import os; os._exit(0)")
            await sandbox.list_files()
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file("b")
            with pytest.raises(SandboxError):
                await sandbox.write_files({"a": b"", "a/b": b""})

    leaves_nothing(scenario)


def test_with_sandboxes_open_and_programs_running():
    async def scenario():
        errors = []

        async def use(running):
            try:
                await running
            except SandboxLost as error:
                errors.append(error)

        async with asyncio.TaskGroup() as tasks:  # noqa: SIM117 - it ends after the backend
            async with LocalBackend(slots=3) as backend:
                one, two, three = [await backend.create() for _ in range(3)]
                tasks.create_task(use(one.run_python(HANG, stdin=b"x")))
                tasks.create_task(use((await two.open_session()).run(HANG)))
                fork = await (await three.open_session()).fork()
                tasks.create_task(use(fork.run(HANG)))
                tasks.create_task(use(three.run_python("import os; os.fork(); os.fork()\n" + HANG)))
                tasks.create_task(use(backend.create()))
                await asyncio.sleep(0.3)
                assert backend.stats().waiting == 1
        assert len(errors) == 5

    leaves_nothing(scenario)


def test_cancelled_while_programs_run():
    async def scenario():
        async def run():
            async with LocalBackend(slots=2) as backend, await backend.create() as sandbox:
                await sandbox.run_python(HANG)

        for after_s in (0.05, 0.3, 1.0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after_s):
                    await run()

    leaves_nothing(scenario)


def test_cancelled_while_the_trial_slot_ends(monkeypatch):
    async def scenario():
        closing = asyncio.Event()
        close = Slot.close

        def closed(slot, *why):
            close(slot, *why)
            closing.set()

        monkeypatch.setattr(Slot, "close", closed)
        backend = LocalBackend(slots=2)
        starting = asyncio.create_task(backend.__aenter__())
        await closing.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    leaves_nothing(scenario)


def test_runs_cancelled_at_any_time():
    async def scenario():
        async with LocalBackend(slots=2) as backend:
            for number in range(60):
                sandbox = await backend.create()
                try:
                    async with asyncio.timeout(number * 0.0002):
                        await sandbox.run_python("print(1)", stdin=b"x" * 300_000, collect=["."])
                except TimeoutError:
                    pass
                await sandbox.close()

    leaves_nothing(scenario)


def test_an_error_in_the_block_comes_through():
    async def scenario():
        async def fail():
            async with LocalBackend(slots=2) as backend:
                await backend.create()
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()

    leaves_nothing(scenario)


def test_when_the_probes_fail():
    async def scenario():
        backend = LocalBackend(slots=3, preimport=["no_such_module"])
        with pytest.raises(SandboxUnavailable, match="no_such_module"):
            await backend.__aenter__()

    leaves_nothing(scenario)


def test_when_some_slots_cannot_start():
    async def scenario():
        with few_handles(14), pytest.raises(SandboxUnavailable, match=r"slots could not start: .*"):
            await LocalBackend(slots=20).__aenter__()

    leaves_nothing(scenario)


@contextmanager
def few_handles(more: int) -> Iterator[None]:
    """This process may open so many more files, for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    while taken[-1] < len(os.listdir("/proc/self/fd")) - 2:  # numbers below it are free
        taken.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in taken:
            os.close(handle)


def test_when_handles_run_out():
    async def scenario():
        async with LocalBackend(slots=1) as backend:
            sandbox = await backend.create()
            await sandbox.list_files()
            for use in (lambda: sandbox.run_python("pass"), sandbox.open_session):
                with few_handles(0), pytest.raises(SandboxError):
                    await use()
            await sandbox.close()
            async with await backend.create(timeout_s=10) as other:
                assert (await other.run_python("pass")).ok

    leaves_nothing(scenario)


def test_with_another_event_loop():
    async def scenario():
        async with LocalBackend(slots=2) as backend:
            await asyncio.gather(*(_use(backend) for _ in range(4)))

    async def _use(backend):
        async with await backend.create() as sandbox:
            session = await sandbox.open_session()
            await session.run("x = 1")
            assert (await (await session.fork()).run("x")).stdout == b"1\n"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await sandbox.run_python(HANG)
            big = b"x" * 1_000_000
            result = await sandbox.run_python("print(input())", stdin=big, files={"f": big})
            assert result.stdout == big + b"\n"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(LocalBackend(slots=1).probe())  # uvloop keeps a pipe for itself
    before = handles(), processes()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
    assert (handles(), processes(), groups()) == (*before, [])


def test_the_slot_program_is_where_the_tests_look_for_it():
    assert NAMESPACE_SERVER.name == "namespace_server.py"
    assert NAMESPACE_SERVER.exists()
